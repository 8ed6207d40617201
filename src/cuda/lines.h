/* lines.h - operands of any layout seen as lines along one dimension, and groups of threads that go along a
 * line.
 *
 * Where a line's elements are neighbours a group of 32 or 256 threads takes a line; where lines are
 * neighbours, or are short, each thread takes one of its own. */
#ifndef TERN_SRC_CUDA_LINES_H
#define TERN_SRC_CUDA_LINES_H

#include "cuda/elements.h"
#include "cuda/sums.h"

extern "C" {
#include "kernels/lines.h"
}

#define TERN__LINE_THREADS 256 /* of a block */

/* Element i of line (o, n) is at o * outer + i * step + n * inner. */
typedef struct tern__lined {
    void *data; /* NULL: absent */
    int dtype;
    int64_t outer, step, inner;
} tern__lined;

/* The dimensions [first, last) as one of this stride: false if they are not. */
static inline bool tern__lined_merge(const tern__view *v, int64_t first, int64_t last, int64_t *stride)
{
    int64_t next = -1;
    *stride = 0;
    for (int64_t d = last - 1; d >= first; d--) {
        if (v->shape[d] == 1) continue;
        if (next >= 0 && v->stride[d] != next) return false;
        if (next < 0) *stride = v->stride[d];
        next = v->stride[d] * v->shape[d];
    }
    return true;
}

static inline bool tern__lined_of(const tern__view *v, int64_t dim, tern__lined *lined)
{
    *lined = {v->data, v->dtype, 0, 0, 0};
    if (v->ndim == 0) return true;
    lined->step = v->stride[dim];
    return tern__lined_merge(v, 0, dim, &lined->outer) &&
           tern__lined_merge(v, dim + 1, v->ndim, &lined->inner);
}

template <class R> __device__ __forceinline__ R tern__lined_get(const tern__lined &l, int64_t at)
{
    return tern__element<R>(l.data, l.dtype, at);
}

/* = or +=. */
template <class R>
__device__ __forceinline__ void tern__lined_put(const tern__lined &l, int64_t at, R value, bool add)
{
    if (add) value += tern__element<R>(l.data, l.dtype, at);
    tern__element_set<R>(l.data, l.dtype, at, value);
}

/* ---- groups of G threads: 1, 32 or 256 ---- */

template <int G, class J, class T> __device__ __forceinline__ T tern__group_join(T value, T none)
{
    if constexpr (G == 1) return value;
    if constexpr (G == TERN__WARP) return tern__warp_join<J>(value);
    return tern__block_join<J>(value, none);
}

template <int G, class T> __device__ __forceinline__ T tern__group_sum(T value)
{
    return tern__group_join<G, tern__add, T>(value, T(0));
}

/* The first line of this group, and how many groups there are. */
template <int G> __device__ __forceinline__ int64_t tern__group_first(void)
{
    return (int64_t)blockIdx.x * (TERN__LINE_THREADS / G) + threadIdx.x / G;
}
template <int G> __device__ __forceinline__ int64_t tern__group_step(void)
{
    return (int64_t)gridDim.x * (TERN__LINE_THREADS / G);
}

/* How many threads take a line of `l`; few long lines get whole blocks. */
static inline int tern__group_size(const tern__lines *lines, const tern__lined *l)
{
    if (lines->size <= 8 || (l->step != 1 && lines->inner > 1)) return 1;
    return lines->size >= 4096 || lines->outer * lines->inner <= 1024 ? TERN__LINE_THREADS : TERN__WARP;
}

static inline dim3 tern__group_grid(const tern__call *call, const tern__lines *lines, int group)
{
    return tern__cuda_grid(call, lines->outer * lines->inner, TERN__LINE_THREADS / group, 1);
}

/* Starts `kernel`, a template of the group's size and then of the type that it computes in. */
#define TERN__GROUPS_OF(call, lines, group, kernel, R, ...)                                                  \
    ((group) == 1 ? tern__cuda_launch(call, kernel<1, R>, tern__group_grid(call, &(lines), 1),               \
                                      TERN__LINE_THREADS, 0, __VA_ARGS__)                                    \
     : (group) == TERN__WARP                                                                                 \
         ? tern__cuda_launch(call, kernel<TERN__WARP, R>, tern__group_grid(call, &(lines), TERN__WARP),      \
                             TERN__LINE_THREADS, 0, __VA_ARGS__)                                             \
         : tern__cuda_launch(call, kernel<TERN__LINE_THREADS, R>,                                            \
                             tern__group_grid(call, &(lines), TERN__LINE_THREADS), TERN__LINE_THREADS, 0,    \
                             __VA_ARGS__))

#endif
