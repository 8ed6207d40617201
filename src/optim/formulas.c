/* formulas.c - the schedules that are a closed formula of t and a few numbers. */
#include "optim/schedule.h"

#include <math.h>

/* ---- formulas ---- */

static double constant_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    (void)group;
    return t < s->total ? rate * s->start : rate;
}

static double step_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    (void)group;
    return rate * pow(s->gamma, (double)(t / s->every));
}

static double multi_step_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    int passed = 0;
    (void)group;
    while (passed < s->count && s->milestones[passed] <= t) passed++;
    return rate * pow(s->gamma, passed);
}

static double exponential_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    (void)group;
    return rate * pow(s->gamma, (double)t);
}

static double linear_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    (void)group;
    return rate * (s->start + (s->end - s->start) * (double)TERN__MIN(t, s->total) / (double)s->total);
}

static double polynomial_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    (void)group;
    return rate * pow(1 - (double)TERN__MIN(t, s->total) / (double)s->total, s->power);
}

static double half_cosine(int64_t t, int64_t total)
{
    return (1 + cos(M_PI * (double)t / (double)total)) / 2;
}

static double cosine_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    (void)group;
    if (t < s->warm_up) return rate * ((double)(t + 1) / (double)s->warm_up);
    if (t >= s->total) return s->min;
    return s->min + (rate - s->min) * half_cosine(t - s->warm_up, s->total - s->warm_up);
}

static double annealing_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    (void)group;
    return s->min + (rate - s->min) * half_cosine(t, s->total);
}

/* Returns the length of t's period; *within is the time since it began. The last period that fits into an
 * int64_t does not end. */
static int64_t period_of(const tern_schedule *s, int64_t t, int64_t *within)
{
    int64_t period = s->total;
    if (s->times == 1) {
        *within = t % period;
        return period;
    }
    for (; t >= period && period <= INT64_MAX / s->times; period *= s->times) t -= period;
    *within = t;
    return period;
}

static double restarts_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    int64_t within, period = period_of(s, t, &within);
    (void)group;
    return s->min + (rate - s->min) * half_cosine(within, period);
}

static double lambda_rate(const tern_schedule *s, int64_t t, int group, double rate)
{
    return rate * s->fn(t, group, s->ctx);
}

/* ---- their items in torch's state dicts ---- */

static void put_real(tern_object *dict, const char *key, double value, tern_error *err)
{
    tern_object_set(dict, key, tern_object_float(value, err), err);
}

static void put_whole(tern_object *dict, const char *key, int64_t value, tern_error *err)
{
    tern_object_set(dict, key, tern_object_int(value, err), err);
}

static void describe_constant(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    put_real(dict, "factor", s->start, err);
    put_whole(dict, "total_iters", s->total, err);
}

static void describe_step(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    put_whole(dict, "step_size", s->every, err);
    put_real(dict, "gamma", s->gamma, err);
}

/* Leaves out the milestones, which are a Counter in torch. */
static void describe_gamma(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    put_real(dict, "gamma", s->gamma, err);
}

static void describe_linear(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    put_real(dict, "start_factor", s->start, err);
    put_real(dict, "end_factor", s->end, err);
    put_whole(dict, "total_iters", s->total, err);
}

static void describe_polynomial(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    put_whole(dict, "total_iters", s->total, err);
    put_real(dict, "power", s->power, err);
}

static void describe_annealing(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    put_whole(dict, "T_max", s->total, err);
    put_real(dict, "eta_min", s->min, err);
}

static void describe_restarts(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    int64_t within, period = period_of(s, s->t, &within);
    put_whole(dict, "T_0", s->total, err);
    put_whole(dict, "T_i", period, err);
    put_whole(dict, "T_mult", s->times, err);
    put_real(dict, "eta_min", s->min, err);
    put_whole(dict, "T_cur", within, err);
}

static void describe_lambda(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    tern_object *list = tern_object_list(err);
    for (int g = 0; g < s->optim->group_count; g++) tern_object_append(list, tern_object_none(err), err);
    tern_object_set(dict, "lr_lambdas", list, err);
}

static const tern__schedule_kind constant = {.rate = constant_rate, .describe = describe_constant},
                                 steps = {.rate = step_rate, .describe = describe_step},
                                 multi_step = {.rate = multi_step_rate, .describe = describe_gamma},
                                 exponential = {.rate = exponential_rate, .describe = describe_gamma},
                                 linear = {.rate = linear_rate, .describe = describe_linear},
                                 polynomial = {.rate = polynomial_rate, .describe = describe_polynomial},
                                 cosine = {.rate = cosine_rate},
                                 annealing = {.rate = annealing_rate, .describe = describe_annealing},
                                 restarts = {.rate = restarts_rate, .describe = describe_restarts},
                                 lambda = {.rate = lambda_rate, .describe = describe_lambda};

/* ---- making ---- */

static int check_real(const char *func, const char *name, double value, tern_error *err)
{
    if (value >= 0) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "expected %s >= 0, got %g", name, value);
}

static int check_whole(const char *func, const char *name, int64_t value, tern_error *err)
{
    if (value >= 1) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "expected %s >= 1, got %lld", name, (long long)value);
}

tern_schedule *tern_constant_schedule_new(tern_optim *optim, tern_unit unit, double factor, int64_t total,
                                          tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err) || check_real(__func__, "factor", factor, err) ||
        check_whole(__func__, "total", total, err))
        return NULL;
    tern_schedule like = {.optim = optim, .unit = unit, .kind = &constant, .start = factor, .total = total};
    return tern__schedule_new(__func__, &like, err);
}

tern_schedule *tern_step_schedule_new(tern_optim *optim, tern_unit unit, int64_t every, double gamma,
                                      tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err) || check_real(__func__, "gamma", gamma, err) ||
        check_whole(__func__, "every", every, err))
        return NULL;
    tern_schedule like = {.optim = optim, .unit = unit, .kind = &steps, .every = every, .gamma = gamma};
    return tern__schedule_new(__func__, &like, err);
}

tern_schedule *tern_multi_step_schedule_new(tern_optim *optim, tern_unit unit, int count,
                                            const int64_t *milestones, double gamma, tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err) || check_real(__func__, "gamma", gamma, err))
        return NULL;
    if (count < 1 || !milestones) {
        tern__error_set(err, __func__, TERN_E_INVALID, "expected at least one milestone, got %d",
                        milestones ? count : 0);
        return NULL;
    }
    int64_t *copy;
    if (tern__milestones_copy(__func__, count, milestones, 0, &copy, err)) return NULL;
    tern_schedule like = {.optim = optim,
                          .unit = unit,
                          .kind = &multi_step,
                          .gamma = gamma,
                          .milestones = copy,
                          .count = count,
                          .done = copy[count - 1]};
    tern_schedule *schedule = tern__schedule_new(__func__, &like, err);
    if (!schedule) tern__free(copy);
    return schedule;
}

tern_schedule *tern_exponential_schedule_new(tern_optim *optim, tern_unit unit, double gamma, tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err) || check_real(__func__, "gamma", gamma, err))
        return NULL;
    tern_schedule like = {.optim = optim, .unit = unit, .kind = &exponential, .gamma = gamma};
    return tern__schedule_new(__func__, &like, err);
}

tern_schedule *tern_linear_schedule_new(tern_optim *optim, tern_unit unit, double start, double end,
                                        int64_t total, tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err)) return NULL;
    if (!(start >= 0) || !(end >= 0) || total < 1) {
        tern__error_set(err, __func__, TERN_E_RANGE,
                        "from %g to %g in %lld: expected start and end >= 0 and total > 0", start, end,
                        (long long)total);
        return NULL;
    }
    /* A warm-up in steps may rightly be over before the first epoch is. */
    tern_schedule like = {.optim = optim,
                          .unit = unit,
                          .kind = &linear,
                          .start = start,
                          .end = end,
                          .total = total,
                          .done = end < start ? total : 0};
    return tern__schedule_new(__func__, &like, err);
}

tern_schedule *tern_polynomial_schedule_new(tern_optim *optim, tern_unit unit, int64_t total, double power,
                                            tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err) || check_whole(__func__, "total", total, err) ||
        check_real(__func__, "power", power, err))
        return NULL;
    tern_schedule like = {
        .optim = optim, .unit = unit, .kind = &polynomial, .total = total, .power = power, .done = total};
    return tern__schedule_new(__func__, &like, err);
}

tern_schedule *tern_cosine_schedule_new(tern_optim *optim, tern_unit unit, int64_t warm_up, int64_t total,
                                        tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err)) return NULL;
    if (total < 1 || warm_up < 0 || warm_up > total) {
        tern__error_set(err, __func__, TERN_E_RANGE,
                        "warm-up of %lld in %lld: expected 0 <= warm-up <= total and total > 0",
                        (long long)warm_up, (long long)total);
        return NULL;
    }
    tern_schedule like = {
        .optim = optim, .unit = unit, .kind = &cosine, .warm_up = warm_up, .total = total, .done = total};
    return tern__schedule_new(__func__, &like, err);
}

int tern_cosine_schedule_min_set(tern_schedule *schedule, double min, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!schedule || schedule->kind != &cosine)
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "expected a schedule of tern_cosine_schedule_new");
    if (check_real(__func__, "min", min, err)) return TERN_E_RANGE;
    schedule->min = min;
    tern__schedules_apply(schedule->optim);
    return TERN_OK;
}

tern_schedule *tern_cosine_annealing_schedule_new(tern_optim *optim, tern_unit unit, int64_t total,
                                                  double min, tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err) || check_whole(__func__, "total", total, err) ||
        check_real(__func__, "min", min, err))
        return NULL;
    tern_schedule like = {
        .optim = optim, .unit = unit, .kind = &annealing, .total = total, .min = min, .done = total};
    return tern__schedule_new(__func__, &like, err);
}

tern_schedule *tern_cosine_restarts_schedule_new(tern_optim *optim, tern_unit unit, int64_t first,
                                                 int64_t times, double min, tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err) || check_whole(__func__, "first", first, err) ||
        check_whole(__func__, "times", times, err) || check_real(__func__, "min", min, err))
        return NULL;
    tern_schedule like = {
        .optim = optim, .unit = unit, .kind = &restarts, .total = first, .times = times, .min = min};
    return tern__schedule_new(__func__, &like, err);
}

tern_schedule *tern_lambda_schedule_new(tern_optim *optim, tern_unit unit, tern_schedule_fn fn, void *ctx,
                                        tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err)) return NULL;
    if (!fn) {
        tern__error_set(err, __func__, TERN_E_INVALID, "the function is NULL");
        return NULL;
    }
    tern_schedule like = {.optim = optim, .unit = unit, .kind = &lambda, .fn = fn, .ctx = ctx};
    return tern__schedule_new(__func__, &like, err);
}
