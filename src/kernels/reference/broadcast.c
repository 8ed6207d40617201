#include "kernels/broadcast.h"
#include "kernels/reference/reference.h"

static double factor_of(const tern__call *call)
{
    return ((const tern__factor_attr *)call->attr)->factor;
}

int tern__reference_add(const tern__call *call)
{
    int64_t count = tern__view_count(call->out[0]);
    for (int64_t i = 0; i < count; i++)
        tern__reference_put(call, 0, i, tern__view_get(call->in[0], i) + tern__view_get(call->in[1], i));
    return TERN_OK;
}

int tern__reference_mul(const tern__call *call)
{
    int64_t count = tern__view_count(call->out[0]);
    for (int64_t i = 0; i < count; i++)
        tern__reference_put(call, 0, i, tern__view_get(call->in[0], i) * tern__view_get(call->in[1], i));
    return TERN_OK;
}

int tern__reference_scale(const tern__call *call)
{
    int64_t count = tern__view_count(call->out[0]);
    for (int64_t i = 0; i < count; i++)
        tern__reference_put(call, 0, i, factor_of(call) * tern__view_get(call->in[0], i));
    return TERN_OK;
}

/* How many elements y has of its own: the product of the dimensions that are not broadcast. */
static int64_t own_count(const tern__view *y)
{
    int64_t count = 1;
    for (int d = 0; d < y->ndim; d++) count *= y->stride[d] ? y->shape[d] : 1;
    return count;
}

int tern__reference_sum(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    int64_t count = tern__view_count(x), sums = own_count(y);
    size_t bytes = (size_t)sums * sizeof(double);
    double *sum = tern__device_scratch(call->device, TERN__SCRATCH_OPERAND, bytes);
    if (!sum) return tern__error_set(call->err, "sum", TERN_E_MEMORY, "sum: out of memory: %zu bytes", bytes);
    for (int64_t o = 0; o < sums; o++) sum[o] = 0;
    for (int64_t i = 0; i < count; i++) sum[tern__view_offset(y, i)] += tern__view_get(x, i);
    tern__view own = tern__view_make(y->dtype, TERN__PLAIN, 1, &sums);
    own.data = y->data;
    for (int64_t o = 0; o < sums; o++)
        tern__view_set(&own, o, factor_of(call) * sum[o] + (call->add[0] ? tern__view_get(&own, o) : 0));
    return TERN_OK;
}
