#include "kernels/reference/reference.h"

int tern__reference_linear(const tern__call *call)
{
    const tern__view *x = call->in[0], *w = call->in[1], *b = call->in[2];
    int64_t rows = x->shape[0], ins = w->shape[1], outs = w->shape[0];
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t o = 0; o < outs; o++) {
            double sum = b ? tern__view_get(b, o) : 0;
            for (int64_t i = 0; i < ins; i++)
                sum += tern__view_get(x, n * ins + i) * tern__view_get(w, o * ins + i);
            tern__reference_put(call, 0, n * outs + o, sum);
        }
    }
    return TERN_OK;
}

int tern__reference_linear_data_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *w = call->in[1];
    int64_t rows = dy->shape[0], ins = w->shape[1], outs = w->shape[0];
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t i = 0; i < ins; i++) {
            double sum = 0;
            for (int64_t o = 0; o < outs; o++)
                sum += tern__view_get(dy, n * outs + o) * tern__view_get(w, o * ins + i);
            tern__reference_put(call, 0, n * ins + i, sum);
        }
    }
    return TERN_OK;
}

static void bias_grad(const tern__call *call, const tern__view *dy)
{
    int64_t rows = dy->shape[0], outs = dy->shape[1];
    for (int64_t o = 0; o < outs; o++) {
        double sum = 0;
        for (int64_t n = 0; n < rows; n++) sum += tern__view_get(dy, n * outs + o);
        tern__reference_put(call, 1, o, sum);
    }
}

int tern__reference_linear_weight_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *x = call->in[1];
    int64_t rows = dy->shape[0], ins = x->shape[1], outs = dy->shape[1];
    if (call->out[1]) bias_grad(call, dy);
    if (!call->out[0]) return TERN_OK;
    for (int64_t o = 0; o < outs; o++) {
        for (int64_t i = 0; i < ins; i++) {
            double sum = 0;
            for (int64_t n = 0; n < rows; n++)
                sum += tern__view_get(dy, n * outs + o) * tern__view_get(x, n * ins + i);
            tern__reference_put(call, 0, o * ins + i, sum);
        }
    }
    return TERN_OK;
}
