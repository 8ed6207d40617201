/* nll_loss.cu - the losses of labels under log probabilities and their gradients (kernels/nll_loss.h).
 *
 * A thread has the labels of its own and reads one log probability of each; with smoothing it reads them all,
 * or a warp does where they are neighbours. For cross entropy whoever has a label makes its log probabilities
 * first, a thread where there are few classes. Loss and weight are added up in f64: a block's threads first,
 * then the blocks by a second kernel, which is left out for so few labels that one block has them. */
#include "cuda/kernels.h"
#include "cuda/softmax.h"

#include <type_traits>

extern "C" {
#include "kernels/nll_loss.h"
}

#define THREADS TERN__LINE_THREADS
#define FEW     32 /* classes that a thread goes through by itself */

namespace
{
typedef struct problem {
    tern__lines lines;
    tern__lined x, logp, out; /* x: what logp is to be made of; out: the gradient */
    const void *label, *weight, *dloss;
    int label_dtype, weight_dtype, dloss_dtype;
    const double *weights; /* their sum, which a mean is divided by */
    double smoothing, gamma;
    int64_t ignored, dloss_step;
    bool mean, each, add;
    tern__judge judge;
    int pieces;
    double *partial; /* (pieces, 2): losses and weights */
    void *loss;
    int loss_dtype;
    double *sum;
    bool add_sum;
} problem;
} // namespace

static __device__ __forceinline__ double weight_of(const problem &p, int64_t c)
{
    return p.weight ? tern__element<double>(p.weight, p.weight_dtype, c) : 1;
}

static __device__ __forceinline__ int64_t line_start(const problem &p, const tern__lined &l, int64_t line)
{
    int64_t o = tern__quotient(line, p.lines.inner);
    return o * l.outer + (line - o * p.lines.inner) * l.inner;
}

/* The number of a label's class, or -1: it is ignored. */
static __device__ __forceinline__ int64_t label_of(const problem &p, int64_t line)
{
    int64_t label = tern__element<int64_t>(p.label, p.label_dtype, line);
    return label != p.ignored && tern__is_class(p.judge, line, label) ? label : -1;
}

/* ---- forward ---- */

static __device__ __forceinline__ void put_loss(const problem &p, int64_t at, double value)
{
    if (p.add) value += tern__element<double>(p.loss, p.loss_dtype, at);
    tern__element_set<double>(p.loss, p.loss_dtype, at, value);
}

static __device__ __forceinline__ void put_sums(const problem &p, double loss, double weight)
{
    if (!p.each) put_loss(p, 0, p.mean ? loss / weight : loss);
    *p.sum = weight + (p.add_sum ? *p.sum : 0);
}

/* smoothing / C sum_c w[c] logp[c] of a line, for every thread of the group. */
template <int G> static __device__ __forceinline__ double smooth_part(const problem &p, int64_t at)
{
    double sum = 0;
    for (int64_t c = threadIdx.x % G; c < p.lines.size; c += G)
        sum += weight_of(p, c) * tern__lined_get<double>(p.logp, at + c * p.logp.step);
    return tern__group_sum<G>(sum) * p.smoothing / (double)p.lines.size;
}

template <int G>
static __device__ __forceinline__ double loss_of(const problem &p, int64_t line, int64_t label)
{
    int64_t at = line_start(p, p.logp, line);
    double own = tern__lined_get<double>(p.logp, at + TERN__MAX(label, (int64_t)0) * p.logp.step);
    double smooth = p.smoothing != 0 ? smooth_part<G>(p, at) : 0;
    if (label < 0) return 0;
    double loss = -(1 - p.smoothing) * weight_of(p, label) * own - smooth;
    return p.gamma == 0 ? loss : loss * tern__focus(own, p.gamma);
}

/* What threads of a group have written, all of them may read. */
template <int G> static __device__ __forceinline__ void meet(void)
{
    if constexpr (G == TERN__WARP) __syncwarp();
    if constexpr (G > TERN__WARP) __syncthreads();
}

/* S: the stretches that log probabilities are made in; void: they are there. */
template <int G, class S> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) forward(problem p)
{
    tern__kernel_begin();
    double sums[2] = {0, 0}; /* loss, weight */
    int64_t count = p.lines.outer * p.lines.inner;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        int64_t label = label_of(p, line);
        if constexpr (!std::is_void_v<S>) {
            tern__softmax_line<G, S>(p.x, line_start(p, p.x, line), p.logp, line_start(p, p.logp, line),
                                     p.lines.size, true, false);
            meet<G>();
        }
        double loss = loss_of<G>(p, line, label);
        if (threadIdx.x % G) continue;
        if (p.each) put_loss(p, line, loss);
        sums[0] += loss;
        sums[1] += label < 0 ? 0 : weight_of(p, label);
    }
    tern__block_sums(sums);
    if (threadIdx.x) return;
    if (p.pieces == 1) {
        put_sums(p, sums[0], sums[1]);
        return;
    }
    p.partial[blockIdx.x * 2] = sums[0];
    p.partial[blockIdx.x * 2 + 1] = sums[1];
}

static __global__ void close(problem p)
{
    tern__kernel_begin();
    double loss = tern__pieces_join<tern__add>(p.partial, p.pieces, 2, 0.0);
    double weight = tern__pieces_join<tern__add>(p.partial + 1, p.pieces, 2, 0.0);
    if (threadIdx.x == 0) put_sums(p, loss, weight);
}

/* ---- gradients ---- */

/* What is sent to one label's loss, divided as the loss was. */
static __device__ __forceinline__ double sent(const problem &p, int64_t line)
{
    double d = tern__element<double>(p.dloss, p.dloss_dtype, p.each ? line * p.dloss_step : 0);
    return p.mean ? d / *p.weights : d;
}

template <int G, class R>
static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) nll_gradient(problem p)
{
    tern__kernel_begin();
    int64_t count = p.lines.outer * p.lines.inner;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        int64_t label = label_of(p, line), at = line_start(p, p.out, line);
        double d = label < 0 ? 0 : -sent(p, line) * weight_of(p, label);
        for (int64_t c = threadIdx.x % G; c < p.lines.size; c += G)
            tern__lined_put<R>(p.out, at + c * p.out.step, c == label ? (R)d : R(0), p.add);
    }
}

template <int G> static __device__ __forceinline__ double all_weights(const problem &p)
{
    double sum = 0;
    if (!p.weight) return (double)p.lines.size;
    for (int64_t c = threadIdx.x % G; c < p.lines.size; c += G) sum += weight_of(p, c);
    return tern__group_sum<G>(sum);
}

/* With q (kernels/reference/nll_loss.c) of every class `rest` times its weight, and of the label's `of_label`
 * more. */
template <int G, class S>
static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) cross_entropy_gradient(problem p)
{
    tern__kernel_begin();
    typedef typename S::R R;
    const int64_t size = p.lines.size;
    S logp;
    int64_t count = p.lines.outer * p.lines.inner;
    double rest = p.smoothing / (double)p.lines.size, base = p.smoothing != 0 ? rest * all_weights<G>(p) : 0;
    for (int64_t line = tern__group_first<G>(); line < count; line += tern__group_step<G>()) {
        int64_t label = label_of(p, line), to = line_start(p, p.out, line),
                from = line_start(p, p.logp, line);
        double d = label < 0 ? 0 : sent(p, line),
               of_label = label < 0 ? 0 : (1 - p.smoothing) * weight_of(p, label);
        if (d != 0 && p.gamma != 0)
            d *= tern__focus_slope(tern__lined_get<double>(p.logp, from + label * p.logp.step), p.gamma);
        R all = (R)(d * (base + of_label)), of_each = (R)(d * rest), of_one = (R)(d * of_label);
        for (int64_t i = S::template first<G>(); i < size; i += S::template pace<G>()) {
            logp.template read<G>(p.logp, from, i, size);
#pragma unroll
            for (int n = 0; n < S::PIECES; n++) {
                int64_t at = i + n * G * S::LANES;
                R slope[S::LANES];
                if (at >= size) break;
#pragma unroll
                for (int l = 0; l < S::LANES; l++) {
                    slope[l] = exp(logp.piece[n].get(l)) * all - (at + l == label ? of_one : R(0));
                    if (p.smoothing != 0) slope[l] -= of_each * (R)weight_of(p, at + l);
                    if (label < 0) slope[l] = 0;
                }
                S::put(p.out, to, at, slope, p.add);
            }
        }
    }
}

/* ---- which ---- */

static bool is_plain(const tern__view *view)
{
    return !view || tern__view_is_contiguous(view);
}

static bool problem_of(const tern__call *call, const tern__view *logp, int label, problem *p)
{
    const tern__nll_attr *attr = (const tern__nll_attr *)call->attr;
    const tern__view *labels = call->in[label], *weight = call->in[label + 1];
    *p = {};
    p->lines = tern__class_lines(logp);
    p->label = labels->data;
    p->label_dtype = labels->dtype;
    p->weight = weight ? weight->data : nullptr;
    p->weight_dtype = weight ? weight->dtype : 0;
    p->smoothing = attr->smoothing;
    p->gamma = attr->gamma;
    p->ignored = attr->ignored;
    p->mean = attr->mean;
    p->each = attr->each;
    p->add = call->add[0];
    p->judge.fault = tern__cuda_of(call->device)->fault;
    p->judge.site.labels = tern__nll_labels(attr, &p->lines);
    return is_plain(labels) && is_plain(weight) && tern__lined_of(logp, logp->ndim > 1, &p->logp);
}

/* Blocks for the labels; their number is that of the partial sums. */
static int start_forward(const tern__call *call, problem *p, int group, void (*kernel)(problem))
{
    int64_t labels = p->lines.outer * p->lines.inner;
    int threads = TERN__GROUP_BLOCK(group);
    p->pieces = tern__sum_pieces(labels, threads / group * (group == 1 ? 4 : 1));
    if (p->pieces > 1)
        p->partial = (double *)tern__cuda_scratch(call, (size_t)p->pieces * 2 * sizeof(double));
    if (p->pieces > 1 && !p->partial) return TERN_E_MEMORY;
    int status = tern__cuda_launch(call, kernel, p->pieces, threads, 0, *p);
    if (!status && p->pieces > 1) status = tern__cuda_launch(call, close, 1, TERN__WARP, 0, *p);
    tern__cuda_scratch_free(call, p->partial);
    return status;
}

static bool forward_of(const tern__call *call, const tern__view *logp, problem *p)
{
    if (!problem_of(call, logp, 1, p) || !is_plain(call->out[0])) return false;
    p->loss = call->out[0]->data;
    p->loss_dtype = call->out[0]->dtype;
    p->sum = (double *)call->out[1]->data;
    p->add_sum = call->add[1];
    return true;
}

int tern__cuda_nll_loss(const tern__call *call)
{
    problem p;
    if (!forward_of(call, call->in[0], &p)) return TERN_E_UNSUPPORTED;
    bool by_warp = p.smoothing != 0 && tern__group_size(&p.lines, &p.logp) > 1;
    return by_warp ? start_forward(call, &p, TERN__WARP, forward<TERN__WARP, void>)
                   : start_forward(call, &p, 1, forward<1, void>);
}

template <int DTYPE, int N> static int start_cross_entropy(const tern__call *call, problem *p)
{
    typedef tern__stretch<DTYPE, N> S;
    switch (p->lines.size <= FEW ? 1 : tern__group_size(&p->lines, &p->x)) {
    case 1: return start_forward(call, p, 1, forward<1, S>);
    case TERN__WARP: return start_forward(call, p, TERN__WARP, forward<TERN__WARP, S>);
    case THREADS: return start_forward(call, p, THREADS, forward<THREADS, S>);
    default: return start_forward(call, p, TERN__LINE_MOST, forward<TERN__LINE_MOST, S>);
    }
}

int tern__cuda_cross_entropy(const tern__call *call)
{
    problem p;
    const tern__view *x = call->in[0], *logp = call->out[2];
    if (x->dtype != logp->dtype || !forward_of(call, logp, &p) || !tern__lined_of(x, x->ndim > 1, &p.x))
        return TERN_E_UNSUPPORTED;
    bool bunched = tern__lined_bunched(&p.x, &p.lines) && tern__lined_bunched(&p.logp, &p.lines);
    TERN__BUNCHED(x->dtype, bunched, start_cross_entropy, call, &p);
}

/* in: the first input but for log p that both gradients have, the label. */
static bool gradient_of(const tern__call *call, const tern__view *logp, int label, problem *p)
{
    const tern__view *dloss = call->in[0];
    if (!problem_of(call, logp, label, p) || !tern__lined_of(call->out[0], logp->ndim > 1, &p->out))
        return false;
    p->dloss = dloss->data;
    p->dloss_dtype = dloss->dtype;
    p->weights = call->in[label + 2] ? (const double *)call->in[label + 2]->data : nullptr;
    int64_t step = 0;
    bool is_line = tern__lined_merge(dloss, 0, dloss->ndim, &step);
    p->dloss_step = step;
    return is_line || !p->each;
}

int tern__cuda_nll_loss_grad(const tern__call *call)
{
    problem p;
    if (!gradient_of(call, call->out[0], 1, &p)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(call->out[0]) == 0) return TERN_OK;
    int group = tern__group_size(&p.lines, &p.out);
    return call->out[0]->dtype == TERN_F64 ? TERN__GROUPS_OF(call, p.lines, group, nll_gradient, double, p)
                                           : TERN__GROUPS_OF(call, p.lines, group, nll_gradient, float, p);
}

template <int DTYPE, int N> static int start_gradient(const tern__call *call, const problem &p)
{
    typedef tern__stretch<DTYPE, N> S;
    int group = tern__group_size(&p.lines, &p.out);
    return TERN__GROUPS_OF(call, p.lines, group, cross_entropy_gradient, S, p);
}

int tern__cuda_cross_entropy_grad(const tern__call *call)
{
    problem p;
    const tern__view *logp = call->in[1], *dx = call->out[0];
    if (dx->dtype != logp->dtype || !gradient_of(call, logp, 2, &p)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(dx) == 0) return TERN_OK;
    bool bunched = tern__lined_bunched(&p.out, &p.lines) && tern__lined_bunched(&p.logp, &p.lines);
    TERN__BUNCHED(dx->dtype, bunched, start_gradient, call, p);
}
