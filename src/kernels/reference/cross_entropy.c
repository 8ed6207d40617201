/* cross_entropy.c - mean over the batch of -log softmax(x)[label] (torch.nn.functional.cross_entropy). The
 * log probabilities are kept for the gradient: dx = (exp(log p) - onehot(label)) * dloss / N. */
#include "kernels/reference/reference.h"

#include <math.h>

static double log_sum_exp(const tern__view *x, int64_t row, int64_t classes)
{
    double top = -INFINITY, sum = 0;
    for (int64_t c = 0; c < classes; c++) top = fmax(top, tern__view_get(x, row * classes + c));
    for (int64_t c = 0; c < classes; c++) sum += exp(tern__view_get(x, row * classes + c) - top);
    return top + log(sum);
}

int tern__reference_cross_entropy(const tern__call *call)
{
    const tern__view *x = call->in[0], *label = call->in[1];
    int64_t rows = x->shape[0], classes = x->shape[1];
    double loss = 0;
    for (int64_t n = 0; n < rows; n++) {
        int64_t y = (int64_t)tern__view_get(label, n);
        if (y < 0 || y >= classes)
            return tern__error_set(call->err, "cross_entropy", TERN_E_RANGE,
                                   "cross_entropy: label %lld of sample %lld is not in [0, %lld)",
                                   (long long)y, (long long)n, (long long)classes);
        double norm = log_sum_exp(x, n, classes);
        for (int64_t c = 0; c < classes; c++)
            tern__view_set(call->out[1], n * classes + c, tern__view_get(x, n * classes + c) - norm);
        loss += norm - tern__view_get(x, n * classes + y);
    }
    tern__reference_put(call, 0, 0, loss / (double)rows);
    return TERN_OK;
}

int tern__reference_cross_entropy_grad(const tern__call *call)
{
    const tern__view *logp = call->in[1], *label = call->in[2];
    int64_t rows = logp->shape[0], classes = logp->shape[1];
    double scale = tern__view_get(call->in[0], 0) / (double)rows;
    for (int64_t n = 0; n < rows; n++) {
        int64_t y = (int64_t)tern__view_get(label, n);
        for (int64_t c = 0; c < classes; c++) {
            double p = exp(tern__view_get(logp, n * classes + c));
            tern__reference_put(call, 0, n * classes + c, (p - (c == y)) * scale);
        }
    }
    return TERN_OK;
}
