/* topk.c - the k largest or smallest elements of each line, in order, with their indices. */
#include "kernels/cpu/loops.h"
#include "kernels/cpu/select.h"
#include "kernels/topk.h"

/* A NaN is the largest also among the smallest. */
static uint64_t topk_key(const tern__view *x, int64_t at, bool largest)
{
    uint64_t key = x->dtype == TERN_F32             ? tern__key_of_real((double)((const float *)x->data)[at])
                   : tern__dtype_is_float(x->dtype) ? tern__key_of_real(tern__view_get(x, at))
                                                    : tern__key_of_int(tern__view_get_int(x, at));
    return largest ? key : ~key;
}

static void topk_line(const tern__call *call, const tern__lines *lines, int64_t line, tern__candidate *heap)
{
    const tern__topk_attr *attr = call->attr;
    const tern__view *x = call->in[0];
    const tern__lines kept = {lines->outer, attr->k, lines->inner};
    int64_t from = tern__line_start(lines, line), to = tern__line_start(&kept, line), count = 0;
    size_t bytes = tern_dtype_bytes(x->dtype);
    for (int64_t i = 0; i < lines->size; i++) {
        tern__candidate c = {topk_key(x, from + i * lines->inner, attr->largest != 0), i};
        tern__heap_offer(heap, &count, attr->k, c);
    }
    tern__heap_sort(heap, count, attr->k);
    for (int64_t j = 0; j < attr->k; j++) {
        int64_t place = to + j * lines->inner, at = from + heap[j].index * lines->inner;
        if (call->out[0])
            memcpy((char *)call->out[0]->data + (size_t)place * bytes,
                   (const char *)x->data + (size_t)at * bytes, bytes);
        ((int64_t *)call->out[1]->data)[place] = heap[j].index;
    }
}

int tern__cpu_topk(const tern__call *call)
{
    const tern__view *x = call->in[0];
    const tern__topk_attr *attr = call->attr;
    tern__lines lines = tern__lines_of(x, attr->dim);
    int64_t count = lines.outer * lines.inner;
    if (!tern__view_is_contiguous(x) || !tern__view_is_contiguous(call->out[1]) ||
        (call->out[0] && !tern__view_is_contiguous(call->out[0])))
        return TERN_E_UNSUPPORTED;
    int threads = (int)TERN__MIN(tern__loop_threads(call, tern__view_count(x)), TERN__MAX(count, 1));
    size_t each = (size_t)TERN__MAX(attr->k, 1);
    tern__candidate *heaps = tern__loop_scratch(call, (size_t)threads * each * sizeof(*heaps));
    if (!heaps) return TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        for (int64_t line = count * t / threads; line < count * (t + 1) / threads; line++)
            topk_line(call, &lines, line, heaps + (size_t)t * each);
    return TERN_OK;
}
