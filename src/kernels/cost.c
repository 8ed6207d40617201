#include "kernels/cost.h"

/* Operands of a call by one number, inputs first. */
#define IN(i)  (i)
#define OUT(i) (TERN__KERNEL_INS + (i))

static const tern__view *operand(const tern__call *call, int i)
{
    return i < TERN__KERNEL_INS ? call->in[i] : call->out[i - TERN__KERNEL_INS];
}

/* Where a convolution has its y and its w, or their gradients: the three products of a layer take equally
 * many operations. w = 0: none. */
static const struct {
    int y, w;
} convolutions[TERN__KERNEL_COUNT] = {
    [TERN__CONV] = {OUT(0), IN(1)},
    [TERN__CONV_DATA_GRAD] = {IN(0), IN(1)},
    [TERN__CONV_WEIGHT_GRAD] = {IN(0), OUT(0)},
};

/* Their outputs are read too. */
static const bool in_place[TERN__KERNEL_COUNT] = {
    [TERN__ADAGRAD] = true,      [TERN__ADAM] = true,    [TERN__LAMB] = true,
    [TERN__LAMB_MOMENTS] = true, [TERN__RMSPROP] = true, [TERN__SGD] = true,
};

/* w is (O, ..): an element of y is a sum over the rest; in a product of matrices over a row of a. */
static double flops_of(const tern__call *call)
{
    if (call->kernel == TERN__MATMUL)
        return 2 * (double)(tern__view_count(call->out[0]) * call->in[0]->shape[call->in[0]->ndim - 1]);
    int at = convolutions[call->kernel].w;
    const tern__view *w = at ? operand(call, at) : NULL;
    if (!w || !w->shape[0]) return 0;
    double terms = (double)(tern__view_count(w) / w->shape[0]);
    return 2 * terms * (double)tern__view_count(operand(call, convolutions[call->kernel].y));
}

/* A broadcast dimension is in memory once. */
static double bytes_of(const tern__view *view)
{
    if (!view) return 0;
    double bytes = (double)tern_dtype_bytes(view->dtype);
    for (int d = 0; d < view->ndim; d++) bytes *= view->stride[d] ? (double)view->shape[d] : 1;
    return bytes;
}

tern__cost tern__call_cost(const tern__call *call)
{
    tern__cost cost = {.flops = flops_of(call)};
    for (int i = 0; i < TERN__KERNEL_INS; i++) cost.bytes += bytes_of(call->in[i]);
    for (int i = 0; i < TERN__KERNEL_OUTS; i++) {
        bool is_read = call->add[i] || in_place[call->kernel];
        cost.bytes += bytes_of(call->out[i]) * (is_read ? 2 : 1);
    }
    return cost;
}
