/* embedding.cu - looks up rows of a weight, and computes their gradients.
 *
 * A row's gradients are added in the order of the index, so positions are sorted by row first: a stable
 * radix sort by digits of eight bits, lowest first. A pass counts each block's digits, turns the counts
 * into offsets, and moves every position to its place. Indices that are no row, and the padding index, are
 * sorted to the end. A row with many items, such as padding or a frequent word, is summed in pieces that
 * are cut by item number alone, so that sums are the same in every run. */
#include "cuda/kernels/elements.h"
#include "cuda/kernels.h"
#include "cuda/kernels/sums.h"

extern "C" {
#include "kernels/embedding.h"
}

#define THREADS 256 /* also the number of values of a digit */
#define BLOCKS  256 /* most blocks that sort */
#define COLUMNS 32
#define PARTS   (THREADS / COLUMNS)
#define PIECE   512 /* items of a long row per block */
#define SHORT   64  /* the same if a warp takes each of the other rows */
#define RARE    4   /* average items per row up to which a warp sums a row */
#define AHEAD   4   /* units of rows that a thread copies at a time */

/* ---- forward ---- */

namespace
{
typedef struct lookup {
    const void *index;
    int index_dtype;
    int64_t count, units; /* units: pieces of a row, each copied at once */
    const char *weight;
    char *y;
    tern__judge judge;
} lookup;
} // namespace

/* Loads units of several rows before it writes the first. */
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

/* Only checks the index, if there is nothing to copy. */
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
    int64_t count, each, rows, padding; /* each: items per block */
    item *from, *to;
    uint32_t *places; /* (blocks, THREADS): per block and digit */
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
    s.places[(int64_t)blockIdx.x * THREADS + threadIdx.x] = counts[threadIdx.x];
}

/* Run by one block: a thread takes the counts of a digit; the counts of smaller digits come before. */
static __global__ void add_places(sort s)
{
    tern__kernel_begin();
    __shared__ uint32_t totals[THREADS];
    uint32_t *own = s.places + threadIdx.x, place = 0;
    for (int b = 0; b < s.blocks; b++) place += own[b * THREADS];
    totals[threadIdx.x] = place;
    __syncthreads();
    place = 0;
    for (int d = 0; d < (int)threadIdx.x; d++) place += totals[d];
    for (int b = 0; b < s.blocks; b++) {
        uint32_t count = own[b * THREADS];
        own[b * THREADS] = place;
        place += count;
    }
}

/* Takes one tile after the other: an item is placed after earlier items with its digit. */
static __global__ void move_items(sort s)
{
    tern__kernel_begin();
    __shared__ uint32_t next[THREADS];
    __shared__ int digits[THREADS];
    int64_t first = blockIdx.x * s.each, last = TERN__MIN(first + s.each, s.count);
    next[threadIdx.x] = s.places[(int64_t)blockIdx.x * THREADS + threadIdx.x];
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
    uint32_t *starts; /* first item of each row, and the end of the last row */
    double *pieces;   /* (pieces, 2, size): sums of a piece's first row and of its last row */
    int64_t count, rows, size, groups, piece;
    const void *dy;
    void *dw;
    int dy_dtype, dw_dtype;
    bool add, rare;
} gradient;

/* A unit of summation: 32 columns of a row or of a piece. In a block 8 threads share a column and each
 * takes every eighth item; a warp takes it alone. */
typedef struct unit {
    int64_t of, column; /* column: the thread's, possibly beyond the last */
    int part, parts;    /* which of the items the thread takes */
} unit;
} // namespace

static __device__ __forceinline__ unit unit_of(const gradient &g, int64_t i, int part, int parts)
{
    int64_t of = tern__quotient(i, g.groups);
    return {of, (i - of * g.groups) * COLUMNS + threadIdx.x % COLUMNS, part, parts};
}

/* The first item of this row or of a later one. */
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

static __global__ void find_starts(gradient g)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x; row <= g.rows; row += step)
        g.starts[row] = (uint32_t)first_of(g, row);
}

static __device__ __forceinline__ bool is_long(const gradient &g, int64_t row)
{
    return g.starts[row + 1] - g.starts[row] > g.piece;
}

/* A thread's part of a sum. */
static __device__ double sum_items(const gradient &g, const unit &u, int64_t first, int64_t last)
{
    double sum = 0;
    for (int64_t i = first + u.part; i < last && u.column < g.size; i += u.parts)
        sum += tern__element<double>(g.dy, g.dy_dtype, g.items[i].position * g.size + u.column);
    return sum;
}

/* Adds the pieces' sums of a row. The row is the last one of the piece in which it begins, unless it is
 * also the first. */
static __device__ double sum_pieces(const gradient &g, const unit &u, int64_t first, int64_t last)
{
    double sum = 0;
    for (int64_t i = first / g.piece + u.part; i * g.piece < last && u.column < g.size; i += u.parts)
        sum += g.pieces[(2 * i + (i * g.piece < first)) * g.size + u.column];
    return sum;
}

/* Adds the parts; the first part's threads get the whole sum. */
static __device__ double sum_parts(double sum)
{
    __shared__ double sums[THREADS];
    __syncthreads();
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int i = threadIdx.x + COLUMNS; i < THREADS; i += COLUMNS) sum += sums[i];
    return sum;
}

/* For long rows: sums each piece's first and last row. A piece has no more than two long rows. */
static __global__ void add_pieces(gradient g)
{
    tern__kernel_begin();
    int64_t units = (g.count + g.piece - 1) / g.piece * g.groups;
    for (int64_t i = blockIdx.x; i < units; i += gridDim.x) {
        unit u = unit_of(g, i, threadIdx.x / COLUMNS, PARTS);
        int64_t begin = u.of * g.piece, end = TERN__MIN(begin + g.piece, g.count);
        int64_t rows[] = {g.items[begin].row, g.items[end - 1].row};
        for (int n = 0; n < 2 && (n == 0 || rows[1] != rows[0]); n++) {
            if (rows[n] == g.rows || !is_long(g, rows[n])) continue;
            int64_t first = TERN__MAX(begin, (int64_t)g.starts[rows[n]]);
            int64_t last = TERN__MIN(end, (int64_t)g.starts[rows[n] + 1]);
            double sum = sum_parts(sum_items(g, u, first, last));
            if (u.part == 0 && u.column < g.size) g.pieces[(2 * u.of + n) * g.size + u.column] = sum;
        }
    }
}

/* A thread's part of a row. */
static __device__ double sum_row(const gradient &g, const unit &u)
{
    int64_t first = g.starts[u.of], last = g.starts[u.of + 1];
    return last - first > g.piece ? sum_pieces(g, u, first, last) : sum_items(g, u, first, last);
}

static __device__ void put_row(const gradient &g, const unit &u, double sum)
{
    int64_t at = u.of * g.size + u.column;
    if (u.part || u.column >= g.size) return;
    if (g.add) sum += tern__element<double>(g.dw, g.dw_dtype, at);
    tern__element_set<double>(g.dw, g.dw_dtype, at, sum);
}

static __global__ void add_rows(gradient g)
{
    tern__kernel_begin();
    for (int64_t i = blockIdx.x; i < g.rows * g.groups; i += gridDim.x) {
        unit u = unit_of(g, i, threadIdx.x / COLUMNS, PARTS);
        put_row(g, u, sum_parts(sum_row(g, u)));
    }
}

/* For rows with hardly one item each, as in a large vocabulary. */
static __global__ void add_rare_rows(gradient g)
{
    tern__kernel_begin();
    for (int64_t i = blockIdx.x * PARTS + threadIdx.x / COLUMNS; i < g.rows * g.groups;
         i += (int64_t)gridDim.x * PARTS) {
        unit u = unit_of(g, i, 0, 1);
        put_row(g, u, sum_row(g, u));
    }
}

static gradient gradient_of(const tern__call *call, const item *items, int64_t count)
{
    const tern__view *dy = call->in[0], *dw = call->out[0];
    gradient g = {};
    g.items = items;
    g.count = count;
    g.rows = dw->shape[0];
    g.size = dw->shape[1];
    g.groups = (g.size + COLUMNS - 1) / COLUMNS;
    g.dy = dy->data;
    g.dw = dw->data;
    g.dy_dtype = dy->dtype;
    g.dw_dtype = dw->dtype;
    g.add = call->add[0];
    g.rare = count <= g.rows * RARE;
    g.piece = g.rare ? SHORT : PIECE;
    return g;
}

/* Pieces are needed if a row can be longer than one. */
static int add_sorted(const tern__call *call, const item *items, int64_t count)
{
    gradient g = gradient_of(call, items, count);
    int64_t pieces = count > g.piece ? (count + g.piece - 1) / g.piece : 0;
    size_t starts = tern__align_up((size_t)(g.rows + 1) * sizeof(uint32_t), 256);
    char *scratch = (char *)tern__cuda_scratch(call, starts + (size_t)(2 * pieces * g.size) * sizeof(double));
    if (!scratch) return TERN_E_MEMORY;
    g.starts = (uint32_t *)scratch;
    g.pieces = (double *)(scratch + starts);
    int status =
        tern__cuda_launch(call, find_starts, tern__cuda_grid(call, g.rows + 1, THREADS, 1), THREADS, 0, g);
    if (!status && pieces)
        status = tern__cuda_launch(call, add_pieces, tern__cuda_grid(call, pieces * g.groups, 1, 1), THREADS,
                                   0, g);
    if (!status)
        status =
            tern__cuda_launch(call, g.rare ? add_rare_rows : add_rows,
                              tern__cuda_grid(call, g.rows * g.groups, g.rare ? PARTS : 1, 1), THREADS, 0, g);
    tern__cuda_scratch_free(call, scratch);
    return status;
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
