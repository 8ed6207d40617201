/* ops.h - operations on tensors. Names and shapes are PyTorch's.
 *
 * Every op takes the scope first and returns a tensor that belongs to it. Gradients are recorded for every op
 * that has them. After an error an op returns NULL, and an op that is given NULL returns NULL without a
 * further error (autograd.h). Options may be NULL: the defaults.
 *
 * Threads: as the scope. */
#ifndef TERN_OPS_H
#define TERN_OPS_H

#include <tern/attention.h>
#include <tern/autograd.h>
#include <tern/pad.h>
#include <tern/rng.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- layers ---- */

/* Returns x weight^T + bias: x (.., I), weight (O, I), bias (O) or NULL -> (.., O).
 * torch.nn.functional.linear. */
TERN_API tern_tensor *tern_linear(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias);

/* The same, followed by max(y, 0) if `relu`, as one op. Values, gradients and the name in errors are those of
 * tern_relu after tern_linear. On a GPU NaN may become 0 (docs/gpu.md). */
TERN_API tern_tensor *tern_linear_act(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                      tern_tensor *bias, bool relu);

/* Matrix products: a (.., m, k) and b (.., k, n) -> (.., m, n), where the batch dimensions are broadcast. A
 * vector (k) is a row for a, or a column for b, and its dimension disappears. torch.matmul. */
TERN_API tern_tensor *tern_matmul(tern_scope *scope, tern_tensor *a, tern_tensor *b);

typedef struct tern_embedding_opts {
    size_t size;
    int64_t padding_idx; /* the row that gets no gradient; default -1: none */
} tern_embedding_opts;
TERN_API tern_embedding_opts tern_embedding_defaults(void);

/* Looks up rows of weight (V, D): index, of any shape, i64 or i32 -> (.., D). An index outside [0, V) is
 * E_RANGE, which names the index and its position. torch.nn.functional.embedding. */
TERN_API tern_tensor *tern_embedding(tern_scope *scope, tern_tensor *index, tern_tensor *weight,
                                     const tern_embedding_opts *opts);

/* Dropout: sets each element to 0 with probability p in [0, 1], and the others to x / (1 - p). The choice is
 * a function of the scope's seed and step (tern_scope_seed), its rank, the number of the draw in the step and
 * the element's position. So it does not depend on the device or the number of threads.
 * torch.nn.functional.dropout. */
TERN_API tern_tensor *tern_dropout(tern_scope *scope, tern_tensor *x, double p);
/* The same for whole channels: x (N, C, H, W) or (N, C, D, H, W), where the position is that of (sample,
 * channel). torch.nn.functional.dropout2d, dropout3d. */
TERN_API tern_tensor *tern_dropout2d(tern_scope *scope, tern_tensor *x, double p);
TERN_API tern_tensor *tern_dropout3d(tern_scope *scope, tern_tensor *x, double p);

typedef struct tern_batch_norm_act_opts {
    size_t size;
    bool training;   /* use the batch's statistics, and update the running ones; default true */
    double momentum; /* weight of the new statistics in the running ones; default 0.1         */
    double eps;      /* added to the variance; default 1e-5                                     */
    bool relu;       /* apply max(., 0) at the end; default false                              */
} tern_batch_norm_act_opts;
TERN_API tern_batch_norm_act_opts tern_batch_norm_act_defaults(void);

/* Returns act(batch_norm(x) + residual) as one op. x is (N, C, ...), residual has x's shape, all others are
 * (C). Any of them may be NULL; the running statistics only in training. As in
 * torch.nn.functional.batch_norm, the biased variance normalises and the unbiased one enters running_var; in
 * training both running statistics are updated in place. */
TERN_API tern_tensor *tern_batch_norm_act(tern_scope *scope, tern_tensor *x, tern_tensor *running_mean,
                                          tern_tensor *running_var, tern_tensor *weight, tern_tensor *bias,
                                          tern_tensor *residual, const tern_batch_norm_act_opts *opts);

typedef struct tern_layer_norm_opts {
    size_t size;
    int ndim;   /* number of dimensions, the last ones, to normalise over; default 1  */
    double eps; /* added to the variance; default 1e-5                                */
} tern_layer_norm_opts;
TERN_API tern_layer_norm_opts tern_layer_norm_defaults(void);

/* Layer norm: (x - mean) / sqrt(var + eps) weight + bias, with the mean and the biased variance of each
 * sample over the last `ndim` dimensions. weight and bias have the shape of these, or are NULL; they may be
 * f32 if x is of a 16-bit type. torch.nn.functional.layer_norm. */
TERN_API tern_tensor *tern_layer_norm(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                      tern_tensor *bias, const tern_layer_norm_opts *opts);
/* Group norm: the same over each of `groups` groups of adjacent channels of each sample; x (N, C, ...),
 * weight and bias (C). As many groups as channels is instance norm. torch.nn.functional.group_norm. */
TERN_API tern_tensor *tern_group_norm(tern_scope *scope, tern_tensor *x, int64_t groups, tern_tensor *weight,
                                      tern_tensor *bias, double eps);

typedef struct tern_pool2d_opts {
    size_t size;
    int64_t stride[2];      /* height, width; default 0, 0: the kernel's size                 */
    int64_t padding[2];     /* on both sides, at most half the kernel; default 0, 0           */
    bool count_include_pad; /* average only: padding counts as zeros; default true            */
    int64_t dilation[2];    /* maximum only; default 1, 1                                     */
    bool ceil_mode;         /* add a last window that ends beyond the padding; default false  */
} tern_pool2d_opts;
TERN_API tern_pool2d_opts tern_pool2d_defaults(void);

/* Pooling: returns the largest element, or the mean, of each window. x (N, C, H, W) -> (N, C, H', W'), with
 * H' = (H + 2 padding - dilation (kernel - 1) - 1) / stride + 1 and W' alike; a sample (C, H, W) without N is
 * accepted too, also by the other pools. torch.nn.functional.max_pool2d, avg_pool2d. */
TERN_API tern_tensor *tern_max_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                                      const tern_pool2d_opts *opts);
TERN_API tern_tensor *tern_avg_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                                      const tern_pool2d_opts *opts);

typedef struct tern_pool3d_opts {
    size_t size;
    int64_t stride[3];      /* depth, height, width; default 0, 0, 0: the kernel's size       */
    int64_t padding[3];     /* on both sides, at most half the kernel; default 0, 0, 0        */
    bool count_include_pad; /* average only: padding counts as zeros; default true            */
    int64_t dilation[3];    /* maximum only; default 1, 1, 1                                  */
    bool ceil_mode;         /* add a last window that ends beyond the padding; default false  */
} tern_pool3d_opts;
TERN_API tern_pool3d_opts tern_pool3d_defaults(void);

/* Pooling of volumes: x (N, C, D, H, W) -> (N, C, D', H', W'). torch.nn.functional.max_pool3d, avg_pool3d. */
TERN_API tern_tensor *tern_max_pool3d(tern_scope *scope, tern_tensor *x, int64_t kernel_d, int64_t kernel_h,
                                      int64_t kernel_w, const tern_pool3d_opts *opts);
TERN_API tern_tensor *tern_avg_pool3d(tern_scope *scope, tern_tensor *x, int64_t kernel_d, int64_t kernel_h,
                                      int64_t kernel_w, const tern_pool3d_opts *opts);

/* Adaptive average pooling: divides x's plane (or volume) into height x width equal parts, and returns the
 * mean of all elements that each part touches. x (N, C, H, W) -> (N, C, height, width), or (N, C, D, H, W) ->
 * (N, C, depth, height, width). torch.nn.functional.adaptive_avg_pool2d, adaptive_avg_pool3d, and interpolate
 * with mode="area". */
TERN_API tern_tensor *tern_adaptive_avg_pool2d(tern_scope *scope, tern_tensor *x, int64_t height,
                                               int64_t width);
TERN_API tern_tensor *tern_adaptive_avg_pool3d(tern_scope *scope, tern_tensor *x, int64_t depth,
                                               int64_t height, int64_t width);

/* Returns the mean over all positions: x (N, C, ..) -> (N, C). torch.nn.AdaptiveAvgPool2d(1) and a
 * flatten. */
TERN_API tern_tensor *tern_global_avg_pool(tern_scope *scope, tern_tensor *x);

typedef enum tern_interpolation { TERN_INTERPOLATE_NEAREST, TERN_INTERPOLATE_LINEAR } tern_interpolation;

typedef struct tern_interpolate_opts {
    size_t size;
    tern_interpolation mode; /* default TERN_INTERPOLATE_NEAREST */
    bool align_corners;      /* linear: align the centres of the first and last elements; false: their
                              * outer edges; default false                                          */
    int64_t shape[3];        /* the result's spatial sizes, in order; default 0s: use `scale`       */
    double scale[3];         /* the result's sizes are x's times these, rounded down; 0: as the first;
                              * default 2, 0, 0                                                     */
} tern_interpolate_opts;
TERN_API tern_interpolate_opts tern_interpolate_defaults(void);

/* Resizes x (N, C, L), (N, C, H, W) or (N, C, D, H, W); dtype and layout stay. An element of the result is
 * the nearest one of x (the one in which it begins, as with PyTorch's mode="nearest"), or a weighted sum of
 * two along each dimension: linear, bilinear, trilinear. A given scale is also the distance from element to
 * element, even if the size was rounded. E_INVALID: a shape or scale for more dimensions than x has, or
 * align_corners with nearest; E_RANGE: a scale not above 0; E_SHAPE: a dimension would have size 0.
 * torch.nn.functional.interpolate. */
TERN_API tern_tensor *tern_interpolate(tern_scope *scope, tern_tensor *x, const tern_interpolate_opts *opts);

/* ---- element by element ----
 *
 * Shapes are broadcast as in PyTorch: they are aligned at their last dimensions, and a dimension that is
 * missing or of size 1 is repeated. All inputs must have the same dtype (E_DTYPE; see tern_cast); ops that
 * are not defined for integers are E_DTYPE for them. A NaN in the input gives NaN. tern_full makes a
 * scalar. */

/* a + b, a - b, a * b, a / b, base ^ exponent. torch.add, sub, mul, div, pow. */
TERN_API tern_tensor *tern_add(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_sub(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_mul(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_div(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_pow(tern_scope *scope, tern_tensor *base, tern_tensor *exponent);
/* The larger, or smaller, of a and b; equal elements share the gradient. torch.maximum, minimum. */
TERN_API tern_tensor *tern_maximum(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_minimum(tern_scope *scope, tern_tensor *a, tern_tensor *b);
/* a == b, a != b, a < b, a <= b, a > b, a >= b, as bool; no gradient. torch.eq, ne, lt, le, gt, ge. */
TERN_API tern_tensor *tern_eq(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_ne(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_lt(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_le(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_gt(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_ge(tern_scope *scope, tern_tensor *a, tern_tensor *b);
/* a where the condition (of any dtype) is not 0, else b. torch.where. */
TERN_API tern_tensor *tern_where(tern_scope *scope, tern_tensor *condition, tern_tensor *a, tern_tensor *b);

/* -x, |x|, e^x, ln x, the square root, tanh x, 1 / (1 + e^-x), max(x, 0). torch.neg, abs, exp, log, sqrt,
 * tanh, sigmoid, relu. */
TERN_API tern_tensor *tern_neg(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_abs(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_exp(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_log(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_sqrt(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_tanh(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_sigmoid(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_relu(tern_scope *scope, tern_tensor *x);
/* x sigmoid(x). torch.nn.functional.silu. */
TERN_API tern_tensor *tern_silu(tern_scope *scope, tern_tensor *x);
/* x Phi(x), where Phi is the normal distribution function, computed with erf, or with tanh if `approximate`
 * (Hendrycks and Gimpel 2016). torch.nn.functional.gelu. */
TERN_API tern_tensor *tern_gelu(tern_scope *scope, tern_tensor *x, bool approximate);
/* x > 0 ? x : slope x. torch.nn.functional.leaky_relu. */
TERN_API tern_tensor *tern_leaky_relu(tern_scope *scope, tern_tensor *x, double slope);
/* scale x + shift, so 1 - x is tern_affine(s, x, -1, 1). Python's arithmetic of a tensor and numbers. */
TERN_API tern_tensor *tern_affine(tern_scope *scope, tern_tensor *x, double scale, double shift);
/* x limited to [low, high]; -INFINITY and INFINITY for no limit. Integers stay integers: the limits are
 * rounded inwards. E_RANGE: the dtype has no number from low on, or none up to high. torch.clamp. */
TERN_API tern_tensor *tern_clamp(tern_scope *scope, tern_tensor *x, double low, double high);

/* exp(x) / sum exp(x) along `dim`, and the logarithm of that. A negative `dim`, here and below, counts from
 * the end. torch.nn.functional.softmax, log_softmax. */
TERN_API tern_tensor *tern_softmax(tern_scope *scope, tern_tensor *x, int dim);
TERN_API tern_tensor *tern_log_softmax(tern_scope *scope, tern_tensor *x, int dim);

/* ---- reductions ---- */

/* The sum, or the mean, of all elements -> (). Sums of integers are i64. torch.sum, mean. */
TERN_API tern_tensor *tern_sum(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_mean(tern_scope *scope, tern_tensor *x);
/* The sum, mean, maximum or minimum over the `count` dimensions `dims`; count 0: over all. With `keep` these
 * dimensions stay, with size 1. Equal maxima or minima share the gradient. torch.sum, mean, amax, amin. */
TERN_API tern_tensor *tern_sum_dims(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep);
TERN_API tern_tensor *tern_mean_dims(tern_scope *scope, tern_tensor *x, int count, const int *dims,
                                     bool keep);
TERN_API tern_tensor *tern_amax(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep);
TERN_API tern_tensor *tern_amin(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep);

/* The index (i64) of the largest, or smallest, element along a dimension; of equal ones, the first. NaN
 * counts as the largest and as the smallest. No gradient. torch.argmax, argmin. */
TERN_API tern_tensor *tern_argmax(tern_scope *scope, tern_tensor *x, int dim, bool keep);
TERN_API tern_tensor *tern_argmin(tern_scope *scope, tern_tensor *x, int dim, bool keep);
/* The largest, or smallest, element along a dimension, which gets all of the gradient, and in *index its
 * index; `index` may be NULL. torch.max, min with a dimension. */
TERN_API tern_tensor *tern_max_dim(tern_scope *scope, tern_tensor *x, int dim, bool keep,
                                   tern_tensor **index);
TERN_API tern_tensor *tern_min_dim(tern_scope *scope, tern_tensor *x, int dim, bool keep,
                                   tern_tensor **index);
/* The k largest, or smallest, elements along a dimension, in order, and in *index their indices (i64);
 * `index` may be NULL. Of equal elements the first comes first; NaN is the largest. E_RANGE: k is not in [0,
 * the dimension's size]. torch.topk. */
TERN_API tern_tensor *tern_topk(tern_scope *scope, tern_tensor *x, int64_t k, int dim, bool largest,
                                tern_tensor **index);

/* The sum of each element and those before it along a dimension; those of integers are i64. torch.cumsum. */
TERN_API tern_tensor *tern_cumsum(tern_scope *scope, tern_tensor *x, int dim);

/* ---- shapes, views and copies. A view shares x's memory. It needs a plain layout: a blocked x is copied
 * first ---- */

/* The same elements with another shape; one dimension may be -1, and is then computed. torch.reshape. */
TERN_API tern_tensor *tern_reshape(tern_scope *scope, tern_tensor *x, int ndim, const int64_t *shape);
/* A copy of x, repeated to this shape by the rules of broadcasting; -1 keeps a dimension's size. E_SHAPE: x
 * does not fit. torch.Tensor.expand, but with memory of its own. */
TERN_API tern_tensor *tern_expand(tern_scope *scope, tern_tensor *x, int ndim, const int64_t *shape);
/* Joins all dimensions from first_dim on to one. torch.flatten. */
TERN_API tern_tensor *tern_flatten(tern_scope *scope, tern_tensor *x, int first_dim);

/* Views: reorder dimensions, where dimension d of the result is dims[d] of x; exchange two dimensions; take
 * every `step`-th index of a dimension from start up to, but not including, stop, with Python's rules for
 * indices; take one index, and remove the dimension. torch.permute, transpose, x[start:stop:step], select. */
TERN_API tern_tensor *tern_permute(tern_scope *scope, tern_tensor *x, int count, const int *dims);
TERN_API tern_tensor *tern_transpose(tern_scope *scope, tern_tensor *x, int dim0, int dim1);
TERN_API tern_tensor *tern_slice(tern_scope *scope, tern_tensor *x, int dim, int64_t start, int64_t stop,
                                 int64_t step);
TERN_API tern_tensor *tern_select(tern_scope *scope, tern_tensor *x, int dim, int64_t index);
/* The lower, or upper, triangle of each matrix in the last two dimensions: elements above, or below, a
 * diagonal become 0. Diagonal 0 is the main one, 1 the one above it. torch.tril, triu. */
TERN_API tern_tensor *tern_tril(tern_scope *scope, tern_tensor *x, int64_t diagonal);
TERN_API tern_tensor *tern_triu(tern_scope *scope, tern_tensor *x, int64_t diagonal);
/* Splits x along `dim` into views of `size`, the last one possibly smaller; stores them in parts[0..n) and
 * returns n. E_RANGE if there are more than `room`. torch.split. */
TERN_API int tern_split(tern_scope *scope, tern_tensor *x, int64_t size, int dim, tern_tensor **parts,
                        int room);
/* Joins `count` tensors one after the other along `dim`; or stacks them along a new dimension. torch.cat,
 * stack. */
TERN_API tern_tensor *tern_cat(tern_scope *scope, int count, tern_tensor *const *x, int dim);
TERN_API tern_tensor *tern_stack(tern_scope *scope, int count, tern_tensor *const *x, int dim);
/* Returns x itself if it is row-major without gaps, else a copy that is. torch.Tensor.contiguous. */
TERN_API tern_tensor *tern_contiguous(tern_scope *scope, tern_tensor *x);
/* A copy, with gradient; a copy in another dtype (x itself if it has that dtype), whose gradient is cast
 * back; a tensor on the same memory without gradient. torch.clone, Tensor.to, detach. */
TERN_API tern_tensor *tern_clone(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_cast(tern_scope *scope, tern_tensor *x, tern_dtype dtype);
TERN_API tern_tensor *tern_detach(tern_scope *scope, tern_tensor *x);
/* A copy on `device`, or x itself if it is there; the gradient goes back to x's device. An op runs on the
 * device of its inputs; inputs on two devices are E_INVALID. torch.Tensor.to(device). */
TERN_API tern_tensor *tern_to(tern_scope *scope, tern_tensor *x, tern_device *device);

/* ---- new tensors ---- */

/* A tensor with all elements equal to `value`; ndim 0 makes a scalar. Integers are rounded towards 0.
 * E_RANGE: the integer dtype does not have the value, also NaN; bool has all. torch.full. */
TERN_API tern_tensor *tern_full(tern_scope *scope, tern_dtype dtype, int ndim, const int64_t *shape,
                                double value);
/* f32 tensors drawn uniformly from [0, 1), or from the normal distribution, with the bits of torch.rand and
 * torch.randn. */
TERN_API tern_tensor *tern_rand(tern_scope *scope, tern_rng *rng, int ndim, const int64_t *shape);
TERN_API tern_tensor *tern_randn(tern_scope *scope, tern_rng *rng, int ndim, const int64_t *shape);

#ifdef __cplusplus
}
#endif
#endif
