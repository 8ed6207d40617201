/* state_dict.c - writes an optimizer's state and options in torch's form: parameters by number, group by
 * group.
 *
 * The tensors are views: of the live state, or of a sharded optimizer's gathered state, which they own
 * together. */
#include "optim/optim.h"

#include <tern/state_dict.h>

#include <string.h>

/* Sets numbers[n] to the leaf that torch numbers n; returns how many there are. */
static int number_leaves(const tern_optim *optim, int *numbers)
{
    int count = 0;
    for (int g = 0; g < optim->group_count; g++)
        for (int k = optim->seal->leaf_count - 1; k >= 0; k--)
            if (optim->group_of[k] == g) numbers[count++] = k;
    return count;
}

int tern__optim_numbers(const tern_optim *optim, const char *func, int **numbers, int *count, tern_error *err)
{
    *numbers = tern__alloc((size_t)optim->seal->leaf_count * sizeof(**numbers), func, err);
    if (!*numbers) return TERN_E_MEMORY;
    *count = number_leaves(optim, *numbers);
    return TERN_OK;
}

static const char FUNC[] = "tern_optim_state_dict";

typedef struct writing {
    const tern_optim *optim;
    tern__storage *storage; /* the tensors hold references to it */
    int *numbers, count;
    tern_error *err;
} writing;

/* torch counts steps in f32. */
static tern_object *step_object(const writing *w, int64_t step)
{
    tern_tensor *tensor = tern__tensor_new(TERN_F32, 0, NULL, w->err);
    if (!tensor) return NULL;
    *(float *)tensor->view.data = (float)step;
    tern_object *object = tern_object_tensor(tensor, w->err);
    tern_tensor_free(tensor);
    return object;
}

/* Returns a state of a parameter that has made no step yet. */
static tern_object *initial_object(const writing *w, int k)
{
    const tern__view *like = &w->optim->seal->leaves[k]->parameter->view;
    double value = w->optim->rule->initial(&w->optim->groups[w->optim->group_of[k]]);
    tern_tensor *tensor = tern__tensor_new(like->dtype, like->ndim, like->shape, w->err);
    if (!tensor) return NULL;
    for (int64_t i = 0; i < tern__view_count(like); i++) tern__view_set(&tensor->view, i, value);
    tern_object *object = tern_object_tensor(tensor, w->err);
    tern_tensor_free(tensor);
    return object;
}

static tern_object *state_object(const writing *w, int k, int s, const tern_optim_entry *gathered)
{
    const tern_optim *optim = w->optim;
    int r = optim->seal->range_of[k];
    tern_tensor tensor = {.view = tern__optim_state_view(optim, k), .storage = w->storage};
    if (optim->state[s][r])
        tensor.view.data =
            optim->state[s][r] + tern__optim_scaled(optim, r, optim->seal->offset[k] - optim->own[r].begin);
    if (gathered) tensor.view = gathered->tensor->view;
    return tern_object_tensor(&tensor, w->err);
}

/* Returns a parameter's dict; among gathered entries, "step" comes first. */
static tern_object *parameter_object(const writing *w, int k, const tern_optim_entry *gathered)
{
    const tern__optim_rule *rule = w->optim->rule;
    int states = w->optim->steps[k] ? TERN__OPTIM_STATES : TERN__OPTIM_MASTER;
    tern_object *dict = tern_object_dict(w->err);
    if (!rule->stepless) tern_object_set(dict, "step", step_object(w, w->optim->steps[k]), w->err);
    for (int s = 0; s < states; s++) {
        if (!tern__optim_keeps(w->optim, k, s)) continue;
        if (gathered) gathered++;
        tern_object *state = w->optim->steps[k] ? state_object(w, k, s, gathered) : initial_object(w, k);
        tern_object_set(dict, tern__optim_state_name(w->optim, s), state, w->err);
    }
    return dict;
}

static const tern_optim_entry *find_entries(const tern_optim_state *state, const char *parameter)
{
    const tern_optim_entry *entries = tern_optim_state_entries(state);
    for (int i = 0; i < tern_optim_state_count(state); i++)
        if (!strcmp(entries[i].parameter, parameter)) return &entries[i];
    return NULL;
}

/* Plain SGD has no state, however many steps it has made. */
static bool has_any(const tern_optim *optim, int k)
{
    bool keeps = !optim->rule->stepless;
    for (int s = 0; s < TERN__OPTIM_STATES; s++) keeps |= tern__optim_keeps(optim, k, s);
    return keeps && (optim->steps[k] || optim->rule->initial);
}

static tern_object *states_object(const writing *w, const tern_optim_state *gathered)
{
    tern_object *states = tern_object_dict(w->err);
    for (int n = 0; n < w->count && !tern__is_set(w->err); n++) {
        int k = w->numbers[n];
        if (!has_any(w->optim, k)) continue;
        const tern_optim_entry *entries =
            gathered ? find_entries(gathered, w->optim->seal->leaves[k]->name) : NULL;
        tern_object_set_at(states, tern_object_int(n, w->err), parameter_object(w, k, entries), w->err);
    }
    return states;
}

static tern_object *pair_object(const double *values, tern_error *err)
{
    tern_object *pair = tern_object_tuple(err);
    for (int i = 0; i < 2; i++) tern_object_append(pair, tern_object_float(values[i], err), err);
    return pair;
}

static int64_t most_steps(const tern_optim *optim, int g)
{
    int64_t steps = 0;
    for (int k = 0; k < optim->seal->leaf_count; k++)
        if (optim->group_of[k] == g) steps = TERN__MAX(steps, optim->steps[k]);
    return steps;
}

static tern_object *option_object(const tern_optim *optim, int g, const tern__option *option, tern_error *err)
{
    const char *at = (const char *)&optim->groups[g].opts + option->offset;
    switch (option->kind) {
    case TERN__OPTION_REAL: return tern_object_float(*(const double *)at, err);
    case TERN__OPTION_BOOL: return tern_object_bool(*(const bool *)at, err);
    case TERN__OPTION_PAIR: return pair_object((const double *)at, err);
    case TERN__OPTION_FALSE: return tern_object_bool(false, err);
    case TERN__OPTION_STEP: return tern_object_int(most_steps(optim, g), err);
    default: return tern_object_none(err);
    }
}

static tern_object *group_object(const writing *w, int g)
{
    const tern_optim *optim = w->optim;
    const tern__optim_group *group = &optim->groups[g];
    tern_object *dict = tern_object_dict(w->err), *params = tern_object_list(w->err);
    tern_object_set(dict, "lr", tern_object_float(tern_optim_lr_get(optim, g), w->err), w->err);
    for (const tern__option *option = optim->rule->options; option->name; option++)
        tern_object_set(dict, option->name, option_object(optim, g, option, w->err), w->err);
    if (optim->schedules) tern_object_set(dict, "initial_lr", tern_object_float(group->lr, w->err), w->err);
    for (int n = 0; n < w->count; n++)
        if (optim->group_of[w->numbers[n]] == g)
            tern_object_append(params, tern_object_int(n, w->err), w->err);
    tern_object_set(dict, "params", params, w->err);
    return dict;
}

static tern_object *whole_object(const writing *w, const tern_optim_state *gathered)
{
    tern_object *whole = tern_object_dict(w->err), *groups = tern_object_list(w->err);
    tern_object_set(whole, "state", states_object(w, gathered), w->err);
    for (int g = 0; g < w->optim->group_count; g++) tern_object_append(groups, group_object(w, g), w->err);
    tern_object_set(whole, "param_groups", groups, w->err);
    if (!tern__is_set(w->err)) return whole;
    tern_object_free(whole);
    return NULL;
}

/* Frees a gathered state with the last tensor that views it. The live state has no keeper. */
typedef struct keeper {
    tern__storage storage;
    tern_optim_state *gathered;
} keeper;

static void release_keeper(void *ctx)
{
    keeper *own = ctx;
    tern_optim_state_free(own->gathered);
    tern__free(own);
}

static tern_object *write_whole(writing *w, tern_optim_state *gathered)
{
    keeper *own = tern__alloc(sizeof(*own), FUNC, w->err);
    if (!own) {
        tern_optim_state_free(gathered);
        return NULL;
    }
    *own = (keeper){.storage = {.refs = 1, .release = release_keeper, .ctx = own}, .gathered = gathered};
    w->storage = &own->storage;
    tern_object *whole = whole_object(w, gathered);
    tern__storage_drop(&own->storage);
    return whole;
}

tern_object *tern_optim_state_dict(tern_optim *optim, int root, tern_error *err)
{
    tern_error own = {0};
    writing w = {.optim = optim, .err = err ? err : &own};
    if (!optim) tern__error_set(w.err, __func__, TERN_E_INVALID, "the optimizer is NULL");
    if (!optim) return NULL;
    bool alone = !optim->shard;
    if (!tern__is_set(w.err)) tern__skips_settle(optim, w.err);
    if (!tern__is_set(w.err)) tern__optim_numbers(optim, __func__, &w.numbers, &w.count, w.err);
    tern_optim_state *state = alone ? NULL : tern_optim_state_gather(optim, root, w.err);
    tern_object *whole = NULL;
    if (!tern__is_set(w.err) && (alone || state)) whole = write_whole(&w, state);
    tern__free(w.numbers);
    return whole;
}
