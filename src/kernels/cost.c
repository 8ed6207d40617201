/* cost.c - counts the operations and bytes of a kernel call from its views. */
#include "kernels/cost.h"
#include "device/device.h"
#include "kernels/attention.h"
#include "kernels/batch_norm.h"
#include "kernels/conv.h"

/* Operands of a call by one index, inputs first. */
#define IN(i)  (i)
#define OUT(i) (TERN__KERNEL_INS + (i))

static const tern__view *cost_operand(const tern__call *call, int i)
{
    return i < TERN__KERNEL_INS ? call->in[i] : call->out[i - TERN__KERNEL_INS];
}

/* The operands that are x, y and w, or their gradients: the three products of a layer take equally many
 * operations. w = 0: none. */
static const struct {
    int x, y, w;
} convolutions[TERN__KERNEL_COUNT] = {
    [TERN__CONV] = {IN(0), OUT(0), IN(1)},
    [TERN__CONV_DATA_GRAD] = {OUT(0), IN(0), IN(1)},
    [TERN__CONV_WEIGHT_GRAD] = {IN(1), IN(0), OUT(0)},
};

/* Kernels that also read their outputs. */
static const bool in_place[TERN__KERNEL_COUNT] = {
#define O(ID, ...) [TERN__##ID] = true,
#include "kernels/optim.def"
};

/* Operands, one bit each, that the second pass of a batch norm reads again. The CPU's kernels go channel
 * by channel and find them in the cache; a GPU's go through all channels at once. */
static unsigned read_again(const tern__call *call)
{
    if (!call->device || !call->device->backend) return 0;
    if (call->kernel == TERN__BATCH_NORM) return 1u << IN(0);
    if (call->kernel != TERN__BATCH_NORM_GRAD) return 0;
    return tern__batch_norm_leaves(call) ? 1u << IN(1) | 1u << OUT(1)
                                         : 1u << IN(0) | 1u << IN(1) | 1u << IN(2);
}

static unsigned updated(const tern__call *call)
{
    unsigned operands = 0;
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        operands |= (unsigned)(call->add[i] || in_place[call->kernel]) << OUT(i);
    return operands;
}

/* Counts the pairs of an output position and a tap along one axis that read x and not padding. */
static int64_t pairs_of(int64_t x, int64_t y, int64_t taps, int64_t stride, int64_t padding, int64_t dilation)
{
    int64_t pairs = 0;
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t before = padding - tap * dilation, end = x - 1 + before;
        int64_t first = before > 0 ? (before + stride - 1) / stride : 0;
        int64_t last = end < 0 ? 0 : TERN__MIN(y, end / stride + 1);
        pairs += TERN__MAX(0, last - first);
    }
    return pairs;
}

/* w is (O, ..): an output channel sums over C / groups input channels. */
static double conv_flops(const tern__call *call)
{
    const tern__conv_attr *a = call->attr;
    const tern__view *x = cost_operand(call, convolutions[call->kernel].x);
    const tern__view *y = cost_operand(call, convolutions[call->kernel].y);
    const tern__view *w = cost_operand(call, convolutions[call->kernel].w);
    if (!w) return 0;
    double products = (double)(y->shape[0] * y->shape[1] * w->shape[1]);
    for (int d = 2, axis = 5 - y->ndim; d < y->ndim; d++, axis++)
        products *= (double)pairs_of(x->shape[d], y->shape[d], w->shape[d], a->stride[axis], a->padding[axis],
                                     a->dilation[axis]);
    return 2 * products;
}

/* Forward two products for each pair of a query and a key that it sees; backward also one for each gradient
 * of q, k and v. */
static double attention_flops(const tern__call *call)
{
    bool back = call->kernel == TERN__ATTENTION_GRAD;
    tern__attention_shape n =
        tern__attention_shape_of(call->in[back], call->in[back + 1], call->in[back + 2]);
    double pairs = 0, depth = (double)n.depth, width = (double)n.width;
    for (int64_t i = 0; i < n.queries; i++) pairs += (double)tern__attention_seen(call->attr, i, n.keys);
    double products = depth + width;
    if (back && call->out[0]) products += depth;
    if (back && call->out[1]) products += depth;
    if (back && call->out[2]) products += width;
    return 2 * (double)(n.batch * n.heads) * pairs * products;
}

/* An element of a matrix product is a sum over a row of a. A linear's gradients are one or two such
 * products of the same size. */
static double flops_of(const tern__call *call)
{
    if (call->kernel == TERN__LINEAR_GRAD)
        return 2 * (double)(tern__view_count(call->in[1]) * call->in[0]->shape[1]) * (call->out[0] ? 2 : 1);
    if (call->kernel == TERN__MATMUL)
        return 2 * (double)(tern__view_count(call->out[0]) * call->in[0]->shape[call->in[0]->ndim - 1]);
    if (call->kernel == TERN__ATTENTION || call->kernel == TERN__ATTENTION_GRAD) return attention_flops(call);
    return convolutions[call->kernel].w ? conv_flops(call) : 0;
}

/* A broadcast dimension takes memory once. */
static double cost_bytes_of(const tern__view *view)
{
    if (!view) return 0;
    double bytes = (double)tern_dtype_bytes(view->dtype);
    for (int d = 0; d < view->ndim; d++) bytes *= view->stride[d] ? (double)view->shape[d] : 1;
    return bytes;
}

tern__cost tern__call_cost(const tern__call *call)
{
    tern__cost cost = {.flops = flops_of(call)};
    unsigned twice = read_again(call) | updated(call);
    for (int i = 0; i < OUT(TERN__KERNEL_OUTS); i++)
        cost.bytes += cost_bytes_of(cost_operand(call, i)) * (twice >> i & 1 ? 2 : 1);
    return cost;
}
