/* ops.h - operations on tensors, with gradient where they have one. Every op takes the scope first, belongs
 * to it, returns NULL after a failure and takes NULL silently. Names and shapes are PyTorch's.
 *
 * Threads: as the scope. */
#ifndef TERN_OPS_H
#define TERN_OPS_H

#include <tern/autograd.h>
#include <tern/pad.h>
#include <tern/rng.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y (.., O) = x (.., I) weight^T + bias; weight (O, I), bias (O) or NULL. torch.nn.functional.linear. */
TERN_API tern_tensor *tern_linear(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias);

/* The same, then max(y, 0) if `relu`, as one operation: values and gradients are those of tern_relu after
 * tern_linear, whose name errors have too. On a GPU NaN may become 0 (docs/gpu.md). */
TERN_API tern_tensor *tern_linear_act(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                      tern_tensor *bias, bool relu);

/* Products of matrices, a (.., m, k) and b (.., k, n) -> (.., m, n), whose batches are broadcast together; a
 * vector (k) is a row of a or a column of b, and leaves no dimension. torch.matmul. */
TERN_API tern_tensor *tern_matmul(tern_scope *scope, tern_tensor *a, tern_tensor *b);

typedef struct tern_embedding_opts {
    size_t size;
    int64_t padding_idx; /* whose row gets no gradient; default -1: none */
} tern_embedding_opts;
TERN_API tern_embedding_opts tern_embedding_defaults(void);

/* Row index[..] of weight (V, D): index of any shape, i64 or i32 -> (.., D). An index outside [0, V) is
 * E_RANGE naming it and its place. torch.nn.functional.embedding. */
TERN_API tern_tensor *tern_embedding(tern_scope *scope, tern_tensor *weight, tern_tensor *index,
                                     const tern_embedding_opts *opts);

/* Each element is 0 with probability p in [0, 1], else x / (1 - p). Which ones: a function of the scope's
 * seed and step (tern_scope_seed), the rank of its group, the number of the draw in the step and the place in
 * x; so no thread count and no device changes it. torch.nn.functional.dropout. */
TERN_API tern_tensor *tern_dropout(tern_scope *scope, tern_tensor *x, double p);
/* The same of whole channels: x (N, C, H, W) and (N, C, D, H, W), and the place is that of (sample, channel).
 * torch.nn.functional.dropout2d, dropout3d. */
TERN_API tern_tensor *tern_dropout2d(tern_scope *scope, tern_tensor *x, double p);
TERN_API tern_tensor *tern_dropout3d(tern_scope *scope, tern_tensor *x, double p);

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

typedef struct tern_layer_norm_opts {
    size_t size;
    int ndim;   /* how many dimensions, the last ones, are normalised over; default 1 */
    double eps; /* added to the variance; default 1e-5                                */
} tern_layer_norm_opts;
TERN_API tern_layer_norm_opts tern_layer_norm_defaults(void);

/* (x - mean) / sqrt(var + eps) weight + bias with the mean and the biased variance of each sample over the
 * last dimensions, whose shape weight and bias have; both may be NULL. Beside 16-bit types they may be f32.
 * torch.nn.functional.layer_norm. */
TERN_API tern_tensor *tern_layer_norm(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                      tern_tensor *bias, const tern_layer_norm_opts *opts);
/* The same over each of `groups` groups of neighbouring channels of each sample: x (N, C, ...), weight and
 * bias (C). As many groups as channels is instance norm. torch.nn.functional.group_norm. */
TERN_API tern_tensor *tern_group_norm(tern_scope *scope, tern_tensor *x, int64_t groups, tern_tensor *weight,
                                      tern_tensor *bias, double eps);

typedef struct tern_pool2d_opts {
    size_t size;
    int64_t stride[2];      /* height, width; default 0, 0: the kernel's size            */
    int64_t padding[2];     /* on both sides, at most half the kernel; default 0, 0      */
    bool count_include_pad; /* average: padding counts as zeros; default true            */
    int64_t dilation[2];    /* maximum only; default 1, 1                                */
    bool ceil_mode;         /* a last window that ends beyond the padding; default false */
} tern_pool2d_opts;
TERN_API tern_pool2d_opts tern_pool2d_defaults(void);

/* The largest, or the mean, of each window: x (N, C, H, W) -> (N, C, H', W') with H' = (H + 2 padding -
 * dilation (kernel - 1) - 1) / stride + 1. Pools take one sample without N, too, and return one.
 * torch.nn.functional.max_pool2d, avg_pool2d. */
TERN_API tern_tensor *tern_max_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                                      const tern_pool2d_opts *opts);
TERN_API tern_tensor *tern_avg_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                                      const tern_pool2d_opts *opts);

typedef struct tern_pool3d_opts {
    size_t size;
    int64_t stride[3];      /* depth, height, width; default 0, 0, 0: the kernel's size  */
    int64_t padding[3];     /* on both sides, at most half the kernel; default 0, 0, 0   */
    bool count_include_pad; /* average: padding counts as zeros; default true            */
    int64_t dilation[3];    /* maximum only; default 1, 1, 1                             */
    bool ceil_mode;         /* a last window that ends beyond the padding; default false */
} tern_pool3d_opts;
TERN_API tern_pool3d_opts tern_pool3d_defaults(void);

/* The same of volumes: x (N, C, D, H, W) -> (N, C, D', H', W'). torch.nn.functional.max_pool3d, avg_pool3d.
 */
TERN_API tern_tensor *tern_max_pool3d(tern_scope *scope, tern_tensor *x, int64_t kernel_d, int64_t kernel_h,
                                      int64_t kernel_w, const tern_pool3d_opts *opts);
TERN_API tern_tensor *tern_avg_pool3d(tern_scope *scope, tern_tensor *x, int64_t kernel_d, int64_t kernel_h,
                                      int64_t kernel_w, const tern_pool3d_opts *opts);

/* x's plane, or volume, in height x width equal parts, and the mean over all elements that each of them
 * touches: x (N, C, H, W) -> (N, C, height, width), (N, C, D, H, W) -> (N, C, depth, height, width).
 * torch.nn.functional.adaptive_avg_pool2d, adaptive_avg_pool3d; also what interpolate calls area. */
TERN_API tern_tensor *tern_adaptive_avg_pool2d(tern_scope *scope, tern_tensor *x, int64_t height,
                                               int64_t width);
TERN_API tern_tensor *tern_adaptive_avg_pool3d(tern_scope *scope, tern_tensor *x, int64_t depth,
                                               int64_t height, int64_t width);

/* The mean over all positions: x (N, C, ..) -> (N, C). torch.nn.AdaptiveAvgPool2d(1) and a flatten. */
TERN_API tern_tensor *tern_global_avg_pool(tern_scope *scope, tern_tensor *x);

typedef enum tern_interpolation { TERN_INTERPOLATE_NEAREST, TERN_INTERPOLATE_LINEAR } tern_interpolation;

typedef struct tern_interpolate_opts {
    size_t size;
    tern_interpolation mode; /* default TERN_INTERPOLATE_NEAREST */
    bool align_corners;      /* linear: the middles of first and last elements fall together, else their
                              * outer edges; default false                                           */
    int64_t shape[3];        /* the result's spatial sizes, in order; default 0s: by scale           */
    double scale[3];         /* or: x's times these, rounded down; 0: as the first; default 2, 0, 0  */
} tern_interpolate_opts;
TERN_API tern_interpolate_opts tern_interpolate_defaults(void);

/* x (N, C, L), (N, C, H, W) or (N, C, D, H, W) with other spatial sizes, in x's dtype and layout: each
 * element is the nearest one of x (the one in which it begins, as PyTorch's mode="nearest"), or a weighted
 * sum of two along each dimension: linear, bilinear, trilinear. A given scale is also the step from element
 * to element, even if the size was rounded. A shape or scale of more dimensions than x has, or align_corners
 * for the nearest: E_INVALID; a scale not above 0: E_RANGE; nothing left of a dimension: E_SHAPE.
 * torch.nn.functional.interpolate. */
TERN_API tern_tensor *tern_interpolate(tern_scope *scope, tern_tensor *x, const tern_interpolate_opts *opts);

/* ---- element by element, with PyTorch's broadcasting: shapes are aligned at their last dimensions, and a
 * dimension that is missing or 1 is repeated. Inputs have one dtype (E_DTYPE; tern_cast); where it is an
 * integer, ops without a meaning for it are E_DTYPE too. A NaN that goes in comes out. tern_full makes a
 * scalar. ---- */

TERN_API tern_tensor *tern_add(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_sub(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_mul(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_div(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_pow(tern_scope *scope, tern_tensor *base, tern_tensor *exponent);
/* Equal elements share the gradient. */
TERN_API tern_tensor *tern_maximum(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_minimum(tern_scope *scope, tern_tensor *a, tern_tensor *b);
/* a == b, a != b, a < b, a <= b, a > b, a >= b -> bool. No gradient. */
TERN_API tern_tensor *tern_eq(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_ne(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_lt(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_le(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_gt(tern_scope *scope, tern_tensor *a, tern_tensor *b);
TERN_API tern_tensor *tern_ge(tern_scope *scope, tern_tensor *a, tern_tensor *b);
/* a where the condition (of any dtype) is not 0, else b. */
TERN_API tern_tensor *tern_where(tern_scope *scope, tern_tensor *condition, tern_tensor *a, tern_tensor *b);

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
/* x Phi(x) by erf, or `approximate` by tanh (Hendrycks and Gimpel 2016). torch.nn.functional.gelu. */
TERN_API tern_tensor *tern_gelu(tern_scope *scope, tern_tensor *x, bool approximate);
/* x > 0 ? x : slope x. torch.nn.functional.leaky_relu. */
TERN_API tern_tensor *tern_leaky_relu(tern_scope *scope, tern_tensor *x, double slope);
/* scale x + shift: 1 - x is tern_affine(s, x, -1, 1). Python's arithmetic of a tensor and numbers. */
TERN_API tern_tensor *tern_affine(tern_scope *scope, tern_tensor *x, double scale, double shift);
/* Into [low, high]; -INFINITY or INFINITY for none. Integers stay integers: bounds are rounded inwards.
 * torch.clamp. */
TERN_API tern_tensor *tern_clamp(tern_scope *scope, tern_tensor *x, double low, double high);

/* exp(x) / sum exp(x) along `dim`, negative ones counted from the end, and its logarithm.
 * torch.nn.functional.softmax, log_softmax. */
TERN_API tern_tensor *tern_softmax(tern_scope *scope, tern_tensor *x, int dim);
TERN_API tern_tensor *tern_log_softmax(tern_scope *scope, tern_tensor *x, int dim);

/* ---- reductions ---- */

/* The sum and the mean of all elements -> (). Sums of integers are i64. */
TERN_API tern_tensor *tern_sum(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_mean(tern_scope *scope, tern_tensor *x);
/* Over `count` dimensions, negative ones counted from the end; 0: over all. `keep`: they stay, with size 1.
 * torch.sum, mean, amax, amin: equal extremes share the gradient. */
TERN_API tern_tensor *tern_sum_dims(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep);
TERN_API tern_tensor *tern_mean_dims(tern_scope *scope, tern_tensor *x, int count, const int *dims,
                                     bool keep);
TERN_API tern_tensor *tern_amax(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep);
TERN_API tern_tensor *tern_amin(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep);

/* The place (i64) along a dimension of the largest, or smallest, element: the first one of equals; NaN is the
 * largest and the smallest. No gradient. torch.argmax, argmin. */
TERN_API tern_tensor *tern_argmax(tern_scope *scope, tern_tensor *x, int dim, bool keep);
TERN_API tern_tensor *tern_argmin(tern_scope *scope, tern_tensor *x, int dim, bool keep);
/* That element, which gets all of the gradient, and its place in *index; `index` may be NULL. torch.max, min
 * with a dimension. */
TERN_API tern_tensor *tern_max_dim(tern_scope *scope, tern_tensor *x, int dim, bool keep,
                                   tern_tensor **index);
TERN_API tern_tensor *tern_min_dim(tern_scope *scope, tern_tensor *x, int dim, bool keep,
                                   tern_tensor **index);

/* ---- shapes and copies. Views share the memory of x; they are made of plain layouts, into which blocked
 * ones are brought first. ---- */

/* The same elements under another shape, of which one dimension may be -1: whatever is left. torch.reshape.
 */
TERN_API tern_tensor *tern_reshape(tern_scope *scope, tern_tensor *x, int ndim, const int64_t *shape);
/* A copy of x repeated to this shape, by the rules of broadcasting: dimensions of size 1 and new ones in
 * front; -1 leaves a dimension as it is. E_SHAPE: x does not fit. torch.Tensor.expand, in memory of its own.
 */
TERN_API tern_tensor *tern_expand(tern_scope *scope, tern_tensor *x, int ndim, const int64_t *shape);
/* All dimensions from first_dim on become one; negative ones count from the end. torch.flatten. */
TERN_API tern_tensor *tern_flatten(tern_scope *scope, tern_tensor *x, int first_dim);

/* Views: dimension d of the result is dims[d] of x; two dimensions change places; the part from start up to
 * and without stop, counted and cut as Python does, each step'th; one index of a dimension, which disappears.
 * torch.permute, transpose, x[start:stop:step], select. */
TERN_API tern_tensor *tern_permute(tern_scope *scope, tern_tensor *x, int count, const int *dims);
TERN_API tern_tensor *tern_transpose(tern_scope *scope, tern_tensor *x, int dim0, int dim1);
TERN_API tern_tensor *tern_slice(tern_scope *scope, tern_tensor *x, int dim, int64_t start, int64_t stop,
                                 int64_t step);
TERN_API tern_tensor *tern_select(tern_scope *scope, tern_tensor *x, int dim, int64_t index);
/* Parts of `size` along `dim`, the last one perhaps smaller, as views: written to parts[0 .. result). E_RANGE
 * if there are more than `room`. torch.split. */
TERN_API int tern_split(tern_scope *scope, tern_tensor *x, int64_t size, int dim, tern_tensor **parts,
                        int room);
/* One after the other along `dim`; side by side along a new dimension. torch.cat, stack. */
TERN_API tern_tensor *tern_cat(tern_scope *scope, int count, tern_tensor *const *x, int dim);
TERN_API tern_tensor *tern_stack(tern_scope *scope, int count, tern_tensor *const *x, int dim);
/* x itself if it is row-major without gaps, else a copy that is. torch.Tensor.contiguous. */
TERN_API tern_tensor *tern_contiguous(tern_scope *scope, tern_tensor *x);
/* A copy with gradient; the same in another dtype (x itself if it has that one), whose gradient is cast back;
 * the same memory without gradient. torch.clone, Tensor.to, detach. */
TERN_API tern_tensor *tern_clone(tern_scope *scope, tern_tensor *x);
TERN_API tern_tensor *tern_cast(tern_scope *scope, tern_tensor *x, tern_dtype dtype);
TERN_API tern_tensor *tern_detach(tern_scope *scope, tern_tensor *x);
/* A copy on `device`, x itself if it is there; its gradient goes back to where x is. An op runs where its
 * inputs are, and inputs on two devices are E_INVALID. torch.Tensor.to(device). */
TERN_API tern_tensor *tern_to(tern_scope *scope, tern_tensor *x, tern_device *device);

/* ---- new tensors ---- */

/* Every element `value`; ndim 0 for a scalar. torch.full. */
TERN_API tern_tensor *tern_full(tern_scope *scope, tern_dtype dtype, int ndim, const int64_t *shape,
                                double value);
/* f32 from U(0, 1) and from the normal distribution, bit for bit torch.rand and torch.randn. */
TERN_API tern_tensor *tern_rand(tern_scope *scope, tern_rng *rng, int ndim, const int64_t *shape);
TERN_API tern_tensor *tern_randn(tern_scope *scope, tern_rng *rng, int ndim, const int64_t *shape);

#ifdef __cplusplus
}
#endif
#endif
