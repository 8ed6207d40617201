/* ops.h - helpers that ops share. */
#ifndef TERN_SRC_OPS_H
#define TERN_SRC_OPS_H

#include "autograd/autograd.h"
#include "base/opts.h"
#include "kernels/dropout.h"

#include <tern/ops.h>

/* Returns x if it is row-major and dense, else a copy, with gradient. NULL on failure. */
tern_tensor *tern__plain(tern_scope *scope, tern_tensor *x);
/* The same, but keeps x's layout (dense), or brings x into `layout`, which x's shape must allow (laid_out).
 */
tern_tensor *tern__dense(tern_scope *scope, tern_tensor *x);
tern_tensor *tern__laid_out(tern_scope *scope, tern_tensor *x, tern__layout layout);
/* Returns the layout of a convolution's result with `channels` channels on this device; never blocked in f64.
 */
tern__layout tern__layout_of(const tern_device *device, tern_dtype dtype, int64_t channels);
/* Returns the layout in which convolutions on this device take the weight. */
tern__layout tern__weight_layout(const tern_device *device, const tern__view *weight);

/* Computes to = from or to += from. They have one shape, and any dtypes, strides and layouts. False on
 * failure. */
bool tern__copy(tern_scope *scope, const tern__view *to, const tern__view *from);
bool tern__copy_into(tern_scope *scope, const tern__view *to, const tern__view *from, bool add);
bool tern__fill(tern_scope *scope, const tern__view *to, double value);
/* Sums over nothing: fills the outputs of `call` that it does not add to with zeros. */
bool tern__fill_zeros(tern_scope *scope, const tern__call *call);

/* Stores or adds `from`, of any dtype and layout, into the gradient of input i. NULL stands for zeros. */
int tern__grad_store(tern_scope *scope, tern__node *node, int i, const tern__view *from);

/* Returns x in another dtype, with gradient, on the running op's device. */
tern_tensor *tern__cast(tern_scope *scope, tern_tensor *x, tern_dtype dtype);
/* The same for a parameter. One that may be a convolution's weight gets a weight's layout. */
tern_tensor *tern__cast_parameter(tern_scope *scope, tern_tensor *x, tern_dtype dtype);

/* Makes a result that shares x's memory as `view`, or a copy if x may still move (a parameter before the
 * seal). */
tern_tensor *tern__share(tern_scope *scope, tern_tensor *x, const tern__view *view);

/* Padding: `before` and `after` lines around each dimension, filled with `value` in the mode ZEROS. */
typedef struct tern__padding {
    tern_padding_mode mode;
    double value;
    int64_t before[TERN_NDIM_MAX], after[TERN_NDIM_MAX];
} tern__padding;
tern_tensor *tern__pad(tern_scope *scope, const char *func, tern_tensor *x, const tern__padding *p);
/* Returns TERN_OK if `mode` is a padding mode, else E_INVALID. */
int tern__padding_mode_check(tern_scope *scope, const char *func, const char *op, int64_t mode);

/* Reads an op's options over the defaults in `own` (base/opts.h). Returns TERN_OK, or the scope's error. */
static inline int tern__scope_opts(tern_scope *scope, void *own, size_t size, const void *opts,
                                   const char *func)
{
    tern_error err = {0};
    return tern__opts_read(own, size, opts, func, &err) ? tern__scope_fail_with(scope, &err) : TERN_OK;
}

/* tern_linear with a weight (I, O): neither the weight nor its gradient is copied to turn it. */
tern_tensor *tern__linear_turned(tern_scope *scope, tern_tensor *x, tern_tensor *weight, tern_tensor *bias);
/* Returns y + x weight^T in y's memory, for y (.., O), the result of a product that nothing else will use, x
 * (.., I) and a weight (O, I), which are cast to y's dtype. */
tern_tensor *tern__linear_add(tern_scope *scope, tern_tensor *y, tern_tensor *x, tern_tensor *weight);

/* Adds a batch dimension of one, and drops it again. */
tern_tensor *tern__batch_of_one(tern_scope *scope, tern_tensor *x);
tern_tensor *tern__without_batch(tern_scope *scope, tern_tensor *x);

/* tern_scaled_dot_product_attention, of which a mask and is_causal may be given together. */
tern_tensor *tern__attention(tern_scope *scope, tern_tensor *q, tern_tensor *k, tern_tensor *v,
                             tern_tensor *mask, const tern_attention_opts *opts);
/* Returns the attributes of the step's next mask, which drops with probability p. */
tern__dropout_attr tern__dropout_draw(tern_scope *scope, double p);

/* Returns y on the device of `like`, and a scalar there. */
tern_tensor *tern__beside(tern_scope *scope, tern_tensor *y, const tern_tensor *like);
tern_tensor *tern__number(tern_scope *scope, const tern_tensor *like, tern_dtype dtype, double value);

/* Resolves `dim`, which counts from the end if negative. -1 and E_RANGE if there is no such dimension. */
int tern__dim_of(tern_scope *scope, const char *func, const tern_tensor *x, int dim);

/* True if a number of this integer dtype, which is not bool, is equal to `value` rounded towards 0. */
bool tern__integer_holds(tern_dtype dtype, double value);
/* True if a tensor can have this shape; else E_SHAPE or E_RANGE. */
bool tern__can_be(tern_scope *scope, const char *func, tern_dtype dtype, int ndim, const int64_t *shape);
/* True if a tensor can have so many dimensions; else E_RANGE. */
bool tern__ndim_fits(tern_scope *scope, const char *func, int ndim);
/* Fails with E_SHAPE: "reshape: (2, 3) cannot be seen as (4, -1)", of which `why` is the middle. */
void tern__shape_fail(tern_scope *scope, const char *func, const tern__view *x, const char *why, int ndim,
                      const int64_t *shape);

/* Writes, for errors, ` "layer1.0.conv1"` if `weight` is a parameter of a named module, else "". Returns
 * text. */
#define TERN__LAYER_TEXT 128
const char *tern__layer_text(const tern_tensor *weight, char text[TERN__LAYER_TEXT]);

#endif
