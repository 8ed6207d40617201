/* conv.c - the forward and the data gradient. The latter is the forward with input and output channels
 * swapped and the taps mirrored.
 *
 * The outputs for which a tap reads the image are a rectangle, and so are the inputs read. Rows of both
 * are in the blocked layout, as the product takes them, so only the weight is ever copied. Outputs are
 * initialised with the bias, or left as they are if the caller adds. Each tap then adds its product on its
 * rectangle, for some inputs at a time: as many as keep a tap's weights in the first-level cache for the
 * rectangle, and an image's inputs in the second-level cache while all groups of outputs and all taps use
 * them. Threads share images, their sheets and groups of 32 outputs, and if these are few, bands of rows.
 * Every output is a sum in the fixed order of inputs and taps, so no bit depends on how work is divided. */
#include "kernels/cpu/conv/taps/conv.h"
#include "kernels/cpu/conv/taps/places.h"
#include "kernels/cpu/conv/taps/space.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widths.h"
#include "kernels/pack.h"

#define CHUNK 128       /* inputs that are multiplied at once */
#define CACHE (1 << 18) /* bytes of all inputs of a point's band, unless a row has more */

/* Scratch buffer. */
enum { WEIGHTS = TERN__SCRATCH_OPERAND };

typedef struct job {
    const tern__call *call;
    const tern__view *in, *out;
    const float *bias; /* NULL: none */
    int threads;
    tern__taps_space space;
    tern__taps_weight w;
    int64_t groups;      /* groups of outputs */
    int64_t bands, band; /* bands of a sheet; rows of a band */
    const float *packed; /* packed weights of all groups */
    bool is_point;       /* one tap, which every output sees */
} job;

/* The unit of work of a thread: a group of outputs on a band. */
typedef struct part {
    int64_t image, group;
    tern__taps_band band;
} part;

static bool is_dense(const tern__view *view)
{
    return view->layout == TERN__BLOCKED16 && view->dtype == TERN_F32 && tern__view_count(view) > 0;
}

bool tern__taps_takes(const tern__call *call, const tern__view *x, const tern__view *w, const tern__view *y)
{
    const tern__conv_attr *a = call->attr;
    bool steps = call->kernel != TERN__CONV || a->stride[2] <= 2; /* strides that the product supports */
    return steps && a->groups == 1 && is_dense(x) && is_dense(y) && w->dtype == TERN_F32;
}

/* The floats of a group's weights. */
static int64_t room(const job *j)
{
    return tern__taps_room(&j->w, j->w.ins, tern__taps_count(&j->space));
}

/* Whether there is one tap, and every output sees it. */
static bool is_point(const job *j)
{
    bool point = tern__taps_count(&j->space) == 1;
    for (int axis = 0; axis < TERN__TAPS_AXES; axis++) {
        const tern__taps_axis *a = &j->space.axis[axis];
        point = point && a->in_stride * a->out_stride == 1 && tern__taps_see(a, 0, 0, a->out).count == a->out;
    }
    return point;
}

/* ---- a part ---- */

static part taps_part_of(const job *j, int64_t number)
{
    const tern__taps_axis *axis = j->space.axis;
    int64_t band = number / j->groups, sheet = band / j->bands, begin = band % j->bands * j->band;
    int64_t sheets = axis[TERN__TAPS_SHEETS].out, end = TERN__MIN(axis[TERN__TAPS_ROWS].out, begin + j->band);
    return (part){sheet / sheets, number % j->groups, {sheet % sheets, begin, end}};
}

/* Initialises a block of outputs. */
TERN__SIMD static void taps_begin(float *to, const float *bias, int64_t positions, bool add)
{
    float value[TERN__BLOCK] = {0};
    if (!bias && add) return;
    if (bias) memcpy(value, bias, sizeof(value));
    for (int64_t i = 0; i < positions; i++, to += TERN__BLOCK)
        for (int l = 0; l < TERN__BLOCK; l++) to[l] = add ? to[l] + value[l] : value[l];
}

static void begin_part(const job *j, const part *s, float *outs)
{
    const tern__taps_axis *axis = j->space.axis;
    int64_t sheets = axis[TERN__TAPS_SHEETS].out, rows = axis[TERN__TAPS_ROWS].out;
    int64_t columns = axis[TERN__TAPS_COLUMNS].out;
    for (int64_t b = 0; b * TERN__BLOCK < tern__taps_width(&j->w, s->group); b++) {
        float *to = outs + ((b * sheets + s->band.sheet) * rows + s->band.begin) * columns * TERN__BLOCK;
        const float *bias = j->bias ? j->bias + (2 * s->group + b) * TERN__BLOCK : NULL;
        taps_begin(to, bias, (s->band.end - s->band.begin) * columns, j->call->add[0]);
    }
}

/* Adds all taps of a chunk of inputs from `in` on. */
static void add_inputs(const job *j, const part *s, int64_t in)
{
    const float *ins = tern__taps_block(j->in, s->image, in / TERN__BLOCK);
    float *outs = tern__taps_block(j->out, s->image, 2 * s->group);
    const float *weight = j->packed + s->group * room(j);
    int64_t width = tern__taps_width(&j->w, s->group);
    bool begins = in == 0 && !(j->is_point && !j->bias);
    if (begins) begin_part(j, s, outs);
    for (int64_t tap = 0; tap < tern__taps_count(&j->space); tap++) {
        tern__conv_product p = tern__taps_product(&j->space, tap, &s->band, ins, outs);
        p.weight = weight + tap * tern__taps_pitch(&j->w, s->group, j->w.ins) + in * width;
        p.blocks = TERN__MIN(CHUNK, j->w.ins - in) / TERN__BLOCK;
        p.width = width;
        p.add = begins || in > 0 || j->call->add[0];
        if (p.rows) tern__conv_multiply(&p);
    }
}

/* Computes parts first .. last - 1, those of a band in turn for every chunk of inputs, or one by one. */
static void taps_compute(const job *j, int64_t first, int64_t last)
{
    for (int64_t next; first < last; first = next) {
        next = j->is_point ? first + 1 : TERN__MIN(last, (first / j->groups + 1) * j->groups);
        for (int64_t in = 0; in < j->w.ins; in += CHUNK)
            for (int64_t i = first; i < next; i++) {
                part s = taps_part_of(j, i);
                add_inputs(j, &s, in);
            }
    }
}

/* ---- the plan ---- */

static job taps_plan(const tern__call *call, const tern__view *x, const tern__view *w, int64_t offset,
                     const tern__view *y)
{
    bool turned = call->kernel == TERN__CONV_DATA_GRAD;
    job j = {.call = call, .in = turned ? y : x, .out = turned ? x : y, .threads = call->device->threads};
    j.space = tern__taps_space_of(call->attr, j.in, j.out, w, turned);
    j.w = tern__taps_weight_of(w, offset, turned);
    j.groups = tern__taps_groups(&j.w);
    int64_t sheets = j.out->shape[0] * j.space.axis[TERN__TAPS_SHEETS].out, whole = sheets * j.groups;
    int64_t rows = j.space.axis[TERN__TAPS_ROWS].out;
    int64_t cuts = (j.threads + whole - 1) / whole,
            row = j.w.ins * j.space.axis[TERN__TAPS_COLUMNS].in * (int64_t)sizeof(float);
    j.is_point = is_point(&j);
    if (j.is_point) cuts = TERN__MAX(cuts, rows * row / CACHE);
    cuts = TERN__MIN(rows, cuts);
    j.band = (rows + cuts - 1) / cuts;
    j.bands = (rows + j.band - 1) / j.band;
    return j;
}

static size_t weight_bytes(const job *j)
{
    return (size_t)(j->groups * room(j)) * sizeof(float);
}

size_t tern__taps_scratch(const tern__call *call, const tern__view *x, const tern__view *w,
                          const tern__view *y)
{
    job j = taps_plan(call, x, w, 0, y);
    return weight_bytes(&j);
}

/* The key of a kept copy has everything that says how the weight is seen. */
static float *packed_weights(const job *j, const tern__view *w, int64_t offset)
{
    const tern__taps_weight *seen = &j->w;
    const int64_t format[] = {
        j->groups,     offset,        seen->in_stride,     seen->out_stride,    seen->taps[0],
        seen->taps[1], seen->taps[2], seen->tap_stride[0], seen->tap_stride[1], seen->tap_stride[2],
        seen->ins,     seen->outs};
    size_t bytes = weight_bytes(j);
    bool stale = true;
    float *to =
        w->packs ? tern__pack_get(w->packs, j->call->device, format, sizeof(format), bytes, &stale) : NULL;
    if (!to) to = tern__loop_scratch_of(j->call, WEIGHTS, bytes);
    if (!to || !stale) return to;
    int threads = (int)TERN__MIN(j->threads, j->groups);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t g = 0; g < j->groups; g++) tern__taps_pack(to + g * room(j), seen, g);
    return to;
}

/* Whether a tap's products are short, and their sums are better kept in registers. Measured with eight floats
 * per vector only. */
static bool is_strided(const job *j)
{
    bool strided = false;
    for (int axis = 0; axis < TERN__TAPS_AXES; axis++)
        strided = strided || j->space.axis[axis].in_stride > 1 || j->space.axis[axis].out_stride > 1;
    return strided && !tern__is_wide() && tern__taps_places_takes(&j->space);
}

int tern__taps(const tern__call *call, const tern__view *x, const tern__view *w, int64_t offset,
               const tern__view *y, const tern__view *bias)
{
    job j = taps_plan(call, x, w, offset, y);
    if (bias) j.bias = bias->data;
    j.packed = packed_weights(&j, w, offset);
    if (!j.packed) return TERN_E_MEMORY;
    if (is_strided(&j)) {
        tern__taps_places(call, j.in, j.out, &j.space, &j.w, j.packed, j.bias);
        return TERN_OK;
    }
    int64_t parts = j.out->shape[0] * j.space.axis[TERN__TAPS_SHEETS].out * j.bands * j.groups;
#pragma omp parallel for num_threads(j.threads) schedule(static) if (j.threads > 1)
    for (int t = 0; t < j.threads; t++) taps_compute(&j, parts * t / j.threads, parts * (t + 1) / j.threads);
    return TERN_OK;
}
