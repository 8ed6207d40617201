/* state_dict.c - a module's parameters and buffers as a dict, and back.
 *
 * Loading first plans: it finds the dict's tensor for each name of the module, and collects missing,
 * unexpected and mismatched names in three lists. It writes only if these lists permit it. */
#include "base/opts.h"
#include "nn/nn.h"
#include "tensor/host.h"

#include <tern/state_dict.h>

#include <stdio.h>
#include <string.h>

/* ---- saving ---- */

static const char out_func[] = "tern_module_state_dict";

/* Saves in f32 what amp has cast, as apex does, so that a checkpoint fits every opt level. */
static tern_object *entry_object(const tern_module *module, const tern_tensor *tensor, tern_error *err)
{
    tern_dtype dtype = tensor->view.dtype;
    bool half = tern__dtype_is_half(dtype);
    if (!half || !tern__module_root((tern_module *)module)->tree->precision.set)
        return tern_object_tensor(tensor, err);
    tern_tensor *wide = tern__tensor_new(TERN_F32, tensor->view.ndim, tensor->view.shape, err);
    if (!wide) return NULL;
    bool read = tern__host_convert(&wide->view, &tensor->view, err) == TERN_OK;
    tern_object *object = read ? tern_object_tensor(wide, err) : NULL;
    tern_tensor_free(wide);
    return object;
}

tern_object *tern_module_state_dict(const tern_module *module, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e)) return NULL;
    if (!module || !module->tree)
        tern__error_set(e, out_func, TERN_E_INVALID, "the module is NULL or was never made");
    if (tern__is_set(e) || tern__module_state(module, e)) return NULL;
    tern_object *state = tern_object_dict(e);
    for (int i = 0; i < module->tree->state_count && !tern__is_set(e); i++) {
        const tern_state_entry *entry = &module->tree->state[i];
        tern_object_set(state, entry->name, entry_object(module, entry->tensor, e), e);
    }
    if (!tern__is_set(e)) return state;
    tern_object_free(state);
    return NULL;
}

/* ---- loading ---- */

static const char load[] = "tern_module_state_dict_load";
static const char parallel[] = "module.";

typedef struct loading {
    const tern_module *module;
    const tern_object *state;
    const tern_tensor **plan; /* [state_count] new values; NULL: entry is unchanged */
    const char *prefix;       /* of the names in `state`, stripped                   */
    bool is_part;             /* the prefix is the caller's                          */
    tern_object *report, *missing, *unexpected, *mismatched;
    int mismatch;              /* the first one's code: E_SHAPE or E_DTYPE */
    char why[TERN_ERROR_TEXT]; /* the first one's text                     */
    tern_error *err;
} loading;

tern_module_load_opts tern_module_load_defaults(void)
{
    return (tern_module_load_opts){.size = sizeof(tern_module_load_opts), .strict = true};
}

static bool state_dict_begins(const char *name, const char *prefix)
{
    return !strncmp(name, prefix, strlen(prefix));
}

/* Returns "module." if all saved names begin with it and not all of the model's do; else "". */
static const char *find_prefix(const tern_module *module, const tern_object *state)
{
    bool all = module->tree->state_count > 0;
    for (int64_t i = 0; i < tern_object_count(state); i++) {
        const char *name = tern_object_to_string(tern_object_key(state, i));
        if (!name || !state_dict_begins(name, parallel)) return "";
    }
    for (int i = 0; i < module->tree->state_count; i++)
        all = all && state_dict_begins(module->tree->state[i].name, parallel);
    return all ? "" : parallel;
}

static void list_name(loading *l, tern_object *list, const char *name)
{
    tern_object_append(list, tern_object_string(name, l->err), l->err);
}

/* Notes a mismatch. The first one is described in full, in torch's words. */
static void mismatch(loading *l, const char *name, int code, const char *expected, const char *got)
{
    list_name(l, l->mismatched, name);
    if (l->mismatch) return;
    l->mismatch = code;
    if (code == TERN_E_SHAPE)
        snprintf(l->why, sizeof(l->why),
                 "size mismatch for %s: copying a param with shape %s from checkpoint, the shape in current "
                 "model is %s.",
                 name, got, expected);
    else
        snprintf(l->why, sizeof(l->why), "%s is %s in the checkpoint, expected %s.", name, got, expected);
}

/* torch 0.3 saved scalars with one dimension of 1. */
static bool state_dict_fits(const tern__view *own, const tern__view *given)
{
    return tern__view_same_shape(own, given) || (own->ndim == 0 && given->ndim == 1 && given->shape[0] == 1);
}

static void match(loading *l, int i, const tern_object *value)
{
    const tern_state_entry *entry = &l->module->tree->state[i];
    const tern_tensor *tensor = tern_object_to_tensor(value);
    const tern__view *own = &entry->tensor->view;
    char expected[TERN__SHAPE_TEXT], got[TERN__SHAPE_TEXT];
    if (!tensor) {
        mismatch(l, entry->name, TERN_E_DTYPE, "a tensor",
                 tern_object_kind_name(tern_object_kind_get(value)));
        return;
    }
    if (tern__tensor_check(tensor, load, l->err)) return;
    if (!state_dict_fits(own, &tensor->view))
        mismatch(l, entry->name, TERN_E_SHAPE, tern__shape_text(own, expected),
                 tern__shape_text(&tensor->view, got));
    else if (tern__dtype_is_float(tensor->view.dtype) && !tern__dtype_is_float(own->dtype))
        mismatch(l, entry->name, TERN_E_DTYPE, tern_dtype_name(own->dtype),
                 tern_dtype_name(tensor->view.dtype));
    l->plan[i] = tensor;
}

static const tern_object *find_value(const loading *l, const char *name)
{
    char full[1024];
    if (!*l->prefix) return tern_object_get(l->state, name);
    int length = snprintf(full, sizeof(full), "%s%s", l->prefix, name);
    return length < (int)sizeof(full) ? tern_object_get(l->state, full) : NULL;
}

/* Names without the caller's prefix belong to other parts of a larger model. */
static void list_unexpected(loading *l)
{
    for (int64_t i = 0; i < tern_object_count(l->state); i++) {
        const char *name = tern_object_to_string(tern_object_key(l->state, i));
        if (l->is_part && (!name || !state_dict_begins(name, l->prefix))) continue;
        const char *own = name ? name + strlen(l->prefix) : "(no string)";
        if (!name || !tern_state_find(l->module, own)) list_name(l, l->unexpected, own);
    }
}

/* True if the dict has the parameter of entry i under another of its names. */
static bool has_alias(const loading *l, int i)
{
    const tern__module_tree *tree = l->module->tree;
    const tern__leaf *leaf = tree->state[i].tensor->leaf;
    for (int k = 0; leaf && leaf->shared && k < tree->state_count; k++)
        if (k != i && tree->state[k].tensor->leaf == leaf && find_value(l, tree->state[k].name)) return true;
    return false;
}

static void match_all(loading *l)
{
    int count = l->module->tree->state_count, found = 0;
    for (int i = 0; i < count && !tern__is_set(l->err); i++) {
        const char *name = l->module->tree->state[i].name;
        const tern_object *value = find_value(l, name);
        found += value != NULL;
        if (value)
            match(l, i, value);
        else if (!has_alias(l, i))
            list_name(l, l->missing, name);
    }
    if (found < tern_object_count(l->state)) list_unexpected(l);
}

/* ---- the report ---- */

/* Appends as many of the names as end before byte `end` of the text. */
static void keys_list(char *text, int end, const char *what, const tern_object *names)
{
    enum { room = TERN_ERROR_TEXT };
    int64_t count = tern_object_count(names), told = 0;
    size_t used = strlen(text);
    if (!count) return;
    used += (size_t)snprintf(text + used, room - used, "%s%s:", used ? " " : "", what);
    for (; told < count && used < room; told++) {
        const char *name = tern_object_to_string(tern_object_at(names, told));
        if (used + strlen(name) + 24 > (size_t)end) break;
        used += (size_t)snprintf(text + used, room - used, "%s \"%s\"", told ? "," : "", name);
    }
    if (used >= room) return;
    if (told < count)
        snprintf(text + used, room - used, told ? " and %lld more." : " %lld.", (long long)(count - told));
    else
        snprintf(text + used, room - used, ".");
}

static int judge(loading *l, bool strict)
{
    char text[TERN_ERROR_TEXT] = "";
    int end = TERN_ERROR_TEXT * 3 / 4, half = tern_object_count(l->unexpected) ? end / 2 : end;
    if (strict) keys_list(text, half, "Missing key(s) in state_dict", l->missing);
    if (strict) keys_list(text, end, "Unexpected key(s) in state_dict", l->unexpected);
    int code = *text ? TERN_E_INVALID : l->mismatch;
    size_t used = strlen(text);
    int64_t others = tern_object_count(l->mismatched) - 1;
    if (l->mismatch)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", used ? " " : "", l->why);
    if (others > 0 && used < sizeof(text))
        snprintf(text + used, sizeof(text) - used, " And so %lld more.", (long long)others);
    if (!code) return TERN_OK;
    return tern__error_set(l->err, load, code, "Error(s) in loading state_dict for %s: %s", l->module->kind,
                           text);
}

/* ---- writing ---- */

static int write_entry(tern_tensor *tensor, const tern_tensor *value, tern_error *err)
{
    tern__view from = value->view;
    if (tensor->view.data == from.data) return TERN_OK;
    if (tensor->view.ndim == 0) from.ndim = 0;
    if (tensor->view.packs) tensor->view.packs->version++;
    return tern__view_copy(&tensor->view, &from, err);
}

static int load_into(loading *l, bool strict)
{
    match_all(l);
    if (tern__is_set(l->err)) return l->err->code;
    int status = judge(l, strict);
    for (int i = 0; i < l->module->tree->state_count && !status; i++)
        if (l->plan[i]) status = write_entry(l->module->tree->state[i].tensor, l->plan[i], l->err);
    return status;
}

static tern_object *add_list(loading *l, const char *name)
{
    tern_object *list = tern_object_list(l->err);
    return tern_object_set(l->report, name, list, l->err) ? NULL : list;
}

static int open_loading(loading *l)
{
    if (tern__module_state(l->module, l->err)) return l->err->code;
    l->is_part = l->prefix != NULL;
    if (!l->is_part) l->prefix = find_prefix(l->module, l->state);
    l->report = tern_object_dict(l->err);
    l->missing = add_list(l, "missing_keys");
    l->unexpected = add_list(l, "unexpected_keys");
    l->mismatched = add_list(l, "mismatched_keys");
    if (tern__is_set(l->err)) return l->err->code;
    l->plan = tern__alloc((size_t)l->module->tree->state_count * sizeof(*l->plan), load, l->err);
    return l->plan ? TERN_OK : TERN_E_MEMORY;
}

int tern_module_state_dict_load(tern_module *module, const tern_object *state,
                                const tern_module_load_opts *user, tern_object **report, tern_error *err)
{
    tern_error own = {0};
    tern_module_load_opts opts = tern_module_load_defaults();
    loading l = {.module = module, .state = state, .err = err ? err : &own};
    if (report) *report = NULL;
    if (tern__is_set(err)) return err->code;
    if (!module || !module->tree)
        return tern__error_set(err, load, TERN_E_INVALID, "the module is NULL or was never made");
    int status = tern__opts_read(&opts, sizeof(opts), user, load, err);
    if (status) return status;
    if (tern_object_kind_get(state) != TERN_OBJECT_DICT)
        return tern__error_set(err, load, TERN_E_INVALID, "expected a dict of tensors, got a %s",
                               tern_object_kind_name(tern_object_kind_get(state)));
    l.prefix = opts.prefix;
    status = open_loading(&l);
    if (!status) status = load_into(&l, opts.strict);
    tern__free(l.plan);
    bool tells = report && l.report && status != TERN_E_MEMORY;
    if (tells) *report = l.report;
    if (!tells) tern_object_free(l.report);
    return status;
}
