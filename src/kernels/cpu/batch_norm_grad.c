/* batch_norm_grad.c - batch norm as vector loops over tiles (tiles.h): the gradients.
 *
 * Tiles give sum(dy') and sum(dy' (x - mean)), with dy' = dy where the ReLU let something through; then one
 * more pass makes
 *     dx = weight / sigma * (dy' - sum(dy') / n - (x - mean) / sigma^2 * sum(dy' (x - mean)) / n).
 * Whether it let something through is read from y, or made again from x, which saves going through y: twice
 * a third of what is read. With a residual it cannot be made again, but the residual's gradient is dy': the
 * first pass stores it and the second reads it. Where nothing comes between both passes they are made of one
 * group of channels before the next, as forward (batch_norm.c). */
#include "kernels/cpu/batch_norm_inner.h"
#include "kernels/cpu/f64_norm.h"

/* How dy' comes of dy. */
typedef enum mask { MASK_NONE, MASK_Y, MASK_AGAIN } mask;

/* A call's operands by their names, and what is computed of a channel. */
typedef struct grad {
    const tern__call *call;
    tern__tiling tiling;
    const tern__view *dy, *x, *y, *mean, *var, *weight, *bias;
    const tern__view *dx, *residual; /* NULL: not wanted */
    bool add_dx, add_residual;
    mask mask;
    partial sums;
    float *centre, *scale, *shift;    /* y = (x - centre) * scale + shift              */
    float *inverse, *mean_dy, *slope; /* dx = scale * (dy' - mean_dy - (x - centre) * slope) */
} grad;

static void *data_of(const tern__view *view)
{
    return view ? view->data : NULL;
}

/* Three numbers of each lane's channel, of which y is made. */
typedef struct line {
    tern__lanes centre, scale, shift;
} line;

TERN__INLINE line line_of(const grad *self, const tern__tile *t, const tern__strip *s)
{
    return (line){spread(self->centre, t, s), spread(self->scale, t, s), spread(self->shift, t, s)};
}

/* dy' at one place, where x is known. */
TERN__INLINE tern__lanes masked(const grad *self, mask by, tern__lanes x, const line *k, int64_t at,
                                int lanes, tern_dtype dtype)
{
    tern__lanes dy = tern__lanes_get(self->dy->data, dtype, at, lanes);
    if (by == MASK_NONE) return dy;
    tern__lanes y = by == MASK_Y ? tern__lanes_get(self->y->data, dtype, at, lanes)
                                 : tern__lanes_relu(affine_of(x, k->centre, k->scale, k->shift));
    return tern__lanes_passed(y, dy);
}

/* `name` with 16 lanes, the dtype and the mask as constants, or with whatever there is. */
#define EACH_DTYPE(name, self, mask, ...)                                                                    \
    do {                                                                                                     \
        tern_dtype dtype = (self)->x->dtype;                                                                 \
        if (dtype == TERN_F32)                                                                               \
            name(self, __VA_ARGS__, mask, LANES, TERN_F32);                                                  \
        else if (dtype == TERN_BF16)                                                                         \
            name(self, __VA_ARGS__, mask, LANES, TERN_BF16);                                                 \
        else                                                                                                 \
            name(self, __VA_ARGS__, mask, LANES, TERN_F16);                                                  \
    } while (0)
#define EACH_MASK(name, self, s, ...)                                                                        \
    do {                                                                                                     \
        if ((s)->lanes != LANES)                                                                             \
            name(self, s, __VA_ARGS__, (self)->mask, (s)->lanes, (self)->x->dtype);                          \
        else if ((self)->mask == MASK_NONE)                                                                  \
            EACH_DTYPE(name, self, MASK_NONE, s, __VA_ARGS__);                                               \
        else if ((self)->mask == MASK_Y)                                                                     \
            EACH_DTYPE(name, self, MASK_Y, s, __VA_ARGS__);                                                  \
        else                                                                                                 \
            EACH_DTYPE(name, self, MASK_AGAIN, s, __VA_ARGS__);                                              \
    } while (0)

/* ---- sums ---- */

/* One row: *a and *b += dy' and dy' (x - mean). */
TERN__INLINE void add_row(const grad *self, const line *k, mask by, int64_t at, tern__lanes *a,
                          tern__lanes *b, int lanes, tern_dtype dtype)
{
    tern__lanes x = tern__lanes_get(self->x->data, dtype, at, lanes);
    tern__lanes d = masked(self, by, x, k, at, lanes, dtype);
    *a += d;
    *b += d * (x - k->centre);
    void *residual = data_of(self->residual);
    if (residual) tern__lanes_set(residual, dtype, at, d, lanes, self->add_residual);
}

TERN__INLINE void sums_of(const grad *self, const tern__strip *s, const line *k, double sum[LANES],
                          double product[LANES], mask by, int lanes, tern_dtype dtype)
{
    for (int64_t first = 0; first < s->rows; first += BLOCK) {
        int64_t last = TERN__MIN(s->rows, first + BLOCK), r = first;
        tern__lanes a[CHAINS] = {0}, b[CHAINS] = {0};
        for (; r + CHAINS <= last; r += CHAINS) {
#pragma GCC unroll 4
            for (int i = 0; i < CHAINS; i++)
                add_row(self, k, by, s->at + (r + i) * s->stride, &a[i], &b[i], lanes, dtype);
        }
        for (; r < last; r++) add_row(self, k, by, s->at + r * s->stride, &a[0], &b[0], lanes, dtype);
        add_lanes(sum, a);
        add_lanes(product, b);
    }
}

TERN__SIMD static void sums(const grad *self, const tern__tile *t, const tern__strip *s, double sum[LANES],
                            double product[LANES])
{
    line k = line_of(self, t, s);
    EACH_MASK(sums_of, self, s, &k, sum, product);
}

static void tile_sums(const tern__tile *t, void *ctx)
{
    const grad *self = ctx;
    const partial *out = &self->sums;
    double sum[LANES] = {0}, product[LANES] = {0};
    for (int i = 0; i < 2; i++) sums(self, t, &t->strips[i], sum, product);
    gather(out->first + t->number * out->channels + t->channel, t, sum);
    gather(out->second + t->number * out->channels + t->channel, t, product);
}

/* totals = the sum of the rows, channel by channel. */
TERN__SIMD static void add_rows(double *totals, const double *rows, int64_t tiles, int64_t stride, int64_t n)
{
    for (int64_t c = 0; c < n; c++) totals[c] = 0;
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t c = 0; c < n; c++) totals[c] += rows[t * stride + c];
}

/* The channels of a span: what they are made of forward. */
static void fill_line(const grad *self, int64_t first, int64_t last)
{
    for (int64_t c = first; c < last; c++) {
        double inverse = inverse_deviation(self->call, self->var, c);
        self->centre[c] = value_of(self->mean, c, 0);
        self->inverse[c] = (float)inverse;
        self->scale[c] = (float)(inverse * (double)value_of(self->weight, c, 1));
        self->shift[c] = value_of(self->bias, c, 0);
    }
}

/* The totals become sum(dy') and sum(dy' xhat), which are the gradients of bias and weight. */
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

TERN__INLINE void dx_of(const grad *self, const tern__strip *s, const line *k, const tern__lanes more[2],
                        mask by, int lanes, tern_dtype dtype)
{
    void *dx = data_of(self->dx), *residual = data_of(self->residual);
    tern__lanes mean_dy = more[0], slope = more[1];
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t at = s->at + r * s->stride;
        tern__lanes x = tern__lanes_get(self->x->data, dtype, at, lanes);
        tern__lanes d = masked(self, by, x, k, at, lanes, dtype);
        tern__lanes v = k->scale * (d - mean_dy - (x - k->centre) * slope);
        if (dx) tern__lanes_set(dx, dtype, at, v, lanes, self->add_dx);
        if (residual) tern__lanes_set(residual, dtype, at, d, lanes, self->add_residual);
    }
}

TERN__SIMD static void make_dx_of(const grad *self, const tern__tile *t, const tern__strip *s)
{
    line k = line_of(self, t, s);
    const tern__lanes more[2] = {spread(self->mean_dy, t, s), spread(self->slope, t, s)};
    EACH_MASK(dx_of, self, s, &k, more);
}

static void tile_dx(const tern__tile *t, void *ctx)
{
    for (int i = 0; i < 2; i++) make_dx_of(ctx, t, &t->strips[i]);
}

static void make_dx(const tern__span *span, grad *self)
{
    tern__tiles_each(&self->tiling, span, tile_dx, self, true);
}

/* ---- the kernels ---- */

static bool fits(const grad *self)
{
    const tern__view *x = self->x;
    return takes(x) && stands_as(self->dy, x) && stands_as(self->y, x) && stands_as(self->dx, x) &&
           stands_as(self->residual, x);
}

static int prepare(grad *self)
{
    self->tiling = tern__tiling_of(self->x);
    int64_t channels = self->tiling.channels;
    float *data = vectors_new(self->call, &self->tiling, 6);
    if (!data || partial_new(self->call, &self->tiling, &self->sums)) return TERN_E_MEMORY;
    float **vectors[] = {&self->centre,  &self->scale,   &self->shift,
                         &self->inverse, &self->mean_dy, &self->slope};
    for (int i = 0; i < 6; i++) *vectors[i] = data + i * channels;
    return TERN_OK;
}

int tern__cpu_batch_norm_sums(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    grad self = {.call = call,
                 .dy = call->in[0],
                 .x = call->in[1],
                 .y = call->in[2],
                 .mean = call->in[3],
                 .var = call->in[4],
                 .mask = call->in[2] ? MASK_Y : MASK_NONE};
    if (!fits(&self) || tern__view_count(self.x) == 0) return TERN_E_UNSUPPORTED;
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
    grad self = {.call = call,
                 .dy = call->in[0],
                 .x = call->in[1],
                 .y = call->in[2],
                 .mean = call->in[3],
                 .var = call->in[4],
                 .weight = call->in[5],
                 .dx = call->out[0],
                 .residual = call->out[1],
                 .add_dx = call->add[0],
                 .add_residual = call->add[1],
                 .mask = call->in[2] ? MASK_Y : MASK_NONE};
    if (!fits(&self)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(self.x) == 0) return TERN_OK;
    if (prepare(&self)) return TERN_E_MEMORY;
    fill_line(&self, 0, self.tiling.channels);
    for (int64_t c = 0; c < self.tiling.channels; c++) {
        self.mean_dy[c] = value_of(call->in[6], c, 0);
        self.slope[c] = value_of(call->in[7], c, 0) * self.inverse[c];
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
        first.mean_dy[c] = (float)(sum / n);
        first.slope[c] = (float)(product * inverse_deviation(first.call, first.var, c) / n);
    }
    if (first.residual && !first.add_residual) { /* it is dy' now */
        second.dy = first.residual;
        second.mask = MASK_NONE;
    }
    second.residual = NULL;
    if (second.dx) make_dx(span, &second);
}

int tern__cpu_batch_norm_grad(const tern__call *call)
{
    if (call->in[0]->dtype == TERN_F64) return tern__f64_batch_norm(call);
    bool relu = ((const tern__batch_norm_attr *)call->attr)->relu != 0;
    grad self = {.call = call,
                 .dy = call->in[0],
                 .x = call->in[1],
                 .y = call->in[2],
                 .mean = call->in[3],
                 .var = call->in[4],
                 .weight = call->in[5],
                 .bias = call->in[6],
                 .dx = call->out[0],
                 .residual = call->out[1],
                 .add_dx = call->add[0],
                 .add_residual = call->add[1],
                 .mask = call->in[2] ? MASK_Y
                         : relu      ? MASK_AGAIN
                                     : MASK_NONE};
    if (!fits(&self) || tern__view_count(self.x) == 0) return TERN_E_UNSUPPORTED;
    if (prepare(&self)) return TERN_E_MEMORY;
    tern__spans_each(call, &self.tiling, make_both, &self);
    return TERN_OK;
}
