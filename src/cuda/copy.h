/* copy.h - copies and sums of views, for kernels that bring operands into the form that a vendor's library
 * takes. */
#ifndef TERN_SRC_CUDA_COPY_H
#define TERN_SRC_CUDA_COPY_H

#include "cuda/runtime.h"

/* Whether the libraries make results of dtype `made` from operands of dtype `of`. */
static inline bool tern__cuda_makes(tern_dtype made, tern_dtype of)
{
    return made == of || (made == TERN_F32 && tern__dtype_is_half(of));
}

/* The status of a second step, which must not be declined since the first is done: the fallback would compute
 * both again. */
static inline int tern__cuda_must(int status)
{
    return status == TERN_E_UNSUPPORTED ? TERN_E_SYSTEM : status;
}

/* to = from, or to += from: same shape, any dtypes, strides and layouts. */
int tern__cuda_copy_view(const tern__call *call, const tern__view *from, const tern__view *to, bool add);

/* The same, but E_UNSUPPORTED if elements would have to be addressed one by one. */
int tern__cuda_move(const tern__call *call, const tern__view *from, const tern__view *to, bool add);

/* Allocates scratch memory for a contiguous copy of `view` in that dtype, not filled. False: E_MEMORY. */
bool tern__cuda_dense(const tern__call *call, const tern__view *view, tern_dtype dtype, tern__layout layout,
                      tern__view *dense);

/* A vector along dimension `d`, broadcast to the shape of `like`. */
tern__view tern__cuda_along(const tern__view *vector, const tern__view *like, int d);

/* Computes output `out` of the call, a vector along dimension `d` of x: sums over all other dimensions. */
int tern__cuda_sum_along(const tern__call *call, const tern__view *x, int d, int out);

/* y += bias (C), by channel. */
int tern__cuda_add_bias(const tern__call *call, const tern__view *bias, const tern__view *y);

#endif
