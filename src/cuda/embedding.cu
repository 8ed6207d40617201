/* embedding.cu - rows of a weight, and their gradients.
 *
 * A row's gradients are added up in the order of the index, so positions are sorted by row first: digit after
 * digit of eight bits, the last one first, and stable. A pass counts each block's digits, adds up the counts
 * into places, and moves every position to its own. Numbers that are no row, or the one that gets nothing,
 * are sorted behind all. */
#include "cuda/elements.h"
#include "cuda/kernels.h"
#include "cuda/sums.h"

extern "C" {
#include "kernels/embedding.h"
}

#define THREADS 256 /* and values of a digit */
#define BLOCKS  256 /* that sort, at most   */
#define COLUMNS 32
#define AHEAD   4 /* units of rows that a thread copies at a time */

/* ---- forward ---- */

namespace
{
typedef struct lookup {
    const void *index;
    int index_dtype;
    int64_t count, units; /* of a row: what is copied at once */
    const char *weight;
    char *y;
    tern__judge judge;
} lookup;
} // namespace

/* Rows of some units are asked for before the first is written. */
template <class U> static __global__ void copy_rows(lookup l)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS, count = l.count * l.units;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += AHEAD * step) {
        int64_t n[AHEAD], row[AHEAD];
        U unit[AHEAD] = {};
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            n[j] = tern__quotient(i + j * step, l.units);
            if (i + j * step < count) row[j] = tern__element<int64_t>(l.index, l.index_dtype, n[j]);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * step < count && tern__is_class(l.judge, n[j], row[j]))
                unit[j] = ((const U *)l.weight)[(row[j] - n[j]) * l.units + i + j * step];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * step < count) ((U *)l.y)[i + j * step] = unit[j];
    }
}

/* Where there is nothing to copy. */
static __global__ void look_at_rows(lookup l)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x; n < l.count; n += step)
        tern__is_class(l.judge, n, tern__element<int64_t>(l.index, l.index_dtype, n));
}

template <class U> static int start(const tern__call *call, lookup *l, size_t bytes)
{
    l->units = (int64_t)(bytes / sizeof(U));
    return tern__cuda_launch(call, copy_rows<U>, tern__cuda_grid(call, l->count * l->units, THREADS, AHEAD),
                             THREADS, 0, *l);
}

int tern__cuda_embedding(const tern__call *call)
{
    const tern__view *weight = call->in[0], *index = call->in[1], *y = call->out[0];
    size_t bytes = (size_t)weight->shape[1] * tern_dtype_bytes(weight->dtype);
    if (call->add[0] || !tern__view_is_contiguous(weight) || !tern__view_is_contiguous(index) ||
        !tern__view_is_contiguous(y) || y->dtype != weight->dtype)
        return TERN_E_UNSUPPORTED;
    lookup l = {
        index->data, index->dtype, tern__view_count(index), 0, (const char *)weight->data, (char *)y->data,
        {}};
    l.judge.fault = tern__cuda_of(call->device)->fault;
    l.judge.site.labels.classes = weight->shape[0];
    l.judge.site.is_index = 1;
    l.judge.site.ndim = index->ndim;
    for (int d = 0; d < index->ndim; d++) l.judge.site.shape[d] = index->shape[d];
    if (l.count == 0) return TERN_OK;
    if (bytes == 0)
        return tern__cuda_launch(call, look_at_rows, tern__cuda_grid(call, l.count, THREADS, 1), THREADS, 0,
                                 l);
    size_t all = bytes | (uintptr_t)l.weight | (uintptr_t)l.y;
    return all % 16 == 0  ? start<uint4>(call, &l, bytes)
           : all % 4 == 0 ? start<uint32_t>(call, &l, bytes)
           : all % 2 == 0 ? start<uint16_t>(call, &l, bytes)
                          : start<uint8_t>(call, &l, bytes);
}

/* ---- sorting ---- */

namespace
{
typedef struct item {
    uint32_t row, position;
} item;
} // namespace

namespace
{
typedef struct sort {
    const void *index;
    int index_dtype, blocks, shift;
    int64_t count, each, rows, padding; /* each: items of a block */
    item *from, *to;
    uint32_t *places; /* (THREADS, blocks): of a digit and a block */
} sort;
} // namespace

static __global__ void number_items(sort s)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < s.count; i += step) {
        int64_t row = tern__element<int64_t>(s.index, s.index_dtype, i);
        bool counts = row >= 0 && row < s.rows && row != s.padding;
        s.from[i] = {(uint32_t)(counts ? row : s.rows), (uint32_t)i};
    }
}

static __device__ __forceinline__ int digit_of(const sort &s, int64_t i)
{
    return (int)(s.from[i].row >> s.shift & (THREADS - 1));
}

static __global__ void count_digits(sort s)
{
    tern__kernel_begin();
    __shared__ uint32_t counts[THREADS];
    int64_t first = blockIdx.x * s.each, last = TERN__MIN(first + s.each, s.count);
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = first + threadIdx.x; i < last; i += THREADS) atomicAdd(&counts[digit_of(s, i)], 1u);
    __syncthreads();
    s.places[(int64_t)threadIdx.x * s.blocks + blockIdx.x] = counts[threadIdx.x];
}

/* By one block: a thread has the counts of a digit, and those of smaller digits stand before. */
static __global__ void add_places(sort s)
{
    tern__kernel_begin();
    __shared__ uint32_t totals[THREADS];
    uint32_t *own = s.places + (int64_t)threadIdx.x * s.blocks, place = 0;
    for (int b = 0; b < s.blocks; b++) place += own[b];
    totals[threadIdx.x] = place;
    __syncthreads();
    place = 0;
    for (int d = 0; d < (int)threadIdx.x; d++) place += totals[d];
    for (int b = 0; b < s.blocks; b++) {
        uint32_t count = own[b];
        own[b] = place;
        place += count;
    }
}

/* A tile after the other: an item comes after those of its digit that stand before it. */
static __global__ void move_items(sort s)
{
    tern__kernel_begin();
    __shared__ uint32_t next[THREADS];
    __shared__ int digits[THREADS];
    int64_t first = blockIdx.x * s.each, last = TERN__MIN(first + s.each, s.count);
    next[threadIdx.x] = s.places[(int64_t)threadIdx.x * s.blocks + blockIdx.x];
    for (int64_t tile = first; tile < last; tile += THREADS) {
        int64_t i = tile + threadIdx.x;
        int digit = i < last ? digit_of(s, i) : -1;
        uint32_t before = 0, same = 0;
        digits[threadIdx.x] = digit;
        __syncthreads();
        for (int t = 0; t < THREADS; t++) {
            before += t < (int)threadIdx.x && digits[t] == digit;
            same += digits[t] == digit;
        }
        if (digit >= 0) s.to[next[digit] + before] = s.from[i];
        __syncthreads();
        if (digit >= 0 && before + 1 == same) next[digit] += same;
        __syncthreads();
    }
}

static int sort_items(const tern__call *call, sort *s)
{
    int status =
        tern__cuda_launch(call, number_items, tern__cuda_grid(call, s->count, THREADS, 1), THREADS, 0, *s);
    for (s->shift = 0; !status && s->rows >> s->shift; s->shift += 8) {
        status = tern__cuda_launch(call, count_digits, s->blocks, THREADS, 0, *s);
        if (!status) status = tern__cuda_launch(call, add_places, 1, THREADS, 0, *s);
        if (!status) status = tern__cuda_launch(call, move_items, s->blocks, THREADS, 0, *s);
        item *sorted = s->to;
        s->to = s->from;
        s->from = sorted;
    }
    return status;
}

/* ---- gradient ---- */

namespace
{
typedef struct gradient {
    const item *items;
    int64_t count, rows, size;
    const void *dy;
    void *dw;
    int dy_dtype, dw_dtype;
    bool add;
} gradient;
} // namespace

/* The first item of this row or a later one. */
static __device__ int64_t first_of(const gradient &g, int64_t row)
{
    int64_t low = 0, high = g.count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (g.items[middle].row < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A block has a row: 32 columns at a time, each by 8 threads that take every eighth of the row's items. */
static __global__ void add_rows(gradient g)
{
    tern__kernel_begin();
    __shared__ double sums[THREADS];
    const int column = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS, parts = THREADS / COLUMNS;
    for (int64_t row = blockIdx.x; row < g.rows; row += gridDim.x) {
        int64_t first = first_of(g, row), last = first_of(g, row + 1);
        for (int64_t left = 0; left < g.size; left += COLUMNS) {
            int64_t d = left + column;
            double sum = 0;
            for (int64_t i = first + part; i < last && d < g.size; i += parts)
                sum += tern__element<double>(g.dy, g.dy_dtype, g.items[i].position * g.size + d);
            __syncthreads();
            sums[threadIdx.x] = sum;
            __syncthreads();
            if (part || d >= g.size) continue;
            for (int i = 1; i < parts; i++) sum += sums[i * COLUMNS + column];
            if (g.add) sum += tern__element<double>(g.dw, g.dw_dtype, row * g.size + d);
            tern__element_set<double>(g.dw, g.dw_dtype, row * g.size + d, sum);
        }
    }
}

static int add_sorted(const tern__call *call, const item *items, int64_t count)
{
    const tern__view *dy = call->in[0], *dw = call->out[0];
    gradient g = {items,    count,     dw->shape[0], dw->shape[1], dy->data,
                  dw->data, dy->dtype, dw->dtype,    call->add[0]};
    return tern__cuda_launch(call, add_rows, tern__cuda_grid(call, g.rows, 1, 1), THREADS, 0, g);
}

int tern__cuda_embedding_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *index = call->in[1], *dw = call->out[0];
    int64_t count = tern__view_count(index);
    if (!tern__view_is_contiguous(dy) || !tern__view_is_contiguous(index) || !tern__view_is_contiguous(dw) ||
        dw->shape[0] >= UINT32_MAX || count >= UINT32_MAX)
        return TERN_E_UNSUPPORTED;
    if (tern__view_count(dw) == 0) return TERN_OK;
    sort s = {};
    s.index = index->data;
    s.index_dtype = index->dtype;
    s.count = count;
    s.blocks =
        (int)TERN__MAX((int64_t)1, TERN__MIN((count + 4 * THREADS - 1) / (4 * THREADS), (int64_t)BLOCKS));
    s.each = tern__align_up((size_t)(count + s.blocks - 1) / (size_t)s.blocks, THREADS);
    s.rows = dw->shape[0];
    s.padding = ((const tern__embedding_attr *)call->attr)->padding;
    size_t items = tern__align_up((size_t)count * sizeof(item), 256);
    char *scratch =
        (char *)tern__cuda_scratch(call, 2 * items + (size_t)s.blocks * THREADS * sizeof(uint32_t));
    if (!scratch) return TERN_E_MEMORY;
    s.from = (item *)scratch;
    s.to = (item *)(scratch + items);
    s.places = (uint32_t *)(scratch + 2 * items);
    int status = sort_items(call, &s);
    if (!status) status = add_sorted(call, s.from, count);
    tern__cuda_scratch_free(call, scratch);
    return status;
}
