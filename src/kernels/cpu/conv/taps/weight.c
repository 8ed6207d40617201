/* weight.c - the weight gradient: for each tap the product of dy and x on the tap's rectangle, summed over
 * positions and images.
 *
 * A part of the gradient is some taps of a group of 32 outputs by some inputs. Parts that fit into the
 * second-level cache together are summed there over all images before they are stored, so that x and dy are
 * not read from memory for each. An image is processed in bands of rows, whose dy stays in the first-level
 * cache for all taps; of small images some are processed at once, so that sums stay in registers for as many
 * positions. Threads share the parts, and a part's taps if there are fewer parts than threads. Every element
 * is summed in the same order in any case, so no bit depends on the number of threads. */
#include "kernels/cpu/conv/taps/conv.h"
#include "kernels/cpu/conv/taps/space.h"
#include "kernels/cpu/loops.h"

#define CHUNK     128       /* most inputs of a part */
#define FLOATS    (1 << 16) /* floats of sums at a time, unless TERN__BLOCK inputs have more */
#define PARTS     16        /* most parts that are computed together */
#define POSITIONS 192       /* positions of a band, unless a single row has more */
#define SOME      64        /* positions of images that are processed at once: more share sets of the cache */

/* Scratch buffer. */
enum { SUMS = TERN__SCRATCH_OPERAND };

typedef struct job {
    const tern__call *call;
    const tern__view *x, *dy;
    int threads;
    tern__taps_space space;
    tern__taps_weight w;
    int64_t groups, chunk, chunks; /* groups of outputs; inputs of a part; chunks in all */
    int64_t taps, cuts;            /* taps of a part; cuts of all taps */
    int64_t band, images;          /* rows of a band; images that are processed at once */
    int64_t room;                  /* floats of a part's sums */
    int64_t together;              /* most parts at a time */
} job;

/* Adds a band of images from `image` on. */
static void add_band(const job *j, float *sums, const tern__taps_part *part, int64_t image,
                     const tern__taps_band *band)
{
    const float *x = tern__taps_block(j->x, image, part->in / TERN__BLOCK);
    float *dy = tern__taps_block(j->dy, image, 2 * part->group);
    for (int64_t tap = 0; tap < part->taps; tap++) {
        tern__conv_product p = tern__taps_product(&j->space, part->tap + tap, band, x, dy);
        p.blocks = part->ins / TERN__BLOCK;
        p.width = tern__taps_width(&j->w, part->group);
        p.images = TERN__MIN(j->images, j->x->shape[0] - image);
        p.in_image = tern__taps_block(j->x, 1, 0) - tern__taps_block(j->x, 0, 0);
        p.sum_image = tern__taps_block(j->dy, 1, 0) - tern__taps_block(j->dy, 0, 0);
        if (p.rows)
            tern__conv_multiply_back(&p, sums + tap * tern__taps_pitch(&j->w, part->group, part->ins));
    }
}

static tern__taps_part taps_grad_part_of(const job *j, int64_t number)
{
    int64_t tap = number % j->cuts * j->taps, chunk = number / j->cuts, in = chunk % j->chunks * j->chunk;
    return (tern__taps_part){.group = chunk / j->chunks,
                             .in = in,
                             .ins = TERN__MIN(j->chunk, j->w.ins - in),
                             .tap = tap,
                             .taps = TERN__MIN(j->taps, tern__taps_count(&j->space) - tap)};
}

/* Computes parts first .. last - 1 together. */
static void parts_compute(const job *j, float *sums, int64_t first, int64_t last)
{
    tern__taps_part part[PARTS];
    int64_t count = last - first, rows = j->space.axis[TERN__TAPS_ROWS].out;
    for (int64_t i = 0; i < count; i++) part[i] = taps_grad_part_of(j, first + i);
    memset(sums, 0, (size_t)(count * j->room) * sizeof(*sums));
    for (int64_t image = 0; image < j->x->shape[0]; image += j->images)
        for (int64_t sheet = 0; sheet < j->space.axis[TERN__TAPS_SHEETS].out; sheet++)
            for (int64_t row = 0; row < rows; row += j->band) {
                tern__taps_band band = {sheet, row, TERN__MIN(rows, row + j->band)};
                for (int64_t i = 0; i < count; i++) add_band(j, sums + i * j->room, &part[i], image, &band);
            }
    for (int64_t i = 0; i < count; i++)
        tern__taps_unpack(sums + i * j->room, &j->w, &part[i], j->call->add[0]);
}

static void taps_grad_cut(job *j)
{
    int64_t taps = tern__taps_count(&j->space), fit = FLOATS / (32 * taps) / TERN__BLOCK * TERN__BLOCK;
    j->groups = tern__taps_groups(&j->w);
    j->chunk = TERN__MIN(j->w.ins, TERN__MIN(TERN__MAX(fit, TERN__BLOCK), CHUNK));
    j->chunks = (j->w.ins + j->chunk - 1) / j->chunk;
    int64_t parts = j->groups * j->chunks, cuts = TERN__MIN(taps, (j->threads + parts - 1) / parts);
    j->taps = (taps + cuts - 1) / cuts;
    j->cuts = (taps + j->taps - 1) / j->taps;
    int64_t rows = j->space.axis[TERN__TAPS_ROWS].out, columns = j->space.axis[TERN__TAPS_COLUMNS].out;
    int64_t bands = (rows * columns + POSITIONS - 1) / POSITIONS;
    j->band = (rows + bands - 1) / bands;
    j->images = TERN__MAX(1, SOME / (rows * columns));
    j->room = tern__taps_room(&j->w, j->chunk, j->taps);
    int64_t each = (parts * j->cuts + j->threads - 1) / j->threads, fitting = FLOATS / j->room;
    j->together = TERN__MAX(1, TERN__MIN(TERN__MIN(PARTS, each), fitting));
}

static job taps_grad_plan(const tern__call *call, const tern__view *x, const tern__view *dy,
                          const tern__view *dw, int64_t offset)
{
    job j = {.call = call, .x = x, .dy = dy, .threads = call->device->threads};
    j.space = tern__taps_space_of(call->attr, x, dy, dw, false);
    j.w = tern__taps_weight_of(dw, offset, false);
    taps_grad_cut(&j);
    return j;
}

static size_t sum_bytes(const job *j)
{
    return (size_t)(j->threads * j->together * j->room) * sizeof(float);
}

size_t tern__taps_weight_scratch(const tern__call *call, const tern__view *x, const tern__view *dw,
                                 const tern__view *dy)
{
    job j = taps_grad_plan(call, x, dy, dw, 0);
    return sum_bytes(&j);
}

int tern__taps_weight_grad(const tern__call *call, const tern__view *x, const tern__view *dy,
                           const tern__view *dw, int64_t offset)
{
    job j = taps_grad_plan(call, x, dy, dw, offset);
    float *sums = tern__loop_scratch_of(call, SUMS, sum_bytes(&j));
    if (!sums) return TERN_E_MEMORY;
    int64_t parts = j.groups * j.chunks * j.cuts;
#pragma omp parallel for num_threads(j.threads) schedule(static) if (j.threads > 1)
    for (int t = 0; t < j.threads; t++)
        for (int64_t i = parts * t / j.threads, last = parts * (t + 1) / j.threads; i < last; i += j.together)
            parts_compute(&j, sums + t * j.together * j.room, i, TERN__MIN(last, i + j.together));
    return TERN_OK;
}
