/* weight.c - the weight gradient: for each tap the product of dy by x on the tap's rectangle, summed over
 * positions and images.
 *
 * A part of the gradient, a group of 32 outputs by some inputs with all their taps, is small enough for the
 * second-level cache and is summed up there over all images before it is stored. An image is taken in bands
 * of rows, whose dy stays in the first-level cache for all taps. Threads share the parts, so no bit depends
 * on how many there are. */
#include "kernels/cpu/conv/taps/conv.h"
#include "kernels/cpu/conv/taps/plane.h"
#include "kernels/cpu/loops.h"

#define LANES     TERN__LANES
#define CHUNK     128 /* inputs of a part, at most                */
#define POSITIONS 128 /* of a band, unless a single row has more   */

/* Scratch buffer. */
enum { SUMS = TERN__SCRATCH_OPERAND };

typedef struct job {
    const tern__call *call;
    const tern__view *x, *dy;
    int threads;
    tern__taps_plane plane;
    tern__taps_weight w;
    int64_t groups, chunk, chunks; /* of outputs; inputs of a part, parts of a group */
    int64_t band;                  /* rows                                           */
    int64_t room;                  /* floats of a part's sums                        */
} job;

/* All taps of a band of an image. */
static void add_band(const job *j, float *sums, int64_t image, int64_t row, int64_t group, int64_t in,
                     int64_t ins)
{
    const float *x = tern__taps_block(j->x, image, in / LANES);
    float *dy = tern__taps_block(j->dy, image, 2 * group);
    int64_t end = TERN__MIN(j->plane.axis[0].out, row + j->band);
    for (int64_t tap = 0; tap < tern__taps_count(&j->plane); tap++) {
        tern__conv_product p = tern__taps_product(&j->plane, tap, row, end, x, dy);
        p.blocks = ins / LANES;
        p.width = tern__taps_width(&j->w, group);
        if (p.rows) tern__conv_multiply_back(&p, sums + tap * tern__taps_pitch(&j->w, group, ins));
    }
}

static void compute(const job *j, float *sums, int64_t part)
{
    int64_t group = part / j->chunks, in = part % j->chunks * j->chunk;
    int64_t ins = TERN__MIN(j->chunk, j->w.ins - in);
    memset(sums, 0, (size_t)j->room * sizeof(*sums));
    for (int64_t image = 0; image < j->x->shape[0]; image++)
        for (int64_t row = 0; row < j->plane.axis[0].out; row += j->band)
            add_band(j, sums, image, row, group, in, ins);
    tern__taps_unpack(sums, &j->w, group, in, ins, j->call->add[0]);
}

static job plan(const tern__call *call, const tern__view *x, const tern__view *dy, const tern__view *dw,
                int64_t offset)
{
    job j = {.call = call, .x = x, .dy = dy, .threads = call->device->threads};
    j.plane = tern__taps_plane_of(call->attr, x, dy, dw, false);
    j.w = tern__taps_weight_of(dw, offset, false);
    j.groups = tern__taps_groups(&j.w);
    j.chunk = TERN__MIN(j.w.ins, CHUNK);
    j.chunks = (j.w.ins + j.chunk - 1) / j.chunk;
    j.band = TERN__MAX(1, POSITIONS / j.plane.axis[1].out);
    j.room = tern__taps_room(&j.w, j.chunk);
    return j;
}

static size_t sum_bytes(const job *j)
{
    return (size_t)(j->threads * j->room) * sizeof(float);
}

size_t tern__taps_weight_scratch(const tern__call *call, const tern__view *x, const tern__view *dw,
                                 const tern__view *dy)
{
    job j = plan(call, x, dy, dw, 0);
    return sum_bytes(&j);
}

int tern__taps_weight_grad(const tern__call *call, const tern__view *x, const tern__view *dy,
                           const tern__view *dw, int64_t offset)
{
    job j = plan(call, x, dy, dw, offset);
    float *sums = tern__loop_scratch_of(call, SUMS, sum_bytes(&j));
    if (!sums) return TERN_E_MEMORY;
    int64_t parts = j.groups * j.chunks;
#pragma omp parallel for num_threads(j.threads) schedule(static) if (j.threads > 1)
    for (int t = 0; t < j.threads; t++)
        for (int64_t i = parts * t / j.threads; i < parts * (t + 1) / j.threads; i++)
            compute(&j, sums + t * j.room, i);
    return TERN_OK;
}
