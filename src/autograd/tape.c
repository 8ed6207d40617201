/* tape.c - the parts of an op: checks its inputs, runs a kernel, records an entry on the tape. */
#include "autograd/autograd.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

static void fail_devices(const char *op, int one, const tern_device *first, int other,
                         const tern_device *second, tern_error *err)
{
    tern__error_set(err, op, TERN_E_INVALID,
                    "%s: input %d is on %s, but input %d on %s; tern_to brings tensors together", op, one,
                    first->name, other, second->name);
}

/* Sets the device on which the op runs: that of its inputs. Inputs without a device run anywhere. */
static void tape_find_device(tern_scope *scope, const char *op, int count, tern_tensor *const *inputs,
                             tern_error *err)
{
    int first = -1;
    tern_device *here = NULL;
    for (int i = 0; i < count && !err->code; i++) {
        tern_device *device = inputs[i] ? tern__device_of(scope, inputs[i]) : NULL;
        if (!device) continue;
        if (here && device != here) fail_devices(op, first, here, i, device, err);
        if (here) continue;
        here = device;
        first = i;
    }
    scope->here = here ? here : scope->device;
}

static void check_input(const char *op, int i, bool needed, const tern_tensor *input, tern_error *err)
{
    if (input)
        tern__tensor_check(input, op, err);
    else if (needed)
        tern__error_set(err, op, TERN_E_INVALID, "%s: input %d is NULL, and no earlier op has failed",
                        op + strlen("tern_"), i);
}

/* Warns once per process about a parameter in host memory, which every op that uses it copies to the
 * device. */
static void note_stray(const tern_scope *scope, const char *op, int count, tern_tensor *const *inputs)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    char name[256];
    for (int i = 0; i < count; i++) {
        const tern__leaf *leaf = inputs[i] ? inputs[i]->leaf : NULL;
        if (!leaf || tern__memory_device(inputs[i]->view.data)) continue;
        if (atomic_flag_test_and_set(&told)) return;
        leaf->describe(leaf, name, sizeof(name));
        tern__log(TERN_LOG_WARN,
                  "%s: the parameter \"%s\" is in the host's memory and is copied to %s whenever it is used: "
                  "tern_module_to moves it",
                  op, name, scope->here->name);
    }
}

bool tern__op_enter(tern_scope *scope, const char *op, int needed, int count, tern_tensor **inputs)
{
    if (!scope || scope->error.code) return false;
    if (!scope->forward_began) scope->forward_began = tern__now_ns();
    tern_error err = {0};
    for (int i = 0; i < count && !err.code; i++) check_input(op, i, i < needed, inputs[i], &err);
    if (!err.code) tape_find_device(scope, op, count, inputs, &err);
    if (err.code) tern__scope_fail_with(scope, &err);
    if (!err.code && scope->here->backend) note_stray(scope, op, count, inputs);
    if (!err.code && scope->autocast.policy)
        scope->autocast.policy->settle(scope->autocast.policy, scope, op, count, inputs);
    return !scope->error.code;
}

bool tern__op_enter_at(tern_scope *scope, const char *op, int needed, int count, tern_tensor ***inputs)
{
    tern_tensor *settled[TERN__ENTER_MAX];
    for (int i = 0; i < count; i++) settled[i] = *inputs[i];
    bool entered = tern__op_enter(scope, op, needed, count, settled);
    for (int i = 0; i < count && entered; i++) *inputs[i] = settled[i];
    return entered;
}

bool tern__run(tern_scope *scope, tern__call *call)
{
    tern_error err = {0};
    call->device = scope->here;
    call->err = &err;
    int64_t began = tern__trace_now(scope->trace);
    int status = tern__kernel_run(call);
    tern__trace_span(scope->trace, TERN__TRACK_COMPUTE, tern__kernel_name(call->kernel), began);
    if (status == TERN_OK) return true;
    tern__scope_fail_with(scope, &err);
    return false;
}

void tern__go_to(tern_scope *scope, const void *data)
{
    tern_device *device = tern__memory_device(data);
    if (device)
        scope->here = device;
    else if (scope->here->backend)
        scope->here = scope->device;
}

bool tern__is_taped(const tern_scope *scope, const tern_tensor *x)
{
    if (!x || !x->requires_grad) return false;
    return scope->grad ||
           (x->inner_of && x->inner_of == scope->checkpoint.traced && !scope->checkpoint.paused);
}

/* Gradients can go to leaves and to tensors of the scope's own tape; during the first pass of
 * tern_checkpoint, besides leaves, only to its inputs and to tensors that began to want one in that pass. */
static bool belongs(const tern_scope *scope, const tern_tensor *input)
{
    const tern__first_pass *pass = &scope->checkpoint;
    if (!input || !input->requires_grad || input->leaf) return true;
    if (scope->grad) return input->scope == scope;
    for (int i = 0; i < pass->traced_count; i++)
        if (pass->traced[i] == input) return true;
    return tern__is_taped(scope, input);
}

static bool all_belong(tern_scope *scope, const char *op, int count, tern_tensor *const *inputs)
{
    for (int i = 0; i < count; i++) {
        if (belongs(scope, inputs[i])) continue;
        tern__scope_fail(scope, op, TERN_E_UNSUPPORTED,
                         "%s: an input from outside this replica or checkpoint wants a gradient; hand it "
                         "in, or tern_detach it",
                         op);
        return false;
    }
    return true;
}

/* Notes the leaves that a tern_checkpoint uses during its first pass. */
static void note_uses(tern_scope *scope, int count, tern_tensor *const *inputs)
{
    for (int i = 0; i < count; i++) {
        tern__leaf *leaf = inputs[i] && inputs[i]->requires_grad ? inputs[i]->leaf : NULL;
        const tern__use *use = scope->checkpoint.uses;
        while (use && use->leaf != leaf) use = use->next;
        tern__use *added = leaf && !use ? tern__scope_alloc(scope, sizeof(*added)) : NULL;
        if (!added) continue;
        *added = (tern__use){leaf, scope->checkpoint.uses};
        scope->checkpoint.uses = added;
    }
}

tern__node *tern__record(tern_scope *scope, const char *op, tern__gradient_fn gradient, tern_tensor *out,
                         int count, tern_tensor *const *inputs)
{
    bool wanted = false, taped = false,
         noted = scope->grad || (scope->checkpoint.traced && !scope->checkpoint.paused);
    for (int i = 0; i < count; i++) wanted |= inputs[i] && inputs[i]->requires_grad;
    for (int i = 0; i < count; i++) taped |= tern__is_taped(scope, inputs[i]);
    if (!wanted || !noted || !all_belong(scope, op, count, inputs)) return NULL;
    if (!scope->grad) note_uses(scope, count, inputs);
    if (!taped) return NULL;
    int room = TERN__MAX(count, TERN__NODE_INS);
    tern__node *node = tern__scope_alloc(scope, sizeof(*node) + (size_t)room * sizeof(*inputs));
    if (!node) return NULL;
    *node = (tern__node){
        .op = op, .gradient = gradient, .out = out, .in_count = room, .normaliser = NAN, .scale = 1};
    node->in = (tern_tensor **)(node + 1);
    for (int i = 0; i < count; i++) node->in[i] = tern__is_taped(scope, inputs[i]) ? inputs[i] : NULL;
    node->previous = scope->tape;
    scope->tape = node;
    out->node = node;
    out->requires_grad = true;
    out->inner_of = scope->checkpoint.traced;
    return node;
}

tern__saved tern__saved_of(const tern_scope *scope, const tern_tensor *tensor)
{
    return (tern__saved){.view = tensor->view,
                         .storage = tern__storage_hold(tensor->storage),
                         .member = tensor->storage ? NULL : tensor,
                         .device = tern__device_of(scope, tensor)};
}

void tern__save(tern__node *node, int slot, const tern_tensor *tensor)
{
    if (node && tensor) node->saved[slot] = tern__saved_of(node->out->scope, tensor);
}

void tern__save_operand(tern__node *node, int slot, const tern_tensor *tensor)
{
    tern__node *maker = tensor->node;
    tern__save(node, slot, tensor);
    if (!node || !maker || !maker->remake || tensor->storage->is_exposed || node->out->scope->here->backend)
        return;
    tern__storage_drop(tensor->storage);
    node->saved[slot].storage = NULL;
    node->saved[slot].maker = maker;
}

void tern__save_attr(tern_scope *scope, tern__node *node, const void *attr, size_t bytes)
{
    void *copy = node ? tern__scope_alloc(scope, bytes) : NULL;
    if (!copy) return;
    node->attr = memcpy(copy, attr, bytes);
}
