/* embedding.c - rows of a contiguous weight are copied in any dtype. Their gradients are added in f32, by
 * each thread for its own rows, in the order of the index, so the number of threads does not matter. */
#include "kernels/embedding.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widen.h"

#include <string.h>

/* A loop without branches: negative indices are large as unsigned numbers. */
TERN__SIMD static bool all_inside(const tern__view *index, int64_t count, int64_t rows)
{
    const int64_t *wide = index->data;
    const int32_t *narrow = index->data;
    int outside = 0;
    if (index->dtype == TERN_I64)
        for (int64_t i = 0; i < count; i++) outside |= (uint64_t)wide[i] >= (uint64_t)rows;
    else
        for (int64_t i = 0; i < count; i++) outside |= (uint64_t)(int64_t)narrow[i] >= (uint64_t)rows;
    return !outside;
}

int tern__cpu_embedding(const tern__call *call)
{
    const tern__view *weight = call->in[0], *index = call->in[1];
    int64_t count = tern__view_count(index), size = weight->shape[1];
    size_t bytes = (size_t)size * tern_dtype_bytes(weight->dtype);
    int threads = tern__loop_threads(call, count * size);
    if (!all_inside(index, count, weight->shape[0])) return tern__embedding_check(call);
    if (bytes == 0) return TERN_OK;
    const char *from = weight->data;
    char *to = call->out[0]->data;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < count; i++)
        memcpy(to + (size_t)i * bytes, from + (size_t)tern__index_at(index, i) * bytes, bytes);
    return TERN_OK;
}

/* Adds the gradients of rows first .. last - 1. */
TERN__SIMD static void embedding_add_rows(const tern__call *call, int64_t first, int64_t last, int64_t count)
{
    const tern__view *index = call->in[1];
    int64_t size = call->out[0]->shape[1], padding = ((const tern__embedding_attr *)call->attr)->padding;
    const float *dy = call->in[0]->data;
    float *dw = call->out[0]->data;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = tern__index_at(index, i);
        if (row < first || row >= last || row == padding) continue;
        for (int64_t d = 0; d < size; d++) dw[row * size + d] += dy[i * size + d];
    }
}

int tern__cpu_embedding_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dw = call->out[0];
    if (tern__view_is_half(dw)) return tern__cpu_widened(call, tern__cpu_embedding_grad);
    if (!tern__is_dense(dy, dy) || !tern__is_dense(dw, dw)) return TERN_E_UNSUPPORTED;
    int64_t rows = dw->shape[0], size = dw->shape[1], count = tern__view_count(call->in[1]);
    int threads = tern__loop_threads(call, TERN__MAX(rows, count) * size);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        int64_t first = rows * t / threads, last = rows * (t + 1) / threads;
        if (!call->add[0])
            memset((float *)dw->data + first * size, 0, (size_t)((last - first) * size) * sizeof(float));
        embedding_add_rows(call, first, last, count);
    }
    return TERN_OK;
}
