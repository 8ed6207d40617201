/* mse_loss.c - in chunks, whose sums are added up in double and in order. */
#include "kernels/cpu/loops.h"

#define CHUNK 16384

TERN__SIMD static double square_sum(const float *x, const float *target, int64_t count)
{
    enum { LANES = 16 };
    double sum[LANES] = {0}, all = 0;
    int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double d = (double)x[i + l] - (double)target[i + l];
            sum[l] += d * d;
        }
    for (int64_t i = whole; i < count; i++)
        all += ((double)x[i] - (double)target[i]) * ((double)x[i] - (double)target[i]);
    for (int l = 0; l < LANES; l++) all += sum[l];
    return all;
}

int tern__cpu_mse_loss(const tern__call *call)
{
    const tern__view *x = call->in[0], *target = call->in[1];
    if (!tern__is_dense(x, x) || !tern__is_dense(target, x)) return TERN_E_UNSUPPORTED;
    int64_t count = tern__view_count(x), chunks = (count + CHUNK - 1) / CHUNK;
    double *partial = tern__loop_scratch(call, (size_t)chunks * sizeof(*partial)), sum = 0;
    if (!partial) return TERN_E_MEMORY;
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t c = 0; c < chunks; c++)
        partial[c] = square_sum((const float *)x->data + c * CHUNK, (const float *)target->data + c * CHUNK,
                                TERN__MIN(CHUNK, count - c * CHUNK));
    for (int64_t c = 0; c < chunks; c++) sum += partial[c];
    tern__put_scalar(call, sum / (double)count);
    return TERN_OK;
}

TERN__SIMD static void mse_grad(float *dx, const float *x, const float *target, float scale, int64_t count,
                                bool add)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < count; i++) {
        float d = scale * (x[i] - target[i]);
        dx[i] = add ? dx[i] + d : d;
    }
}

int tern__cpu_mse_loss_grad(const tern__call *call)
{
    const tern__view *x = call->in[1], *target = call->in[2];
    if (!tern__is_dense(x, x) || !tern__is_dense(target, x) || !tern__is_dense(call->out[0], x) ||
        !tern__is_dense(call->out[1], x))
        return TERN_E_UNSUPPORTED;
    int64_t count = tern__view_count(x);
    float scale = 2 * *(const float *)call->in[0]->data / (float)count;
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        int64_t first = count * t / threads, part = count * (t + 1) / threads - first;
        for (int i = 0; i < 2; i++)
            if (call->out[i])
                mse_grad((float *)call->out[i]->data + first, (const float *)x->data + first,
                         (const float *)target->data + first, i ? -scale : scale, part, call->add[i]);
    }
    return TERN_OK;
}
