/* weight.c - the weight gradient: 36 products of dy's transformed tiles by x's, summed over tiles.
 *
 * Tiles are taken in runs, whose operands are transformed and then multiplied in parts: a group of 32 outputs
 * by some inputs, all points of which stay in the cache for the time. After the last run a part's points
 * become weights' gradients; where there is one run only (small images of many channels) a thread has room
 * for one part, and nothing else of the points' gradients ever exists. Threads share a run: first they take
 * blocks of channels, then parts. Runs are added up in their order and do not depend on the threads, so no
 * bit does.
 */
#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/conv/winograd/conv.h"
#include "kernels/cpu/conv/winograd/transform.h"
#include "kernels/cpu/loops.h"

#define LANES  16
#define POINTS TERN__WINOGRAD_POINTS
#define CHUNK  128 /* inputs of a part, at most */
#define SHORT  64  /* tiles of a run            */
#define LONG   128 /* of more than NARROW channels, whose sums are read from further away */
#define NARROW 128

/* Scratch buffers. */
enum { TILES = TERN__SCRATCH_OPERAND, SUMS };

typedef struct job {
    const tern__call *call;
    const tern__view *x, *dy;
    int threads;
    tern__winograd_grid grid;
    tern__winograd_weights w;
    int64_t groups, chunk, chunks; /* of 32 outputs; inputs of a part, parts of a group      */
    int64_t run, runs;             /* tiles of a run                                         */
    int64_t x_pitch, dy_pitch;     /* floats of a point                                      */
    int64_t part;                  /* floats of a part's sums                                */
    float *inputs, *grads, *sums;  /* of x and dy, transformed; of all parts, or of a thread */
} job;

static void transform(const job *j, int64_t block, int64_t first, int64_t count)
{
    int64_t room = j->run * LANES, ins = j->w.ins / LANES;
    tern__winograd_points x = {j->inputs + block * room, j->x_pitch};
    tern__winograd_points dy = {j->grads + (block - ins) * room, j->dy_pitch};
    if (block < ins)
        tern__winograd_inputs(x, &j->grid, j->x, block, first, count);
    else
        tern__winograd_grads(dy, &j->grid, j->dy, block - ins, first, count);
}

/* A part: a group of outputs by some inputs, all points. */
static void multiply(const job *j, int64_t part, float *sums, int64_t first, int64_t count)
{
    int64_t room = j->run * LANES, group = part / j->chunks, in = part % j->chunks * j->chunk;
    int64_t ins = TERN__MIN(j->chunk, j->w.ins - in), pitch = tern__winograd_pitch(&j->w, group, ins);
    tern__conv_product p = {.blocks = ins / LANES,
                            .rows = 1,
                            .columns = count,
                            .width = tern__winograd_width(&j->w, group),
                            .in_pitch = room,
                            .sum_pitch = room,
                            .add = first > 0};
    for (int64_t point = 0; point < POINTS; point++) {
        p.in = j->inputs + point * j->x_pitch + in / LANES * room;
        p.sums = j->grads + point * j->dy_pitch + 2 * group * room;
        tern__conv_multiply_back(&p, sums + point * pitch);
    }
    if (first + count == j->grid.count) tern__winograd_unpack(sums, &j->w, group, in, ins, j->call->add[0]);
}

static void run(const job *j, int64_t first, int64_t count)
{
    int64_t blocks = (j->w.ins + j->w.outs) / LANES, parts = j->groups * j->chunks;
#pragma omp parallel for num_threads(j->threads) schedule(static) if (j->threads > 1)
    for (int64_t b = 0; b < blocks; b++) transform(j, b, first, count);
#pragma omp parallel for num_threads(j->threads) schedule(static) if (j->threads > 1)
    for (int t = 0; t < j->threads; t++)
        for (int64_t i = parts * t / j->threads; i < parts * (t + 1) / j->threads; i++)
            multiply(j, i, j->sums + (j->runs > 1 ? i : t) * j->part, first, count);
}

static void cut(job *j)
{
    int64_t most = j->w.ins + j->w.outs > NARROW ? LONG : SHORT;
    j->runs = (j->grid.count + most - 1) / most;
    j->run = (j->grid.count + j->runs - 1) / j->runs;
    j->groups = (j->w.outs + 31) / 32;
    j->chunk = TERN__MIN(j->w.ins, CHUNK);
    j->chunks = (j->w.ins + j->chunk - 1) / j->chunk;
    j->x_pitch = j->w.ins * j->run + LANES;
    j->dy_pitch = j->w.outs * j->run + LANES;
    j->part = POINTS * tern__winograd_pitch(&j->w, 0, j->chunk);
}

static job plan(const tern__call *call, const tern__view *x, const tern__view *dy, const tern__view *dw)
{
    job j = {.call = call, .x = x, .dy = dy, .threads = call->device->threads};
    int64_t taps = tern__winograd_sheets(dw);
    j.grid = tern__winograd_grid_of(x, dy, taps, call->attr, false);
    j.w = (tern__winograd_weights){.ins = taps * x->shape[1], .outs = dy->shape[1], .taps = taps};
    cut(&j);
    return j;
}

static size_t tile_bytes(const job *j)
{
    return (size_t)(POINTS * (j->x_pitch + j->dy_pitch)) * sizeof(float);
}

static size_t sum_bytes(const job *j)
{
    int64_t parts = j->runs > 1 ? j->groups * j->chunks : j->threads;
    return (size_t)(parts * j->part) * sizeof(float);
}

size_t tern__winograd_weight_scratch(const tern__call *call, const tern__view *x, const tern__view *dw,
                                     const tern__view *dy)
{
    job j = plan(call, x, dy, dw);
    return tile_bytes(&j) + sum_bytes(&j);
}

int tern__winograd_weight_grad(const tern__call *call, const tern__view *x, const tern__view *dy,
                               const tern__view *dw)
{
    job j = plan(call, x, dy, dw);
    j.w.data = dw->data;
    j.w.dtype = dw->dtype;
    j.inputs = tern__loop_scratch_of(call, TILES, tile_bytes(&j));
    j.sums = tern__loop_scratch_of(call, SUMS, sum_bytes(&j));
    if (!j.inputs || !j.sums) return TERN_E_MEMORY;
    j.grads = j.inputs + POINTS * j.x_pitch;
    for (int64_t first = 0; first < j.grid.count; first += j.run)
        run(&j, first, TERN__MIN(j.run, j.grid.count - first));
    return TERN_OK;
}
