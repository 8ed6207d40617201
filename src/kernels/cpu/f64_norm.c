/* f64_norm.c - batch norm, group norm and their gradients in f64, with activations in the plain layout: a
 * channel is a plane of each sample. The formulas are the reference's, the loops are over contiguous
 * numbers. Threads take channels, or rows of a group norm (kernels/group_norm.h). Each sum is made in one
 * order, so no bit depends on the threads.
 *
 * Batch norm's backward goes over a plane by stretches. dy' = dy masked by the ReLU is computed in the
 * first-level cache, and from it the sums, dx and the residual's gradient. Group norm does the same with w
 * dy if a channel has one position. dx may overwrite dy or x, and the residual's gradient dy.
 *
 * A mean is summed up as the distances from the first value, so that equal values have a mean which is that
 * value exactly, and a variance of 0. */
#include "kernels/batch_norm.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/norm_numbers.h"
#include "kernels/group_norm.h"
#include "kernels/space.h"

#include <math.h>

#define STRETCH 512

typedef struct shape {
    int64_t batch, channels, positions;
} shape;

/* A channel: y = (x - mean) * scale + bias. */
typedef struct line {
    double mean, inverse, scale, bias;
} line;

static double f64_value_of(const tern__view *vector, int64_t c, double fallback)
{
    return vector ? tern__view_get(vector, c) : fallback;
}

static line f64_line_of(const tern__call *call, const tern__view *const vectors[4], int64_t c)
{
    const tern__batch_norm_attr *attr = call->attr;
    double inverse = 1 / sqrt(tern__view_get(vectors[1], c) + attr->eps);
    return (line){tern__view_get(vectors[0], c), inverse, inverse * f64_value_of(vectors[2], c, 1),
                  f64_value_of(vectors[3], c, 0)};
}

static double *at_of(const tern__view *view, int64_t at)
{
    return view ? (double *)view->data + at : NULL;
}

/* The index of a plane's first element. */
static int64_t plane(const shape *s, int64_t sample, int64_t c)
{
    return (sample * s->channels + c) * s->positions;
}

/* ---- loops ---- */

TERN__SIMD static double distances_of(const double *x, int64_t n, double from)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] - from;
    return sum;
}

TERN__SIMD static double squares_of(const double *x, int64_t n, double mean)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

TERN__SIMD static void f64_apply(double *y, const double *x, const double *residual, int64_t n, const line *k,
                                 bool relu)
{
    double mean = k->mean, scale = k->scale, bias = k->bias;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        double v = (x[i] - mean) * scale + bias + (residual ? residual[i] : 0);
        y[i] = relu && v < 0 ? 0 : v; /* NaN passes */
    }
}

/* dy where y is positive; as in PyTorch also where it is NaN. */
TERN__SIMD static void mask(double *to, const double *dy, const double *y, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) to[i] = y[i] <= 0 ? 0 : dy[i];
}

TERN__SIMD static void f64_put(double *to, const double *from, int64_t n, bool add)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) to[i] = add ? to[i] + from[i] : from[i];
}

TERN__SIMD static void add_sums(double sum[2], const double *d, const double *x, int64_t n, double mean)
{
    double a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
    for (int64_t i = 0; i < n; i++) {
        a += d[i];
        b += d[i] * (x[i] - mean);
    }
    sum[0] += a;
    sum[1] += b;
}

/* dx = d * scale - (x - mean) * slope - shift */
typedef struct tangent {
    double mean, scale, slope, shift;
} tangent;

/* The gradient's terms for d with `scale`, from sum(d) / n and sum(d xhat) / n. */
static tangent tangent_of(double mean, double inverse, double scale, const double mean_of[2])
{
    return (tangent){mean, scale, scale * inverse * mean_of[1], scale * mean_of[0]};
}

TERN__SIMD static void f64_gradient(double *dx, const double *d, const double *x, int64_t n, const tangent *t,
                                    bool add)
{
    double mean = t->mean, scale = t->scale, slope = t->slope, shift = t->shift;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        double v = d[i] * scale - (x[i] - mean) * slope - shift;
        dx[i] = add ? dx[i] + v : v;
    }
}

/* ---- batch norm: forward of a channel ---- */

static void f64_make_stats(const tern__call *call, const shape *s, int64_t c, const tern__view *const to[4])
{
    const double *x = call->in[0]->data;
    double share = ((const tern__batch_norm_attr *)call->attr)->momentum, sum = 0, m2 = 0;
    double n = (double)(s->batch * s->positions), first = x[plane(s, 0, c)];
    for (int64_t b = 0; b < s->batch; b++) sum += distances_of(x + plane(s, b, c), s->positions, first);
    double mean = first + sum / n;
    for (int64_t b = 0; b < s->batch; b++) m2 += squares_of(x + plane(s, b, c), s->positions, mean);
    tern__view_set(to[0], c, mean);
    tern__view_set(to[1], c, tern__norm_variance(m2 / n));
    move_towards(to[2], c, mean, share);
    move_towards(to[3], c, m2 / (n - 1), share);
}

/* vectors: mean, variance, weight and bias. */
static void make_y(const tern__call *call, const shape *s, int64_t c, const tern__view *const vectors[4],
                   const tern__view *residual)
{
    bool relu = ((const tern__batch_norm_attr *)call->attr)->relu != 0;
    line k = f64_line_of(call, vectors, c);
    for (int64_t b = 0; b < s->batch; b++) {
        int64_t at = plane(s, b, c);
        f64_apply(at_of(call->out[0], at), at_of(call->in[0], at), at_of(residual, at), s->positions, &k,
                  relu);
    }
}

static void stats(const tern__call *call, const shape *s, int64_t c)
{
    f64_make_stats(call, s, c, call->out);
}

static void f64_apply_stats(const tern__call *call, const shape *s, int64_t c)
{
    make_y(call, s, c, call->in + 1, call->in[5]);
}

static void both(const tern__call *call, const shape *s, int64_t c)
{
    const tern__view *const *in = call->in, *const *out = call->out;
    f64_make_stats(call, s, c, out + 1);
    make_y(call, s, c, (const tern__view *const[]){out[1], out[2], in[1], in[2]}, in[3]);
}

/* ---- batch norm: backward of a channel ---- */

/* dy' from element `at` on, in the stage unless it equals dy. */
static const double *f64_passed(const tern__call *call, const line *k, int64_t at, int64_t n, double *stage)
{
    bool relu = ((const tern__batch_norm_attr *)call->attr)->relu != 0;
    const double *dy = at_of(call->in[0], at), *y = at_of(call->in[2], at);
    if (!y && !(relu && call->kernel == TERN__BATCH_NORM_GRAD)) return dy;
    if (!y) f64_apply(stage, at_of(call->in[1], at), NULL, n, k, false);
    mask(stage, dy, y ? y : stage, n);
    return stage;
}

/* sum(dy') and sum(dy' xhat). */
static void f64_make_sums(const tern__call *call, const shape *s, int64_t c, const line *k, double sum[2])
{
    double stage[STRETCH];
    sum[0] = sum[1] = 0;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t first = 0; first < s->positions; first += STRETCH) {
            int64_t at = plane(s, b, c) + first, n = TERN__MIN(STRETCH, s->positions - first);
            add_sums(sum, f64_passed(call, k, at, n, stage), at_of(call->in[1], at), n, k->mean);
        }
    sum[1] *= k->inverse;
}

/* dx and the residual's gradient from the means of dy' and of dy' xhat. */
static void make_grads(const tern__call *call, const shape *s, int64_t c, const line *k,
                       const double mean_of[2])
{
    double stage[STRETCH];
    tangent t = tangent_of(k->mean, k->inverse, k->scale, mean_of);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t first = 0; first < s->positions; first += STRETCH) {
            int64_t at = plane(s, b, c) + first, n = TERN__MIN(STRETCH, s->positions - first);
            const double *d = f64_passed(call, k, at, n, stage), *x = at_of(call->in[1], at);
            if (call->out[1]) f64_put(at_of(call->out[1], at), d, n, call->add[1]);
            if (call->out[0]) f64_gradient(at_of(call->out[0], at), d, x, n, &t, call->add[0]);
        }
}

static void f64_sums(const tern__call *call, const shape *s, int64_t c)
{
    line k = f64_line_of(call, (const tern__view *const[4]){call->in[3], call->in[4]}, c);
    double sum[2];
    f64_make_sums(call, s, c, &k, sum);
    for (int i = 0; i < 4; i++) put_sum(call, i, c, sum[i % 2]);
}

static void f64_data_grad(const tern__call *call, const shape *s, int64_t c)
{
    line k = f64_line_of(call, (const tern__view *const[4]){call->in[3], call->in[4], call->in[5]}, c);
    make_grads(call, s, c, &k,
               (const double[2]){f64_value_of(call->in[6], c, 0), f64_value_of(call->in[7], c, 0)});
}

static void all_grads(const tern__call *call, const shape *s, int64_t c)
{
    line k = f64_line_of(call, call->in + 3, c);
    double sum[2], n = (double)(s->batch * s->positions);
    f64_make_sums(call, s, c, &k, sum);
    make_grads(call, s, c, &k, (const double[2]){sum[0] / n, sum[1] / n});
    put_sum(call, 2, c, sum[0]);
    put_sum(call, 3, c, sum[1]);
}

/* ---- batch norm: the kernels ---- */

typedef void (*channel_fn)(const tern__call *call, const shape *s, int64_t c);

static channel_fn function_of(tern__kernel kernel)
{
    switch (kernel) {
    case TERN__BATCH_NORM_STATS: return stats;
    case TERN__BATCH_NORM_APPLY: return f64_apply_stats;
    case TERN__BATCH_NORM_SUMS: return f64_sums;
    case TERN__BATCH_NORM_DATA_GRAD: return f64_data_grad;
    case TERN__BATCH_NORM: return both;
    default: return all_grads;
    }
}

/* Whether the operands of x's shape are contiguous; the other vectors may have any strides. */
static bool f64_takes(const tern__call *call, const tern__view *x)
{
    bool fine = true;
    for (int i = 0; i < TERN__KERNEL_INS + TERN__KERNEL_OUTS; i++) {
        const tern__view *v = i < TERN__KERNEL_INS ? call->in[i] : call->out[i - TERN__KERNEL_INS];
        if (v && (!x || tern__view_same_shape(v, x)))
            fine &= v->dtype == TERN_F64 && tern__view_is_contiguous(v);
    }
    return fine;
}

int tern__f64_batch_norm(const tern__call *call)
{
    channel_fn fn = function_of(call->kernel);
    bool forward = fn == stats || fn == f64_apply_stats || fn == both;
    const tern__view *x = call->in[forward ? 0 : 1];
    if (!f64_takes(call, x) || (forward && call->add[0])) return TERN_E_UNSUPPORTED;
    shape s = {x->shape[0], x->shape[1], tern__space_of(x).count};
    int threads = tern__loop_threads(call, tern__view_count(x));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t c = 0; c < s.channels; c++) fn(call, &s, c);
    return TERN_OK;
}

/* ---- group norm: forward ---- */

static int64_t first_channel(const tern__group_shape *s, int64_t row)
{
    return row % s->groups * s->channels;
}

/* Applies the norm to n channels of one position. */
TERN__SIMD static void apply_channels(double *y, const double *x, const double *w, const double *b, int64_t n,
                                      double mean, double inverse)
{
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * (w ? inverse * w[i] : inverse) + (b ? b[i] : 0);
}

/* The row's mean, 0 in a root mean square norm. */
static double group_mean_of(const tern__call *call, const double *x, int64_t n)
{
    if (((const tern__group_norm_attr *)call->attr)->rms) return 0;
    return *x + distances_of(x, n, *x) / (double)n;
}

static void forward_row(const tern__call *call, const tern__group_shape *s, int64_t row)
{
    int64_t at = row * s->size, channel = first_channel(s, row);
    const double *x = at_of(call->in[0], at), *w = at_of(call->in[1], channel),
                 *b = at_of(call->in[2], channel);
    double *y = at_of(call->out[0], at), n = (double)s->size, mean = group_mean_of(call, x, s->size);
    double var = tern__norm_variance(squares_of(x, s->size, mean) / n);
    double inverse = 1 / sqrt(var + ((const tern__group_norm_attr *)call->attr)->eps);
    if (call->out[1]) *at_of(call->out[1], row) = mean;
    *at_of(call->out[2], row) = inverse;
    if (s->positions == 1) apply_channels(y, x, w, b, s->size, mean, inverse);
    for (int64_t k = 0; k < s->channels && s->positions != 1; k++) {
        line l = {mean, inverse, w ? inverse * w[k] : inverse, b ? b[k] : 0};
        f64_apply(y + k * s->positions, x + k * s->positions, NULL, s->positions, &l, false);
    }
}

/* ---- group norm: dx ---- */

/* w dy of channels of one position, in the stage unless all w are 1. */
TERN__SIMD static const double *weighed(const double *dy, const double *w, int64_t n, double *stage)
{
    if (!w) return dy;
    for (int64_t i = 0; i < n; i++) stage[i] = w[i] * dy[i];
    return stage;
}

/* The length of a piece: the values of one weight, or a stretch of channels of one position. */
static int64_t piece(const tern__group_shape *s, int64_t first)
{
    return s->positions == 1 ? TERN__MIN(STRETCH, s->size - first) : s->positions;
}

/* Computes a row of dx in two passes: sum(w dy) and sum(w dy xhat), then dx. */
static void backward_row(const tern__call *call, const tern__group_shape *s, int64_t row)
{
    int64_t at = row * s->size;
    const double *dy = at_of(call->in[0], at), *x = at_of(call->in[1], at);
    const double *weight = at_of(call->in[4], first_channel(s, row));
    double mean = f64_value_of(call->in[2], row, 0), inverse = *at_of(call->in[3], row);
    double stage[STRETCH], sum[2] = {0};
    bool flat = s->positions == 1;
    for (int64_t i = 0, n; i < s->size; i += n) {
        n = piece(s, i);
        const double *w = weight ? weight + i / s->positions : NULL;
        double part[2] = {0}, factor = w && !flat ? *w : 1;
        add_sums(part, weighed(dy + i, flat ? w : NULL, n, stage), x + i, n, mean);
        sum[0] += factor * part[0];
        sum[1] += factor * part[1] * inverse;
    }
    if (((const tern__group_norm_attr *)call->attr)->rms) sum[0] = 0;
    double mean_of[2] = {sum[0] / (double)s->size, sum[1] / (double)s->size};
    tangent t = tangent_of(mean, inverse, inverse, mean_of);
    for (int64_t i = 0, n; i < s->size; i += n) {
        n = piece(s, i);
        const double *w = weight ? weight + i / s->positions : NULL;
        t.scale = w && !flat ? inverse * *w : inverse;
        f64_gradient(at_of(call->out[0], at + i), weighed(dy + i, flat ? w : NULL, n, stage), x + i, n, &t,
                     call->add[0]);
    }
}

/* ---- group norm: the weights' gradients ---- */

#define SPAN 64 /* channels that a thread takes */

typedef struct span {
    int64_t first, count; /* within the group */
    double dw[SPAN], db[SPAN];
} span;

/* Adds the channels' values at one position. */
TERN__SIMD static void add_channels(span *to, const double *dy, const double *x, double mean, double inverse)
{
    for (int64_t i = 0; i < to->count; i++) {
        to->db[i] += dy[i];
        to->dw[i] += dy[i] * (x[i] - mean) * inverse;
    }
}

static void f64_add_row(const tern__call *call, const tern__group_shape *s, int64_t row, span *to)
{
    int64_t at = row * s->size + to->first * s->positions;
    const double *dy = at_of(call->in[0], at), *x = at_of(call->in[1], at);
    double mean = f64_value_of(call->in[2], row, 0), inverse = *at_of(call->in[3], row);
    if (s->positions == 1) {
        add_channels(to, dy, x, mean, inverse);
        return;
    }
    for (int64_t k = 0; k < to->count; k++) {
        double part[2] = {0};
        add_sums(part, dy + k * s->positions, x + k * s->positions, s->positions, mean);
        to->db[k] += part[0];
        to->dw[k] += part[1] * inverse;
    }
}

static void weight_grads(const tern__call *call, const tern__group_shape *s, int64_t group, int64_t first)
{
    span to = {.first = first, .count = TERN__MIN(SPAN, s->channels - first)};
    for (int64_t n = 0; n < s->samples; n++) f64_add_row(call, s, n * s->groups + group, &to);
    for (int64_t k = 0; k < to.count; k++) {
        put_sum(call, 1, group * s->channels + first + k, to.dw[k]);
        put_sum(call, 2, group * s->channels + first + k, to.db[k]);
    }
}

/* ---- group norm: the kernels ---- */

/* The weights first: dx may overwrite dy. */
int tern__f64_group_norm(const tern__call *call)
{
    bool forward = call->kernel == TERN__GROUP_NORM;
    tern__group_shape s = tern__group_shape_of(call->in[forward ? 0 : 1]);
    if (!f64_takes(call, NULL) || (forward && call->add[0])) return TERN_E_UNSUPPORTED;
    int64_t rows = s.samples * s.groups, spans = (s.channels + SPAN - 1) / SPAN;
    int threads = tern__loop_threads(call, rows * s.size);
    if (!forward && (call->out[1] || call->out[2]))
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
        for (int64_t i = 0; i < s.groups * spans; i++) weight_grads(call, &s, i / spans, i % spans * SPAN);
    if (call->out[0])
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
        for (int64_t row = 0; row < rows; row++) (forward ? forward_row : backward_row)(call, &s, row);
    return TERN_OK;
}
