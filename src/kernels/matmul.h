/* matmul.h - attributes of the matrix product and of a linear's gradients. */
#ifndef TERN_SRC_KERNELS_MATMUL_H
#define TERN_SRC_KERNELS_MATMUL_H

#include "kernels/kernel.h"
#include "kernels/pointwise.h"

/* No attributes mean all zeros. */
typedef struct tern__matmul_attr {
    int64_t relu; /* not 0: y = max(result, 0); NaN stays */
} tern__matmul_attr;

static inline bool tern__matmul_has_relu(const tern__call *call)
{
    const tern__matmul_attr *attr = (const tern__matmul_attr *)call->attr;
    return attr && attr->relu != 0;
}

/* Attributes of a linear's gradients. No attributes mean all zeros. */
typedef struct tern__linear_grad_attr {
    int64_t is_relus; /* not 0: x is the output of a ReLU, and dx is 0 where x <= 0 */
} tern__linear_grad_attr;

static inline bool tern__linear_grad_is_relus(const tern__call *call)
{
    const tern__linear_grad_attr *attr = (const tern__linear_grad_attr *)call->attr;
    return attr && attr->is_relus != 0;
}

/* Returns the call that applies a product's ReLU in place, for kernels that have multiplied without it. */
static inline tern__call tern__matmul_relu(const tern__call *call)
{
    static const tern__pointwise_attr none = {{0, 0}};
    tern__call relu = *call;
    relu.kernel = TERN__RELU;
    for (int i = 0; i < TERN__KERNEL_INS; i++) relu.in[i] = i ? NULL : call->out[0];
    for (int i = 1; i < TERN__KERNEL_OUTS; i++) relu.out[i] = NULL;
    relu.add[0] = false;
    relu.attr = &none;
    return relu;
}

#endif
