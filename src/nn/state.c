/* state.c - the flat list of a tree's parameters and buffers with their full names. */
#include "nn/nn.h"

#include <stdio.h>
#include <string.h>

typedef struct listing {
    tern_state_entry *entries;
    int count;
    size_t room;
    tern_error *err;
} listing;

static char *module_join(const char *prefix, const char *name, tern_error *err)
{
    size_t size = strlen(prefix) + strlen(name) + 2;
    char *full = tern__alloc(size, "tern_state_get", err);
    if (full) snprintf(full, size, "%s%s%s", prefix, *prefix ? "." : "", name);
    return full;
}

static int module_append(listing *list, const char *prefix, tern__member *member)
{
    if (tern__array_reserve(&list->entries, &list->room, list->count + 1, sizeof(*list->entries),
                            "tern_state_get", list->err))
        return TERN_E_MEMORY;
    char *name = module_join(prefix, member->name, list->err);
    if (!name) return TERN_E_MEMORY;
    tern_tensor *tensor = member->is_buffer ? &member->tensor : member->tensor.leaf->parameter;
    list->entries[list->count++] =
        (tern_state_entry){.name = name, .tensor = tensor, .is_buffer = member->is_buffer};
    return TERN_OK;
}

/* Lists in PyTorch's order: a module's parameters, its buffers, then its children; or only the buffers that
 * are not in the state dict. */
static int module_walk(listing *list, const char *prefix, const tern__module_tree *tree, bool transient)
{
    for (int buffers = 0; buffers < 2; buffers++)
        for (tern__member *member = tree->members; member; member = member->next)
            if (member->is_buffer == buffers && member->is_transient == transient &&
                module_append(list, prefix, member))
                return TERN_E_MEMORY;
    for (const tern__module_tree *child = tree->children; child; child = child->next) {
        char *inner = module_join(prefix, child->name, list->err);
        int status = inner ? module_walk(list, inner, child, transient) : TERN_E_MEMORY;
        tern__free(inner);
        if (status) return status;
    }
    return TERN_OK;
}

int tern__module_state(const tern_module *module, tern_error *err)
{
    if (module->tree->state) return TERN_OK;
    listing list = {.err = err};
    int status = module_walk(&list, "", module->tree, false), persistent = list.count;
    if (!status) status = module_walk(&list, "", module->tree, true);
    if (status) {
        for (int i = 0; i < list.count; i++) tern__free((char *)list.entries[i].name);
        tern__free(list.entries);
        return status;
    }
    module->tree->state = list.entries;
    module->tree->state_count = persistent;
    module->tree->entry_count = list.count;
    return TERN_OK;
}

static void add_name(char *text, size_t size, const char *name)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? "." : "", name);
}

void tern__module_describe(const tern_module *module, char *text, size_t size)
{
    *text = '\0';
    if (!module->tree->parent) return;
    tern__module_describe(module->tree->parent, text, size);
    add_name(text, size, module->tree->name);
}

void tern__leaf_describe(const tern__leaf *leaf, char *text, size_t size)
{
    const tern__member *first = tern__leaf_member(tern__module_root(leaf->module), leaf);
    tern__module_describe(first->leaf.module, text, size);
    add_name(text, size, first->name);
}

int tern_state_count(const tern_module *module)
{
    bool has_tree = module && module->tree;
    return !has_tree || tern__module_state(module, NULL) ? 0 : module->tree->state_count;
}

tern_state_entry tern_state_get(const tern_module *module, int index)
{
    if (index < 0 || index >= tern_state_count(module)) return (tern_state_entry){0};
    return module->tree->state[index];
}

int tern__entry_count(const tern_module *module)
{
    return tern__module_state(module, NULL) ? 0 : module->tree->entry_count;
}

tern_state_entry tern__entry_get(const tern_module *module, int index)
{
    return index < tern__entry_count(module) ? module->tree->state[index] : (tern_state_entry){0};
}

tern_tensor *tern_state_find(const tern_module *module, const char *name)
{
    int count = name ? tern_state_count(module) : 0;
    for (int i = 0; i < count; i++)
        if (!strcmp(module->tree->state[i].name, name)) return module->tree->state[i].tensor;
    return NULL;
}

tern_tensor *tern__state_find(const tern_module *module, const char *name, tern_error *err)
{
    return tern__module_state(module, err) ? NULL : tern_state_find(module, name);
}

bool tern__state_repeats(const tern_module *module, int index)
{
    const tern_state_entry *state = module->tree->state;
    const tern__leaf *leaf = state[index].tensor->leaf;
    for (int i = 0; leaf && leaf->shared && i < index; i++)
        if (state[i].tensor->leaf == leaf) return true;
    return false;
}

int tern_module_parameter_count(const tern_module *module)
{
    int parameters = 0, count = tern_state_count(module);
    for (int i = 0; i < count; i++)
        parameters += !module->tree->state[i].is_buffer && !tern__state_repeats(module, i);
    return parameters;
}

int64_t tern_module_element_count(const tern_module *module)
{
    int64_t elements = 0;
    int count = tern_state_count(module);
    for (int i = 0; i < count; i++)
        if (!module->tree->state[i].is_buffer && !tern__state_repeats(module, i))
            elements += tern_tensor_count(module->tree->state[i].tensor);
    return elements;
}
