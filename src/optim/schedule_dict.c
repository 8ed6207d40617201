/* schedule_dict.c - a schedule's state in torch's form. */
#include "optim/schedule.h"

#include "tensor/field.h"

#include <math.h>
#include <string.h>

/* ---- saving ---- */

static tern_object *rates_of(const tern_optim *optim, bool now, double factor, tern_error *err)
{
    tern_object *list = tern_object_list(err);
    for (int g = 0; g < optim->group_count; g++) {
        const tern__optim_group *group = &optim->groups[g];
        tern_object_append(list, tern_object_float(now ? group->rate : group->lr * factor, err), err);
    }
    return list;
}

static tern_object *dict_of(const tern_schedule *s, int64_t t, tern_error *err);

/* Writes the parts' states. A part that has ended keeps the time of its end; one that has not begun is at -1.
 */
static void describe_parts(const tern_schedule *s, int64_t t, tern_object *dict, tern_error *err)
{
    tern_object *milestones = tern_object_list(err), *parts = tern_object_list(err);
    for (int i = 0; i <= s->count; i++) {
        int64_t since = i ? s->milestones[i - 1] : 0, now = TERN__MAX(t - since, -1);
        if (i < s->count) {
            now = TERN__MIN(now, s->milestones[i] - since - 1);
            tern_object_append(milestones, tern_object_int(s->milestones[i], err), err);
        }
        tern_object_append(parts, dict_of(s->parts[i], now, err), err);
    }
    tern_object_set(dict, "_milestones", milestones, err);
    tern_object_set(dict, "_schedulers", parts, err);
}

/* Returns the ratio of torch's base_lrs to the groups' own rates. */
static double base_factor(const tern_schedule *s)
{
    return s->kind == &tern__one_cycle_kind ? 1 / s->cycle.div_factor : 1;
}

static tern_object *dict_of(const tern_schedule *s, int64_t t, tern_error *err)
{
    tern_object *dict = tern_object_dict(err);
    tern_schedule now = *s;
    now.t = TERN__MAX(t, 0);
    if (s->kind->describe) s->kind->describe(&now, dict, err);
    if (s->kind == &tern__sequence_kind) describe_parts(s, t, dict, err);
    tern_object_set(dict, "base_lrs", rates_of(s->optim, false, base_factor(s), err), err);
    tern_object_set(dict, "last_epoch", tern_object_int(t, err), err);
    tern_object_set(dict, "_step_count", tern_object_int(t + 1, err), err);
    tern_object_set(dict, "_last_lr", rates_of(s->optim, true, 1, err), err);
    return dict;
}

tern_object *tern_schedule_state_dict(const tern_schedule *schedule, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e)) return NULL;
    if (!schedule) {
        tern__error_set(e, __func__, TERN_E_INVALID, "the schedule is NULL");
        return NULL;
    }
    tern_object *dict = dict_of(schedule, schedule->t, e);
    if (!tern__is_set(e)) return dict;
    tern_object_free(dict);
    return NULL;
}

/* ---- loading ---- */

static const char load[] = "tern_schedule_state_dict_load";

static int read_whole(const tern_object *state, const char *key, int64_t *value, tern_error *err)
{
    return tern__field_int(load, state, key, 0, INT64_C(1) << 53, value, err);
}

/* Torch's state has no number of reductions: *plateau keeps its own, and with it the present rates. */
static int read_plateau(const tern_object *state, tern__plateau *plateau, tern_error *err)
{
    int status = tern__field_real(load, state, NULL, "best", -INFINITY, INFINITY, &plateau->best, err);
    if (!status) status = read_whole(state, "num_bad_epochs", &plateau->bad, err);
    if (!status) status = read_whole(state, "cooldown_counter", &plateau->cooldown, err);
    if (!status && tern_object_get(state, "num_reductions"))
        status = read_whole(state, "num_reductions", &plateau->reductions, err);
    return status;
}

static int check_rates(const tern_optim *optim, const tern_object *rates, const char *key, tern_error *err)
{
    int64_t count = tern_object_count(rates);
    tern_object_kind kind = tern_object_kind_get(rates);
    if (kind != TERN_OBJECT_LIST && kind != TERN_OBJECT_TUPLE)
        return tern__error_set(err, load, TERN_E_DTYPE, "\"%s\" is a %s, expected a list", key,
                               tern_object_kind_name(kind));
    if (count != optim->group_count)
        return tern__error_set(err, load, TERN_E_INVALID,
                               "\"%s\" has %lld rates, but the optimizer %d groups", key, (long long)count,
                               optim->group_count);
    for (int64_t g = 0; g < count; g++) {
        double rate = NAN;
        const tern_object *item = tern_object_at(rates, g);
        if (!tern__object_number(item, &rate))
            return tern__error_set(err, load, TERN_E_DTYPE, "\"%s\"[%lld] is a %s, expected a number", key,
                                   (long long)g, tern_object_kind_name(tern_object_kind_get(item)));
        if (!(rate >= 0))
            return tern__error_set(err, load, TERN_E_RANGE, "\"%s\"[%lld] is %g, expected a rate >= 0", key,
                                   (long long)g, rate);
    }
    return TERN_OK;
}

static int check_parts(const tern_schedule *s, const tern_object *state, tern_error *err)
{
    const tern_object *parts = tern_object_get(state, "_schedulers");
    if (!parts) return tern__error_set(err, load, TERN_E_INVALID, "there is no \"_schedulers\"");
    if (tern_object_count(parts) == s->count + 1) return TERN_OK;
    return tern__error_set(err, load, TERN_E_INVALID, "\"_schedulers\" has %lld parts, expected %d",
                           (long long)tern_object_count(parts), s->count + 1);
}

/* The contents of a state dict, read before anything is changed. */
typedef struct reading {
    int64_t t;
    tern__plateau plateau;
    const tern_schedule *from; /* the schedule with these rates */
    const tern_object *rates;
    const char *key;
} reading;

/* In torch's sequences the parts have the rates. */
static void find_source(const tern_schedule *s, const tern_object *state, reading *r)
{
    bool asks_part = s->parts && !tern_object_get(state, "base_lrs");
    r->from = asks_part ? s->parts[0] : s;
    if (asks_part) state = tern_object_at(tern_object_get(state, "_schedulers"), 0);
    bool is_largest = r->from->kind == &tern__one_cycle_kind && tern_object_get(state, "max_lrs");
    r->key = is_largest ? "max_lrs" : "base_lrs";
    r->rates = tern_object_get(state, r->key);
}

static int schedule_dict_read_state(const tern_schedule *s, const tern_object *state, reading *r,
                                    tern_error *err)
{
    r->plateau = s->state;
    int status = read_whole(state, "last_epoch", &r->t, err);
    if (!status && s->kind == &tern__sequence_kind) status = check_parts(s, state, err);
    if (!status && s->kind == &tern__plateau_kind) status = read_plateau(state, &r->plateau, err);
    if (status) return status;
    find_source(s, state, r);
    return r->rates ? check_rates(s->optim, r->rates, r->key, err) : TERN_OK;
}

static void schedule_dict_take(tern_schedule *s, const reading *r)
{
    bool is_first = r->from->kind == &tern__one_cycle_kind && !strcmp(r->key, "base_lrs");
    for (int g = 0; r->rates && g < s->optim->group_count; g++) {
        double rate = 0;
        tern__object_number(tern_object_at(r->rates, g), &rate);
        s->optim->groups[g].lr = is_first ? rate * r->from->cycle.div_factor : rate;
    }
    s->t = r->t;
    s->state = r->plateau;
    tern__schedules_apply(s->optim);
}

int tern_schedule_state_dict_load(tern_schedule *schedule, const tern_object *state, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e)) return e->code;
    if (!schedule || !state || schedule->sequence)
        return tern__error_set(e, load, TERN_E_INVALID, "%s",
                               schedule && state ? "the schedule is a part: load its sequence"
                                                 : "the schedule or the state is NULL");
    reading r = {0};
    int status = schedule_dict_read_state(schedule, state, &r, e);
    if (!status) schedule_dict_take(schedule, &r);
    return status;
}
