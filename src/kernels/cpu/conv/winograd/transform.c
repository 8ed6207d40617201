/* transform.c - how an image is cut into tiles and how weights are ordered (transform.h). The transforms
 * themselves are in transform_tiles.c and transform_weights.c. */
#include "kernels/cpu/conv/winograd/even.h"
#include "kernels/cpu/conv/winograd/transforms.h"

#include <string.h>

#define TAPS TERN__WINOGRAD_SQUARE
#define OUT  TERN__WINOGRAD_OUT

/* ---- tiles of an image ---- */

static tern__winograd_axis winograd_axis_of(int64_t out, int64_t padding, int64_t step)
{
    tern__winograd_axis a = {.out = out, .padding = padding, .step = step, .longer = out % step};
    a.long_tiles = (out / step + 1 + OUT - 1) / OUT;
    a.short_tiles = (out / step + OUT - 1) / OUT;
    a.tiles = a.longer * a.long_tiles + (step - a.longer) * a.short_tiles;
    return a;
}

static tern__winograd_depth depth_of(const tern__view *in, const tern__view *out, int64_t taps,
                                     const tern__conv_attr *attr, bool turned)
{
    int64_t shift = -attr->padding[0], step = attr->dilation[0];
    if (out->ndim == 4) return (tern__winograd_depth){1, 1, 1, 0, 1};
    return (tern__winograd_depth){in->shape[2], out->shape[2], taps, turned ? -shift : shift,
                                  turned ? -step : step};
}

tern__winograd_grid tern__winograd_grid_of(const tern__view *in, const tern__view *out, int64_t taps,
                                           const tern__conv_attr *attr, bool turned)
{
    tern__winograd_grid g = {.depth = depth_of(in, out, taps, attr, turned)};
    for (int d = 0; d < 2; d++) {
        int64_t step = attr->dilation[1 + d], padding = attr->padding[1 + d];
        g.axis[d] =
            winograd_axis_of(out->shape[out->ndim - 2 + d], turned ? 2 * step - padding : padding, step);
    }
    g.tiles = out->shape[0] * g.axis[0].tiles * g.axis[1].tiles;
    g.count = g.depth.out * g.tiles;
    return g;
}

void tern__winograd_inputs(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *in,
                           const tern__winograd_part *part)
{
    TERN__BY_WIDTH(tern__winograd_tiles)->inputs(to, grid, in, part);
}

void tern__winograd_grads(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *out,
                          const tern__winograd_part *part)
{
    TERN__BY_WIDTH(tern__winograd_tiles)->grads(to, grid, out, part);
}

void tern__winograd_outputs(tern__winograd_points from, const tern__winograd_grid *grid,
                            const tern__view *out, const void *bias, bool add,
                            const tern__winograd_part *part, const bool *direct)
{
    TERN__BY_WIDTH(tern__winograd_tiles)->outputs(from, grid, out, bias, add, part, direct);
}

/* ---- weights ---- */

typedef tern__winograd_channels channels;

static channels channels_of(const tern__winograd_weights *w, int64_t out, int64_t in)
{
    int64_t ins = w->ins / w->taps, near = w->taps * TAPS, far = (w->turned ? w->outs : ins) * near;
    channels c = {.data = w->data, .out_stride = w->turned ? near : far, .in_stride = w->turned ? far : near};
    c.first = out * c.out_stride + in % ins * c.in_stride + in / ins * TAPS;
    return c;
}

/* A copy without gaps between adjacent channels. */
static channels dense_channels(const tern__winograd_weights *w, float room[TERN__BLOCK * TERN__BLOCK * TAPS])
{
    int64_t far = TERN__BLOCK * TAPS;
    return (channels){
        .data = room, .out_stride = w->turned ? TAPS : far, .in_stride = w->turned ? far : TAPS};
}

static void copy_channels(const channels *to, const channels *from, size_t size)
{
    for (int64_t o = 0; o < TERN__BLOCK; o++)
        for (int64_t i = 0; i < TERN__BLOCK; i++) {
            int64_t at = to->first + o * to->out_stride + i * to->in_stride;
            int64_t from_at = from->first + o * from->out_stride + i * from->in_stride;
            memcpy((char *)to->data + (size_t)at * size, (char *)from->data + (size_t)from_at * size,
                   TAPS * size);
        }
}

bool tern__winograd_pack(float *to, const tern__winograd_weights *w, int64_t group, int64_t first,
                         int64_t count)
{
    int64_t width = tern__winograd_width(w, group), pitch = tern__winograd_pitch(w, group, count);
    const tern__winograd_squares *squares = TERN__BY_WIDTH(tern__winograd_squares);
    float room[TERN__BLOCK * TERN__BLOCK * TAPS], energy[TAPS][2 * TERN__BLOCK] = {{0}};
    for (int64_t c = 0; c < count; c += TERN__BLOCK)
        for (int64_t o = 0; o < width; o += TERN__BLOCK) {
            channels own = channels_of(w, 32 * group + o, first + c), dense = dense_channels(w, room);
            if (w->taps > 1) copy_channels(&dense, &own, tern_dtype_bytes(w->dtype));
            squares->pack(to + c * width + o, pitch, width, w->taps > 1 ? dense : own, w->turned,
                          &energy[0][o], w->dtype);
        }
    return tern__winograd_weights_are_even(energy, width);
}

void tern__winograd_direct(tern__winograd_points to, const tern__winograd_grid *grid, const tern__view *in,
                           const tern__winograd_weights *w, const tern__winograd_part *part,
                           const bool *direct)
{
    const tern__winograd_squares *squares = TERN__BY_WIDTH(tern__winograd_squares);
    float room[TERN__BLOCK * TERN__BLOCK * TAPS], taps[TERN__BLOCK * TERN__BLOCK * TAPS];
    for (int64_t t = 0; t < part->count; t++)
        for (int i = 0; direct[t] && i < OUT * OUT; i++)
            memset(to.data + i * to.pitch + t * TERN__BLOCK, 0, TERN__BLOCK * sizeof(float));
    for (int64_t c = 0; c < w->ins; c += TERN__BLOCK) {
        int64_t tap = c / in->shape[1], channel = c % in->shape[1];
        channels own = channels_of(w, part->block * TERN__BLOCK, c), dense = dense_channels(w, room);
        tern__winograd_part from = *part;
        from.block = channel / TERN__BLOCK;
        from.sheet += grid->depth.shift + tap * grid->depth.step;
        if (w->taps > 1) copy_channels(&dense, &own, tern_dtype_bytes(w->dtype));
        squares->load(taps, w->taps > 1 ? dense : own, w->turned, w->dtype);
        TERN__BY_WIDTH(tern__winograd_tiles)->add_direct(to, grid, in, &from, taps, w->turned, direct);
    }
}

void tern__winograd_unpack(const float *from, const tern__winograd_weights *w, int64_t group, int64_t first,
                           int64_t count, bool add)
{
    int64_t width = tern__winograd_width(w, group), pitch = tern__winograd_pitch(w, group, count);
    const tern__winograd_squares *squares = TERN__BY_WIDTH(tern__winograd_squares);
    size_t size = tern_dtype_bytes(w->dtype);
    float room[TERN__BLOCK * TERN__BLOCK * TAPS];
    for (int64_t c = 0; c < count; c += TERN__BLOCK)
        for (int64_t o = 0; o < width; o += TERN__BLOCK) {
            channels own = channels_of(w, 32 * group + o, first + c), dense = dense_channels(w, room);
            if (w->taps > 1 && add) copy_channels(&dense, &own, size);
            squares->unpack(from + c * width + o, pitch, width, w->taps > 1 ? dense : own, add, w->dtype);
            if (w->taps > 1) copy_channels(&own, &dense, size);
        }
}
