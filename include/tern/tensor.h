/* tensor.h - tensors: shape, dtype and data.
 *
 * What an op returns belongs to the scope (autograd.h) and lives until the scope ends; what tern_keep returns
 * is yours; parameters and buffers belong to their module.
 *
 * Threads: a tensor belongs to the thread of its scope; one without a scope to one thread at a time. */
#ifndef TERN_TENSOR_H
#define TERN_TENSOR_H

#include <tern/device.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_NDIM_MAX 6

typedef struct tern_tensor tern_tensor;

TERN_API int tern_tensor_ndim(const tern_tensor *tensor);
TERN_API const int64_t *tern_tensor_shape(const tern_tensor *tensor); /* [ndim], borrowed */
TERN_API int64_t tern_tensor_count(const tern_tensor *tensor);        /* number of elements */
TERN_API tern_dtype tern_tensor_dtype(const tern_tensor *tensor);
/* Where its ops run; borrowed. NULL: with whatever it is used with (parameters that tern_module_to has not
 * placed, kept and wrapped tensors). */
TERN_API tern_device *tern_tensor_device(const tern_tensor *tensor);

/* Copies all elements out, in row-major order whatever the layout, in the tensor's dtype. `bytes` must be
 * count times the dtype's size (E_SHAPE). E_LIFETIME after the tensor's scope has ended. */
TERN_API int tern_tensor_read(const tern_tensor *tensor, void *out, size_t bytes, tern_error *err);
/* The same inwards; also for parameters and buffers. */
TERN_API int tern_tensor_write(tern_tensor *tensor, const void *in, size_t bytes, tern_error *err);

/* The value of a tensor of one element (torch.Tensor.item); NaN if it is none. */
TERN_API double tern_item(const tern_tensor *tensor);

/* Prints shape, dtype and values on stdout, at most six to a dimension. */
TERN_API void tern_print(const tern_tensor *tensor);

/* A copy, detached from any scope and tape, in plain layout. Yours: tern_tensor_free. */
TERN_API tern_tensor *tern_keep(const tern_tensor *tensor, tern_error *err);

/* A tensor over `data`, memory of yours (row-major, aligned to the element), without a copy: ops read it
 * where it is, and no gradient goes there. Between two steps you may change the values. Yours:
 * tern_tensor_free. `release(ctx)` is called exactly once, when nobody needs `data` any more; with NULL you
 * keep `data` alive as long. After a failure `data` is still yours and `release` is not called. Of no
 * elements `data` may be NULL. E_INVALID: NULL or not aligned; E_DTYPE, E_RANGE, E_SHAPE: no such tensor. */
TERN_API tern_tensor *tern_tensor_wrap(void *data, tern_dtype dtype, int ndim, const int64_t *shape,
                                       void (*release)(void *ctx), void *ctx, tern_error *err);

/* Of what tern_keep and tern_tensor_wrap returned; of any other tensor it says that it does nothing. At any
 * time, also in the middle of a step that uses it: views of the tensor keep the memory until their module
 * call returns or their scope ends, and gradients that need its values until backward has gone through them
 * or the scope ends. So `release` is called from here or, if the tensor is in use, from the tern_forward,
 * tern_backward or tern_scope_end that ends the last use, by the same thread. It may free what is its own,
 * but not use the scope. */
TERN_API void tern_tensor_free(tern_tensor *tensor);

/* The first element, where the tensor is row-major without gaps: read and write in place what the tensor
 * holds. Of a tensor in a device's own memory it is the device's address, as torch's data_ptr, which the
 * host cannot follow: tern_tensor_read and tern_tensor_write copy. NULL for another layout (tern_keep gives a
 * row-major copy) or after its scope has ended. Of a parameter, ask again each time before you write: the
 * seal may have moved it, and the kernels learn by this call that their copies of it are old. */
TERN_API void *tern_tensor_data(tern_tensor *tensor);

/* The gradient of a parameter, borrowed; of an input of the step that wants one (tern_requires_grad_set), the
 * scope's, to be asked for again after another backward. NULL if it has none. torch.Tensor.grad. */
TERN_API tern_tensor *tern_grad_get(const tern_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
