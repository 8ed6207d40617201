/* unfold.c - f32 weight gradients of first layers, whose input has fewer channels than a block.
 *
 * oneDNN's loops put channels into vectors, and with one to four of them most of a vector is empty. Here the
 * windows of some outputs are copied next to each other (torch.nn.functional.unfold), 16 of their elements to
 * a block, so that the elements of a window are to the product what channels are elsewhere. Outputs are taken
 * in bands that stay in the caches. The bands are dealt out to slices, which have sums of their own and are
 * added up in their order; how many they are does not depend on the number of threads, so no bit does.
 *
 * Where a window reads padding the copy has zeros, and an infinity times one of them is NaN. So if a result
 * is not finite all are computed directly, by their definition. */
#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widths.h"

#include <math.h>
#include <string.h>

#define BLOCK    TERN__BLOCK
#define SLICES   8         /* most slices */
#define ELEMENTS 256       /* most elements of a window */
#define FLOATS   (1 << 12) /* floats of a band's windows, unless a row has more */

/* Scratch buffers. */
enum { WINDOWS = TERN__SCRATCH_OPERAND, SUMS };

typedef struct job {
    const tern__call *call;
    const tern__conv_attr *attr;
    const float *x;
    float *dy, *windows, *sums;
    int64_t outs, channels;
    int64_t in[3], kernel[3], out[3]; /* depth (1 if there is none), height, width */
    int64_t elements, blocks;         /* elements of a window, and blocks of 16 that hold them */
    int64_t rows;                     /* rows of dy over all images and sheets */
    int64_t band, bands, slices;      /* rows of a band; bands in all */
    int64_t room, part;               /* floats of a band's windows, and of a slice's sums */
} job;

/* ---- windows ---- */

/* Copies what an element of the windows reads in a row of x (NULL: padding), for each output of the row. */
static void copy_element(const job *j, float *to, const float *row, int64_t tap)
{
    int64_t stride = j->attr->stride[2], at = tap * j->attr->dilation[2] - j->attr->padding[2], o = 0;
    int64_t first = row ? TERN__MIN(j->out[2], (TERN__MAX(0, -at) + stride - 1) / stride) : j->out[2];
    int64_t last =
        TERN__MAX(first, TERN__MIN(j->out[2], (TERN__MAX(0, j->in[2] - at) + stride - 1) / stride));
    for (; o < first; o++) to[o * BLOCK] = 0;
    for (; o < last; o++) to[o * BLOCK] = row[at + o * stride];
    for (; o < j->out[2]; o++) to[o * BLOCK] = 0;
}

/* The row of x that a tap reads for row `row` of dy; NULL: padding. */
static const float *unfold_row_of(const job *j, int64_t row, int64_t channel, int64_t sheet_tap,
                                  int64_t row_tap)
{
    const tern__conv_attr *a = j->attr;
    int64_t image = row / (j->out[0] * j->out[1]), rest = row % (j->out[0] * j->out[1]);
    int64_t z = rest / j->out[1] * a->stride[0] + sheet_tap * a->dilation[0] - a->padding[0];
    int64_t y = rest % j->out[1] * a->stride[1] + row_tap * a->dilation[1] - a->padding[1];
    if (z < 0 || z >= j->in[0] || y < 0 || y >= j->in[1]) return NULL;
    return j->x + (((image * j->channels + channel) * j->in[0] + z) * j->in[1] + y) * j->in[2];
}

static void unfold_band(const job *j, float *windows, int64_t first, int64_t last)
{
    int64_t taps = j->kernel[0] * j->kernel[1] * j->kernel[2], pitch = (last - first) * j->out[2] * BLOCK;
    for (int64_t q = 0; q < j->elements; q++) {
        int64_t tap = q % taps, sheet = tap / (j->kernel[1] * j->kernel[2]),
                row = tap / j->kernel[2] % j->kernel[1];
        float *to = windows + q / BLOCK * pitch + q % BLOCK;
        for (int64_t r = first; r < last; r++, to += j->out[2] * BLOCK)
            copy_element(j, to, unfold_row_of(j, r, q / taps, sheet, row), tap % j->kernel[2]);
    }
    for (int64_t q = j->elements; q < j->blocks * BLOCK; q++)
        for (int64_t i = 0; i < pitch; i += BLOCK) windows[q / BLOCK * pitch + i + q % BLOCK] = 0;
}

/* ---- slices ---- */

/* The floats of the sums of 32 outputs; the last group may have 16. */
static int64_t group_room(const job *j)
{
    return j->blocks * BLOCK * 32;
}

/* Adds rows of one image. */
static void add_rows(const job *j, float *sums, float *windows, int64_t first, int64_t last)
{
    int64_t plane = j->out[0] * j->out[1], image = first / plane, pitch = plane * j->out[2] * BLOCK;
    unfold_band(j, windows, first, last);
    tern__conv_product p = {.in = windows,
                            .blocks = j->blocks,
                            .images = 1,
                            .rows = 1,
                            .columns = (last - first) * j->out[2],
                            .in_pitch = (last - first) * j->out[2] * BLOCK,
                            .in_step = BLOCK,
                            .sum_pitch = pitch,
                            .sum_step = BLOCK,
                            .add = true};
    for (int64_t out = 0; out < j->outs; out += 32, sums += group_room(j)) {
        p.sums = j->dy + (image * j->outs / BLOCK + out / BLOCK) * pitch + first % plane * j->out[2] * BLOCK;
        p.width = TERN__MIN(32, j->outs - out);
        tern__conv_multiply_back(&p, sums);
    }
}

static void compute_slice(const job *j, int64_t slice, int thread)
{
    int64_t plane = j->out[0] * j->out[1], each = (plane + j->band - 1) / j->band;
    float *sums = j->sums + slice * j->part, *windows = j->windows + thread * j->room;
    memset(sums, 0, (size_t)j->part * sizeof(*sums));
    for (int64_t b = j->bands * slice / j->slices; b < j->bands * (slice + 1) / j->slices; b++) {
        int64_t first = b / each * plane + b % each * j->band;
        add_rows(j, sums, windows, first, TERN__MIN(first + j->band, (b / each + 1) * plane));
    }
}

/* Adds the other slices to the first. Returns whether all sums are finite. */
static bool add_slices(const job *j)
{
    bool finite = true;
    for (int64_t s = 1; s < j->slices; s++)
        for (int64_t i = 0; i < j->part; i++) j->sums[i] += j->sums[s * j->part + i];
    for (int64_t i = 0; i < j->part; i++) finite = finite && isfinite(j->sums[i]);
    return finite;
}

static void put_sums(const job *j, float *dw, bool add)
{
    for (int64_t out = 0; out < j->outs; out++) {
        const float *from = j->sums + out / 32 * group_room(j) + out % 32;
        int64_t width = TERN__MIN(32, j->outs - out / 32 * 32);
        for (int64_t q = 0; q < j->elements; q++, dw++) *dw = from[q * width] + (add ? *dw : 0);
    }
}

/* ---- the algorithm ---- */

static job unfold_plan(const tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *w = c->op[TERN__CONV_W].view;
    const tern__view *y = c->op[TERN__CONV_Y].view;
    job j = {.call = c->call, .attr = c->attr, .x = x->data, .dy = y->data};
    j.outs = w->shape[0];
    j.channels = w->shape[1];
    for (int axis = 0; axis < 3; axis++) j.in[axis] = j.kernel[axis] = j.out[axis] = 1;
    for (int axis = tern__conv_first_axis(c), d = 2; axis < 3; axis++, d++) {
        j.in[axis] = x->shape[d];
        j.kernel[axis] = w->shape[d];
        j.out[axis] = y->shape[d];
    }
    int64_t plane = j.out[0] * j.out[1];
    j.elements = j.channels * j.kernel[0] * j.kernel[1] * j.kernel[2];
    j.blocks = (j.elements + BLOCK - 1) / BLOCK;
    j.band = TERN__MAX(1, TERN__MIN(plane, FLOATS / (j.blocks * BLOCK * j.out[2])));
    j.bands = x->shape[0] * ((plane + j.band - 1) / j.band);
    j.slices = TERN__MIN(SLICES, j.bands);
    j.room = j.band * j.out[2] * j.blocks * BLOCK;
    j.part = (j.outs + 31) / 32 * group_room(&j);
    return j;
}

/* With sixteen floats per vector oneDNN's loops are fast enough. */
static bool unfold_takes(const tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *w = c->op[TERN__CONV_W].view;
    const tern__view *y = c->op[TERN__CONV_Y].view;
    int64_t axes = tern__conv_first_axis(c);
    return c->op[TERN__CONV_W].result && !tern__is_wide() && c->attr->groups == 1 && x->dtype == TERN_F32 &&
           w->dtype == TERN_F32 && x->layout == TERN__PLAIN && tern__view_is_contiguous(x) &&
           y->layout == TERN__BLOCKED16 && tern__view_is_contiguous(w) && w->shape[1] < BLOCK &&
           tern__view_count(w) <= ELEMENTS * w->shape[0] && (axes == 0 || c->attr->stride[0] == 1);
}

/* With more channels oneDNN's loops have less to lose. */
static bool unfold_pays(const tern__conv *c)
{
    if (!tern__dnnl_is_there()) return true;
    return c->op[TERN__CONV_W].view->shape[1] == 1 && tern__dnnl_has_convolutions() &&
           tern__conv_positions(c, TERN__CONV_Y) >= 1024;
}

static size_t unfold_scratch(const tern__conv *c)
{
    job j = unfold_plan(c);
    return (size_t)(c->call->device->threads * j.room + j.slices * j.part) * sizeof(float);
}

static int unfold_run(tern__conv *c)
{
    job j = unfold_plan(c);
    int threads = c->call->device->threads;
    j.windows = tern__loop_scratch_of(c->call, WINDOWS, (size_t)(threads * j.room) * sizeof(float));
    j.sums = tern__loop_scratch_of(c->call, SUMS, (size_t)(j.slices * j.part) * sizeof(float));
    if (!j.windows || !j.sums) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        for (int64_t s = j.slices * t / threads; s < j.slices * (t + 1) / threads; s++)
            compute_slice(&j, s, t);
    if (!add_slices(&j)) return tern__conv_direct.run(c);
    put_sums(&j, (float *)c->op[TERN__CONV_W].view->data + c->op[TERN__CONV_W].offset,
             c->op[TERN__CONV_W].add);
    return tern__conv_sum_bias(c);
}

const tern__conv_algorithm tern__conv_unfold = {.name = "unfold",
                                                .takes = unfold_takes,
                                                .pays = unfold_pays,
                                                .scratch = unfold_scratch,
                                                .run = unfold_run};
