/* checkpoint.c - a module call of which only the input is kept. Its forward runs without a tape and notes
 * which parameters it uses, so that the tape of the step has one entry for the whole call and knows from the
 * start which gradients it will bring. Backward computes the call again in a scope of its own, with a tape,
 * and goes back through it: gradients of parameters go where they always go, that of the input into the
 * entry's. What was drawn the first time is drawn again, and running statistics move once. */
#include "nn/nn.h"

#include "ops/ops.h"

typedef struct record {
    tern_module *module;
    uint64_t seed, step, draws;
    const tern__policy *policy;
} record;

/* The scope in which is computed again: as the outer one was at the call. */
static tern_scope *open_child(tern_scope *scope, const record *r)
{
    tern_error err = {0};
    if (!scope->child && !(scope->child = tern_scope_new(scope->device, scope->group, &err))) {
        tern__scope_fail_with(scope, &err);
        return NULL;
    }
    tern_scope *child = scope->child;
    tern_scope_seed(child, r->seed, r->step);
    child->draws = r->draws;
    child->policy = r->policy;
    child->stream = scope->stream;
    child->slots = scope->slots;
    child->slot_count = scope->slot_count;
    child->is_replica = scope->is_replica;
    child->keeps_buffers = true;
    child->follows = scope->follows;
    child->weight = scope->weight;
    return child;
}

static int compute_again(tern_scope *child, const record *r, tern_tensor *x, const tern__view *dy)
{
    tern_tensor *y = tern_forward(r->module, child, x);
    if (y && !y->node) y = tern_clone(child, y);
    return y ? tern__backward_from(child, 1, &y, dy) : child->error.code;
}

static int gradient(tern_scope *scope, tern__node *node)
{
    const record *r = node->attr;
    tern_error err = {0};
    tern_scope *child = open_child(scope, r);
    tern_tensor *x = child ? tern__saved_tensor(child, &node->saved[0]) : NULL;
    if (x) {
        x->requires_grad = tern__wants(node, 0);
        compute_again(child, r, x, tern__dy(node));
    }
    if (x && !child->error.code) tern__grad_store(scope, node, 0, x->grad_storage ? &x->grad : NULL);
    if (child && tern_scope_end(child, &err)) tern__scope_fail_with(scope, &err);
    for (int i = 1; i < node->in_count && !scope->error.code; i++) tern__grad_store(scope, node, i, NULL);
    return scope->error.code;
}

/* Forward without a tape; the leaves that it used. */
static tern_tensor *try(tern_module *module, tern_scope *scope, tern_tensor *x, int *count)
{
    scope->traced = x;
    scope->uses = NULL;
    scope->grad = false;
    tern_tensor *y = tern_forward(module, scope, x);
    scope->grad = true;
    scope->traced = NULL;
    for (const tern__use *use = scope->uses; use; use = use->next) ++*count;
    return y && y->requires_grad ? tern_detach(scope, y) : y == x ? tern_detach(scope, x) : y;
}

tern_tensor *tern_checkpoint(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    if (!module || !TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    if (!scope->grad) return tern_forward(module, scope, x);
    const record r = {module, scope->seed, scope->step, scope->draws, scope->policy};
    int count = 0;
    tern_tensor *y = try(module, scope, x, &count);
    tern_tensor **inputs = y ? tern__scope_alloc(scope, (size_t)(1 + count) * sizeof(*inputs)) : NULL;
    if (!inputs) return NULL;
    inputs[0] = x;
    int n = 1;
    for (const tern__use *use = scope->uses; use; use = use->next) inputs[n++] = use->leaf->parameter;
    tern__node *node = tern__record(scope, "checkpoint", gradient, y, n, inputs);
    tern__save(node, 0, x);
    tern__save_attr(scope, node, &r, sizeof(r));
    return y;
}
