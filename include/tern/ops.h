/* ops.h - operations on tensors, with gradient where they have one. Every op takes the scope first, belongs
 * to it, returns NULL after a failure and takes NULL silently. Names and shapes are PyTorch's. */
#ifndef TERN_OPS_H
#define TERN_OPS_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y (N, O) = x (N, I) weight^T + bias; weight (O, I), bias (O) or NULL. torch.nn.functional.linear. */
TERN_API tern_tensor *tern_linear(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias);

typedef struct tern_conv2d_opts {
    size_t size;
    int64_t stride[2];   /* height, width; default 1, 1 */
    int64_t padding[2];  /* zeros on both sides; default 0, 0 */
    int64_t dilation[2]; /* default 1, 1 */
    int64_t groups;      /* default 1 */
    bool bias;           /* only for tern_conv2d_new: with a bias; default true */
} tern_conv2d_opts;
TERN_API tern_conv2d_opts tern_conv2d_defaults(void);

/* 2-d convolution: x (N, C, H, W), weight (O, C / groups, kh, kw), bias (O) or NULL -> y (N, O, H', W') with
 * H' = (H + 2 padding - dilation (kh - 1) - 1) / stride + 1. torch.nn.functional.conv2d. */
TERN_API tern_tensor *tern_conv2d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                                  const tern_conv2d_opts *opts);

/* max(x, 0), any shape. torch.relu. */
TERN_API tern_tensor *tern_relu(tern_scope *scope, tern_tensor *x);

/* The mean over the batch of -log softmax(x)[label]: x (N, C), label i64 (N) -> ().
 * torch.nn.functional.cross_entropy. A label outside [0, C) is E_RANGE naming sample and label. */
TERN_API tern_tensor *tern_cross_entropy(tern_scope *scope, tern_tensor *x, tern_tensor *label);

/* The index of each row's largest element, the first one of equals: x (N, C) -> i64 (N). No gradient. */
TERN_API tern_tensor *tern_argmax(tern_scope *scope, tern_tensor *x);

#ifdef __cplusplus
}
#endif
#endif
