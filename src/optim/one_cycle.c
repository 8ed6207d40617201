/* one_cycle.c - the one-cycle schedule: the rate rises to its maximum and falls below its start, and the
 * momentum does the opposite. */
#include "optim/schedule.h"

#include "base/opts.h"

#include <math.h>

tern_one_cycle_opts tern_one_cycle_defaults(void)
{
    return (tern_one_cycle_opts){.size = sizeof(tern_one_cycle_opts),
                                 .pct_start = 0.3,
                                 .cycle_momentum = true,
                                 .base_momentum = 0.85,
                                 .max_momentum = 0.95,
                                 .div_factor = 25,
                                 .final_div_factor = 1e4};
}

/* A turning point: the rate as a share of the maximum, and the momentum. */
typedef struct turn {
    double t, rate, momentum;
} turn;

enum { TURNS = 4 };

static int list_turns(const tern_schedule *s, turn turns[TURNS])
{
    const tern_one_cycle_opts *o = &s->cycle;
    double rise = o->pct_start * (double)s->total, first = 1 / o->div_factor;
    int count = 0;
    turns[count++] = (turn){0, first, o->max_momentum};
    turns[count++] = (turn){rise - 1, 1, o->base_momentum};
    if (o->three_phase) turns[count++] = (turn){2 * rise - 2, first, o->max_momentum};
    turns[count++] = (turn){(double)s->total - 1, first / o->final_div_factor, o->max_momentum};
    return count;
}

static double between(const tern_schedule *s, double from, double to, double share)
{
    if (s->cycle.linear) return (to - from) * share + from;
    return to + (from - to) / 2 * (1 + cos(M_PI * share));
}

/* Computes the rate and momentum at time t. A turn that is not later than the one before is skipped. */
static turn at(const tern_schedule *s, int64_t t)
{
    turn turns[TURNS];
    int last = list_turns(s, turns) - 1, next = 1;
    double now = TERN__MIN((double)t, (double)(s->total - 1));
    while (next < last && now > turns[next].t) next++;
    const turn *a = &turns[next - 1], *b = &turns[next];
    double share = b->t > a->t ? (now - a->t) / (b->t - a->t) : 1;
    return (turn){now, between(s, a->rate, b->rate, share), between(s, a->momentum, b->momentum, share)};
}

static double one_cycle_rate_at(const tern_schedule *s, int64_t t, int group, double rate)
{
    (void)group;
    return rate * at(s, t).rate;
}

static double momentum_at(const tern_schedule *s, int64_t t)
{
    return s->cycle.cycle_momentum ? at(s, t).momentum : NAN;
}

static void one_cycle_describe(const tern_schedule *s, tern_object *dict, tern_error *err)
{
    tern_object *largest = tern_object_list(err);
    for (int g = 0; g < s->optim->group_count; g++)
        tern_object_append(largest, tern_object_float(s->optim->groups[g].lr, err), err);
    tern_object_set(dict, "max_lrs", largest, err);
    tern_object_set(dict, "total_steps", tern_object_int(s->total, err), err);
    tern_object_set(dict, "cycle_momentum", tern_object_bool(s->cycle.cycle_momentum, err), err);
}

const tern__schedule_kind tern__one_cycle_kind = {
    .rate = one_cycle_rate_at, .momentum = momentum_at, .describe = one_cycle_describe};

static int one_cycle_check(const char *func, int64_t total, const tern_one_cycle_opts *o, tern_error *err)
{
    if (total < 1)
        return tern__error_set(err, func, TERN_E_RANGE, "expected total >= 1, got %lld", (long long)total);
    if (!(o->pct_start >= 0 && o->pct_start <= 1))
        return tern__error_set(err, func, TERN_E_RANGE, "expected pct_start from 0 to 1, got %g",
                               o->pct_start);
    if (!(o->div_factor > 0) || !(o->final_div_factor > 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "expected div_factor and final_div_factor > 0, got %g and %g", o->div_factor,
                               o->final_div_factor);
    if (!(o->base_momentum >= 0 && o->base_momentum < 1) || !(o->max_momentum >= 0 && o->max_momentum < 1))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "expected base_momentum and max_momentum from 0 to below 1, got %g and %g",
                               o->base_momentum, o->max_momentum);
    return TERN_OK;
}

/* With a momentum of 0 there is no state for a later momentum to work on; with a beta1 of 0 there is. */
static int check_momentum(const char *func, const tern_optim *optim, tern_error *err)
{
    const tern__option *option = tern__schedule_momentum(optim);
    for (int g = 0; g < optim->group_count; g++) {
        const char *opts = (const char *)&optim->groups[g].opts;
        if (option && (option->kind == TERN__OPTION_PAIR || *(const double *)(opts + option->offset) > 0))
            continue;
        return tern__error_set(err, func, TERN_E_INVALID,
                               "group %d of %s has no momentum to cycle: give it one > 0, or set "
                               "cycle_momentum to false",
                               g, optim->rule->name);
    }
    return TERN_OK;
}

tern_schedule *tern_one_cycle_schedule_new(tern_optim *optim, tern_unit unit, int64_t total,
                                           const tern_one_cycle_opts *opts, tern_error *err)
{
    tern_one_cycle_opts o = tern_one_cycle_defaults();
    if (tern__schedule_check(__func__, optim, unit, err) ||
        tern__opts_read(&o, sizeof(o), opts, __func__, err) || one_cycle_check(__func__, total, &o, err) ||
        (o.cycle_momentum && check_momentum(__func__, optim, err)))
        return NULL;
    tern_schedule like = {.optim = optim,
                          .unit = unit,
                          .kind = &tern__one_cycle_kind,
                          .total = total,
                          .done = total,
                          .cycle = o};
    return tern__schedule_new(__func__, &like, err);
}
