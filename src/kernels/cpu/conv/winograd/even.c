/* even.c - where Winograd's algorithm may be used (even.h). Numbers that are so large or small that products
 * or squares could leave f32's range are never even. */
#include "kernels/cpu/conv/winograd/even.h"
#include "kernels/cpu/conv/winograd/transforms.h"

#include <math.h>
#include <string.h>

#define TAPS  TERN__WINOGRAD_SQUARE
#define OUT   TERN__WINOGRAD_OUT
#define IN    TERN__WINOGRAD_IN
#define BLOCK TERN__BLOCK

#define WINDOWS 32.0f   /* a window's least share of its tile */
#define SQUARES 256.0f  /* a tap's least share of all squares */
#define LARGE   0x1p56f /* sums of magnitudes lie between this and its inverse, or are 0 */

/* Four floats: all are added in the same order on every CPU. */
typedef float quad __attribute__((vector_size(16)));

static quad quad_of(const float *line)
{
    quad q[BLOCK / 4];
    memcpy(q, line, sizeof(q));
    return (q[0] + q[1]) + (q[2] + q[3]);
}

static float winograd_total_of(quad q)
{
    return (q[0] + q[1]) + (q[2] + q[3]);
}

static bool is_between(float v, float limit)
{
    return v == 0 || (v >= 1 / limit && v <= limit);
}

/* ---- tiles ---- */

/* The outputs of a tile along an axis. */
static int64_t outputs_of(const tern__winograd_axis *a, int64_t tile)
{
    int64_t rest = tile - a->longer * a->long_tiles, all = a->out / a->step + (rest < 0);
    int64_t at = rest < 0 ? tile % a->long_tiles : rest % a->short_tiles;
    return TERN__MIN(OUT, all - at * OUT);
}

/* The sum of each channel over a tile's positions. */
static void sum_positions(float channel[BLOCK], const float *sums)
{
    quad sum[BLOCK / 4] = {{0}};
    for (int i = 0; i < IN * IN; i++)
        for (int q = 0; q < BLOCK / 4; q++) {
            quad some;
            memcpy(&some, sums + i * BLOCK + 4 * q, sizeof(some));
            sum[q] += some;
        }
    memcpy(channel, sum, sizeof(sum));
}

/* Whether a tile is, by its inputs. Windows beyond the outputs do not count. */
static bool is_even(const tern__winograd_grid *g, const tern__view *in, const tern__winograd_part *part,
                    int64_t t)
{
    int64_t across = g->axis[1].tiles, tile = (part->first + t) % (g->axis[0].tiles * across);
    int64_t rows = outputs_of(&g->axis[0], tile / across), columns = outputs_of(&g->axis[1], tile % across);
    float sums[(IN * IN + 1) * BLOCK] = {0}, channel[BLOCK], all = 0, least = 0, most = 0;
    float rest = INFINITY;
    quad size[IN][IN];
    for (int64_t s = 0; s < g->depth.taps; s++) {
        tern__winograd_part from = *part;
        from.sheet += g->depth.shift + s * g->depth.step;
        for (from.block = 0; from.block < in->shape[1] / BLOCK; from.block++)
            TERN__BY_WIDTH(tern__winograd_tiles)->add_sizes(sums, g, in, &from, t);
    }
    for (int i = 0; i < IN * IN; i++) {
        size[i / IN][i % IN] = quad_of(sums + i * BLOCK);
        all += winograd_total_of(size[i / IN][i % IN]);
    }
    sum_positions(channel, sums);
    for (int c = 0; c < BLOCK; c++) {
        most = TERN__MAX(most, sums[IN * IN * BLOCK + c]);
        rest = TERN__MIN(rest, all - channel[c]);
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            quad window = {0};
            for (int k = 0; k < TAPS; k++) window += size[i + k / 3][j + k % 3];
            float sum = winograd_total_of(window);
            least = i + j == 0 ? sum : TERN__MIN(least, sum);
        }
    return is_between(all, LARGE) && (all == 0 || WINDOWS * TERN__MIN(least - most, rest) >= all);
}

int64_t tern__winograd_find_uneven(bool *uneven, tern__winograd_points from, int64_t block_pitch,
                                   const tern__winograd_grid *g, const tern__view *in,
                                   const tern__winograd_part *part)
{
    int64_t count = 0, blocks = in->shape[1] / BLOCK;
    TERN__BY_WIDTH(tern__winograd_tiles)
        ->find_doubtful(uneven, from, blocks, block_pitch, g->depth.taps, part->count);
    for (int64_t t = 0; t < part->count; t++) {
        if (uneven[t]) uneven[t] = !is_even(g, in, part, t);
        count += uneven[t];
    }
    return count;
}

/* ---- weights, and the channels of their gradients ---- */

bool tern__winograd_weights_are_even(float energy[][2 * BLOCK], int64_t width)
{
    bool even = true;
    for (int64_t o = 0; o < width; o++) {
        float all = 0, least = energy[0][o];
        for (int k = 0; k < TAPS; k++) {
            all += energy[k][o];
            least = TERN__MIN(least, energy[k][o]);
        }
        even = even && is_between(all, LARGE * LARGE) && SQUARES * least >= all;
    }
    return even;
}

/* Whether no value of 16 channels has more than 1 / share of its channel's sum. */
static bool are_even(const float *totals, float share)
{
    bool even = true;
    for (int c = 0; c < BLOCK; c++)
        even = even && is_between(totals[c], LARGE * LARGE) && share * totals[BLOCK + c] <= totals[c];
    return even;
}

void tern__winograd_add_energy(float *totals, const float *energy, int64_t count)
{
    TERN__BY_WIDTH(tern__winograd_tiles)->add_lines(totals, energy, TERN_F32, count);
}

/* Values are looked at only where one tile has more than a quarter of a channel's energy. */
bool tern__winograd_channels_are_even(const tern__view *view, const float *totals)
{
    int64_t blocks = view->shape[1] / BLOCK, area = 1;
    size_t bytes = (size_t)BLOCK * tern_dtype_bytes(view->dtype);
    bool even = true;
    for (int d = 2; d < view->ndim; d++) area *= view->shape[d];
    for (int64_t b = 0; b < blocks && even; b++) {
        float sums[TERN__WINOGRAD_TOTALS] = {0};
        if (are_even(totals + b * TERN__WINOGRAD_TOTALS, 4)) continue;
        for (int64_t n = 0; n < view->shape[0]; n++)
            TERN__BY_WIDTH(tern__winograd_tiles)
                ->add_lines(sums, (const char *)view->data + (size_t)((n * blocks + b) * area) * bytes,
                            view->dtype, area);
        even = are_even(sums, 8);
    }
    return even;
}
