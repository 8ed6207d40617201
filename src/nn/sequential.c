#include "nn/nn.h"

#include <stdio.h>

typedef struct sequential {
    tern_module base;
    int count;
} sequential;

static tern_tensor *forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        x = tern_forward(child->module, scope, x);
    return x;
}

tern_module *tern_sequential_new(tern_error *err)
{
    return tern__module_new(sizeof(sequential), "sequential", forward, err);
}

tern_module *tern_sequential_add(tern_module *module, tern_module *child, tern_error *err)
{
    sequential *self = (sequential *)module;
    char name[16];
    snprintf(name, sizeof(name), "%d", self ? self->count : 0);
    tern_module *added = tern_module_add(module, name, child, err);
    if (added) self->count++;
    return added;
}
