/* matmul.h - products of matrices on views, for ops whose values and gradients are such products. */
#ifndef TERN_SRC_OPS_MATMUL_H
#define TERN_SRC_OPS_MATMUL_H

#include "ops/ops.h"

/* The last two dimensions change places. */
tern__view tern__transposed(const tern__view *matrices);

/* y = (or +=) a b for matrices in the last two dimensions. Those before them are broadcast together; where y
 * is repeated, the products are summed. False after a failure. */
bool tern__matmul(tern_scope *scope, const tern__view *y, const tern__view *a, const tern__view *b, bool add);

/* y = a b + bias, or max(., 0) of it; `bias` may be NULL. */
bool tern__matmul_act(tern_scope *scope, const tern__view *y, const tern__view *a, const tern__view *b,
                      const tern__view *bias, bool relu);

/* The same into the gradient of input i; returns what a gradient function does. */
int tern__matmul_grad(tern_scope *scope, tern__node *node, int i, const tern__view *a, const tern__view *b);

/* The tensor itself if one dimension of its matrices has stride 1, as the kernel wants it; else a copy with
 * gradient. NULL after a failure. */
tern_tensor *tern__matrices(tern_scope *scope, tern_tensor *x);

#endif
