/* state_dict_load.c - loads an optimizer's state dict, written by torch, apex or this library.
 *
 * The dict is turned into the entries of tern_optim_state_load. Its options are in force while that loads
 * them, and are undone if it fails. */
#include "optim/schedule.h"
#include "tensor/field.h"
#include "tensor/host.h"

#include <tern/state_dict.h>

#include <string.h>

static const char load[] = "tern_optim_state_dict_load";

typedef struct reading {
    tern_optim *optim;
    const tern_object *states, *saved; /* "state" and "param_groups" */
    tern__optim_group *groups;         /* the groups read from them  */
    int *numbers, count;
    int64_t *ids; /* [count] each parameter's saved number */
    tern_optim_entry *entries;
    int entry_count;
    tern_tensor *tensors; /* [entry_count] the entries' */
    double *steps;        /* [count]                    */
    bool is_reduced;      /* the rates are torch's, which its plateau has reduced already */
    tern_tensor **copies; /* [entry_count] owned        */
    tern_error *err;
} reading;

/* ---- options ---- */

static int wrong_option(const reading *r, int g, const char *name, const char *expected,
                        const tern_object *got)
{
    return tern__error_set(r->err, load, TERN_E_INVALID, "param_groups[%d][\"%s\"] is a %s, expected %s", g,
                           name, tern_object_kind_name(tern_object_kind_get(got)), expected);
}

static int read_option(const reading *r, int g, const tern__option *option, const tern_object *value)
{
    char *at = (char *)&r->groups[g].opts + option->offset;
    double pair[2];
    switch (option->kind) {
    case TERN__OPTION_REAL:
        return tern__object_number(value, (double *)at) ? TERN_OK
                                                        : wrong_option(r, g, option->name, "a number", value);
    case TERN__OPTION_BOOL:
        return tern_object_to_bool(value, (bool *)at, NULL)
                   ? wrong_option(r, g, option->name, "a bool", value)
                   : TERN_OK;
    case TERN__OPTION_PAIR:
        if (tern_object_count(value) != 2 || !tern__object_number(tern_object_at(value, 0), &pair[0]) ||
            !tern__object_number(tern_object_at(value, 1), &pair[1]))
            return wrong_option(r, g, option->name, "a tuple of two numbers", value);
        memcpy(at, pair, sizeof(pair));
        return TERN_OK;
    default: return TERN_OK;
    }
}

/* With schedules the rate is "initial_lr", from which they compute "lr". Torch's plateau writes none: it
 * reduces "lr" itself. */
static int read_rate(reading *r, int g, const tern_object *saved)
{
    const tern_object *initial = r->optim->schedules ? tern_object_get(saved, "initial_lr") : NULL;
    const char *name = initial ? "initial_lr" : "lr";
    const tern_object *value = tern_object_get(saved, name);
    double lr;
    if (!tern__object_number(value, &lr)) return wrong_option(r, g, name, "a number", value);
    if (!(lr >= 0))
        return tern__error_set(r->err, load, TERN_E_RANGE,
                               "param_groups[%d][\"%s\"] is %g, expected at least 0", g, name, lr);
    r->groups[g].lr = lr;
    r->is_reduced |= !initial;
    return TERN_OK;
}

static int members(const reading *r, int g)
{
    int count = 0;
    for (int n = 0; n < r->count; n++) count += r->optim->group_of[r->numbers[n]] == g;
    return count;
}

static int read_group(reading *r, int g)
{
    const tern_object *saved = tern_object_at(r->saved, g);
    int64_t given = tern_object_count(tern_object_get(saved, "params"));
    if (given != members(r, g))
        return tern__error_set(r->err, load, TERN_E_INVALID,
                               "loaded state dict contains a parameter group that doesn't match the size of "
                               "optimizer's group: param_groups[%d] has %lld parameters, expected %d",
                               g, (long long)given, members(r, g));
    int status = read_rate(r, g, saved);
    for (const tern__option *option = r->optim->rule->options; option->name && !status; option++) {
        const tern_object *value = tern_object_get(saved, option->name);
        if (value) status = read_option(r, g, option, value);
    }
    return status ? status : r->optim->rule->settle(load, &r->groups[g], r->err);
}

static int read_groups(reading *r)
{
    int64_t given = tern_object_count(r->saved);
    if (given != r->optim->group_count)
        return tern__error_set(
            r->err, load, TERN_E_INVALID,
            "loaded state dict has a different number of parameter groups: %lld, expected %d",
            (long long)given, r->optim->group_count);
    memcpy(r->groups, r->optim->groups, (size_t)r->optim->group_count * sizeof(*r->groups));
    int status = TERN_OK;
    for (int g = 0; g < r->optim->group_count && !status; g++) status = read_group(r, g);
    return status;
}

/* ---- state ---- */

static int read_ids(reading *r)
{
    int n = 0;
    for (int g = 0; g < r->optim->group_count; g++) {
        const tern_object *params = tern_object_get(tern_object_at(r->saved, g), "params");
        for (int64_t i = 0; i < tern_object_count(params); i++, n++) {
            const tern_object *id = tern_object_at(params, i);
            if (tern_object_to_int(id, &r->ids[n], NULL))
                return tern__error_set(r->err, load, TERN_E_INVALID,
                                       "param_groups[%d][\"params\"][%lld] is a %s, expected an int", g,
                                       (long long)i, tern_object_kind_name(tern_object_kind_get(id)));
        }
    }
    return TERN_OK;
}

/* Returns the number of the parameter that was saved as `key`, probably `guess`; -1: there is none. */
static int find_number(const reading *r, const tern_object *key, int64_t guess)
{
    int64_t id;
    if (tern_object_to_int(key, &id, NULL)) return -1;
    if (guess < r->count && r->ids[guess] == id) return (int)guess;
    for (int n = 0; n < r->count; n++)
        if (r->ids[n] == id) return n;
    return -1;
}

/* Returns the tensor in the state's dtype and row-major, copied if it is not. */
static const tern__view *fit_tensor(reading *r, const tern_tensor *given, int k)
{
    const tern__view own = tern__optim_state_view(r->optim, k), *view = &given->view;
    if (tern__tensor_check(given, load, r->err)) return NULL;
    bool same = view->dtype == own.dtype && tern__view_is_contiguous(view);
    if (same || !tern__view_same_shape(view, &own)) return view;
    tern_tensor *copy = tern__tensor_new(own.dtype, own.ndim, own.shape, r->err);
    r->copies[r->entry_count] = copy;
    return copy && !tern__host_convert(&copy->view, view, r->err) ? &copy->view : NULL;
}

static void state_dict_add_entry(reading *r, int k, const char *name, const tern__view *view)
{
    tern_tensor *tensor = &r->tensors[r->entry_count];
    tensor->view = *view;
    r->entries[r->entry_count++] = (tern_optim_entry){r->optim->seal->leaves[k]->name, name, tensor};
}

static int read_value(reading *r, int n, const char *name, const tern_object *value)
{
    int k = r->numbers[n];
    bool is_step = !strcmp(name, "step");
    if (tern_object_kind_get(value) == TERN_OBJECT_NONE) return TERN_OK;
    if (is_step ? !tern__object_number(value, &r->steps[n]) : !tern_object_to_tensor(value))
        return tern__error_set(r->err, load, TERN_E_INVALID, "state[%d][\"%s\"] is a %s, expected a %s", n,
                               name, tern_object_kind_name(tern_object_kind_get(value)),
                               is_step ? "number" : "tensor");
    tern__view step = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    step.data = &r->steps[n];
    const tern__view *view = is_step ? &step : fit_tensor(r, tern_object_to_tensor(value), k);
    if (!view) return r->err->code;
    state_dict_add_entry(r, k, name, view);
    return TERN_OK;
}

/* Whether the values are those of torch's Adagrad before its first step. */
static bool has_no_step(const tern_object *values)
{
    double step;
    return tern__object_number(tern_object_get(values, "step"), &step) && step == 0;
}

/* apex keeps the number of steps in the group. */
static int read_group_step(reading *r, int n, const tern_object *values)
{
    const tern_object *group = tern_object_at(r->saved, r->optim->group_of[r->numbers[n]]);
    const tern_object *step = tern_object_get(group, "step");
    bool lacks = tern_object_count(values) > 0 && !tern_object_get(values, "step");
    return lacks && step ? read_value(r, n, "step", step) : TERN_OK;
}

static int read_parameter(reading *r, int64_t index)
{
    const tern_object *values = tern_object_at(r->states, index);
    int n = find_number(r, tern_object_key(r->states, index), index), status = TERN_OK;
    if (n < 0)
        return tern__error_set(r->err, load, TERN_E_INVALID,
                               "entry %lld of \"state\" is of no parameter in param_groups",
                               (long long)index);
    if (tern_object_kind_get(values) != TERN_OBJECT_DICT)
        return tern__error_set(r->err, load, TERN_E_INVALID, "state[%d] is a %s, expected a dict", n,
                               tern_object_kind_name(tern_object_kind_get(values)));
    if (has_no_step(values)) return TERN_OK;
    status = read_group_step(r, n, values);
    for (int64_t i = 0; i < tern_object_count(values) && !status; i++) {
        const char *name = tern_object_to_string(tern_object_key(values, i));
        status = read_value(r, n, name ? name : "", tern_object_at(values, i));
    }
    return status;
}

/* ---- both ---- */

static int open_reading(reading *r, const tern_object *state)
{
    r->states = tern_object_get(state, "state");
    r->saved = tern_object_get(state, "param_groups");
    if (tern_object_kind_get(r->states) != TERN_OBJECT_DICT ||
        tern_object_kind_get(r->saved) != TERN_OBJECT_LIST)
        return tern__error_set(r->err, load, TERN_E_INVALID,
                               "expected a dict of \"state\", a dict, and \"param_groups\", a list");
    size_t entries = 0;
    for (int64_t i = 0; i < tern_object_count(r->states); i++)
        entries += 1 + (size_t)tern_object_count(tern_object_at(r->states, i));
    int status = tern__optim_numbers(r->optim, load, &r->numbers, &r->count, r->err);
    if (status) return status;
    r->groups = tern__alloc((size_t)r->optim->group_count * sizeof(*r->groups), load, r->err);
    r->entries = tern__alloc(entries * sizeof(*r->entries), load, r->err);
    r->tensors = tern__alloc(entries * sizeof(*r->tensors), load, r->err);
    r->copies = tern__alloc(entries * sizeof(*r->copies), load, r->err);
    r->ids = tern__alloc((size_t)r->count * sizeof(*r->ids), load, r->err);
    r->steps = tern__alloc((size_t)r->count * sizeof(*r->steps), load, r->err);
    return r->ids && r->groups && r->entries && r->tensors && r->copies && r->steps ? TERN_OK : TERN_E_MEMORY;
}

static void close_reading(reading *r)
{
    for (int i = 0; r->copies && i < r->entry_count; i++) tern_tensor_free(r->copies[i]);
    tern__free(r->copies);
    tern__free(r->tensors);
    tern__free(r->entries);
    tern__free(r->steps);
    tern__free(r->groups);
    tern__free(r->ids);
    tern__free(r->numbers);
}

/* Loads the entries under the new options, which may want other states than there is memory for; the old
 * options are restored if the entries do not fit. */
static int state_dict_take(reading *r)
{
    tern_optim *optim = r->optim;
    tern_optim before = *optim;
    unsigned had = 0, wants = 0;
    for (int g = 0; g < optim->group_count; g++) {
        had |= optim->groups[g].states;
        wants |= r->groups[g].states;
    }
    bool resized = had != wants;
    optim->groups = r->groups;
    if (resized) {
        memset(optim->state, 0, sizeof(optim->state));
        optim->begun = false;
    }
    int status = tern_optim_state_load(optim, r->entries, r->entry_count, r->err);
    if (status) {
        *optim = before;
        return status;
    }
    r->groups = before.groups;
    if (r->is_reduced) tern__plateaus_restart(optim);
    tern__schedules_apply(optim);
    if (resized) tern__optim_state_drop(&before);
    return TERN_OK;
}

int tern_optim_state_dict_load(tern_optim *optim, const tern_object *state, tern_error *err)
{
    tern_error own = {0};
    reading r = {.optim = optim, .err = err ? err : &own};
    if (tern__is_set(err)) return err->code;
    if (!optim) return tern__error_set(err, load, TERN_E_INVALID, "the optimizer is NULL");
    int status = open_reading(&r, state);
    if (!status) status = read_groups(&r);
    if (!status) status = read_ids(&r);
    for (int64_t i = 0; !status && i < tern_object_count(r.states); i++) status = read_parameter(&r, i);
    if (!status) status = state_dict_take(&r);
    close_reading(&r);
    return status;
}
