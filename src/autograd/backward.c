/* backward.c - computes gradients from the loss back over the tape.
 *
 * A first walk computes nothing: from the loss on it marks every entry that the loss depends on, and counts
 * the uses of each parameter (`pending`). Then the marked entries run, newest first, which is a topological
 * order. The first gradient written to a tensor is stored, later ones are added. After the last use of a
 * parameter its listener is called, so that its bucket can be reduced while the rest still computes. When an
 * entry has run, its saved data and its output's gradient go back to the device. */
#include "autograd/autograd.h"
#include "comm/group.h"
#include "kernels/pointwise.h"

#include <string.h>

#define ENDLESS 1000

/* ---- sending gradients ---- */

bool tern__owns_dy(const tern__node *node)
{
    return tern__storage_is_sole(node->out->grad_storage);
}

bool tern__owns_saved(const tern__node *node, int slot)
{
    const tern__storage *storage = node->saved[slot].storage;
    return storage && tern__storage_is_sole(storage);
}

/* Returns the memory of a leaf's gradient, or of the replica's own. */
static const tern__view *leaf_open(tern_scope *scope, tern__leaf *leaf, bool *add)
{
    const tern__slot *slot = scope->role.slots ? &scope->role.slots[leaf->index] : NULL;
    *add = slot ? slot->fresh : leaf->fresh;
    return slot ? &slot->grad : &leaf->grad->view;
}

/* ---- gradients that go into a temporary first ----
 *
 * A 16-bit parameter may have an f32 gradient. Its gradient functions write a temporary in the parameter's
 * dtype, which is then added to the gradient. So they need not know about f32, and a sum over many uses and
 * microbatches is rounded in f32. A parameter that one op takes twice, say as weight and as bias, has a
 * temporary for each, because the op's gradient function may have both open at once. */

static bool is_taken_again(const tern__node *node, int i)
{
    int times = 0;
    for (int k = 0; k < node->in_count; k++) times += node->in[k] && node->in[k]->leaf == node->in[i]->leaf;
    return times > 1;
}

static const tern__view *aside_open(tern_scope *scope, tern__node *node, int i)
{
    const tern__view *p = &node->in[i]->view;
    if (!node->aside) node->aside = tern__scope_alloc(scope, (size_t)node->in_count * sizeof(*node->aside));
    if (!node->aside) return NULL;
    tern__view like = tern__view_make(p->dtype, p->layout, p->ndim, p->shape);
    node->aside[i] = tern__temporary(scope, &like);
    return node->aside[i].storage ? &node->aside[i].view : NULL;
}

static bool aside_done(tern_scope *scope, tern__node *node, int i)
{
    bool add;
    tern__saved *aside = node->aside ? &node->aside[i] : NULL;
    if (!aside || !aside->storage) return true;
    const tern__view *to = leaf_open(scope, node->in[i]->leaf, &add);
    tern__call call = {.kernel = TERN__COPY, .in = {&aside->view}, .out = {to}, .add = {add}};
    bool done = tern__view_count(to) == 0 || tern__run(scope, &call);
    tern__saved_drop(aside);
    return done;
}

/* Gives the tensor a copy of its gradient, which it shares with another tensor, so that it may be added to.
 */
static bool own_copy(tern_scope *scope, tern_tensor *tensor)
{
    tern__saved own = tern__temporary(scope, &tensor->grad);
    if (!own.storage) return false;
    tern__call copy = {.kernel = TERN__COPY, .in = {&tensor->grad}, .out = {&own.view}};
    if (!tern__run(scope, &copy)) {
        tern__storage_drop(own.storage);
        return false;
    }
    tern__storage_drop(tensor->grad_storage);
    tensor->grad = own.view;
    tensor->grad_storage = own.storage;
    return true;
}

/* Allocates a gradient in the tensor's layout. */
static bool take_grad(tern_scope *scope, tern_tensor *tensor)
{
    tern__view like =
        tern__view_make(tensor->view.dtype, tensor->view.layout, tensor->view.ndim, tensor->view.shape);
    tern__saved own = tern__temporary(scope, &like);
    tensor->grad = own.view;
    tensor->grad_storage = own.storage;
    return own.storage != NULL;
}

/* ---- gradients that come in parts ----
 *
 * The slices of a tensor write their gradients into parts of its own. Zeros are needed only where no slice
 * has written, and that is known when the gradient is used, or when something else adds to it. */

#define PARTS 16

typedef struct tern__grad_parts {
    int dim, count;
    int64_t start[PARTS], stop[PARTS]; /* ascending, without overlap */
} tern__grad_parts;

/* False if the part overlaps one that is there, or there are too many. */
static bool parts_add(tern__grad_parts *parts, int64_t start, int64_t stop)
{
    int at = parts->count;
    while (at > 0 && parts->start[at - 1] >= stop) at--;
    if (parts->count == PARTS || (at > 0 && parts->stop[at - 1] > start)) return false;
    for (int i = parts->count++; i > at; i--) {
        parts->start[i] = parts->start[i - 1];
        parts->stop[i] = parts->stop[i - 1];
    }
    parts->start[at] = start;
    parts->stop[at] = stop;
    return true;
}

static int fill_value(tern_scope *scope, const tern__view *view, double value)
{
    const tern__pointwise_attr attr = {{value, 0}};
    tern__call call = {.kernel = TERN__FILL, .in = {view}, .out = {view}, .attr = &attr};
    return tern__view_count(view) == 0 || tern__run(scope, &call) ? TERN_OK : scope->error.code;
}

/* Fills [start, stop) of the gradient with zeros. */
static int clear_gap(tern_scope *scope, const tern_tensor *tensor, int dim, int64_t start, int64_t stop)
{
    tern__view gap = tensor->grad;
    gap.data = (char *)gap.data + start * gap.stride[dim] * (int64_t)tern_dtype_bytes(gap.dtype);
    gap.shape[dim] = stop - start;
    return fill_value(scope, &gap, 0);
}

/* Completes a gradient that came in parts. */
static int grad_settle(tern_scope *scope, tern_tensor *tensor)
{
    const tern__grad_parts *parts = tensor->grad_parts;
    if (!parts) return TERN_OK;
    tern_device *here = scope->here;
    scope->here = tensor->device ? tensor->device : scope->device;
    int status = TERN_OK;
    int64_t at = 0;
    for (int i = 0; i <= parts->count && !status; i++) {
        int64_t end = i < parts->count ? parts->start[i] : tensor->grad.shape[parts->dim];
        if (at < end) status = clear_gap(scope, tensor, parts->dim, at, end);
        at = i < parts->count ? parts->stop[i] : at;
    }
    tensor->grad_parts = NULL;
    scope->here = here;
    return status;
}

const tern__view *tern__grad_open(tern_scope *scope, tern__node *node, int i, bool *add)
{
    tern_tensor *tensor = node->in[i];
    if (grad_settle(scope, tensor)) return NULL;
    if (tensor->leaf) {
        const tern__view *to = leaf_open(scope, tensor->leaf, add);
        if (to->dtype == tensor->view.dtype && !is_taken_again(node, i)) return to;
        *add = false;
        return aside_open(scope, node, i);
    }
    *add = tensor->grad_storage != NULL;
    tensor->grad_is_cut = false;
    if (*add)
        return tern__storage_is_sole(tensor->grad_storage) || own_copy(scope, tensor) ? &tensor->grad : NULL;
    return take_grad(scope, tensor) ? &tensor->grad : NULL;
}

/* Returns the gradient of a view's input, of which it will write its part. */
static const tern__view *view_part_open(tern_scope *scope, tern__node *node, bool *add)
{
    tern_tensor *tensor = node->in[0];
    const tern__view_part *w = node->shows;
    bool comes_in_parts = tensor->node && w->dim >= 0;
    if (comes_in_parts && !tensor->grad_storage) {
        if (!(tensor->grad_parts = tern__scope_alloc(scope, sizeof(*tensor->grad_parts)))) return NULL;
        tensor->grad_parts->dim = w->dim;
        tensor->grad_is_cut = false;
        if (!take_grad(scope, tensor)) return NULL;
    }
    *add = false;
    tern__grad_parts *parts = tensor->grad_parts;
    if (comes_in_parts && parts && parts->dim == w->dim && parts_add(parts, w->start, w->stop))
        return &tensor->grad;
    const tern__view *grad = tern__grad_open(scope, node, 0, add);
    if (grad && !*add && w->dim != TERN__PART_WHOLE && fill_value(scope, grad, 0)) return NULL;
    return grad;
}

bool tern__grad_open_part(tern_scope *scope, tern__node *node, const tern__view *like, tern__view *seen,
                          bool *add)
{
    const tern__view_part *w = node->shows;
    const tern__view *grad = view_part_open(scope, node, add);
    if (!grad) return false;
    *seen = *grad;
    seen->data = (char *)grad->data + w->offset * (int64_t)tern_dtype_bytes(grad->dtype);
    seen->ndim = like->ndim;
    for (int d = 0; d < like->ndim; d++) {
        seen->shape[d] = like->shape[d];
        seen->stride[d] = w->stride[d];
    }
    return true;
}

/* True if a kernel may store the gradient of input i where the slice `view` shows its own input's gradient:
 * nothing is there yet, and the kernel writes nothing else there. */
static bool grad_may_be_lent(const tern__node *node, int i, const tern__node *view)
{
    const tern_tensor *tensor = node->in[i], *base = view->in[0];
    const tern__view_part *w = view->shows;
    if (tensor->grad_storage || tensor->grad_is_lent || !base->node || w->dim < 0) return false;
    for (int k = 0; k < node->in_count; k++)
        if (node->in[k] == base) return false;
    if (!base->grad_storage) return true;
    tern__grad_parts trial;
    if (!base->grad_parts || base->grad_parts->dim != w->dim) return false;
    trial = *base->grad_parts;
    return parts_add(&trial, w->start, w->stop);
}

bool tern__grad_open_strided(tern_scope *scope, tern__node *node, int i, tern__view *to, bool *add)
{
    tern_tensor *tensor = node->in[i];
    tern__node *view = tensor->leaf ? NULL : tensor->node;
    if (view && view->shows && grad_may_be_lent(node, i, view)) {
        tensor->grad_is_lent = true;
        return tern__grad_open_part(scope, view, &tensor->view, to, add);
    }
    const tern__view *grad = tern__grad_open(scope, node, i, add);
    if (grad) *to = *grad;
    return grad != NULL;
}

int tern__grad_done(tern_scope *scope, tern__node *node, int i)
{
    tern__leaf *leaf = node->in[i]->leaf;
    if (!leaf) return TERN_OK;
    if (!aside_done(scope, node, i)) return scope->error.code;
    if (scope->role.slots) {
        scope->role.slots[leaf->index].fresh = true;
        scope->role.slots[leaf->index].pending--;
        return TERN_OK;
    }
    leaf->fresh = true;
    if (--leaf->pending > 0) return TERN_OK;
    if (scope->watch && scope->watch->ready(scope->watch, scope, leaf)) return scope->error.code;
    if (!leaf->listener) return TERN_OK;
    tern_error err = {0};
    int status = leaf->listener->ready(leaf->listener, leaf, &err);
    return status ? tern__scope_fail_with(scope, &err) : TERN_OK;
}

int tern__grad_run(tern_scope *scope, tern__node *node, int i, tern__call *call)
{
    const tern__view *to = call->out[0] = tern__grad_open(scope, node, i, &call->add[0]);
    bool ran = to && (tern__view_count(to) == 0 || tern__run(scope, call));
    return ran ? tern__grad_done(scope, node, i) : scope->error.code;
}

static int add_into(tern_scope *scope, const tern__view *to, const tern__view *from, bool add)
{
    tern__call call = {.kernel = add ? TERN__ADD : TERN__COPY, .in = {add ? to : from, from}, .out = {to}};
    if (!add) call.in[1] = NULL;
    return tern__run(scope, &call) ? TERN_OK : scope->error.code;
}

/* Lets the tensor share gradient memory. An input of the step does not share: the user may write to its
 * gradient, so it has memory of its own. */
static bool backward_share(tern_tensor *tensor, const tern__view *view, tern__storage *storage)
{
    if (!tensor->node || tensor->grad_storage || view->layout != tensor->view.layout) return false;
    tensor->grad = *view;
    tensor->grad_storage = tern__storage_hold(storage);
    return true;
}

bool tern__grad_share(tern__node *node, int i, const tern_tensor *dx)
{
    bool is_like = dx->view.dtype == node->in[i]->view.dtype && tern__view_is_dense(&dx->view);
    bool is_ours = dx->scope == node->out->scope && dx->storage && !dx->storage->release;
    return is_like && is_ours && backward_share(node->in[i], &dx->view, dx->storage);
}

static int grad_share_or_add(tern_scope *scope, tern__node *node, int i, const tern__view *view,
                             tern__storage *storage)
{
    if (backward_share(node->in[i], view, storage)) return TERN_OK;
    bool add;
    const tern__view *to = tern__grad_open(scope, node, i, &add);
    if (!to) return scope->error.code;
    int status = add_into(scope, to, view, add);
    return status ? status : tern__grad_done(scope, node, i);
}

int tern__grad_give(tern_scope *scope, tern__node *node, int i, const tern__view *view)
{
    return grad_share_or_add(scope, node, i, view, node->out->grad_storage);
}

int tern__grad_give_saved(tern_scope *scope, tern__node *node, int i, int slot)
{
    return grad_share_or_add(scope, node, i, &node->saved[slot].view, node->saved[slot].storage);
}

/* ---- the walk ---- */

static int count_in_slot(tern_scope *scope, const tern__leaf *leaf)
{
    if (!leaf->grad || leaf->index >= scope->role.slot_count || scope->role.slots[leaf->index].leaf != leaf)
        return tern__scope_fail(scope, "tern_backward", TERN_E_UNSUPPORTED,
                                "a replica uses a parameter of another model than its own");
    scope->role.slots[leaf->index].pending++;
    return TERN_OK;
}

/* Reports a backward that a leaf's ddp will not see. A replica runs inside the outer scope's backward, which
 * the ddp does see. */
static int check_heard(tern_scope *scope, const tern__leaf *leaf)
{
    tern_error err = {0};
    tern__listener *l = leaf->listener;
    if (!l || scope->role.is_replica || tern__scope_is_of(scope, l->group)) return TERN_OK;
    return l->missed(l, &err) ? tern__scope_fail_with(scope, &err) : TERN_OK;
}

static int count_leaf(tern_scope *scope, tern__leaf *leaf)
{
    if (scope->role.slots) return count_in_slot(scope, leaf);
    if (check_heard(scope, leaf)) return scope->error.code;
    if (!leaf->grad) {
        tern_error err = {0};
        if (leaf->seal(leaf->module, &err)) return tern__scope_fail_with(scope, &err);
    }
    leaf->pending++;
    return TERN_OK;
}

static void mark_one(tern_scope *scope, tern__node *node)
{
    scope->marked += !node->marked;
    node->marked = true;
}

static int node_mark(tern_scope *scope, tern__node *node)
{
    if (node->done && !node->again)
        return tern__scope_fail(
            scope, "tern_backward", TERN_E_STATE,
            "backward has already gone through this %s: its data is recycled; compute it again or add "
            "the losses and call backward once",
            node->op);
    for (int i = 0; i < node->in_count; i++) {
        if (!tern__wants(node, i)) continue;
        if (node->in[i]->node) mark_one(scope, node->in[i]->node);
        int status = node->in[i]->leaf ? count_leaf(scope, node->in[i]->leaf) : TERN_OK;
        if (status) return status;
    }
    return TERN_OK;
}

/* Marks the entries on which the marked entries depend, from `newest` back. Stops behind the last marked one:
 * beyond it are the step's earlier backwards, and there may be many. */
static int mark_all(tern_scope *scope, tern__node *newest)
{
    int64_t passed = 0;
    for (tern__node *node = newest; node && passed < scope->marked; node = node->previous) {
        int status = node->marked ? node_mark(scope, node) : TERN_OK;
        if (status) return status;
        passed += node->marked;
    }
    return TERN_OK;
}

/* Finds parameters where the seal has moved them. */
static void find_members(tern__node *node)
{
    for (int i = 0; i < TERN__NODE_SAVES; i++)
        if (node->saved[i].member) node->saved[i].view.data = node->saved[i].member->view.data;
}

/* Makes again what the node needs and did not keep. The maker is older, so it has yet to run and holds all
 * that it has saved. It keeps the result for other nodes that need it. */
static int remake_saved(tern_scope *scope, tern__saved *saved)
{
    tern__node *maker = saved->maker;
    if (!maker) return TERN_OK;
    if (!maker->remade.storage) {
        find_members(maker);
        maker->remade = tern__temporary(scope, &saved->view);
        if (!maker->remade.storage || !maker->remake(scope, maker, &maker->remade.view))
            return scope->error.code;
    }
    saved->storage = tern__storage_hold(maker->remade.storage);
    saved->view.data = maker->remade.view.data;
    return TERN_OK;
}

static int run_node(tern_scope *scope, tern__node *node)
{
    find_members(node);
    scope->here = node->out->device ? node->out->device : scope->device;
    int status = grad_settle(scope, node->out);
    for (int i = 0; i < TERN__NODE_SAVES && !status; i++) status = remake_saved(scope, &node->saved[i]);
    if (!status) status = node->gradient(scope, node);
    for (int i = 0; i < TERN__NODE_SAVES; i++) tern__saved_drop(&node->saved[i]);
    tern__saved_drop(&node->remade);
    for (int i = 0; node->aside && i < node->in_count; i++) tern__saved_drop(&node->aside[i]);
    tern__storage_drop(node->out->grad_storage);
    node->out->grad_storage = NULL;
    node->out->grad_is_cut = node->out->grad_is_lent = false;
    node->marked = false;
    scope->marked--;
    node->done = true;
    return status;
}

static int run_tape(tern_scope *scope, tern__node *newest)
{
    for (tern__node *node = newest; node && scope->marked; node = node->previous) {
        int status = node->marked ? run_node(scope, node) : TERN_OK;
        if (status) return status;
    }
    return TERN_OK;
}

/* Makes the constant 1 once and keeps it for later steps: on a GPU, filling it would be a launch a step. */
static int keep_one(tern_scope *scope, tern_dtype dtype)
{
    tern__view like = tern__view_make(dtype, TERN__PLAIN, 0, NULL);
    if (scope->one.data && scope->one_dtype == dtype) return TERN_OK;
    if (scope->one.data) tern__storage_drop(&scope->one);
    scope->one.data = NULL;
    tern__saved made = tern__temporary(scope, &like);
    if (!made.storage || fill_value(scope, &made.view, 1)) {
        tern__storage_drop(made.storage);
        return scope->error.code;
    }
    scope->one = *made.storage; /* the only reference */
    scope->one_dtype = dtype;
    return TERN_OK;
}

/* Sets the loss's gradient to 1. */
static int seed_loss(tern_scope *scope, tern_tensor *loss)
{
    scope->here = loss->device ? loss->device : scope->device;
    bool is_kept = scope->here == scope->device && loss->view.layout == TERN__PLAIN;
    if (is_kept && keep_one(scope, loss->view.dtype)) return scope->error.code;
    tern__saved seed = is_kept ? (tern__saved){.view = loss->view, .storage = tern__storage_hold(&scope->one)}
                               : tern__temporary(scope, &loss->view);
    if (!seed.storage) return scope->error.code;
    seed.view.data = seed.storage->data;
    seed.view.packs = NULL;
    loss->grad = seed.view;
    loss->grad_storage = seed.storage;
    return is_kept ? TERN_OK : fill_value(scope, &loss->grad, 1);
}

/* ---- listeners ---- */

/* A recomputation is part of the backward around it, which the listeners follow already. */
static tern__listener *listeners(const tern_scope *scope)
{
    return scope->group && !scope->role.is_again ? tern__group_root(scope->group)->listeners : NULL;
}

static int begin_all(tern_scope *scope, const tern_tensor *loss)
{
    tern_error err = {0};
    for (tern__listener *l = listeners(scope); l; l = l->next)
        if (l->begin(l, loss, &err)) return tern__scope_fail_with(scope, &err);
    scope->asks = false;
    return TERN_OK;
}

static int end_all(tern_scope *scope)
{
    tern_error err = {0};
    for (tern__listener *l = listeners(scope); l; l = l->next)
        if (l->end(l, &err)) return tern__scope_fail_with(scope, &err);
    return TERN_OK;
}

static int check_loss(tern_scope *scope, const tern_tensor *loss)
{
    char shape[TERN__SHAPE_TEXT];
    if (scope->marked)
        return tern__scope_fail(scope, "tern_backward", TERN_E_STATE,
                                "it was called inside a function's backward");
    if (tern__view_count(&loss->view) != 1)
        return tern__scope_fail(scope, "tern_backward", TERN_E_SHAPE,
                                "the loss has shape %s, but backward starts from one element",
                                tern__shape_text(&loss->view, shape));
    if (!loss->node)
        return tern__scope_fail(scope, "tern_backward", TERN_E_STATE,
                                "the loss depends on nothing that wants a gradient, or gradients were off");
    return TERN_OK;
}

/* Resets the counts after a failure, so that the next backward starts from zero. */
static void forget_pending(tern_scope *scope)
{
    for (tern__node *node = scope->tape; node; node = node->previous)
        for (int i = 0; i < node->in_count; i++)
            if (tern__wants(node, i) && node->in[i]->leaf) node->in[i]->leaf->pending = 0;
}

static void trace_part(const tern_scope *scope, const char *name, int64_t began, int64_t ended)
{
    tern__trace_add(scope->trace, &(tern__trace_event){.name = name,
                                                       .track = TERN__TRACK_COMPUTE,
                                                       .began = began,
                                                       .ended = ended,
                                                       .args = {{"step", (int64_t)scope->step}}});
}

/* The span "synchronise" is the last part of "backward", after the last gradient was computed. */
static void trace_all(const tern_scope *scope)
{
    int64_t now = tern__trace_now(scope->trace);
    trace_part(scope, "forward", scope->forward_began, scope->backward_began);
    trace_part(scope, "backward", scope->backward_began, now);
    if (listeners(scope)) trace_part(scope, "synchronise", scope->backward_ended, now);
}

/* A program that never ends its steps computes the right thing, but takes more memory with each. */
static void note_endless(tern_scope *scope)
{
    if (++scope->backwards == ENDLESS)
        tern__log(
            TERN_LOG_WARN,
            "tern_backward: %d backwards on a scope without tern_scope_end, which recycles their memory",
            ENDLESS);
}

int tern_backward(tern_scope *scope, tern_tensor *loss)
{
    if (!TERN__ENTER(scope, "tern_backward", 1, &loss)) return tern_scope_error(scope)->code;
    int status = check_loss(scope, loss);
    if (status) return status;
    scope->backward_began = tern__now_ns();
    mark_one(scope, loss->node);
    status = mark_all(scope, loss->node);
    if (!status) status = begin_all(scope, loss);
    if (!status) status = seed_loss(scope, loss);
    if (!status) status = run_tape(scope, loss->node);
    scope->backward_ended = tern__now_ns();
    if (!status) status = end_all(scope);
    if (!status && scope->trace) trace_all(scope);
    scope->forward_began = 0;
    scope->watch = NULL;
    note_endless(scope);
    if (status) forget_pending(scope);
    return status;
}

/* ---- a part of another scope's step ---- */

/* Sets or, if `out` is listed twice, adds to a result's gradient, in the result's layout. */
static int seed_result(tern_scope *scope, tern_tensor *out, const tern__view *dy)
{
    scope->here = out->device ? out->device : scope->device;
    bool add = out->grad_storage != NULL, reorder = dy->layout != out->view.layout;
    if (!add && !take_grad(scope, out)) return scope->error.code;
    mark_one(scope, out->node);
    tern__call call = {
        .kernel = reorder ? TERN__REORDER : TERN__COPY, .in = {dy}, .out = {&out->grad}, .add = {add}};
    return tern__run(scope, &call) ? TERN_OK : scope->error.code;
}

int tern__backward_from(tern_scope *scope, int count, tern_tensor *const *outs, const tern__view *dy)
{
    int status = TERN_OK;
    scope->marked = 0;
    for (int i = 0; i < count && !status; i++)
        if (dy[i].data) status = seed_result(scope, outs[i], &dy[i]);
    if (!status) status = mark_all(scope, scope->tape);
    if (!status) status = run_tape(scope, scope->tape);
    if (status && !scope->role.slots) forget_pending(scope);
    return status;
}

/* Returns the gradient of a step's input. It stays with the input, because no tape entry consumes it. */
static tern_tensor *input_grad(const tern_tensor *x)
{
    bool has_one = x->scope && !x->node && x->grad_storage && !tern__tensor_check(x, "tern_grad_get", NULL);
    return has_one ? tern__grad_tensor(x->scope, x) : NULL;
}

tern_tensor *tern_grad_get(const tern_tensor *tensor)
{
    if (!tensor || !tensor->leaf) return tensor ? input_grad(tensor) : NULL;
    return tensor->leaf->fresh ? tensor->leaf->grad : NULL;
}
