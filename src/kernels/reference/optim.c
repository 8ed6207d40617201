/* optim.c - the optimizers' updates. */
#include "kernels/optim.h"
#include "kernels/sections.h"
#include "kernels/reference/reference.h"

#include <math.h>

/* Returns section n of a call, and adds to the attributes what only the device knows about its update. */
static tern__section settle(const tern__call *call, int64_t n, tern__step_attr *step)
{
    const tern__view *given = call->in[TERN__OPTIM_FACTORS], *skipped = call->in[TERN__OPTIM_SKIPPED],
                     *sections = call->in[TERN__OPTIM_SECTIONS];
    tern__section section =
        tern__section_get(tern__section_table(sections), n, tern__view_count(call->out[0]));
    int64_t row = given && given->ndim == 2 ? section.row : 0;
    double factors[3], count = skipped ? tern__view_get(skipped, 0) : 0;
    for (int i = 0; given && i < 3; i++) factors[i] = tern__view_get(given, 3 * row + i);
    tern__step_settle(step, given ? factors : NULL, &count);
    return section;
}

static int each_section(const tern__call *call, void (*update)(const tern__call *call, int64_t n))
{
    const tern__view *skip = call->in[TERN__OPTIM_SKIP];
    bool skips = skip && tern__view_get(skip, 0) != 0;
    int64_t count = skips ? 0 : tern__section_count(call->in[TERN__OPTIM_SECTIONS]);
    for (int64_t n = 0; n < count; n++) update(call, n);
    return TERN_OK;
}

/* d = scale g + decay p */
static double gradient(const tern__call *call, const tern__step_attr *step, int64_t i, double value)
{
    return step->scale * tern__view_get(call->in[0], i) + step->decay * value;
}

/* Writes the new value of p, and of its copy in another dtype. */
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

static void sgd(const tern__call *call, int64_t n)
{
    tern__sgd_attr attr = *(const tern__sgd_attr *)call->attr;
    const tern__view *p = call->out[0], *b = call->out[1];
    tern__section section = settle(call, n, &attr.step);
    for (int64_t i = section.begin; i < section.begin + section.count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        if (b) g = moving_gradient(&attr, b, i, g);
        put(call, i, value - attr.step.lr * g);
    }
}

int tern__reference_sgd(const tern__call *call)
{
    return each_section(call, sgd);
}

static double moving_mean(const tern__view *view, int64_t i, double beta, double value)
{
    double mean = beta * tern__view_get(view, i) + (1 - beta) * value;
    tern__view_set(view, i, mean);
    return mean;
}

/* The largest value so far; a NaN stays. */
static double top(const tern__view *view, int64_t i, double value)
{
    double before = tern__view_get(view, i);
    tern__view_set(view, i, before >= value || before != before ? before : value);
    return tern__view_get(view, i);
}

static void adam(const tern__call *call, int64_t n)
{
    tern__adam_attr attr = *(const tern__adam_attr *)call->attr;
    const tern__view *p = call->out[0];
    tern__section section = settle(call, n, &attr.step);
    double unbias1 = 1 - pow(attr.beta1, attr.step.count), unbias2 = 1 - pow(attr.beta2, attr.step.count);
    for (int64_t i = section.begin; i < section.begin + section.count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        double m = moving_mean(call->out[1], i, attr.beta1, g);
        double v = moving_mean(call->out[2], i, attr.beta2, g * g);
        if (call->out[3]) v = top(call->out[3], i, v);
        double rate = attr.step.lr / unbias1;
        put(call, i, attr.keep * value - rate * m / (sqrt(v / unbias2) + attr.eps));
    }
}

int tern__reference_adam(const tern__call *call)
{
    return each_section(call, adam);
}

static void rmsprop(const tern__call *call, int64_t n)
{
    tern__rmsprop_attr attr = *(const tern__rmsprop_attr *)call->attr;
    const tern__view *p = call->out[0], *b = call->out[2], *mean = call->out[3];
    tern__section section = settle(call, n, &attr.step);
    for (int64_t i = section.begin; i < section.begin + section.count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        double spread = moving_mean(call->out[1], i, attr.alpha, g * g);
        double middle = mean ? moving_mean(mean, i, attr.alpha, g) : 0;
        spread -= middle * middle;
        if (spread < 0) spread = 0; /* rounding: the gradients were equal */
        double update = g / (sqrt(spread) + attr.eps);
        if (b) tern__view_set(b, i, update += attr.momentum * tern__view_get(b, i));
        put(call, i, value - attr.step.lr * update);
    }
}

int tern__reference_rmsprop(const tern__call *call)
{
    return each_section(call, rmsprop);
}

static void adagrad(const tern__call *call, int64_t n)
{
    tern__adagrad_attr attr = *(const tern__adagrad_attr *)call->attr;
    const tern__view *p = call->out[0];
    tern__section section = settle(call, n, &attr.step);
    double rate = tern__adagrad_rate(&attr);
    for (int64_t i = section.begin; i < section.begin + section.count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        double sum = (attr.step.count == 1 ? attr.start : tern__view_get(call->out[1], i)) + g * g;
        tern__view_set(call->out[1], i, sum);
        put(call, i, value - rate * g / (sqrt(sum) + attr.eps));
    }
}

int tern__reference_adagrad(const tern__call *call)
{
    return each_section(call, adagrad);
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

/* Computes the moments and sums of section n. */
static void lamb_moments(const tern__call *call, int64_t n)
{
    tern__lamb_attr attr = *(const tern__lamb_attr *)call->attr;
    const tern__view *p = call->out[0], *m = call->out[1];
    tern__section section = settle(call, n, &attr.step);
    lamb_update updates = lamb_update_of(&attr);
    double sums[2] = {0, 0};
    for (int64_t i = section.begin; i < section.begin + section.count; i++) {
        double value = tern__view_get(p, i), g = gradient(call, &attr.step, i, value);
        tern__view_set(m, i, attr.beta1 * tern__view_get(m, i) + attr.take * g);
        moving_mean(call->out[2], i, attr.beta2, g * g);
        double update = update_at(call, &updates, i);
        sums[0] += value * value;
        sums[1] += update * update;
    }
    for (int s = 0; s < 2; s++) tern__view_set(call->out[3], 2 * n + s, sums[s]);
}

int tern__reference_lamb_moments(const tern__call *call)
{
    return each_section(call, lamb_moments);
}

static void lamb(const tern__call *call, int64_t n)
{
    tern__lamb_attr attr = *(const tern__lamb_attr *)call->attr;
    tern__section section = settle(call, n, &attr.step);
    lamb_update updates = lamb_update_of(&attr);
    for (int64_t i = section.begin; i < section.begin + section.count; i++)
        put(call, i, tern__view_get(call->out[0], i) - attr.step.lr * update_at(call, &updates, i));
}

int tern__reference_lamb(const tern__call *call)
{
    return each_section(call, lamb);
}
