/* dropout.cu - dropout with the same random words as on a CPU: a word depends on the index of an element
 * or a channel, not on the thread. */
#include "cuda/kernels/elements.h"
#include "cuda/kernels.h"

extern "C" {
#include "kernels/dropout.h"
#include "kernels/space.h"
}

#define THREADS 256

namespace
{
typedef struct problem {
    tern__dropout_attr attr;
    const void *x;
    void *y;
    int x_dtype, y_dtype;
    int64_t count, channels, inner; /* with channels last: inner 1, and this many adjacent channels */
    float *factor;                  /* one per channel */
    bool fours, add, is_last;
} problem;
} // namespace

/* Whether each of the four items of a block is kept. */
static __device__ __forceinline__ void keep(const problem &p, int64_t block, bool kept[4])
{
    tern__philox_words r = tern__philox(p.attr.key, tern__dropout_counter(&p.attr, (uint64_t)block));
    for (int i = 0; i < 4; i++) kept[i] = r.word[i] >= p.attr.threshold;
}

template <class R> static __device__ __forceinline__ void put(const problem &p, int64_t at, R value)
{
    if (p.add) value += tern__element<R>(p.y, p.y_dtype, at);
    tern__element_set<R>(p.y, p.y_dtype, at, value);
}

template <class R> static __global__ void elements(problem p)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS, blocks = (p.count + 3) / 4;
    R scale = (R)p.attr.scale;
    for (int64_t b = (int64_t)blockIdx.x * THREADS + threadIdx.x; b < blocks; b += step) {
        bool kept[4], is_four = p.fours && b * 4 + 4 <= p.count;
        tern__read read = {};
        if (is_four) read = tern__four_read(p.x, p.x_dtype, b * 4); /* loads while the words are computed */
        keep(p, b, kept);
        if (is_four) {
            tern__four<R> f = tern__four_of<R>(read, p.x, p.x_dtype, b * 4);
            for (int e = 0; e < 4; e++) f.v[e] *= kept[e] ? scale : R(0);
            tern__four_set<R>(p.y, p.y_dtype, b * 4, f);
            continue;
        }
        for (int64_t i = b * 4; i < p.count && i < b * 4 + 4; i++)
            put<R>(p, i, (kept[i - b * 4] ? scale : R(0)) * tern__element<R>(p.x, p.x_dtype, i));
    }
}

/* Computes samples times channels factors, rounded up to fours. */
static __global__ void choose(problem p, int64_t blocks)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t b = (int64_t)blockIdx.x * THREADS + threadIdx.x; b < blocks; b += step) {
        bool kept[4];
        keep(p, b, kept);
        for (int e = 0; e < 4; e++) p.factor[b * 4 + e] = kept[e];
    }
}

/* The index of element i's channel among those of all samples. */
static __device__ __forceinline__ int64_t channel_of(const problem &p, int64_t i)
{
    if (!p.is_last) return tern__quotient(i, p.inner);
    int64_t sample = tern__quotient(i, p.inner * p.channels), row = tern__quotient(i, p.channels);
    return sample * p.channels + i - row * p.channels;
}

/* N neighbours at a time: of one channel, or adjacent channels with channels last. */
template <class R, int N> static __global__ void channels(problem p)
{
    tern__kernel_begin();
    int64_t step = (int64_t)gridDim.x * THREADS * N;
    R scale = (R)p.attr.scale;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; i < p.count; i += step) {
        tern__read read = {};
        if (N == 4) read = tern__four_read(p.x, p.x_dtype, i);
        int64_t number = channel_of(p, i);
        if (N == 1) {
            put<R>(p, i, (R)p.factor[number] * scale * tern__element<R>(p.x, p.x_dtype, i));
            continue;
        }
        float factor[N];
        for (int e = 0; e < N; e++) factor[e] = p.factor[number + (p.is_last ? e : 0)];
        tern__four<R> f = tern__four_of<R>(read, p.x, p.x_dtype, i);
        for (int e = 0; e < N; e++) f.v[e] *= (R)factor[e] * scale;
        tern__four_set<R>(p.y, p.y_dtype, i, f);
    }
}

static bool problem_of(const tern__call *call, problem *p)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    *p = {};
    p->attr = *(const tern__dropout_attr *)call->attr;
    p->x = x->data;
    p->y = y->data;
    p->x_dtype = x->dtype;
    p->y_dtype = y->dtype;
    p->count = tern__view_count(x);
    p->add = call->add[0];
    p->is_last = x->layout == TERN__CHANNELS_LAST;
    p->fours = !p->add && tern_dtype_bytes(x->dtype) <= 4 && tern_dtype_bytes(y->dtype) <= 4 &&
               ((uintptr_t)p->x | (uintptr_t)p->y) % 16 == 0;
    return x->layout == y->layout && x->layout != TERN__BLOCKED16 && tern__view_is_dense(x) &&
           tern__view_is_dense(y);
}

int tern__cuda_dropout(const tern__call *call)
{
    problem p;
    if (!problem_of(call, &p) || p.is_last) return TERN_E_UNSUPPORTED;
    if (p.count == 0) return TERN_OK;
    dim3 grid = tern__cuda_grid(call, p.count, THREADS, 4);
    return tern__cuda_launch(call, p.y_dtype == TERN_F64 ? elements<double> : elements<float>, grid, THREADS,
                             0, p);
}

static int start_channels(const tern__call *call, const problem &p)
{
    bool fours = p.fours && (p.is_last ? p.channels : p.inner) % 4 == 0;
    void (*kernel)(problem) = p.y_dtype == TERN_F64 ? channels<double, 1>
                              : fours               ? channels<float, 4>
                                                    : channels<float, 1>;
    return tern__cuda_launch(call, kernel, tern__cuda_grid(call, p.count, THREADS, fours ? 4 : 1), THREADS, 0,
                             p);
}

int tern__cuda_dropout_channels(const tern__call *call)
{
    problem p;
    if (!problem_of(call, &p)) return TERN_E_UNSUPPORTED;
    if (p.count == 0) return TERN_OK;
    p.inner = tern__space_of(call->in[0]).count;
    p.channels = call->in[0]->shape[1];
    int64_t blocks = (p.count / p.inner + 3) / 4;
    p.factor = (float *)tern__cuda_scratch(call, (size_t)blocks * 4 * sizeof(float));
    if (!p.factor) return TERN_E_MEMORY;
    int status =
        tern__cuda_launch(call, choose, tern__cuda_grid(call, blocks, THREADS, 1), THREADS, 0, p, blocks);
    if (!status) status = start_channels(call, p);
    tern__cuda_scratch_free(call, p.factor);
    return status;
}
