/* checkpoint.c - activation checkpointing: a module call that keeps only its input.
 *
 * The first pass runs the forward without a tape and notes the parameters that it uses. So the step's tape
 * has one entry for the whole call, and knows from the start which gradients it will bring. Backward runs the
 * forward again in a scope of its own, this time with a tape, checks that it uses the same parameters, and
 * goes back through that tape. Gradients of parameters go where they always go; the input's goes to the
 * entry's input. The second pass draws the same random numbers and leaves running statistics alone.
 *
 * The module may go back inside its own call, from tensors that it has detached. Both passes do that. The
 * first one keeps those gradients from parameters and the input, so that they get them once, from the second.
 */
#include "nn/nn.h"

#include "ops/ops.h"

typedef struct record {
    tern_module *module;
    uint64_t seed, step, draws;
    const tern__policy *policy;
} record;

/* Returns the scope for the recomputation, in the state that the outer scope had at the call. */
static tern_scope *open_child(tern_scope *scope, const record *r)
{
    tern_error err = {0};
    tern_scope *child = scope->checkpoint.child;
    if (!child) child = scope->checkpoint.child = tern_scope_new(scope->device, scope->group, &err);
    if (!child) {
        tern__scope_fail_with(scope, &err);
        return NULL;
    }
    tern_scope_seed(child, r->seed, r->step);
    child->draws = r->draws;
    child->autocast.policy = r->policy;
    child->stream = scope->stream;
    child->role = scope->role;
    child->role.keeps_buffers = child->role.is_again = true;
    return child;
}

/* ---- both passes must use the same parameters ---- */

static int fail_use(tern_scope *child, const tern__leaf *leaf, const char *when)
{
    char name[256];
    leaf->describe(leaf, name, sizeof(name));
    return tern__scope_fail(
        child, "tern_checkpoint", TERN_E_STATE,
        "checkpoint: the parameter \"%s\" was used %s; what a module does must not change "
        "between its forward and the backward, nor depend on what is drawn elsewhere",
        name, when);
}

/* Returns the leaf's index among the entry's inputs, where x is 0; 0 if it is none of them. */
static int checkpoint_place_of(const tern__node *node, const tern__leaf *leaf)
{
    int i = node->in_count - 1;
    while (i > 0 && (!node->in[i] || node->in[i]->leaf != leaf)) i--;
    return i;
}

static int note_inputs(tern_scope *child, const tern__node *node, const tern__node *again, bool *seen)
{
    for (int k = 0; k < again->in_count; k++) {
        const tern__leaf *leaf = again->in[k] ? again->in[k]->leaf : NULL;
        int i = leaf ? checkpoint_place_of(node, leaf) : 0;
        if (leaf && !i) return fail_use(child, leaf, "only when it was computed again");
        seen[i] = true;
    }
    return TERN_OK;
}

/* Compares the uses of both passes. If they differed, gradients would be missing, or a ddp would wait for
 * ones that never come. x may be a parameter, which is an input of its own in the second pass. */
static int check_uses(tern_scope *child, const tern__node *node)
{
    bool *seen = tern__scope_alloc(child, (size_t)node->in_count * sizeof(*seen));
    int status = seen ? TERN_OK : child->error.code;
    for (const tern__node *again = child->tape; again && !status; again = again->previous)
        status = note_inputs(child, node, again, seen);
    for (int i = 1; i < node->in_count && !status; i++)
        if (node->in[i] && !seen[i] && (!node->in[0] || node->in[i]->leaf != node->in[0]->leaf))
            status = fail_use(child, node->in[i]->leaf, "only the first time");
    return status;
}

/* ---- backward ---- */

static int compute_again(tern_scope *child, const record *r, const tern__node *node, tern_tensor *x)
{
    tern_tensor *y = tern_forward(r->module, child, x);
    if (y && !y->node) y = tern_clone(child, y);
    if (!y || check_uses(child, node)) return child->error.code;
    return y->node ? tern__backward_from(child, 1, &y, tern__dy(node)) : TERN_OK;
}

static int checkpoint_gradient(tern_scope *scope, tern__node *node)
{
    const record *r = node->attr;
    tern_error err = {0};
    tern_scope *child = open_child(scope, r);
    tern_tensor *x = child ? tern__saved_tensor(child, &node->saved[0]) : NULL;
    if (x) {
        x->requires_grad = tern__wants(node, 0);
        compute_again(child, r, node, x);
    }
    if (x && !child->error.code) tern__grad_store(scope, node, 0, x->grad_storage ? &x->grad : NULL);
    if (child && tern_scope_end(child, &err)) tern__scope_fail_with(scope, &err);
    for (int i = 1; i < node->in_count && !scope->error.code; i++) tern__grad_store(scope, node, i, NULL);
    return scope->error.code;
}

/* ---- forward ---- */

/* Runs the first pass, without a tape, and counts the leaves that it used. */
static tern_tensor *try(tern_module *module, tern_scope *scope, tern_tensor *x, int *count)
{
    tern__first_pass *pass = &scope->checkpoint;
    pass->traced = x;
    pass->uses = NULL;
    scope->grad = pass->paused = false;
    tern_tensor *y = tern_forward(module, scope, x);
    if (y && y->leaf) y = tern_clone(scope, y); /* counts as a use */
    scope->grad = true;
    pass->traced = NULL;
    for (const tern__use *use = pass->uses; use; use = use->next) ++*count;
    return y && y->requires_grad ? tern_detach(scope, y) : y == x ? tern_detach(scope, x) : y;
}

tern_tensor *tern_checkpoint(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    if (!module || !TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    if (!scope->grad) return tern_forward(module, scope, x);
    const record r = {module, scope->seed, scope->step, scope->draws, scope->autocast.policy};
    int count = 0;
    tern_tensor *y = try(module, scope, x, &count);
    tern_tensor **inputs = y ? tern__scope_alloc(scope, (size_t)(1 + count) * sizeof(*inputs)) : NULL;
    if (!inputs) return NULL;
    inputs[0] = x;
    int n = 1;
    for (const tern__use *use = scope->checkpoint.uses; use; use = use->next)
        inputs[n++] = use->leaf->parameter;
    tern__node *node = tern__record(scope, "checkpoint", checkpoint_gradient, y, n, inputs);
    tern__save(node, 0, x);
    tern__save_attr(scope, node, &r, sizeof(r));
    return y;
}
