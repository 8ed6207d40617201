/* schedule.c - the code that all schedules share. An optimizer has a list of its live schedules; each gets
 * the rate that those before it have computed. */
#include "optim/schedule.h"

#include <math.h>
#include <string.h>

/* ---- rates ---- */

const tern__option *tern__schedule_momentum(const tern_optim *optim)
{
    const tern__option *momentum = tern__option_find(optim->rule, "momentum");
    return momentum ? momentum : tern__option_find(optim->rule, "betas");
}

/* Sets a group's momentum; NAN restores the group's own. */
static void set_momentum(tern_optim *optim, int g, double momentum)
{
    tern__optim_group *group = &optim->groups[g];
    if (isnan(momentum) && !group->is_cycled) return;
    double *now = (double *)((char *)&group->opts + tern__schedule_momentum(optim)->offset);
    if (!group->is_cycled) group->momentum = *now;
    group->is_cycled = !isnan(momentum);
    *now = group->is_cycled ? momentum : group->momentum;
}

void tern__schedules_apply(tern_optim *optim)
{
    for (int g = 0; g < optim->group_count; g++) {
        double rate = optim->groups[g].lr, momentum = NAN;
        for (const tern_schedule *s = optim->schedules; s; s = s->next) {
            rate = s->kind->rate(s, s->t, g, rate);
            double own = s->kind->momentum ? s->kind->momentum(s, s->t) : NAN;
            if (!isnan(own)) momentum = own;
        }
        optim->groups[g].rate = rate;
        set_momentum(optim, g, momentum);
    }
}

/* ---- life ---- */

int tern__schedule_check(const char *func, const tern_optim *optim, tern_unit unit, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!optim) return tern__error_set(err, func, TERN_E_INVALID, "the optimizer is NULL");
    if (unit != TERN_UNIT_STEPS && unit != TERN_UNIT_EPOCHS)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "unit %d: expected TERN_UNIT_STEPS or TERN_UNIT_EPOCHS", (int)unit);
    return TERN_OK;
}

int tern__milestones_copy(const char *func, int count, const int64_t *milestones, int64_t least,
                          int64_t **copy, tern_error *err)
{
    for (int i = 0; i < count; i++)
        if (milestones[i] < (i ? milestones[i - 1] + 1 : least))
            return tern__error_set(err, func, TERN_E_RANGE,
                                   "milestone %d is %lld: expected numbers from %lld on that rise", i,
                                   (long long)milestones[i], (long long)least);
    size_t bytes = (size_t)count * sizeof(*milestones);
    *copy = tern__alloc(bytes, func, err);
    if (!*copy) return TERN_E_MEMORY;
    if (bytes) memcpy(*copy, milestones, bytes);
    return TERN_OK;
}

tern_schedule *tern__schedule_new(const char *func, const tern_schedule *like, tern_error *err)
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

void tern__schedule_unlink(tern_schedule *schedule)
{
    tern_schedule **link = &schedule->optim->schedules;
    while (*link && *link != schedule) link = &(*link)->next;
    if (*link) *link = schedule->next;
    schedule->next = NULL;
    tern__schedules_apply(schedule->optim);
}

void tern_schedule_free(tern_schedule *schedule)
{
    if (!schedule) return;
    tern__schedule_unlink(schedule);
    for (int i = 0; schedule->parts && i <= schedule->count; i++) tern_schedule_free(schedule->parts[i]);
    tern__free(schedule->parts);
    tern__free(schedule->milestones);
    tern__free(schedule);
}

/* ---- time ---- */

/* A plateau counts metrics instead of time, and a sequence sets the time of its parts. */
static bool counts(const tern_schedule *s, tern_unit unit)
{
    return s && s->unit == unit && !s->sequence && s->kind != &tern__plateau_kind;
}

static void schedule_advance(tern_schedule *schedule, tern_unit unit)
{
    if (!counts(schedule, unit)) return;
    schedule->t++;
    tern__schedules_apply(schedule->optim);
}

void tern_schedule_step(tern_schedule *schedule)
{
    schedule_advance(schedule, TERN_UNIT_STEPS);
}

static void ask_unit(tern_schedule *s)
{
    if (!s || s->asked) return;
    if (counts(s, TERN_UNIT_STEPS) && s->done && s->t > s->done)
        tern__log(TERN_LOG_WARN,
                  "a schedule in steps ended at %lld of the first epoch's %lld; was it meant in epochs?",
                  (long long)s->done, (long long)s->t);
    s->asked = true;
}

void tern_schedule_epoch(tern_schedule *schedule)
{
    ask_unit(schedule);
    schedule_advance(schedule, TERN_UNIT_EPOCHS);
}

double tern_lr_scale(double lr, double k, double p)
{
    return k > 0 ? lr * pow(k, p) : NAN;
}
