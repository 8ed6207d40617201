/* module_record.c - walks the record of a pickled torch.nn.Module as Module.state_dict does. */
#include "inspect/module_record.h"
#include "inspect/content.h"

#include <stdio.h>
#include <string.h>

static const char FUNC[] = "tern convert";

static const tern_object *find_part(const tern_object *record, const char *name)
{
    const tern_object *found = tern_object_get(tern_object_record_state(record), name);
    return tern_object_kind_get(found) == TERN_OBJECT_DICT ? found : NULL;
}

bool tern__module_record_is(const tern_object *record)
{
    return find_part(record, "_parameters") && find_part(record, "_buffers") && find_part(record, "_modules");
}

/* A set in the record names the buffers that state_dict omits; sets are loaded as lists. */
static bool is_persistent(const tern_object *record, const char *name)
{
    const tern_object *out = tern_object_get(tern_object_record_state(record), "_non_persistent_buffers_set");
    for (int64_t i = 0; i < tern_object_count(out); i++) {
        const char *other = tern_object_to_string(tern_object_at(out, i));
        if (other && strcmp(other, name) == 0) return false;
    }
    return true;
}

/* Returns prefix + name + end; the caller frees it. */
static char *join_name(const char *prefix, const char *name, const char *end, tern_error *err)
{
    size_t bytes = strlen(prefix) + strlen(name) + strlen(end) + 1;
    char *text = tern__alloc(bytes, FUNC, err);
    if (text) snprintf(text, bytes, "%s%s%s", prefix, name, end);
    return text;
}

static int add_tensor(tern_object *dict, const char *prefix, const char *name, const tern_object *tensor,
                      tern_error *err)
{
    char *full = join_name(prefix, name, "", err);
    tern_object *key = full ? tern_object_string(full, err) : NULL;
    int status = key ? tern__object_set(dict, key, (tern_object *)tensor, err) : TERN_E_MEMORY;
    tern__object_drop(key);
    tern__free(full);
    return status;
}

/* A state dict omits parameters that are None (bias=False). */
static int record_add_tensors(tern_object *dict, const char *prefix, const tern_object *record,
                              const char *which, tern_error *err)
{
    const tern_object *tensors = find_part(record, which);
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < tern_object_count(tensors); i++) {
        const char *name = tern_object_to_string(tern_object_key(tensors, i));
        const tern_object *tensor = tern_object_at(tensors, i);
        if (name && tern__value_is_tensor(tensor) && is_persistent(record, name))
            status = add_tensor(dict, prefix, name, tensor, err);
    }
    return status;
}

static int add_module(tern_object *dict, const char *prefix, const tern_object *record, tern_error *err);

static int add_modules(tern_object *dict, const char *prefix, const tern_object *record, tern_error *err)
{
    const tern_object *modules = find_part(record, "_modules");
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < tern_object_count(modules); i++) {
        const char *name = tern_object_to_string(tern_object_key(modules, i));
        if (!name || !tern__module_record_is(tern_object_at(modules, i))) continue;
        char *inner = join_name(prefix, name, ".", err);
        status = inner ? add_module(dict, inner, tern_object_at(modules, i), err) : TERN_E_MEMORY;
        tern__free(inner);
    }
    return status;
}

static int add_module(tern_object *dict, const char *prefix, const tern_object *record, tern_error *err)
{
    int status = record_add_tensors(dict, prefix, record, "_parameters", err);
    if (!status) status = record_add_tensors(dict, prefix, record, "_buffers", err);
    return status ? status : add_modules(dict, prefix, record, err);
}

tern_object *tern__module_record_state_dict(const tern_object *record, tern_error *err)
{
    tern_object *dict = tern_object_dict(err);
    if (!dict || !add_module(dict, "", record, err)) return dict;
    tern__object_drop(dict);
    return NULL;
}
