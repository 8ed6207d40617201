/* embedding.c - rows of a weight by index, and their gradient. */
#include "kernels/embedding.h"
#include "kernels/labels.h"
#include "kernels/reference/reference.h"

int tern__embedding_check(const tern__call *call)
{
    const tern__view *index = call->in[1];
    int64_t count = tern__view_count(index), rows = call->in[0]->shape[0];
    for (int64_t i = 0; i < count; i++) {
        int64_t row = tern__index_at(index, i);
        if (row < 0 || row >= rows) return tern__index_error(call->err, index, rows, i, row);
    }
    return TERN_OK;
}

int tern__reference_embedding(const tern__call *call)
{
    const tern__view *weight = call->in[0], *index = call->in[1], *y = call->out[0];
    int64_t count = tern__view_count(index), size = weight->shape[1];
    int status = tern__embedding_check(call);
    for (int64_t i = 0; i < count && !status; i++) {
        int64_t row = tern__index_at(index, i);
        for (int64_t d = 0; d < size; d++)
            tern__view_set(y, i * size + d, tern__view_get(weight, row * size + d));
    }
    return status;
}

int tern__reference_embedding_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *index = call->in[1], *dw = call->out[0];
    int64_t count = tern__view_count(index), size = dw->shape[1];
    int64_t padding = ((const tern__embedding_attr *)call->attr)->padding;
    double *sums = tern__reference_sums_new(call, 0);
    if (!sums) return TERN_E_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = tern__index_at(index, i);
        for (int64_t d = 0; d < size && row != padding; d++)
            sums[row * size + d] += tern__view_get(dy, i * size + d);
    }
    tern__reference_sums_put(call, sums, 1);
    return TERN_OK;
}
