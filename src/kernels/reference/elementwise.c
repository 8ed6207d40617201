#include "kernels/reference/reference.h"

int tern__reference_relu(const tern__call *call)
{
    int64_t count = tern__view_count(call->out[0]);
    for (int64_t i = 0; i < count; i++) {
        double x = tern__view_get(call->in[0], i);
        tern__reference_put(call, 0, i, x > 0 ? x : x == x ? 0 : x); /* NaN passes, as in PyTorch */
    }
    return TERN_OK;
}

int tern__reference_relu_grad(const tern__call *call)
{
    int64_t count = tern__view_count(call->out[0]);
    for (int64_t i = 0; i < count; i++)
        tern__reference_put(call, 0, i,
                            tern__view_get(call->in[1], i) <= 0 ? 0 : tern__view_get(call->in[0], i));
    return TERN_OK;
}
