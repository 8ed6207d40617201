/* conv.c - convolution over two or three spatial dimensions. Every product in the sums is a tap: channel i
 * of group g of image n at an input position, times the weight to channel o at a kernel position,
 * contributes to an output position. The three kernels go over the same taps and differ in what they sum
 * over. Positions are row-major indices. */
#include "device/device.h"
#include "kernels/conv.h"
#include "kernels/reference/reference.h"

/* Depth (1 if there is none), height, width. */
typedef struct places {
    int64_t size[3], count;
} places;

typedef struct conv {
    int64_t images, ins, outs, groups; /* ins, outs: channels of a group */
    places in, kernel, out;
    const tern__conv_attr *attr;
} conv;

static places conv_places_of(const tern__view *view)
{
    places p = {{1, 1, 1}, 1};
    for (int d = 2; d < view->ndim; d++) p.size[3 - view->ndim + d] = view->shape[d];
    for (int d = 0; d < 3; d++) p.count *= p.size[d];
    return p;
}

static conv conv_of(const tern__call *call, const tern__view *x, const tern__view *w, const tern__view *y)
{
    const tern__conv_attr *attr = call->attr;
    return (conv){.images = x->shape[0],
                  .ins = x->shape[1] / attr->groups,
                  .outs = y->shape[1] / attr->groups,
                  .groups = attr->groups,
                  .in = conv_places_of(x),
                  .kernel = w ? conv_places_of(w) : (places){{0}, 0},
                  .out = conv_places_of(y),
                  .attr = attr};
}

/* An operand's elements in row-major order: each is in many taps, and would be looked for in its layout for
 * each. NULL: E_MEMORY. */
static const double *conv_elements(const tern__call *call, int operand)
{
    const tern__view *view = call->in[operand];
    const int64_t count = tern__view_count(view);
    double *found = tern__device_scratch(call->device, TERN__SCRATCH_OPERAND + operand,
                                         (size_t)TERN__MAX(count, 1) * sizeof(*found));
    for (int64_t i = 0; found && i < count; i++) found[i] = tern__view_get(view, i);
    return found;
}

/* Row-major indices of elements; channels are counted within group g. */
static int64_t x_at(const conv *c, int64_t n, int64_t g, int64_t i, int64_t in)
{
    return ((n * c->groups + g) * c->ins + i) * c->in.count + in;
}

static int64_t y_at(const conv *c, int64_t n, int64_t g, int64_t o, int64_t out)
{
    return ((n * c->groups + g) * c->outs + o) * c->out.count + out;
}

static int64_t w_at(const conv *c, int64_t g, int64_t o, int64_t i, int64_t k)
{
    return ((g * c->outs + o) * c->ins + i) * c->kernel.count + k;
}

/* The input position that kernel position `k` reads for output position `out`; -1 in the padding. */
static int64_t in_place(const conv *c, int64_t out, int64_t k)
{
    const tern__conv_attr *a = c->attr;
    int64_t place = 0, step = 1;
    for (int d = 2; d >= 0; d--) {
        int64_t at =
            out % c->out.size[d] * a->stride[d] - a->padding[d] + k % c->kernel.size[d] * a->dilation[d];
        if (at < 0 || at >= c->in.size[d]) return -1;
        place += at * step;
        step *= c->in.size[d];
        out /= c->out.size[d];
        k /= c->kernel.size[d];
    }
    return place;
}

/* The output position for which kernel position `k` reads input position `in`; -1 if there is none. */
static int64_t out_place(const conv *c, int64_t in, int64_t k)
{
    const tern__conv_attr *a = c->attr;
    int64_t place = 0, step = 1;
    for (int d = 2; d >= 0; d--) {
        int64_t at = in % c->in.size[d] + a->padding[d] - k % c->kernel.size[d] * a->dilation[d];
        if (at < 0 || at % a->stride[d] || at / a->stride[d] >= c->out.size[d]) return -1;
        place += at / a->stride[d] * step;
        step *= c->out.size[d];
        in /= c->in.size[d];
        k /= c->kernel.size[d];
    }
    return place;
}

static double forward_sum(const conv *c, const double *x, const double *weight, int64_t n, int64_t g,
                          int64_t o, int64_t out)
{
    double sum = 0;
    for (int64_t k = 0; k < c->kernel.count; k++) {
        int64_t in = in_place(c, out, k);
        for (int64_t i = 0; i < c->ins && in >= 0; i++)
            sum += x[x_at(c, n, g, i, in)] * weight[w_at(c, g, o, i, k)];
    }
    return sum;
}

int tern__reference_conv(const tern__call *call)
{
    const tern__view *bias = call->in[2];
    conv c = conv_of(call, call->in[0], call->in[1], call->out[0]);
    const double *x = conv_elements(call, 0), *weight = conv_elements(call, 1);
    if (!x || !weight) return TERN_E_MEMORY;
    for (int64_t n = 0; n < c.images; n++)
        for (int64_t g = 0; g < c.groups; g++)
            for (int64_t o = 0; o < c.outs; o++)
                for (int64_t out = 0; out < c.out.count; out++) {
                    double sum = bias ? tern__view_get(bias, g * c.outs + o) : 0;
                    sum += forward_sum(&c, x, weight, n, g, o, out);
                    tern__reference_put(call, 0, y_at(&c, n, g, o, out), sum);
                }
    return TERN_OK;
}

static double data_sum(const conv *c, const double *dy, const double *weight, int64_t n, int64_t g, int64_t i,
                       int64_t in)
{
    double sum = 0;
    for (int64_t k = 0; k < c->kernel.count; k++) {
        int64_t out = out_place(c, in, k);
        for (int64_t o = 0; o < c->outs && out >= 0; o++)
            sum += dy[y_at(c, n, g, o, out)] * weight[w_at(c, g, o, i, k)];
    }
    return sum;
}

int tern__reference_conv_data_grad(const tern__call *call)
{
    conv c = conv_of(call, call->out[0], call->in[1], call->in[0]);
    const double *dy = conv_elements(call, 0), *weight = conv_elements(call, 1);
    if (!dy || !weight) return TERN_E_MEMORY;
    for (int64_t n = 0; n < c.images; n++)
        for (int64_t g = 0; g < c.groups; g++)
            for (int64_t i = 0; i < c.ins; i++)
                for (int64_t in = 0; in < c.in.count; in++)
                    tern__reference_put(call, 0, x_at(&c, n, g, i, in),
                                        data_sum(&c, dy, weight, n, g, i, in));
    return TERN_OK;
}

static double weight_sum(const conv *c, const double *dy, const double *x, int64_t g, int64_t o, int64_t i,
                         int64_t k)
{
    double sum = 0;
    for (int64_t out = 0; out < c->out.count; out++) {
        int64_t in = in_place(c, out, k);
        for (int64_t n = 0; n < c->images && in >= 0; n++)
            sum += dy[y_at(c, n, g, o, out)] * x[x_at(c, n, g, i, in)];
    }
    return sum;
}

static void bias_grad(const tern__call *call, const conv *c)
{
    for (int64_t g = 0; g < c->groups; g++) {
        for (int64_t o = 0; o < c->outs; o++) {
            double sum = 0;
            for (int64_t n = 0; n < c->images; n++)
                for (int64_t out = 0; out < c->out.count; out++)
                    sum += tern__view_get(call->in[0], y_at(c, n, g, o, out));
            tern__reference_put(call, 1, g * c->outs + o, sum);
        }
    }
}

/* The weight's gradient is absent if only the bias has one. */
int tern__reference_conv_weight_grad(const tern__call *call)
{
    conv c = conv_of(call, call->in[1], call->out[0], call->in[0]);
    if (call->out[1]) bias_grad(call, &c);
    if (!call->out[0]) return TERN_OK;
    const double *dy = conv_elements(call, 0), *x = conv_elements(call, 1);
    if (!dy || !x) return TERN_E_MEMORY;
    for (int64_t g = 0; g < c.groups; g++)
        for (int64_t o = 0; o < c.outs; o++)
            for (int64_t i = 0; i < c.ins; i++)
                for (int64_t k = 0; k < c.kernel.count; k++)
                    tern__reference_put(call, 0, w_at(&c, g, o, i, k), weight_sum(&c, dy, x, g, o, i, k));
    return TERN_OK;
}
