#include "kernels/optim.h"
#include "kernels/reference/reference.h"

#include <math.h>

/* Takes what only a device knows into the attributes. False: nothing is to change. */
static bool settle(const tern__call *call, tern__step_attr *step)
{
    const tern__view *given = call->in[TERN__OPTIM_FACTORS], *skip = call->in[TERN__OPTIM_SKIP],
                     *skipped = call->in[TERN__OPTIM_SKIPPED];
    double factors[3], count = skipped ? tern__view_get(skipped, 0) : 0;
    for (int i = 0; given && i < 3; i++) factors[i] = tern__view_get(given, i);
    tern__step_settle(step, given ? factors : NULL, &count);
    return !skip || tern__view_get(skip, 0) == 0;
}

/* d = scale g + decay p */
static double gradient(const tern__call *call, const tern__step_attr *step, int64_t i, double value)
{
    return step->scale * tern__view_get(call->in[0], i) + step->decay * value;
}

/* The new value of p, and of its copy. */
static void put(const tern__call *call, int64_t i, double value)
{
    const tern__view *copy = call->out[TERN__OPTIM_COPY];
    tern__view_set(call->out[0], i, value);
    if (copy) tern__view_set(copy, i, tern__view_get(call->out[0], i));
}

static double moving_gradient(const tern__sgd_attr *attr, const tern__view *b, int64_t i, double g)
{
    double moving =
        attr->step.count == 1 ? g : attr->momentum * tern__view_get(b, i) + (1 - attr->dampening) * g;
    tern__view_set(b, i, moving);
    return attr->nesterov != 0 ? g + attr->momentum * moving : moving;
}

int tern__reference_sgd(const tern__call *call)
{
    tern__sgd_attr attr = *(const tern__sgd_attr *)call->attr;
    const tern__view *p = call->out[0], *b = call->out[1];
    int64_t count = settle(call, &attr.step) ? tern__view_count(p) : 0;
    for (int64_t i = 0; i < count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        if (b) g = moving_gradient(&attr, b, i, g);
        put(call, i, value - attr.step.lr * g);
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
    tern__adam_attr attr = *(const tern__adam_attr *)call->attr;
    const tern__view *p = call->out[0];
    int64_t count = settle(call, &attr.step) ? tern__view_count(p) : 0;
    double unbias1 = 1 - pow(attr.beta1, attr.step.count), unbias2 = 1 - pow(attr.beta2, attr.step.count);
    for (int64_t i = 0; i < count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        double m = moving_mean(call->out[1], i, attr.beta1, g);
        double v = moving_mean(call->out[2], i, attr.beta2, g * g);
        if (call->out[3]) v = top(call->out[3], i, v);
        double rate = attr.step.lr / unbias1;
        put(call, i, attr.keep * value - rate * m / (sqrt(v / unbias2) + attr.eps));
    }
    return TERN_OK;
}

int tern__reference_rmsprop(const tern__call *call)
{
    tern__rmsprop_attr attr = *(const tern__rmsprop_attr *)call->attr;
    const tern__view *p = call->out[0], *b = call->out[2], *mean = call->out[3];
    int64_t count = settle(call, &attr.step) ? tern__view_count(p) : 0;
    for (int64_t i = 0; i < count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        double spread = moving_mean(call->out[1], i, attr.alpha, g * g);
        double middle = mean ? moving_mean(mean, i, attr.alpha, g) : 0;
        double update = g / (sqrt(spread - middle * middle) + attr.eps);
        if (b) tern__view_set(b, i, update += attr.momentum * tern__view_get(b, i));
        put(call, i, value - attr.step.lr * update);
    }
    return TERN_OK;
}

int tern__reference_adagrad(const tern__call *call)
{
    tern__adagrad_attr attr = *(const tern__adagrad_attr *)call->attr;
    const tern__view *p = call->out[0];
    int64_t count = settle(call, &attr.step) ? tern__view_count(p) : 0;
    double rate = tern__adagrad_rate(&attr);
    for (int64_t i = 0; i < count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        double sum = (attr.step.count == 1 ? attr.start : tern__view_get(call->out[1], i)) + g * g;
        tern__view_set(call->out[1], i, sum);
        put(call, i, value - rate * g / (sqrt(sum) + attr.eps));
    }
    return TERN_OK;
}

typedef struct lamb_update {
    double unbias1, unbias2, eps, pull;
} lamb_update;

static lamb_update lamb_update_of(const tern__lamb_attr *attr)
{
    return (lamb_update){tern__lamb_unbias1(attr), tern__lamb_unbias2(attr), attr->eps, attr->pull};
}

static double update_at(const tern__call *call, const lamb_update *u, int64_t i)
{
    double m = tern__view_get(call->out[1], i), v = tern__view_get(call->out[2], i);
    return u->unbias1 * m / (u->unbias2 * sqrt(v) + u->eps) + u->pull * tern__view_get(call->out[0], i);
}

int tern__reference_lamb_moments(const tern__call *call)
{
    tern__lamb_attr attr = *(const tern__lamb_attr *)call->attr;
    const tern__view *p = call->out[0], *m = call->out[1], *sums = call->out[3];
    if (!settle(call, &attr.step)) return TERN_OK;
    int64_t count = tern__view_count(p), pieces = tern__view_count(sums), lead = (int64_t)attr.lead;
    lamb_update updates = lamb_update_of(&attr);
    for (int64_t i = 0; i < pieces; i++) tern__view_set(sums, i, 0);
    for (int64_t i = 0; i < count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        tern__view_set(m, i, attr.beta1 * tern__view_get(m, i) + attr.take * g);
        moving_mean(call->out[2], i, attr.beta2, g * g);
        double update = update_at(call, &updates, i);
        int64_t at = i < lead ? 0 : 2 + 2 * ((i - lead) / (int64_t)attr.piece);
        tern__view_set(sums, at, tern__view_get(sums, at) + value * value);
        tern__view_set(sums, at + 1, tern__view_get(sums, at + 1) + update * update);
    }
    return TERN_OK;
}

int tern__reference_lamb(const tern__call *call)
{
    tern__lamb_attr attr = *(const tern__lamb_attr *)call->attr;
    int64_t count = settle(call, &attr.step) ? tern__view_count(call->out[0]) : 0;
    lamb_update updates = lamb_update_of(&attr);
    for (int64_t i = 0; i < count; i++)
        put(call, i, tern__view_get(call->out[0], i) - attr.step.lr * update_at(call, &updates, i));
    return TERN_OK;
}
