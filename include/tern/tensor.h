/* tensor.h - tensors: shape, dtype and data.
 *
 * A tensor that an op returns belongs to the scope (autograd.h) and lives until the scope ends. One that
 * tern_keep or tern_tensor_wrap returns is yours. Parameters and buffers belong to their module.
 *
 * Threads: a tensor belongs to the thread of its scope; one without a scope belongs to one thread at a
 * time. */
#ifndef TERN_TENSOR_H
#define TERN_TENSOR_H

#include <tern/device.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_NDIM_MAX 6

typedef struct tern_tensor tern_tensor;

/* A tensor's number of dimensions, 0 to TERN_NDIM_MAX; its shape, [ndim], borrowed; its number of elements;
 * and its element type. */
TERN_API int tern_tensor_ndim(const tern_tensor *tensor);
TERN_API const int64_t *tern_tensor_shape(const tern_tensor *tensor);
TERN_API int64_t tern_tensor_count(const tern_tensor *tensor);
TERN_API tern_dtype tern_tensor_dtype(const tern_tensor *tensor);
/* Returns the device on which ops on this tensor run; borrowed. NULL for a tensor without a place of its own,
 * which follows the tensors it is used with: parameters that tern_module_to has not placed, and kept and
 * wrapped tensors. */
TERN_API tern_device *tern_tensor_device(const tern_tensor *tensor);

/* Copies all elements to `out`, in row-major order whatever the tensor's layout, in its dtype. `bytes` must
 * be the number of elements times the size of one (E_SHAPE). E_LIFETIME after the tensor's scope has
 * ended. */
TERN_API int tern_tensor_read(const tern_tensor *tensor, void *out, size_t bytes, tern_error *err);
/* Copies all elements from `in`, in the same form; parameters and buffers can be written too. */
TERN_API int tern_tensor_write(tern_tensor *tensor, const void *in, size_t bytes, tern_error *err);

/* Returns the value of a tensor of one element; NaN for any other tensor. torch.Tensor.item. */
TERN_API double tern_item(const tern_tensor *tensor);

/* Prints shape, dtype and values on stdout, at most six values per dimension. */
TERN_API void tern_print(const tern_tensor *tensor);

/* Returns a copy in row-major order that belongs to no scope and has no gradient. Yours: tern_tensor_free. */
TERN_API tern_tensor *tern_keep(const tern_tensor *tensor, tern_error *err);

/* Makes a tensor over `data`, your memory (row-major, aligned to the element), without a copy. Ops read it in
 * place; no gradient goes there. You may change the values between two steps. Yours: tern_tensor_free.
 *
 * `release(ctx)` is called exactly once, when nothing needs `data` any more. If `release` is NULL, you keep
 * `data` alive that long. `data` may be NULL if the tensor has no elements. NULL on error, and then `data` is
 * still yours and `release` is not called: E_INVALID (NULL or misaligned), E_DTYPE, E_RANGE or E_SHAPE (an
 * invalid dtype, number of dimensions or size), E_MEMORY. */
TERN_API tern_tensor *tern_tensor_wrap(void *data, tern_dtype dtype, int ndim, const int64_t *shape,
                                       void (*release)(void *ctx), void *ctx, tern_error *err);

/* Frees a tensor that tern_keep or tern_tensor_wrap returned; for any other tensor it logs a warning and does
 * nothing. It may be called at any time, even within a step that uses the tensor: views of it keep the memory
 * until their module call returns or their scope ends, and gradients that need its values keep it until
 * backward has passed them or the scope ends. So `release` is called from here or, if the tensor is in use,
 * from the tern_forward, tern_backward or tern_scope_end that ends the last use, on that thread. `release`
 * may free what belongs to it, but must not use the scope. */
TERN_API void tern_tensor_free(tern_tensor *tensor);

/* Returns the address of the first element if the tensor is row-major without gaps, to read and write the
 * elements in place. NULL if it is not (tern_keep makes a row-major copy), or after its scope has ended. For
 * a tensor in a GPU's memory it is a device address, as torch's data_ptr, which the host cannot use: copy
 * with tern_tensor_read and tern_tensor_write. For a parameter, call this each time before you write: the
 * seal may have moved it, and the call tells the kernels that their copies of it are out of date. */
TERN_API void *tern_tensor_data(tern_tensor *tensor);

/* Returns the gradient of a parameter, borrowed, or of an input that wants one (tern_requires_grad_set): that
 * one belongs to the scope, so call this again after another backward. NULL if there is none.
 * torch.Tensor.grad. */
TERN_API tern_tensor *tern_grad_get(const tern_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
