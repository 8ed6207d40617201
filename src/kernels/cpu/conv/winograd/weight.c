/* weight.c - the weight gradient: 36 products of dy's transformed tiles by x's, summed over tiles.
 *
 * Tiles are taken in slices (slice.h), whose operands are transformed and then multiplied in parts. A part
 * is a group of 32 outputs by some inputs of a tap; all its points stay in the cache meanwhile. After the
 * last slice a part's points are transformed into the weights' gradients. If there is one slice only
 * (small images of many channels), a thread has room for one part, and the points' gradients never exist
 * as a whole. Threads share a slice: first they take blocks of channels, then parts. Slices are added in
 * their order and do not depend on the number of threads, so no bit does. */
#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/conv/taps/conv.h"
#include "kernels/cpu/conv/winograd/conv.h"
#include "kernels/cpu/conv/winograd/even.h"
#include "kernels/cpu/conv/winograd/slice.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widen.h"

#include <string.h>

#define POINTS TERN__WINOGRAD_POINTS
#define CHUNK  128 /* most inputs of a part */
#define SHORT  64  /* tiles of a slice */
#define LONG   128 /* of a slice with more than NARROW channels, whose sums come from a farther cache */
#define NARROW 128

/* Scratch buffers. */
enum { TILES = TERN__SCRATCH_OPERAND, SUMS };

typedef struct job {
    const tern__call *call;
    const tern__view *x, *dy;
    int threads;
    tern__winograd_grid grid;
    tern__winograd_weights w;
    int64_t channels;              /* channels of a sheet of x */
    int64_t groups, chunk, chunks; /* groups of 32 outputs; inputs of a part; parts of a tap */
    tern__winograd_cut cut;
    int64_t x_room, room;         /* tiles of a slice's inputs and of its outputs */
    int64_t x_pitch, dy_pitch;    /* floats of a point */
    int64_t part;                 /* floats of a part's sums */
    float *inputs, *grads, *sums; /* transformed x and dy; sums of all parts, or of a thread's */
    float *totals;                /* of the blocks of x and dy (even.h) */
} job;

static void add_energy(const job *j, const float *lines, int64_t block, int64_t count)
{
    tern__winograd_add_energy(j->totals + block * TERN__WINOGRAD_TOTALS, lines, count);
}

static void transform_x(const job *j, const tern__winograd_slice *s, int64_t block)
{
    for (int64_t i = 0; i < tern__winograd_tall(&j->grid, s->sheets); i++) {
        tern__winograd_part from = tern__winograd_in_part(&j->grid, s, block, i);
        float *to = j->inputs + (block * j->x_room + i * s->tiles) * TERN__BLOCK;
        tern__winograd_inputs((tern__winograd_points){to, j->x_pitch}, &j->grid, j->x, &from);
        add_energy(j, to + TERN__WINOGRAD_ENERGY * j->x_pitch, block, s->tiles);
    }
}

static void transform_dy(const job *j, const tern__winograd_slice *s, int64_t block)
{
    for (int64_t i = 0; i < s->sheets; i++) {
        tern__winograd_part from = tern__winograd_out_part(&j->grid, s, block, i);
        float *to = j->grads + (block * j->room + i * s->tiles) * TERN__BLOCK;
        tern__winograd_grads((tern__winograd_points){to, j->dy_pitch}, &j->grid, j->dy, &from);
        add_energy(j, to + TERN__WINOGRAD_ENERGY * j->dy_pitch, j->channels / TERN__BLOCK + block, s->tiles);
    }
}

/* Multiplies a part: a group of outputs by some inputs, all points. */
static void winograd_grad_multiply(const job *j, int64_t part, float *sums, const tern__winograd_slice *s,
                                   int64_t slice)
{
    int64_t group = part / (j->w.taps * j->chunks), tap = part / j->chunks % j->w.taps;
    int64_t channel = part % j->chunks * j->chunk, ins = TERN__MIN(j->chunk, j->channels - channel);
    int64_t seen = channel * j->x_room + tern__winograd_seen(&j->grid, tap) * s->tiles * TERN__BLOCK;
    int64_t pitch = tern__winograd_pitch(&j->w, group, ins);
    tern__conv_product p = {.blocks = ins / TERN__BLOCK,
                            .images = 1,
                            .rows = 1,
                            .columns = s->sheets * s->tiles,
                            .width = tern__winograd_width(&j->w, group),
                            .in_step = TERN__BLOCK,
                            .sum_step = TERN__BLOCK,
                            .in_pitch = j->x_room * TERN__BLOCK,
                            .sum_pitch = j->room * TERN__BLOCK,
                            .add = slice > 0};
    for (int64_t point = 0; point < POINTS; point++) {
        p.in = j->inputs + point * j->x_pitch + seen;
        p.sums = j->grads + point * j->dy_pitch + 2 * group * j->room * TERN__BLOCK;
        tern__conv_multiply_back(&p, sums + point * pitch);
    }
    if (slice + 1 == j->cut.count)
        tern__winograd_unpack(sums, &j->w, group, tap * j->channels + channel, ins, j->call->add[0]);
}

static int64_t winograd_grad_parts_of(const job *j)
{
    return j->groups * j->w.taps * j->chunks;
}

static bool is_even(const job *j)
{
    const float *dy = j->totals + j->channels / TERN__BLOCK * TERN__WINOGRAD_TOTALS;
    return tern__winograd_channels_are_even(j->x, j->totals) && tern__winograd_channels_are_even(j->dy, dy);
}

/* Returns false if an operand turns out to be uneven: nothing is stored before all tiles are known. */
static bool weight_slice_add(const job *j, int64_t slice)
{
    int64_t ins = j->channels / TERN__BLOCK, blocks = ins + j->w.outs / TERN__BLOCK,
            parts = winograd_grad_parts_of(j);
    tern__winograd_slice s = tern__winograd_slice_of(&j->grid, &j->cut, slice);
#pragma omp parallel for num_threads(j->threads) schedule(static) if (j->threads > 1)
    for (int64_t b = 0; b < blocks; b++)
        if (b < ins)
            transform_x(j, &s, b);
        else
            transform_dy(j, &s, b - ins);
    if (slice + 1 == j->cut.count && !is_even(j)) return false;
#pragma omp parallel for num_threads(j->threads) schedule(static) if (j->threads > 1)
    for (int t = 0; t < j->threads; t++)
        for (int64_t i = parts * t / j->threads; i < parts * (t + 1) / j->threads; i++)
            winograd_grad_multiply(j, i, j->sums + (j->cut.count > 1 ? i : t) * j->part, &s, slice);
    return true;
}

static void winograd_grad_cut(job *j)
{
    j->cut = tern__winograd_cut_of(&j->grid, j->w.ins + j->w.outs > NARROW ? LONG : SHORT, false);
    j->groups = (j->w.outs + 31) / 32;
    j->chunk = TERN__MIN(j->channels, CHUNK);
    j->chunks = (j->channels + j->chunk - 1) / j->chunk;
    j->room = j->cut.sheets * j->cut.tiles;
    j->x_room = tern__winograd_tall(&j->grid, j->cut.sheets) * j->cut.tiles;
    j->x_pitch = j->channels * j->x_room + TERN__BLOCK;
    j->dy_pitch = j->w.outs * j->room + TERN__BLOCK;
    j->part = POINTS * tern__winograd_pitch(&j->w, 0, j->chunk);
}

static job winograd_grad_plan(const tern__call *call, const tern__view *x, const tern__view *dy,
                              const tern__view *dw)
{
    job j = {.call = call, .x = x, .dy = dy, .threads = call->device->threads};
    int64_t taps = tern__winograd_sheets(dw);
    j.grid = tern__winograd_grid_of(x, dy, taps, call->attr, false);
    j.w = (tern__winograd_weights){.ins = taps * x->shape[1], .outs = dy->shape[1], .taps = taps};
    j.channels = x->shape[1];
    winograd_grad_cut(&j);
    return j;
}

static size_t tile_bytes(const job *j)
{
    return (size_t)(TERN__WINOGRAD_LINES * (j->x_pitch + j->dy_pitch)) * sizeof(float);
}

static size_t total_bytes(const job *j)
{
    return (size_t)((j->channels + j->w.outs) / TERN__BLOCK * TERN__WINOGRAD_TOTALS) * sizeof(float);
}

/* Also enough for the sums over taps, which use the same buffer. */
static size_t room_bytes(const job *j, const tern__view *dw)
{
    size_t taps = tern__taps_weight_scratch(j->call, j->x, dw, j->dy);
    return TERN__MAX(tile_bytes(j) + total_bytes(j), taps);
}

static size_t sum_bytes(const job *j)
{
    int64_t parts = j->cut.count > 1 ? winograd_grad_parts_of(j) : j->threads;
    return (size_t)(parts * j->part) * sizeof(float);
}

size_t tern__winograd_weight_scratch(const tern__call *call, const tern__view *x, const tern__view *dw,
                                     const tern__view *dy)
{
    job j = winograd_grad_plan(call, x, dy, dw);
    return room_bytes(&j, dw) + sum_bytes(&j);
}

static int sum_taps(const tern__call *call)
{
    return tern__taps_weight_grad(call, call->in[1], call->in[0], call->out[0], 0);
}

/* By the definition. Taps are f32 only. */
static int compute_directly(const job *j, const tern__view *dw)
{
    tern__call call = *j->call;
    call.in[0] = j->dy;
    call.in[1] = j->x;
    call.out[0] = dw;
    call.out[1] = NULL;
    return j->x->dtype == TERN_F32 ? sum_taps(&call) : tern__cpu_widened(&call, sum_taps);
}

int tern__winograd_weight_grad(const tern__call *call, const tern__view *x, const tern__view *dy,
                               const tern__view *dw)
{
    job j = winograd_grad_plan(call, x, dy, dw);
    j.w.data = dw->data;
    j.w.dtype = dw->dtype;
    j.inputs = tern__loop_scratch_of(call, TILES, room_bytes(&j, dw));
    j.sums = tern__loop_scratch_of(call, SUMS, sum_bytes(&j));
    if (!j.inputs || !j.sums) return TERN_E_MEMORY;
    j.grads = j.inputs + TERN__WINOGRAD_LINES * j.x_pitch;
    j.totals = j.grads + TERN__WINOGRAD_LINES * j.dy_pitch;
    memset(j.totals, 0, total_bytes(&j));
    bool even = true;
    for (int64_t slice = 0; slice < j.cut.count && even; slice++) even = weight_slice_add(&j, slice);
    return even ? TERN_OK : compute_directly(&j, dw);
}
