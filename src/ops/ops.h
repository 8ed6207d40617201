/* ops.h - what the ops share. */
#ifndef TERN_SRC_OPS_H
#define TERN_SRC_OPS_H

#include "autograd/autograd.h"

#include <tern/ops.h>

/* The tensor itself if it is row-major without gaps, else a copy with gradient that is. NULL after a failure.
 */
tern_tensor *tern__plain(tern_scope *scope, tern_tensor *x);
/* The same, but blocked tensors stay; the same in a layout that x's shape can have. */
tern_tensor *tern__dense(tern_scope *scope, tern_tensor *x);
tern_tensor *tern__laid_out(tern_scope *scope, tern_tensor *x, tern__layout layout);
/* The layout of a convolution's result with `channels` channels on this device (never blocked in f64). */
tern__layout tern__layout_of(const tern_device *device, tern_dtype dtype, int64_t channels);
/* The layout in which it takes its weight. */
tern__layout tern__weight_layout(const tern_device *device, const tern__view *weight);

/* to = (or +=) from, of one shape: any dtypes, strides and layouts. False after a failure. */
bool tern__copy(tern_scope *scope, const tern__view *to, const tern__view *from);
bool tern__copy_into(tern_scope *scope, const tern__view *to, const tern__view *from, bool add);
bool tern__fill(tern_scope *scope, const tern__view *to, double value);
/* Sums over nothing: fills the outputs of `call` that it does not add to with zeros. */
bool tern__fill_zeros(tern_scope *scope, const tern__call *call);

/* Into the gradient of input i: `from`, of any dtype and layout; NULL: zeros, unless there is one already. */
int tern__grad_store(tern_scope *scope, tern__node *node, int i, const tern__view *from);

/* x in another dtype, with gradient, where the running op is. */
tern_tensor *tern__cast(tern_scope *scope, tern_tensor *x, tern_dtype dtype);
/* The same of a parameter: what may be a convolution's weight is laid out as one. */
tern_tensor *tern__cast_parameter(tern_scope *scope, tern_tensor *x, tern_dtype dtype);

/* A result over x's memory, seen as `view`; a copy of it where x may move (a parameter before the seal). */
tern_tensor *tern__share(tern_scope *scope, tern_tensor *x, const tern__view *view);

/* x with `before` and `after` lines around each dimension: of `value` in the mode ZEROS. */
typedef struct tern__padding {
    tern_padding_mode mode;
    double value;
    int64_t before[TERN_NDIM_MAX], after[TERN_NDIM_MAX];
} tern__padding;
tern_tensor *tern__pad(tern_scope *scope, const char *func, tern_tensor *x, const tern__padding *p);
/* TERN_OK if there is such a mode; else E_INVALID. */
int tern__padding_mode_check(tern_scope *scope, const char *func, const char *op, int64_t mode);

/* x as a batch of one; and back. */
tern_tensor *tern__batch_of_one(tern_scope *scope, tern_tensor *x);
tern_tensor *tern__without_batch(tern_scope *scope, tern_tensor *x);

/* The dimension that `dim` means, negative ones counted from the end; -1 after E_RANGE. */
int tern__dim_of(tern_scope *scope, const char *func, const tern_tensor *x, int dim);

/* True if a tensor of this shape can be; else E_SHAPE or E_RANGE. */
bool tern__can_be(tern_scope *scope, const char *func, tern_dtype dtype, int ndim, const int64_t *shape);

/* For errors: ` "layer1.0.conv1"` if `weight` is a parameter of a module with a name, else "". Returns text.
 */
#define TERN__LAYER_TEXT 128
const char *tern__layer_text(const tern_tensor *weight, char text[TERN__LAYER_TEXT]);

#endif
