/* group_norm.c - group norm row by row (kernels/group_norm.h), in f32.
 *
 * Statistics: a chunk of a row, which stays in the first-level cache, is read twice, for its mean and for
 * the deviations from it; so nothing cancels and every lane sums few values. Chunks are merged in double:
 * the second moments of n1 and n2 values with means m1 and m2 add up to M1 + M2 + (m2 - m1)^2 n1 n2 / (n1
 * + n2).
 *
 * Backward, with d = w dy and c = x - mean: a row gives sum(d) and sum(d c), and then dx = inverse (d -
 * sum(d) / n - c inverse^2 sum(d c) / n). Meanwhile every channel's sum(dy) and sum(dy c) inverse are
 * added to the gradients of bias and weight. These are summed per block of samples; blocks do not depend
 * on the number of threads and are added in double in order, so results are always bitwise the same. */
#include "kernels/group_norm.h"
#include "kernels/cpu/f64_norm.h"
#include "kernels/cpu/group_norm_sums.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widen.h"

#include <math.h>
#include <string.h>

#define CHUNK  TERN__GROUP_CHUNK
#define BLOCKS 16  /* least blocks of samples, if there are so many ... */
#define SPAN   128 /* ... and at most so many samples per block */
#define JOINED 256 /* channels at a time */

typedef struct norm {
    const tern__call *call;
    tern__group_shape s;
    const tern__group_sums_fns *sums;
    float *dw, *db;       /* backward: a row of all channels per block */
    int64_t span, blocks; /* samples of a block */
} norm;

static bool is_taken(const tern__view *view)
{
    return !view || (view->dtype == TERN_F32 && tern__view_is_contiguous(view));
}

static const float *data_of(const tern__view *view, int64_t at)
{
    return view ? (const float *)view->data + at : NULL;
}

/* The row's first channel. */
static int64_t first_channel(const tern__group_shape *s, int64_t row)
{
    return row % s->groups * s->channels;
}

/* ---- forward ---- */

static void moments(const norm *g, const float *x, int64_t n, double *mean, double *m2)
{
    *mean = *m2 = 0;
    for (int64_t first = 0; first < n; first += CHUNK) {
        double have = (double)first, count = (double)TERN__MIN(n - first, CHUNK), centre, square;
        g->sums->moments(x + first, (int64_t)count, &centre, &square);
        double step = centre - *mean, share = count / (have + count);
        *mean += step * share;
        *m2 += square + step * step * have * share;
    }
}

TERN__SIMD static void apply_channels(float *y, const float *x, const float *w, const float *b, int64_t n,
                                      float mean, float inverse)
{
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * (w ? inverse * w[i] : inverse) + (b ? b[i] : 0);
}

TERN__SIMD static void apply_planes(float *y, const float *x, const float *w, const float *b,
                                    const tern__group_shape *s, float mean, float inverse)
{
    int64_t positions = s->positions;
    for (int64_t k = 0; k < s->channels; k++) {
        float scale = w ? inverse * w[k] : inverse, bias = b ? b[k] : 0;
        for (int64_t i = k * positions; i < (k + 1) * positions; i++) y[i] = (x[i] - mean) * scale + bias;
    }
}

static void forward_row(const norm *g, int64_t row)
{
    const tern__view *const *in = g->call->in, *const *out = g->call->out;
    int64_t n = g->s.size, channel = first_channel(&g->s, row);
    const float *x = data_of(in[0], row * n), *w = data_of(in[1], channel), *b = data_of(in[2], channel);
    float *y = (float *)out[0]->data + row * n;
    double mean, m2;
    moments(g, x, n, &mean, &m2);
    double inverse = 1 / sqrt(m2 / (double)n + ((const tern__group_norm_attr *)g->call->attr)->eps);
    if (g->s.positions == 1)
        apply_channels(y, x, w, b, n, (float)mean, (float)inverse);
    else
        apply_planes(y, x, w, b, &g->s, (float)mean, (float)inverse);
    ((float *)out[1]->data)[row] = (float)mean;
    ((float *)out[2]->data)[row] = (float)inverse;
}

int tern__cpu_group_norm(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_group_norm(call);
    const tern__view *x = call->in[0];
    norm g = {.call = call, .s = tern__group_shape_of(x), .sums = TERN__BY_WIDTH(tern__group_sums)};
    if (tern__view_is_half(x)) return tern__cpu_widened(call, tern__cpu_group_norm);
    if (call->add[0] || !is_taken(x) || !is_taken(call->out[0])) return TERN_E_UNSUPPORTED;
    int64_t rows = g.s.samples * g.s.groups;
    int threads = tern__loop_threads(call, rows * g.s.size);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) forward_row(&g, row);
    return TERN_OK;
}

/* ---- backward ---- */

/* Terms of a row: dx = d * scale - c * slope - shift, with d = w dy and c = x - mean. */
typedef struct line {
    float mean, scale, slope, shift;
} line;

/* sum(d) and sum(d c) of a row of channels with several positions; every channel's part is added to dw and
 * db. */
static void plane_sums(const norm *g, const tern__group_row *row, float *dw, float *db, double result[2])
{
    int64_t n = g->s.positions;
    result[0] = result[1] = 0;
    for (int64_t k = 0; k < g->s.channels; k++) {
        double plane[2], weight = row->w ? (double)row->w[k] : 1;
        g->sums->positions(row->dy + k * n, row->x + k * n, n, row->mean, plane);
        db[k] += (float)plane[0];
        dw[k] += (float)(plane[1] * (double)row->inverse);
        result[0] += weight * plane[0];
        result[1] += weight * plane[1];
    }
}

/* dx may overwrite dy. */
TERN__SIMD static void data_grad_of_channels(float *dx, const float *dy, const float *x, const float *w,
                                             int64_t n, const line *l, bool add)
{
    float mean = l->mean, scale = l->scale, slope = l->slope, shift = l->shift;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        float v = (w ? dy[i] * w[i] : dy[i]) * scale - (x[i] - mean) * slope - shift;
        dx[i] = add ? dx[i] + v : v;
    }
}

TERN__SIMD static void data_grad_of_planes(float *dx, const float *dy, const float *x, const float *w,
                                           const tern__group_shape *s, const line *l, bool add)
{
    float mean = l->mean, slope = l->slope, shift = l->shift;
    for (int64_t k = 0; k < s->channels; k++) {
        float scale = w ? w[k] * l->scale : l->scale;
#pragma GCC ivdep
        for (int64_t i = k * s->positions; i < (k + 1) * s->positions; i++) {
            float v = dy[i] * scale - (x[i] - mean) * slope - shift;
            dx[i] = add ? dx[i] + v : v;
        }
    }
}

static void backward_row(const norm *g, int64_t row, float *dw, float *db)
{
    const tern__view *const *in = g->call->in, *dx = g->call->out[0];
    int64_t n = g->s.size;
    const float *dy = data_of(in[0], row * n), *x = data_of(in[1], row * n);
    const float *w = data_of(in[4], first_channel(&g->s, row));
    float mean = *data_of(in[2], row), inverse = *data_of(in[3], row);
    tern__group_row r = {dy, x, w, n, mean, inverse};
    double sum[2];
    if (g->s.positions == 1)
        g->sums->channels(&r, dw, db, sum);
    else
        plane_sums(g, &r, dw, db, sum);
    double scale = (double)inverse, mean_d = sum[0] / (double)n, mean_dc = sum[1] / (double)n;
    line l = {mean, inverse, (float)(scale * scale * scale * mean_dc), (float)(scale * mean_d)};
    if (!dx) return;
    float *to = (float *)dx->data + row * n;
    if (g->s.positions == 1)
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
        backward_row(g, n * g->s.groups + group, g->dw + at, g->db + at);
}

/* Sums the blocks' rows, from channel `first` on. */
TERN__SIMD static void join(const norm *g, const float *rows, int64_t first, int64_t n, double sum[JOINED])
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
        join(g, rows, first, n, sum);
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
    norm g = {.call = call, .s = tern__group_shape_of(x), .sums = TERN__BY_WIDTH(tern__group_sums)};
    if (tern__view_is_half(x)) return tern__cpu_widened(call, tern__cpu_group_norm_grad);
    if (!is_taken(x) || !is_taken(call->in[0]) || !is_taken(call->out[0])) return TERN_E_UNSUPPORTED;
    if (open_sums(&g)) return TERN_E_MEMORY;
    int64_t items = g.blocks * g.s.groups;
    int threads = tern__loop_threads(call, tern__view_count(x));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < items; i++) backward_item(&g, i);
    put_vector(&g, 1, g.dw);
    put_vector(&g, 2, g.db);
    return TERN_OK;
}
