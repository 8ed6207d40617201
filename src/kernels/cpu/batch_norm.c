/* batch_norm.c - batch norm's forward kernels as vector loops over tiles (tiles.h).
 *
 * Statistics: within a tile each lane sums d and d * d with d = x - shift, where shift is the mean of the
 * tile's first rows. So close to the tile's mean nothing cancels, and one pass over memory is enough. At
 * most 64 rows are summed in f32, the rest in double. A tile gives its mean and its centred second moment.
 * If the squares leave f32's range both are made again in double. The tiles of a channel are merged in
 * double: mean = sum(n_t mean_t) / n, then M2 = sum(M2_t + n_t (mean_t - mean)^2). Tiles do not depend on
 * the number of threads and are merged in order, so results are always bitwise the same.
 *
 * If statistics are used right away, both passes are made for one group of channels before the next, so
 * that the second pass finds x in the cache. It goes from the end to the beginning, since the cache still
 * holds what the first pass read last.
 *
 * Activations are f32, bf16 or f16, all of one dtype, and are converted to f32 and rounded back in
 * registers. Vectors with one number per channel may have any dtype. */
#include "kernels/cpu/batch_norm_inner.h"
#include "kernels/cpu/batch_norm_strips.h"
#include "kernels/cpu/cpu.h"

/* A call's operands by name, and numbers computed per channel. */
typedef struct norm {
    const tern__call *call;
    tern__tiling tiling;
    const tern__batch_norm_fns *strips;
    norm_maps maps;
    const tern__view *weight, *bias, *mean, *var, *running_mean, *running_var;
    partial sums;
} norm;

/* ---- statistics ---- */

/* A tile's moments in double: in a pass for the mean and another for the distances from it. */
static void tile_moments_f64(const norm *self, const tern__tile *t, double *mean, double *m2)
{
    double sum[TERN__BLOCK] = {0}, square[TERN__BLOCK] = {0}, centre[TERN__BLOCK] = {0};
    for (int i = 0; i < 2; i++) self->strips->moments_f64(self->maps.x, &t->strips[i], centre, sum, square);
    gather(mean, t, sum);
    for (int c = 0; c < t->channels; c++) mean[c] /= (double)t->count;
    for (int l = 0; l < TERN__BLOCK; l++) {
        centre[l] = mean[TERN__MIN(l, t->channels - 1)];
        square[l] = 0;
    }
    for (int i = 0; i < 2; i++) self->strips->moments_f64(self->maps.x, &t->strips[i], centre, sum, square);
    gather(m2, t, square);
}

static void tile_moments(const tern__tile *t, void *ctx)
{
    const norm *self = ctx;
    const partial *out = &self->sums;
    double sum[TERN__BLOCK] = {0}, square[TERN__BLOCK] = {0}, n = (double)t->count;
    float shift[TERN__BLOCK];
    self->strips->shift(self->maps.x, t, shift);
    for (int i = 0; i < 2; i++) self->strips->moments(self->maps.x, &t->strips[i], shift, sum, square);
    double *mean = out->first + t->number * out->channels + t->channel;
    double *m2 = out->second + t->number * out->channels + t->channel;
    gather(mean, t, sum);
    gather(m2, t, square);
    bool finite = true;
    for (int c = 0; c < t->channels; c++) {
        m2[c] -= mean[c] * mean[c] / n;
        if (m2[c] < 0) m2[c] = 0; /* rounding */
        mean[c] = (double)shift[c] + mean[c] / n;
        finite &= isfinite(m2[c]) != 0;
    }
    if (!finite) tile_moments_f64(self, t, mean, m2);
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

static double batch_norm_count_of(const tern__tiling *s, int64_t number)
{
    int64_t first = number % s->parts * s->per_part;
    return (double)TERN__MIN(s->per_part, s->positions - first);
}

/* Merges the span's tiles into mean and M2 of each channel. */
static void batch_norm_merge(const norm *self, const tern__span *span)
{
    const tern__tiling *s = &self->tiling;
    const partial *sums = &self->sums;
    int64_t all = s->channels, from = tern__span_channel(s, span), n = tern__span_channels(s, span);
    double *mean = first_of(sums) + from, *m2 = second_of(sums) + from;
    memset(mean, 0, (size_t)n * sizeof(*mean));
    memset(m2, 0, (size_t)n * sizeof(*m2));
    for (int64_t t = 0; t < s->tiles; t++)
        add_weighted(mean, sums->first + t * all + from, batch_norm_count_of(s, t), n);
    for (int64_t c = 0; c < n; c++) mean[c] /= (double)(s->batch * s->positions);
    for (int64_t t = 0; t < s->tiles; t++)
        add_centred(m2, sums->second + t * all + from, sums->first + t * all + from, mean,
                    batch_norm_count_of(s, t), n);
}

static void batch_norm_make_stats(const tern__span *span, void *ctx)
{
    const norm *self = ctx;
    const tern__tiling *s = &self->tiling;
    double share = ((const tern__batch_norm_attr *)self->call->attr)->momentum;
    double n = (double)(s->batch * s->positions);
    tern__tiles_each(s, span, tile_moments, ctx, false);
    batch_norm_merge(self, span);
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

static void tile_apply(const tern__tile *t, void *ctx)
{
    const norm *self = ctx;
    for (int i = 0; i < 2; i++) self->strips->apply(&self->maps, t, &t->strips[i]);
}

static void batch_norm_apply_stats(const tern__span *span, void *ctx)
{
    const norm *self = ctx;
    int64_t first = tern__span_channel(&self->tiling, span);
    int64_t last = first + tern__span_channels(&self->tiling, span);
    const tern__view *const vectors[] = {self->mean, self->var, self->weight, self->bias};
    for (int64_t c = first; c < last; c++) {
        norm_line k = norm_line_of(self->call, vectors, c);
        self->maps.centre[c] = k.centre;
        self->maps.scale[c] = k.scale;
        self->maps.shift[c] = k.shift;
    }
    tern__tiles_each(&self->tiling, span, tile_apply, ctx, true);
}

/* ---- the kernels ---- */

static bool batch_norm_fits(const norm *self)
{
    const tern__view *x = self->maps.x;
    return takes(x) && stands_as(self->maps.y, x) && stands_as(self->maps.residual, x);
}

static int batch_norm_prepare(norm *self)
{
    const tern__call *call = self->call;
    self->strips = TERN__BY_WIDTH(tern__batch_norm_strips);
    self->maps.relu = ((const tern__batch_norm_attr *)call->attr)->relu != 0;
    self->tiling = tern__tiling_of(self->maps.x);
    int64_t channels = self->tiling.channels;
    float *vectors = vectors_new(call, &self->tiling, 3 * sizeof(*vectors));
    if (!vectors || partial_new(call, &self->tiling, &self->sums)) return TERN_E_MEMORY;
    self->maps.centre = vectors;
    self->maps.scale = vectors + channels;
    self->maps.shift = vectors + 2 * channels;
    return TERN_OK;
}

int tern__cpu_batch_norm_stats(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    norm self = {.call = call,
                 .maps.x = call->in[0],
                 .mean = call->out[0],
                 .var = call->out[1],
                 .running_mean = call->out[2],
                 .running_var = call->out[3]};
    if (!batch_norm_fits(&self) || tern__view_count(self.maps.x) == 0) return TERN_E_UNSUPPORTED;
    if (batch_norm_prepare(&self)) return TERN_E_MEMORY;
    tern__span all = tern__span_all(call, &self.tiling);
    batch_norm_make_stats(&all, &self);
    return TERN_OK;
}

int tern__cpu_batch_norm_apply(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    norm self = {.call = call,
                 .maps.x = call->in[0],
                 .mean = call->in[1],
                 .var = call->in[2],
                 .weight = call->in[3],
                 .bias = call->in[4],
                 .maps.residual = call->in[5],
                 .maps.y = call->out[0]};
    if (!batch_norm_fits(&self) || call->add[0]) return TERN_E_UNSUPPORTED;
    if (tern__view_count(self.maps.x) == 0) return TERN_OK;
    if (batch_norm_prepare(&self)) return TERN_E_MEMORY;
    tern__span all = tern__span_all(call, &self.tiling);
    batch_norm_apply_stats(&all, &self);
    return TERN_OK;
}

static void make_and_apply(const tern__span *span, void *ctx)
{
    batch_norm_make_stats(span, ctx);
    batch_norm_apply_stats(span, ctx);
}

int tern__cpu_batch_norm(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    norm self = {.call = call,
                 .maps.x = call->in[0],
                 .weight = call->in[1],
                 .bias = call->in[2],
                 .maps.residual = call->in[3],
                 .maps.y = call->out[0],
                 .mean = call->out[1],
                 .var = call->out[2],
                 .running_mean = call->out[3],
                 .running_var = call->out[4]};
    if (!batch_norm_fits(&self) || call->add[0] || tern__view_count(self.maps.x) == 0)
        return TERN_E_UNSUPPORTED;
    if (batch_norm_prepare(&self)) return TERN_E_MEMORY;
    tern__spans_each(call, &self.tiling, make_and_apply, &self);
    return TERN_OK;
}
