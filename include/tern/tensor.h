/* tensor.h - tensors: shape, dtype and data.
 *
 * What an op returns belongs to the scope (autograd.h) and lives until the scope ends; what tern_keep returns
 * is yours; parameters and buffers belong to their module.
 *
 * Threads: a tensor belongs to the thread of its scope. */
#ifndef TERN_TENSOR_H
#define TERN_TENSOR_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_NDIM_MAX 6

typedef struct tern_tensor tern_tensor;

TERN_API int tern_tensor_ndim(const tern_tensor *tensor);
TERN_API const int64_t *tern_tensor_shape(const tern_tensor *tensor); /* [ndim], borrowed */
TERN_API int64_t tern_tensor_count(const tern_tensor *tensor);        /* number of elements */
TERN_API tern_dtype tern_tensor_dtype(const tern_tensor *tensor);

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
TERN_API void tern_tensor_free(tern_tensor *tensor);

/* A tensor over `data`, memory of yours (row-major, aligned to the element), without a copy. `release(ctx)`
 * is called when nobody needs it any more: after tern_tensor_free and, if an op has saved it for its
 * gradient, not before the end of that scope; NULL: you keep `data` alive until then. Yours:
 * tern_tensor_free. */
TERN_API tern_tensor *tern_tensor_wrap(void *data, tern_dtype dtype, int ndim, const int64_t *shape,
                                       void (*release)(void *ctx), void *ctx, tern_error *err);

/* The first element, where the tensor is row-major without gaps: read and write in place what the tensor
 * holds; NULL for another layout (tern_keep gives a row-major copy) or after its scope has ended. */
TERN_API void *tern_tensor_data(tern_tensor *tensor);

/* The gradient of a parameter, borrowed; NULL if it has none. */
TERN_API tern_tensor *tern_grad_get(const tern_tensor *parameter);

#ifdef __cplusplus
}
#endif
#endif
