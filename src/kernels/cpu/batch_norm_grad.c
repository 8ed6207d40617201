/* batch_norm_grad.c - batch norm's gradients as vector loops over tiles (tiles.h).
 *
 * Tiles give sum(dy') and sum(dy' (x - centre)), where dy' = dy if the ReLU's output is positive and the
 * centre is the float next to the mean. A second pass computes dx = weight / sigma * (dy' - sum(dy') / n -
 * (x - mean) / sigma^2 * sum(dy' (x - mean)) / n).
 *
 * The ReLU's output is read from y, or recomputed from x, which saves a third of the reads in both passes.
 * With a residual it cannot be recomputed. But the residual's gradient is dy': the first pass stores it
 * and the second reads it. If nothing comes between the passes they are made for one group of channels
 * before the next, as in forward (batch_norm.c). */
#include "kernels/cpu/batch_norm_grad_strips.h"
#include "kernels/cpu/batch_norm_inner.h"
#include "kernels/cpu/cpu.h"

/* A call's operands by name, and numbers computed per channel. */
typedef struct grad {
    const tern__call *call;
    tern__tiling tiling;
    const tern__batch_norm_grad_fns *strips;
    grad_maps maps;
    const tern__view *vectors[4]; /* mean, variance, weight, bias */
    norm_line *lines;             /* of every channel */
    partial sums;
} grad;

/* ---- sums ---- */

/* Large values times large gradients leave f32's range; they are summed again in double. */
static void tile_sums(const tern__tile *t, void *ctx)
{
    const grad *self = ctx;
    const partial *out = &self->sums;
    double sum[TERN__BLOCK] = {0}, product[TERN__BLOCK] = {0};
    for (int i = 0; i < 2; i++) self->strips->sums(&self->maps, t, &t->strips[i], sum, product);
    bool finite = true;
    for (int l = 0; l < TERN__BLOCK; l++) finite &= isfinite(sum[l]) && isfinite(product[l]);
    if (!finite) {
        memset(sum, 0, sizeof(sum));
        memset(product, 0, sizeof(product));
        for (int i = 0; i < 2; i++) self->strips->sums_f64(&self->maps, t, &t->strips[i], sum, product);
    }
    gather(out->first + t->number * out->channels + t->channel, t, sum);
    gather(out->second + t->number * out->channels + t->channel, t, product);
}

/* totals = the sum of the rows, per channel. */
TERN__SIMD static void norm_grad_add_rows(double *totals, const double *rows, int64_t tiles, int64_t stride,
                                          int64_t n)
{
    for (int64_t c = 0; c < n; c++) totals[c] = 0;
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t c = 0; c < n; c++) totals[c] += rows[t * stride + c];
}

/* Fills in the forward's constants for the channels of a span. */
static void fill_lines(const grad *self, int64_t first, int64_t last)
{
    for (int64_t c = first; c < last; c++) {
        norm_line k = self->lines[c] = norm_line_of(self->call, self->vectors, c);
        self->maps.centre[c] = k.centre;
        self->maps.scale[c] = k.scale;
        self->maps.shift[c] = k.shift;
    }
}

/* Fills in dx's constants from the means of dy' and of dy' xhat. What the centre lacks of the mean goes into
 * the constant beside dy'. */
static void fill_slope(const grad *self, int64_t c, double mean_dy, double mean_product)
{
    double slope = mean_product * self->lines[c].inverse;
    self->maps.slope[c] = (float)slope;
    self->maps.mean_dy[c] = (float)(mean_dy - rest_times(self->lines[c].rest, slope));
}

/* Computes sum(dy') and sum(dy' xhat), which are the gradients of bias and weight. */
static void norm_grad_make_sums(const tern__span *span, grad *self)
{
    const tern__tiling *s = &self->tiling;
    const partial *p = &self->sums;
    int64_t first = tern__span_channel(s, span), n = tern__span_channels(s, span);
    fill_lines(self, first, first + n);
    tern__tiles_each(s, span, tile_sums, self, false);
    norm_grad_add_rows(first_of(p) + first, p->first + first, p->tiles, p->channels, n);
    norm_grad_add_rows(second_of(p) + first, p->second + first, p->tiles, p->channels, n);
    for (int64_t c = first; c < first + n; c++) {
        const norm_line *k = &self->lines[c];
        second_of(p)[c] = (second_of(p)[c] - rest_times(k->rest, first_of(p)[c])) * k->inverse;
    }
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
                  .vectors = {call->in[3], call->in[4], call->in[5]},
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

static bool norm_grad_fits(const grad *self)
{
    const tern__view *x = self->maps.x;
    return takes(x) && stands_as(self->maps.dy, x) && stands_as(self->maps.y, x) &&
           stands_as(self->maps.dx, x) && stands_as(self->maps.residual, x);
}

static int norm_grad_prepare(grad *self)
{
    self->strips = TERN__BY_WIDTH(tern__batch_norm_grad_strips);
    self->tiling = tern__tiling_of(self->maps.x);
    int64_t channels = self->tiling.channels;
    self->lines = vectors_new(self->call, &self->tiling, sizeof(norm_line) + 5 * sizeof(float));
    if (!self->lines || partial_new(self->call, &self->tiling, &self->sums)) return TERN_E_MEMORY;
    float *data = (float *)(self->lines + channels);
    float **vectors[] = {&self->maps.centre, &self->maps.scale, &self->maps.shift, &self->maps.mean_dy,
                         &self->maps.slope};
    for (int i = 0; i < 5; i++) *vectors[i] = data + i * channels;
    return TERN_OK;
}

int tern__cpu_batch_norm_sums(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    grad self = grad_of(call);
    if (!norm_grad_fits(&self) || tern__view_count(self.maps.x) == 0) return TERN_E_UNSUPPORTED;
    if (norm_grad_prepare(&self)) return TERN_E_MEMORY;
    tern__span all = tern__span_all(call, &self.tiling);
    norm_grad_make_sums(&all, &self);
    for (int64_t c = 0; c < self.tiling.channels; c++)
        for (int i = 0; i < 4; i++)
            put_sum(call, i, c, i % 2 ? second_of(&self.sums)[c] : first_of(&self.sums)[c]);
    return TERN_OK;
}

int tern__cpu_batch_norm_data_grad(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    grad self = grad_with_dx(call);
    if (!norm_grad_fits(&self)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(self.maps.x) == 0) return TERN_OK;
    if (norm_grad_prepare(&self)) return TERN_E_MEMORY;
    fill_lines(&self, 0, self.tiling.channels);
    for (int64_t c = 0; c < self.tiling.channels; c++)
        fill_slope(&self, c, value_of(call->in[6], c, 0), value_of(call->in[7], c, 0));
    tern__span all = tern__span_all(call, &self.tiling);
    make_dx(&all, &self);
    return TERN_OK;
}

static void make_both(const tern__span *span, void *ctx)
{
    grad first = *(const grad *)ctx, second = first;
    double n = (double)(first.tiling.batch * first.tiling.positions);
    int64_t c = tern__span_channel(&first.tiling, span), last = c + tern__span_channels(&first.tiling, span);
    norm_grad_make_sums(span, &first);
    for (; c < last; c++) {
        double sum = first_of(&first.sums)[c], product = second_of(&first.sums)[c];
        put_sum(first.call, 2, c, sum);
        put_sum(first.call, 3, c, product);
        fill_slope(&first, c, sum / n, product / n);
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
    self.vectors[3] = call->in[6];
    if (relu && !self.maps.y) self.maps.mask = MASK_AGAIN;
    if (!norm_grad_fits(&self) || tern__view_count(self.maps.x) == 0) return TERN_E_UNSUPPORTED;
    if (norm_grad_prepare(&self)) return TERN_E_MEMORY;
    tern__spans_each(call, &self.tiling, make_both, &self);
    return TERN_OK;
}
