/* dice_loss.c - soft Dice and cross entropy with it in f32; 16-bit types are widened. The formulas are in
 * kernels/dice_loss.h and reference/dice_loss.c.
 *
 * One pass over x and target computes the sums, another the gradient. Probabilities are recomputed from x
 * in a stretch that stays in the first-level cache, and are never written to memory. Sums are in f32 over
 * a stretch, then in double over the stretches in order, so threads do not change them. For a map of
 * classes a stretch has all channels of some positions. */
#include "kernels/dice_loss.h"
#include "kernels/cpu/exps.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/staging.h"
#include "kernels/cpu/widen.h"

#include <string.h>

#define WIDTH  TERN__STAGE
#define ROOM   16384 /* probabilities of a stretch */
#define PIECE  16    /* stretches that one thread takes at a time */
#define NARROW 16    /* positions of a stretch, at least; with too many classes the reference kernel runs */

typedef struct problem {
    const tern__call *call;
    const tern__dice_attr *attr;
    const float *x;
    const tern__view *target;
    tern__channels c;
    int64_t rows, width, piece, pieces; /* samples, or channels of all samples; their stretches and pieces */
} problem;

/* Returns false if an operand's layout does not suit the loops. */
static bool dice_take(const tern__call *call, int x, problem *p)
{
    *p = (problem){.call = call, .attr = call->attr, .x = call->in[x]->data, .target = call->in[x + 1]};
    p->c = tern__channels_of(call->in[x]);
    p->rows = p->c.samples * (p->attr->classes ? 1 : p->c.channels);
    p->width = p->attr->classes ? TERN__MIN(WIDTH, ROOM / p->c.channels) : WIDTH;
    p->piece = p->width * PIECE;
    p->pieces = p->width ? (p->c.inner + p->piece - 1) / p->piece : 0;
    return call->in[x]->dtype == TERN_F32 && tern__view_is_contiguous(call->in[x]) &&
           tern__view_is_contiguous(p->target) && p->width >= NARROW;
}

static int threads_of(const problem *p)
{
    return tern__loop_threads(p->call, p->c.samples * p->c.channels * p->c.inner);
}

/* ---- one stretch of a mask ---- */

/* The elements of a stretch: the sigmoids s(x) and s(-x), or probabilities; the targets, 0 where ignored;
 * and 1 or 0, whether they count. */
typedef struct stretch {
    float tail[WIDTH], p[WIDTH], rest[WIDTH], keep[WIDTH];
    tern__stage t;
} stretch;

TERN__SIMD static void load_mask(const problem *p, int64_t at, int64_t n, stretch *s)
{
    const float *x = p->x + at, ignored = (float)p->attr->ignored;
    tern__stage_load(TERN__COMPUTE_F32, &s->t, p->target->dtype, p->target->data, at, 1, n);
    for (int64_t i = 0; i < n; i++) s->keep[i] = s->t.f32[i] == ignored ? 0 : 1;
    for (int64_t i = 0; i < n; i++) s->t.f32[i] = s->keep[i] != 0 ? s->t.f32[i] : 0;
    for (int64_t i = 0; i < n; i++) s->tail[i] = -fabsf(x[i]);
    if (!p->attr->probabilities) tern__exps(s->tail, s->tail, n);
    for (int64_t i = 0; i < n; i++) {
        float half = 1 / (1 + s->tail[i]), other = s->tail[i] * half;
        s->p[i] = x[i] < 0 ? other : half;
        s->rest[i] = x[i] < 0 ? half : other;
    }
    for (int64_t i = 0; i < n && p->attr->probabilities; i++) s->p[i] = x[i];
    for (int64_t i = 0; i < n; i++) s->p[i] = s->keep[i] != 0 ? s->p[i] : 0;
}

/* The sum of max(x, 0) - x t + log(1 + e^-|x|) over elements that count. */
TERN__SIMD static double mask_entropy(const float *x, const stretch *s, int64_t n)
{
    float e[WIDTH];
    for (int64_t i = 0; i < n; i++) e[i] = log1pf(s->tail[i]);
    for (int64_t i = 0; i < n; i++) {
        float one = (x[i] < 0 ? 0 : x[i]) - x[i] * s->t.f32[i] + e[i];
        e[i] = s->keep[i] != 0 ? one : 0;
    }
    return tern__dot(e, NULL, n);
}

/* All sums of n elements with probabilities p and targets t in one loop. Whether squares are summed is a
 * factor: with a condition gcc would make two loops and vectorise one. */
TERN__INLINE tern__overlap overlap_of(const float *p, const float *t, const float *counts, int64_t n,
                                      bool squared)
{
    float both = 0, x = 0, target = 0, count = 0, square = squared, plain = 1 - square;
#pragma omp simd reduction(+ : both, x, target, count)
    for (int64_t i = 0; i < n; i++) {
        both += p[i] * t[i];
        x += p[i] * (plain + square * p[i]);
        target += t[i] * (plain + square * t[i]);
        count += counts[i];
    }
    return (tern__overlap){(double)both, (double)x, (double)target, 0, (double)count};
}

TERN__SIMD static tern__overlap mask_overlap(const problem *p, const stretch *s, int64_t n)
{
    return overlap_of(s->p, s->t.f32, s->keep, n, p->attr->squared);
}

/* The results of a piece: the overlap of its channel, or of each channel; and how many labels are invalid. */
typedef struct part {
    tern__overlap *sum;
    int64_t bad;
} part;

/* Counts elements of an integer mask that are not 0 or 1. */
TERN__SIMD static int64_t count_bad(const problem *p, const float *t, int64_t n)
{
    int32_t bad = 0;
    if (tern__dtype_is_float(p->target->dtype)) return 0;
    for (int64_t i = 0; i < n; i++) bad += t[i] * t[i] != t[i];
    return bad;
}

static void add_mask(const problem *p, int64_t at, int64_t n, part *to)
{
    stretch s;
    load_mask(p, at, n, &s);
    tern__overlap o = mask_overlap(p, &s, n);
    if (p->attr->entropy != 0) o.entropy = mask_entropy(p->x + at, &s, n);
    to->bad += count_bad(p, s.t.f32, n);
    tern__overlap_add(to->sum, &o);
}

/* dx = or += the slope of each element. */
TERN__SIMD static void mask_slopes(const problem *p, const stretch *s, int64_t n,
                                   const tern__dice_slope *slope, float *dx)
{
    float of_target = (float)slope->of_target, of_x = (float)slope->of_x, entropy = (float)slope->entropy;
    bool squared = p->attr->squared, given = p->attr->probabilities, add = p->call->add[0];
    for (int64_t i = 0; i < n; i++) {
        float pi = s->p[i], t = s->t.f32[i], rise = of_target * t + of_x * (squared ? 2 * pi : 1);
        float d = given ? rise : rise * pi * s->rest[i] + entropy * (pi - t);
        d = s->keep[i] != 0 ? d : 0;
        dx[i] = add ? dx[i] + d : d;
    }
}

/* ---- one stretch of a map of classes ---- */

/* Positions with their labels (-1: ignored), log sum exp, and the probabilities of one channel at a time,
 * 0 where ignored. */
typedef struct columns {
    int32_t label[WIDTH];
    int64_t bad;
    float norm[WIDTH];
    float p[ROOM];
} columns;

static void dice_load_labels(const problem *p, int64_t row, int64_t first, int64_t n, columns *s)
{
    tern__stage stage;
    tern__stage_load(TERN__COMPUTE_I64, &stage, p->target->dtype, p->target->data, row * p->c.inner + first,
                     1, n);
    s->bad = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t label = stage.i64[i];
        bool counts = label >= 0 && label < p->c.channels && label != p->attr->ignored;
        s->bad += !counts && label != p->attr->ignored;
        s->label[i] = counts ? (int32_t)label : -1;
    }
}

TERN__SIMD static void softmax(const problem *p, const float *x, int64_t n, columns *s)
{
    float top[WIDTH], sum[WIDTH] = {0};
    for (int64_t j = 0; j < n; j++) top[j] = x[j];
    for (int64_t c = 1; c < p->c.channels; c++)
        for (int64_t j = 0; j < n; j++)
            top[j] = x[c * p->c.inner + j] > top[j] ? x[c * p->c.inner + j] : top[j];
    for (int64_t c = 0; c < p->c.channels; c++) {
        float *e = s->p + c * n;
        for (int64_t j = 0; j < n; j++) e[j] = x[c * p->c.inner + j] - top[j];
        tern__exps(e, e, n);
        for (int64_t j = 0; j < n; j++) sum[j] += e[j];
    }
    for (int64_t j = 0; j < n; j++) s->norm[j] = top[j] + logf(sum[j]);
    for (int64_t j = 0; j < n; j++) sum[j] = 1 / sum[j];
    for (int64_t c = 0; c < p->c.channels; c++)
        for (int64_t j = 0; j < n; j++) s->p[c * n + j] = s->label[j] < 0 ? 0 : s->p[c * n + j] * sum[j];
}

TERN__SIMD static void take_probabilities(const problem *p, const float *x, int64_t n, columns *s)
{
    for (int64_t c = 0; c < p->c.channels; c++)
        for (int64_t j = 0; j < n; j++) s->p[c * n + j] = s->label[j] < 0 ? 0 : x[c * p->c.inner + j];
}

static void load_columns(const problem *p, int64_t row, int64_t first, int64_t n, columns *s)
{
    const float *x = p->x + row * p->c.channels * p->c.inner + first;
    dice_load_labels(p, row, first, n, s);
    (p->attr->probabilities ? take_probabilities : softmax)(p, x, n, s);
}

/* The overlap of channel c, whose logits are x. */
TERN__SIMD static tern__overlap channel_overlap(const problem *p, const columns *s, const float *x, int32_t c,
                                                int64_t n)
{
    float is[WIDTH], entropy = 0;
    for (int64_t j = 0; j < n; j++) is[j] = s->label[j] == c;
    tern__overlap o = overlap_of(s->p + c * n, is, is, n, p->attr->squared);
    if (p->attr->entropy == 0 || o.count == 0) return o;
#pragma omp simd reduction(+ : entropy)
    for (int64_t j = 0; j < n; j++) entropy += s->label[j] == c ? s->norm[j] - x[j] : 0;
    o.entropy = (double)entropy;
    return o;
}

static void add_columns(const problem *p, int64_t row, int64_t first, int64_t n, part *to)
{
    columns s;
    load_columns(p, row, first, n, &s);
    to->bad += s.bad;
    for (int64_t c = 0; c < p->c.channels; c++) {
        const float *x = p->x + (row * p->c.channels + c) * p->c.inner + first;
        tern__overlap o = channel_overlap(p, &s, x, (int32_t)c, n);
        tern__overlap_add(&to->sum[c], &o);
    }
}

/* ---- forward ---- */

/* Computes piece `number`, stretch by stretch. */
static void add_piece(const problem *p, int64_t number, part *to)
{
    int64_t row = number / p->pieces, first = number % p->pieces * p->piece;
    int64_t last = TERN__MIN(first + p->piece, p->c.inner);
    for (; first < last; first += p->width) {
        int64_t n = TERN__MIN(p->width, last - first);
        if (p->attr->classes)
            add_columns(p, row, first, n, to);
        else
            add_mask(p, row * p->c.inner + first, n, to);
    }
}

/* Sets E_RANGE for the first invalid label. */
static int find_bad(const problem *p)
{
    int64_t classes = p->attr->classes ? p->c.channels : 2, count = tern__view_count(p->target), i = 0;
    for (; i < count; i++) {
        int64_t label = tern__view_get_int(p->target, i);
        if ((label < 0 || label >= classes) && label != p->attr->ignored)
            return tern__dice_label_error(p->call, &p->c, i, label);
    }
    return TERN_OK;
}

/* Adds the pieces of each row in order. */
static void dice_add_up(const problem *p, const tern__overlap *parts, tern__overlap *sums)
{
    int64_t channels = p->attr->classes ? p->c.channels : 1;
    memset(sums, 0, (size_t)(p->rows * channels) * sizeof(*sums));
    for (int64_t i = 0; i < p->rows * p->pieces * channels; i++)
        tern__overlap_add(&sums[i / (p->pieces * channels) * channels + i % channels], &parts[i]);
}

int tern__cpu_dice_loss(const tern__call *call)
{
    problem p;
    if (tern__view_is_half(call->in[0])) return tern__cpu_widened(call, tern__cpu_dice_loss);
    if (!dice_take(call, 0, &p)) return TERN_E_UNSUPPORTED;
    int64_t channels = p.attr->classes ? p.c.channels : 1, tasks = p.rows * p.pieces, bad = 0;
    size_t bytes = (size_t)(tasks * channels) * sizeof(tern__overlap);
    tern__overlap *parts = tern__loop_scratch(call, bytes);
    if (!parts) return TERN_E_MEMORY;
    memset(parts, 0, bytes);
    int threads = threads_of(&p);
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : bad) if (threads > 1)
    for (int64_t i = 0; i < tasks; i++) {
        part one = {.sum = parts + i * channels};
        add_piece(&p, i, &one);
        bad += one.bad;
    }
    if (bad) return find_bad(&p);
    dice_add_up(&p, parts, call->out[1]->data);
    tern__dice_close(call, &p.c, call->out[1]->data);
    return TERN_OK;
}

/* ---- gradient ---- */

/* The probability-weighted mean over the channels of the derivatives by the probabilities, for each
 * position. */
TERN__SIMD static void mean_rises(const problem *p, const columns *s, int64_t n,
                                  const tern__dice_slope *slopes, float *mean)
{
    bool squared = p->attr->squared;
    for (int64_t j = 0; j < n; j++) mean[j] = 0;
    for (int64_t c = 0; c < p->c.channels; c++) {
        float of_target = (float)slopes[c].of_target, of_x = (float)slopes[c].of_x;
        const float *prob = s->p + c * n;
        for (int64_t j = 0; j < n; j++) {
            float t = s->label[j] == (int32_t)c;
            mean[j] += prob[j] * (of_target * t + of_x * (squared ? 2 * prob[j] : 1));
        }
    }
}

/* dx of channel c = or += its slope. */
TERN__SIMD static void channel_slopes(const problem *p, const columns *s, int32_t c, int64_t n,
                                      const tern__dice_slope *slope, const float *mean, float *dx)
{
    float of_target = (float)slope->of_target, of_x = (float)slope->of_x, entropy = (float)slope->entropy;
    bool squared = p->attr->squared, given = p->attr->probabilities, add = p->call->add[0];
    const float *prob = s->p + c * n;
    for (int64_t j = 0; j < n; j++) {
        float t = s->label[j] == c, rise = of_target * t + of_x * (squared ? 2 * prob[j] : 1);
        float d = given ? rise : prob[j] * (rise - mean[j]) + entropy * (prob[j] - t);
        d = s->label[j] < 0 ? 0 : d;
        dx[j] = add ? dx[j] + d : d;
    }
}

static void columns_gradient(const problem *p, int64_t row, int64_t first, int64_t n,
                             const tern__dice_slope *slopes, float *dx)
{
    columns s;
    float mean[WIDTH];
    int64_t channel = row * p->c.channels;
    load_columns(p, row, first, n, &s);
    mean_rises(p, &s, n, slopes + channel, mean);
    for (int64_t c = 0; c < p->c.channels; c++)
        channel_slopes(p, &s, (int32_t)c, n, &slopes[channel + c], mean,
                       dx + (channel + c) * p->c.inner + first);
}

static void mask_gradient(const problem *p, int64_t row, int64_t first, int64_t n,
                          const tern__dice_slope *slopes, float *dx)
{
    stretch s;
    load_mask(p, row * p->c.inner + first, n, &s);
    mask_slopes(p, &s, n, &slopes[row], dx + row * p->c.inner + first);
}

int tern__cpu_dice_loss_grad(const tern__call *call)
{
    problem p;
    const tern__view *dx = call->out[0];
    if (tern__view_is_half(dx)) return tern__cpu_widened(call, tern__cpu_dice_loss_grad);
    if (!dice_take(call, 1, &p) || !tern__is_dense(dx, call->in[1])) return TERN_E_UNSUPPORTED;
    int64_t channels = p.c.samples * p.c.channels, stretches = (p.c.inner + p.width - 1) / p.width;
    tern__dice_slope *slopes = tern__loop_scratch(call, (size_t)channels * sizeof(*slopes));
    tern__dice_back back = tern__dice_back_of(call);
    if (!slopes) return TERN_E_MEMORY;
    for (int64_t i = 0; i < channels; i++) slopes[i] = tern__dice_slope_of(&back, i);
    int threads = threads_of(&p);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < p.rows * stretches; i++) {
        int64_t row = i / stretches, first = i % stretches * p.width;
        (p.attr->classes ? columns_gradient : mask_gradient)(
            &p, row, first, TERN__MIN(p.width, p.c.inner - first), slopes, dx->data);
    }
    return TERN_OK;
}
