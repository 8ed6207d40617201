/* pass.c - runs a batch through the replicas and records it on the tape.
 *
 * Each replica computes its chunks in its own scope. On the outer tape the pass is one entry, whose inputs
 * are the whole tensors and every parameter that a replica has used. After it there is an entry for each
 * result of each replica, which passes its gradient on; cat and stack, which join the results, are ordinary
 * ops. So when backward reaches the pass, the gradients of all results are there, and all replicas run their
 * backward at once. Then their gradients are added up, each thread doing a share of every parameter, and a
 * ddp is told of each as of any other. */
#include "parallel/data_parallel.h"

#include "ops/ops.h"

#include <string.h>

/* ---- backward ---- */

/* A result of a replica; its entry on the tape keeps the gradient until backward reaches the pass. */
typedef struct result {
    tern__part *part;
    int j;
} result;

static int hold_gradient(tern_scope *scope, tern__node *node)
{
    (void)scope;
    const result *r = node->attr;
    r->part->dy[r->j] = *tern__dy(node);
    r->part->dy_held[r->j] = tern__storage_hold(node->out->grad_storage);
    return TERN_OK;
}

/* Drops the references that the pass holds: on the inputs' memory, which the replicas' tapes only point to,
 * and on the results' gradients. */
static void drop_held(void *self)
{
    const tern__pass *pass = self;
    for (int i = 0; i < pass->x_count; i++) {
        tern__storage_drop(pass->x_held[i]);
        pass->x_held[i] = NULL;
    }
    for (int p = 0; p < pass->count; p++)
        for (int j = 0; j < pass->y_count; j++) {
            tern__storage_drop(pass->parts[p].dy_held[j]);
            pass->parts[p].dy_held[j] = NULL;
        }
}

/* Copies the chunks' gradients into that of the whole input; rows that no replica had get zeros. */
static int finish_input(tern_scope *scope, tern__node *node, const tern__pass *pass, int i)
{
    bool add;
    const tern__view *to = tern__grad_open(scope, node, i, &add);
    if (!to || (!add && !tern__fill(scope, to, 0))) return scope->error.code;
    for (int p = 0; p < pass->count; p++) {
        const tern_tensor *x = pass->parts[p].x[i];
        tern__view chunk = tern__chunk_of(pass, i, p, to);
        if (x->grad_storage && !tern__copy_into(scope, &chunk, &x->grad, add)) return scope->error.code;
    }
    return tern__grad_done(scope, node, i);
}

static int gradient(tern_scope *scope, tern__node *node)
{
    tern__pass *pass = *(tern__pass *const *)node->attr;
    int status = tern__replicas_backward(pass);
    drop_held(pass);
    if (!status) status = tern__replicas_sum(pass);
    for (int i = 0; i < pass->x_count && !status; i++)
        if (tern__wants(node, i)) status = finish_input(scope, node, pass, i);
    for (int k = 0; k < pass->leaf_count && !status; k++)
        status = tern__grad_done(scope, node, pass->x_count + k);
    return status;
}

/* ---- the tape ---- */

/* Collects the leaves on the replicas' tapes, each once. */
static int find_leaves(tern__pass *pass)
{
    const tern__seal *seal = pass->parallel->seal;
    bool *seen = tern__scope_alloc(pass->scope, (size_t)seal->leaf_count * sizeof(*seen));
    pass->leaves = tern__scope_alloc(pass->scope, (size_t)seal->leaf_count * sizeof(tern__leaf *));
    if (!seen || !pass->leaves) return pass->scope->error.code;
    for (int p = 0; p < pass->count; p++) {
        const tern__node *node = pass->parallel->replicas[p].scope->tape;
        for (; node != pass->parts[p].tape; node = node->previous)
            for (int i = 0; i < node->in_count; i++) {
                tern__leaf *leaf = tern__wants(node, i) ? node->in[i]->leaf : NULL;
                bool ours = leaf && leaf->index < seal->leaf_count && seal->leaves[leaf->index] == leaf;
                if (!ours || seen[leaf->index]) continue;
                seen[leaf->index] = true;
                pass->leaves[pass->leaf_count++] = leaf;
            }
    }
    return TERN_OK;
}

/* Records the entry of the whole pass and returns its handle, which all results depend on. */
static tern_tensor *record_pass(tern__pass *pass)
{
    tern_scope *scope = pass->scope;
    int count = pass->x_count + pass->leaf_count;
    tern_tensor **inputs = tern__scope_alloc(scope, (size_t)TERN__MAX(count, 1) * sizeof(*inputs));
    tern__view nothing = tern__view_make(TERN_F32, TERN__PLAIN, 0, NULL);
    tern_tensor *all = inputs ? tern__result_over(scope, &nothing) : NULL;
    if (!all) return NULL;
    memcpy(inputs, pass->x, (size_t)pass->x_count * sizeof(*inputs));
    for (int k = 0; k < pass->leaf_count; k++) inputs[pass->x_count + k] = pass->leaves[k]->parameter;
    tern__node *node = tern__record(scope, "data_parallel", gradient, all, count, inputs);
    tern__save_attr(scope, node, &pass, sizeof(tern__pass *));
    for (int i = 0; i < pass->x_count; i++) pass->x_held[i] = tern__storage_hold(pass->x[i]->storage);
    return all;
}

/* Records a replica's result in the outer scope, over the same memory. */
static tern_tensor *record_result(tern__pass *pass, tern_tensor *all, tern__part *part, int j)
{
    tern_tensor *out = tern__result_over(pass->scope, &part->y[j]->view);
    if (!out) return NULL;
    out->device = pass->parallel->opts.output_device;
    if (!part->y[j]->requires_grad) return out;
    const result r = {part, j};
    tern__node *node = tern__record(pass->scope, "replica", hold_gradient, out, 1, &all);
    tern__save_attr(pass->scope, node, &r, sizeof(r));
    return out;
}

static int record(tern__pass *pass)
{
    tern_tensor *all = NULL;
    if (pass->scope->grad) {
        if (find_leaves(pass) || !(all = record_pass(pass))) return pass->scope->error.code;
        int status = tern__scope_borrow(pass->scope, drop_held, pass);
        if (status) return status;
    }
    for (int p = 0; p < pass->count; p++)
        for (int j = 0; j < pass->y_count; j++)
            if (!(pass->parts[p].out[j] = record_result(pass, all, &pass->parts[p], j)))
                return pass->scope->error.code;
    return TERN_OK;
}

/* ---- forward ---- */

/* Ends the replicas' scopes; an error that a device reports by now fails the whole step. */
static void end_step(void *self)
{
    tern_data_parallel *parallel = self;
    for (int i = 0; i < parallel->count; i++) {
        tern_error err = {0};
        const tern__replica *replica = &parallel->replicas[i];
        if (tern_scope_end(replica->scope, &err))
            tern__replica_fail(replica, parallel->scope, "tern_scope_end", &err);
    }
    parallel->scope = NULL;
}

/* Makes the replicas' scopes end with this one. */
static int begin_step(tern_data_parallel *parallel, tern_scope *scope)
{
    if (parallel->scope == scope) return TERN_OK;
    if (parallel->scope)
        return tern__scope_fail(scope, "tern_data_parallel_forward", TERN_E_STATE,
                                "the replicas are in the middle of another scope's step");
    int status = tern__scope_borrow(scope, end_step, parallel);
    if (status) return status;
    parallel->scope = scope;
    return TERN_OK;
}

/* Makes the slots that the replicas' gradients go to, once gradients are wanted. */
static int make_slots(tern_data_parallel *parallel, tern_scope *scope)
{
    tern_error err = {0};
    if (!scope->grad || parallel->seal) return TERN_OK;
    tern__seal *seal = tern__module_seal(parallel->module, &err);
    for (int i = 0; seal && i < parallel->count; i++)
        if (tern__replica_slots(&parallel->replicas[i], seal, &err)) break;
    if (err.code) return tern__scope_fail_with(scope, &err);
    parallel->seal = seal;
    return TERN_OK;
}

/* Clones results that are an input or a parameter, because backward starts at entries of the tape. */
static int own_results(tern__pass *pass)
{
    for (int p = 0; p < pass->count && pass->scope->grad; p++)
        for (int j = 0; j < pass->y_count; j++) {
            tern_tensor **y = &pass->parts[p].y[j];
            if (!(*y)->requires_grad || (*y)->node) continue;
            tern_scope *inner = pass->parallel->replicas[p].scope;
            if ((*y = tern_clone(inner, *y))) continue;
            return tern__scope_fail_with(pass->scope, &inner->error);
        }
    return TERN_OK;
}

tern_value tern_data_parallel_apply(tern_data_parallel *parallel, tern_scope *scope, tern_replica_fn fn,
                                    tern_value input, void *ctx)
{
    if (!parallel || !scope || scope->error.code) return (tern_value){0};
    if (scope->role.is_replica) {
        tern__scope_fail(scope, __func__, TERN_E_UNSUPPORTED, "data parallel inside a replica");
        return (tern_value){0};
    }
    tern__pass *pass = tern__scope_alloc(scope, sizeof(*pass));
    if (!pass || make_slots(parallel, scope) || begin_step(parallel, scope)) return (tern_value){0};
    *pass = (tern__pass){.parallel = parallel, .scope = scope, .fn = fn, .ctx = ctx};
    tern__precision_enter(parallel->module, scope);
    bool done = tern__scatter(pass, input) == TERN_OK && tern__replicas_forward(pass) == TERN_OK &&
                tern__results_find(pass) == TERN_OK && own_results(pass) == TERN_OK &&
                record(pass) == TERN_OK;
    return done ? tern__gather(pass) : (tern_value){0};
}

static tern_value forward_one(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)ctx;
    return (tern_value){.tensor = tern_forward(module, scope, input.tensor)};
}

tern_tensor *tern_data_parallel_forward(tern_data_parallel *parallel, tern_scope *scope, tern_tensor *x)
{
    if (!parallel || !TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    return tern_data_parallel_apply(parallel, scope, forward_one, (tern_value){.tensor = x}, NULL).tensor;
}
