/* copy.h - copies on views, for kernels that bring operands into an order that a vendor's library takes. */
#ifndef TERN_SRC_CUDA_COPY_H
#define TERN_SRC_CUDA_COPY_H

#include "cuda/runtime.h"

/* to = from, or to += from: the same shape, any dtypes, strides and layouts. */
int tern__cuda_copy_view(const tern__call *call, const tern__view *from, const tern__view *to, bool add);

/* The same, but E_UNSUPPORTED where elements have to be found one by one. */
int tern__cuda_move(const tern__call *call, const tern__view *from, const tern__view *to, bool add);

/* `view` as a copy of it without gaps, of that dtype and in scratch memory, not filled. False: E_MEMORY. */
bool tern__cuda_dense(const tern__call *call, const tern__view *view, tern_dtype dtype, tern__layout layout,
                      tern__view *dense);

/* What stands once for all places of dimension `d` of the shape of `like`. */
tern__view tern__cuda_along(const tern__view *vector, const tern__view *like, int d);

/* y += the bias (C) of its channels. */
int tern__cuda_add_bias(const tern__call *call, const tern__view *bias, const tern__view *y);

#endif
