/* copy.cc - dense copies of views, and vectors along a dimension: broadcast, and as sums. */
#include "cuda/copy.h"
#include "cuda/kernels.h"

extern "C" {
#include "kernels/reduce.h"
}

int tern__cuda_copy_view(const tern__call *call, const tern__view *from, const tern__view *to, bool add)
{
    tern__call copy = {};
    copy.device = call->device;
    copy.kernel = TERN__COPY;
    copy.in[0] = from;
    copy.out[0] = to;
    copy.add[0] = add;
    copy.err = call->err;
    return tern__cuda_pointwise(&copy);
}

bool tern__cuda_dense(const tern__call *call, const tern__view *view, tern_dtype dtype, tern__layout layout,
                      tern__view *dense)
{
    *dense = tern__view_make(dtype, layout, view->ndim, view->shape);
    dense->data = tern__cuda_scratch(call, tern__view_bytes(dense));
    return dense->data != nullptr;
}

tern__view tern__cuda_along(const tern__view *vector, const tern__view *like, int d)
{
    tern__view along = *like;
    along.data = vector->data;
    along.dtype = vector->dtype;
    along.layout = TERN__PLAIN;
    along.packs = nullptr;
    for (int i = 0; i < along.ndim; i++) along.stride[i] = i == d ? vector->stride[0] : 0;
    return along;
}

int tern__cuda_sum_along(const tern__call *call, const tern__view *x, int d, int out)
{
    static const tern__factor_attr one = {1};
    tern__view sums = tern__cuda_along(call->out[out], x, d);
    tern__call sum = {};
    sum.device = call->device;
    sum.kernel = TERN__SUM;
    sum.in[0] = x;
    sum.out[0] = &sums;
    sum.add[0] = call->add[out];
    sum.attr = &one;
    sum.err = call->err;
    return tern__cuda_sum(&sum);
}
