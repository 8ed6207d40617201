/* plateau.c - the plateau schedule: lowers the rate when a metric has stopped improving. */
#include "optim/schedule.h"

#include "base/opts.h"
#include "comm/group.h"

#include <math.h>

tern_plateau_opts tern_plateau_defaults(void)
{
    return (tern_plateau_opts){
        .size = sizeof(tern_plateau_opts), .factor = 0.1, .patience = 10, .threshold = 1e-4, .eps = 1e-8};
}

/* Applies the reductions one after the other, as they were made, until the rate no longer changes. */
static double plateau_rate_at(const tern_schedule *s, int64_t t, int group, double rate)
{
    (void)t;
    (void)group;
    for (int64_t i = 0; i < s->state.reductions; i++) {
        double lower = fmax(rate * s->plateau.factor, s->plateau.min);
        if (!(rate - lower > s->plateau.eps)) break;
        rate = lower;
    }
    return rate;
}

static void plateau_describe(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    const tern_plateau_opts *o = &s->plateau;
    tern_object *least = tern_object_list(err);
    for (int g = 0; g < s->optim->group_count; g++)
        tern_object_append(least, tern_object_float(o->min, err), err);
    tern_object_set(dict, "factor", tern_object_float(o->factor, err), err);
    tern_object_set(dict, "min_lrs", least, err);
    tern_object_set(dict, "patience", tern_object_int(o->patience, err), err);
    tern_object_set(dict, "cooldown", tern_object_int(o->cooldown, err), err);
    tern_object_set(dict, "cooldown_counter", tern_object_int(s->state.cooldown, err), err);
    tern_object_set(dict, "mode", tern_object_string(o->maximize ? "max" : "min", err), err);
    tern_object_set(dict, "threshold", tern_object_float(o->threshold, err), err);
    tern_object_set(dict, "threshold_mode", tern_object_string(o->absolute ? "abs" : "rel", err), err);
    tern_object_set(dict, "best", tern_object_float(s->state.best, err), err);
    tern_object_set(dict, "num_bad_epochs", tern_object_int(s->state.bad, err), err);
    tern_object_set(dict, "eps", tern_object_float(o->eps, err), err);
    tern_object_set(dict, "num_reductions", tern_object_int(s->state.reductions, err), err);
}

void tern__plateaus_restart(tern_optim *optim)
{
    for (tern_schedule *s = optim->schedules; s; s = s->next)
        if (s->kind == &tern__plateau_kind) s->state.reductions = 0;
}

const tern__schedule_kind tern__plateau_kind = {.rate = plateau_rate_at, .describe = plateau_describe};

static int plateau_check(const char *func, const tern_plateau_opts *o, tern_error *err)
{
    if (!(o->factor >= 0 && o->factor < 1))
        return tern__error_set(err, func, TERN_E_RANGE, "expected factor from 0 to below 1, got %g",
                               o->factor);
    if (o->patience < 0 || o->cooldown < 0)
        return tern__error_set(err, func, TERN_E_RANGE,
                               "expected patience and cooldown >= 0, got %lld and %lld",
                               (long long)o->patience, (long long)o->cooldown);
    if (!(o->threshold >= 0) || !(o->min >= 0) || !isfinite(o->min) || !(o->eps >= 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "expected threshold, min and eps >= 0 and a finite min, got %g, %g and %g",
                               o->threshold, o->min, o->eps);
    return TERN_OK;
}

tern_schedule *tern_plateau_schedule_new(tern_optim *optim, const tern_plateau_opts *opts, tern_error *err)
{
    tern_plateau_opts o = tern_plateau_defaults();
    if (tern__schedule_check(__func__, optim, TERN_UNIT_EPOCHS, err) ||
        tern__opts_read(&o, sizeof(o), opts, __func__, err) || plateau_check(__func__, &o, err))
        return NULL;
    tern_schedule like = {.optim = optim,
                          .unit = TERN_UNIT_EPOCHS,
                          .kind = &tern__plateau_kind,
                          .plateau = o,
                          .state.best = o.maximize ? -INFINITY : INFINITY};
    return tern__schedule_new(__func__, &like, err);
}

/* Whether the metric is better than the best; a NaN never is. */
static bool is_better(const tern_plateau_opts *o, double metric, double best)
{
    double by = o->absolute ? o->threshold : 0, share = o->absolute ? 0 : o->threshold;
    return o->maximize ? metric > best * (1 + share) + by : metric < best * (1 - share) - by;
}

static void judge(tern_schedule *s, double metric)
{
    tern__plateau *state = &s->state;
    bool better = is_better(&s->plateau, metric, state->best);
    s->t++;
    if (better) state->best = metric;
    state->bad = better ? 0 : state->bad + 1;
    if (state->cooldown > 0) {
        state->cooldown--;
        state->bad = 0;
    }
    if (state->bad <= s->plateau.patience) return;
    state->reductions++;
    state->cooldown = s->plateau.cooldown;
    state->bad = 0;
}

int tern_schedule_metric(tern_schedule *schedule, double metric, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!schedule || schedule->kind != &tern__plateau_kind)
        return tern__error_set(err, __func__, TERN_E_INVALID, "expected a plateau schedule, got %s",
                               schedule ? "another" : "NULL");
    const tern__seal *seal = schedule->optim->seal;
    int status = seal->attached ? tern_broadcast(seal->group, &metric, 1, TERN_F64, 0, err) : TERN_OK;
    if (status) return status;
    judge(schedule, metric);
    tern__schedules_apply(schedule->optim);
    return TERN_OK;
}
