/* dice_loss.c - soft Dice (Milletari et al. 2016, "V-Net") and cross entropy with it. kernels/dice_loss.h
 * has the formulas. */
#include "kernels/dice_loss.h"
#include "kernels/reference/reference.h"

#include <math.h>
#include <string.h>

typedef struct problem {
    const tern__call *call;
    const tern__dice_attr *attr;
    const tern__view *x, *target;
    tern__channels c;
} problem;

static problem dice_problem_of(const tern__call *call, int x)
{
    return (problem){call, call->attr, call->in[x], call->in[x + 1], tern__channels_of(call->in[x])};
}

static double logit(const problem *p, int64_t sample, int64_t channel, int64_t i)
{
    return tern__view_get(p->x, (sample * p->c.channels + channel) * p->c.inner + i);
}

/* log sum exp of a position's logits, if there is a softmax. */
static double log_sum(const problem *p, int64_t sample, int64_t i)
{
    double top = -INFINITY, sum = 0;
    if (!p->attr->classes || p->attr->probabilities) return 0;
    for (int64_t k = 0; k < p->c.channels; k++) top = fmax(top, logit(p, sample, k, i));
    for (int64_t k = 0; k < p->c.channels; k++) sum += exp(logit(p, sample, k, i) - top);
    return top + log(sum);
}

/* One element: its probability, its target, and its share of the position's cross entropy. */
typedef struct element {
    bool counts;
    double p, t, entropy;
} element;

static element class_element(const problem *p, int64_t sample, int64_t channel, int64_t i, double norm)
{
    int64_t label = tern__view_get_int(p->target, sample * p->c.inner + i);
    double x = logit(p, sample, channel, i);
    element e = {label != p->attr->ignored, x, label == channel, 0};
    if (!p->attr->probabilities) e.p = exp(x - norm);
    if (label == channel) e.entropy = norm - x;
    return e;
}

static element mask_element(const problem *p, int64_t sample, int64_t channel, int64_t i)
{
    double t = tern__view_get(p->target, (sample * p->c.channels + channel) * p->c.inner + i);
    double x = logit(p, sample, channel, i);
    element e = {t != (double)p->attr->ignored, x, t, 0};
    if (p->attr->probabilities) return e;
    e.p = 1 / (1 + exp(-x));
    e.entropy = fmax(x, 0) - x * t + log1p(exp(-fabs(x)));
    return e;
}

/* norm: the log_sum of the position. */
static element element_at(const problem *p, int64_t sample, int64_t channel, int64_t i, double norm)
{
    return p->attr->classes ? class_element(p, sample, channel, i, norm)
                            : mask_element(p, sample, channel, i);
}

/* ---- forward ---- */

static int dice_check_labels(const problem *p)
{
    int64_t classes = p->attr->classes ? p->c.channels : 2;
    if (tern__dtype_is_float(p->target->dtype)) return TERN_OK;
    for (int64_t i = 0; i < tern__view_count(p->target); i++) {
        int64_t label = tern__view_get_int(p->target, i);
        if ((label < 0 || label >= classes) && label != p->attr->ignored)
            return tern__dice_label_error(p->call, &p->c, i, label);
    }
    return TERN_OK;
}

static void add_element(const problem *p, tern__overlap *o, const element *e)
{
    if (!e->counts) return;
    o->both += e->p * e->t;
    o->x += p->attr->squared ? e->p * e->p : e->p;
    o->target += p->attr->squared ? e->t * e->t : e->t;
    o->entropy += e->entropy;
    o->count += p->attr->classes ? e->t : 1;
}

int tern__reference_dice_loss(const tern__call *call)
{
    problem p = dice_problem_of(call, 0);
    tern__overlap *sums = call->out[1]->data;
    int status = dice_check_labels(&p);
    if (status) return status;
    memset(sums, 0, tern__view_bytes(call->out[1]));
    for (int64_t n = 0; n < p.c.samples * p.c.inner; n++) {
        int64_t sample = n / p.c.inner, i = n % p.c.inner;
        double norm = log_sum(&p, sample, i);
        for (int64_t k = 0; k < p.c.channels; k++) {
            element e = element_at(&p, sample, k, i, norm);
            add_element(&p, &sums[sample * p.c.channels + k], &e);
        }
    }
    tern__dice_close(call, &p.c, sums);
    return TERN_OK;
}

/* ---- gradient ---- */

/* The derivative with respect to the probability. */
static double rise(const problem *p, const tern__dice_slope *slope, const element *e)
{
    return slope->of_target * e->t + slope->of_x * (p->attr->squared ? 2 * e->p : 1);
}

/* sum_k p[k] d loss / d p[k] of a position whose p is a softmax. */
static double mean_rise(const problem *p, const tern__dice_back *back, int64_t sample, int64_t i, double norm)
{
    double sum = 0;
    for (int64_t k = 0; k < p->c.channels; k++) {
        tern__dice_slope slope = tern__dice_slope_of(back, sample * p->c.channels + k);
        element e = element_at(p, sample, k, i, norm);
        sum += e.p * rise(p, &slope, &e);
    }
    return sum;
}

static double slope_at(const problem *p, const tern__dice_slope *slope, const element *e, double mean)
{
    if (!e->counts) return 0;
    double d = rise(p, slope, e);
    if (p->attr->probabilities) return d;
    d = p->attr->classes ? e->p * (d - mean) : d * e->p * (1 - e->p);
    return d + slope->entropy * (e->p - e->t);
}

int tern__reference_dice_loss_grad(const tern__call *call)
{
    problem p = dice_problem_of(call, 1);
    tern__dice_back back = tern__dice_back_of(call);
    for (int64_t n = 0; n < p.c.samples * p.c.inner; n++) {
        int64_t sample = n / p.c.inner, i = n % p.c.inner;
        double norm = log_sum(&p, sample, i), mean = mean_rise(&p, &back, sample, i, norm);
        for (int64_t k = 0; k < p.c.channels; k++) {
            int64_t channel = sample * p.c.channels + k;
            tern__dice_slope slope = tern__dice_slope_of(&back, channel);
            element e = element_at(&p, sample, k, i, norm);
            tern__reference_put(call, 0, channel * p.c.inner + i, slope_at(&p, &slope, &e, mean));
        }
    }
    return TERN_OK;
}
