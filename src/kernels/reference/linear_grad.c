/* linear_grad.c - the gradients of torch.nn.functional.linear, y = x w^T + b, with or without a ReLU after
 * it: dx = dz w, dw = dz^T x and db = the column sums of dz. dz is dy, but 0 where the ReLU's output y is.
 * If x is the output of a ReLU, dx is 0 where x is. */
#include "kernels/matmul.h"
#include "kernels/reference/reference.h"

static double dz(const tern__call *call, int64_t row, int64_t column)
{
    int64_t at = row * call->in[0]->shape[1] + column;
    bool is_cut = call->in[3] && tern__view_get(call->in[3], at) <= 0;
    return is_cut ? 0 : tern__view_get(call->in[0], at);
}

static void data_gradient(const tern__call *call)
{
    const tern__view *w = call->in[2];
    int64_t rows = call->in[0]->shape[0], outs = w->shape[0], ins = w->shape[1];
    for (int64_t e = 0; e < rows * ins; e++) {
        double sum = 0;
        for (int64_t o = 0; o < outs; o++) sum += dz(call, e / ins, o) * tern__view_get(w, o * ins + e % ins);
        bool is_cut = tern__linear_grad_is_relus(call) && tern__view_get(call->in[1], e) <= 0;
        tern__reference_put(call, 0, e, is_cut ? 0 : sum);
    }
}

static void weight_gradient(const tern__call *call)
{
    const tern__view *x = call->in[1];
    int64_t rows = x->shape[0], ins = x->shape[1], count = tern__view_count(call->out[1]);
    for (int64_t e = 0; e < count; e++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += dz(call, r, e / ins) * tern__view_get(x, r * ins + e % ins);
        tern__reference_put(call, 1, e, sum);
    }
}

static void bias_gradient(const tern__call *call)
{
    int64_t rows = call->in[0]->shape[0], outs = call->in[0]->shape[1];
    for (int64_t o = 0; o < outs; o++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += dz(call, r, o);
        tern__reference_put(call, 2, o, sum);
    }
}

int tern__reference_linear_grad(const tern__call *call)
{
    if (call->out[0]) data_gradient(call);
    weight_gradient(call);
    if (call->out[2]) bias_gradient(call);
    return TERN_OK;
}
