/* batch_norm.cu - batch norm in passes over columns of channels (columns.h).
 *
 * Statistics: a thread sums d and d * d with d = x - shift, where shift is the mean of its first rows. So
 * close to the mean nothing cancels, and one pass over memory is enough. The threads' results, a mean and
 * a centred second moment, are merged as such: pairwise within a block, then part by part in double. Sums
 * of gradients are merged the same way. The elementwise pass that follows uses a few constants per
 * channel.
 *
 * Activations have one dtype and layout. Some rows are read at a time before any is written, possibly in
 * place. */
#include "cuda/kernels/batch_norm_inner.h"
#include "cuda/kernels/moments.h"

/* ---- statistics ---- */

/* The rows' mean, as distances from the first: that of equal values is the value itself. */
template <int DTYPE, int N>
static __device__ __forceinline__ void find_shift(const tern__bunch<DTYPE, N> (&x)[HEAD], int rows,
                                                  tern__number<DTYPE> *shift)
{
    typedef tern__number<DTYPE> R;
    const R share = 1 / (R)(rows ? rows : 1);
#pragma unroll
    for (int l = 0; l < N; l++) {
        R first = x[0].get(l), sum = 0;
#pragma unroll
        for (int i = 1; i < HEAD; i++) sum += i < rows ? x[i].get(l) - first : 0;
        shift[l] = first + sum * share;
    }
}

/* Three blocks fit on a multiprocessor, each with four rows being loaded. */
template <int DTYPE, int N> static __global__ void __launch_bounds__(THREADS, 3) run_moments(batch_norm a)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    tern__seat s = tern__seat_of(a.k, blockIdx.y), from = s;
    tern__bunch<DTYPE, N> x[HEAD];
    R shift[N] = {}, sum[N] = {}, square[N] = {}, n = 0;
    int rows = tern__seat_read(a.k, &s, a.x, x);
    find_shift<DTYPE, N>(x, rows, shift);
    for (; rows > 0; rows = tern__seat_read(a.k, &s, a.x, x)) {
        n += (R)rows;
#pragma unroll
        for (int i = 0; i < HEAD; i++) {
            if (i >= rows) break;
#pragma unroll
            for (int l = 0; l < N; l++) {
                R d = x[i].get(l) - shift[l];
                sum[l] += d;
                square[l] += d * d;
            }
        }
    }
    double means[N], squares[N];
    const R share = n > 0 ? 1 / n : 0;
#pragma unroll
    for (int l = 0; l < N; l++) {
        R mean = sum[l] * share;
        means[l] = (double)shift[l] + (double)mean;
        squares[l] = (double)(square[l] - sum[l] * mean);
    }
    tern__columns_leave<tern__join_moments, N>(a.k, a.partial, from, (double)n, means, squares);
}

typedef struct batch_norm_stats {
    tern__columns k;
    const double *partial;
    double all, full, last; /* values of a channel: in total, in a part, in the last part */
    tern__moments to;
} batch_norm_stats;

/* 0 for parts that do not exist. */
static __device__ __forceinline__ double count_of(const batch_norm_stats &a, int part)
{
    double count = part < a.k.parts - 1 ? a.full : a.last;
    return part < a.k.parts ? count : 0;
}

static __device__ void move_towards(const tern__vector &v, int64_t c, double value, double share)
{
    tern__vector to = v;
    to.add = false;
    tern__vector_put(to, c, (1 - share) * tern__vector_get<double>(v, c, 0) + share * value);
}

/* The number of values, mean and centred second moment of this thread's parts, summed relative to the mean
 * of the first part. */
static __device__ __forceinline__ void find_own(const batch_norm_stats &a, int64_t c, double *n, double *mean,
                                                double *m2)
{
    double means[TERN__AT_ONCE], squares[TERN__AT_ONCE], sum = 0;
    const int first = (int)threadIdx.x / TERN__MERGED;
    for (int part = first; part < a.k.parts; part += TERN__PACE * TERN__AT_ONCE) {
        tern__parts_get(a.k, a.partial, 0, c, part, means);
        tern__parts_get(a.k, a.partial, 1, c, part, squares);
        if (part == first) *mean = means[0];
#pragma unroll
        for (int j = 0; j < TERN__AT_ONCE; j++) {
            double count = count_of(a, part + j * TERN__PACE), d = means[j] - *mean;
            *n += count;
            sum += count * d;
            *m2 += squares[j] + count * d * d;
        }
    }
    double d = *n > 0 ? sum / *n : 0;
    *mean += d;
    *m2 -= sum * d;
}

/* A block takes some channels and merges all parts' moments into the batch's. */
static __global__ void __launch_bounds__(THREADS, 1) run_stats(batch_norm_stats a)
{
    tern__kernel_begin();
    int64_t c = tern__merge_channel();
    double n = 0, mean = 0, m2 = 0;
    find_own(a, c, &n, &mean, &m2);
    tern__join_rows<tern__join_moments, 1>(TERN__MERGED, n, &mean, &m2);
    if (threadIdx.x >= TERN__MERGED || c >= a.k.channels) return;
    if (m2 < 0) m2 = 0; /* rounding */
    double var = tern__norm_variance(m2 / a.all);
    tern__vector_put(a.to.mean, c, mean);
    tern__vector_put(a.to.var, c, var);
    tern__vector_put(a.to.inverse, c, 1 / sqrt(var + a.to.eps));
    move_towards(a.to.running_mean, c, mean, a.to.momentum);
    move_towards(a.to.running_var, c, m2 / (a.all - 1), a.to.momentum);
}

/* ---- merging statistics of several ranks ---- */

typedef struct batch_norm_merge {
    const double *rows;
    int64_t parts, channels;
    double momentum;
    tern__vector mean, var, running_mean, running_var, count;
} batch_norm_merge;

/* One thread per channel. */
static __global__ void run_merge(batch_norm_merge a)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x; c < a.channels; c += step) {
        tern__batch_norm_moments m = tern__batch_norm_merged(a.rows, a.parts, a.channels, c);
        tern__vector_put(a.mean, c, m.mean);
        tern__vector_put(a.var, c, m.var);
        if (c == 0) tern__vector_put(a.count, 0, m.count);
        if (m.count <= 1) continue;
        move_towards(a.running_mean, c, m.mean, a.momentum);
        move_towards(a.running_var, c, m.var * m.count / (m.count - 1), a.momentum);
    }
}

/* ---- y = act((x - mean) * scale + bias + residual) ---- */

/* From the last part to the first: what the statistics read last may still be in a cache. Four blocks load
 * as many rows as two that read twice as far ahead, and hide the computation in between. */
template <int DTYPE, int N> static __global__ void __launch_bounds__(THREADS, 4) run_apply(batch_norm a)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    tern__seat s = tern__seat_of(a.k, (int)(gridDim.y - 1 - blockIdx.y));
    batch_norm_constants<R, N> k = constants_of<R, N>(a, s);
    while (s.row < s.last) {
        tern__bunch<DTYPE, N> x[AHEAD] = {}, residual[AHEAD] = {};
        int64_t at[AHEAD];
        int rows = 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++, tern__seat_move(a.k, &s)) {
            at[i] = s.at;
            if (s.row >= s.last) continue;
            rows++;
            x[i] = tern__bunch_get<DTYPE, N>(a.x, at[i]);
            if (a.residual) residual[i] = tern__bunch_get<DTYPE, N>(a.residual, at[i]);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (i >= rows) break;
            R y[N];
#pragma unroll
            for (int l = 0; l < N; l++) {
                R v = affine(x[i].get(l), k, l) + residual[i].get(l);
                y[l] = a.relu && v < 0 ? 0 : v;
            }
            tern__bunch_put<DTYPE>(a.y, at[i], y, a.add_y);
        }
    }
}

/* ---- the kernels ---- */

template <int DTYPE, int N> static int start_moments(const tern__call *call, const batch_norm &a)
{
    return launch(call, a, run_moments<DTYPE, N>);
}

template <int DTYPE, int N> static int start_apply(const tern__call *call, const batch_norm &a)
{
    return launch(call, a, run_apply<DTYPE, N>);
}

static int find_moments(const tern__call *call, const batch_norm &a, const fields &f)
{
    TERN__BUNCHED_BY(f.views[0]->dtype, lanes_of(&f), start_moments, call, a);
}

int tern__cuda_moments(const tern__call *call, const tern__view *x, const tern__moments *to)
{
    fields f = {{x}};
    batch_norm a = {};
    a.k = tern__columns_of(x, lanes_of(&f), TERN__SUM_BLOCKS, TERN__SUM_ROWS);
    a.x = x->data;
    a.partial = partial_new(call, a);
    if (!a.partial) return TERN_E_MEMORY;
    const int64_t lanes = a.k.is_last ? 1 : lanes_of(&f);
    batch_norm_stats s = {};
    s.k = a.k;
    s.partial = a.partial;
    s.full = (double)(a.k.per_part * lanes);
    s.all = (double)(a.k.rows * lanes);
    s.last = s.all - s.full * (a.k.parts - 1);
    s.to = *to;
    int status = find_moments(call, a, f);
    if (!status) status = tern__cuda_launch(call, run_stats, tern__merge_grid(a.k), THREADS, 0, s);
    tern__cuda_scratch_free(call, a.partial);
    return status;
}

/* Computes the statistics of x: mean, var, running mean and running var. */
static int make_stats(const tern__call *call, const tern__view *const *to)
{
    tern__moments m = {};
    m.momentum = ((const tern__batch_norm_attr *)call->attr)->momentum;
    m.mean = tern__vector_of(to[0], false);
    m.var = tern__vector_of(to[1], false);
    m.running_mean = tern__vector_of(to[2], false);
    m.running_var = tern__vector_of(to[3], false);
    return tern__cuda_moments(call, call->in[0], &m);
}

static int apply_to(const tern__call *call, const fields &f, const batch_norm &a)
{
    TERN__BUNCHED_BY(f.views[0]->dtype, lanes_of(&f), start_apply, call, a);
}

/* The operands are x, mean, var, weight, bias, residual. */
static int apply_stats(const tern__call *call, const fields &f, const tern__view *const *in)
{
    const tern__batch_norm_attr *attr = (const tern__batch_norm_attr *)call->attr;
    batch_norm a = {};
    a.k = tern__columns_of(in[0], lanes_of(&f), TERN__PASS_BLOCKS, TERN__PASS_ROWS);
    a.x = in[0]->data;
    a.residual = in[5] ? in[5]->data : nullptr;
    a.y = call->out[0]->data;
    a.mean = tern__vector_of(in[1], false);
    a.var = tern__vector_of(in[2], false);
    a.weight = tern__vector_of(in[3], false);
    a.bias = tern__vector_of(in[4], false);
    a.eps = attr->eps;
    a.relu = attr->relu != 0;
    a.add_y = call->add[0];
    return apply_to(call, f, a);
}

int tern__cuda_batch_norm_stats(const tern__call *call)
{
    fields f = {{call->in[0]}};
    if (!takes(&f) || tern__view_count(call->in[0]) == 0) return TERN_E_UNSUPPORTED;
    return make_stats(call, call->out);
}

int tern__cuda_batch_norm_merge(const tern__call *call)
{
    const tern__view *rows = call->in[0];
    if (!tern__view_is_contiguous(rows)) return TERN_E_UNSUPPORTED;
    batch_norm_merge a = {};
    a.rows = (const double *)rows->data;
    a.parts = rows->shape[0];
    a.channels = call->out[0]->shape[0];
    a.momentum = ((const tern__batch_norm_attr *)call->attr)->momentum;
    tern__vector *to[] = {&a.mean, &a.var, &a.running_mean, &a.running_var, &a.count};
    for (int i = 0; i < 5; i++) *to[i] = tern__vector_of(call->out[i], false);
    return tern__cuda_launch(call, run_merge, tern__cuda_grid(call, a.channels, THREADS, 1), THREADS, 0, a);
}

int tern__cuda_batch_norm_apply(const tern__call *call)
{
    fields f = {{call->in[0], call->in[5], call->out[0]}};
    if (!takes(&f)) return TERN_E_UNSUPPORTED;
    return tern__view_count(call->in[0]) == 0 ? TERN_OK : apply_stats(call, f, call->in);
}

int tern__cuda_batch_norm(const tern__call *call)
{
    const tern__view *const *in = call->in, *const *out = call->out;
    const tern__view *all[] = {in[0], out[1], out[2], in[1], in[2], in[3]};
    fields f = {{in[0], in[3], out[0]}};
    if (!takes(&f) || tern__view_count(in[0]) == 0) return TERN_E_UNSUPPORTED;
    int status = make_stats(call, out + 1);
    return status ? status : apply_stats(call, f, all);
}
