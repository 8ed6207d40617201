/* weight.c - the weight gradient of a convolution as products of tiles: dw = sum of dy times x over all
 * positions, 32 of them per step.
 *
 * Both are copied into strips of tiles (tiles/strips.h), dy with 16 channels as rows, x with 16 channels
 * as columns. A group of slabs whose copies fit into the cache is one sum, of two blocks of dy's channels
 * by two of x's for every tap of the kernel. Groups are added in f32 in their order, whatever the number
 * of threads, which share blocks. Within a sum a few steps are processed for all taps before the next:
 * their tiles, and those a few rows further down, are read repeatedly from the first-level cache. If x has
 * only one block, its columns are those of two taps. The last group's sums go directly to their place, in
 * any dtype.
 *
 * An f32 product is three bf16 products: with a = high + low, and b likewise, all but low times low, which
 * is smaller than what the parts leave out. Gradients of 16 by 16 channels of which some have large floats
 * are computed by the definition (tiles/windows.h). bf16 is exact as it is, but infinities and NaN also meet
 * the zeros beside an image. So if a sum is not finite, these 16 by 16 channels are computed so, too. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv/tiles/conv.h"
#include "kernels/cpu/conv/tiles/strips.h"
#include "kernels/cpu/conv/tiles/unfold.h"
#include "kernels/cpu/conv/tiles/windows.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"

#define ROWS  TERN__AMX_ROWS
#define TILE  TERN__AMX_TILE
#define DEPTH TERN__AMX_DEPTH
#define CACHE (3 << 19) /* bytes that a thread reads repeatedly */
#define FEW   8         /* steps at a time */
#define SIDE  32        /* rows of blocks side by side */
#define WIDE  32        /* blocks of dy's channels at a time */

/* Scratch buffers. */
enum { DY_TILES = TERN__SCRATCH_OPERAND, X_TILES, SUMS, STEPS };

typedef struct job {
    const tern__call *call;
    const tern__view *dw;
    tern__strip_slabs slabs;
    tern__strips x, dy;
    int64_t taps, ins, outs;   /* ins, outs: blocks of 16 channels */
    int64_t group, strips;     /* slabs of one sum, and their strips */
    int64_t steps;             /* steps of a sum */
    int64_t x_block, dy_block; /* bytes of a block's copies */
    int64_t together;          /* pairs of x's blocks that are copied, then multiplied */
    bool kept;                 /* sums are kept from group to group */
    bool dense;                /* dw is contiguous */
    int threads;
    char *x_tiles, *dy_tiles;
    int64_t *a_at, *b_at;     /* of steps: tiles of both operands */
    int64_t *tap_at;          /* where a tap first reads x: byte offset from a block's first tile */
    float *sums, *rows;       /* rows: per thread, contiguous values of dw */
    bool *x_large, *dy_large; /* blocks with large floats */
} job;

/* dy's blocks first .. last - 1 over some slabs. */
typedef struct part {
    int64_t first, last;
    tern__slab_range slabs;
} part;

/* ---- products ---- */

/* Whether the pair from `in` on has two blocks; with one the columns are two taps. */
static bool has_two(const job *j, int64_t in)
{
    return in + 1 < j->ins;
}

static int64_t tiles_grad_rows_of(const job *j, int64_t in)
{
    return has_two(j, in) ? j->taps : (j->taps + 1) / 2;
}

static void tiles_grad_add_row(const job *j, tern__amx_operands *o, int64_t in, int64_t r, float *sums)
{
    const char *x = j->x_tiles + in % (2 * j->together) * j->x_block;
    bool two = has_two(j, in);
    int64_t tap = two ? r : 2 * r;
    o->b = x + j->tap_at[tap];
    o->b_next = two ? j->x_block : tap + 1 < j->taps ? j->tap_at[tap + 1] - j->tap_at[tap] : 0;
    tern__amx_block(o, sums + r * TERN__AMX_SUMS);
}

/* Multiplies a pair of dy's blocks by a pair of x's, for all taps, over the steps of a group. */
static void tiles_grad_add_up(const job *j, const part *p, int64_t in, int64_t out, bool more, float *sums)
{
    int64_t rows = tiles_grad_rows_of(j, in), low = j->x.tile - TILE, few = low ? FEW / 2 : FEW;
    tern__amx_operands o = {.a = j->dy_tiles + (out - p->first) * j->dy_block,
                            .a_row = 2 * DEPTH,
                            .a_next = out + 1 < p->last ? j->dy_block : 0,
                            .a_low = low,
                            .b_low = low};
    for (int64_t first = 0; first < rows; first += SIDE)
        for (int64_t step = 0; step < j->steps; step += few) {
            o.a_at = j->a_at + step;
            o.b_at = j->b_at + step;
            o.steps = TERN__MIN(few, j->steps - step);
            o.more = more || step > 0;
            for (int64_t r = first; r < TERN__MIN(rows, first + SIDE); r++)
                tiles_grad_add_row(j, &o, in, r, sums);
        }
}

/* ---- results ---- */

TERN__DEFINE_TURN(turn, tern__words)

/* Transposes 16 rows: to[c * pitch + r]. Values beyond `n` rows are undefined. */
TERN__AMX_SIMD static void turn_sums(float *to, int64_t pitch, const float *const *from, int64_t n)
{
    tern__words v[ROWS] = {{0}};
    for (int64_t i = 0; i < n; i++) memcpy(&v[i], from[i], sizeof(v[i]));
    turn(v);
    for (int c = 0; c < ROWS; c++) memcpy(to + c * pitch, &v[c], sizeof(v[c]));
}

/* A tap's sums of block `out` + r by block `in` + c. */
static float *tile_of(const job *j, float *sums, int64_t in, int64_t tap, int r, int c)
{
    int64_t number = has_two(j, in) ? tap * 4 + r * 2 + c : tap / 2 * 4 + r * 2 + tap % 2;
    return sums + number * ROWS * ROWS;
}

/* Whether a tile is: a finite number times 0 is 0, others give NaN. */
TERN__AMX_SIMD static bool is_finite(const float *tile)
{
    tern__lanes zero[2] = {{0}, {0}};
    for (int r = 0; r < ROWS; r++) zero[r % 2] += tern__lanes_load(tile + r * ROWS, ROWS) * 0;
    return !tern__words_have_large((tern__words)(zero[0] + zero[1]) << 1);
}

/* Whether the sums of block `out` + r by block `in` + c are as the definition's. */
static bool are_right(const job *j, float *sums, int64_t in, int64_t out, int r, int c)
{
    bool right = !j->dy_large[out + r] && !j->x_large[in + c];
    for (int64_t t = 0; t < j->taps && right && j->x.view->dtype == TERN_BF16; t++)
        right = is_finite(tile_of(j, sums, in, t, r, c));
    return right;
}

/* Replaces the sums of block `out` + r by block `in` + c by those of the definition. */
static void define(const job *j, float *sums, int64_t in, int64_t out, int r, int c)
{
    const tern__axis *a = j->x.axis;
    const tern__weight_windows windows = {j->x.view, j->dy.view, a};
    int64_t taps = a[0].kernel * a[1].kernel * a[2].kernel;
    int count = (int)TERN__MIN(ROWS, j->x.channels - (in + c) * ROWS);
    for (int64_t t = 0; t < j->taps; t++) {
        tern__window_tap tap[ROWS];
        for (int i = 0; i < count; i++) {
            int64_t channel = (in + c) * ROWS + i, rest = j->x.unfolded ? channel % taps : t;
            tap[i].channel = j->x.unfolded ? channel / taps : channel;
            for (int d = 2; d >= 0; rest /= a[d--].kernel) tap[i].at[d] = rest % a[d].kernel;
        }
        tern__windows_sum_weight(&windows, tap, count, (out + r) * ROWS, tile_of(j, sums, in, t, r, c));
    }
}

/* Gathers one of dy's channels: values[channel of x][tap]. From the last taps to the first, since writing
 * 16 at a time may overwrite the beginning of the next channel. */
static void tiles_grad_gather(const job *j, float *sums, int64_t in, int r, int c, int64_t o, float *values)
{
    const float *from[ROWS];
    if (j->taps == 1) {
        memcpy(values, tile_of(j, sums, in, 0, r, c) + o * ROWS, ROWS * sizeof(*values));
        return;
    }
    for (int64_t first = (j->taps - 1) / ROWS * ROWS; first >= 0; first -= ROWS) {
        int64_t n = TERN__MIN(ROWS, j->taps - first);
        for (int64_t i = 0; i < n; i++) from[i] = tile_of(j, sums, in, first + i, r, c) + o * ROWS;
        turn_sums(values + first, j->taps, from, n);
    }
}

TERN__INLINE void put_all(void *to, tern_dtype dtype, const float *values, int64_t n, bool add)
{
    int64_t i = 0;
    for (; i + ROWS <= n; i += ROWS)
        tern__lanes_set(to, dtype, i, tern__lanes_load(values + i, ROWS), ROWS, add);
    for (; i < n; i++) tern__lanes_set(to, dtype, i, tern__lanes_load(values + i, 1), 1, add);
}

TERN__AMX_SIMD static void put_values(void *to, tern_dtype dtype, const float *values, int64_t n, bool add)
{
    if (dtype == TERN_F32)
        put_all(to, TERN_F32, values, n, add);
    else if (dtype == TERN_BF16)
        put_all(to, TERN_BF16, values, n, add);
    else
        put_all(to, TERN_F16, values, n, add);
}

/* Writes `n` values from channels `o` and `c` on; if taps were removed they have gaps. */
static void tiles_grad_put_row(const job *j, int64_t o, int64_t c, const float *values, int64_t n)
{
    const tern__view *dw = j->dw;
    bool add = j->call->add[0];
    char *data = dw->data;
    size_t bytes = tern_dtype_bytes(dw->dtype);
    int64_t first = (o * j->x.channels + c) * j->taps;
    if (j->dense)
        put_values(data + (size_t)first * bytes, dw->dtype, values, n, add);
    else
        for (int64_t i = 0; i < n; i++)
            put_values(data + (size_t)tern__view_offset(dw, first + i) * bytes, dw->dtype, values + i, 1,
                       add);
}

static void tiles_grad_put(const job *j, const part *p, int64_t in, int64_t out, float *sums, float *values)
{
    int64_t outs = j->dy.channels, ins = j->x.channels;
    for (int r = 0; r < 2 && out + r < p->last; r++)
        for (int c = 0; c < 1 + has_two(j, in); c++) {
            int64_t channel = (in + c) * ROWS;
            if (!are_right(j, sums, in, out, r, c)) define(j, sums, in, out, r, c);
            for (int64_t o = 0; o < TERN__MIN(ROWS, outs - (out + r) * ROWS); o++) {
                tiles_grad_gather(j, sums, in, r, c, o, values);
                tiles_grad_put_row(j, (out + r) * ROWS + o, channel, values,
                                   TERN__MIN(ROWS, ins - channel) * j->taps);
            }
        }
}

/* ---- the loops ---- */

/* Fills a strip of a block, and remembers if it has large values; so may other threads. */
static void tiles_grad_fill(const tern__strips *s, const part *p, int64_t block, int64_t copy, int64_t strip,
                            char *tiles, bool *large)
{
    if (tern__strips_fill(s, p->slabs, block * ROWS, copy, strip, tiles))
        __atomic_store_n(&large[block], true, __ATOMIC_RELAXED);
}

static void fill_dy(const job *j, const part *p)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < (p->last - p->first) * j->strips; i++)
        tiles_grad_fill(&j->dy, p, p->first + i / j->strips, 0, i % j->strips,
                        j->dy_tiles + i * tern__strips_height(&j->dy) * j->dy.tile, j->dy_large);
}

/* Copies blocks of x from `first` on, as many as are taken together. */
static void fill_x(const job *j, const part *p, int64_t first)
{
    int64_t blocks = TERN__MIN(2 * j->together, j->ins - first), each = j->x.copies * j->strips;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < blocks * each; i++)
        tiles_grad_fill(&j->x, p, first + i / each, i % each / j->strips, i % j->strips,
                        j->x_tiles + i * tern__strips_height(&j->x) * j->x.tile, j->x_large);
}

/* The floats of the sums of two pairs of blocks. */
static int64_t pair_sums(const job *j)
{
    return j->taps * TERN__AMX_SUMS;
}

static void tiles_grad_multiply(const job *j, const part *p, int64_t first)
{
    int64_t ins = (TERN__MIN(2 * j->together, j->ins - first) + 1) / 2, outs = (p->last - p->first + 1) / 2;
    bool last =
        p->slabs.first + p->slabs.count == j->x.view->shape[0] * j->slabs.count[0] * j->slabs.count[1];
#pragma omp for schedule(static)
    for (int t = 0; t < j->threads; t++)
        for (int64_t i = ins * outs * t / j->threads; i < ins * outs * (t + 1) / j->threads; i++) {
            int64_t in = first + i / outs * 2, out = p->first + i % outs * 2;
            float *sums = j->sums + (j->kept ? in / 2 * outs + i % outs : t) * pair_sums(j);
            tiles_grad_add_up(j, p, in, out, p->slabs.first > 0, sums);
            if (last) tiles_grad_put(j, p, in, out, sums, j->rows + t * ROWS * (j->taps + 1));
        }
}

static void tiles_grad_run(const job *j, const part *p)
{
#pragma omp parallel num_threads(j->threads) if (j->threads > 1)
    {
        tern__amx_open();
        fill_dy(j, p);
        for (int64_t in = 0; in < j->ins; in += 2 * j->together) {
            fill_x(j, p, in);
            tiles_grad_multiply(j, p, in);
        }
        tern__amx_close();
    }
}

/* ---- the plan ---- */

/* The bytes that `group` slabs take in the cache: dy's blocks, and a pair of x's. */
static int64_t size_up(job *j, const tern__view *x, const tern__view *dy, const tern__view *w, int64_t group)
{
    static const tern__conv_attr itself = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1};
    tern__view one = *dy;
    for (int d = 0; d < one.ndim; d++) one.shape[d] = 1;
    j->x = tern__strips_of(j->call->attr, x, dy, w, &j->slabs);
    j->dy = tern__strips_of(&itself, dy, dy, &one, &j->slabs);
    j->dy.by_channel = true;
    if (tern__amx_unfolds(x, w)) tern__strips_unfold(&j->x);
    j->group = group;
    j->strips = (group * j->slabs.width + DEPTH - 1) / DEPTH;
    j->steps = j->strips * tern__strips_height(&j->dy);
    j->dy_block = j->steps * j->dy.tile;
    j->x_block = j->x.copies * j->strips * tern__strips_height(&j->x) * j->x.tile;
    j->ins = (j->x.channels + ROWS - 1) / ROWS;
    j->outs = (j->dy.channels + ROWS - 1) / ROWS;
    return TERN__MIN(WIDE, j->outs) * j->dy_block + 2 * j->x_block;
}

/* The least number of slabs that fill strips to seven eighths. */
static int64_t least_of(int64_t width)
{
    int64_t n = 1;
    while (n * width * 8 < (n * width + DEPTH - 1) / DEPTH * DEPTH * 7) n++;
    return n;
}

/* Halves the longer side of a slab; false: it cannot be halved. */
static bool halve(tern__strip_slabs *s, const tern__view *dy)
{
    int d = s->size[0] <= s->size[1];
    int64_t all = d || dy->ndim == 5 ? dy->shape[dy->ndim - 3 + d] : 1;
    if (s->size[d] == 1) return false;
    s->size[d] = (s->size[d] + 1) / 2;
    s->count[d] = (all + s->size[d] - 1) / s->size[d];
    return true;
}

/* Chooses slabs of which enough fit into the cache, and groups of as many as fit. */
static void tiles_grad_cut(job *j, const tern__view *x, const tern__view *dy, const tern__view *w)
{
    tern__strip_slabs *s = &j->slabs;
    *s = (tern__strip_slabs){
        {dy->ndim == 5 ? dy->shape[2] : 1, dy->shape[dy->ndim - 2]}, {1, 1}, dy->shape[dy->ndim - 1]};
    int64_t least = least_of(s->width), images = x->shape[0];
    while ((images * s->count[0] * s->count[1] < least || size_up(j, x, dy, w, least) > CACHE) &&
           halve(s, dy)) {
    }
    int64_t all = images * s->count[0] * s->count[1], most = TERN__MIN(all, least);
    while (most < all && size_up(j, x, dy, w, most + 1) <= CACHE) most++;
    int64_t groups = (all + most - 1) / most;
    size_up(j, x, dy, w, (all + groups - 1) / groups);
    j->kept = groups > 1;
}

/* Finds y's rows in the copies, and where taps first read x. */
static void fill_steps(job *j)
{
    int64_t height = tern__strips_height(&j->dy), x_height = tern__strips_height(&j->x);
    for (int64_t i = 0; i < j->steps; i++) {
        int64_t row = i % height, of = row / j->dy.rows[1] * j->x.rows[1] + row % j->dy.rows[1];
        j->a_at[i] = i * j->dy.tile;
        j->b_at[i] = (i / height * x_height + of) * j->x.tile;
    }
    for (int64_t t = 0; t < j->taps; t++) {
        int64_t copy = 0, row = 0;
        if (!j->x.unfolded) tern__strips_tap(&j->x, t, &copy, &row);
        j->tap_at[t] = (copy * j->strips * x_height + row) * j->x.tile;
    }
}

static int allocate(job *j)
{
    int64_t wide = TERN__MIN(WIDE, j->outs), pairs = (j->ins + 1) / 2;
    int64_t sums = (j->kept ? pairs * ((wide + 1) / 2) : j->threads) * pair_sums(j);
    int64_t rows = j->threads * ROWS * (j->taps + 1);
    j->dy_tiles = tern__loop_scratch_of(j->call, DY_TILES, (size_t)(wide * j->dy_block));
    j->x_tiles = tern__loop_scratch_of(j->call, X_TILES, (size_t)(2 * j->together * j->x_block));
    j->sums = tern__loop_scratch_of(j->call, SUMS, (size_t)(sums + rows) * sizeof(float));
    size_t numbers = (size_t)(2 * j->steps + j->taps), flags = (size_t)(j->ins + j->outs) * sizeof(bool);
    j->a_at = tern__loop_scratch_of(j->call, STEPS, numbers * sizeof(int64_t) + flags);
    if (!j->dy_tiles || !j->x_tiles || !j->sums || !j->a_at) return TERN_E_MEMORY;
    j->rows = j->sums + sums;
    j->b_at = j->a_at + j->steps;
    j->tap_at = j->b_at + j->steps;
    j->x_large = (bool *)(j->tap_at + j->taps);
    j->dy_large = j->x_large + j->ins;
    memset(j->x_large, 0, flags);
    return TERN_OK;
}

int tern__amx_conv_weight(const tern__call *call, const tern__view *x, const tern__view *dy,
                          const tern__view *dw)
{
    job j = {.call = call, .dw = dw, .dense = tern__view_is_contiguous(dw)};
    tiles_grad_cut(&j, x, dy, dw);
    j.taps = j.x.unfolded ? 1 : tern__view_count(dw) / (dw->shape[0] * dw->shape[1]);
    int64_t all = x->shape[0] * j.slabs.count[0] * j.slabs.count[1];
    j.threads = tern__loop_threads(call, all * j.outs * j.dy_block / j.group);
    j.together = TERN__MIN((j.ins + 1) / 2, j.threads);
    int status = allocate(&j);
    if (status) return status;
    fill_steps(&j);
    for (int64_t out = 0; out < j.outs; out += WIDE)
        for (int64_t n = 0; n < all; n += j.group) {
            part p = {out, TERN__MIN(j.outs, out + WIDE), {n, TERN__MIN(j.group, all - n)}};
            tiles_grad_run(&j, &p);
        }
    return TERN_OK;
}
