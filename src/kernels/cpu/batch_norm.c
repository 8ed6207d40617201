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
 *
 * Activations are f32, bf16 or f16, all of one dtype, which are read into f32 and rounded from it in
 * registers; what is one number a channel may have any dtype, mean and variance f32. */
#include "kernels/batch_norm.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/tiles.h"

#include <math.h>

#define LANES TERN__LANES
#define BLOCK 64

/* `name`, which is inlined, with 16 lanes and the dtype as constants, or with whatever there is. */
#define EACH_KIND(name, s, dtype, ...)                                                                       \
    do {                                                                                                     \
        if ((s)->lanes != LANES)                                                                             \
            name(__VA_ARGS__, (s)->lanes, dtype);                                                            \
        else if (dtype == TERN_F32)                                                                          \
            name(__VA_ARGS__, LANES, TERN_F32);                                                              \
        else if (dtype == TERN_BF16)                                                                         \
            name(__VA_ARGS__, LANES, TERN_BF16);                                                             \
        else                                                                                                 \
            name(__VA_ARGS__, LANES, TERN_F16);                                                              \
    } while (0)

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

/* Activations without gaps that stand as x does. */
static bool stands_as(const tern__view *view, const tern__view *x)
{
    return !view || (view->dtype == x->dtype && view->layout == x->layout && tern__view_is_dense(view));
}

static bool takes(const tern__view *x)
{
    return x->dtype != TERN_F64 && stands_as(x, x);
}

static bool is_f32(const tern__view *vector)
{
    return vector->dtype == TERN_F32 && tern__view_is_contiguous(vector);
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

TERN__INLINE void moments_of(const void *x, const tern__strip *s, const float *from, double sum[LANES],
                             double square[LANES], int lanes, tern_dtype dtype)
{
    tern__lanes shift = tern__lanes_load(from, lanes);
    for (int64_t first = 0; first < s->rows; first += BLOCK) {
        int64_t last = TERN__MIN(s->rows, first + BLOCK);
        tern__lanes a = {0}, b = {0};
        for (int64_t r = first; r < last; r++) {
            tern__lanes d = tern__lanes_get(x, dtype, s->at + r * s->stride, lanes) - shift;
            a += d;
            b += d * d;
        }
        add_lanes(sum, a);
        add_lanes(square, b);
    }
}

/* sum and square += sum(d), sum(d * d). */
TERN__SIMD static void moments(const tern__view *x, const tern__strip *s, const float shift[LANES],
                               double sum[LANES], double square[LANES])
{
    EACH_KIND(moments_of, s, x->dtype, x->data, s, shift, sum, square);
}

/* The mean of the tile's first rows, channel by channel. */
static void shift_of(const tern__view *x, const tern__tile *t, float shift[LANES])
{
    tern__strip head = t->strips[0];
    head.rows = TERN__MIN(head.rows, BLOCK);
    double sum[LANES] = {0}, square[LANES] = {0}, channel[LANES];
    moments(x, &head, (const float[LANES]){0}, sum, square);
    gather(channel, t, sum);
    int64_t count = t->channels > 1 ? head.rows : head.rows * head.lanes;
    for (int l = 0; l < LANES; l++)
        shift[l] = (float)(channel[TERN__MIN(l, t->channels - 1)] / (double)count);
}

static void tile_moments(const tern__call *call, const tern__tile *t, void *ctx)
{
    const partial *out = ctx;
    const tern__view *x = call->in[0];
    double sum[LANES] = {0}, square[LANES] = {0}, n = (double)t->count;
    float shift[LANES];
    shift_of(x, t, shift);
    for (int i = 0; i < 2; i++) moments(x, &t->strips[i], shift, sum, square);
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
    if (running) tern__view_set(running, c, (1 - share) * tern__view_get(running, c) + share * value);
}

int tern__cpu_batch_norm_stats(const tern__call *call)
{
    const tern__view *x = call->in[0];
    const tern__batch_norm_attr *attr = call->attr;
    if (!takes(x) || tern__view_count(x) == 0) return TERN_E_UNSUPPORTED;
    tern__tiling s = tern__tiling_of(x);
    partial sums;
    if (partial_new(call, &s, &sums)) return TERN_E_MEMORY;
    tern__tiles_each(call, &s, tile_moments, &sums, false);
    merge(&sums, &s);
    const double *mean = sums.first + s.tiles * s.channels, *m2 = sums.second + s.tiles * s.channels;
    double n = (double)(s.batch * s.positions);
    for (int64_t c = 0; c < s.channels; c++) {
        tern__view_set(call->out[0], c, mean[c]);
        tern__view_set(call->out[1], c, m2[c] / n);
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
    return vector ? (float)tern__view_get(vector, c) : fallback;
}

static double inverse_deviation(const tern__call *call, const tern__view *var, int64_t c)
{
    return 1 / sqrt((double)value_of(var, c, 0) + ((const tern__batch_norm_attr *)call->attr)->eps);
}

TERN__INLINE void apply_to(const tern__call *call, const tern__strip *s, const tern__lanes k[3], int lanes,
                           tern_dtype dtype)
{
    const void *x = call->in[0]->data, *residual = call->in[5] ? call->in[5]->data : NULL;
    void *y = call->out[0]->data;
    bool relu = ((const tern__batch_norm_attr *)call->attr)->relu != 0;
    tern__lanes mean = k[0], scale = k[1], bias = k[2];
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t at = s->at + r * s->stride;
        tern__lanes v = (tern__lanes_get(x, dtype, at, lanes) - mean) * scale + bias;
        if (residual) v += tern__lanes_get(residual, dtype, at, lanes);
        if (relu) v = tern__lanes_relu(v);
        tern__lanes_set(y, dtype, at, v, lanes, false);
    }
}

TERN__SIMD static void apply(const tern__call *call, const tern__tile *t, const tern__strip *s,
                             const affine *a)
{
    const tern__lanes k[3] = {spread(a->mean, t, s), spread(a->scale, t, s), spread(a->bias, t, s)};
    EACH_KIND(apply_to, s, call->in[0]->dtype, call, s, k);
}

static void tile_apply(const tern__call *call, const tern__tile *t, void *ctx)
{
    for (int i = 0; i < 2; i++) apply(call, t, &t->strips[i], ctx);
}

int tern__cpu_batch_norm_apply(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (!takes(x) || !stands_as(y, x) || !stands_as(call->in[5], x) || call->add[0])
        return TERN_E_UNSUPPORTED;
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
TERN__INLINE tern__lanes masked(const void *dy, const void *y, int64_t at, int lanes, tern_dtype dtype)
{
    tern__lanes v = tern__lanes_get(dy, dtype, at, lanes);
    return y ? tern__lanes_passed(tern__lanes_get(y, dtype, at, lanes), v) : v;
}

static void *data_of(const tern__view *view)
{
    return view ? view->data : NULL;
}

TERN__INLINE void sums_of(const tern__call *call, const tern__strip *s, const tern__lanes *from,
                          double sum[LANES], double product[LANES], int lanes, tern_dtype dtype)
{
    const void *dy = call->in[0]->data, *x = call->in[1]->data, *y = data_of(call->in[2]);
    tern__lanes mean = *from;
    for (int64_t first = 0; first < s->rows; first += BLOCK) {
        int64_t last = TERN__MIN(s->rows, first + BLOCK);
        tern__lanes a = {0}, b = {0};
        for (int64_t r = first; r < last; r++) {
            int64_t at = s->at + r * s->stride;
            tern__lanes d = masked(dy, y, at, lanes, dtype);
            a += d;
            b += d * (tern__lanes_get(x, dtype, at, lanes) - mean);
        }
        add_lanes(sum, a);
        add_lanes(product, b);
    }
}

TERN__SIMD static void sums(const tern__call *call, const tern__tile *t, const tern__strip *s,
                            double sum[LANES], double product[LANES])
{
    tern__lanes mean = spread(call->in[3]->data, t, s);
    EACH_KIND(sums_of, s, call->in[1]->dtype, call, s, &mean, sum, product);
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
    const tern__view *to = call->out[out];
    if (to) tern__view_set(to, c, call->add[out] ? tern__view_get(to, c) + value : value);
}

int tern__cpu_batch_norm_sums(const tern__call *call)
{
    const tern__view *x = call->in[1];
    if (!takes(x) || !stands_as(call->in[0], x) || !stands_as(call->in[2], x) || !is_f32(call->in[3]) ||
        tern__view_count(x) == 0)
        return TERN_E_UNSUPPORTED;
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

TERN__INLINE void data_grad_of(const tern__call *call, const tern__strip *s, const tern__lanes k[4],
                               int lanes, tern_dtype dtype)
{
    const void *dy = call->in[0]->data, *x = call->in[1]->data, *y = data_of(call->in[2]);
    void *dx = data_of(call->out[0]), *residual = data_of(call->out[1]);
    tern__lanes mean = k[0], scale = k[1], mean_dy = k[2], slope = k[3];
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t at = s->at + r * s->stride;
        tern__lanes d = masked(dy, y, at, lanes, dtype);
        tern__lanes v = d - mean_dy - (tern__lanes_get(x, dtype, at, lanes) - mean) * slope;
        if (dx) tern__lanes_set(dx, dtype, at, scale * v, lanes, call->add[0]);
        if (residual) tern__lanes_set(residual, dtype, at, d, lanes, call->add[1]);
    }
}

TERN__SIMD static void data_grad(const tern__call *call, const tern__tile *t, const tern__strip *s,
                                 const line *l)
{
    const tern__lanes k[4] = {spread(l->mean, t, s), spread(l->scale, t, s), spread(l->mean_dy, t, s),
                              spread(l->slope, t, s)};
    EACH_KIND(data_grad_of, s, call->in[1]->dtype, call, s, k);
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
    bool fit = takes(x) && stands_as(call->in[0], x) && stands_as(call->in[2], x) &&
               stands_as(call->out[0], x) && stands_as(call->out[1], x);
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
