/* rows.h - short contiguous lines that follow each other without gaps, such as those of a map with
 * channels last. A warp copies its threads' lines, one per thread, into shared memory and back in memory
 * order, so memory is accessed as in a plain copy, whatever the size of a line. */
#ifndef TERN_SRC_CUDA_KERNELS_ROWS_H
#define TERN_SRC_CUDA_KERNELS_ROWS_H

#include "cuda/kernels/lines.h"

#define TERN__ROW_THREADS 64
#define TERN__ROW_BLOCKS  14  /* blocks for whose registers a multiprocessor has room */
#define TERN__ROW_SUMS    512 /* bytes of shared memory that a kernel may use for sums */
#define TERN__ROW_BYTES   ((48 << 10) - TERN__ROW_SUMS) /* of shared memory for a block's rows */
#define TERN__ROW_AHEAD   4                             /* bunches that a thread reads at a time */

/* In shared memory rows are an odd number of elements apart, so that the threads of a warp access
 * different banks. */
typedef struct tern__row_tile {
    int64_t count;
    int size, apart;
    uint32_t part; /* 2^32 / size; 0: rows are contiguous in shared memory, too */
} tern__row_tile;

static inline tern__row_tile tern__rows_of(const tern__lines *lines)
{
    const int size = (int)lines->size;
    return {lines->outer * lines->inner, size, size | 1, size % 2 ? 0 : UINT32_MAX / (uint32_t)size + 1};
}

/* Shared memory of a block that holds its threads' rows of `tiles` operands. */
static inline size_t tern__rows_bytes(const tern__row_tile &k, int tiles, int dtype)
{
    return (size_t)(tiles * TERN__ROW_THREADS * k.apart) * (dtype == TERN_F64 ? 8 : 4);
}

/* Whether rows are short enough, and many enough to occupy the device's threads. */
static inline bool tern__rows_short(const tern__lines *lines, int tiles, int dtype)
{
    return lines->size > 0 && lines->size < TERN__LINE_MANY &&
           lines->outer * lines->inner >= TERN__LINE_MANY &&
           tern__rows_bytes(tern__rows_of(lines), tiles, dtype) <= TERN__ROW_BYTES;
}

/* Whether an operand's lines are such rows, and can be read 16 bytes at a time. */
static inline bool tern__lined_rows(const tern__lined *l, const tern__lines *lines)
{
    return (uintptr_t)l->data % 16 == 0 && (lines->size == 1 || l->step == 1) &&
           (lines->inner == 1 || l->inner == lines->size) &&
           (lines->outer == 1 || l->outer == lines->inner * lines->size);
}

/* This warp's first row, and the distance to its next. */
static __device__ __forceinline__ int64_t tern__rows_first(void)
{
    return ((int64_t)blockIdx.x * TERN__ROW_THREADS + threadIdx.x) / TERN__WARP * TERN__WARP;
}
static __device__ __forceinline__ int64_t tern__rows_step(void)
{
    return (int64_t)gridDim.x * TERN__ROW_THREADS;
}

/* The warp's rows of an operand in shared memory. */
template <class R> __device__ __forceinline__ R *tern__rows_tile(const tern__row_tile &k, int tile)
{
    const int first = (int)threadIdx.x / TERN__WARP * TERN__WARP;
    return (R *)tern__cuda_shared() + (tile * TERN__ROW_THREADS + first) * k.apart;
}

/* The extra offset in shared memory of element i. It is so small that this computation is exact. */
static __device__ __forceinline__ int tern__rows_shift(const tern__row_tile &k, int i)
{
    return (int)__umulhi((uint32_t)i, k.part);
}

/* The number of elements of the warp whose first row is `first`. */
static __device__ __forceinline__ int tern__rows_elements(const tern__row_tile &k, int64_t first)
{
    return (int)TERN__MIN(k.count - first, (int64_t)TERN__WARP) * k.size;
}

/* Puts a bunch at element i of the rows in shared memory, or adds it: at once if they are contiguous there.
 */
template <bool ADD, int DTYPE, int N>
__device__ __forceinline__ void tern__rows_put(const tern__row_tile &k, int i,
                                               const tern__bunch<DTYPE, N> &bunch, tern__number<DTYPE> *tile)
{
    struct alignas(16) quarter {
        tern__number<DTYPE> v[16 / sizeof(tern__number<DTYPE>)];
    };
    enum { EACH = sizeof(quarter) / sizeof(tern__number<DTYPE>) };
#pragma unroll
    for (int l = 0; l < N; l += EACH) {
        quarter some, *at = (quarter *)(tile + i + l);
        if (ADD && !k.part) some = *at;
#pragma unroll
        for (int e = 0; e < EACH; e++) some.v[e] = bunch.get(l + e) + (ADD && !k.part ? some.v[e] : 0);
        if (!k.part) *at = some;
#pragma unroll
        for (int e = 0; e < EACH && k.part; e++) {
            tern__number<DTYPE> *to = tile + i + l + e + tern__rows_shift(k, i + l + e);
            *to = some.v[e] + (ADD ? *to : 0);
        }
    }
}

/* Called by a whole warp; ADD: adds to what is in shared memory. Afterwards its threads see each other's
 * elements. The last bunch may end after the last row, in memory and in shared memory. */
template <int DTYPE, bool ADD = false>
__device__ __forceinline__ void tern__rows_read(const tern__row_tile &k, const void *data, int64_t first,
                                                tern__number<DTYPE> *tile)
{
    enum { AHEAD = TERN__ROW_AHEAD, N = 16 / sizeof(tern__stored<DTYPE>), STEP = TERN__WARP * N };
    const int count = tern__rows_elements(k, first);
    const int64_t from = first * k.size;
    for (int i = (int)threadIdx.x % TERN__WARP * N; i < count; i += AHEAD * STEP) {
        tern__bunch<DTYPE, N> some[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (i + n * STEP < count) some[n] = tern__bunch_get<DTYPE, N>(data, from + i + n * STEP);
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (i + n * STEP < count) tern__rows_put<ADD>(k, i + n * STEP, some[n], tile);
    }
    __syncwarp();
}

/* The opposite direction. */
template <int DTYPE>
__device__ __forceinline__ void tern__rows_write(const tern__row_tile &k, void *data, int64_t first,
                                                 tern__number<DTYPE> *tile, bool add)
{
    enum { STEP = TERN__WARP };
    const int count = tern__rows_elements(k, first);
    int i = (int)threadIdx.x % TERN__WARP;
    tern__stored<DTYPE> *to = (tern__stored<DTYPE> *)data + first * k.size + i;
    __syncwarp();
    if (add) tern__rows_read<DTYPE, true>(k, data, first, tile);
#pragma unroll 8
    for (tile += i; i < count; i += STEP, to += STEP, tile += STEP)
        *to = tern__narrowed<DTYPE>(tile[tern__rows_shift(k, i)]);
    __syncwarp();
}

#endif
