/* embedding.c - rows of a contiguous weight are copied in any dtype. Their gradients are added where they
 * belong, so a call costs what its rows cost, and the zeros: no copy of all rows is made. Every element is
 * the sum of its terms in the order of the index, so the number of threads does not matter. */
#include "kernels/embedding.h"
#include "kernels/cpu/lanes.h"
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

/* The gradient's operands are contiguous. Thread t of `threads` adds the columns column[0] .. column[1] - 1
 * of the rows row[0] .. row[1] - 1. */
typedef struct part {
    int64_t row[2], column[2];
} part;

/* Threads share the columns, because a few rows may have most of the indices, as frequent words do. Only
 * where rows are too short for that they share the rows. */
static part embedding_part(const tern__view *dw, int64_t t, int64_t threads)
{
    int64_t rows = dw->shape[0], blocks = (dw->shape[1] + TERN__LANES - 1) / TERN__LANES;
    if (blocks < threads) return (part){{rows * t / threads, rows * (t + 1) / threads}, {0, dw->shape[1]}};
    return (part){{0, rows},
                  {blocks * t / threads * TERN__LANES,
                   TERN__MIN(blocks * (t + 1) / threads * TERN__LANES, dw->shape[1])}};
}

static bool embedding_skips(const tern__call *call, const part *p, int64_t row)
{
    return row < p->row[0] || row >= p->row[1] || row == ((const tern__embedding_attr *)call->attr)->padding;
}

/* dy to dw of the same type, in the order of the index. */
#define DEFINE_ADD(name, R)                                                                                  \
    TERN__SIMD static void name(const tern__call *call, const part *p, int64_t count)                        \
    {                                                                                                        \
        int64_t size = call->out[0]->shape[1];                                                               \
        for (int64_t i = 0; i < count; i++) {                                                                \
            int64_t row = tern__index_at(call->in[1], i);                                                    \
            if (embedding_skips(call, p, row)) continue;                                                     \
            const R *dy = (const R *)call->in[0]->data + i * size;                                           \
            R *dw = (R *)call->out[0]->data + row * size;                                                    \
            for (int64_t d = p->column[0]; d < p->column[1]; d++) dw[d] += dy[d];                            \
        }                                                                                                    \
    }
DEFINE_ADD(embedding_add_f32, float)
DEFINE_ADD(embedding_add_f64, double)

/* dy of a 16-bit type to dw of f32. */
TERN__SIMD static void embedding_add_wider(const tern__call *call, const part *p, int64_t count)
{
    const tern__view *dy = call->in[0];
    int64_t size = call->out[0]->shape[1];
    for (int64_t i = 0; i < count; i++) {
        int64_t row = tern__index_at(call->in[1], i);
        if (embedding_skips(call, p, row)) continue;
        float *dw = (float *)call->out[0]->data + row * size;
        for (int64_t d = p->column[0]; d < p->column[1]; d += TERN__LANES) {
            int n = (int)TERN__MIN(TERN__LANES, p->column[1] - d);
            tern__lanes_put(dw + d, tern__lanes_get(dy->data, dy->dtype, i * size + d, n), n, true);
        }
    }
}

/* Numbers 0 .. count - 1 in the order of their rows; those of one row in the order of the index. A radix
 * sort, by eight bits of the row at a time, so that what has to be looked at are the indices and not all
 * rows. */
static int64_t *embedding_order(const tern__call *call, int64_t count, int64_t rows)
{
    int64_t *order = tern__loop_scratch(call, 2 * (size_t)TERN__MAX(count, 1) * sizeof(*order));
    if (!order) return NULL;
    int64_t *to = order + count;
    for (int64_t i = 0; i < count; i++) order[i] = i;
    for (int shift = 0; (rows - 1) >> shift > 0; shift += 8) {
        int64_t place[257] = {0}, *from = order;
        for (int64_t i = 0; i < count; i++) place[(tern__index_at(call->in[1], i) >> shift & 255) + 1]++;
        for (int digit = 0; digit < 256; digit++) place[digit + 1] += place[digit];
        for (int64_t i = 0; i < count; i++)
            to[place[tern__index_at(call->in[1], from[i]) >> shift & 255]++] = from[i];
        order = to;
        to = from;
    }
    return order;
}

/* dy to dw of a 16-bit type: each row's sum is made in f32 and rounded once. */
TERN__SIMD static void embedding_add_halves(const tern__call *call, const part *p, const int64_t *order,
                                            int64_t count)
{
    const tern__view *dy = call->in[0], *index = call->in[1], *dw = call->out[0];
    int64_t size = dw->shape[1], last = 0;
    for (int64_t first = 0; first < count; first = last) {
        int64_t row = tern__index_at(index, order[first]);
        for (last = first + 1; last < count && tern__index_at(index, order[last]) == row;) last++;
        if (embedding_skips(call, p, row)) continue;
        for (int64_t d = p->column[0]; d < p->column[1]; d += TERN__LANES) {
            int n = (int)TERN__MIN(TERN__LANES, p->column[1] - d);
            tern__lanes sum = {0};
            for (int64_t i = first; i < last; i++)
                sum += tern__lanes_get(dy->data, dy->dtype, order[i] * size + d, n);
            tern__lanes_set(dw->data, dw->dtype, row * size + d, sum, n, call->add[0]);
        }
    }
}

static void embedding_zero(const tern__call *call, int threads)
{
    const tern__view *dw = call->out[0];
    size_t bytes = tern__view_bytes(dw);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        size_t first = bytes * (size_t)t / (size_t)threads, last = bytes * ((size_t)t + 1) / (size_t)threads;
        memset((char *)dw->data + first, 0, last - first);
    }
}

int tern__cpu_embedding_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dw = call->out[0];
    bool wide = dw->dtype == TERN_F64, fits = wide == (dy->dtype == TERN_F64);
    if (!fits || !tern__view_is_contiguous(dy) || !tern__view_is_contiguous(dw)) return TERN_E_UNSUPPORTED;
    int64_t count = tern__view_count(call->in[1]), *order = NULL;
    if (tern__view_is_half(dw) && !(order = embedding_order(call, count, dw->shape[0]))) return TERN_E_MEMORY;
    if (!call->add[0]) embedding_zero(call, tern__loop_threads(call, tern__view_count(dw)));
    int threads = tern__loop_threads(call, tern__view_count(dy));
    void (*add)(const tern__call *, const part *, int64_t) = wide                    ? embedding_add_f64
                                                             : dy->dtype == TERN_F32 ? embedding_add_f32
                                                                                     : embedding_add_wider;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        part p = embedding_part(dw, t, threads);
        if (order)
            embedding_add_halves(call, &p, order, count);
        else
            add(call, &p, count);
    }
    return TERN_OK;
}
