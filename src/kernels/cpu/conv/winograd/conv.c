/* conv.c - the forward and the data gradient. The latter is the forward with the weight turned by 180
 * degrees, its channels swapped, and padding 2 d - p for a dilation of d.
 *
 * A sheet of a volume is an image whose inputs are those of several sheets (transform.h).
 *
 * Tiles are taken in slices (slice.h), some at a time. A slice's inputs are transformed. Then for one
 * group of 32 outputs after another its 36 products are computed, whose sums stay in the cache, and
 * transformed back. So the scratch memory has the size of a cache, whatever the layer's size.
 *
 * Few channels: slices are small enough for the second-level cache, every thread has its own, and the
 * weights are transformed beforehand (and kept over microbatches, pack.h). Many channels: such slices
 * would be too small to be worth reading the weights, which are four times as large after the transform.
 * There a slice is larger, and a group's weights are transformed when needed, for some inputs at a time,
 * and never leave the cache; threads share a slice and divide the groups. In both cases every output is a
 * sum in the fixed order of the channels, so no bit depends on how work is divided. */
#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/conv/winograd/conv.h"
#include "kernels/cpu/conv/winograd/even.h"
#include "kernels/cpu/conv/winograd/slice.h"
#include "kernels/cpu/loops.h"
#include "kernels/pack.h"

#include <string.h>

#define POINTS TERN__WINOGRAD_POINTS
#define CACHE  (1 << 19) /* bytes of a slice's inputs */
#define FEW    28        /* least tiles for which reading all weights pays */
#define LONG   128       /* tiles of a slice whose weights are transformed for it */
#define LEAST  8         /* least tiles that fill the sums of a product */
#define CHUNK  128       /* inputs whose weights are transformed and used at once */

/* Scratch buffers. */
enum { WEIGHTS = TERN__SCRATCH_OPERAND, TILES, SUMS };

typedef struct job {
    const tern__call *call;
    const tern__view *in, *out;
    const void *bias; /* NULL: none */
    int threads;
    tern__winograd_grid grid;
    tern__winograd_weights w;
    int64_t channels;            /* channels of a sheet of the inputs */
    int64_t groups;              /* groups of outputs */
    bool keeps;                  /* weights are transformed beforehand, */
    const float *kept;           /* to here */
    int64_t chunk;               /* inputs that are multiplied at once */
    tern__winograd_cut cut;      /* how tiles are cut into slices */
    int64_t slices;              /* slices that are taken at once */
    int64_t in_room, room;       /* tiles of a slice's inputs and of its outputs */
    int64_t in_pitch, sum_pitch; /* floats of a point's inputs and sums of a slice      */
    int64_t in_size, sum_size;   /* floats of all points                                */
    int64_t own_size;            /* floats of a thread's sums, weights and flags */
    float *tiles, *own;
} job;

/* A thread's own memory. */
typedef struct room {
    float *sums, *weights;
    bool *uneven, *all; /* which tiles of the slice are uneven, and a flag for each that is set */
    bool any;           /* whether one is uneven */
} room;

/* A slice and its transformed inputs. */
typedef struct part {
    tern__winograd_slice slice;
    float *tiles;
} part;

static bool is_dense(const tern__view *view)
{
    bool has_lanes = view->dtype == TERN_F32 || view->dtype == TERN_BF16 || view->dtype == TERN_F16;
    return view->layout == TERN__BLOCKED16 && has_lanes && view->ndim >= 4 && tern__view_count(view) > 0;
}

bool tern__winograd_takes(const tern__call *call, const tern__view *x, const tern__view *w,
                          const tern__view *y)
{
    const tern__conv_attr *a = call->attr;
    bool takes = a->groups == 1 && is_dense(x) && is_dense(y) && y->dtype == x->dtype &&
                 (w->dtype == TERN_F32 || w->dtype == x->dtype) && tern__view_is_contiguous(w) &&
                 (x->ndim == 4 || a->stride[0] == 1);
    for (int axis = 1, d = x->ndim - 2; takes && axis < 3; axis++, d++)
        takes = w->shape[d] == 3 && a->stride[axis] == 1 && a->padding[axis] >= 0 &&
                a->padding[axis] <= 2 * a->dilation[axis] &&
                y->shape[d] == x->shape[d] + 2 * (a->padding[axis] - a->dilation[axis]);
    return takes;
}

/* The floats of a group's transformed weights. The last ones say whether they are even. */
static int64_t weight_room(const job *j, int64_t ins)
{
    return POINTS * tern__winograd_pitch(&j->w, 0, ins) + TERN__BLOCK;
}

/* The floats of two flags for each tile. */
static int64_t flag_room(const job *j)
{
    return (2 * j->room / (int64_t)(TERN__BLOCK * sizeof(float)) + 1) * TERN__BLOCK;
}

static room winograd_room_of(const job *j, int thread)
{
    float *sums = j->own + thread * j->own_size, *weights = sums + j->sum_size;
    bool *uneven = (bool *)(weights + (j->keeps ? 0 : weight_room(j, j->chunk)));
    memset(uneven + j->room, true, (size_t)j->room);
    return (room){sums, weights, uneven, uneven + j->room, false};
}

/* ---- a slice ---- */

static part winograd_part_of(const job *j, int64_t first, int64_t number)
{
    return (part){tern__winograd_slice_of(&j->grid, &j->cut, first + number), j->tiles + number * j->in_size};
}

static void transform_inputs(const job *j, const part *s, int64_t block, int64_t sheet)
{
    tern__winograd_part from = tern__winograd_in_part(&j->grid, &s->slice, block, sheet);
    float *to = s->tiles + (block * j->in_room + sheet * s->slice.tiles) * TERN__BLOCK;
    tern__winograd_inputs((tern__winograd_points){to, j->in_pitch}, &j->grid, j->in, &from);
}

/* Multiplies all points of a group of outputs by inputs from `in` on, with the weights at `weight`,
 * `pitch` floats per point. A tap reads the same sheets as the one before it, shifted by one. */
static void winograd_multiply(const job *j, const part *s, float *sums, const float *weight, int64_t pitch,
                              int64_t group, int64_t in)
{
    int64_t ins = TERN__MIN(j->chunk, j->w.ins - in), tap = in / j->channels, channel = in % j->channels;
    int64_t sheet = s->slice.tiles * TERN__BLOCK, next = j->grid.depth.step < 0 ? -sheet : sheet;
    const float *tiles = s->tiles + channel * j->in_room + tern__winograd_seen(&j->grid, tap) * sheet;
    tern__conv_product p = {.blocks = ins / TERN__BLOCK,
                            .rows = 1,
                            .columns = s->slice.sheets * s->slice.tiles,
                            .width = tern__winograd_width(&j->w, group),
                            .in_step = TERN__BLOCK,
                            .sum_step = TERN__BLOCK,
                            .in_pitch = j->in_room * TERN__BLOCK,
                            .sum_pitch = j->room * TERN__BLOCK,
                            .near = (j->channels - channel) / TERN__BLOCK,
                            .period = j->channels / TERN__BLOCK,
                            .skip = next - j->channels * j->in_room,
                            .add = in > 0};
    for (int64_t point = 0; point < POINTS; point++) {
        p.weight = weight + point * pitch;
        p.in = tiles + point * j->in_pitch;
        p.sums = sums + point * j->sum_pitch;
        tern__conv_multiply(&p);
    }
}

/* direct: the tiles that are computed by the definition; NULL: none. */
static void transform_outputs(const job *j, const part *s, float *sums, int64_t group, const bool *direct)
{
    int64_t blocks = tern__winograd_width(&j->w, group) / TERN__BLOCK;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = 0; i < s->slice.sheets; i++) {
            tern__winograd_part to = tern__winograd_out_part(&j->grid, &s->slice, 2 * group + b, i);
            tern__winograd_points from = {sums + (b * j->room + i * s->slice.tiles) * TERN__BLOCK,
                                          j->sum_pitch};
            const bool *these = direct ? direct + i * s->slice.tiles : NULL;
            if (these) tern__winograd_direct(from, &j->grid, j->in, &j->w, &to, these);
            tern__winograd_outputs(from, &j->grid, j->out, j->bias, j->call->add[0], &to, these);
        }
}

/* Finds the slice's uneven tiles. */
static void tiles_judge(const job *j, const part *s, room *r)
{
    r->any = false;
    for (int64_t i = 0; i < s->slice.sheets; i++) {
        tern__winograd_part outs = tern__winograd_out_part(&j->grid, &s->slice, 0, i);
        tern__winograd_points from = {s->tiles + i * s->slice.tiles * TERN__BLOCK, j->in_pitch};
        r->any = tern__winograd_find_uneven(r->uneven + i * s->slice.tiles, from, j->in_room * TERN__BLOCK,
                                            &j->grid, j->in, &outs) > 0 ||
                 r->any;
    }
}

/* Whether a group's weights that were transformed beforehand are even. */
static bool is_kept_even(const job *j, const float *kept)
{
    return kept[weight_room(j, j->w.ins) - 1] != 0;
}

/* Computes a group of outputs. Both ways sum the inputs in the same chunks, so that results do not depend
 * on which is used. */
static void winograd_compute(const job *j, const part *s, const room *r, int64_t group)
{
    const float *kept = j->kept + group * weight_room(j, j->w.ins);
    bool even = !j->keeps || is_kept_even(j, kept);
    for (int64_t in = 0; in < j->w.ins; in += j->chunk) {
        int64_t ins = TERN__MIN(j->chunk, j->w.ins - in);
        if (!j->keeps) even = tern__winograd_pack(r->weights, &j->w, group, in, ins) && even;
        const float *weight = j->keeps ? kept + in * tern__winograd_width(&j->w, group) : r->weights;
        winograd_multiply(j, s, r->sums, weight,
                          tern__winograd_pitch(&j->w, group, j->keeps ? j->w.ins : ins), group, in);
    }
    transform_outputs(j, s, r->sums, group, !even ? r->all : r->any ? r->uneven : NULL);
}

/* ---- the loops ---- */

/* Transforms all sheets of all blocks of some slices, then computes all groups, with the same share of
 * both per thread: if every thread has a slice, it is its own. */
static void winograd_run(const job *j, int64_t first)
{
    int64_t slices = TERN__MIN(j->slices, j->cut.count - first), outs = slices * j->groups;
    int64_t tall = tern__winograd_tall(&j->grid, j->cut.sheets), each = tall * j->channels / TERN__BLOCK;
    int64_t ins = slices * each;
#pragma omp parallel for num_threads(j->threads) schedule(static) if (j->threads > 1)
    for (int t = 0; t < j->threads; t++)
        for (int64_t i = ins * t / j->threads; i < ins * (t + 1) / j->threads; i++) {
            part s = winograd_part_of(j, first, i / each);
            if (i % tall < tern__winograd_tall(&j->grid, s.slice.sheets))
                transform_inputs(j, &s, i % each / tall, i % tall);
        }
#pragma omp parallel for num_threads(j->threads) schedule(static) if (j->threads > 1)
    for (int t = 0; t < j->threads; t++) {
        room r = winograd_room_of(j, t);
        for (int64_t begin = outs * t / j->threads, i = begin; i < outs * (t + 1) / j->threads; i++) {
            part s = winograd_part_of(j, first, i / j->groups);
            if (i == begin || i % j->groups == 0) tiles_judge(j, &s, &r);
            winograd_compute(j, &s, &r, i % j->groups);
        }
    }
}

/* ---- the plan ---- */

/* Chooses slices. A slice with a cache's worth of inputs is used if that pays for reading the weights; if
 * there are few tiles for the threads slices are smaller, but not below LEAST. */
static tern__winograd_cut cut_of(const job *j, bool *keeps)
{
    int64_t most = CACHE / (POINTS * j->channels * (int64_t)sizeof(float));
    int64_t share = TERN__MAX((j->grid.count + j->threads - 1) / j->threads, LEAST);
    tern__winograd_cut cached = tern__winograd_cut_of(&j->grid, most, true);
    *keeps = cached.tiles * cached.sheets >= FEW && cached.count > 1;
    if (!*keeps) return tern__winograd_cut_of(&j->grid, LONG, false);
    return share < cached.tiles * cached.sheets ? tern__winograd_cut_of(&j->grid, share, false) : cached;
}

static void winograd_cut(job *j)
{
    j->cut = cut_of(j, &j->keeps);
    j->slices = j->keeps ? j->threads : (j->threads + j->groups - 1) / j->groups;
    j->chunk = TERN__MIN(j->w.ins, CHUNK);
    j->room = j->cut.sheets * j->cut.tiles;
    j->in_room = tern__winograd_tall(&j->grid, j->cut.sheets) * j->cut.tiles;
    j->in_pitch = j->channels * j->in_room + TERN__BLOCK;
    j->in_size = TERN__WINOGRAD_LINES * j->in_pitch;
    j->sum_pitch = 2 * j->room * TERN__BLOCK + TERN__BLOCK;
    j->sum_size = POINTS * j->sum_pitch;
    j->own_size = j->sum_size + (j->keeps ? 0 : weight_room(j, j->chunk)) + flag_room(j);
}

static job winograd_plan(const tern__call *call, const tern__view *x, const tern__view *w,
                         const tern__view *y)
{
    bool turned = call->kernel == TERN__CONV_DATA_GRAD;
    job j = {.call = call, .in = turned ? y : x, .out = turned ? x : y, .threads = call->device->threads};
    int64_t taps = tern__winograd_sheets(w);
    j.grid = tern__winograd_grid_of(j.in, j.out, taps, call->attr, turned);
    j.w = (tern__winograd_weights){
        .ins = taps * j.in->shape[1], .outs = j.out->shape[1], .taps = taps, .turned = turned};
    j.channels = j.in->shape[1];
    j.groups = (j.w.outs + 31) / 32;
    winograd_cut(&j);
    return j;
}

static size_t kept_bytes(const job *j)
{
    return (size_t)(j->groups * weight_room(j, j->w.ins)) * sizeof(float);
}

static size_t tile_bytes(const job *j)
{
    return (size_t)(j->slices * j->in_size) * sizeof(float);
}

static size_t own_bytes(const job *j)
{
    return (size_t)(j->threads * j->own_size) * sizeof(float);
}

size_t tern__winograd_scratch(const tern__call *call, const tern__view *x, const tern__view *w,
                              const tern__view *y)
{
    job j = winograd_plan(call, x, w, y);
    return (j.keeps ? kept_bytes(&j) : 0) + tile_bytes(&j) + own_bytes(&j);
}

/* Transforms all weights beforehand. */
static int winograd_keep(job *j, const tern__view *w)
{
    const struct {
        char algorithm[8];
        int64_t turned;
    } format = {"winogr.", j->w.turned};
    size_t bytes = kept_bytes(j);
    bool stale = true;
    float *to =
        w->packs ? tern__pack_get(w->packs, j->call->device, &format, sizeof(format), bytes, &stale) : NULL;
    if (!to) to = tern__loop_scratch_of(j->call, WEIGHTS, bytes);
    if (!to) return TERN_E_MEMORY;
    j->kept = to;
    if (!stale) return TERN_OK;
    int threads = (int)TERN__MIN(j->threads, j->groups);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t g = 0; g < j->groups; g++) {
        float *weights = to + g * weight_room(j, j->w.ins);
        weights[weight_room(j, j->w.ins) - 1] = tern__winograd_pack(weights, &j->w, g, 0, j->w.ins);
    }
    return TERN_OK;
}

int tern__winograd(const tern__call *call, const tern__view *x, const tern__view *w, const tern__view *y,
                   const tern__view *bias)
{
    job j = winograd_plan(call, x, w, y);
    j.w.data = w->data;
    j.w.dtype = w->dtype;
    if (bias) j.bias = bias->data;
    j.tiles = tern__loop_scratch_of(call, TILES, tile_bytes(&j));
    j.own = tern__loop_scratch_of(call, SUMS, own_bytes(&j));
    if (!j.tiles || !j.own || (j.keeps && winograd_keep(&j, w))) return TERN_E_MEMORY;
    for (int64_t first = 0; first < j.cut.count; first += j.slices) winograd_run(&j, first);
    return TERN_OK;
}
