/* batch_norm.c - batch norm as vector loops over tiles (tiles.h).
 *
 * Statistics: within a tile each lane sums d and d * d with d = x - shift, where shift is the mean of the
 * tile's first rows; that close to the tile's mean nothing cancels, and one pass over memory is enough. At
 * most BLOCK rows are summed in f32, the rest in double. A tile gives its mean and its centred second moment,
 * and the tiles of a channel are merged in double: mean = sum(n_t mean_t) / n, then M2 = sum(M2_t + n_t
 * (mean_t - mean)^2). Tiles do not depend on the number of threads and are merged in their order: the same
 * bits always.
 *
 * Backward: tiles give sum(dy') and sum(dy' (x - mean)), with dy' = dy where y > 0; then one more pass makes
 *     dx = weight / sigma * (dy' - sum(dy') / n - (x - mean) / sigma^2 * sum(dy' (x - mean)) / n).
 * Each second pass runs from the end to the beginning, where the cache still holds what the first read last.
 */
#include "kernels/batch_norm.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/widen.h"

#include <math.h>

#define LANES TERN__LANES
#define BLOCK 64

/* Each channel's value in the lanes that belong to it; 0 in those that the strip has not. */
TERN__INLINE tern__lanes spread(const float *values, const tern__tile *t, const tern__strip *s)
{
    if (t->channels == s->lanes) return tern__lanes_load(values + t->channel, s->lanes);
    tern__lanes v = {0};
    for (int l = 0; l < s->lanes; l++) v[l] = values[t->channel];
    return v;
}

/* One value a channel: what the lanes hold, or its sum where they hold positions of one channel. */
static void gather(double *to, const tern__tile *t, const double lanes[LANES])
{
    if (t->channels > 1) {
        memcpy(to, lanes, (size_t)t->channels * sizeof(*to));
        return;
    }
    *to = 0;
    for (int l = 0; l < LANES; l++) *to += lanes[l];
}

static bool is_vector(const tern__view *view)
{
    return !view || (view->dtype == TERN_F32 && tern__view_is_contiguous(view));
}

/* ---- statistics ---- */

/* What the tiles sum: a row of one value a channel for each tile of a channel, and after them a row of
 * totals. */
typedef struct partial {
    double *first, *second;
    int64_t tiles, channels;
} partial;

static int partial_new(const tern__call *call, const tern__tiling *s, partial *sums)
{
    int64_t size = (s->tiles + 1) * s->channels;
    double *data = tern__loop_scratch(call, (size_t)(2 * size) * sizeof(*data));
    *sums = (partial){data, data + size, s->tiles, s->channels};
    return data ? TERN_OK : TERN_E_MEMORY;
}

TERN__INLINE void add_lanes(double to[LANES], tern__lanes from)
{
    for (int l = 0; l < LANES; l++) to[l] += (double)from[l];
}

TERN__INLINE void moments_of(const float *x, const tern__strip *s, int lanes, tern__lanes shift,
                             double sum[LANES], double square[LANES])
{
    for (int64_t first = 0; first < s->rows; first += BLOCK) {
        int64_t last = TERN__MIN(s->rows, first + BLOCK);
        tern__lanes a = {0}, b = {0};
        for (int64_t r = first; r < last; r++) {
            tern__lanes d = tern__lanes_load(x + r * s->stride, lanes) - shift;
            a += d;
            b += d * d;
        }
        add_lanes(sum, a);
        add_lanes(square, b);
    }
}

/* sum and square += sum(d), sum(d * d). */
TERN__SIMD static void moments(const float *x, const tern__strip *s, const float shift[LANES],
                               double sum[LANES], double square[LANES])
{
    if (s->lanes == LANES)
        moments_of(x, s, LANES, tern__lanes_load(shift, LANES), sum, square);
    else
        moments_of(x, s, s->lanes, tern__lanes_load(shift, s->lanes), sum, square);
}

/* The mean of the tile's first rows, channel by channel. */
static void shift_of(const float *x, const tern__tile *t, float shift[LANES])
{
    tern__strip head = t->strips[0];
    head.rows = TERN__MIN(head.rows, BLOCK);
    double sum[LANES] = {0}, square[LANES] = {0}, channel[LANES];
    moments(x + head.at, &head, (const float[LANES]){0}, sum, square);
    gather(channel, t, sum);
    int64_t count = t->channels > 1 ? head.rows : head.rows * head.lanes;
    for (int l = 0; l < LANES; l++)
        shift[l] = (float)(channel[TERN__MIN(l, t->channels - 1)] / (double)count);
}

static void tile_moments(const tern__call *call, const tern__tile *t, void *ctx)
{
    const partial *out = ctx;
    const float *x = call->in[0]->data;
    double sum[LANES] = {0}, square[LANES] = {0}, n = (double)t->count;
    float shift[LANES];
    shift_of(x, t, shift);
    for (int i = 0; i < 2; i++) moments(x + t->strips[i].at, &t->strips[i], shift, sum, square);
    double *mean = out->first + t->number * out->channels + t->channel;
    double *m2 = out->second + t->number * out->channels + t->channel;
    gather(mean, t, sum);
    gather(m2, t, square);
    for (int c = 0; c < t->channels; c++) {
        m2[c] -= mean[c] * mean[c] / n;
        mean[c] = (double)shift[c] + mean[c] / n;
    }
}

/* totals += rows, channel by channel. */
TERN__SIMD static void add_rows(double *totals, const double *rows, int64_t tiles, int64_t channels)
{
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t c = 0; c < channels; c++) totals[c] += rows[t * channels + c];
}

TERN__SIMD static void add_weighted(double *total, const double *row, double weight, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++) total[c] += weight * row[c];
}

TERN__SIMD static void add_centred(double *total, const double *m2, const double *mean, const double *centre,
                                   double weight, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++) {
        double d = mean[c] - centre[c];
        total[c] += m2[c] + weight * d * d;
    }
}

static double count_of(const tern__tiling *s, int64_t number)
{
    int64_t first = number % s->parts * s->per_part;
    return (double)TERN__MIN(s->per_part, s->positions - first);
}

/* The rows of totals become mean and M2 of each channel. */
static void merge(const partial *sums, const tern__tiling *s)
{
    int64_t channels = s->channels;
    double *mean = sums->first + s->tiles * channels, *m2 = sums->second + s->tiles * channels;
    memset(mean, 0, (size_t)channels * sizeof(*mean));
    memset(m2, 0, (size_t)channels * sizeof(*m2));
    for (int64_t t = 0; t < s->tiles; t++)
        add_weighted(mean, sums->first + t * channels, count_of(s, t), channels);
    for (int64_t c = 0; c < channels; c++) mean[c] /= (double)(s->batch * s->positions);
    for (int64_t t = 0; t < s->tiles; t++)
        add_centred(m2, sums->second + t * channels, sums->first + t * channels, mean, count_of(s, t),
                    channels);
}

static void move_towards(const tern__view *running, int64_t c, double value, double share)
{
    float *at = running ? (float *)running->data + c : NULL;
    if (at) *at = (float)((1 - share) * (double)*at + share * value);
}

/* Running statistics of 16 bits, which would not be read before they are written. */
static bool keeps_halves(const tern__call *call)
{
    return (call->out[2] && tern__is_half(call->out[2])) || (call->out[3] && tern__is_half(call->out[3]));
}

int tern__cpu_batch_norm_stats(const tern__call *call)
{
    const tern__view *x = call->in[0];
    const tern__batch_norm_attr *attr = call->attr;
    if (tern__is_half(x) && keeps_halves(call)) return TERN_E_UNSUPPORTED;
    if (tern__is_half(x)) return tern__cpu_widened(call, tern__cpu_batch_norm_stats);
    if (!tern__is_dense(x, x) || tern__view_count(x) == 0) return TERN_E_UNSUPPORTED;
    for (int i = 0; i < 4; i++)
        if (!is_vector(call->out[i])) return TERN_E_UNSUPPORTED;
    tern__tiling s = tern__tiling_of(x);
    partial sums;
    if (partial_new(call, &s, &sums)) return TERN_E_MEMORY;
    tern__tiles_each(call, &s, tile_moments, &sums, false);
    merge(&sums, &s);
    const double *mean = sums.first + s.tiles * s.channels, *m2 = sums.second + s.tiles * s.channels;
    double n = (double)(s.batch * s.positions);
    for (int64_t c = 0; c < s.channels; c++) {
        ((float *)call->out[0]->data)[c] = (float)mean[c];
        ((float *)call->out[1]->data)[c] = (float)(m2[c] / n);
        move_towards(call->out[2], c, mean[c], attr->momentum);
        move_towards(call->out[3], c, m2[c] / (n - 1), attr->momentum);
    }
    return TERN_OK;
}

/* ---- y = act((x - mean) * scale + bias + residual) ---- */

/* One value a channel each. */
typedef struct affine {
    float *mean, *scale, *bias;
} affine;

static float value_of(const tern__view *vector, int64_t c, float fallback)
{
    return vector ? ((const float *)vector->data)[c] : fallback;
}

static double inverse_deviation(const tern__call *call, const tern__view *var, int64_t c)
{
    return 1 / sqrt((double)value_of(var, c, 0) + ((const tern__batch_norm_attr *)call->attr)->eps);
}

TERN__INLINE void apply_to(const tern__call *call, const tern__strip *s, int lanes, const tern__lanes k[3])
{
    const float *x = (const float *)call->in[0]->data + s->at;
    const float *residual = call->in[5] ? (const float *)call->in[5]->data + s->at : NULL;
    float *y = (float *)call->out[0]->data + s->at;
    bool relu = ((const tern__batch_norm_attr *)call->attr)->relu != 0;
    tern__lanes mean = k[0], scale = k[1], bias = k[2];
    for (int64_t r = 0; r < s->rows; r++) {
        tern__lanes v = (tern__lanes_load(x + r * s->stride, lanes) - mean) * scale + bias;
        if (residual) v += tern__lanes_load(residual + r * s->stride, lanes);
        if (relu) v = tern__lanes_relu(v);
        tern__lanes_store(y + r * s->stride, v, lanes);
    }
}

TERN__SIMD static void apply(const tern__call *call, const tern__tile *t, const tern__strip *s,
                             const affine *a)
{
    const tern__lanes k[3] = {spread(a->mean, t, s), spread(a->scale, t, s), spread(a->bias, t, s)};
    if (s->lanes == LANES)
        apply_to(call, s, LANES, k);
    else
        apply_to(call, s, s->lanes, k);
}

static void tile_apply(const tern__call *call, const tern__tile *t, void *ctx)
{
    for (int i = 0; i < 2; i++) apply(call, t, &t->strips[i], ctx);
}

int tern__cpu_batch_norm_apply(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (tern__is_half(x)) return tern__cpu_widened(call, tern__cpu_batch_norm_apply);
    if (!tern__is_dense(x, y) || !tern__is_dense(y, y) || !tern__is_dense(call->in[5], y) || call->add[0])
        return TERN_E_UNSUPPORTED;
    for (int i = 1; i < 5; i++)
        if (!is_vector(call->in[i])) return TERN_E_UNSUPPORTED;
    if (tern__view_count(x) == 0) return TERN_OK;
    tern__tiling s = tern__tiling_of(x);
    float *data = tern__loop_scratch(call, (size_t)(3 * s.channels) * sizeof(*data));
    if (!data) return TERN_E_MEMORY;
    affine a = {data, data + s.channels, data + 2 * s.channels};
    for (int64_t c = 0; c < s.channels; c++) {
        a.mean[c] = value_of(call->in[1], c, 0);
        a.scale[c] = (float)(inverse_deviation(call, call->in[2], c) * (double)value_of(call->in[3], c, 1));
        a.bias[c] = value_of(call->in[4], c, 0);
    }
    tern__tiles_each(call, &s, tile_apply, &a, true);
    return TERN_OK;
}

/* ---- backward ---- */

/* dy where the ReLU let something through. */
TERN__INLINE tern__lanes masked(const float *dy, const float *y, int64_t at, int lanes)
{
    tern__lanes v = tern__lanes_load(dy + at, lanes);
    return y ? tern__lanes_passed(tern__lanes_load(y + at, lanes), v) : v;
}

static float *at_strip(const tern__view *view, const tern__strip *s)
{
    return view ? (float *)view->data + s->at : NULL;
}

TERN__INLINE void sums_of(const tern__call *call, const tern__strip *s, int lanes, tern__lanes mean,
                          double sum[LANES], double product[LANES])
{
    const float *dy = at_strip(call->in[0], s), *x = at_strip(call->in[1], s), *y = at_strip(call->in[2], s);
    for (int64_t first = 0; first < s->rows; first += BLOCK) {
        int64_t last = TERN__MIN(s->rows, first + BLOCK);
        tern__lanes a = {0}, b = {0};
        for (int64_t r = first; r < last; r++) {
            tern__lanes d = masked(dy, y, r * s->stride, lanes);
            a += d;
            b += d * (tern__lanes_load(x + r * s->stride, lanes) - mean);
        }
        add_lanes(sum, a);
        add_lanes(product, b);
    }
}

TERN__SIMD static void sums(const tern__call *call, const tern__tile *t, const tern__strip *s,
                            double sum[LANES], double product[LANES])
{
    tern__lanes mean = spread(call->in[3]->data, t, s);
    if (s->lanes == LANES)
        sums_of(call, s, LANES, mean, sum, product);
    else
        sums_of(call, s, s->lanes, mean, sum, product);
}

static void tile_sums(const tern__call *call, const tern__tile *t, void *ctx)
{
    const partial *out = ctx;
    double sum[LANES] = {0}, product[LANES] = {0};
    for (int i = 0; i < 2; i++) sums(call, t, &t->strips[i], sum, product);
    gather(out->first + t->number * out->channels + t->channel, t, sum);
    gather(out->second + t->number * out->channels + t->channel, t, product);
}

static void put(const tern__call *call, int out, int64_t c, double value)
{
    float *at = call->out[out] ? (float *)call->out[out]->data + c : NULL;
    if (at) *at = (float)(call->add[out] ? (double)*at + value : value);
}

int tern__cpu_batch_norm_sums(const tern__call *call)
{
    const tern__view *x = call->in[1];
    if (tern__is_half(x)) return tern__cpu_widened(call, tern__cpu_batch_norm_sums);
    if (!tern__is_dense(x, x) || !tern__is_dense(call->in[0], x) || !tern__is_dense(call->in[2], x) ||
        tern__view_count(x) == 0)
        return TERN_E_UNSUPPORTED;
    for (int i = 0; i < 4; i++)
        if (!is_vector(call->out[i])) return TERN_E_UNSUPPORTED;
    if (!is_vector(call->in[3]) || !is_vector(call->in[4])) return TERN_E_UNSUPPORTED;
    tern__tiling s = tern__tiling_of(x);
    partial parts;
    if (partial_new(call, &s, &parts)) return TERN_E_MEMORY;
    tern__tiles_each(call, &s, tile_sums, &parts, false);
    double *sum = parts.first + s.tiles * s.channels, *product = parts.second + s.tiles * s.channels;
    memset(sum, 0, (size_t)s.channels * sizeof(*sum));
    memset(product, 0, (size_t)s.channels * sizeof(*product));
    add_rows(sum, parts.first, s.tiles, s.channels);
    add_rows(product, parts.second, s.tiles, s.channels);
    for (int64_t c = 0; c < s.channels; c++) {
        double scaled = product[c] * inverse_deviation(call, call->in[4], c);
        for (int i = 0; i < 4; i++) put(call, i, c, i % 2 ? scaled : sum[c]);
    }
    return TERN_OK;
}

/* What a channel's dx is made of: scale * (dy' - mean_dy - (x - mean) * slope). */
typedef struct line {
    float *mean, *scale, *mean_dy, *slope;
} line;

TERN__INLINE void data_grad_of(const tern__call *call, const tern__strip *s, int lanes,
                               const tern__lanes k[4])
{
    const float *dy = at_strip(call->in[0], s), *x = at_strip(call->in[1], s), *y = at_strip(call->in[2], s);
    float *dx = at_strip(call->out[0], s), *residual = at_strip(call->out[1], s);
    tern__lanes mean = k[0], scale = k[1], mean_dy = k[2], slope = k[3];
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t at = r * s->stride;
        tern__lanes d = masked(dy, y, at, lanes);
        tern__lanes v = d - mean_dy - (tern__lanes_load(x + at, lanes) - mean) * slope;
        if (dx) tern__lanes_put(dx + at, scale * v, lanes, call->add[0]);
        if (residual) tern__lanes_put(residual + at, d, lanes, call->add[1]);
    }
}

TERN__SIMD static void data_grad(const tern__call *call, const tern__tile *t, const tern__strip *s,
                                 const line *l)
{
    const tern__lanes k[4] = {spread(l->mean, t, s), spread(l->scale, t, s), spread(l->mean_dy, t, s),
                              spread(l->slope, t, s)};
    if (s->lanes == LANES)
        data_grad_of(call, s, LANES, k);
    else
        data_grad_of(call, s, s->lanes, k);
}

static void tile_data_grad(const tern__call *call, const tern__tile *t, void *ctx)
{
    for (int i = 0; i < 2; i++) data_grad(call, t, &t->strips[i], ctx);
}

static void fill_line(const tern__call *call, const line *l, int64_t channels)
{
    double n = (double)((const tern__batch_norm_attr *)call->attr)->count;
    for (int64_t c = 0; c < channels; c++) {
        double inverse = inverse_deviation(call, call->in[4], c);
        l->mean[c] = value_of(call->in[3], c, 0);
        l->scale[c] = (float)(inverse * (double)value_of(call->in[5], c, 1));
        l->mean_dy[c] = (float)((double)value_of(call->in[6], c, 0) / n);
        l->slope[c] = (float)((double)value_of(call->in[7], c, 0) * inverse / n);
    }
}

int tern__cpu_batch_norm_data_grad(const tern__call *call)
{
    const tern__view *x = call->in[1];
    if (tern__is_half(x)) return tern__cpu_widened(call, tern__cpu_batch_norm_data_grad);
    bool fit = tern__is_dense(x, x) && tern__is_dense(call->in[0], x) && tern__is_dense(call->in[2], x) &&
               tern__is_dense(call->out[0], x) && tern__is_dense(call->out[1], x);
    for (int i = 3; i < 8; i++) fit = fit && is_vector(call->in[i]);
    if (!fit) return TERN_E_UNSUPPORTED;
    if (tern__view_count(x) == 0) return TERN_OK;
    tern__tiling s = tern__tiling_of(x);
    int64_t c = s.channels;
    float *data = tern__loop_scratch(call, (size_t)(4 * c) * sizeof(*data));
    if (!data) return TERN_E_MEMORY;
    line l = {data, data + c, data + 2 * c, data + 3 * c};
    fill_line(call, &l, c);
    tern__tiles_each(call, &s, tile_data_grad, &l, true);
    return TERN_OK;
}
