/* group_norm.cu - group norm, which also does layer norm and instance norm. A block takes one row after
 * another. It reads a row again while it is in a cache, or keeps it in registers if it is short. The mean
 * is computed first, and the sum of the deviations from it corrects the mean, so nothing cancels. Both
 * parts of the mean are kept: far from zero, f32 numbers are so far apart that the mean alone would be off
 * by more than the values' spread. Long rows that are fewer than a GPU's multiprocessors are summed by many
 * blocks, like batch norm's channels, and so are the gradients of weight and bias (columns.h). */
#include "cuda/kernels.h"
#include "cuda/kernels/moments.h"
#include "cuda/kernels/sums.h"

extern "C" {
#include "kernels/batch_norm.h"
#include "kernels/group_norm.h"
}

#define MOST       1024 /* most threads for a row */
#define AHEAD      4    /* bunches of x that a thread reads at a time            */
#define GRAD_AHEAD 2    /* bunches of dy and x, or of a shared row, at a time */
#define HUGE_ROW                                                                                             \
    (1 << 18)          /* rows of at least so many values are shared by blocks, however many rows there are */
#define LONG (1 << 16) /* the same if there are few rows */

typedef struct group_norm {
    tern__group_shape shape;
    int64_t rows;
    tern__columns k; /* of shared rows: a row is a channel */
    const void *x, *dy;
    void *y; /* or dx */
    tern__vector weight, bias, mean, inverse;
    bool fours; /* weight and bias can be read in fours */
    double eps;
    bool add;
} group_norm;

/* The channel, among all, of element i of a row. A bunch is in one channel, or has adjacent channels if
 * rows have no positions. */
static __device__ __forceinline__ int64_t channel_of(const group_norm &a, int64_t row, int64_t i)
{
    int64_t group = row - tern__quotient(row, a.shape.groups) * a.shape.groups;
    int64_t within = a.shape.positions == 1 ? i : tern__quotient(i, a.shape.positions);
    return group * a.shape.channels + within;
}

/* Reads a vector's entries for the channels of N neighbours. */
template <class R, int N>
static __device__ __forceinline__ void get_numbers(const group_norm &a, const tern__vector &v, int64_t c,
                                                   R fallback, R *to)
{
    if (a.shape.positions > 1 || !v.data) {
        R same = tern__vector_get<R>(v, c, fallback);
        for (int l = 0; l < N; l++) to[l] = same;
        return;
    }
    if constexpr (N % 4 == 0)
        if (a.fours) {
            for (int q = 0; q < N; q += 4) {
                tern__four<R> f = tern__four_get<R>(v.data, v.dtype, c + q);
                for (int l = 0; l < 4; l++) to[q + l] = f.v[l];
            }
            return;
        }
    for (int l = 0; l < N; l++) to[l] = tern__vector_get<R>(v, c + l, fallback);
}

/* A row's mean: the R next to it, and the rest. */
template <class R> struct row_mean {
    R near, rest;

    __device__ __forceinline__ R distance(R x) const
    {
        return (x - near) - rest;
    }
};

/* Writes y for the bunch at `at` in its row. */
template <int DTYPE, int N>
static __device__ __forceinline__ void
put_norm(const group_norm &a, int64_t row, int64_t at, const tern__bunch<DTYPE, N> &x,
         const row_mean<tern__number<DTYPE>> &mean, tern__number<DTYPE> inverse)
{
    typedef tern__number<DTYPE> R;
    R w[N], b[N], y[N];
    int64_t c = channel_of(a, row, at);
    get_numbers<R, N>(a, a.weight, c, 1, w);
    get_numbers<R, N>(a, a.bias, c, 0, b);
    for (int l = 0; l < N; l++) y[l] = mean.distance(x.get(l)) * inverse * w[l] + b[l];
    tern__bunch_put<DTYPE>(a.y, row * a.shape.size + at, y, a.add);
}

/* Terms of a row's dx; middle, slope: means of w dy and of w dy xhat. */
template <class R> struct row_terms {
    row_mean<R> mean;
    R inverse, middle, slope;
};

template <class R> static __device__ __forceinline__ row_mean<R> mean_of(const group_norm &a, int64_t row)
{
    double mean = tern__vector_get<double>(a.mean, row, 0);
    return {(R)mean, (R)(mean - (double)(R)mean)};
}

template <class R> static __device__ __forceinline__ row_terms<R> terms_of(const group_norm &a, int64_t row)
{
    return {mean_of<R>(a, row), tern__vector_get<R>(a.inverse, row, 0), 0, 0};
}

template <class R>
static __device__ __forceinline__ void give_sums(const group_norm &a, row_terms<R> *r, R sum, R product)
{
    r->middle = sum / (R)a.shape.size;
    r->slope = product * r->inverse / (R)a.shape.size;
}

/* Sums w dy and w dy (x - mean). w dy is rounded as in dx. */
template <int DTYPE, int N>
static __device__ __forceinline__ void add_up(const group_norm &a, int64_t row, int64_t at,
                                              const tern__bunch<DTYPE, N> &dy, const tern__bunch<DTYPE, N> &x,
                                              const row_mean<tern__number<DTYPE>> &mean,
                                              tern__number<DTYPE> (&sums)[2])
{
    tern__number<DTYPE> w[N];
    get_numbers<tern__number<DTYPE>, N>(a, a.weight, channel_of(a, row, at), 1, w);
    for (int l = 0; l < N; l++) {
        tern__number<DTYPE> d = tern__rounded_product(dy.get(l), w[l]);
        sums[0] += d;
        sums[1] += d * mean.distance(x.get(l));
    }
}

/* dx = inverse (w dy - mean(w dy) - xhat mean(w dy xhat)). w dy is rounded as in the mean: a row of one
 * value must give exactly 0. */
template <int DTYPE, int N>
static __device__ __forceinline__ void
put_grad(const group_norm &a, int64_t row, int64_t at, const tern__bunch<DTYPE, N> &dy,
         const tern__bunch<DTYPE, N> &x, const row_terms<tern__number<DTYPE>> &r)
{
    typedef tern__number<DTYPE> R;
    R w[N], dx[N];
    get_numbers<R, N>(a, a.weight, channel_of(a, row, at), 1, w);
    for (int l = 0; l < N; l++) {
        R d = tern__rounded_product(dy.get(l), w[l]);
        dx[l] = r.inverse * (d - r.middle - r.mean.distance(x.get(l)) * r.inverse * r.slope);
    }
    tern__bunch_put<DTYPE>(a.y, row * a.shape.size + at, dx, a.add);
}

/* A thread's part of a row at a time: `count` bunches, interleaved with those of the block's other
 * threads; 0 beyond the row. */
template <int DTYPE, int N, int COUNT> struct row_part {
    tern__bunch<DTYPE, N> bunch[COUNT];

    static __device__ __forceinline__ int64_t pace(void)
    {
        return (int64_t)blockDim.x * N * COUNT;
    }
    static __device__ __forceinline__ int64_t at(int64_t i, int n)
    {
        return i + (int64_t)n * blockDim.x * N;
    }
    __device__ __forceinline__ void read(const void *data, int64_t from, int64_t i, int64_t size)
    {
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            bunch[n] = {};
            if (at(i, n) < size) bunch[n] = tern__bunch_get<DTYPE, N>(data, from + at(i, n));
        }
    }
};

/* Returns the sum of the distances of this thread's elements of a row from `first`. A row that fits one
 * pass stays in `x`. */
template <int DTYPE, int N>
static __device__ __forceinline__ tern__number<DTYPE>
row_sum(const group_norm &a, int64_t row, row_part<DTYPE, N, AHEAD> &x, tern__number<DTYPE> first)
{
    typedef row_part<DTYPE, N, AHEAD> part;
    const int64_t size = a.shape.size, pace = part::pace();
    tern__number<DTYPE> sum = 0;
    for (int64_t i = threadIdx.x * N; i < size; i += pace) {
        x.read(a.x, row * size, i, size);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            for (int l = 0; l < N && part::at(i, j) < size; l++) sum += x.bunch[j].get(l) - first;
    }
    return sum;
}

/* Adds the distances of this thread's elements from `mean`, and their squares, to `moments`. */
template <int DTYPE, int N>
static __device__ __forceinline__ void add_moments(const group_norm &a, int64_t row,
                                                   row_part<DTYPE, N, AHEAD> &x, tern__number<DTYPE> mean,
                                                   tern__number<DTYPE> (&moments)[2])
{
    typedef row_part<DTYPE, N, AHEAD> part;
    const int64_t size = a.shape.size, pace = part::pace();
    for (int64_t i = threadIdx.x * N; i < size; i += pace) {
        if (size > pace) x.read(a.x, row * size, i, size);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            for (int l = 0; l < N && part::at(i, j) < size; l++) {
                tern__number<DTYPE> d = x.bunch[j].get(l) - mean;
                moments[0] += d;
                moments[1] += d * d;
            }
    }
}

template <int DTYPE, int N>
static __device__ __forceinline__ void put_row(const group_norm &a, int64_t row, row_part<DTYPE, N, AHEAD> &x,
                                               const row_mean<tern__number<DTYPE>> &mean,
                                               tern__number<DTYPE> inverse)
{
    typedef row_part<DTYPE, N, AHEAD> part;
    const int64_t size = a.shape.size, pace = part::pace();
    for (int64_t i = threadIdx.x * N; i < size; i += pace) {
        if (size > pace) x.read(a.x, row * size, i, size);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (part::at(i, j) >= size) break;
            put_norm<DTYPE, N>(a, row, part::at(i, j), x.bunch[j], mean, inverse);
        }
    }
}

template <int DTYPE, int N> static __global__ void __launch_bounds__(MOST) run_norm(group_norm a)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    const R n = (R)a.shape.size;
    row_part<DTYPE, N, AHEAD> x;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        R first = tern__element<R>(a.x, DTYPE, row * a.shape.size), moments[2] = {};
        row_mean<R> mean = {first + tern__block_sum(row_sum<DTYPE, N>(a, row, x, first)) / n, 0};
        add_moments<DTYPE, N>(a, row, x, mean.near, moments);
        tern__block_sums<2, R>(moments);
        mean.rest = moments[0] / n;
        R var = moments[1] / n - mean.rest * mean.rest;
        var = var < 0 ? 0 : isinf(var) ? (R)NAN : var; /* below 0 by rounding; tern__norm_variance */
        R inverse = 1 / sqrt(var + (R)a.eps);
        put_row<DTYPE, N>(a, row, x, mean, inverse);
        if (threadIdx.x > 0) continue;
        tern__element_set<double>(a.mean.data, a.mean.dtype, row, (double)mean.near + (double)mean.rest);
        tern__element_set<R>(a.inverse.data, a.inverse.dtype, row, inverse);
    }
}

template <int DTYPE, int N> static __global__ void __launch_bounds__(MOST, 1) run_data_grad(group_norm a)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    typedef row_part<DTYPE, N, GRAD_AHEAD> part;
    const int64_t size = a.shape.size, first = threadIdx.x * N, pace = part::pace();
    part dy, x;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        row_terms<R> r = terms_of<R>(a, row);
        R sums[2] = {};
        for (int64_t i = first; i < size; i += pace) {
            dy.read(a.dy, row * size, i, size);
            x.read(a.x, row * size, i, size);
#pragma unroll
            for (int j = 0; j < GRAD_AHEAD; j++) {
                if (part::at(i, j) >= size) break;
                add_up<DTYPE, N>(a, row, part::at(i, j), dy.bunch[j], x.bunch[j], r.mean, sums);
            }
        }
        tern__block_sums<2, R>(sums);
        give_sums(a, &r, sums[0], sums[1]);
        for (int64_t i = first; i < size; i += pace) {
            if (size > pace) {
                dy.read(a.dy, row * size, i, size);
                x.read(a.x, row * size, i, size);
            }
#pragma unroll
            for (int j = 0; j < GRAD_AHEAD; j++) {
                if (part::at(i, j) >= size) break;
                put_grad<DTYPE, N>(a, row, part::at(i, j), dy.bunch[j], x.bunch[j], r);
            }
        }
    }
}

/* ---- dw = sum(dy xhat) and db = sum(dy) of each channel ---- */

typedef struct group_norm_weights {
    tern__columns k; /* of x as (N, G K, S); for shared rows as (1, N G, K S) */
    group_norm a;
    double *partial;
    tern__vector dw, db; /* for shared rows: sums of w dy (x - mean) and of w dy */
} group_norm_weights;

template <int DTYPE, int N> static __global__ void run_sums(group_norm_weights w)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    const group_norm &a = w.a;
    tern__seat s = tern__seat_of(w.k, blockIdx.y), from = s;
    int64_t group = tern__quotient(tern__seat_channel(w.k, s, 0, N), a.shape.channels);
    R db[N] = {}, dw[N] = {};
    for (; s.row < s.last; tern__seat_move(w.k, &s)) {
        int64_t row = (w.k.is_last ? s.row : tern__quotient(s.row, w.k.run)) * a.shape.groups + group;
        row_mean<R> mean = mean_of<R>(a, row);
        R inverse = tern__element<R>(a.inverse.data, a.inverse.dtype, row);
        tern__bunch<DTYPE, N> dy = tern__bunch_get<DTYPE, N>(a.dy, s.at);
        tern__bunch<DTYPE, N> x = tern__bunch_get<DTYPE, N>(a.x, s.at);
        for (int l = 0; l < N; l++) {
            db[l] += dy.get(l);
            dw[l] += dy.get(l) * (mean.distance(x.get(l)) * inverse);
        }
    }
    double dbs[N], dws[N];
    for (int l = 0; l < N; l++) dbs[l] = (double)db[l], dws[l] = (double)dw[l];
    tern__columns_leave<tern__join_sums, N>(w.k, w.partial, from, 0, dbs, dws);
}

static __global__ void __launch_bounds__(TERN__COLUMN_THREADS, 1) run_totals(group_norm_weights w)
{
    tern__kernel_begin();
    int64_t c = tern__merge_channel();
    double db, dw;
    tern__parts_sum(w.k, w.partial, &db, &dw);
    if (threadIdx.x >= TERN__MERGED || c >= w.k.channels) return;
    tern__vector_put(w.db, c, db);
    tern__vector_put(w.dw, c, dw);
}

/* ---- rows shared by blocks ---- */

/* From the last part to the first: what the statistics read last may still be in a cache. */
template <int DTYPE, int N>
static __global__ void __launch_bounds__(TERN__COLUMN_THREADS, 3) run_shared_norm(group_norm a)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    tern__seat s = tern__seat_of(a.k, (int)(gridDim.y - 1 - blockIdx.y));
    const int64_t row = s.column, begin = row * a.shape.size, pace = a.k.down * N;
    row_terms<R> r = terms_of<R>(a, row);
    tern__bunch<DTYPE, N> x[GRAD_AHEAD];
    while (s.row < s.last) {
        int64_t at = s.at - begin;
        int count = tern__seat_read(a.k, &s, a.x, x);
#pragma unroll
        for (int j = 0; j < GRAD_AHEAD; j++) {
            if (j >= count) break;
            put_norm<DTYPE, N>(a, row, at + j * pace, x[j], r.mean, r.inverse);
        }
    }
}

/* Reads the next bunches of dy and x; there are equally many. */
template <int DTYPE, int N>
static __device__ __forceinline__ int read_both(const group_norm &a, tern__seat *s,
                                                tern__bunch<DTYPE, N> (&dy)[GRAD_AHEAD],
                                                tern__bunch<DTYPE, N> (&x)[GRAD_AHEAD])
{
    tern__seat same = *s;
    tern__seat_read(a.k, &same, a.dy, dy);
    return tern__seat_read(a.k, s, a.x, x);
}

template <int DTYPE, int N>
static __global__ void __launch_bounds__(TERN__COLUMN_THREADS, 3) run_shared_sums(group_norm_weights w)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    const group_norm &a = w.a;
    tern__seat s = tern__seat_of(a.k, blockIdx.y), from = s;
    const int64_t row = s.column, begin = row * a.shape.size, pace = a.k.down * N;
    R sums[2] = {};
    const row_mean<R> mean = mean_of<R>(a, row);
    tern__bunch<DTYPE, N> dy[GRAD_AHEAD], x[GRAD_AHEAD];
    while (s.row < s.last) {
        int64_t at = s.at - begin;
        int count = read_both<DTYPE, N>(a, &s, dy, x);
#pragma unroll
        for (int j = 0; j < GRAD_AHEAD; j++) {
            if (j >= count) break;
            add_up<DTYPE, N>(a, row, at + j * pace, dy[j], x[j], mean, sums);
        }
    }
    double first[N] = {(double)sums[0]}, second[N] = {(double)sums[1]};
    tern__columns_leave<tern__join_sums, N>(a.k, w.partial, from, 0, first, second);
}

template <int DTYPE, int N>
static __global__ void __launch_bounds__(TERN__COLUMN_THREADS, 3) run_shared_grad(group_norm_weights w)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    const group_norm &a = w.a;
    tern__seat s = tern__seat_of(a.k, (int)(gridDim.y - 1 - blockIdx.y));
    const int64_t row = s.column, begin = row * a.shape.size, pace = a.k.down * N;
    row_terms<R> r = terms_of<R>(a, row);
    give_sums(a, &r, tern__vector_get<R>(w.db, row, 0), tern__vector_get<R>(w.dw, row, 0));
    tern__bunch<DTYPE, N> dy[GRAD_AHEAD], x[GRAD_AHEAD];
    while (s.row < s.last) {
        int64_t at = s.at - begin;
        int count = read_both<DTYPE, N>(a, &s, dy, x);
#pragma unroll
        for (int j = 0; j < GRAD_AHEAD; j++) {
            if (j >= count) break;
            put_grad<DTYPE, N>(a, row, at + j * pace, dy[j], x[j], r);
        }
    }
}

/* ---- launching ---- */

static bool fits(const tern__view *view, const tern__view *x)
{
    return !view || (view->dtype == x->dtype && tern__view_is_contiguous(view));
}

/* A contiguous view of any number of dimensions as a vector. */
static tern__vector row_of(const tern__view *view, bool add)
{
    tern__vector v = tern__vector_of(view, add);
    v.stride = 1;
    return v;
}

static bool is_row(const tern__view *view)
{
    return !view || tern__view_is_contiguous(view);
}

/* Fills in all but weight, bias and outputs. */
static group_norm norm_of(const tern__view *x, const tern__view *mean, const tern__view *inverse)
{
    group_norm a = {};
    a.shape = tern__group_shape_of(x);
    a.rows = a.shape.samples * a.shape.groups;
    a.x = x->data;
    a.mean = row_of(mean, false);
    a.inverse = row_of(inverse, false);
    a.fours = true;
    return a;
}

static void give_numbers(group_norm *a, tern__vector *to, const tern__view *view)
{
    *to = row_of(view, false);
    if (view) a->fours &= (uintptr_t)view->data % 16 == 0;
}

/* Whether all neighbours of a bunch have one channel, or one each. */
static bool is_bunched(const group_norm &a, const tern__view *const *views, int count)
{
    return tern__bunches_fit(views, count, a.shape.positions == 1 ? a.shape.channels : a.shape.positions);
}

/* Whether blocks share rows. Few rows would leave multiprocessors idle, and a row that is too large for
 * the cache would be read from memory three times by its block. Depends on the shape alone, so sums do not
 * depend on the device. */
static bool is_shared(const group_norm &a)
{
    return a.shape.size >= (a.rows < TERN__COLUMN_FEW / 2 ? LONG : HUGE_ROW);
}

/* x as (1, rows, size): rows take the place of batch norm's channels. */
static tern__view rows_of(const group_norm &a, const tern__view *x)
{
    int64_t shape[] = {1, a.rows, a.shape.size};
    tern__view rows = tern__view_make(x->dtype, TERN__PLAIN, 3, shape);
    rows.data = x->data;
    return rows;
}

typedef void (*kernel_fn)(group_norm a);

/* Launches enough warps to hold a row at once, with `lanes` values per load. */
static int launch(const tern__call *call, const group_norm &a, kernel_fn kernel, int lanes)
{
    int threads = TERN__WARP;
    while (threads < MOST && threads * lanes < a.shape.size) threads *= 2;
    return tern__cuda_launch(call, kernel, tern__cuda_grid(call, a.rows, 1, 1), threads, 0, a);
}

template <int DTYPE, int N> static int start_norm(const tern__call *call, const group_norm &a)
{
    return launch(call, a, run_norm<DTYPE, N>, N * AHEAD);
}

template <int DTYPE, int N>
static int start_shared_norm(const tern__call *call, group_norm a, const tern__view *rows)
{
    a.k = tern__columns_of(rows, N, TERN__PASS_BLOCKS, TERN__PASS_ROWS);
    return tern__cuda_launch(call, run_shared_norm<DTYPE, N>, tern__columns_grid(a.k), TERN__COLUMN_THREADS,
                             0, a);
}

static int norm(const tern__call *call, const group_norm &a, bool bunched)
{
    tern__view rows = rows_of(a, call->in[0]);
    tern__moments to = {};
    if (!is_shared(a)) TERN__BUNCHED(rows.dtype, bunched, start_norm, call, a);
    to.mean = a.mean;
    to.inverse = a.inverse;
    to.eps = a.eps;
    int status = tern__cuda_moments(call, &rows, &to);
    if (status) return status;
    TERN__BUNCHED(rows.dtype, bunched, start_shared_norm, call, a, &rows);
}

int tern__cuda_group_norm(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0], *views[] = {x, y};
    bool fine = tern__dtype_is_float(x->dtype) && fits(x, x) && fits(y, x) && is_row(call->out[1]) &&
                is_row(call->out[2]) && is_row(call->in[1]) && is_row(call->in[2]);
    const tern__group_norm_attr *attr = (const tern__group_norm_attr *)call->attr;
    if (!fine || attr->rms || tern__view_count(x) == 0) return TERN_E_UNSUPPORTED;
    group_norm a = norm_of(x, call->out[1], call->out[2]);
    give_numbers(&a, &a.weight, call->in[1]);
    give_numbers(&a, &a.bias, call->in[2]);
    a.y = y->data;
    a.eps = attr->eps;
    a.add = call->add[0];
    return norm(call, a, is_bunched(a, views, 2));
}

template <int DTYPE, int N> static int start_data_grad(const tern__call *call, const group_norm &a)
{
    return launch(call, a, run_data_grad<DTYPE, N>, N * GRAD_AHEAD);
}

static int make_totals(const tern__call *call, const group_norm_weights &w,
                       void (*sums)(group_norm_weights w))
{
    int status = tern__cuda_launch(call, sums, tern__columns_grid(w.k), TERN__COLUMN_THREADS, 0, w);
    if (status) return status;
    return tern__cuda_launch(call, run_totals, tern__merge_grid(w.k), TERN__COLUMN_THREADS, 0, w);
}

template <int DTYPE, int N>
static int start_weights(const tern__call *call, const group_norm &a, const tern__view *flat)
{
    group_norm_weights w = {};
    w.k = tern__columns_of(flat, N, TERN__SUM_BLOCKS, TERN__SUM_ROWS);
    w.a = a;
    w.dw = row_of(call->out[1], call->add[1]);
    w.db = row_of(call->out[2], call->add[2]);
    size_t numbers = 2 * (size_t)w.k.parts * (size_t)w.k.channels;
    w.partial = (double *)tern__cuda_scratch(call, numbers * sizeof(double));
    if (!w.partial) return TERN_E_MEMORY;
    int status = make_totals(call, w, run_sums<DTYPE, N>);
    tern__cuda_scratch_free(call, w.partial);
    return status;
}

template <int DTYPE, int N>
static int start_shared_grad(const tern__call *call, const group_norm &a, const tern__view *rows)
{
    group_norm_weights w = {};
    w.a = a;
    w.k = w.a.k = tern__columns_of(rows, N, TERN__SUM_BLOCKS, TERN__SUM_ROWS);
    int64_t parts = 2 * w.k.parts * a.rows;
    w.partial = (double *)tern__cuda_scratch(call, (size_t)(parts + 2 * a.rows) * sizeof(double));
    if (!w.partial) return TERN_E_MEMORY;
    w.db = {w.partial + parts, TERN_F64, 1, false};
    w.dw = {w.partial + parts + a.rows, TERN_F64, 1, false};
    int status = make_totals(call, w, run_shared_sums<DTYPE, N>);
    w.a.k = tern__columns_of(rows, N, TERN__PASS_BLOCKS, TERN__PASS_ROWS);
    if (!status)
        status = tern__cuda_launch(call, run_shared_grad<DTYPE, N>, tern__columns_grid(w.a.k),
                                   TERN__COLUMN_THREADS, 0, w);
    tern__cuda_scratch_free(call, w.partial);
    return status;
}

static int weight_grad(const tern__call *call, const group_norm &a, bool bunched)
{
    const tern__view *x = call->in[1];
    int64_t shape[] = {a.shape.samples, a.shape.groups * a.shape.channels, a.shape.positions};
    tern__view flat = tern__view_make(x->dtype, TERN__PLAIN, 3, shape);
    TERN__BUNCHED(x->dtype, bunched, start_weights, call, a, &flat);
}

static int data_grad(const tern__call *call, const group_norm &a, bool bunched)
{
    tern__view rows = rows_of(a, call->in[1]);
    if (is_shared(a)) TERN__BUNCHED(rows.dtype, bunched, start_shared_grad, call, a, &rows);
    TERN__BUNCHED(call->in[1]->dtype, bunched, start_data_grad, call, a);
}

/* The weights first: dx may overwrite dy. */
int tern__cuda_group_norm_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *x = call->in[1], *dx = call->out[0], *views[] = {x, dy, dx};
    bool fine = tern__dtype_is_float(x->dtype) && fits(x, x) && fits(dy, x) && fits(dx, x) &&
                is_row(call->in[2]) && is_row(call->in[3]) && is_row(call->in[4]) && is_row(call->out[1]) &&
                is_row(call->out[2]);
    bool rms = ((const tern__group_norm_attr *)call->attr)->rms != 0;
    if (!fine || rms || tern__view_count(x) == 0) return TERN_E_UNSUPPORTED;
    group_norm a = norm_of(x, call->in[2], call->in[3]);
    give_numbers(&a, &a.weight, call->in[4]);
    a.dy = dy->data;
    bool bunched = is_bunched(a, views, 3);
    int status = call->out[1] || call->out[2] ? weight_grad(call, a, bunched) : TERN_OK;
    if (status || !dx) return status;
    a.y = dx->data;
    a.add = call->add[0];
    return data_grad(call, a, bunched);
}
