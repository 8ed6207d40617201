/* transform_tiles.c - the transforms of activations and of their gradients. A tile of a block of channels
 * is transformed vector by vector. Elements are converted to f32 on loading and rounded on storing. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/conv/winograd/steps.h"
#include "kernels/cpu/conv/winograd/transforms.h"

DEFINE_BOTH(input_tile, input_step, IN, IN)
DEFINE_BOTH(output_tile, output_step, IN, OUT)
DEFINE_BOTH(grad_tile, grad_step, OUT, IN)

/* A place in a sheet of a block of channels: its first element, and a tile's first output. */
typedef struct place {
    int64_t plane, row, column;
    bool is_beyond; /* the sheet is outside of the volume: all zeros */
} place;

TERN__INLINE int64_t first_output(const tern__winograd_axis *a, int64_t tile)
{
    int64_t rest = tile - a->longer * a->long_tiles;
    if (rest < 0) return tile / a->long_tiles + tile % a->long_tiles * OUT * a->step;
    return a->longer + rest / a->short_tiles + rest % a->short_tiles * OUT * a->step;
}

/* The place of tile t of the part, in a volume of `sheets` sheets. */
TERN__INLINE place place_of(const tern__winograd_grid *g, const tern__view *view, int64_t sheets,
                            const tern__winograd_part *part, int64_t t)
{
    int64_t across = g->axis[1].tiles, area = g->axis[0].tiles * across;
    int64_t image = (part->first + t) / area, rest = (part->first + t) % area;
    int64_t plane = (image * (view->shape[1] / BLOCK) + part->block) * sheets + part->sheet;
    return (place){plane * view->shape[view->ndim - 2] * view->shape[view->ndim - 1] * BLOCK,
                   first_output(&g->axis[0], rest / across), first_output(&g->axis[1], rest % across),
                   part->sheet < 0 || part->sheet >= sheets};
}

/* The place of the tile's first input. */
TERN__INLINE place input_of(const tern__winograd_grid *g, const tern__view *in,
                            const tern__winograd_part *part, int64_t t)
{
    place p = place_of(g, in, g->depth.in, part, t);
    p.row -= g->axis[0].padding;
    p.column -= g->axis[1].padding;
    return p;
}

/* Lines of lanes of one dtype: the first element, and the distances in elements to the next line and the
 * next row. */
typedef struct lines {
    const void *data;
    int64_t first, row_pitch, pitch;
} lines;

/* Copies a line's bits; NULL: zeros. */
TERN__INLINE void copy_line(void *to, int64_t at, const void *from, int64_t from_at, tern_dtype dtype)
{
    const size_t size = dtype == TERN_F32 ? sizeof(float) : sizeof(uint16_t);
    if (from)
        memcpy((char *)to + (size_t)at * size, (const char *)from + (size_t)from_at * size, BLOCK * size);
    else
        memset((char *)to + (size_t)at * size, 0, BLOCK * size);
}

/* The square of `side` lines at p, a step apart. If it reaches beyond its plane, a copy in `room` with
 * zeros outside. */
TERN__INLINE lines square(const tern__winograd_grid *g, const tern__view *view, place p, int side, void *room,
                          tern_dtype dtype)
{
    int64_t height = view->shape[view->ndim - 2], width = view->shape[view->ndim - 1];
    int64_t down = g->axis[0].step, on = g->axis[1].step;
    const void *data = view->data;
    if (!p.is_beyond && p.row >= 0 && p.column >= 0 && p.row + (side - 1) * down < height &&
        p.column + (side - 1) * on < width)
        return (lines){data, p.plane + (p.row * width + p.column) * BLOCK, down * width * BLOCK, on * BLOCK};
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) {
            int64_t r = p.row + i * down, c = p.column + j * on;
            bool inside = !p.is_beyond && r >= 0 && c >= 0 && r < height && c < width;
            copy_line(room, (i * side + j) * BLOCK, inside ? data : NULL, p.plane + (r * width + c) * BLOCK,
                      dtype);
        }
    return (lines){room, 0, side * BLOCK, BLOCK};
}

TERN__INLINE void inputs(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                         const tern__winograd_part *part, tern_dtype dtype)
{
    float room[IN * IN * BLOCK];
    for (int64_t t = 0; t < part->count; t++) {
        lines from = square(g, in, input_of(g, in, part, t), IN, room, dtype);
        for (int v = 0; v < BLOCK; v += LANES)
            input_tile(to.data + t * BLOCK + v, to.pitch, from.data, from.first + v, from.row_pitch,
                       from.pitch, dtype);
    }
}

TERN__INLINE void grads(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *out,
                        const tern__winograd_part *part, tern_dtype dtype)
{
    float room[OUT * OUT * BLOCK];
    for (int64_t t = 0; t < part->count; t++) {
        lines from = square(g, out, place_of(g, out, g->depth.out, part, t), OUT, room, dtype);
        for (int v = 0; v < BLOCK; v += LANES)
            grad_tile(to.data + t * BLOCK + v, to.pitch, from.data, from.first + v, from.row_pitch,
                      from.pitch, dtype);
    }
}

/* Stores or adds a line plus `more` to one line of 16 outputs. */
TERN__INLINE void put_line(void *data, int64_t at, const float *line, const float *more, bool add,
                           tern_dtype dtype)
{
    for (int v = 0; v < BLOCK; v += LANES)
        tern__lanes_set(data, dtype, at + v,
                        tern__lanes_load(line + v, LANES) + tern__lanes_load(more + v, LANES), LANES, add);
}

TERN__INLINE void outputs(tern__winograd_points from, const tern__winograd_grid *g, const tern__view *out,
                          const void *bias, bool add, const tern__winograd_part *part, tern_dtype dtype)
{
    const tern__winograd_axis *down = &g->axis[0], *on = &g->axis[1];
    float room[OUT * OUT * BLOCK], more[BLOCK] = {0};
    for (int v = 0; bias && v < BLOCK; v += LANES)
        tern__lanes_store(more + v, tern__lanes_get(bias, dtype, part->block * BLOCK + v, LANES), LANES);
    for (int64_t t = 0; t < part->count; t++) {
        place p = place_of(g, out, g->depth.out, part, t);
        for (int v = 0; v < BLOCK; v += LANES)
            output_tile(room + v, BLOCK, from.data, t * BLOCK + v, IN * from.pitch, from.pitch, TERN_F32);
        for (int64_t i = 0, row = p.row; i < OUT && row < down->out; i++, row += down->step)
            for (int64_t j = 0, column = p.column; j < OUT && column < on->out; j++, column += on->step)
                put_line(out->data, p.plane + (row * on->out + column) * BLOCK, room + (i * OUT + j) * BLOCK,
                         more, add, dtype);
    }
}

DEFINE_FOR_DTYPES(inputs,
                  (tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                   const tern__winograd_part *part),
                  to, g, in, part)
DEFINE_FOR_DTYPES(grads,
                  (tern__winograd_points to, const tern__winograd_grid *g, const tern__view *out,
                   const tern__winograd_part *part),
                  to, g, out, part)
DEFINE_FOR_DTYPES(outputs,
                  (tern__winograd_points from, const tern__winograd_grid *g, const tern__view *out,
                   const void *bias, bool add, const tern__winograd_part *part),
                  from, g, out, bias, add, part)

static void inputs_of_any(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *in,
                          const tern__winograd_part *part)
{
    FOR_DTYPE(inputs, in->dtype)(to, g, in, part);
}

static void grads_of_any(tern__winograd_points to, const tern__winograd_grid *g, const tern__view *out,
                         const tern__winograd_part *part)
{
    FOR_DTYPE(grads, out->dtype)(to, g, out, part);
}

static void outputs_of_any(tern__winograd_points from, const tern__winograd_grid *g, const tern__view *out,
                           const void *bias, bool add, const tern__winograd_part *part)
{
    FOR_DTYPE(outputs, out->dtype)(from, g, out, bias, add, part);
}

const tern__winograd_tiles TERN__OF_WIDTH(tern__winograd_tiles) = {inputs_of_any, grads_of_any,
                                                                   outputs_of_any};
