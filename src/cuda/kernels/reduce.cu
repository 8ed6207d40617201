/* reduce.cu - sums, maxima and minima over any dimensions of any view.
 *
 * The plan (kernels/plan.h) of input and output merges dimensions that both step through uniformly; each
 * of its dimensions is kept or reduced. If the innermost one is reduced, a group of threads goes over each
 * result's elements: part of a warp for few, a block for many. If it is kept, a block takes neighbouring
 * results, four per thread, and its rows of threads go over the elements. So all reads are of adjacent
 * elements in both cases. A few results of many elements are cut into pieces, which a second kernel joins.
 * Floating point is reduced in f64, integers in i64. */
#include "cuda/kernels.h"
#include "cuda/kernels/lines.h"

extern "C" {
#include "kernels/plan.h"
#include "kernels/reduce.h"
}

#define THREADS TERN__LINE_THREADS
#define MANY    2048 /* least elements of a result that gets a block */
#define BLOCKS  1024 /* blocks into which a reduction is cut, about */
#define AHEAD   4    /* fours that a thread loads at a time */

/* Some of the plan's dimensions, innermost first. */
namespace
{
typedef struct walk {
    int ndim;
    int64_t shape[TERN__PLAN_DIMS], x[TERN__PLAN_DIMS], y[TERN__PLAN_DIMS], count;
} walk;

typedef struct problem {
    walk kept, reduced;
    const void *x;
    void *y, *partial; /* partial[piece][result] */
    int x_dtype, y_dtype, pieces;
    double factor;
    bool add, fours;
    int lanes; /* threads of a result's group, or of a row */
} problem;
} // namespace

static __device__ __forceinline__ int64_t place(const walk &w, const int64_t *stride, int64_t i)
{
    int64_t at = 0;
    for (int d = 0; d + 1 < w.ndim; d++) {
        int64_t rest = tern__quotient(i, w.shape[d]);
        at += (i - rest * w.shape[d]) * stride[d];
        i = rest;
    }
    return w.ndim ? at + i * stride[w.ndim - 1] : 0;
}

static __device__ __forceinline__ void put(const problem &p, int64_t result, double value)
{
    int64_t at = place(p.kept, p.kept.y, result);
    value *= p.factor;
    if (p.add) value += tern__element<double>(p.y, p.y_dtype, at);
    tern__element_set<double>(p.y, p.y_dtype, at, value);
}
static __device__ __forceinline__ void put(const problem &p, int64_t result, int64_t value)
{
    int64_t at = place(p.kept, p.kept.y, result);
    if (p.add) value += tern__element<int64_t>(p.y, p.y_dtype, at);
    tern__element_set<int64_t>(p.y, p.y_dtype, at, value);
}

/* Writes a result, or a piece's value for the second kernel. */
template <class R>
static __device__ __forceinline__ void leave(const problem &p, int piece, int64_t result, R value)
{
    if (p.partial)
        ((R *)p.partial)[piece * p.kept.count + result] = value;
    else
        put(p, result, value);
}

/* Sets this piece's elements [first, last), in units of `unit`. */
static __device__ __forceinline__ void cut(const problem &p, int64_t unit, int piece, int64_t *first,
                                           int64_t *last)
{
    int64_t units = (p.reduced.count + unit - 1) / unit, each = (units + p.pieces - 1) / p.pieces;
    *first = piece * each * unit;
    *last = TERN__MIN((piece + 1) * each * unit, p.reduced.count);
}

/* D: the input's dtype if it is known at compile time, else -1. */
template <class J, class R, int D> struct reduction {
    static __device__ __forceinline__ R none(void)
    {
        if constexpr (J::IS_SUM)
            return R(0);
        else if constexpr (std::is_same<R, int64_t>::value)
            return J::IS_HIGH ? INT64_MIN : INT64_MAX;
        else
            return J::IS_HIGH ? (R)-INFINITY : (R)INFINITY;
    }

    /* Loads the fours at element i and at further multiples of `step`, and remembers where they are. */
    static __device__ __forceinline__ void ask(const problem &p, int64_t from, int64_t i, int64_t last,
                                               int step, int64_t (&at)[AHEAD], tern__read (&read)[AHEAD])
    {
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (i + n * step >= last) break;
            at[n] = from + place(p.reduced, p.reduced.x, i + n * step);
            read[n] = tern__four_read(p.x, D < 0 ? p.x_dtype : D, at[n]);
        }
    }

    /* Reduces elements first + lane, in steps of `lanes`; element 0 is at `from`. */
    static __device__ __forceinline__ R along(const problem &p, int64_t from, int64_t first, int64_t last,
                                              int lane, int lanes)
    {
        const int dtype = D < 0 ? p.x_dtype : D;
        R value = none();
        if (p.fours) {
            for (int64_t i = first + lane * 4; i < last; i += AHEAD * lanes * 4) {
                tern__read read[AHEAD];
                int64_t at[AHEAD];
                ask(p, from, i, last, lanes * 4, at, read);
#pragma unroll
                for (int n = 0; n < AHEAD; n++) {
                    if (i + n * lanes * 4 >= last) break;
                    tern__four<R> f = tern__four_of<R>(read[n], p.x, dtype, at[n]);
                    value = J::of(value, J::of(J::of(f.v[0], f.v[1]), J::of(f.v[2], f.v[3])));
                }
            }
            return value;
        }
        for (int64_t i = first + lane; i < last; i += lanes)
            value = J::of(value, tern__element<R>(p.x, dtype, from + place(p.reduced, p.reduced.x, i)));
        return value;
    }

    /* Each result has `lanes` threads of a warp. */
    static __device__ void groups(const problem &p)
    {
        int lane = threadIdx.x % p.lanes;
        int64_t groups = (int64_t)gridDim.x * (THREADS / p.lanes),
                rounds = (p.kept.count + groups - 1) / groups;
        int64_t result = (int64_t)blockIdx.x * (THREADS / p.lanes) + threadIdx.x / p.lanes;
        for (int64_t round = 0; round < rounds; round++, result += groups) {
            R value = none();
            if (result < p.kept.count)
                value = along(p, place(p.kept, p.kept.x, result), 0, p.reduced.count, lane, p.lanes);
            value = tern__warp_join<J>(value, p.lanes);
            if (lane == 0 && result < p.kept.count) put(p, result, value);
        }
    }

    /* Each piece of a result has a block. */
    static __device__ void blocks(const problem &p)
    {
        for (int64_t n = blockIdx.x; n < p.kept.count * p.pieces; n += gridDim.x) {
            int64_t result = n / p.pieces, first, last;
            cut(p, 4, (int)(n % p.pieces), &first, &last);
            R value = along(p, place(p.kept, p.kept.x, result), first, last, threadIdx.x, THREADS);
            value = tern__block_join<J>(value, none());
            if (threadIdx.x == 0) leave(p, (int)(n % p.pieces), result, value);
        }
    }

    /* Reduces four neighbouring results, or one, over the elements first + row, in steps of `rows`. */
    static __device__ __forceinline__ void down(const problem &p, int64_t result, int64_t first, int64_t last,
                                                R (&value)[4])
    {
        const int dtype = D < 0 ? p.x_dtype : D, row = threadIdx.x / p.lanes, rows = THREADS / p.lanes;
        int64_t from = place(p.kept, p.kept.x, result);
        for (int64_t i = first + row; i < last && !p.fours; i += rows)
            value[0] = J::of(value[0], tern__element<R>(p.x, dtype, from + place(p.reduced, p.reduced.x, i)));
        for (int64_t i = first + row; i < last && p.fours; i += AHEAD * rows) {
            tern__read read[AHEAD];
            int64_t at[AHEAD];
            ask(p, from, i, last, rows, at, read);
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                if (i + n * rows >= last) break;
                tern__four<R> f = tern__four_of<R>(read[n], p.x, dtype, at[n]);
                for (int e = 0; e < 4; e++) value[e] = J::of(value[e], f.v[e]);
            }
        }
    }

    /* Joins the values of a block's rows by halves. */
    static __device__ __forceinline__ void join_rows(const problem &p, R (&value)[4])
    {
        __shared__ R of_rows[4][THREADS];
        int most = p.fours ? 4 : 1;
        __syncthreads(); /* all have read an earlier round's values */
        for (int e = 0; e < most; e++) of_rows[e][threadIdx.x] = value[e];
        for (int half = THREADS / 2; half >= p.lanes; half /= 2) {
            __syncthreads();
            for (int e = 0; e < most && (int)threadIdx.x < half; e++)
                of_rows[e][threadIdx.x] = J::of(of_rows[e][threadIdx.x], of_rows[e][threadIdx.x + half]);
        }
        for (int e = 0; e < most; e++) value[e] = of_rows[e][threadIdx.x];
    }

    static __device__ void columns(const problem &p)
    {
        int64_t width = p.lanes * (p.fours ? 4 : 1), strips = (p.kept.count + width - 1) / width;
        for (int64_t n = blockIdx.x; n < strips * p.pieces; n += gridDim.x) {
            int64_t result = n % strips * width + threadIdx.x % p.lanes * (p.fours ? 4 : 1), first, last;
            R value[4] = {none(), none(), none(), none()};
            cut(p, 1, (int)(n / strips), &first, &last);
            if (result < p.kept.count) down(p, result, first, last, value);
            join_rows(p, value);
            if ((int)threadIdx.x >= p.lanes || result >= p.kept.count) continue;
            for (int e = 0; e < (p.fours ? 4 : 1); e++) leave(p, (int)(n / strips), result + e, value[e]);
        }
    }

    /* The second kernel: a warp takes a result. */
    static __device__ void close(const problem &p)
    {
        int64_t step = (int64_t)gridDim.x * (THREADS / TERN__WARP);
        int64_t result = (int64_t)blockIdx.x * (THREADS / TERN__WARP) + threadIdx.x / TERN__WARP;
        for (; result < p.kept.count; result += step) {
            R value = tern__pieces_join<J>((const R *)p.partial + result, p.pieces, p.kept.count, none());
            if (threadIdx.x % TERN__WARP == 0) put(p, result, value);
        }
    }
};

struct sum : tern__add {
    enum { IS_SUM = 1, IS_HIGH = 0 };
};
struct high : tern__high {
    enum { IS_SUM = 0, IS_HIGH = 1 };
};
struct low : tern__low {
    enum { IS_SUM = 0, IS_HIGH = 0 };
};

template <class J, class R, int D> static __global__ void run_groups(problem p)
{
    tern__kernel_begin();
    reduction<J, R, D>::groups(p);
}
template <class J, class R, int D> static __global__ void run_blocks(problem p)
{
    tern__kernel_begin();
    reduction<J, R, D>::blocks(p);
}
template <class J, class R, int D> static __global__ void run_columns(problem p)
{
    tern__kernel_begin();
    reduction<J, R, D>::columns(p);
}
template <class J, class R> static __global__ void run_close(problem p)
{
    tern__kernel_begin();
    reduction<J, R, -1>::close(p);
}

/* ---- launching ---- */

static void push(walk *w, const tern__plan *plan, int d)
{
    w->shape[w->ndim] = plan->shape[d];
    w->x[w->ndim] = plan->stride[0][d];
    w->y[w->ndim++] = plan->stride[1][d];
    w->count *= plan->shape[d];
}

static int64_t power_of_two(int64_t count, int64_t most)
{
    int64_t power = 1;
    while (power < count && power < most) power *= 2;
    return power;
}

/* Whether four elements can be read at once: the innermost dimension is a multiple of four, and all
 * strides of the others keep the alignment. */
static bool takes_fours(const problem *p, const walk *inner, const walk *other)
{
    size_t bytes = tern_dtype_bytes((tern_dtype)p->x_dtype);
    if (bytes > 4 || bytes == 1 || !inner->ndim || inner->x[0] != 1 || inner->shape[0] % 4) return false;
    bool fours = (uintptr_t)p->x % (4 * bytes) == 0;
    for (int d = 1; d < inner->ndim; d++) fours = fours && inner->x[d] % 4 == 0;
    for (int d = 0; d < other->ndim; d++) fours = fours && other->x[d] % 4 == 0;
    return fours;
}

template <class J, class R, int D> static int start_rows(const tern__call *call, problem *p)
{
    p->fours = takes_fours(p, &p->reduced, &p->kept);
    if (p->reduced.count < MANY) {
        p->lanes = (int)power_of_two(p->fours ? p->reduced.count / 4 : p->reduced.count, TERN__WARP);
        dim3 grid = tern__cuda_grid(call, p->kept.count, THREADS / p->lanes, 1);
        return tern__cuda_launch(call, run_groups<J, R, D>, grid, THREADS, 0, *p);
    }
    dim3 grid = tern__cuda_grid(call, p->kept.count * p->pieces, 1, 1);
    return tern__cuda_launch(call, run_blocks<J, R, D>, grid, THREADS, 0, *p);
}

template <class J, class R, int D> static int start_columns(const tern__call *call, problem *p)
{
    int64_t width = p->lanes * (p->fours ? 4 : 1), strips = (p->kept.count + width - 1) / width;
    dim3 grid = tern__cuda_grid(call, strips * p->pieces, 1, 1);
    return tern__cuda_launch(call, run_columns<J, R, D>, grid, THREADS, 0, *p);
}

/* Threads of a row: as many as there are neighbouring results, but at least 32 if there are enough rows. */
static void plan_columns(problem *p)
{
    p->fours = takes_fours(p, &p->kept, &p->reduced);
    int64_t units = p->fours ? p->kept.count / 4 : p->kept.count;
    int64_t least = power_of_two(units, TERN__WARP), rows = power_of_two(p->reduced.count, THREADS / least);
    p->lanes = (int)(THREADS / rows);
    int64_t strips = (units + p->lanes - 1) / p->lanes;
    p->pieces =
        (int)TERN__MIN((int64_t)tern__sum_pieces(p->reduced.count, rows * 8), (BLOCKS + strips - 1) / strips);
}

static void plan_rows(problem *p)
{
    int64_t wanted = (BLOCKS + p->kept.count - 1) / p->kept.count;
    p->pieces = p->reduced.count < MANY
                    ? 1
                    : (int)TERN__MIN((int64_t)tern__sum_pieces(p->reduced.count, 4 * MANY), wanted);
}

template <class J, class R, int D> static int start(const tern__call *call, problem *p, bool is_columns)
{
    if (is_columns)
        plan_columns(p);
    else
        plan_rows(p);
    if (p->pieces > 1) {
        p->partial = tern__cuda_scratch(call, (size_t)(p->pieces * p->kept.count) * sizeof(R));
        if (!p->partial) return TERN_E_MEMORY;
    }
    int status = is_columns ? start_columns<J, R, D>(call, p) : start_rows<J, R, D>(call, p);
    if (!status && p->partial) {
        dim3 grid = tern__cuda_grid(call, p->kept.count, THREADS / TERN__WARP, 1);
        status = tern__cuda_launch(call, run_close<J, R>, grid, THREADS, 0, *p);
    }
    tern__cuda_scratch_free(call, p->partial);
    return status;
}

static bool problem_of(const tern__call *call, problem *p, bool *is_columns)
{
    const tern__view *views[] = {call->in[0], call->out[0]};
    tern__plan plan = tern__plan_of(views, 2);
    *p = {};
    p->kept.count = p->reduced.count = 1;
    for (int d = 0; d < plan.ndim; d++)
        if (plan.shape[d] > 1) push(plan.stride[1][d] ? &p->kept : &p->reduced, &plan, d);
    *is_columns = plan.stride[1][0] != 0 && plan.shape[0] > 1;
    p->x = views[0]->data;
    p->y = views[1]->data;
    p->x_dtype = views[0]->dtype;
    p->y_dtype = views[1]->dtype;
    p->pieces = 1;
    p->factor = 1;
    p->add = call->add[0];
    return views[0]->layout != TERN__BLOCKED16 && views[1]->layout != TERN__BLOCKED16;
}

/* An input without elements: only the output's own elements count, as a flat view. */
static bool see_nothing(const tern__call *call, problem *p)
{
    p->kept = {};
    p->reduced = {};
    p->kept.ndim = 1;
    p->kept.shape[0] = p->kept.count = tern__own_count(call->out[0]);
    p->kept.y[0] = 1;
    return false;
}

/* Sums matter for training: they have a kernel for each dtype. */
static int start_sum(const tern__call *call, problem *p, bool is_columns)
{
    p->factor = ((const tern__factor_attr *)call->attr)->factor;
    switch (p->x_dtype) {
    case TERN_F32: return start<sum, double, TERN_F32>(call, p, is_columns);
    case TERN_BF16: return start<sum, double, TERN_BF16>(call, p, is_columns);
    case TERN_F16: return start<sum, double, TERN_F16>(call, p, is_columns);
    default: return start<sum, double, -1>(call, p, is_columns);
    }
}

template <class J> static int reduce(const tern__call *call)
{
    problem p;
    bool is_columns;
    if (!problem_of(call, &p, &is_columns)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(call->in[0]) == 0) is_columns = see_nothing(call, &p);
    if (p.kept.count == 0) return TERN_OK;
    if (!tern__dtype_is_float(call->out[0]->dtype)) return start<J, int64_t, -1>(call, &p, is_columns);
    if constexpr (J::IS_SUM) return start_sum(call, &p, is_columns);
    return start<J, double, -1>(call, &p, is_columns);
}

int tern__cuda_sum(const tern__call *call)
{
    return reduce<sum>(call);
}

int tern__cuda_amax(const tern__call *call)
{
    return reduce<high>(call);
}

int tern__cuda_amin(const tern__call *call)
{
    return reduce<low>(call);
}
