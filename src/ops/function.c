/* function.c - an op defined by the user. Its forward and backward run with gradients off, so the tape has
 * one entry for the op, which holds the tensors that forward saves; backward computes the gradients from them
 * and dy. When either returns, its intermediate tensors are released, as after a module's call. */
#include "ops/ops.h"

#include <tern/function.h>

#include <string.h>

_Static_assert(TERN_FUNCTION_SAVES == TERN__NODE_SAVES, "a call saves what an entry can");

static const char func[] = "tern_function_apply";

struct tern_function_call {
    tern_scope *scope;
    const tern_function *function;
    int count;
    tern_tensor **x; /* [count] after autocast        */
    bool *wants;     /* [count] */
    void *attr;
    tern_tensor *saved[TERN_FUNCTION_SAVES];
    tern__saved held[TERN_FUNCTION_SAVES]; /* the same, in forward: a release does not free them */
    const tern__policy *policy;            /* the autocast region of forward    */
};

/* ---- what forward and backward may ask ---- */

static void function_hold(tern_function_call *call, int slot, tern_tensor *tensor)
{
    tern__saved_drop(&call->held[slot]);
    call->saved[slot] = tensor;
    if (tensor) call->held[slot] = tern__saved_of(call->scope, tensor);
}

static void function_drop(tern_function_call *call)
{
    for (int i = 0; i < TERN_FUNCTION_SAVES; i++) tern__saved_drop(&call->held[i]);
}

void *tern_function_attr(tern_function_call *call)
{
    return call ? call->attr : NULL;
}

void tern_function_save(tern_function_call *call, int slot, tern_tensor *tensor)
{
    tern_error err = {0};
    if (!call) return;
    if (slot < 0 || slot >= TERN_FUNCTION_SAVES)
        tern__scope_fail(call->scope, __func__, TERN_E_RANGE, "%s: slot %d is not in [0, %d)",
                         call->function->name, slot, TERN_FUNCTION_SAVES);
    else if (tensor && tern__tensor_check(tensor, __func__, &err))
        tern__scope_fail_with(call->scope, &err);
    else
        function_hold(call, slot, tensor);
}

tern_tensor *tern_function_saved(const tern_function_call *call, int slot)
{
    return call && slot >= 0 && slot < TERN_FUNCTION_SAVES ? call->saved[slot] : NULL;
}

bool tern_function_wants(const tern_function_call *call, int i)
{
    return call && i >= 0 && i < call->count && call->wants[i];
}

/* ---- errors ---- */

static void function_fail(tern_scope *scope, const char *part, const tern_function_call *call,
                          const tern_error *err)
{
    if (err->code)
        tern__scope_fail_with(scope, err);
    else
        tern__scope_fail(scope, func, TERN_E_INVALID, "%s: its %s returned an error without setting *err",
                         call->function->name, part);
}

/* ---- backward ---- */

/* Runs what follows on the device of the input's gradient. A replica keeps a parameter's gradient where it
 * computes. */
static void go_to_input(tern_scope *scope, const tern_tensor *x)
{
    if (!x->leaf || !scope->role.is_replica) tern__go_to(scope, x->view.data);
}

static int function_check(tern_scope *scope, const tern_function_call *call, int i, const tern_tensor *x,
                          const tern_tensor *dx)
{
    char wanted[TERN__SHAPE_TEXT], got[TERN__SHAPE_TEXT];
    tern_error err = {0};
    if (tern__tensor_check(dx, func, &err)) return tern__scope_fail_with(scope, &err);
    if (!tern__view_same_shape(&x->view, &dx->view) || !tern__dtype_is_float(dx->view.dtype))
        return tern__scope_fail(scope, func, TERN_E_SHAPE,
                                "%s: input %d is %s of %s, but its gradient %s of %s", call->function->name,
                                i, tern__shape_text(&x->view, wanted), tern_dtype_name(x->view.dtype),
                                tern__shape_text(&dx->view, got), tern_dtype_name(dx->view.dtype));
    if (tern__memory_device(dx->view.data) != (scope->here->backend ? scope->here : NULL))
        return tern__scope_fail(scope, func, TERN_E_INVALID,
                                "%s: input %d is on %s, but its gradient is not; tern_to brings it there",
                                call->function->name, i, scope->here->name);
    return TERN_OK;
}

static int function_send(tern_scope *scope, tern__node *node, int i, const tern_function_call *call,
                         tern_tensor *dx)
{
    const tern_tensor *x = node->in[i];
    go_to_input(scope, x);
    if (dx && function_check(scope, call, i, x, dx)) return scope->error.code;
    if (dx && tern__grad_share(node, i, dx)) return TERN_OK;
    return tern__grad_store(scope, node, i, dx ? &dx->view : NULL);
}

/* Returns the call for backward, with new handles on the saved tensors. */
static tern_function_call *call_again(tern_scope *scope, const tern__node *node)
{
    const tern_function_call *first = node->attr;
    tern_function_call *call = tern__scope_alloc(scope, sizeof(*call));
    if (!call) return NULL;
    *call = *first;
    for (int i = 0; i < TERN_FUNCTION_SAVES; i++)
        call->saved[i] = first->saved[i] ? tern__saved_tensor(scope, &node->saved[i]) : NULL;
    return call;
}

static int run_backward(tern_scope *scope, tern_function_call *call, tern_tensor *dy, tern_tensor **dx)
{
    tern_error err = {0};
    const tern__policy *policy = tern__policy_set(scope, call->policy);
    bool grad = tern_grad_enabled_set(scope, false);
    int status = call->function->backward(call, scope, dy, dx, &err);
    tern_grad_enabled_set(scope, grad);
    tern__policy_set(scope, policy);
    if (status || err.code) function_fail(scope, "backward", call, &err);
    return scope->error.code;
}

static int function_gradient(tern_scope *scope, tern__node *node)
{
    int64_t mark = tern_scope_mark(scope);
    tern_function_call *call = call_again(scope, node);
    tern_tensor *dy = tern__grad_tensor(scope, node->out);
    tern_tensor **dx = tern__scope_alloc(scope, (size_t)node->in_count * sizeof(*dx));
    int status = call && dy && dx ? run_backward(scope, call, dy, dx) : scope->error.code;
    for (int i = 0; i < node->in_count && !status; i++)
        if (tern__wants(node, i)) status = function_send(scope, node, i, call, dx[i]);
    if (call) function_drop(call);
    tern__scope_release(scope, mark, TERN__RELEASED_BY_CALL, 0, NULL);
    return status;
}

/* ---- forward ---- */

static bool function_is_whole(tern_scope *scope, const tern_function *function, int count,
                              tern_tensor *const *x)
{
    if (function && function->forward && function->backward && count >= 0 && (x || !count)) return true;
    tern__scope_fail(scope, func, TERN_E_INVALID,
                     "function_apply: expected a function with forward and backward, and its inputs");
    return false;
}

static tern_function_call *open_call(tern_scope *scope, const tern_function *function, int count,
                                     tern_tensor *const *x, const void *attr, size_t bytes)
{
    tern_function_call *call = tern__scope_alloc(scope, sizeof(*call));
    if (!call) return NULL;
    *call = (tern_function_call){
        .scope = scope, .function = function, .count = count, .policy = scope->autocast.policy};
    call->x = tern__scope_alloc(scope, (size_t)count * sizeof(*call->x));
    call->wants = tern__scope_alloc(scope, (size_t)count * sizeof(*call->wants));
    call->attr = tern__scope_alloc(scope, TERN__MAX(bytes, 1));
    if (!call->x || !call->wants || !call->attr) return NULL;
    if (attr) memcpy(call->attr, attr, bytes);
    for (int i = 0; i < count; i++) call->x[i] = x[i];
    return call;
}

/* forward may return one of its inputs, so the result gets a handle of its own. */
static tern_tensor *run_forward(tern_scope *scope, tern_function_call *call)
{
    tern_error err = {0};
    bool grad = tern_grad_enabled_set(scope, false);
    tern_tensor *y = call->function->forward(call, scope, call->x, &err);
    tern_grad_enabled_set(scope, grad);
    if (!y || err.code) function_fail(scope, "forward", call, &err);
    return tern_detach(scope, y);
}

static void function_record(tern_scope *scope, tern_function_call *call, tern_tensor *y)
{
    if (!tern__dtype_is_float(y->view.dtype)) return;
    tern__node *node = tern__record(scope, call->function->name, function_gradient, y, call->count, call->x);
    if (!node) return;
    memcpy(node->saved, call->held, sizeof(node->saved));
    memset(call->held, 0, sizeof(call->held));
    node->attr = call;
}

tern_tensor *tern_function_apply(tern_scope *scope, const tern_function *function, int count,
                                 tern_tensor *const *x, const void *attr, size_t bytes)
{
    if (!scope || scope->error.code || !function_is_whole(scope, function, count, x)) return NULL;
    tern_function_call *call = open_call(scope, function, count, x, attr, bytes);
    if (!call || !tern__op_enter(scope, func, count, count, call->x)) return NULL;
    for (int i = 0; i < count; i++) call->wants[i] = tern__is_taped(scope, call->x[i]);
    int64_t mark = tern_scope_mark(scope);
    tern_tensor *y = run_forward(scope, call);
    if (y) function_record(scope, call, y);
    function_drop(call);
    tern__scope_release(scope, mark, TERN__RELEASED_BY_CALL, 1, &y);
    return scope->error.code ? NULL : y;
}
