/* schedule.c - a schedule is a formula of t, the number of steps or epochs so far. The optimizer keeps a list
 * of those that are alive, and the product of what they say now. */
#include "optim/optim.h"

#include <tern/schedule.h>

#include <math.h>
#include <string.h>

struct tern_schedule {
    tern_optim *optim; /* borrowed             */
    tern_schedule *next;
    tern_unit unit;
    double (*formula)(const tern_schedule *s);
    double gamma, start, end;
    int64_t every, warm_up, total;
    int64_t *milestones;
    int milestone_count;
    int64_t t;
    int64_t done; /* the last t at which a rate falls; 0 for a schedule that has none */
    bool asked;   /* whether the unit can be right                                    */
};

/* ---- formulas ---- */

static double step_formula(const tern_schedule *s)
{
    return pow(s->gamma, (double)(s->t / s->every));
}

static double multi_step_formula(const tern_schedule *s)
{
    int passed = 0;
    while (passed < s->milestone_count && s->milestones[passed] <= s->t) passed++;
    return pow(s->gamma, passed);
}

static double exponential_formula(const tern_schedule *s)
{
    return pow(s->gamma, (double)s->t);
}

static double linear_formula(const tern_schedule *s)
{
    return s->start + (s->end - s->start) * (double)TERN__MIN(s->t, s->total) / (double)s->total;
}

static double cosine_formula(const tern_schedule *s)
{
    if (s->t < s->warm_up) return (double)(s->t + 1) / (double)s->warm_up;
    if (s->t >= s->total) return 0;
    return (1 + cos(M_PI * (double)(s->t - s->warm_up) / (double)(s->total - s->warm_up))) / 2;
}

/* ---- life ---- */

/* What all schedules check: TERN_OK or a negative status. */
static int check(const char *func, const tern_optim *optim, tern_unit unit, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!optim) return tern__error_set(err, func, TERN_E_INVALID, "the optimizer is NULL");
    if (unit != TERN_UNIT_STEPS && unit != TERN_UNIT_EPOCHS)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "unit %d: expected TERN_UNIT_STEPS or TERN_UNIT_EPOCHS", (int)unit);
    return TERN_OK;
}

static int check_gamma(const char *func, double gamma, tern_error *err)
{
    if (gamma >= 0) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "expected gamma >= 0, got %g", gamma);
}

void tern__schedules_apply(tern_optim *optim)
{
    for (int g = 0; g < optim->group_count; g++) {
        double rate = optim->groups[g].lr;
        for (const tern_schedule *s = optim->schedules; s; s = s->next) rate *= s->formula(s);
        optim->groups[g].rate = rate;
    }
}

static tern_schedule *new_schedule(const char *func, const tern_schedule *like, tern_error *err)
{
    tern_schedule *s = tern__alloc(sizeof(*s), func, err);
    if (!s) return NULL;
    *s = *like;
    tern_schedule **end = &s->optim->schedules;
    while (*end) end = &(*end)->next;
    *end = s;
    tern__schedules_apply(s->optim);
    return s;
}

tern_schedule *tern_step_schedule_new(tern_optim *optim, tern_unit unit, int64_t every, double gamma,
                                      tern_error *err)
{
    if (check(__func__, optim, unit, err) || check_gamma(__func__, gamma, err)) return NULL;
    if (every < 1) {
        tern__error_set(err, __func__, TERN_E_RANGE, "expected every >= 1, got %lld", (long long)every);
        return NULL;
    }
    tern_schedule like = {
        .optim = optim, .unit = unit, .formula = step_formula, .every = every, .gamma = gamma};
    return new_schedule(__func__, &like, err);
}

static int check_milestones(const char *func, int count, const int64_t *milestones, tern_error *err)
{
    if (count < 1 || !milestones)
        return tern__error_set(err, func, TERN_E_INVALID, "expected at least one milestone, got %d",
                               milestones ? count : 0);
    for (int i = 0; i < count; i++)
        if (milestones[i] <= (i ? milestones[i - 1] : -1))
            return tern__error_set(err, func, TERN_E_RANGE,
                                   "milestone %d is %lld: expected numbers from 0 on that rise", i,
                                   (long long)milestones[i]);
    return TERN_OK;
}

tern_schedule *tern_multi_step_schedule_new(tern_optim *optim, tern_unit unit, int count,
                                            const int64_t *milestones, double gamma, tern_error *err)
{
    if (check(__func__, optim, unit, err) || check_gamma(__func__, gamma, err) ||
        check_milestones(__func__, count, milestones, err))
        return NULL;
    size_t bytes = (size_t)count * sizeof(*milestones);
    int64_t *copy = tern__alloc(bytes, __func__, err);
    if (!copy) return NULL;
    memcpy(copy, milestones, bytes);
    tern_schedule like = {.optim = optim,
                          .unit = unit,
                          .formula = multi_step_formula,
                          .gamma = gamma,
                          .milestones = copy,
                          .milestone_count = count,
                          .done = copy[count - 1]};
    tern_schedule *schedule = new_schedule(__func__, &like, err);
    if (!schedule) tern__free(copy);
    return schedule;
}

tern_schedule *tern_exponential_schedule_new(tern_optim *optim, tern_unit unit, double gamma, tern_error *err)
{
    if (check(__func__, optim, unit, err) || check_gamma(__func__, gamma, err)) return NULL;
    tern_schedule like = {.optim = optim, .unit = unit, .formula = exponential_formula, .gamma = gamma};
    return new_schedule(__func__, &like, err);
}

tern_schedule *tern_linear_schedule_new(tern_optim *optim, tern_unit unit, double start, double end,
                                        int64_t total, tern_error *err)
{
    if (check(__func__, optim, unit, err)) return NULL;
    if (!(start >= 0) || !(end >= 0) || total < 1) {
        tern__error_set(err, __func__, TERN_E_RANGE,
                        "from %g to %g in %lld: expected start and end >= 0 and total > 0", start, end,
                        (long long)total);
        return NULL;
    }
    /* A warm-up in steps is over before the first epoch is, and rightly so. */
    tern_schedule like = {.optim = optim,
                          .unit = unit,
                          .formula = linear_formula,
                          .start = start,
                          .end = end,
                          .total = total,
                          .done = end < start ? total : 0};
    return new_schedule(__func__, &like, err);
}

tern_schedule *tern_cosine_schedule_new(tern_optim *optim, tern_unit unit, int64_t warm_up, int64_t total,
                                        tern_error *err)
{
    if (check(__func__, optim, unit, err)) return NULL;
    if (total < 1 || warm_up < 0 || warm_up > total) {
        tern__error_set(err, __func__, TERN_E_RANGE,
                        "warm-up of %lld in %lld: expected 0 <= warm-up <= total and total > 0",
                        (long long)warm_up, (long long)total);
        return NULL;
    }
    tern_schedule like = {.optim = optim,
                          .unit = unit,
                          .formula = cosine_formula,
                          .warm_up = warm_up,
                          .total = total,
                          .done = total};
    return new_schedule(__func__, &like, err);
}

void tern_schedule_free(tern_schedule *schedule)
{
    if (!schedule) return;
    tern_schedule **link = &schedule->optim->schedules;
    while (*link != schedule) link = &(*link)->next;
    *link = schedule->next;
    tern__schedules_apply(schedule->optim);
    tern__free(schedule->milestones);
    tern__free(schedule);
}

/* ---- time ---- */

static void advance(tern_schedule *schedule, tern_unit unit)
{
    if (!schedule || schedule->unit != unit) return;
    schedule->t++;
    tern__schedules_apply(schedule->optim);
}

void tern_schedule_step(tern_schedule *schedule)
{
    advance(schedule, TERN_UNIT_STEPS);
}

static void ask_unit(tern_schedule *s)
{
    if (!s || s->asked) return;
    if (s->unit == TERN_UNIT_STEPS && s->done && s->t > s->done)
        tern__log(TERN_LOG_WARN,
                  "a schedule in steps ended at %lld of the first epoch's %lld; was it meant in epochs?",
                  (long long)s->done, (long long)s->t);
    s->asked = true;
}

void tern_schedule_epoch(tern_schedule *schedule)
{
    ask_unit(schedule);
    advance(schedule, TERN_UNIT_EPOCHS);
}
