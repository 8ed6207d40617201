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

typedef struct tern_batch_norm_act_opts {
    size_t size;
    bool training;   /* the batch's statistics, which also move the running ones; default true */
    double momentum; /* share of the new statistics in the running ones; default 0.1           */
    double eps;      /* added to the variance; default 1e-5                                     */
    bool relu;       /* max(., 0) at the end; default false                                     */
} tern_batch_norm_act_opts;
TERN_API tern_batch_norm_act_opts tern_batch_norm_act_defaults(void);

/* act(batch_norm(x) + residual) in one: x (N, C, ...), the rest (C) but for residual, which is like x. Each
 * may be NULL, the running ones only in training. torch.nn.functional.batch_norm: the variance is biased to
 * normalise and unbiased in running_var; both running ones change in training. */
TERN_API tern_tensor *tern_batch_norm_act(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                          tern_tensor *bias, tern_tensor *running_mean,
                                          tern_tensor *running_var, tern_tensor *residual,
                                          const tern_batch_norm_act_opts *opts);

typedef struct tern_pool2d_opts {
    size_t size;
    int64_t stride[2];      /* height, width; default 0, 0: the kernel's size            */
    int64_t padding[2];     /* on both sides, at most half the kernel; default 0, 0      */
    bool count_include_pad; /* average: padding counts as zeros; default true            */
} tern_pool2d_opts;
TERN_API tern_pool2d_opts tern_pool2d_defaults(void);

/* The largest, or the mean, of each window: x (N, C, H, W) -> (N, C, H', W') with H' = (H + 2 padding -
 * kernel) / stride + 1. torch.nn.functional.max_pool2d, avg_pool2d. */
TERN_API tern_tensor *tern_max_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                                      const tern_pool2d_opts *opts);
TERN_API tern_tensor *tern_avg_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                                      const tern_pool2d_opts *opts);

/* The mean over all positions: x (N, C, H, W) -> (N, C). torch.nn.AdaptiveAvgPool2d(1) and a flatten. */
TERN_API tern_tensor *tern_global_avg_pool(tern_scope *scope, tern_tensor *x);

/* The mean over the batch of -log softmax(x)[label]: x (N, C), label i64 (N) -> ().
 * torch.nn.functional.cross_entropy. A label outside [0, C) is E_RANGE naming sample and label. */
TERN_API tern_tensor *tern_cross_entropy(tern_scope *scope, tern_tensor *x, tern_tensor *label);

/* The mean of (x - target)^2 over all elements, shapes equal -> (). torch.nn.functional.mse_loss. */
TERN_API tern_tensor *tern_mse_loss(tern_scope *scope, tern_tensor *x, tern_tensor *target);

/* a + b and a * b, element by element, with PyTorch's broadcasting: shapes are aligned at their last
 * dimensions, and a dimension that is missing or 1 is repeated. */
TERN_API tern_tensor *tern_add(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_mul(tern_scope *scope, tern_tensor *a, tern_tensor *b);

/* The sum and the mean of all elements -> (). */
TERN_API tern_tensor *tern_sum(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_mean(tern_scope *scope, tern_tensor *x);

/* The same elements under another shape, of which one dimension may be -1: whatever is left. torch.reshape.
 */
TERN_API tern_tensor *tern_reshape(tern_scope *scope, tern_tensor *x, int ndim, const int64_t *shape);
/* All dimensions from first_dim on become one. torch.flatten. */
TERN_API tern_tensor *tern_flatten(tern_scope *scope, tern_tensor *x, int first_dim);

/* The index of each row's largest element, the first one of equals: x (N, C) -> i64 (N). No gradient. */
TERN_API tern_tensor *tern_argmax(tern_scope *scope, tern_tensor *x);

#ifdef __cplusplus
}
#endif
#endif
