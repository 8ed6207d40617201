/* sgd.c - one pass over gradient, parameter and momentum. */
#include "kernels/cpu/loops.h"
#include "kernels/sgd.h"

TERN__SIMD static void sgd_momentum(float *p, float *b, const float *g, int64_t n, const float k[4])
{
    float lr = k[0], momentum = k[1], decay = k[2], look = k[3];
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] + decay * p[i];
        b[i] = momentum * b[i] + d;
        p[i] -= lr * (look != 0 ? d + momentum * b[i] : b[i]);
    }
}

TERN__SIMD static void sgd_plain(float *p, const float *g, int64_t n, float lr, float decay)
{
    for (int64_t i = 0; i < n; i++) p[i] -= lr * (g[i] + decay * p[i]);
}

static void update(const tern__call *call, int64_t first, int64_t count)
{
    const tern__sgd_attr *attr = call->attr;
    float k[4] = {(float)attr->lr, (float)attr->momentum, (float)attr->weight_decay, (float)attr->nesterov};
    float *p = (float *)call->out[0]->data + first;
    const float *g = (const float *)call->in[0]->data + first;
    if (call->out[1])
        sgd_momentum(p, (float *)call->out[1]->data + first, g, count, k);
    else
        sgd_plain(p, g, count, k[0], k[2]);
}

int tern__cpu_sgd(const tern__call *call)
{
    const tern__view *p = call->out[0];
    if (!tern__is_dense(p, p) || !tern__is_dense(call->in[0], p)) return TERN_E_UNSUPPORTED;
    int64_t count = tern__view_count(p);
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        int64_t first = count * t / threads;
        update(call, first, count * (t + 1) / threads - first);
    }
    return TERN_OK;
}
