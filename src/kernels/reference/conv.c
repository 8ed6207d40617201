/* conv.c - 2-d convolution. Every product of the sums is one tap: image n, channel i of group g at input
 * place (h, w), times the weight from it to channel o at kernel place (r, c), goes to output place (p, q).
 * The three kernels walk the same taps and differ in what they sum over. */
#include "kernels/conv.h"
#include "kernels/reference/reference.h"

typedef struct conv {
    int64_t images, ins, outs, groups; /* channels of a group */
    int64_t in[2], kernel[2], out[2];  /* height, width       */
    const tern__conv_attr *attr;
} conv;

static conv conv_of(const tern__call *call, const int64_t *x, const int64_t *w, const int64_t *y)
{
    const tern__conv_attr *attr = call->attr;
    return (conv){.images = x[0],
                  .ins = x[1] / attr->groups,
                  .outs = y[1] / attr->groups,
                  .groups = attr->groups,
                  .in = {x[2], x[3]},
                  .kernel = {w[2], w[3]},
                  .out = {y[2], y[3]},
                  .attr = attr};
}

/* Row-major numbers of elements; channels are counted inside group g. */
static int64_t x_at(const conv *c, int64_t n, int64_t g, int64_t i, int64_t h, int64_t w)
{
    return (((n * c->groups + g) * c->ins + i) * c->in[0] + h) * c->in[1] + w;
}

static int64_t y_at(const conv *c, int64_t n, int64_t g, int64_t o, int64_t p, int64_t q)
{
    return (((n * c->groups + g) * c->outs + o) * c->out[0] + p) * c->out[1] + q;
}

static int64_t w_at(const conv *c, int64_t g, int64_t o, int64_t i, int64_t r, int64_t s)
{
    return (((g * c->outs + o) * c->ins + i) * c->kernel[0] + r) * c->kernel[1] + s;
}

/* The input place that kernel place `k` sees from output place `out`; -1 in the padding. */
static int64_t in_place(const conv *c, int axis, int64_t out, int64_t k)
{
    int64_t at = out * c->attr->stride[axis] - c->attr->padding[axis] + k * c->attr->dilation[axis];
    return at >= 0 && at < c->in[axis] ? at : -1;
}

/* The output place from which kernel place `k` sees input place `in`; -1 if there is none. */
static int64_t out_place(const conv *c, int axis, int64_t in, int64_t k)
{
    int64_t at = in + c->attr->padding[axis] - k * c->attr->dilation[axis];
    if (at < 0 || at % c->attr->stride[axis]) return -1;
    at /= c->attr->stride[axis];
    return at < c->out[axis] ? at : -1;
}

static double forward_sum(const tern__call *call, const conv *c, int64_t n, int64_t g, int64_t o, int64_t p,
                          int64_t q)
{
    const tern__view *x = call->in[0], *weight = call->in[1];
    double sum = 0;
    for (int64_t r = 0; r < c->kernel[0]; r++) {
        for (int64_t s = 0; s < c->kernel[1]; s++) {
            int64_t h = in_place(c, 0, p, r), w = in_place(c, 1, q, s);
            if (h < 0 || w < 0) continue;
            for (int64_t i = 0; i < c->ins; i++)
                sum += tern__view_get(x, x_at(c, n, g, i, h, w)) *
                       tern__view_get(weight, w_at(c, g, o, i, r, s));
        }
    }
    return sum;
}

int tern__reference_conv2d(const tern__call *call)
{
    const tern__view *bias = call->in[2];
    conv c = conv_of(call, call->in[0]->shape, call->in[1]->shape, call->out[0]->shape);
    for (int64_t n = 0; n < c.images; n++)
        for (int64_t g = 0; g < c.groups; g++)
            for (int64_t o = 0; o < c.outs; o++)
                for (int64_t p = 0; p < c.out[0]; p++)
                    for (int64_t q = 0; q < c.out[1]; q++) {
                        double sum = bias ? tern__view_get(bias, g * c.outs + o) : 0;
                        sum += forward_sum(call, &c, n, g, o, p, q);
                        tern__reference_put(call, 0, y_at(&c, n, g, o, p, q), sum);
                    }
    return TERN_OK;
}

static double data_sum(const tern__call *call, const conv *c, int64_t n, int64_t g, int64_t i, int64_t h,
                       int64_t w)
{
    const tern__view *dy = call->in[0], *weight = call->in[1];
    double sum = 0;
    for (int64_t r = 0; r < c->kernel[0]; r++) {
        for (int64_t s = 0; s < c->kernel[1]; s++) {
            int64_t p = out_place(c, 0, h, r), q = out_place(c, 1, w, s);
            if (p < 0 || q < 0) continue;
            for (int64_t o = 0; o < c->outs; o++)
                sum += tern__view_get(dy, y_at(c, n, g, o, p, q)) *
                       tern__view_get(weight, w_at(c, g, o, i, r, s));
        }
    }
    return sum;
}

int tern__reference_conv2d_data_grad(const tern__call *call)
{
    conv c = conv_of(call, call->out[0]->shape, call->in[1]->shape, call->in[0]->shape);
    for (int64_t n = 0; n < c.images; n++)
        for (int64_t g = 0; g < c.groups; g++)
            for (int64_t i = 0; i < c.ins; i++)
                for (int64_t h = 0; h < c.in[0]; h++)
                    for (int64_t w = 0; w < c.in[1]; w++)
                        tern__reference_put(call, 0, x_at(&c, n, g, i, h, w),
                                            data_sum(call, &c, n, g, i, h, w));
    return TERN_OK;
}

static double weight_sum(const tern__call *call, const conv *c, int64_t g, int64_t o, int64_t i, int64_t r,
                         int64_t s)
{
    const tern__view *dy = call->in[0], *x = call->in[1];
    double sum = 0;
    for (int64_t n = 0; n < c->images; n++) {
        for (int64_t p = 0; p < c->out[0]; p++) {
            for (int64_t q = 0; q < c->out[1]; q++) {
                int64_t h = in_place(c, 0, p, r), w = in_place(c, 1, q, s);
                if (h >= 0 && w >= 0)
                    sum += tern__view_get(dy, y_at(c, n, g, o, p, q)) *
                           tern__view_get(x, x_at(c, n, g, i, h, w));
            }
        }
    }
    return sum;
}

static void bias_grad(const tern__call *call, const conv *c)
{
    for (int64_t g = 0; g < c->groups; g++) {
        for (int64_t o = 0; o < c->outs; o++) {
            double sum = 0;
            for (int64_t n = 0; n < c->images; n++)
                for (int64_t p = 0; p < c->out[0]; p++)
                    for (int64_t q = 0; q < c->out[1]; q++)
                        sum += tern__view_get(call->in[0], y_at(c, n, g, o, p, q));
            tern__reference_put(call, 1, g * c->outs + o, sum);
        }
    }
}

/* The weight's shape comes from its gradient, which may be absent when only the bias has one. */
int tern__reference_conv2d_weight_grad(const tern__call *call)
{
    static const int64_t no_kernel[4] = {0};
    const tern__view *dw = call->out[0];
    conv c = conv_of(call, call->in[1]->shape, dw ? dw->shape : no_kernel, call->in[0]->shape);
    if (call->out[1]) bias_grad(call, &c);
    if (!dw) return TERN_OK;
    for (int64_t g = 0; g < c.groups; g++)
        for (int64_t o = 0; o < c.outs; o++)
            for (int64_t i = 0; i < c.ins; i++)
                for (int64_t r = 0; r < c.kernel[0]; r++)
                    for (int64_t s = 0; s < c.kernel[1]; s++)
                        tern__reference_put(call, 0, w_at(&c, g, o, i, r, s),
                                            weight_sum(call, &c, g, o, i, r, s));
    return TERN_OK;
}
