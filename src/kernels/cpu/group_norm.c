/* group_norm.c - group norm row by row (kernels/group_norm.h), in f32.
 *
 * Statistics: a chunk of a row gives the sums of d and of d * d, where d is the distance from the mean of its
 * first values; so close to the chunk's mean nothing cancels, and every lane sums few values. Chunks are
 * merged in double: the second moments of n1 and n2 values with means m1 and m2 add up to M1 + M2 + (m2 -
 * m1)^2 n1 n2 / (n1 + n2).
 *
 * Mean and 1 / deviation are kept in f64. The loops compute xhat = (x - centre) inverse + rest in f32, where
 * the centre is the float next to the mean, and what it lacks of the mean is in the rest.
 *
 * Backward, with d = w dy: a row gives sum(d) and sum(d xhat), and then dx = inverse (d - sum(d) / n - xhat
 * sum(d xhat) / n). Meanwhile every channel's sum(dy) and sum(dy xhat) are added to the gradients of bias and
 * weight. These are summed per block of samples; blocks do not depend on the number of threads and are added
 * in double in order, so results are always bitwise the same.
 *
 * A root mean square norm is the same with a mean of 0, and without sum(d) / n.
 *
 * What leaves f32's range, because values are beyond 1e18 or so, is computed in double. */
#include "kernels/group_norm.h"
#include "kernels/batch_norm.h"
#include "kernels/cpu/group_norm_sums.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widen.h"

#include <math.h>
#include <string.h>

#define CHUNK  TERN__GROUP_CHUNK
#define BLOCKS 16      /* least blocks of samples, if there are so many ... */
#define SPAN   128     /* ... and at most so many samples per block */
#define JOINED 256     /* channels at a time */
#define FAR    0x1p-30 /* 1 / deviation whose square may be too small for an f32 factor of a gradient */

typedef struct norm {
    const tern__call *call;
    tern__group_shape s;
    const tern__group_sums_fns *sums;
    float *dw, *db;       /* backward: a row of all channels per block */
    int64_t span, blocks; /* samples of a block */
    double eps;
    bool rms;
} norm;

static bool group_norm_is_taken(const tern__view *view)
{
    return !view || (view->dtype == TERN_F32 && tern__view_is_contiguous(view));
}

static const float *group_norm_data_of(const tern__view *view, int64_t at)
{
    return view ? (const float *)view->data + at : NULL;
}

static norm group_norm_of(const tern__call *call, const tern__view *x)
{
    const tern__group_norm_attr *attr = call->attr;
    return (norm){.call = call,
                  .s = tern__group_shape_of(x),
                  .sums = TERN__BY_WIDTH(tern__group_sums),
                  .eps = attr->eps,
                  .rms = attr->rms != 0};
}

static tern__group_unit group_norm_unit_of(double mean, double inverse)
{
    float centre = (float)mean;
    return (tern__group_unit){centre, (float)inverse, (float)(((double)centre - mean) * inverse)};
}

/* The row's first channel. */
static int64_t first_channel(const tern__group_shape *s, int64_t row)
{
    return row % s->groups * s->channels;
}

/* ---- forward ---- */

static void group_norm_moments(const norm *g, const float *x, int64_t n, double *mean, double *m2)
{
    g->sums->moments(x, TERN__MIN(n, CHUNK), mean, m2);
    for (int64_t first = CHUNK; first < n; first += CHUNK) {
        double have = (double)first, count = (double)TERN__MIN(n - first, CHUNK), centre, square;
        g->sums->moments(x + first, (int64_t)count, &centre, &square);
        double step = centre - *mean, share = count / (have + count);
        *mean += step * share;
        *m2 += square + step * step * have * share;
    }
}

static double row_squares(const norm *g, const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t first = 0; first < n; first += CHUNK)
        sum += g->sums->squares(x + first, TERN__MIN(n - first, CHUNK));
    return sum;
}

TERN__SIMD static void apply_channels(float *y, const float *x, const float *w, const float *b, int64_t n,
                                      tern__group_unit u)
{
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - u.centre) * u.inverse + u.rest;
        y[i] = (w ? xhat * w[i] : xhat) + (b ? b[i] : 0);
    }
}

TERN__SIMD static void apply_planes(float *y, const float *x, const float *w, const float *b,
                                    const tern__group_shape *s, tern__group_unit u)
{
    int64_t positions = s->positions;
    for (int64_t k = 0; k < s->channels; k++) {
        float scale = w ? u.inverse * w[k] : u.inverse, shift = (w ? u.rest * w[k] : u.rest) + (b ? b[k] : 0);
        for (int64_t i = k * positions; i < (k + 1) * positions; i++)
            y[i] = (x[i] - u.centre) * scale + shift;
    }
}

static void forward_row(const norm *g, int64_t row)
{
    const tern__view *const *in = g->call->in, *const *out = g->call->out;
    int64_t n = g->s.size, channel = first_channel(&g->s, row);
    const float *x = group_norm_data_of(in[0], row * n), *w = group_norm_data_of(in[1], channel),
                *b = group_norm_data_of(in[2], channel);
    float *y = (float *)out[0]->data + row * n;
    double mean = 0, m2;
    const double share = 1 / (double)n;
    if (g->rms)
        m2 = tern__norm_variance(row_squares(g, x, n));
    else
        group_norm_moments(g, x, n, &mean, &m2);
    double inverse = 1 / sqrt(m2 * share + g->eps);
    if (g->s.positions == 1)
        apply_channels(y, x, w, b, n, group_norm_unit_of(mean, inverse));
    else
        apply_planes(y, x, w, b, &g->s, group_norm_unit_of(mean, inverse));
    if (out[1]) ((double *)out[1]->data)[row] = mean;
    ((double *)out[2]->data)[row] = inverse;
}

int tern__cpu_group_norm(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_group_norm(call);
    const tern__view *x = call->in[0];
    norm g = group_norm_of(call, x);
    if (tern__view_is_half(x)) return tern__cpu_widened(call, tern__cpu_group_norm);
    if (call->add[0] || !group_norm_is_taken(x) || !group_norm_is_taken(call->out[0]))
        return TERN_E_UNSUPPORTED;
    int64_t rows = g.s.samples * g.s.groups;
    int threads = tern__loop_threads(call, rows * g.s.size);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) forward_row(&g, row);
    return TERN_OK;
}

/* ---- backward ---- */

/* Terms of a row: dx = d * scale - (x - centre) * slope - shift, with d = w dy. */
typedef struct line {
    float centre, scale, slope, shift;
} line;

/* sum(d) and sum(d xhat) of a row of channels with several positions; every channel's part is added to dw and
 * db. */
static void plane_sums(const norm *g, const tern__group_row *row, float *dw, float *db, double result[2])
{
    int64_t n = g->s.positions;
    result[0] = result[1] = 0;
    for (int64_t k = 0; k < g->s.channels; k++) {
        double plane[2], weight = row->w ? (double)row->w[k] : 1;
        g->sums->positions(row->dy + k * n, row->x + k * n, n, row->unit.centre, plane);
        double product = plane[1] * (double)row->unit.inverse + (double)row->unit.rest * plane[0];
        db[k] += (float)plane[0];
        dw[k] += (float)product;
        result[0] += weight * plane[0];
        result[1] += weight * product;
    }
}

/* dx may overwrite dy. */
TERN__SIMD static void data_grad_of_channels(float *dx, const float *dy, const float *x, const float *w,
                                             int64_t n, const line *l, bool add)
{
    float centre = l->centre, scale = l->scale, slope = l->slope, shift = l->shift;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        float v = (w ? dy[i] * w[i] : dy[i]) * scale - (x[i] - centre) * slope - shift;
        dx[i] = add ? dx[i] + v : v;
    }
}

TERN__SIMD static void data_grad_of_planes(float *dx, const float *dy, const float *x, const float *w,
                                           const tern__group_shape *s, const line *l, bool add)
{
    float centre = l->centre, slope = l->slope, shift = l->shift;
    for (int64_t k = 0; k < s->channels; k++) {
        float scale = w ? w[k] * l->scale : l->scale;
#pragma GCC ivdep
        for (int64_t i = k * s->positions; i < (k + 1) * s->positions; i++) {
            float v = dy[i] * scale - (x[i] - centre) * slope - shift;
            dx[i] = add ? dx[i] + v : v;
        }
    }
}

/* dx of a row of values so large that the slope would leave f32's range; sum: of d and of d xhat. */
static void data_grad_f64(const norm *g, const tern__group_row *row, double mean, double inverse,
                          const double sum[2], float *dx)
{
    double n = (double)row->n;
    for (int64_t i = 0; i < row->n; i++) {
        double d = (double)row->dy[i] * (row->w ? (double)row->w[i / g->s.positions] : 1);
        double xhat = ((double)row->x[i] - mean) * inverse;
        double v = inverse * (d - sum[0] / n - xhat * sum[1] / n);
        dx[i] = (float)(g->call->add[0] ? (double)dx[i] + v : v);
    }
}

static void backward_row(const norm *g, int64_t row, float *dw, float *db)
{
    const tern__view *const *in = g->call->in, *dx = g->call->out[0];
    int64_t n = g->s.size;
    const float *dy = group_norm_data_of(in[0], row * n), *x = group_norm_data_of(in[1], row * n);
    const float *w = group_norm_data_of(in[4], first_channel(&g->s, row));
    double mean = g->rms ? 0 : ((const double *)in[2]->data)[row];
    double inverse = ((const double *)in[3]->data)[row], sum[2];
    tern__group_unit u = group_norm_unit_of(mean, inverse);
    tern__group_row r = {dy, x, w, n, u};
    if (g->s.positions == 1)
        g->sums->channels(&r, dw, db, sum);
    else
        plane_sums(g, &r, dw, db, sum);
    if (!dx) return;
    if (g->rms) sum[0] = 0;
    float *to = (float *)dx->data + row * n;
    double mean_d = sum[0] / (double)n, mean_product = sum[1] * (1 / (double)n);
    double scale = (double)u.inverse; /* as d's, so that both parts of dx round alike */
    line l = {u.centre, u.inverse, (float)(scale * inverse * mean_product),
              (float)(scale * (mean_d + (double)u.rest * mean_product))};
    if (inverse < FAR)
        data_grad_f64(g, &r, mean, inverse, sum, to);
    else if (g->s.positions == 1)
        data_grad_of_channels(to, dy, x, w, n, &l, g->call->add[0]);
    else
        data_grad_of_planes(to, dy, x, w, &g->s, &l, g->call->add[0]);
}

/* Processes group `item` % groups of the samples of block `item` / groups. */
static void backward_item(const norm *g, int64_t item)
{
    int64_t block = item / g->s.groups, group = item % g->s.groups, k = g->s.channels;
    int64_t last = TERN__MIN(g->s.samples, (block + 1) * g->span), at = item * k;
    memset(g->dw + at, 0, (size_t)k * sizeof(float));
    memset(g->db + at, 0, (size_t)k * sizeof(float));
    for (int64_t n = block * g->span; n < last; n++)
        backward_row(g, n * g->s.groups + group, g->dw + at, g->rms ? NULL : g->db + at);
}

/* Sums the blocks' rows, from channel `first` on. */
TERN__SIMD static void group_norm_join(const norm *g, const float *rows, int64_t first, int64_t n,
                                       double sum[JOINED])
{
    int64_t channels = g->s.groups * g->s.channels;
    for (int64_t c = 0; c < n; c++) sum[c] = 0;
    for (int64_t b = 0; b < g->blocks; b++)
        for (int64_t c = 0; c < n; c++) sum[c] += (double)rows[b * channels + first + c];
}

static void put_vector(const norm *g, int out, const float *rows)
{
    int64_t channels = g->s.groups * g->s.channels;
    float *to = g->call->out[out] ? g->call->out[out]->data : NULL;
    double sum[JOINED];
    for (int64_t first = 0; to && first < channels; first += JOINED) {
        int64_t n = TERN__MIN(channels - first, JOINED);
        group_norm_join(g, rows, first, n, sum);
        for (int64_t c = 0; c < n; c++)
            to[first + c] = (float)(g->call->add[out] ? (double)to[first + c] + sum[c] : sum[c]);
    }
}

static int open_sums(norm *g)
{
    int64_t n = g->s.samples, channels = g->s.groups * g->s.channels;
    g->span = TERN__MAX(TERN__MIN((n + BLOCKS - 1) / BLOCKS, SPAN), 1);
    g->blocks = (n + g->span - 1) / g->span;
    g->dw = tern__loop_scratch(g->call, (size_t)TERN__MAX(2 * g->blocks * channels, 1) * sizeof(*g->dw));
    g->db = g->dw ? g->dw + g->blocks * channels : NULL;
    return g->dw ? TERN_OK : TERN_E_MEMORY;
}

int tern__cpu_group_norm_grad(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_group_norm(call);
    const tern__view *x = call->in[1];
    norm g = group_norm_of(call, x);
    if (tern__view_is_half(x)) return tern__cpu_widened(call, tern__cpu_group_norm_grad);
    if (!group_norm_is_taken(x) || !group_norm_is_taken(call->in[0]) || !group_norm_is_taken(call->out[0]))
        return TERN_E_UNSUPPORTED;
    if (open_sums(&g)) return TERN_E_MEMORY;
    int64_t items = g.blocks * g.s.groups;
    int threads = tern__loop_threads(call, tern__view_count(x));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < items; i++) backward_item(&g, i);
    put_vector(&g, 1, g.dw);
    put_vector(&g, 2, g.db);
    return TERN_OK;
}
