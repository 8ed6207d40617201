/* batch_norm_grad.cu - the gradients of batch norm. A first pass sums dy' and dy' xhat of each channel,
 * where dy' is dy masked by the ReLU. A second pass computes dx from the sums. If dy' is wanted as well,
 * as a residual's gradient, the first pass writes it and the second reads it instead of dy and y, which
 * saves reading one operand. */
#include "cuda/kernels/batch_norm_inner.h"

static __host__ __device__ constexpr bool has_output(int which)
{
    return which == BY_OUTPUT || which == LEAVING;
}

/* dy where the ReLU's output is positive or NaN, else 0. */
template <int MASK, int DTYPE, int N>
static __device__ __forceinline__ void passed(const batch_norm_constants<tern__number<DTYPE>, N> &k,
                                              const tern__bunch<DTYPE, N> &dy, const tern__bunch<DTYPE, N> &x,
                                              const tern__bunch<DTYPE, N> &y, tern__number<DTYPE> *d)
{
#pragma unroll
    for (int l = 0; l < N; l++) {
        tern__number<DTYPE> out = 1;
        if (has_output(MASK)) out = y.get(l);
        if (MASK == BY_INPUT) out = affine(x.get(l), k, l);
        d[l] = out <= 0 ? 0 : dy.get(l);
    }
}

/* Three blocks fit on a multiprocessor, each with two rows being loaded. LEAVING: dy' goes to dresidual,
 * which may be dy. */
template <int DTYPE, int N, int MASK>
static __global__ void __launch_bounds__(THREADS, 3) run_sums(batch_norm a)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    tern__seat s = tern__seat_of(a.k, blockIdx.y), from = s;
    batch_norm_constants<R, N> k = constants_of<R, N>(a, s);
    R sum[N] = {}, product[N] = {};
    while (s.row < s.last) {
        tern__bunch<DTYPE, N> dy[AHEAD] = {}, x[AHEAD] = {}, y[AHEAD] = {};
        int64_t at[AHEAD];
        int rows = 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++, tern__seat_move(a.k, &s)) {
            at[i] = s.at;
            if (s.row >= s.last) continue;
            rows++;
            dy[i] = tern__bunch_get<DTYPE, N>(a.dy, s.at);
            x[i] = tern__bunch_get<DTYPE, N>(a.x, s.at);
            if (has_output(MASK)) y[i] = tern__bunch_get<DTYPE, N>(a.output, s.at);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            R d[N];
            passed<MASK, DTYPE, N>(k, dy[i], x[i], y[i], d);
#pragma unroll
            for (int l = 0; l < N; l++) {
                sum[l] += d[l];
                product[l] += d[l] * (x[i].get(l) - k.of[MEAN][l]);
            }
            if (MASK == LEAVING && i < rows) tern__bunch_put<DTYPE>(a.dresidual, at[i], d, false);
        }
    }
    double sums[N], products[N];
#pragma unroll
    for (int l = 0; l < N; l++) sums[l] = (double)sum[l], products[l] = (double)product[l];
    tern__columns_leave<tern__join_sums, N>(a.k, a.partial, from, 0, sums, products);
}

typedef struct batch_norm_totals {
    tern__columns k;
    const double *partial;
    double eps;
    bool wide; /* x is f64 */
    tern__vector mean, var, s, p, db, dw;
} batch_norm_totals;

static __global__ void __launch_bounds__(THREADS, 1) run_totals(batch_norm_totals a)
{
    tern__kernel_begin();
    int64_t c = tern__merge_channel();
    double sum, product;
    tern__parts_sum(a.k, a.partial, &sum, &product);
    if (threadIdx.x >= TERN__MERGED || c >= a.k.channels) return;
    double mean = tern__vector_get<double>(a.mean, c, 0), rest = a.wide ? 0 : mean_rest<float>(mean);
    if (rest != 0) product -= rest * sum; /* it is of distances from the float next to the mean */
    product /= sqrt(tern__vector_get<double>(a.var, c, 0) + a.eps);
    tern__vector_put(a.s, c, sum);
    tern__vector_put(a.p, c, product);
    tern__vector_put(a.db, c, sum);
    tern__vector_put(a.dw, c, product);
}

/* dx = scale (dy' - s / n - (x - mean) p / (n deviation)), where s and p are means if n = 1. With eight
 * channels per thread the constants leave room for two blocks per multiprocessor, not three; these load
 * twice as many rows at a time. */
template <int DTYPE, int N, int MASK>
static __global__ void __launch_bounds__(THREADS, N > 4 ? 2 : 3) run_data_grad(batch_norm a)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    enum { ROWS = N > 4 ? 2 * AHEAD : AHEAD };
    tern__seat s = tern__seat_of(a.k, (int)(gridDim.y - 1 - blockIdx.y));
    batch_norm_constants<R, N> k = constants_of<R, N>(a, s);
    while (s.row < s.last) {
        tern__bunch<DTYPE, N> dy[ROWS] = {}, x[ROWS] = {}, y[ROWS] = {};
        int64_t at[ROWS];
        int rows = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++, tern__seat_move(a.k, &s)) {
            at[i] = s.at;
            if (s.row >= s.last) continue;
            rows++;
            dy[i] = tern__bunch_get<DTYPE, N>(a.dy, at[i]);
            x[i] = tern__bunch_get<DTYPE, N>(a.x, at[i]);
            if (has_output(MASK)) y[i] = tern__bunch_get<DTYPE, N>(a.output, at[i]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i >= rows) break;
            R dx[N], d[N];
            passed<MASK, DTYPE, N>(k, dy[i], x[i], y[i], d);
#pragma unroll
            for (int l = 0; l < N; l++) {
                R pull = k.of[MIDDLE][l] + (x[i].get(l) - k.of[MEAN][l]) * k.of[SLOPE][l];
                dx[l] = k.of[SCALE][l] * (d[l] - pull);
            }
            if (a.dx) tern__bunch_put<DTYPE>(a.dx, at[i], dx, a.add_dx);
            if (a.dresidual) tern__bunch_put<DTYPE>(a.dresidual, at[i], d, a.add_dresidual);
        }
    }
}

/* ---- the kernels ---- */

template <int DTYPE, int N> static int start_sums(const tern__call *call, const batch_norm &a)
{
    static const kernel_fn kernels[] = {run_sums<DTYPE, N, NOTHING>, run_sums<DTYPE, N, BY_OUTPUT>,
                                        run_sums<DTYPE, N, BY_INPUT>, run_sums<DTYPE, N, LEAVING>};
    return launch(call, a, kernels[a.mask]);
}

template <int DTYPE, int N> static int start_data_grad(const tern__call *call, const batch_norm &a)
{
    static const kernel_fn kernels[] = {run_data_grad<DTYPE, N, NOTHING>, run_data_grad<DTYPE, N, BY_OUTPUT>,
                                        run_data_grad<DTYPE, N, BY_INPUT>};
    return launch(call, a, kernels[a.mask]);
}

static int sum_up(const tern__call *call, const batch_norm &a, const fields &f)
{
    TERN__BUNCHED_BY(f.views[0]->dtype, lanes_of(&f), start_sums, call, a);
}

static int make_grad(const tern__call *call, const batch_norm &a, const fields &f)
{
    TERN__BUNCHED_BY(f.views[0]->dtype, lanes_of(&f), start_data_grad, call, a);
}

static void *data_of(const tern__view *view)
{
    return view ? view->data : nullptr;
}

/* Fills in the operands that all kernels have: dy, x, [y], mean, var, [weight]. */
static batch_norm norm_of(const tern__call *call)
{
    const tern__batch_norm_attr *attr = (const tern__batch_norm_attr *)call->attr;
    const tern__view *const *in = call->in;
    batch_norm a = {};
    a.dy = in[0]->data;
    a.x = in[1]->data;
    a.output = data_of(in[2]);
    a.mask = in[2] ? BY_OUTPUT : NOTHING;
    a.mean = tern__vector_of(in[3], false);
    a.var = tern__vector_of(in[4], false);
    a.eps = attr->eps;
    a.count = 1;
    return a;
}

/* Fills in the outputs dx and dresidual. */
static void give_outputs(const tern__call *call, batch_norm *a)
{
    a->dx = data_of(call->out[0]);
    a->dresidual = data_of(call->out[1]);
    a->add_dx = call->add[0];
    a->add_dresidual = call->add[1];
}

/* Writes the parts' sums to a.partial and the totals to the vectors of `to`. */
static int make_sums(const tern__call *call, batch_norm a, const fields &f, batch_norm_totals to)
{
    to.k = a.k;
    to.partial = a.partial;
    to.eps = a.eps;
    to.wide = f.views[0]->dtype == TERN_F64;
    to.mean = a.mean;
    to.var = a.var;
    int status = sum_up(call, a, f);
    return status ? status : tern__cuda_launch(call, run_totals, tern__merge_grid(a.k), THREADS, 0, to);
}

int tern__cuda_batch_norm_sums(const tern__call *call)
{
    const tern__view *x = call->in[1];
    fields f = {{x, call->in[0], call->in[2]}};
    if (!takes(&f) || tern__view_count(x) == 0) return TERN_E_UNSUPPORTED;
    batch_norm a = norm_of(call);
    a.k = tern__columns_of(x, lanes_of(&f), TERN__SUM_BLOCKS, TERN__SUM_ROWS);
    a.partial = partial_new(call, a);
    if (!a.partial) return TERN_E_MEMORY;
    batch_norm_totals to = {};
    tern__vector *vectors[] = {&to.s, &to.p, &to.db, &to.dw};
    for (int i = 0; i < 4; i++) *vectors[i] = tern__vector_of(call->out[i], call->add[i]);
    int status = make_sums(call, a, f, to);
    tern__cuda_scratch_free(call, a.partial);
    return status;
}

int tern__cuda_batch_norm_data_grad(const tern__call *call)
{
    const tern__view *x = call->in[1];
    fields f = {{x, call->in[0], call->in[2], call->out[0], call->out[1]}};
    if (!takes(&f)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(x) == 0) return TERN_OK;
    batch_norm a = norm_of(call);
    a.k = tern__columns_of(x, lanes_of(&f), TERN__PASS_BLOCKS, TERN__PASS_ROWS);
    a.weight = tern__vector_of(call->in[5], false);
    a.s = tern__vector_of(call->in[6], false);
    a.p = tern__vector_of(call->in[7], false);
    give_outputs(call, &a);
    return make_grad(call, a, f);
}

/* The totals follow the parts' sums in the same memory. */
static batch_norm_totals totals_of(const tern__call *call, const batch_norm &a)
{
    batch_norm_totals to = {};
    double *after = a.partial + 2 * a.k.parts * a.k.channels;
    to.s = {after, TERN_F64, 1, false};
    to.p = {after + a.k.channels, TERN_F64, 1, false};
    to.db = tern__vector_of(call->out[2], call->add[2]);
    to.dw = tern__vector_of(call->out[3], call->add[3]);
    return to;
}

int tern__cuda_batch_norm_grad(const tern__call *call)
{
    const tern__view *x = call->in[1];
    fields f = {{x, call->in[0], call->in[2], call->out[0], call->out[1]}};
    if (!takes(&f) || tern__view_count(x) == 0) return TERN_E_UNSUPPORTED;
    batch_norm a = norm_of(call);
    if (!call->in[2] && ((const tern__batch_norm_attr *)call->attr)->relu) a.mask = BY_INPUT;
    a.weight = tern__vector_of(call->in[5], false);
    a.bias = tern__vector_of(call->in[6], false);
    a.k = tern__columns_of(x, lanes_of(&f), TERN__SUM_BLOCKS, TERN__SUM_ROWS);
    a.count = (double)(x->shape[0] * tern__positions_of(x));
    a.partial = partial_new(call, a);
    if (!a.partial) return TERN_E_MEMORY;
    batch_norm_totals to = totals_of(call, a);
    give_outputs(call, &a);
    if (tern__batch_norm_leaves(call)) a.mask = LEAVING;
    int status = make_sums(call, a, f, to);
    if (a.mask == LEAVING) {
        a.dy = a.dresidual;
        a.dresidual = nullptr;
        a.mask = NOTHING;
    }
    a.k = tern__columns_of(x, lanes_of(&f), TERN__PASS_BLOCKS, TERN__PASS_ROWS);
    a.s = to.s;
    a.p = to.p;
    if (!status && (a.dx || a.dresidual)) status = make_grad(call, a, f);
    tern__cuda_scratch_free(call, a.partial);
    return status;
}
