#include "nn/nn.h"

#include <stdio.h>

typedef struct sequential {
    tern_module base;
    int count;
} sequential;

/* True if the child's forward was not replaced, and amp casts nothing around it. */
static bool is_as_made(const tern__module_tree *child)
{
    return child->module->forward == child->forward && !child->precision.set;
}

/* True if a child and a following ReLU can run as one operation. An observer must see both calls. */
static bool goes_with_relu(const tern__module_tree *child, const tern_scope *scope)
{
    const tern__module_tree *next = child->next;
    return child->with_relu && next && tern__is_relu(next->module) && is_as_made(child) && is_as_made(next) &&
           !scope->observer;
}

static tern_tensor *sequential_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    for (tern__module_tree *child = module->tree->children; child; child = child->next) {
        bool fused = goes_with_relu(child, scope);
        x = fused ? tern__forward_by(child->module, scope, x, child->with_relu)
                  : tern_forward(child->module, scope, x);
        if (fused) child = child->next;
    }
    return x;
}

tern_module *tern_sequential_new(tern_error *err)
{
    return tern__module_new(sizeof(sequential), "sequential", sequential_forward, err);
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
