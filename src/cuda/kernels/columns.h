/* columns.h - how blocks go over (N, C, ..) channel by channel.
 *
 * A thread stays in one column. With channels last a column is as many channels as are read at a time, and
 * its rows are the positions of all images. Otherwise it is one channel, and its rows are bunches of
 * neighbours in its planes. A block takes some neighbouring columns, of which it reads each row at once,
 * and one part of their rows. Parts depend on the shape only, so sums do not depend on the device. */
#ifndef TERN_SRC_CUDA_KERNELS_COLUMNS_H
#define TERN_SRC_CUDA_KERNELS_COLUMNS_H

#include "cuda/kernels/bunches.h"

#define TERN__COLUMN_THREADS 256

/* About how many blocks write sums, and how many rows each thread has at least. Merging the results of a
 * block's threads takes as long as some 16 rows, and the blocks' results are read in at most two rounds. */
#define TERN__SUM_BLOCKS  1024
#define TERN__SUM_ROWS    16
#define TERN__PASS_BLOCKS 4096 /* blocks of a pass that writes each row */
#define TERN__PASS_ROWS   8
#define TERN__COLUMN_FEW  264 /* blocks: two per multiprocessor of a large GPU */

typedef struct tern__columns {
    int64_t channels, columns, rows, per_part; /* rows per part */
    int parts, across, down;                   /* of a block: columns, and rows read at a time */
    bool is_last;                              /* channels last: each lane is another channel */
    int64_t column_step, step, run, run_step;  /* to the next column, row; rows before a gap */
    int64_t leap, leap_rows;                   /* the distance of `down` rows without the gap */
} tern__columns;

/* Whether channels are adjacent in memory, as they are without positions. */
static inline bool tern__columns_are_last(const tern__view *x, int64_t positions)
{
    return x->layout == TERN__CHANNELS_LAST || positions == 1;
}

static inline int64_t tern__positions_of(const tern__view *x)
{
    int64_t positions = 1;
    for (int d = 2; d < x->ndim; d++) positions *= x->shape[d];
    return positions;
}

/* Plans columns with `lanes` per bunch and about `blocks` blocks, whose threads have at least `rows` rows,
 * or half as many if there would be too few blocks for all multiprocessors. */
static inline tern__columns tern__columns_of(const tern__view *x, int lanes, int64_t blocks, int64_t rows)
{
    int64_t images = x->shape[0], channels = x->shape[1], positions = tern__positions_of(x);
    tern__columns k = {};
    k.channels = channels;
    k.is_last = tern__columns_are_last(x, positions);
    k.columns = k.is_last ? channels / lanes : channels;
    k.rows = k.is_last ? images * positions : images * (positions / lanes);
    k.column_step = k.is_last ? lanes : positions;
    k.step = k.is_last ? channels : lanes;
    k.run = k.is_last ? k.rows : positions / lanes;
    k.run_step = channels * positions;
    k.across = 1;
    while (k.is_last && k.across < 32 && k.across < k.columns) k.across *= 2;
    k.down = TERN__COLUMN_THREADS / k.across;
    int64_t tiles = (k.columns + k.across - 1) / k.across, parts = (blocks + tiles - 1) / tiles;
    if (k.rows * tiles < TERN__COLUMN_FEW * rows * k.down) rows /= 2;
    k.per_part = TERN__MAX((k.rows + parts - 1) / parts, rows * k.down);
    k.parts = (int)((k.rows + k.per_part - 1) / k.per_part);
    k.leap_rows = k.down % k.run;
    k.leap = k.down / k.run * k.run_step + k.leap_rows * k.step;
    return k;
}

static inline dim3 tern__columns_grid(const tern__columns &k)
{
    return dim3((unsigned)((k.columns + k.across - 1) / k.across), (unsigned)k.parts);
}

/* A thread's position: its column, and its next row. */
typedef struct tern__seat {
    int64_t column, row, last, at, in_run;
    int x, y; /* position in the block */
} tern__seat;

static __device__ __forceinline__ tern__seat tern__seat_of(const tern__columns &k, int part)
{
    tern__seat s;
    s.x = (int)threadIdx.x & (k.across - 1);
    s.y = (int)threadIdx.x / k.across;
    s.column = (int64_t)blockIdx.x * k.across + s.x;
    int64_t first = part * k.per_part, next = first + k.per_part;
    s.last = s.column >= k.columns ? 0 : next < k.rows ? next : k.rows;
    s.row = first + s.y;
    int64_t image = tern__quotient(s.row, k.run);
    s.in_run = s.row - image * k.run;
    s.at = s.column * k.column_step + image * k.run_step + s.in_run * k.step;
    return s;
}

static __device__ __forceinline__ void tern__seat_move(const tern__columns &k, tern__seat *s)
{
    s->row += k.down;
    s->at += k.leap;
    s->in_run += k.leap_rows;
    if (s->in_run < k.run) return;
    s->in_run -= k.run;
    s->at += k.run_step - k.run * k.step;
}

/* Reads a thread's next rows, issuing all loads at once; 0 after the last. Returns how many there are. */
template <int DTYPE, int N, int MOST>
static __device__ __forceinline__ int tern__seat_read(const tern__columns &k, tern__seat *s, const void *data,
                                                      tern__bunch<DTYPE, N> (&x)[MOST])
{
    int rows = 0;
#pragma unroll
    for (int i = 0; i < MOST; i++, tern__seat_move(k, s)) {
        x[i] = {};
        if (s->row >= s->last) continue;
        x[i] = tern__bunch_get<DTYPE, N>(data, s->at);
        rows++;
    }
    return rows;
}

/* Returns the channel of a lane. */
static __device__ __forceinline__ int64_t tern__seat_channel(const tern__columns &k, const tern__seat &s,
                                                             int lane, int lanes)
{
    return k.is_last ? s.column * lanes + lane : s.column;
}

/* The index of a part's first number for channel c; the second is parts * channels later. */
static __device__ __forceinline__ int64_t tern__columns_part(const tern__columns &k, int64_t part, int64_t c)
{
    return part * k.channels + c;
}

/* ---- merging pairs of numbers of a block's threads ---- */

/* Constructed once for all lanes, with the number of values that each of the two pairs describes. If both
 * are 0 the second number is 0. */
struct tern__join_moments { /* a mean and a centred second moment */
    bool is_there;
    double share, spread;

    __device__ __forceinline__ tern__join_moments(double n, double other_n)
    {
        is_there = other_n > 0;
        share = is_there ? other_n / (n + other_n) : 0;
        spread = n * share;
    }
    __device__ __forceinline__ void of(double &mean, double &m2, double other_mean, double other_m2) const
    {
        double d = is_there ? other_mean - mean : 0;
        mean += d * share;
        m2 += other_m2 + d * d * spread;
    }
};

struct tern__join_sums {
    __device__ __forceinline__ tern__join_sums(double, double)
    {
    }
    __device__ __forceinline__ void of(double &a, double &b, double other_a, double other_b) const
    {
        a += other_a;
        b += other_b;
    }
};

/* Merges the columns' pairs of all threads, n values each, into the first row of threads. */
template <class J, int N> __device__ void tern__join_rows(int across, double n, double *first, double *second)
{
    __shared__ double values[2][N][TERN__COLUMN_THREADS / 2], counts[TERN__COLUMN_THREADS / 2];
    int thread = (int)threadIdx.x;
    for (int half = TERN__COLUMN_THREADS / 2; half >= across; half /= 2) {
        bool gives = thread >= half && thread < 2 * half;
        if (gives) {
            counts[thread - half] = n;
            for (int l = 0; l < N; l++) values[0][l][thread - half] = first[l];
            for (int l = 0; l < N; l++) values[1][l][thread - half] = second[l];
        }
        __syncthreads();
        if (thread < half) {
            const J join(n, counts[thread]);
            for (int l = 0; l < N; l++)
                join.of(first[l], second[l], values[0][l][thread], values[1][l][thread]);
            n += counts[thread];
        }
        __syncthreads();
    }
}

/* Merges lanes that belong to one channel. */
template <class J, int N> __device__ void tern__join_lanes(double n, double *first, double *second)
{
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2, n *= 2) {
        const J join(n, n);
#pragma unroll
        for (int l = 0; l < half; l++) join.of(first[l], second[l], first[l + half], second[l + half]);
    }
}

/* Writes the block's results: each thread has n values per lane. */
template <class J, int N>
__device__ void tern__columns_leave(const tern__columns &k, double *partial, const tern__seat &s, double n,
                                    double *first, double *second)
{
    if (!k.is_last) tern__join_lanes<J, N>(n, first, second);
    tern__join_rows<J, N>(k.across, k.is_last ? n : n * N, first, second);
    if (s.y > 0 || s.column >= k.columns) return;
#pragma unroll
    for (int l = 0; l < N; l++) {
        if (l > 0 && !k.is_last) break;
        int64_t at = tern__columns_part(k, blockIdx.y, tern__seat_channel(k, s, l, N));
        partial[at] = first[l];
        partial[k.parts * k.channels + at] = second[l];
    }
}

/* ---- merging parts ---- */

/* A block merges the parts of some neighbouring channels. A thread loads several parts at a time: one
 * after the other they would take as long as the values they summarise. */
#define TERN__MERGED  4
#define TERN__PACE    (TERN__COLUMN_THREADS / TERN__MERGED)
#define TERN__AT_ONCE 8

static inline dim3 tern__merge_grid(const tern__columns &k)
{
    return dim3((unsigned)((k.channels + TERN__MERGED - 1) / TERN__MERGED));
}

static __device__ __forceinline__ int64_t tern__merge_channel(void)
{
    return (int64_t)blockIdx.x * TERN__MERGED + threadIdx.x % TERN__MERGED;
}

/* Reads the first (0) or second (1) number of channel c from every PACE-th part from `part` on, or 0.
 * Indices beyond the last part read another place: nvcc would delay a conditional load until its value is
 * used. */
static __device__ __forceinline__ void tern__parts_get(const tern__columns &k, const double *partial,
                                                       int which, int64_t c, int part,
                                                       double (&of)[TERN__AT_ONCE])
{
    int left = c < k.channels ? k.parts - part : 0;
    const double *first = partial + which * k.parts * k.channels;
    if (left > 0) first += tern__columns_part(k, part, c);
#pragma unroll
    for (int j = 0; j < TERN__AT_ONCE; j++)
        of[j] = first[left > j * TERN__PACE ? tern__columns_part(k, j * TERN__PACE, 0) : 0];
#pragma unroll
    for (int j = 0; j < TERN__AT_ONCE; j++)
        if (left <= j * TERN__PACE) of[j] = 0;
}

/* Sums both numbers over all parts; the results are in the block's first MERGED threads. */
static __device__ __forceinline__ void tern__parts_sum(const tern__columns &k, const double *partial,
                                                       double *first, double *second)
{
    int64_t c = tern__merge_channel();
    *first = *second = 0;
    for (int part = (int)threadIdx.x / TERN__MERGED; part < k.parts; part += TERN__PACE * TERN__AT_ONCE) {
        double a[TERN__AT_ONCE], b[TERN__AT_ONCE];
        tern__parts_get(k, partial, 0, c, part, a);
        tern__parts_get(k, partial, 1, c, part, b);
#pragma unroll
        for (int j = 0; j < TERN__AT_ONCE; j++) *first += a[j], *second += b[j];
    }
    tern__join_rows<tern__join_sums, 1>(TERN__MERGED, 0, first, second);
}

/* ---- one number per channel ---- */

typedef struct tern__vector {
    void *data; /* NULL: absent */
    int dtype;
    int64_t stride;
    bool add; /* for outputs */
} tern__vector;

static inline tern__vector tern__vector_of(const tern__view *view, bool add)
{
    if (!view) return {};
    return {view->data, (int)view->dtype, view->ndim ? view->stride[0] : 0, add};
}

template <class R> __device__ __forceinline__ R tern__vector_get(const tern__vector &v, int64_t c, R fallback)
{
    return v.data ? tern__element<R>(v.data, v.dtype, c * v.stride) : fallback;
}

static __device__ __forceinline__ void tern__vector_put(const tern__vector &v, int64_t c, double value)
{
    if (!v.data) return;
    if (v.add) value += tern__element<double>(v.data, v.dtype, c * v.stride);
    tern__element_set<double>(v.data, v.dtype, c * v.stride, value);
}

#endif
