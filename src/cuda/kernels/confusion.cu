/* confusion.cu - the confusion matrix, and the rank of a label among the scores. With few classes counts
 * are collected in a block's shared memory first; integers may be added in any order. */
#include "cuda/kernels/extremum.h"
#include "cuda/kernels.h"

extern "C" {
#include "kernels/confusion.h"
}

#define FEW 32 /* most classes whose table fits into a block's shared memory */

namespace
{
typedef struct problem {
    tern__lines lines;
    tern__lined x;
    const void *label;
    void *out;
    int label_dtype, out_dtype;
    int64_t count, ignored, predict, classes;
    double threshold;
    tern__judge labels, predictions;
} problem;
} // namespace

static __device__ __forceinline__ int64_t line_start(const problem &p, int64_t line)
{
    int64_t o = tern__quotient(line, p.lines.inner);
    return o * p.x.outer + (line - o * p.lines.inner) * p.x.inner;
}

/* The label's class; -1: ignored. */
static __device__ __forceinline__ int64_t label_of(const problem &p, int64_t i)
{
    int64_t label = tern__element<int64_t>(p.label, p.label_dtype, i);
    return label != p.ignored && tern__is_class(p.labels, i, label) ? label : -1;
}

template <int G, class R> static __device__ __forceinline__ int64_t prediction_of(const problem &p, int64_t i)
{
    if (p.predict == TERN__PREDICT_LARGEST)
        return tern__group_extremum<G, R>(p.x, line_start(p, i), p.lines.size, false).place;
    if (p.predict == TERN__PREDICT_ABOVE) return tern__lined_get<double>(p.x, i) > p.threshold;
    int64_t predicted = tern__lined_get<int64_t>(p.x, i);
    int64_t truth = tern__element<int64_t>(p.label, p.label_dtype, i);
    return truth != p.ignored && tern__is_class(p.predictions, i, predicted) ? predicted : -1;
}

template <int G, class R> static __global__ void count_pairs(problem p)
{
    tern__kernel_begin();
    __shared__ unsigned table[FEW * FEW];
    bool is_few = p.classes <= FEW;
    int cells = is_few ? (int)(p.classes * p.classes) : 0;
    unsigned long long *out = (unsigned long long *)p.out;
    for (int i = threadIdx.x; i < cells; i += TERN__LINE_THREADS) table[i] = 0;
    __syncthreads();
    for (int64_t i = tern__group_first<G>(); i < p.count; i += tern__group_step<G>()) {
        int64_t truth = label_of(p, i), taken = prediction_of<G, R>(p, i);
        if (threadIdx.x % G || truth < 0 || taken < 0) continue;
        if (is_few)
            atomicAdd(&table[truth * p.classes + taken], 1u);
        else
            atomicAdd(&out[truth * p.classes + taken], 1ull);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < cells; i += TERN__LINE_THREADS)
        if (table[i]) atomicAdd(&out[i], (unsigned long long)table[i]);
}

/* Whether class c, with score b, ranks before class `of`, whose score is a. */
template <class R> static __device__ __forceinline__ bool goes_before(R b, int64_t c, R a, int64_t of)
{
    tern__extremum<R> that = {b, c}, own = {a, of};
    return c != of && tern__extremum_beats(that, own, false);
}

template <int G, class R> static __global__ void __launch_bounds__(TERN__GROUP_BLOCK(G)) rank(problem p)
{
    tern__kernel_begin();
    for (int64_t i = tern__group_first<G>(); i < p.count; i += tern__group_step<G>()) {
        int64_t truth = label_of(p, i), from = line_start(p, i), sum = 0;
        R own = tern__lined_get<R>(p.x, from + TERN__MAX(truth, (int64_t)0) * p.x.step);
        for (int64_t c = threadIdx.x % G; c < p.lines.size; c += G)
            sum += goes_before(tern__lined_get<R>(p.x, from + c * p.x.step), c, own, truth);
        sum = tern__group_sum<G>(sum);
        if (threadIdx.x % G == 0) tern__element_set<int64_t>(p.out, p.out_dtype, i, truth < 0 ? -1 : sum);
    }
}

static bool problem_of(const tern__call *call, problem *p)
{
    const tern__confusion_attr *attr = (const tern__confusion_attr *)call->attr;
    const tern__view *x = call->in[0], *label = call->in[1], *out = call->out[0];
    bool has_lines = attr->predict == TERN__PREDICT_LARGEST || call->kernel == TERN__LABEL_RANK;
    *p = {};
    if (has_lines) p->lines = tern__lines_of(x, x->ndim > 1);
    p->x.data = x->data;
    p->x.dtype = x->dtype;
    p->label = label->data;
    p->label_dtype = label->dtype;
    p->out = out->data;
    p->out_dtype = out->dtype;
    p->count = tern__view_count(label);
    p->ignored = attr->ignored;
    p->predict = attr->predict;
    p->classes = attr->labels.classes;
    p->threshold = attr->threshold;
    p->labels.fault = p->predictions.fault = tern__cuda_of(call->device)->fault;
    p->labels.site.labels = attr->labels;
    p->predictions.site.labels = tern__predictions(attr);
    return tern__view_is_contiguous(label) && tern__view_is_contiguous(out) &&
           (has_lines ? tern__lined_of(x, x->ndim > 1, &p->x) : tern__view_is_contiguous(x));
}

/* Uses whole blocks, each with its own table, for scores from which a thread or a warp chooses. */
template <class R> static int start_pairs(const tern__call *call, const problem &p)
{
    bool by_warp = p.predict == TERN__PREDICT_LARGEST && tern__group_size(&p.lines, &p.x) > 1;
    dim3 grid =
        tern__cuda_grid(call, p.count, TERN__LINE_THREADS / (by_warp ? TERN__WARP : 1), by_warp ? 1 : 8);
    return tern__cuda_launch(call, by_warp ? count_pairs<TERN__WARP, R> : count_pairs<1, R>, grid,
                             TERN__LINE_THREADS, 0, p);
}

int tern__cuda_confusion(const tern__call *call)
{
    problem p;
    if (!problem_of(call, &p) || p.out_dtype != TERN_I64) return TERN_E_UNSUPPORTED;
    if (p.count == 0) return TERN_OK;
    return call->in[0]->dtype == TERN_F64 ? start_pairs<double>(call, p) : start_pairs<float>(call, p);
}

int tern__cuda_label_rank(const tern__call *call)
{
    problem p;
    if (!problem_of(call, &p)) return TERN_E_UNSUPPORTED;
    if (p.count == 0) return TERN_OK;
    int group = tern__group_size(&p.lines, &p.x);
    return call->in[0]->dtype == TERN_F64 ? TERN__GROUPS_OF(call, p.lines, group, rank, double, p)
                                          : TERN__GROUPS_OF(call, p.lines, group, rank, float, p);
}
