/* checkpoint.c - activation checkpointing: a call that keeps only its inputs.
 *
 * The first pass runs the call without a tape and notes the parameters that it uses. So the step's tape
 * has one entry for the whole call, and knows from the start which gradients it will bring. Backward runs
 * the call again in a scope of its own, this time with a tape, checks that it uses the same parameters,
 * and goes back through that tape. Gradients of parameters go where they always go; those of the inputs to
 * the entry's inputs. The second pass draws the same random numbers and leaves running statistics alone.
 *
 * An entry has one output, and a call several results. So the entry's output is an empty tensor, `joint`,
 * and each result is the output of an entry of its own, whose input is `joint`. Backward comes to these
 * first. They keep the gradients of the results until it comes to the call's entry.
 *
 * The call may go back inside itself, from tensors that it has detached. Both passes do that. The first
 * one keeps those gradients from parameters and inputs, so that they get them once, from the second. */
#include "nn/nn.h"

#include "ops/ops.h"

#include <string.h>

typedef struct record {
    tern_checkpoint_fn function;
    const void *attr;
    int x_count, y_count;
    tern_tensor **given; /* [x_count] the inputs: one that is given twice is one tensor in both passes */
    tern__saved *x;      /* [x_count] */
    tern__saved *dy;     /* [y_count] from the results' entries */
    uint64_t seed, step, draws;
    const tern__policy *policy;
} record;

/* Returns the index of the input at which input i was given first. */
static int checkpoint_first_of(const record *r, int i)
{
    int first = 0;
    while (r->given[first] != r->given[i]) first++;
    return first;
}

static void record_drop(void *ctx)
{
    record *r = ctx;
    for (int i = 0; i < r->x_count; i++) tern__saved_drop(&r->x[i]);
    for (int i = 0; i < r->y_count; i++) tern__saved_drop(&r->dy[i]);
}

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
    child->grad = true; /* a call before this one may have left gradients off */
    child->role = scope->role;
    child->role.keeps_buffers = child->role.is_again = true;
    return child;
}

/* ---- both passes must do the same ---- */

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

/* Returns the leaf's index among in[from, to) of an entry; -1 if it is none of them. */
static int checkpoint_place_of(const tern__node *node, int from, int to, const tern__leaf *leaf)
{
    int i = to - 1;
    while (i >= from && (!node->in[i] || node->in[i]->leaf != leaf)) i--;
    return i >= from ? i : -1;
}

static int note_inputs(tern_scope *child, const record *r, const tern__node *node, const tern__node *again,
                       bool *seen)
{
    for (int k = 0; k < again->in_count; k++) {
        const tern__leaf *leaf = again->in[k] ? again->in[k]->leaf : NULL;
        int i = leaf ? checkpoint_place_of(node, r->x_count, node->in_count, leaf) : -1;
        if (leaf && i < 0) return fail_use(child, leaf, "only when it was computed again");
        if (leaf) seen[i] = true;
    }
    return TERN_OK;
}

/* Compares the uses of both passes. If they differed, gradients would be missing, or a ddp would wait for
 * ones that never come. An input may be a parameter, which is no leaf in the second pass. */
static int check_uses(tern_scope *child, const record *r, const tern__node *node)
{
    bool *seen = tern__scope_alloc(child, (size_t)node->in_count * sizeof(*seen));
    int status = seen ? TERN_OK : child->error.code;
    for (const tern__node *again = child->tape; again && !status; again = again->previous)
        status = note_inputs(child, r, node, again, seen);
    for (int i = r->x_count; i < node->in_count && !status; i++)
        if (node->in[i] && !seen[i] && checkpoint_place_of(node, 0, r->x_count, node->in[i]->leaf) < 0)
            status = fail_use(child, node->in[i]->leaf, "only the first time");
    return status;
}

/* Checks that a result is what it was, of which there is the gradient. */
static int check_result(tern_scope *child, int i, const tern_tensor *y, const tern__view *dy)
{
    char was[TERN__SHAPE_TEXT], is[TERN__SHAPE_TEXT];
    if (y && y->node && y->scope != child)
        return tern__scope_fail(child, "tern_checkpoint", TERN_E_UNSUPPORTED,
                                "checkpoint: result %d is from outside and wants a gradient; hand it in, or "
                                "tern_detach it",
                                i);
    if (y && tern__view_same_shape(&y->view, dy) && y->view.dtype == dy->dtype) return TERN_OK;
    return tern__scope_fail(child, "tern_checkpoint", TERN_E_STATE,
                            "checkpoint: result %d was %s of %s, but %s%s%s when it was computed again", i,
                            tern__shape_text(dy, was), tern_dtype_name(dy->dtype),
                            y ? tern__shape_text(&y->view, is) : "NULL", y ? " of " : "",
                            y ? tern_dtype_name(y->view.dtype) : "");
}

/* ---- the call ---- */

/* Which of the two passes a call is; without gradients there is only one. */
typedef enum passing { PASS_ONLY, PASS_FIRST, PASS_AGAIN } passing;

/* Calls the function. In the first pass its results become handles that no input and no tape inside the
 * call has; in the second one they become results of its tape. A parameter is copied, which counts as a
 * use. */
static void checkpoint_call(tern_scope *scope, const record *r, tern_tensor *const *x, tern_tensor **y,
                            passing which)
{
    int64_t mark = tern_scope_mark(scope);
    r->function(r->attr, scope, x, y);
    for (int i = 0; i < r->y_count && which != PASS_ONLY && !scope->error.code; i++) {
        bool is_copied =
            y[i] && (which == PASS_FIRST ? y[i]->leaf != NULL : y[i]->requires_grad && !y[i]->node);
        if (is_copied) y[i] = tern_clone(scope, y[i]);
        if (y[i] && which == PASS_FIRST) y[i] = tern_detach(scope, y[i]);
    }
    tern__scope_release(scope, mark, TERN__RELEASED_BY_CALL, r->y_count, y);
}

/* ---- backward ---- */

/* Makes the inputs of the second pass. One that wants no gradient, or a tensor that was given before, has
 * none. */
static tern_tensor **inputs_again(tern_scope *child, const record *r, const tern__node *node)
{
    tern_tensor **x = tern__scope_alloc(child, (size_t)TERN__MAX(r->x_count, 1) * sizeof(*x));
    for (int i = 0; i < r->x_count && x; i++) {
        int first = checkpoint_first_of(r, i);
        if (r->x[i].member) r->x[i].view.data = r->x[i].member->view.data;
        if (first < i)
            x[i] = x[first];
        else if (r->given[i] && (x[i] = tern__saved_tensor(child, &r->x[i])))
            x[i]->requires_grad = tern__wants(node, i);
    }
    return child->error.code ? NULL : x;
}

static int compute_again(tern_scope *child, const record *r, const tern__node *node, tern_tensor **x)
{
    size_t count = (size_t)TERN__MAX(r->y_count, 1);
    tern_tensor **y = tern__scope_alloc(child, count * sizeof(*y));
    tern__view *dy = tern__scope_alloc(child, count * sizeof(*dy));
    if (!y || !dy) return child->error.code;
    checkpoint_call(child, r, x, y, PASS_AGAIN);
    if (child->error.code || check_uses(child, r, node)) return child->error.code;
    for (int i = 0; i < r->y_count; i++) {
        if (!r->dy[i].view.data) continue;
        if (check_result(child, i, y[i], &r->dy[i].view)) return child->error.code;
        if (y[i]->node) dy[i] = r->dy[i].view;
    }
    return tern__backward_from(child, r->y_count, y, dy);
}

static int checkpoint_gradient(tern_scope *scope, tern__node *node)
{
    record *r = (record *)node->attr;
    tern_error err = {0};
    tern_scope *child = open_child(scope, r);
    tern_tensor **x = child ? inputs_again(child, r, node) : NULL;
    bool well = x && !compute_again(child, r, node, x);
    for (int i = 0; i < r->x_count && well && !scope->error.code; i++)
        if (tern__wants(node, i)) tern__grad_store(scope, node, i, x[i]->grad_storage ? &x[i]->grad : NULL);
    if (child && tern_scope_end(child, &err)) tern__scope_fail_with(scope, &err);
    for (int i = r->x_count; i < node->in_count && !scope->error.code; i++)
        tern__grad_store(scope, node, i, NULL);
    record_drop(r);
    return scope->error.code;
}

typedef struct result_attr {
    record *of;
    int index;
} result_attr;

static int checkpoint_result_gradient(tern_scope *scope, tern__node *node)
{
    const result_attr *attr = node->attr;
    (void)scope;
    attr->of->dy[attr->index] =
        (tern__saved){.view = *tern__dy(node), .storage = tern__storage_hold(node->out->grad_storage)};
    return TERN_OK;
}

/* ---- forward ---- */

static record *new_record(tern_scope *scope, const record *like, tern_tensor *const *x, size_t bytes)
{
    size_t inputs = (size_t)TERN__MAX(like->x_count, 1), results = (size_t)TERN__MAX(like->y_count, 1);
    record *r = tern__scope_alloc(scope, sizeof(*r));
    void *attr = tern__scope_alloc(scope, TERN__MAX(bytes, 1));
    if (!r || !attr) return NULL;
    *r = *like;
    r->given = tern__scope_alloc(scope, inputs * sizeof(*r->given));
    r->x = tern__scope_alloc(scope, inputs * sizeof(*r->x));
    r->dy = tern__scope_alloc(scope, results * sizeof(*r->dy));
    if (!r->given || !r->x || !r->dy) return NULL;
    if (like->attr) memcpy(attr, like->attr, bytes);
    r->attr = attr;
    for (int i = 0; i < r->x_count; i++) r->given[i] = x[i];
    return r;
}

/* Runs the first pass, without a tape, and counts the leaves that it used. */
static int checkpoint_try(tern_scope *scope, const record *r, tern_tensor **y)
{
    tern__first_pass *pass = &scope->checkpoint;
    int count = 0;
    pass->traced = r->given;
    pass->traced_count = r->x_count;
    pass->uses = NULL;
    scope->grad = pass->paused = false;
    checkpoint_call(scope, r, r->given, y, PASS_FIRST);
    scope->grad = true;
    pass->traced = NULL;
    pass->traced_count = 0;
    for (const tern__use *use = pass->uses; use; use = use->next) count++;
    return count;
}

/* Puts the call on the tape: its inputs, each once, and the leaves that it has used. */
static tern_tensor *checkpoint_record(tern_scope *scope, record *r, int leaf_count)
{
    int n = r->x_count;
    tern_tensor *joint = tern__result(scope, TERN_F32, TERN__PLAIN, 1, (int64_t[]){0});
    tern_tensor **in = tern__scope_alloc(scope, (size_t)TERN__MAX(n + leaf_count, 1) * sizeof(*in));
    if (!joint || !in) return NULL;
    for (int i = 0; i < n; i++) in[i] = checkpoint_first_of(r, i) == i ? r->given[i] : NULL;
    for (const tern__use *use = scope->checkpoint.uses; use; use = use->next) in[n++] = use->leaf->parameter;
    tern__node *node = tern__record(scope, "checkpoint", checkpoint_gradient, joint, n, in);
    if (!node || tern__scope_borrow(scope, record_drop, r)) return NULL;
    node->attr = r;
    for (int i = 0; i < r->x_count; i++)
        if (in[i]) r->x[i] = tern__saved_of(scope, in[i]);
    return joint;
}

static void checkpoint_run(tern_scope *scope, record *r, tern_tensor **y)
{
    int leaf_count = checkpoint_try(scope, r, y);
    tern_tensor *joint = scope->error.code ? NULL : checkpoint_record(scope, r, leaf_count);
    for (int i = 0; i < r->y_count && joint; i++) {
        if (!y[i] || !tern__dtype_is_float(y[i]->view.dtype)) continue;
        tern__node *node =
            tern__record(scope, "checkpoint", checkpoint_result_gradient, y[i], 1, (tern_tensor *[]){joint});
        tern__save_attr(scope, node, &(result_attr){r, i}, sizeof(result_attr));
    }
}

static bool checkpoint_can_run(tern_scope *scope, const record *r, tern_tensor *const *x, tern_tensor **y)
{
    if (r->function && r->x_count >= 0 && r->y_count >= 0 && (x || !r->x_count) && (y || !r->y_count))
        return true;
    tern__scope_fail(scope, "tern_checkpoint_function", TERN_E_INVALID,
                     "checkpoint: expected a function, its inputs, and room for its results");
    return false;
}

static void results_clear(int y_count, tern_tensor **y)
{
    for (int i = 0; i < y_count && y; i++) y[i] = NULL;
}

/* The inputs are copied before the results are cleared: both lists may be one. */
int tern_checkpoint_function(tern_scope *scope, tern_checkpoint_fn function, int x_count,
                             tern_tensor *const *x, int y_count, tern_tensor **y, const void *attr,
                             size_t bytes)
{
    record *r = NULL;
    if (!scope || scope->error.code) {
        results_clear(y_count, y);
        return tern_scope_error(scope)->code;
    }
    const record like = {.function = function,
                         .attr = attr,
                         .x_count = x_count,
                         .y_count = y_count,
                         .seed = scope->seed,
                         .step = scope->step,
                         .draws = scope->draws,
                         .policy = scope->autocast.policy};
    if (checkpoint_can_run(scope, &like, x, y)) r = new_record(scope, &like, x, bytes);
    results_clear(y_count, y);
    for (int i = 0; i < x_count && r; i++)
        if (!tern__op_enter(scope, "tern_checkpoint", 0, 1, &r->given[i])) return scope->error.code;
    if (r && scope->grad)
        checkpoint_run(scope, r, y);
    else if (r)
        checkpoint_call(scope, r, r->given, y, PASS_ONLY);
    if (scope->error.code) results_clear(y_count, y);
    return scope->error.code;
}

/* ---- modules ---- */

typedef struct module_attr {
    tern_module *module;
    tern_forward_fn forward;
} module_attr;

static void checkpoint_module(const void *attr, tern_scope *scope, tern_tensor *const *x, tern_tensor **y)
{
    const module_attr *a = attr;
    y[0] = tern__forward_once(a->module, scope, x[0], a->forward);
}

tern_tensor *tern__checkpoint_by(tern_module *module, tern_scope *scope, tern_tensor *x,
                                 tern_forward_fn forward)
{
    tern_tensor *y;
    const module_attr attr = {module, forward};
    tern_checkpoint_function(scope, checkpoint_module, 1, &x, 1, &y, &attr, sizeof(attr));
    return y;
}

tern_tensor *tern_checkpoint(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    if (!module || !TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    return tern__checkpoint_by(module, scope, x, module->forward);
}

/* The kind may be of the caller's stack, and is needed in backward. */
typedef struct inputs_attr {
    tern__call_kind kind;
    tern_module *module;
    size_t opts[16];
} inputs_attr;

static void checkpoint_inputs(const void *attr, tern_scope *scope, tern_tensor *const *x, tern_tensor **y)
{
    const inputs_attr *a = attr;
    tern_tensor *in[TERN__CALL_INPUTS];
    memcpy(in, x, (size_t)a->kind.count * sizeof(*in));
    y[0] = tern__forward_inputs_once(&a->kind, a->module, scope, in, a->kind.opts ? a->opts : NULL);
}

tern_tensor *tern__checkpoint_inputs(const tern__call_kind *kind, tern_module *module, tern_scope *scope,
                                     tern_tensor **x, const void *opts)
{
    tern_tensor *y;
    inputs_attr attr = {*kind, module, {0}};
    if (kind->opts) memcpy(attr.opts, opts, kind->opts);
    tern_checkpoint_function(scope, checkpoint_inputs, kind->count, x, 1, &y, &attr, sizeof(attr));
    return y;
}

int tern_module_checkpoint_set(tern_module *module, const char *kind, bool enabled)
{
    if (!module || !module->tree || !kind) return 0;
    bool is_one = !strcmp(module->kind, kind);
    int count = is_one;
    if (is_one) module->tree->is_checkpointed = enabled;
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        count += tern_module_checkpoint_set(child->module, kind, enabled);
    return count;
}
