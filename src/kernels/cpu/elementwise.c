/* elementwise.c - contiguous f32 loops; each thread takes a range of whole cache lines. */
#include "kernels/cpu/cpu.h"

#define GRAIN 32768 /* elements below which a second thread costs more than it brings */

typedef struct slice {
    int64_t first, count;
} slice;

/* Thread t's part of n elements. */
static slice slice_of(int64_t n, int t, int threads)
{
    int64_t per = (n / threads + 15) / 16 * 16;
    int64_t first = TERN__MIN(n, per * t), last = t == threads - 1 ? n : TERN__MIN(n, first + per);
    return (slice){first, last - first};
}

static int threads_for(const tern__call *call, int64_t n)
{
    return (int)TERN__MIN((int64_t)call->device->threads, n / GRAIN + 1);
}

/* Dense f32 of one layout: element i is at data[i] in all of them. */
static bool dense(const tern__view *view, const tern__view *like)
{
    return view->dtype == TERN_F32 && view->layout == like->layout && tern__view_same_shape(view, like) &&
           (view->layout != TERN__PLAIN || tern__view_is_contiguous(view));
}

static bool takes(const tern__call *call, int ins)
{
    for (int i = 0; i < ins; i++)
        if (!dense(call->in[i], call->out[0])) return false;
    return dense(call->out[0], call->out[0]);
}

/* ivdep: a result may lie exactly over an input, which is no dependence between elements. */

TERN__SIMD static void relu(float *y, const float *x, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i];
}

TERN__SIMD static void relu_grad(float *dx, const float *dy, const float *y, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) dx[i] = y[i] <= 0 ? 0 : dy[i]; /* NaN passes */
}

typedef void (*loop_fn)(const tern__call *call, slice s);

static void in_parallel(const tern__call *call, loop_fn loop)
{
    int64_t n = tern__view_count(call->out[0]);
    int threads = threads_for(call, n);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) loop(call, slice_of(n, t, threads));
}

static float *at(const tern__view *view, slice s)
{
    return view ? (float *)view->data + s.first : NULL;
}

static void relu_loop(const tern__call *call, slice s)
{
    relu(at(call->out[0], s), at(call->in[0], s), s.count);
}

static void relu_grad_loop(const tern__call *call, slice s)
{
    relu_grad(at(call->out[0], s), at(call->in[0], s), at(call->in[1], s), s.count);
}

int tern__cpu_relu(const tern__call *call)
{
    if (!takes(call, 1) || call->add[0]) return TERN_E_UNSUPPORTED;
    in_parallel(call, relu_loop);
    return TERN_OK;
}

int tern__cpu_relu_grad(const tern__call *call)
{
    if (!takes(call, 2) || call->add[0]) return TERN_E_UNSUPPORTED;
    in_parallel(call, relu_grad_loop);
    return TERN_OK;
}
