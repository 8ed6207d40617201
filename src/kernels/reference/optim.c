#include "kernels/optim.h"
#include "kernels/reference/reference.h"

#include <math.h>

static double moving_gradient(const tern__sgd_attr *attr, const tern__view *b, int64_t i, double g)
{
    double moving = attr->first != 0 ? g : attr->momentum * tern__view_get(b, i) + (1 - attr->dampening) * g;
    tern__view_set(b, i, moving);
    return attr->nesterov != 0 ? g + attr->momentum * moving : moving;
}

int tern__reference_sgd(const tern__call *call)
{
    const tern__sgd_attr *attr = call->attr;
    const tern__view *p = call->out[0], *b = call->out[1];
    double sign = attr->maximize != 0 ? -1 : 1;
    int64_t count = tern__view_count(p);
    for (int64_t i = 0; i < count; i++) {
        double value = tern__view_get(p, i);
        double g = sign * tern__view_get(call->in[0], i) + attr->weight_decay * value;
        if (b) g = moving_gradient(attr, b, i, g);
        tern__view_set(p, i, value - attr->lr * g);
    }
    return TERN_OK;
}

static double moving_mean(const tern__view *view, int64_t i, double beta, double value)
{
    double mean = beta * tern__view_get(view, i) + (1 - beta) * value;
    tern__view_set(view, i, mean);
    return mean;
}

/* The largest so far; a NaN stays. */
static double top(const tern__view *view, int64_t i, double value)
{
    double before = tern__view_get(view, i);
    tern__view_set(view, i, before >= value || before != before ? before : value);
    return tern__view_get(view, i);
}

int tern__reference_adam(const tern__call *call)
{
    const tern__adam_attr *attr = call->attr;
    const tern__view *p = call->out[0];
    double sign = attr->maximize != 0 ? -1 : 1;
    double unbias1 = 1 - pow(attr->beta1, attr->step), unbias2 = 1 - pow(attr->beta2, attr->step);
    int64_t count = tern__view_count(p);
    for (int64_t i = 0; i < count; i++) {
        double value = tern__view_get(p, i), g = sign * tern__view_get(call->in[0], i);
        if (attr->decoupled != 0)
            value *= 1 - attr->lr * attr->weight_decay;
        else
            g += attr->weight_decay * value;
        double m = moving_mean(call->out[1], i, attr->beta1, g);
        double v = moving_mean(call->out[2], i, attr->beta2, g * g);
        if (call->out[3]) v = top(call->out[3], i, v);
        tern__view_set(p, i, value - attr->lr / unbias1 * m / (sqrt(v / unbias2) + attr->eps));
    }
    return TERN_OK;
}
