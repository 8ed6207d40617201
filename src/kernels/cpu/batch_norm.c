/* batch_norm.c - batch norm as vector loops over tiles (tiles.h): the forward kernels.
 *
 * Statistics: within a tile each lane sums d and d * d with d = x - shift, where shift is the mean of the
 * tile's first rows; that close to the tile's mean nothing cancels, and one pass over memory is enough. At
 * most BLOCK rows are summed in f32, the rest in double. A tile gives its mean and its centred second moment,
 * and the tiles of a channel are merged in double: mean = sum(n_t mean_t) / n, then M2 = sum(M2_t + n_t
 * (mean_t - mean)^2). Tiles do not depend on the number of threads and are merged in their order: the same
 * bits always.
 *
 * Where nothing comes between statistics and use, both are made of one group of channels before the next, so
 * that the second pass finds x in the cache; it runs from the end to the beginning, where the cache still
 * holds what the first read last.
 *
 * Activations are f32, bf16 or f16, all of one dtype, which are read into f32 and rounded from it in
 * registers; what is one number a channel may have any dtype, mean and variance f32. */
#include "kernels/cpu/batch_norm_inner.h"
#include "kernels/cpu/f64_norm.h"

#define HEAD 16 /* rows that a tile's shift is the mean of */

/* A call's operands by their names, and what is computed of a channel. */
typedef struct norm {
    const tern__call *call;
    tern__tiling tiling;
    const tern__view *x, *weight, *bias, *residual, *y, *mean, *var, *running_mean, *running_var;
    partial sums;
    float *centre, *scale, *shift; /* y = act((x - centre) * scale + shift + residual) */
} norm;

/* ---- statistics ---- */

TERN__INLINE void moments_of(const void *x, const tern__strip *s, const float *from, double sum[LANES],
                             double square[LANES], int lanes, tern_dtype dtype)
{
    tern__lanes shift = tern__lanes_load(from, lanes);
    for (int64_t first = 0; first < s->rows; first += BLOCK) {
        int64_t last = TERN__MIN(s->rows, first + BLOCK), r = first;
        tern__lanes a[CHAINS] = {0}, b[CHAINS] = {0};
        for (; r + CHAINS <= last; r += CHAINS) {
#pragma GCC unroll 4
            for (int i = 0; i < CHAINS; i++) {
                tern__lanes d = tern__lanes_get(x, dtype, s->at + (r + i) * s->stride, lanes) - shift;
                a[i] += d;
                b[i] += d * d;
            }
        }
        for (; r < last; r++) {
            tern__lanes d = tern__lanes_get(x, dtype, s->at + r * s->stride, lanes) - shift;
            a[0] += d;
            b[0] += d * d;
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
    head.rows = TERN__MIN(head.rows, HEAD);
    double sum[LANES] = {0}, square[LANES] = {0}, channel[LANES];
    moments(x, &head, (const float[LANES]){0}, sum, square);
    gather(channel, t, sum);
    int64_t count = t->channels > 1 ? head.rows : head.rows * head.lanes;
    for (int l = 0; l < LANES; l++)
        shift[l] = (float)(channel[TERN__MIN(l, t->channels - 1)] / (double)count);
}

static void tile_moments(const tern__tile *t, void *ctx)
{
    const norm *self = ctx;
    const partial *out = &self->sums;
    double sum[LANES] = {0}, square[LANES] = {0}, n = (double)t->count;
    float shift[LANES];
    shift_of(self->x, t, shift);
    for (int i = 0; i < 2; i++) moments(self->x, &t->strips[i], shift, sum, square);
    double *mean = out->first + t->number * out->channels + t->channel;
    double *m2 = out->second + t->number * out->channels + t->channel;
    gather(mean, t, sum);
    gather(m2, t, square);
    for (int c = 0; c < t->channels; c++) {
        m2[c] -= mean[c] * mean[c] / n;
        mean[c] = (double)shift[c] + mean[c] / n;
    }
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

/* The span's totals become mean and M2 of each channel. */
static void merge(const norm *self, const tern__span *span)
{
    const tern__tiling *s = &self->tiling;
    const partial *sums = &self->sums;
    int64_t all = s->channels, from = tern__span_channel(s, span), n = tern__span_channels(s, span);
    double *mean = first_of(sums) + from, *m2 = second_of(sums) + from;
    memset(mean, 0, (size_t)n * sizeof(*mean));
    memset(m2, 0, (size_t)n * sizeof(*m2));
    for (int64_t t = 0; t < s->tiles; t++)
        add_weighted(mean, sums->first + t * all + from, count_of(s, t), n);
    for (int64_t c = 0; c < n; c++) mean[c] /= (double)(s->batch * s->positions);
    for (int64_t t = 0; t < s->tiles; t++)
        add_centred(m2, sums->second + t * all + from, sums->first + t * all + from, mean, count_of(s, t), n);
}

static void make_stats(const tern__span *span, void *ctx)
{
    const norm *self = ctx;
    const tern__tiling *s = &self->tiling;
    double share = ((const tern__batch_norm_attr *)self->call->attr)->momentum;
    double n = (double)(s->batch * s->positions);
    tern__tiles_each(s, span, tile_moments, ctx, false);
    merge(self, span);
    int64_t first = tern__span_channel(s, span), last = first + tern__span_channels(s, span);
    for (int64_t c = first; c < last; c++) {
        double mean = first_of(&self->sums)[c], m2 = second_of(&self->sums)[c];
        tern__view_set(self->mean, c, mean);
        tern__view_set(self->var, c, m2 / n);
        move_towards(self->running_mean, c, mean, share);
        move_towards(self->running_var, c, m2 / (n - 1), share);
    }
}

/* ---- y = act((x - mean) * scale + bias + residual) ---- */

TERN__INLINE void apply_to(const norm *self, const tern__strip *s, const tern__lanes k[3], int lanes,
                           tern_dtype dtype)
{
    const void *x = self->x->data, *residual = self->residual ? self->residual->data : NULL;
    void *y = self->y->data;
    bool relu = ((const tern__batch_norm_attr *)self->call->attr)->relu != 0;
    tern__lanes mean = k[0], scale = k[1], bias = k[2];
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t at = s->at + r * s->stride;
        tern__lanes v = affine_of(tern__lanes_get(x, dtype, at, lanes), mean, scale, bias);
        if (residual) v += tern__lanes_get(residual, dtype, at, lanes);
        if (relu) v = tern__lanes_relu(v);
        tern__lanes_set(y, dtype, at, v, lanes, false);
    }
}

TERN__SIMD static void apply(const norm *self, const tern__tile *t, const tern__strip *s)
{
    const tern__lanes k[3] = {spread(self->centre, t, s), spread(self->scale, t, s),
                              spread(self->shift, t, s)};
    EACH_KIND(apply_to, s, self->x->dtype, self, s, k);
}

static void tile_apply(const tern__tile *t, void *ctx)
{
    for (int i = 0; i < 2; i++) apply(ctx, t, &t->strips[i]);
}

static void apply_stats(const tern__span *span, void *ctx)
{
    const norm *self = ctx;
    int64_t first = tern__span_channel(&self->tiling, span);
    int64_t last = first + tern__span_channels(&self->tiling, span);
    for (int64_t c = first; c < last; c++) {
        double inverse = inverse_deviation(self->call, self->var, c);
        self->centre[c] = value_of(self->mean, c, 0);
        self->scale[c] = (float)(inverse * (double)value_of(self->weight, c, 1));
        self->shift[c] = value_of(self->bias, c, 0);
    }
    tern__tiles_each(&self->tiling, span, tile_apply, ctx, true);
}

/* ---- the kernels ---- */

static bool fits(const norm *self)
{
    const tern__view *x = self->x;
    return takes(x) && stands_as(self->y, x) && stands_as(self->residual, x);
}

static int prepare(norm *self)
{
    const tern__call *call = self->call;
    self->tiling = tern__tiling_of(self->x);
    int64_t channels = self->tiling.channels;
    float *vectors = vectors_new(call, &self->tiling, 3);
    if (!vectors || partial_new(call, &self->tiling, &self->sums)) return TERN_E_MEMORY;
    self->centre = vectors;
    self->scale = vectors + channels;
    self->shift = vectors + 2 * channels;
    return TERN_OK;
}

int tern__cpu_batch_norm_stats(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    norm self = {.call = call,
                 .x = call->in[0],
                 .mean = call->out[0],
                 .var = call->out[1],
                 .running_mean = call->out[2],
                 .running_var = call->out[3]};
    if (!fits(&self) || tern__view_count(self.x) == 0) return TERN_E_UNSUPPORTED;
    if (prepare(&self)) return TERN_E_MEMORY;
    tern__span all = tern__span_all(call, &self.tiling);
    make_stats(&all, &self);
    return TERN_OK;
}

int tern__cpu_batch_norm_apply(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    norm self = {.call = call,
                 .x = call->in[0],
                 .mean = call->in[1],
                 .var = call->in[2],
                 .weight = call->in[3],
                 .bias = call->in[4],
                 .residual = call->in[5],
                 .y = call->out[0]};
    if (!fits(&self) || call->add[0]) return TERN_E_UNSUPPORTED;
    if (tern__view_count(self.x) == 0) return TERN_OK;
    if (prepare(&self)) return TERN_E_MEMORY;
    tern__span all = tern__span_all(call, &self.tiling);
    apply_stats(&all, &self);
    return TERN_OK;
}

static void make_and_apply(const tern__span *span, void *ctx)
{
    make_stats(span, ctx);
    apply_stats(span, ctx);
}

int tern__cpu_batch_norm(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    norm self = {.call = call,
                 .x = call->in[0],
                 .weight = call->in[1],
                 .bias = call->in[2],
                 .residual = call->in[3],
                 .y = call->out[0],
                 .mean = call->out[1],
                 .var = call->out[2],
                 .running_mean = call->out[3],
                 .running_var = call->out[4]};
    if (!fits(&self) || call->add[0] || tern__view_count(self.x) == 0) return TERN_E_UNSUPPORTED;
    if (prepare(&self)) return TERN_E_MEMORY;
    tern__spans_each(call, &self.tiling, make_and_apply, &self);
    return TERN_OK;
}
