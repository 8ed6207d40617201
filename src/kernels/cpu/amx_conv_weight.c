/* amx_conv_weight.c - the weight gradient of a convolution as products of tiles: dw = sum of x times dy over
 * all positions, 32 of them a step.
 *
 * x is copied into planes as in amx_conv.c, but one a channel, whose neighbours are positions: a tile is 16
 * channels. dy is copied in pairs of positions, 16 channels each, with zeros where x's planes have a position
 * that y has not. The images whose copies fit the cache are one sum; these are added up in f32 in the order
 * of the images, whatever the number of threads, which take columns. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/amx_conv.h"
#include "kernels/cpu/amx_planes.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"

#define ROWS  TERN__AMX_ROWS
#define PAIR  (2 * ROWS)
#define DEPTH TERN__AMX_DEPTH
#define CACHE (3 << 19) /* bytes of what a thread reads again and again */

/* Scratch buffers; conv.c has the one between them. */
enum { PLANES = TERN__SCRATCH_OPERAND, PAIRS = TERN__SCRATCH_OPERAND + 2, STEPS };

typedef struct job {
    const tern__call *call;
    const tern__view *x, *dy;
    tern__axis axis[2];
    int64_t kernel[2];
    int64_t ins, outs;     /* blocks of 16 channels of x and of dy                   */
    int64_t depth;         /* positions that are summed, in whole steps              */
    int64_t pitch;         /* values of a channel's plane                            */
    int64_t planes, pairs; /* bytes of an image's copies of x and of dy              */
    int64_t group;         /* images that are one sum                                */
    char *x_copies, *dy_copies;
    int64_t *a_at, *b_at;
    float *dw;
} job;

/* ---- copies of x ---- */

TERN__DEFINE_TURN(turn, tern__halves)

/* Up to 16 positions, `step` apart, of 16 channels: to[c * pitch + i]. */
TERN__SIMD static void turn_positions(uint16_t *to, int64_t pitch, const uint16_t *from, int64_t step,
                                      int64_t n)
{
    tern__halves v[ROWS] = {{0}};
    for (int64_t i = 0; i < n; i++) memcpy(&v[i], from + i * step * ROWS, sizeof(v[i]));
    turn(v);
    for (int c = 0; c < ROWS; c++) {
        if (n == ROWS)
            memcpy(to + c * pitch, &v[c], sizeof(v[c]));
        else
            memcpy(to + c * pitch, &v[c], (size_t)n * sizeof(*to));
    }
}

/* A row of 16 channels, or of one; `to` is position 0 of the plane's row. */
static void copy_row(const job *j, uint16_t *to, const uint16_t *from, int64_t phase, bool blocked)
{
    const tern__axis *a = &j->axis[1];
    int64_t first = 0, last = a->size;
    while (first < last && tern__axis_source(a, phase, first) < 0) first++;
    while (last > first && tern__axis_source(a, phase, last - 1) < 0) last--;
    for (int64_t i = first; i < last; i += blocked ? ROWS : 1) {
        int64_t at = tern__axis_source(a, phase, i);
        if (blocked)
            turn_positions(to + i, j->pitch, from + at * ROWS, a->step, TERN__MIN(ROWS, last - i));
        else
            to[i] = from[at];
    }
}

static void copy_x(const job *j, int64_t n)
{
    const tern__axis *rows = &j->axis[0], *columns = &j->axis[1];
    bool blocked = j->x->layout == TERN__BLOCKED16;
    int64_t together = blocked ? ROWS : 1, area = rows->source * columns->source;
    uint16_t *planes = (uint16_t *)(j->x_copies + n % j->group * j->planes);
    for (int64_t c = 0; c < j->x->shape[1]; c += together) {
        const uint16_t *from = (const uint16_t *)j->x->data + (n * j->x->shape[1] + c) * area;
        for (int64_t p = 0; p < rows->step * columns->step; p++)
            for (int64_t i = 0; i < rows->size; i++) {
                int64_t at = tern__axis_source(rows, p / columns->step, i);
                if (at < 0) continue;
                uint16_t *to = planes + (p * j->ins * ROWS + c) * j->pitch + i * columns->size;
                copy_row(j, to, from + at * columns->source * together, p % columns->step, blocked);
            }
    }
}

/* ---- copies of dy ---- */

/* A row of 16 channels in pairs: to[pair][channel][2]. */
TERN__SIMD static void pair_row(uint16_t *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += 2) {
        tern__halves even, odd = {0};
        memcpy(&even, from + i * ROWS, sizeof(even));
        if (i + 1 < n) memcpy(&odd, from + (i + 1) * ROWS, sizeof(odd));
        tern__words both =
            __builtin_convertvector(even, tern__words) | __builtin_convertvector(odd, tern__words) << 16;
        memcpy(to + i * ROWS, &both, sizeof(both));
    }
}

static void copy_dy(const job *j, int64_t n)
{
    int64_t height = j->dy->shape[2], width = j->dy->shape[3], area = height * width;
    bool blocked = j->dy->layout == TERN__BLOCKED16;
    uint16_t *pairs = (uint16_t *)(j->dy_copies + n % j->group * j->pairs);
    for (int64_t c = 0; c < j->dy->shape[1]; c += blocked ? ROWS : 1) {
        const uint16_t *from = (const uint16_t *)j->dy->data + (n * j->dy->shape[1] + c) * area;
        for (int64_t row = 0; row < height; row++) {
            uint16_t *to = pairs + (c / ROWS * j->depth + row * j->axis[1].size) * ROWS;
            if (blocked) pair_row(to, from + row * width * ROWS, width);
            for (int64_t i = 0; i < width && !blocked; i++)
                to[i / 2 * PAIR + c % ROWS * 2 + i % 2] = from[row * width + i];
        }
    }
}

/* ---- products ---- */

TERN__SIMD static void add_tile(float *restrict to, const float *restrict from, bool add)
{
    for (int i = 0; i < ROWS * ROWS; i++) to[i] = add ? to[i] + from[i] : from[i];
}

/* Two blocks of x's channels by two of dy's, for one tap, over the images of a group. */
static void block(const job *j, int64_t in, int64_t out, int64_t tap, int64_t images, bool add)
{
    float sums[TERN__AMX_SUMS] __attribute__((aligned(64)));
    int64_t taps = j->kernel[0] * j->kernel[1], phase[2], shift[2];
    tern__axis_tap(&j->axis[0], 0, tap / j->kernel[1], &phase[0], &shift[0]);
    tern__axis_tap(&j->axis[1], 0, tap % j->kernel[1], &phase[1], &shift[1]);
    int64_t plane = ((phase[0] * j->axis[1].step + phase[1]) * j->ins + in) * ROWS;
    tern__amx_operands o = {.a = j->x_copies + 2 * (plane * j->pitch + shift[0] * j->axis[1].size + shift[1]),
                            .b = j->dy_copies + out * j->depth * PAIR,
                            .a_row = 2 * j->pitch,
                            .a_next = in + 1 < j->ins ? 2 * ROWS * j->pitch : 0,
                            .b_next = out + 1 < j->outs ? j->depth * PAIR : 0,
                            .a_at = j->a_at,
                            .b_at = j->b_at,
                            .steps = images * (j->depth / DEPTH)};
    tern__amx_block(&o, sums);
    for (int r = 0; r < (o.a_next ? 2 : 1); r++)
        for (int c = 0; c < (o.b_next ? 2 : 1); c++)
            add_tile(j->dw + (((out + c) * j->ins + in + r) * taps + tap) * ROWS * ROWS,
                     sums + (r * 2 + c) * ROWS * ROWS, add);
}

/* Columns first to last - 1, in pairs. */
static void columns(const job *j, int64_t first, int64_t last, int64_t images, bool add)
{
    tern__amx_open();
    for (int64_t in = 0; in < j->ins; in += 2)
        for (int64_t out = first; out < last; out += 2)
            for (int64_t tap = 0; tap < j->kernel[0] * j->kernel[1]; tap++)
                block(j, in, out, tap, images, add);
    tern__amx_close();
}

static void group(const job *j, int64_t first, int64_t last, int threads)
{
    int64_t pairs = (j->outs + 1) / 2;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t n = first; n < last; n++) {
            copy_x(j, n);
            copy_dy(j, n);
        }
#pragma omp for schedule(static)
        for (int t = 0; t < threads; t++)
            columns(j, 2 * (pairs * t / threads), TERN__MIN(j->outs, 2 * (pairs * (t + 1) / threads)),
                    last - first, first > 0);
    }
}

/* ---- the plan ---- */

/* The places of a group's steps: image by image. */
static int fill(job *j)
{
    int64_t steps = j->depth / DEPTH;
    size_t x_bytes = (size_t)(j->group * j->planes), dy_bytes = (size_t)(j->group * j->pairs);
    j->x_copies = tern__loop_scratch_of(j->call, PLANES, x_bytes);
    j->dy_copies = j->x_copies ? tern__loop_scratch_of(j->call, PAIRS, dy_bytes) : NULL;
    j->a_at = j->dy_copies
                  ? tern__loop_scratch_of(j->call, STEPS, (size_t)(2 * j->group * steps) * sizeof(int64_t))
                  : NULL;
    if (!j->a_at) return TERN_E_MEMORY;
    memset(j->x_copies, 0, x_bytes);
    memset(j->dy_copies, 0, dy_bytes);
    j->b_at = j->a_at + j->group * steps;
    for (int64_t i = 0; i < j->group * steps; i++) {
        j->a_at[i] = i / steps * j->planes + i % steps * 2 * DEPTH;
        j->b_at[i] = i / steps * j->pairs + i % steps * TERN__AMX_TILE;
    }
    return TERN_OK;
}

/* A plane's values and the zeros behind them that a tap reads; rows of a tile then lie an odd number of cache
 * lines apart, in different sets of the cache. */
static int64_t pitch_of(const job *j)
{
    const tern__axis *rows = &j->axis[0], *columns = &j->axis[1];
    int64_t shift = (rows->size - j->dy->shape[2]) * columns->size + columns->size;
    return TERN__MAX(rows->size * columns->size, j->depth + shift) / 64 * 64 + 96;
}

int tern__amx_conv_weight(const tern__call *call, const tern__view *x, const tern__view *dy, float *dw)
{
    const int64_t *kernel = call->out[0]->shape + 2, images = x->shape[0];
    job j = {.call = call, .x = x, .dy = dy, .kernel = {kernel[0], kernel[1]}, .dw = dw};
    for (int d = 0; d < 2; d++) j.axis[d] = tern__axis_of(call->attr, d, x, dy, kernel[d], false);
    j.ins = (x->shape[1] + ROWS - 1) / ROWS;
    j.outs = (dy->shape[1] + ROWS - 1) / ROWS;
    j.depth = (dy->shape[2] * j.axis[1].size + DEPTH - 1) / DEPTH * DEPTH;
    j.pitch = pitch_of(&j);
    j.planes = j.axis[0].step * j.axis[1].step * j.ins * ROWS * j.pitch * 2;
    j.pairs = j.outs * j.depth * PAIR;
    j.group = TERN__MAX(1, TERN__MIN(images, CACHE / (j.pairs + PAIR * j.pitch * 2)));
    int threads = tern__loop_threads(call, images * j.pairs), status = fill(&j);
    for (int64_t n = 0; n < images && !status; n += j.group)
        group(&j, n, TERN__MIN(images, n + j.group), threads);
    return status;
}
