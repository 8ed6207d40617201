/* batch_norm_grad.c - batch norm's gradients as vector loops over tiles (tiles.h).
 *
 * Tiles give sum(dy') and sum(dy' (x - mean)), where dy' = dy if the ReLU's output is positive. A second
 * pass computes dx = weight / sigma * (dy' - sum(dy') / n - (x - mean) / sigma^2 * sum(dy' (x - mean)) /
 * n).
 *
 * The ReLU's output is read from y, or recomputed from x, which saves a third of the reads in both passes.
 * With a residual it cannot be recomputed. But the residual's gradient is dy': the first pass stores it
 * and the second reads it. If nothing comes between the passes they are made for one group of channels
 * before the next, as in forward (batch_norm.c). */
#include "kernels/cpu/batch_norm_grad_strips.h"
#include "kernels/cpu/batch_norm_inner.h"
#include "kernels/cpu/f64_norm.h"

/* A call's operands by name, and numbers computed per channel. */
typedef struct grad {
    const tern__call *call;
    tern__tiling tiling;
    const tern__batch_norm_grad_fns *strips;
    grad_maps maps;
    const tern__view *mean, *var, *weight, *bias;
    partial sums;
    float *inverse; /* 1 / deviation per channel */
} grad;

/* ---- sums ---- */

static void tile_sums(const tern__tile *t, void *ctx)
{
    const grad *self = ctx;
    const partial *out = &self->sums;
    double sum[TERN__BLOCK] = {0}, product[TERN__BLOCK] = {0};
    for (int i = 0; i < 2; i++) self->strips->sums(&self->maps, t, &t->strips[i], sum, product);
    gather(out->first + t->number * out->channels + t->channel, t, sum);
    gather(out->second + t->number * out->channels + t->channel, t, product);
}

/* totals = the sum of the rows, per channel. */
TERN__SIMD static void add_rows(double *totals, const double *rows, int64_t tiles, int64_t stride, int64_t n)
{
    for (int64_t c = 0; c < n; c++) totals[c] = 0;
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t c = 0; c < n; c++) totals[c] += rows[t * stride + c];
}

/* Fills in the forward's constants for the channels of a span. */
static void fill_line(const grad *self, int64_t first, int64_t last)
{
    for (int64_t c = first; c < last; c++) {
        double inverse = inverse_deviation(self->call, self->var, c);
        self->maps.centre[c] = value_of(self->mean, c, 0);
        self->inverse[c] = (float)inverse;
        self->maps.scale[c] = (float)(inverse * (double)value_of(self->weight, c, 1));
        self->maps.shift[c] = value_of(self->bias, c, 0);
    }
}

/* Converts the totals to sum(dy') and sum(dy' xhat), which are the gradients of bias and weight. */
static void make_sums(const tern__span *span, grad *self)
{
    const tern__tiling *s = &self->tiling;
    const partial *p = &self->sums;
    int64_t first = tern__span_channel(s, span), n = tern__span_channels(s, span);
    fill_line(self, first, first + n);
    tern__tiles_each(s, span, tile_sums, self, false);
    add_rows(first_of(p) + first, p->first + first, p->tiles, p->channels, n);
    add_rows(second_of(p) + first, p->second + first, p->tiles, p->channels, n);
    for (int64_t c = first; c < first + n; c++)
        second_of(p)[c] *= inverse_deviation(self->call, self->var, c);
}

/* ---- dx ---- */

static void tile_dx(const tern__tile *t, void *ctx)
{
    const grad *self = ctx;
    for (int i = 0; i < 2; i++) self->strips->dx(&self->maps, t, &t->strips[i]);
}

static void make_dx(const tern__span *span, grad *self)
{
    tern__tiles_each(&self->tiling, span, tile_dx, self, true);
}

/* ---- the kernels ---- */

/* The operands that all three kernels have in the same places. */
static grad grad_of(const tern__call *call)
{
    return (grad){.call = call,
                  .maps.dy = call->in[0],
                  .maps.x = call->in[1],
                  .maps.y = call->in[2],
                  .mean = call->in[3],
                  .var = call->in[4],
                  .weight = call->in[5],
                  .maps.mask = call->in[2] ? MASK_Y : MASK_NONE};
}

/* The same, and the results of the two kernels that make dx. */
static grad grad_with_dx(const tern__call *call)
{
    grad self = grad_of(call);
    self.maps.dx = call->out[0];
    self.maps.residual = call->out[1];
    self.maps.add_dx = call->add[0];
    self.maps.add_residual = call->add[1];
    return self;
}

static bool fits(const grad *self)
{
    const tern__view *x = self->maps.x;
    return takes(x) && stands_as(self->maps.dy, x) && stands_as(self->maps.y, x) &&
           stands_as(self->maps.dx, x) && stands_as(self->maps.residual, x);
}

static int prepare(grad *self)
{
    self->strips = TERN__BY_WIDTH(tern__batch_norm_grad_strips);
    self->tiling = tern__tiling_of(self->maps.x);
    int64_t channels = self->tiling.channels;
    float *data = vectors_new(self->call, &self->tiling, 6);
    if (!data || partial_new(self->call, &self->tiling, &self->sums)) return TERN_E_MEMORY;
    float **vectors[] = {&self->maps.centre, &self->maps.scale,   &self->maps.shift,
                         &self->inverse,     &self->maps.mean_dy, &self->maps.slope};
    for (int i = 0; i < 6; i++) *vectors[i] = data + i * channels;
    return TERN_OK;
}

int tern__cpu_batch_norm_sums(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    grad self = grad_of(call);
    if (!fits(&self) || tern__view_count(self.maps.x) == 0) return TERN_E_UNSUPPORTED;
    if (prepare(&self)) return TERN_E_MEMORY;
    tern__span all = tern__span_all(call, &self.tiling);
    make_sums(&all, &self);
    for (int64_t c = 0; c < self.tiling.channels; c++)
        for (int i = 0; i < 4; i++)
            put_sum(call, i, c, i % 2 ? second_of(&self.sums)[c] : first_of(&self.sums)[c]);
    return TERN_OK;
}

int tern__cpu_batch_norm_data_grad(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    grad self = grad_with_dx(call);
    if (!fits(&self)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(self.maps.x) == 0) return TERN_OK;
    if (prepare(&self)) return TERN_E_MEMORY;
    fill_line(&self, 0, self.tiling.channels);
    for (int64_t c = 0; c < self.tiling.channels; c++) {
        self.maps.mean_dy[c] = value_of(call->in[6], c, 0);
        self.maps.slope[c] = value_of(call->in[7], c, 0) * self.inverse[c];
    }
    tern__span all = tern__span_all(call, &self.tiling);
    make_dx(&all, &self);
    return TERN_OK;
}

static void make_both(const tern__span *span, void *ctx)
{
    grad first = *(const grad *)ctx, second = first;
    double n = (double)(first.tiling.batch * first.tiling.positions);
    int64_t c = tern__span_channel(&first.tiling, span), last = c + tern__span_channels(&first.tiling, span);
    make_sums(span, &first);
    for (; c < last; c++) {
        double sum = first_of(&first.sums)[c], product = second_of(&first.sums)[c];
        put_sum(first.call, 2, c, sum);
        put_sum(first.call, 3, c, product);
        first.maps.mean_dy[c] = (float)(sum / n);
        first.maps.slope[c] = (float)(product * inverse_deviation(first.call, first.var, c) / n);
    }
    if (first.maps.residual && !first.maps.add_residual) { /* it holds dy' now */
        second.maps.dy = first.maps.residual;
        second.maps.mask = MASK_NONE;
    }
    second.maps.residual = NULL;
    if (second.maps.dx) make_dx(span, &second);
}

int tern__cpu_batch_norm_grad(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    bool relu = ((const tern__batch_norm_attr *)call->attr)->relu != 0;
    grad self = grad_with_dx(call);
    self.bias = call->in[6];
    if (relu && !self.maps.y) self.maps.mask = MASK_AGAIN;
    if (!fits(&self) || tern__view_count(self.maps.x) == 0) return TERN_E_UNSUPPORTED;
    if (prepare(&self)) return TERN_E_MEMORY;
    tern__spans_each(call, &self.tiling, make_both, &self);
    return TERN_OK;
}
