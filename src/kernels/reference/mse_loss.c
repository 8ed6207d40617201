#include "kernels/reference/reference.h"

int tern__reference_mse_loss(const tern__call *call)
{
    const tern__view *x = call->in[0], *target = call->in[1];
    int64_t count = tern__view_count(x);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = tern__view_get(x, i) - tern__view_get(target, i);
        sum += d * d;
    }
    tern__reference_put(call, 0, 0, sum / (double)count);
    return TERN_OK;
}

int tern__reference_mse_loss_grad(const tern__call *call)
{
    const tern__view *x = call->in[1], *target = call->in[2];
    int64_t count = tern__view_count(x);
    double scale = 2 * tern__view_get(call->in[0], 0) / (double)count;
    for (int64_t i = 0; i < count; i++) {
        double d = scale * (tern__view_get(x, i) - tern__view_get(target, i));
        if (call->out[0]) tern__reference_put(call, 0, i, d);
        if (call->out[1]) tern__reference_put(call, 1, i, -d);
    }
    return TERN_OK;
}
