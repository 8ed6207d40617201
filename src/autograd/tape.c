#include "autograd/autograd.h"

#include <string.h>

bool tern__op_enter(tern_scope *scope, const char *op, int count, ...)
{
    if (!scope || scope->error.code) return false;
    tern_error err = {0};
    va_list tensors;
    va_start(tensors, count);
    for (int i = 0; i < count && !err.code; i++) {
        const tern_tensor *tensor = va_arg(tensors, const tern_tensor *);
        if (tensor)
            tern__tensor_check(tensor, op, &err);
        else
            tern__error_set(&err, op, TERN_E_INVALID, "%s: input %d is NULL, and no earlier op has failed",
                            op, i);
    }
    va_end(tensors);
    if (err.code) tern__scope_fail_with(scope, &err);
    return !err.code;
}

bool tern__run(tern_scope *scope, tern__call *call)
{
    tern_error err = {0};
    call->device = scope->device;
    call->err = &err;
    if (tern__kernel_run(call) == TERN_OK) return true;
    tern__scope_fail_with(scope, &err);
    return false;
}

tern__node *tern__record(tern_scope *scope, const char *op, tern__gradient_fn gradient, tern_tensor *out,
                         int count, tern_tensor *const *inputs)
{
    bool wanted = false;
    for (int i = 0; i < count; i++) wanted |= inputs[i] && inputs[i]->requires_grad;
    if (!wanted || !scope->grad) return NULL;
    tern__node *node = tern__scope_alloc(scope, sizeof(*node));
    if (!node) return NULL;
    node->op = op;
    node->gradient = gradient;
    node->out = out;
    memcpy(node->in, inputs, (size_t)count * sizeof(*inputs));
    node->previous = scope->tape;
    scope->tape = node;
    out->node = node;
    out->requires_grad = true;
    return node;
}

void tern__save(tern__node *node, int slot, const tern_tensor *tensor)
{
    if (!node || !tensor) return;
    node->saved[slot] = (tern__saved){.view = tensor->view,
                                      .storage = tern__storage_hold(tensor->storage),
                                      .member = tensor->storage ? NULL : tensor};
}

void tern__save_attr(tern_scope *scope, tern__node *node, const void *attr, size_t bytes)
{
    void *copy = node ? tern__scope_alloc(scope, bytes) : NULL;
    if (!copy) return;
    node->attr = memcpy(copy, attr, bytes);
}
