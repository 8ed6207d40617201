/* lines.h - operands of any layout seen as lines along one dimension, and groups of threads that go over a
 * line.
 *
 * If a line's elements are adjacent in memory, a group of 32, 256 or 1024 threads takes a line. If lines
 * are adjacent, or short, each thread takes some lines of its own. */
#ifndef TERN_SRC_CUDA_KERNELS_LINES_H
#define TERN_SRC_CUDA_KERNELS_LINES_H

#include "cuda/kernels/bunches.h"
#include "cuda/kernels/sums.h"

extern "C" {
#include "kernels/lines.h"
}

#define TERN__LINE_THREADS 256        /* threads of a block */
#define TERN__LINE_MOST    1024       /* for very long lines */
#define TERN__LINE_LONG    (64 << 10) /* their bytes */
#define TERN__LINE_MANY    4096
#define TERN__LINE_LIMIT   (INT32_MAX - (1 << 16)) /* elements of a line that is read in stretches */

/* Threads of a block whose groups have G threads. */
#define TERN__GROUP_BLOCK(G) ((G) > TERN__LINE_THREADS ? TERN__LINE_MOST : TERN__LINE_THREADS)

/* Element i of line (o, n) is at o * outer + i * step + n * inner. */
typedef struct tern__lined {
    void *data; /* NULL: absent */
    int dtype;
    int64_t outer, step, inner;
} tern__lined;

/* Merges the dimensions [first, last) into one with this stride; false if they cannot be merged. */
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

/* The offset of a line's first element. */
static __device__ __forceinline__ int64_t tern__lined_start(const tern__lined &l, const tern__lines &lines,
                                                            int64_t line)
{
    const int64_t o = lines.inner == 1 ? line : tern__quotient(line, lines.inner);
    return o * l.outer + (line - o * lines.inner) * l.inner;
}

template <class R> __device__ __forceinline__ R tern__lined_get(const tern__lined &l, int64_t at)
{
    return tern__element<R>(l.data, l.dtype, at);
}

/* Stores or adds. */
template <class R>
__device__ __forceinline__ void tern__lined_put(const tern__lined &l, int64_t at, R value, bool add)
{
    if (add) value += tern__element<R>(l.data, l.dtype, at);
    tern__element_set<R>(l.data, l.dtype, at, value);
}

/* ---- groups of G threads: 1, 32, 256 or 1024 ---- */

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

/* The first line of this group, and the number of groups. */
template <int G> __device__ __forceinline__ int64_t tern__group_first(void)
{
    return (int64_t)blockIdx.x * (TERN__GROUP_BLOCK(G) / G) + threadIdx.x / G;
}
template <int G> __device__ __forceinline__ int64_t tern__group_step(void)
{
    return (int64_t)gridDim.x * (TERN__GROUP_BLOCK(G) / G);
}

/* Returns the group size for the lines of `l`: small for short lines, as each thread of a group takes part in
 * what is done once a line; a block if lines are few. So few of the longest lines, which are read twice, are
 * in progress that a cache holds them. */
static inline int tern__group_size(const tern__lines *lines, const tern__lined *l)
{
    const int64_t bytes = lines->size * (int64_t)tern_dtype_bytes((tern_dtype)l->dtype);
    if (lines->size <= 8 || (l->step != 1 && lines->inner > 1)) return 1;
    if (bytes >= TERN__LINE_LONG) return TERN__LINE_MOST;
    const bool is_block = bytes >= TERN__LINE_LONG / 4 || lines->outer * lines->inner <= 1024;
    return is_block ? TERN__LINE_THREADS : TERN__WARP;
}

static inline dim3 tern__group_grid(const tern__call *call, const tern__lines *lines, int group)
{
    return tern__cuda_grid(call, lines->outer * lines->inner, TERN__GROUP_BLOCK(group) / group, 1);
}

/* Launches `kernel`, a template of the group's size and the type in which it computes. */
#define TERN__GROUP_OF(call, lines, G, kernel, R, ...)                                                       \
    tern__cuda_launch(call, kernel<G, R>, tern__group_grid(call, &(lines), G), TERN__GROUP_BLOCK(G), 0,      \
                      __VA_ARGS__)
#define TERN__GROUPS_OF(call, lines, group, kernel, R, ...)                                                  \
    ((group) == 1            ? TERN__GROUP_OF(call, lines, 1, kernel, R, __VA_ARGS__)                        \
     : (group) == TERN__WARP ? TERN__GROUP_OF(call, lines, TERN__WARP, kernel, R, __VA_ARGS__)               \
     : (group) == TERN__LINE_THREADS                                                                         \
         ? TERN__GROUP_OF(call, lines, TERN__LINE_THREADS, kernel, R, __VA_ARGS__)                           \
         : TERN__GROUP_OF(call, lines, TERN__LINE_MOST, kernel, R, __VA_ARGS__))

/* ---- stretches ---- */

/* What a thread of a group reads of a line at a time: pieces of N neighbours each, 16 bytes, or single
 * elements. If lines are adjacent a thread has as many lines, LINES, and a piece is one element of each.
 * All pieces are loaded before the first is used.
 *
 * A line of neighbours may begin and end anywhere: its pieces are aligned in memory, so the first may begin
 * before the line, and the last end after it. Both are in the same 16 bytes as elements of the line. */
template <int DTYPE, int N, int OF = 1, int MOST = (N > 1 ? 4 : 8)> struct tern__stretch {
    typedef tern__number<DTYPE> R;
    enum { TYPE = DTYPE, LANES = N, LINES = OF, PIECES = MOST, ALONG = N > 1 && OF == 1 };
    tern__bunch<DTYPE, N> piece[PIECES];

    /* The index of the first element of a thread's first piece of the line at `from`, the distance between
     * its pieces, and the number of elements that a group's stretches cover. */
    template <int G> static __device__ __forceinline__ int first(const tern__lined &l, int64_t from)
    {
        const uintptr_t place = (uintptr_t)l.data / sizeof(tern__stored<DTYPE>) + (uintptr_t)from;
        return (int)(threadIdx.x % G) * N - (ALONG ? (int)(place % N) : 0);
    }
    template <int G> static __device__ __forceinline__ int apart(void)
    {
        return LINES > 1 ? 1 : G * N;
    }
    template <int G> static __device__ __forceinline__ int pace(void)
    {
        return PIECES * apart<G>();
    }

    /* A lane's line, and the offset of its element from its piece's first. */
    static __device__ __forceinline__ int line(int lane)
    {
        return LINES > 1 ? lane : 0;
    }
    static __device__ __forceinline__ int further(int lane)
    {
        return LINES > 1 ? 0 : lane;
    }
    /* The index of the element in a lane of piece n of the stretch at i. */
    template <int G> static __device__ __forceinline__ int at(int i, int n, int lane)
    {
        return i + n * apart<G>() + further(lane);
    }

    /* Whether the stretch at i has piece n. */
    template <int G> static __device__ __forceinline__ bool has(int i, int n, int size)
    {
        return n * apart<G>() < size - i;
    }

    /* The address of element i of the line at `from`, and the distance from a piece to the next. */
    static __device__ __forceinline__ tern__stored<DTYPE> *place(const tern__lined &l, int64_t from, int i)
    {
        return (tern__stored<DTYPE> *)l.data + from + (ALONG ? i : i * l.step);
    }
    template <int G> static __device__ __forceinline__ int64_t leap(const tern__lined &l)
    {
        return ALONG ? apart<G>() : apart<G>() * l.step;
    }

    /* Whether a lane of the piece at index `at` is in the line, and whether all are. */
    static __device__ __forceinline__ bool is_in(int at, int lane, int size)
    {
        return !ALONG || (unsigned)(at + lane) < (unsigned)size;
    }
    static __device__ __forceinline__ bool is_whole(int at, int size)
    {
        return !ALONG || (at >= 0 && at + N <= size);
    }

    /* Reads the pieces of the stretch at i that are in the line that begins at `from`. In pieces of
     * neighbours `beyond` stands for what is not in the line. */
    template <int G>
    __device__ __forceinline__ void read(const tern__lined &l, int64_t from, int i, int size, R beyond = 0)
    {
        const tern__stored<DTYPE> *next = place(l, from, i);
#pragma unroll
        for (int n = 0; n < PIECES; n++, next += leap<G>(l)) {
            if (!ALONG && !has<G>(i, n, size)) break;
#pragma unroll
            for (int lane = 0; lane < N && ALONG; lane++) piece[n].put(lane, beyond);
            if (has<G>(i, n, size)) piece[n] = tern__bunch_get<DTYPE, N>(next, 0);
        }
#pragma unroll
        for (int n = 0; n < PIECES && ALONG; n++) {
            if (is_whole(at<G>(i, n, 0), size)) continue;
#pragma unroll
            for (int lane = 0; lane < N; lane++)
                if (!is_in(at<G>(i, n, 0), lane, size)) piece[n].put(lane, beyond);
        }
    }
    /* Writes the lanes of the piece at index `at` that are in the line; `to` is its address. */
    static __device__ __forceinline__ void put(tern__stored<DTYPE> *to, int at, int size,
                                               const R (&values)[N], bool add)
    {
        const tern__bunch<DTYPE, N> bunch = tern__bunch_of<DTYPE>(to, 0, values, add);
        if (is_whole(at, size)) return tern__bunch_store((tern__bunch<DTYPE, N> *)to, bunch);
#pragma unroll
        for (int lane = 0; lane < N; lane++)
            if (is_in(at, lane, size)) to[lane] = bunch.stored(lane);
    }

    static __device__ __forceinline__ R single(const void *data, int64_t at)
    {
        return tern__bunch_get<DTYPE, 1>(data, at).get(0);
    }

    /* e^x for x <= 0, as exactly as the dtype can hold it. */
    static __device__ __forceinline__ R exponential(R x)
    {
        if constexpr (sizeof(tern__stored<DTYPE>) == 2) return tern__decayed(-x);
        return exp(x);
    }

    /* The value after a store and a load. */
    static __device__ __forceinline__ R rounded(R value)
    {
        return tern__widened<DTYPE>(tern__narrowed<DTYPE>(value));
    }
};

/* A thread can hold two whole adjacent lines of up to TERN__LINE_WHOLE elements, or one in double, so
 * these are read once. */
#define TERN__LINE_WHOLE 24
template <int DTYPE>
using tern__whole_lines =
    tern__stretch<DTYPE, 8 / sizeof(tern__number<DTYPE>), 8 / sizeof(tern__number<DTYPE>), TERN__LINE_WHOLE>;

/* Whether each line of both operands consists of neighbours, and begins at the same distance from a multiple
 * of 16 bytes, so that both can be accessed 16 bytes at a time. */
static inline bool tern__lined_alike(const tern__lined *a, const tern__lined *b, const tern__lines *lines)
{
    const int64_t most = tern__bunch_most(a->dtype);
    return a->step == 1 && b->step == 1 && (uintptr_t)a->data % 16 == (uintptr_t)b->data % 16 &&
           (lines->outer == 1 || (a->outer - b->outer) % most == 0) &&
           (lines->inner == 1 || (a->inner - b->inner) % most == 0);
}

/* Whether lines are adjacent, can be read `count` at a time, and are many enough to occupy the device's
 * threads. */
static inline bool tern__lined_beside(const tern__lined *l, const tern__lines *lines, int count)
{
    size_t bytes = (size_t)count * tern_dtype_bytes((tern_dtype)l->dtype);
    return l->inner == 1 && lines->inner % count == 0 && l->outer % count == 0 && l->step % count == 0 &&
           (uintptr_t)l->data % bytes == 0 && lines->outer * lines->inner >= TERN__LINE_MANY;
}

/* The same with as many as fit into 16 bytes. */
static inline bool tern__lined_side_by_side(const tern__lined *l, const tern__lines *lines)
{
    return tern__lined_beside(l, lines, tern__bunch_most(l->dtype));
}

/* Launches `kernel` for stretches S of several lines, one thread for each. */
#define TERN__SIDES_OF(call, lines, kernel, S, ...)                                                          \
    tern__cuda_launch(call, kernel<1, S>,                                                                    \
                      tern__cuda_grid(call, (lines).outer *(lines).inner, TERN__LINE_THREADS, S::LINES),     \
                      TERN__LINE_THREADS, 0, __VA_ARGS__)

#endif
