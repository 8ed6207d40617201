/* amx_conv_weight.c - the weight gradient of a convolution as products of tiles: dw = sum of x times dy over
 * all positions, 32 of them a step.
 *
 * x is copied into planes as in amx_conv.c, but one a channel, whose neighbours are positions: a tile is 16
 * channels, and a tap of the kernel a shift of it. dy is copied in pairs of positions, 16 channels each, with
 * zeros where x's planes have a position that y has not. Images, or slabs of them, whose copies fit the cache
 * are one sum; these are added up in f32 in their order, whatever the number of threads, which take columns.
 * Inside of a sum a few steps are taken for all taps before the next ones: their copies are read again and
 * again from the first-level cache. A row of a block is two tiles: of 32 channels for a tap, or, where there
 * are 16 only, of two taps. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/amx_conv.h"
#include "kernels/cpu/amx_unfold.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"

#define ROWS  TERN__AMX_ROWS
#define PAIR  (2 * ROWS)
#define DEPTH TERN__AMX_DEPTH
#define CACHE (3 << 19) /* bytes of what a thread reads again and again */
#define FEW   8         /* steps at a time                              */
#define SIDE  16        /* rows of blocks side by side                  */

/* Scratch buffers; conv.c has the one between them. */
enum { PLANES = TERN__SCRATCH_OPERAND, PAIRS = TERN__SCRATCH_OPERAND + 2, STEPS };

typedef struct job {
    const tern__call *call;
    const tern__view *x, *dy;
    const tern__unfold *unfold; /* of x; NULL: it is copied */
    tern__planes p;
    int64_t ins, outs;     /* blocks of 16 channels of x and of dy                   */
    int64_t deep, slabs;   /* sheets of dy of a slab; slabs of an image              */
    int64_t depth;         /* positions of a slab that are summed, in whole steps    */
    int64_t pitch;         /* values of a channel's plane                            */
    int64_t planes, pairs; /* bytes of a slab's copies of x and of dy                */
    int64_t group;         /* slabs that are one sum                                 */
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
    const tern__axis *a = &j->p.axis[2];
    int64_t first, last;
    tern__axis_range(a, phase, &first, &last);
    for (int64_t i = first; i < last; i += blocked ? ROWS : 1) {
        int64_t at = tern__axis_source(a, phase, i);
        if (blocked)
            turn_positions(to + i, j->pitch, from + at * ROWS, a->step, TERN__MIN(ROWS, last - i));
        else
            to[i] = from[at];
    }
}

/* What another slab had in the place of padding goes. */
static void clear_row(const job *j, uint16_t *to, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++)
        memset(to + c * j->pitch, 0, (size_t)j->p.axis[2].size * sizeof(*to));
}

/* Channels c to c + count - 1 of image n, for the slab that begins at `sheet`. */
static void copy_channels(const job *j, uint16_t *planes, int64_t n, int64_t sheet, int64_t c, int64_t count)
{
    const tern__planes *p = &j->p;
    int64_t size = p->axis[0].source * p->axis[1].source * p->axis[2].source;
    const uint16_t *from = (const uint16_t *)j->x->data + (n * j->x->shape[1] + c) * size;
    for (int64_t phase = 0; phase < p->phases; phase++) {
        uint16_t *to = planes + (phase * j->ins * ROWS + c) * j->pitch;
        for (int64_t i = 0; i < (j->deep + p->more) * p->axis[1].size; i++, to += p->axis[2].size) {
            int64_t at = tern__planes_row(p, phase, sheet + i / p->axis[1].size, i % p->axis[1].size);
            if (at < 0)
                clear_row(j, to, count);
            else
                copy_row(j, to, from + at * count, phase % p->axis[2].step, count > 1);
        }
    }
}

static void copy_unfolded(const job *j, uint16_t *planes, int64_t n, int64_t sheet)
{
    int64_t height = j->p.axis[1].target, width = j->p.axis[2].target;
    for (int64_t r = 0; r < j->unfold->count; r++)
        for (int64_t i = 0; i < j->deep * height; i++) {
            uint16_t *to = planes + r * j->pitch + i * j->p.axis[2].size;
            int64_t place[] = {sheet + i / height, i % height};
            tern__unfold_row row = tern__unfold_row_of(j->unfold, n, r, place, width);
            memset(to, 0, (size_t)width * sizeof(*to));
            tern__unfold_read(j->unfold, &row, 0, width, to);
        }
}

static void copy_x(const job *j, int64_t slab)
{
    int64_t together = j->x->layout == TERN__BLOCKED16 ? ROWS : 1;
    uint16_t *planes = (uint16_t *)(j->x_copies + slab % j->group * j->planes);
    if (j->unfold) {
        copy_unfolded(j, planes, slab / j->slabs, slab % j->slabs * j->deep);
        return;
    }
    for (int64_t c = 0; c < j->x->shape[1]; c += together)
        copy_channels(j, planes, slab / j->slabs, slab % j->slabs * j->deep, c, together);
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

/* A row of one channel, the pairs' values 16 channels apart. */
static void pair_plain_row(uint16_t *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i / 2 * PAIR + i % 2] = from[i];
}

/* Channel c, or 16 from there, of sheet `sheet` of image n; none: what another slab had there goes. */
static void copy_sheet(const job *j, uint16_t *to, int64_t n, int64_t sheet, int64_t c, bool blocked)
{
    const tern__axis *a = j->p.axis;
    int64_t width = a[2].target, area = a[1].target * width, together = blocked ? ROWS : 1;
    const uint16_t *from = (const uint16_t *)j->dy->data + (n * j->dy->shape[1] + c) * a[0].target * area +
                           sheet * area * together;
    for (int64_t row = 0; row < a[1].target; row++, to += a[2].size * ROWS, from += width * together) {
        if (sheet >= a[0].target)
            memset(to, 0, (size_t)(width * ROWS) * sizeof(*to));
        else if (blocked)
            pair_row(to, from, width);
        else
            pair_plain_row(to + c % ROWS * 2, from, width);
    }
}

static void copy_dy(const job *j, int64_t slab)
{
    bool blocked = j->dy->layout == TERN__BLOCKED16;
    uint16_t *pairs = (uint16_t *)(j->dy_copies + slab % j->group * j->pairs);
    for (int64_t c = 0; c < j->dy->shape[1]; c += blocked ? ROWS : 1)
        for (int64_t i = 0; i < j->deep; i++)
            copy_sheet(j, pairs + (c / ROWS * j->depth + i * j->p.sheet) * ROWS, slab / j->slabs,
                       slab % j->slabs * j->deep + i, c, blocked);
}

/* ---- products ---- */

TERN__SIMD static void add_tile(float *restrict to, const float *restrict from, bool add)
{
    for (int i = 0; i < ROWS * ROWS; i++) to[i] = add ? to[i] + from[i] : from[i];
}

/* A row of blocks: 16 channels of x for a tap; it may have a second tile. */
typedef struct row {
    int64_t in[2], tap[2], at[2];
    int tiles;
} row;

static void add_to_row(const job *j, row *r, int64_t in, int64_t tap)
{
    int64_t phase, shift;
    tern__planes_tap(&j->p, 0, tap, &phase, &shift);
    r->in[r->tiles] = in;
    r->tap[r->tiles] = tap;
    r->at[r->tiles++] = 2 * ((phase * j->ins + in) * ROWS * j->pitch + shift);
}

/* Rows first to first + SIDE - 1 of x's channels from block `in` on, all taps; returns how many. */
static int64_t rows_of(const job *j, int64_t in, int64_t first, row rows[SIDE])
{
    bool two = in + 1 < j->ins;
    int64_t all = two ? j->p.taps : (j->p.taps + 1) / 2, count = TERN__MIN(SIDE, all - first);
    for (int64_t i = 0; i < count; i++) {
        int64_t tap = (first + i) * (two ? 1 : 2);
        rows[i].tiles = 0;
        add_to_row(j, &rows[i], in, tap);
        if (two || tap + 1 < j->p.taps) add_to_row(j, &rows[i], in + two, tap + !two);
    }
    return count;
}

/* The sums of some rows by two blocks of dy's channels over `steps` steps. */
static void add_up(const job *j, const row *rows, int64_t count, int64_t out, int64_t steps,
                   float sums[SIDE][TERN__AMX_SUMS])
{
    tern__amx_operands o = {.b = j->dy_copies + out * j->depth * PAIR,
                            .a_row = 2 * j->pitch,
                            .b_next = out + 1 < j->outs ? j->depth * PAIR : 0};
    for (int64_t step = 0; step < steps; step += FEW) {
        o.a_at = j->a_at + step;
        o.b_at = j->b_at + step;
        o.steps = TERN__MIN(FEW, steps - step);
        o.more = step > 0;
        for (int64_t i = 0; i < count; i++) {
            o.a = j->x_copies + rows[i].at[0];
            o.a_next = rows[i].tiles > 1 ? rows[i].at[1] - rows[i].at[0] : 0;
            tern__amx_block(&o, sums[i]);
        }
    }
}

static void put(const job *j, const row *r, int64_t out, const float *sums, bool add)
{
    for (int t = 0; t < r->tiles; t++)
        for (int c = 0; c < 2 && out + c < j->outs; c++)
            add_tile(j->dw + (((out + c) * j->ins + r->in[t]) * j->p.taps + r->tap[t]) * ROWS * ROWS,
                     sums + (t * 2 + c) * ROWS * ROWS, add);
}

/* Columns first to last - 1, in pairs, over the slabs of a group. */
static void columns(const job *j, int64_t first, int64_t last, int64_t slabs, bool add)
{
    float sums[SIDE][TERN__AMX_SUMS] __attribute__((aligned(64)));
    row rows[SIDE];
    tern__amx_open();
    for (int64_t in = 0; in < j->ins; in += 2)
        for (int64_t at = 0, count; (count = rows_of(j, in, at, rows)) > 0; at += count)
            for (int64_t out = first; out < last; out += 2) {
                add_up(j, rows, count, out, slabs * (j->depth / DEPTH), sums);
                for (int64_t i = 0; i < count; i++) put(j, &rows[i], out, sums[i], add);
            }
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

/* The places of a group's steps: slab by slab. */
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

/* The sizes of slabs of `deep` sheets; returns the bytes that a block of columns reads. A plane has the zeros
 * behind its values that a tap reads; rows of a tile then lie an odd number of cache lines apart, in
 * different sets of the cache. */
static int64_t size_up(job *j, int64_t deep)
{
    const tern__planes *p = &j->p;
    int64_t values = (deep + p->more) * p->sheet;
    j->deep = deep;
    j->slabs = (p->most + deep - 1) / deep;
    j->depth = ((deep - 1) * p->sheet + p->axis[1].target * p->axis[2].size + DEPTH - 1) / DEPTH * DEPTH;
    j->pitch = (values + DEPTH + p->axis[2].size) / 64 * 64 + 96;
    j->planes = p->phases * j->ins * ROWS * j->pitch * 2;
    j->pairs = j->outs * j->depth * PAIR;
    return j->pairs + PAIR * j->pitch * 2;
}

/* Whole images as many as fit the cache, or as many sheets of one. */
static void cut(job *j)
{
    int64_t images = j->x->shape[0], deep = j->p.most, bytes = size_up(j, deep);
    while (bytes > CACHE && deep > 1) bytes = size_up(j, deep = (deep + 1) / 2);
    j->group = j->slabs > 1 ? 1 : TERN__MAX(1, TERN__MIN(images, CACHE / bytes));
}

int tern__amx_conv_weight(const tern__call *call, const tern__view *x, const tern__view *dy, float *dw)
{
    const tern__view *w = call->out[0];
    job j = {.call = call, .x = x, .dy = dy, .dw = dw};
    tern__unfold unfold;
    if (tern__amx_unfolds(x, w)) {
        unfold = tern__unfold_of(call->attr, x, dy, w);
        j.unfold = &unfold;
        j.p = tern__unfold_planes(dy);
        j.ins = (unfold.count + ROWS - 1) / ROWS;
    } else {
        j.p = tern__planes_of(call->attr, x, dy, w, false);
        j.ins = (x->shape[1] + ROWS - 1) / ROWS;
    }
    j.outs = (dy->shape[1] + ROWS - 1) / ROWS;
    cut(&j);
    int64_t slabs = x->shape[0] * j.slabs;
    int threads = tern__loop_threads(call, x->shape[0] * j.slabs * j.pairs), status = fill(&j);
    for (int64_t n = 0; n < slabs && !status; n += j.group)
        group(&j, n, TERN__MIN(slabs, n + j.group), threads);
    return status;
}
