/* cross_entropy.c - row by row; what the rows give is added up in double and in order. */
#include "kernels/cpu/loops.h"

#include <math.h>

TERN__SIMD static float largest(const float *x, int64_t count)
{
    float top = x[0];
    for (int64_t i = 1; i < count; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* log p of one row; returns that of the label. */
static float log_softmax(float *logp, const float *x, int64_t classes, int64_t label)
{
    float top = largest(x, classes);
    double sum = 0;
    for (int64_t c = 0; c < classes; c++) sum += (double)expf(x[c] - top);
    float norm = (float)log(sum);
    for (int64_t c = 0; c < classes; c++) logp[c] = x[c] - top - norm;
    return logp[label];
}

static int check_labels(const tern__call *call, const int64_t *label, int64_t rows, int64_t classes)
{
    for (int64_t n = 0; n < rows; n++)
        if (label[n] < 0 || label[n] >= classes)
            return tern__error_set(call->err, "cross_entropy", TERN_E_RANGE,
                                   "cross_entropy: label %lld of sample %lld is not in [0, %lld)",
                                   (long long)label[n], (long long)n, (long long)classes);
    return TERN_OK;
}

int tern__cpu_cross_entropy(const tern__call *call)
{
    const tern__view *x = call->in[0], *label = call->in[1], *logp = call->out[1];
    if (x->layout != TERN__PLAIN || !tern__is_dense(x, x) || !tern__is_dense(logp, x) ||
        !tern__is_dense(call->out[0], x) || !tern__view_is_contiguous(label))
        return TERN_E_UNSUPPORTED;
    int64_t rows = x->shape[0], classes = x->shape[1];
    const int64_t *labels = label->data;
    int status = check_labels(call, labels, rows, classes),
        threads = tern__loop_threads(call, rows * classes);
    double *picked = status ? NULL : tern__loop_scratch(call, (size_t)rows * sizeof(*picked)), sum = 0;
    if (!picked) return status ? status : TERN_E_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < rows; n++)
        picked[n] = (double)log_softmax((float *)logp->data + n * classes,
                                        (const float *)x->data + n * classes, classes, labels[n]);
    for (int64_t n = 0; n < rows; n++) sum -= picked[n];
    tern__put_scalar(call, sum / (double)rows);
    return TERN_OK;
}

int tern__cpu_cross_entropy_grad(const tern__call *call)
{
    const tern__view *logp = call->in[1], *label = call->in[2], *dx = call->out[0];
    if (!tern__is_dense(dx, logp) || !tern__is_dense(logp, logp) || !tern__is_dense(call->in[0], logp) ||
        !tern__view_is_contiguous(label))
        return TERN_E_UNSUPPORTED;
    int64_t rows = logp->shape[0], classes = logp->shape[1], all = rows * classes;
    float scale = *(const float *)call->in[0]->data / (float)rows;
    const int64_t *labels = label->data;
    int threads = tern__loop_threads(call, all);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < rows; n++)
        for (int64_t c = 0; c < classes; c++) {
            int64_t i = n * classes + c;
            float p = expf(((const float *)logp->data)[i]), d = (p - (float)(c == labels[n])) * scale;
            ((float *)dx->data)[i] = call->add[0] ? ((float *)dx->data)[i] + d : d;
        }
    return TERN_OK;
}
