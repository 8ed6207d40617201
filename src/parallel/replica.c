/* replica.c - the work on a replica's thread: its part of a forward, of a backward, and of the sum of
 * gradients. The calling thread waits meanwhile, so the replicas' threads may all read the outer scope. */
#include "parallel/data_parallel.h"

#include "comm/move/reduce.h"
#include "device/choices.h"
#include "ops/ops.h"
#include "tensor/host.h"

#include <string.h>

/* ---- life ---- */

int tern__replica_open(tern__replica *replica, tern_error *err)
{
    replica->scope = tern_scope_new(replica->device, NULL, err);
    if (!replica->scope) return err->code;
    replica->scope->role =
        (tern__role){.is_replica = true, .keeps_buffers = replica->index > 0, .follows = replica->index > 0};
    replica->model.device = replica->device;
    return TERN_OK;
}

void tern__replica_close(tern__replica *replica)
{
    tern_scope_free(replica->scope);
    tern__mirrors_free(&replica->model);
    tern__free(replica->slots);
    tern__memory_free(replica->grads);
}

int tern__replica_slots(tern__replica *replica, const tern__seal *seal, tern_error *err)
{
    if (replica->index == 0 || replica->slots) return TERN_OK;
    size_t start[TERN__RANGES];
    for (int r = 0; r < seal->range_count; r++) {
        start[r] = replica->grad_bytes;
        replica->grad_bytes += seal->ranges[r].grad_bytes;
    }
    size_t bytes = (size_t)seal->leaf_count * sizeof(*replica->slots);
    replica->slots = tern__alloc(bytes, "tern_data_parallel", err);
    replica->grads = tern__memory_new(replica->device, replica->grad_bytes, "tern_data_parallel", err);
    if (!replica->slots || !replica->grads) return TERN_E_MEMORY;
    for (int k = 0; k < seal->leaf_count; k++) {
        tern__slot *slot = &replica->slots[k];
        *slot = (tern__slot){.leaf = seal->leaves[k], .grad = seal->leaves[k]->grad->view};
        const tern__range *range = &seal->ranges[seal->range_of[k]];
        slot->grad.data =
            replica->grads + start[seal->range_of[k]] + tern__grad_offset(range, seal->offset[k]);
    }
    replica->scope->role.slots = replica->slots;
    replica->scope->role.slot_count = seal->leaf_count;
    return TERN_OK;
}

/* ---- in another memory ---- */

/* Copies the model to a replica's device, once per forward, as PyTorch's replicate() does. All copies are
 * made before any replica starts, because a copy waits for all work enqueued on its source device. */
static int bring_model(tern__replica *replica, tern_error *err)
{
    const tern_module *module = replica->parallel->module;
    int status = TERN_OK;
    for (int i = 0, count = tern__entry_count(module); i < count && !status; i++) {
        const tern__view *view = &tern__entry_get(module, i).tensor->view;
        size_t bytes = tern__view_count(view) ? tern__view_reach(view) : 0;
        status = tern__mirrors_want(&replica->model, view->data, bytes, err);
    }
    return status ? status : tern__mirrors_fill(&replica->model, err);
}

static int bring_models(tern__pass *pass)
{
    tern_error err = {0};
    for (int i = 1; i < pass->count; i++) {
        tern__replica *replica = &pass->parallel->replicas[i];
        if (replica->device->backend && bring_model(replica, &err))
            return tern__scope_fail_with(pass->scope, &err);
    }
    return TERN_OK;
}

/* Copies the gradients of the results to the replicas' devices, once per backward. */
static int bring_gradients(tern__pass *pass)
{
    for (int i = 0; i < pass->count; i++)
        for (int j = 0; j < pass->y_count; j++) {
            tern__view *dy = &pass->parts[i].dy[j];
            if (!dy->data || !tern__replica_lacks(&pass->parallel->replicas[i], dy)) continue;
            tern_tensor *copy = tern__replica_copy(pass, i, dy);
            if (!copy) return pass->scope->error.code;
            *dy = copy->view;
        }
    return TERN_OK;
}

/* ---- on all threads ---- */

/* Replica 0 measures convolutions. The other replicas, and a ddp around them all, learn its choices from the
 * device that the pass was called on. */
static void share_choices(tern__pass *pass)
{
    tern_data_parallel *parallel = pass->parallel;
    tern_device *middle = pass->scope->device, *first = parallel->replicas[0].device;
    tern__choices_copy(first, parallel->choices, middle);
    parallel->choices = tern__choices_serial(first);
    for (int i = 0; i < parallel->count; i++) {
        tern__choices_copy(middle, parallel->replicas[i].choices, parallel->replicas[i].device);
        parallel->replicas[i].choices = tern__choices_serial(middle);
    }
}

static void run_replicas(tern__pass *pass, void (*fn)(void *replica))
{
    tern__replica *replicas = pass->parallel->replicas;
    tern__device_rest(pass->scope->device);
    share_choices(pass);
    for (int i = 0; i < pass->count; i++) {
        replicas[i].pass = pass;
        tern__device_start(replicas[i].device, fn, &replicas[i]);
    }
    for (int i = 0; i < pass->count; i++) tern__device_await(replicas[i].device);
    share_choices(pass);
}

int tern__replica_fail(const tern__replica *replica, tern_scope *scope, const char *func,
                       const tern_error *err)
{
    return tern__scope_fail(scope, func, err->code, "replica %d on %s: %s", replica->index,
                            replica->device->name, err->text);
}

static int first_error(tern__pass *pass, const char *func)
{
    for (int i = 0; i < pass->count; i++) {
        const tern__replica *replica = &pass->parallel->replicas[i];
        const tern_error *err = &replica->scope->error;
        if (err->code) return tern__replica_fail(replica, pass->scope, func, err);
    }
    return TERN_OK;
}

/* ---- forward ---- */

static void forward(void *self)
{
    tern__replica *replica = self;
    tern__pass *pass = replica->pass;
    tern__part *part = &pass->parts[replica->index];
    tern_scope *scope = replica->scope;
    int64_t began = tern__now_ns();
    tern_grad_enabled_set(scope, pass->scope->grad);
    tern__policy_set(scope, NULL); /* drops the kept casts: each pass has its own, on its own tape */
    tern__policy_set(scope, pass->scope->autocast.policy);
    tern_scope_seed(scope, pass->scope->seed, pass->scope->step);
    scope->draws = pass->scope->draws;
    scope->stream = pass->scope->stream + ((uint64_t)replica->index << 32);
    part->tape = scope->tape;
    tern__mirrors_lend(replica->device, &replica->model);
    part->output = pass->fn(pass->parallel->module, scope, part->input, pass->ctx);
    tern__mirrors_lend(replica->device, NULL);
    replica->forward_ns = tern__now_ns() - began;
}

int tern__replicas_forward(tern__pass *pass)
{
    if (bring_models(pass)) return pass->scope->error.code;
    run_replicas(pass, forward);
    uint64_t draws = pass->scope->draws;
    for (int i = 0; i < pass->count; i++) draws = TERN__MAX(draws, pass->parallel->replicas[i].scope->draws);
    pass->scope->draws = draws;
    return first_error(pass, "tern_data_parallel_forward");
}

/* ---- backward ---- */

static void backward(void *self)
{
    tern__replica *replica = self;
    const tern__part *part = &replica->pass->parts[replica->index];
    int64_t began = tern__now_ns();
    tern__mirrors_lend(replica->device, &replica->model);
    tern__backward_from(replica->scope, replica->pass->y_count, part->y, part->dy);
    tern__mirrors_lend(replica->device, NULL);
    replica->backward_ns = tern__now_ns() - began;
}

int tern__replicas_backward(tern__pass *pass)
{
    if (bring_gradients(pass)) return pass->scope->error.code;
    run_replicas(pass, backward);
    return first_error(pass, "tern_backward");
}

/* ---- the sum ---- */

/* Collects the gradients of one leaf, and returns how many there are: first the leaf's own, which holds older
 * gradients and replica 0's, then the other replicas'. */
static int collect(const tern__pass *pass, const tern__leaf *leaf, const char *in[TERN__REPLICAS_MAX])
{
    int count = 0;
    if (leaf->fresh) in[count++] = leaf->grad->view.data;
    for (int i = 1; i < pass->count; i++) {
        const tern__slot *slot = &pass->parallel->replicas[i].slots[leaf->index];
        if (slot->fresh) in[count++] = slot->grad.data;
    }
    return count;
}

/* Sums this thread's share of one leaf; shares end on cache lines. */
static void sum_leaf(const tern__pass *pass, const tern__leaf *leaf, int share)
{
    const char *in[TERN__REPLICAS_MAX];
    int count = collect(pass, leaf, in);
    const tern__view *grad = &leaf->grad->view;
    size_t size = tern_dtype_bytes(grad->dtype), bytes = tern__view_bytes(grad);
    size_t each = tern__align_up((bytes + (size_t)pass->count - 1) / (size_t)pass->count, TERN__LINE);
    size_t low = TERN__MIN(each * (size_t)share, bytes), high = TERN__MIN(low + each, bytes);
    char *out = (char *)grad->data + low;
    for (int i = 0; i < count; i++) in[i] += low;
    if (count == 0)
        memset(out, 0, high - low);
    else if (count == 1 && in[0] != out)
        memcpy(out, in[0], high - low);
    else if (count > 1)
        tern__reduce(grad->dtype, TERN_SUM, in, count, &out, 1, (high - low) / size);
}

/* True if the leaf, or any replica before this one, has a gradient. */
static bool is_begun(const tern__pass *pass, const tern__leaf *leaf, int index)
{
    bool is = leaf->fresh;
    for (int i = 1; i < index; i++) is |= pass->parallel->replicas[i].slots[leaf->index].fresh;
    return is;
}

/* Copies a replica's gradients to the first device in one piece, where kernels add them. */
static bool add_gradients(tern__pass *pass, tern__replica *replica)
{
    tern_scope *scope = pass->parallel->replicas[0].scope;
    tern__mirrors *sums = &pass->parallel->sums;
    tern_error err = {0};
    bool well = !tern__mirrors_want(sums, replica->grads, replica->grad_bytes, &err) &&
                !tern__mirrors_fill(sums, &err);
    if (!well) tern__scope_fail_with(scope, &err);
    tern__mirrors_lend(scope->device, sums);
    for (int k = 0; k < pass->leaf_count && well; k++) {
        const tern__leaf *leaf = pass->leaves[k];
        const tern__slot *slot = &replica->slots[leaf->index];
        bool add = is_begun(pass, leaf, replica->index);
        tern__call call = {
            .kernel = TERN__COPY, .in = {&slot->grad}, .out = {&leaf->grad->view}, .add = {add}};
        if (slot->fresh && tern__view_count(&slot->grad) > 0) well = tern__run(scope, &call);
    }
    tern__mirrors_lend(scope->device, NULL);
    return well;
}

/* Sums whole leaves by kernels, for devices with memory of their own. */
static void sum_by_kernels(tern__pass *pass)
{
    tern_scope *scope = pass->parallel->replicas[0].scope;
    scope->here = scope->device;
    for (int i = 1; i < pass->count; i++)
        if (!add_gradients(pass, &pass->parallel->replicas[i])) return;
    for (int k = 0; k < pass->leaf_count; k++)
        if (!is_begun(pass, pass->leaves[k], pass->count)) tern__fill(scope, &pass->leaves[k]->grad->view, 0);
}

static void sum(void *self)
{
    const tern__replica *replica = self;
    const tern__pass *pass = replica->pass;
    for (int k = 0; k < pass->leaf_count; k++) sum_leaf(pass, pass->leaves[k], replica->index);
}

int tern__replicas_sum(tern__pass *pass)
{
    bool away = false;
    for (int i = 0; i < pass->count; i++) away |= pass->parallel->replicas[i].device->backend != NULL;
    if (away)
        sum_by_kernels(pass);
    else
        run_replicas(pass, sum);
    for (int i = 1; i < pass->count; i++)
        for (int k = 0; k < pass->leaf_count; k++)
            pass->parallel->replicas[i].slots[pass->leaves[k]->index].fresh = false;
    return first_error(pass, "tern_backward");
}
