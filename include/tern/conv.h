/* conv.h - convolutions and transposed convolutions over one, two or three spatial dimensions.
 *
 * x may be a view with gaps, or a single sample without the batch dimension; y then has none either. weight
 * and bias have x's dtype. Options may be NULL: the defaults. Errors: E_SHAPE, E_DTYPE, E_RANGE and E_INVALID
 * (options).
 *
 * Threads: as the scope. */
#ifndef TERN_CONV_H
#define TERN_CONV_H

#include <tern/pad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A value for `padding` of a convolution (not a transposed one), in any dimension: TERN_PADDING_SAME adds
 * dilation (kernel - 1), half of it, rounded down, on the left, so that the size stays. It needs stride 1
 * (E_RANGE). */
#define TERN_PADDING_SAME  (-2147483647)
#define TERN_PADDING_VALID 0

typedef struct tern_conv2d_opts {
    size_t size;
    int64_t stride[2];              /* height, width; default 1, 1 */
    int64_t padding[2];             /* on both sides, or TERN_PADDING_SAME; default 0, 0 */
    int64_t dilation[2];            /* default 1, 1 */
    int64_t groups;                 /* default 1 */
    bool bias;                      /* for tern_conv2d_new: make a bias; default true */
    tern_padding_mode padding_mode; /* which values are added; default TERN_PADDING_MODE_ZEROS */
} tern_conv2d_opts;
TERN_API tern_conv2d_opts tern_conv2d_defaults(void);

/* Convolution: x (N, C, H, W), weight (O, C / groups, kh, kw), bias (O) or NULL -> y (N, O, H', W'), with H'
 * = (H + 2 padding - dilation (kh - 1) - 1) / stride + 1 and W' alike. torch.nn.functional.conv2d. */
TERN_API tern_tensor *tern_conv2d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                                  const tern_conv2d_opts *opts);

typedef struct tern_conv3d_opts {
    size_t size;
    int64_t stride[3];              /* depth, height, width; default 1, 1, 1 */
    int64_t padding[3];             /* on both sides, or TERN_PADDING_SAME; default 0, 0, 0 */
    int64_t dilation[3];            /* default 1, 1, 1 */
    int64_t groups;                 /* default 1 */
    bool bias;                      /* for tern_conv3d_new: make a bias; default true */
    tern_padding_mode padding_mode; /* which values are added; default TERN_PADDING_MODE_ZEROS */
} tern_conv3d_opts;
TERN_API tern_conv3d_opts tern_conv3d_defaults(void);

/* Convolution of volumes: x (N, C, D, H, W), weight (O, C / groups, kd, kh, kw), bias (O) or NULL -> y (N, O,
 * D', H', W'), with sizes as in tern_conv2d. torch.nn.functional.conv3d. */
TERN_API tern_tensor *tern_conv3d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                                  const tern_conv3d_opts *opts);

typedef struct tern_conv1d_opts {
    size_t size;
    int64_t stride, padding, dilation, groups; /* default 1, 0, 1, 1 */
    bool bias;                                 /* for tern_conv1d_new; default true       */
    tern_padding_mode padding_mode;            /* as conv2d's; default TERN_PADDING_MODE_ZEROS */
} tern_conv1d_opts;
TERN_API tern_conv1d_opts tern_conv1d_defaults(void);

/* Convolution of sequences: x (N, C, L), weight (O, C / groups, k), bias (O) or NULL -> y (N, O, L').
 * torch.nn.functional.conv1d. */
TERN_API tern_tensor *tern_conv1d(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias,
                                  const tern_conv1d_opts *opts);

typedef struct tern_conv_transpose2d_opts {
    size_t size;
    int64_t stride[2], padding[2]; /* of the convolution whose gradient this is; default 1, 1 and 0, 0 */
    int64_t output_padding[2];     /* extra rows and columns; below stride or dilation; default 0, 0 */
    int64_t dilation[2], groups;   /* default 1, 1 and 1 */
    bool bias;                     /* for tern_conv_transpose2d_new; default true */
} tern_conv_transpose2d_opts;
TERN_API tern_conv_transpose2d_opts tern_conv_transpose2d_defaults(void);

/* Transposed convolution, the gradient of tern_conv2d as an op: x (N, C, H, W), weight (C, O / groups, kh,
 * kw), bias (O) or NULL -> y (N, O, H', W'), with H' = (H - 1) stride - 2 padding + dilation (kh - 1) +
 * output_padding + 1 and W' alike. torch.nn.functional.conv_transpose2d. */
TERN_API tern_tensor *tern_conv_transpose2d(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                            tern_tensor *bias, const tern_conv_transpose2d_opts *opts);

typedef struct tern_conv_transpose3d_opts {
    size_t size;
    int64_t stride[3], padding[3]; /* depth, height, width; default 1, 1, 1 and 0, 0, 0 */
    int64_t output_padding[3];     /* default 0, 0, 0 */
    int64_t dilation[3], groups;   /* default 1, 1, 1 and 1 */
    bool bias;                     /* for tern_conv_transpose3d_new; default true */
} tern_conv_transpose3d_opts;
TERN_API tern_conv_transpose3d_opts tern_conv_transpose3d_defaults(void);

/* Transposed convolution of volumes: x (N, C, D, H, W), weight (C, O / groups, kd, kh, kw), bias (O) or NULL
 * -> y (N, O, D', H', W'), with sizes as in tern_conv_transpose2d. torch.nn.functional.conv_transpose3d. */
TERN_API tern_tensor *tern_conv_transpose3d(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                            tern_tensor *bias, const tern_conv_transpose3d_opts *opts);

typedef struct tern_conv_transpose1d_opts {
    size_t size;
    int64_t stride, padding, output_padding, dilation, groups; /* default 1, 0, 0, 1, 1 */
    bool bias; /* for tern_conv_transpose1d_new; default true */
} tern_conv_transpose1d_opts;
TERN_API tern_conv_transpose1d_opts tern_conv_transpose1d_defaults(void);

/* Transposed convolution of sequences: x (N, C, L), weight (C, O / groups, k), bias (O) or NULL -> y (N, O,
 * L'). torch.nn.functional.conv_transpose1d. */
TERN_API tern_tensor *tern_conv_transpose1d(tern_scope *scope, tern_tensor *x, tern_tensor *weight,
                                            tern_tensor *bias, const tern_conv_transpose1d_opts *opts);

#ifdef __cplusplus
}
#endif
#endif
