#include "kernels/embedding.h"
#include "kernels/reference/reference.h"

/* "(1, 2)": where number i of the index stands. */
static const char *place_text(const tern__view *index, int64_t i, char text[TERN__SHAPE_TEXT])
{
    tern__view place = {.ndim = index->ndim};
    for (int d = index->ndim - 1; d >= 0; d--) {
        place.shape[d] = i % index->shape[d];
        i /= index->shape[d];
    }
    return tern__shape_text(&place, text);
}

int tern__embedding_check(const tern__call *call)
{
    const tern__view *index = call->in[1];
    int64_t count = tern__view_count(index), rows = call->in[0]->shape[0];
    char text[TERN__SHAPE_TEXT];
    for (int64_t i = 0; i < count; i++) {
        int64_t row = tern__index_at(index, i);
        if (row < 0 || row >= rows)
            return tern__error_set(call->err, "tern_embedding", TERN_E_RANGE,
                                   "embedding: index %lld at %s is not in [0, %lld)", (long long)row,
                                   place_text(index, i, text), (long long)rows);
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
