/* global_avg_pool.c - the mean over all positions of each channel, and its gradient. */
#include "kernels/reference/reference.h"

static int64_t positions_of(const tern__view *x)
{
    int64_t positions = 1;
    for (int d = 2; d < x->ndim; d++) positions *= x->shape[d];
    return positions;
}

int tern__reference_global_avg_pool(const tern__call *call)
{
    int64_t planes = tern__view_count(call->out[0]), positions = positions_of(call->in[0]);
    for (int64_t i = 0; i < planes; i++) {
        double sum = 0;
        for (int64_t p = 0; p < positions; p++) sum += tern__view_get(call->in[0], i * positions + p);
        tern__reference_put(call, 0, i, sum / (double)positions);
    }
    return TERN_OK;
}

int tern__reference_global_avg_pool_grad(const tern__call *call)
{
    int64_t count = tern__view_count(call->out[0]), positions = positions_of(call->out[0]);
    for (int64_t i = 0; i < count; i++)
        tern__reference_put(call, 0, i, tern__view_get(call->in[0], i / positions) / (double)positions);
    return TERN_OK;
}
