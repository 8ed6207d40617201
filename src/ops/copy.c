/* copy.c - clone, cast, and the dense copies in a given layout that other ops need. */
#include "kernels/pointwise.h"
#include "ops/ops.h"

/* Copies dy back into the input's dtype and layout. */
static int copy_gradient(tern_scope *scope, tern__node *node)
{
    bool add;
    const tern__view *to = tern__grad_open(scope, node, 0, &add);
    if (!to || !tern__copy_into(scope, to, tern__dy(node), add)) return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

static tern_tensor *copy_run(tern_scope *scope, const char *op, tern_tensor *x, tern_dtype dtype,
                             tern__layout layout)
{
    tern_tensor *y = tern__result(scope, dtype, layout, x->view.ndim, x->view.shape);
    if (!y || !tern__copy(scope, &y->view, &x->view)) return NULL;
    if (tern__dtype_is_float(dtype)) tern__record(scope, op, copy_gradient, y, 1, &x);
    return y;
}

/* A copy that only changes the memory needs no kernel. */
static bool is_move(const tern__view *to, const tern__view *from)
{
    return tern__memory_device(to->data) != tern__memory_device(from->data) && to->dtype == from->dtype &&
           to->layout == from->layout && tern__view_is_dense(to) && tern__view_is_dense(from);
}

static bool copy_move(tern_scope *scope, const tern__view *to, const tern__view *from)
{
    tern_error err = {0};
    if (!tern__memory_copy(to->data, from->data, tern__view_bytes(from), &err)) return true;
    tern__scope_fail_with(scope, &err);
    return false;
}

bool tern__copy_into(tern_scope *scope, const tern__view *to, const tern__view *from, bool add)
{
    if (!add && is_move(to, from)) return copy_move(scope, to, from);
    bool dense = tern__view_is_dense(from) && tern__view_is_dense(to);
    bool reorder = from->layout != to->layout && from->dtype == to->dtype && dense;
    tern__call call = {
        .kernel = reorder ? TERN__REORDER : TERN__COPY, .in = {from}, .out = {to}, .add = {add}};
    return tern__view_count(to) == 0 || tern__run(scope, &call);
}

bool tern__copy(tern_scope *scope, const tern__view *to, const tern__view *from)
{
    return tern__copy_into(scope, to, from, false);
}

/* A bool is filled as a byte: the kernel also reads the memory, which may hold neither 0 nor 1, and any value
 * except 0 must become true. */
bool tern__fill(tern_scope *scope, const tern__view *to, double value)
{
    bool is_truth = to->dtype == TERN_BOOL;
    tern__view seen = *to;
    if (is_truth) seen.dtype = TERN_U8;
    const tern__pointwise_attr attr = {{is_truth ? value != 0 : value, 0}};
    tern__call call = {.kernel = TERN__FILL, .in = {&seen}, .out = {&seen}, .attr = &attr};
    return tern__view_count(to) == 0 || tern__run(scope, &call);
}

bool tern__fill_zeros(tern_scope *scope, const tern__call *call)
{
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        if (call->out[i] && !call->add[i] && !tern__fill(scope, call->out[i], 0)) return false;
    return true;
}

int tern__grad_store(tern_scope *scope, tern__node *node, int i, const tern__view *from)
{
    bool add;
    if (!tern__wants(node, i)) return TERN_OK;
    const tern__view *to = tern__grad_open(scope, node, i, &add);
    bool done = to && (from ? tern__copy_into(scope, to, from, add) : add ? true : tern__fill(scope, to, 0));
    return done ? tern__grad_done(scope, node, i) : scope->error.code;
}

tern_tensor *tern__laid_out(tern_scope *scope, tern_tensor *x, tern__layout layout)
{
    if (x->view.layout == layout && tern__view_is_dense(&x->view)) return x;
    return copy_run(scope, "contiguous", x, x->view.dtype, layout);
}

tern__layout tern__layout_of(const tern_device *device, tern_dtype dtype, int64_t channels)
{
    if (device->backend) return TERN__CHANNELS_LAST;
    return channels % TERN__BLOCK || dtype == TERN_F64 ? TERN__PLAIN : TERN__BLOCKED16;
}

/* A 1x1 kernel is the same in both layouts, and GPUs convolve f64 in the plain one. */
tern__layout tern__weight_layout(const tern_device *device, const tern__view *weight)
{
    int64_t points = 1;
    for (int d = 2; d < weight->ndim; d++) points *= weight->shape[d];
    bool turns = device->backend && weight->ndim <= 5 && points > 1 && weight->dtype != TERN_F64;
    return turns ? TERN__CHANNELS_LAST : TERN__PLAIN;
}

tern_tensor *tern__plain(tern_scope *scope, tern_tensor *x)
{
    return tern__laid_out(scope, x, TERN__PLAIN);
}

tern_tensor *tern__dense(tern_scope *scope, tern_tensor *x)
{
    return tern__laid_out(scope, x, x->view.layout);
}

tern_tensor *tern_contiguous(tern_scope *scope, tern_tensor *x)
{
    return TERN__ENTER(scope, __func__, 1, &x) ? tern__plain(scope, x) : NULL;
}

tern_tensor *tern_clone(tern_scope *scope, tern_tensor *x)
{
    return TERN__ENTER(scope, __func__, 1, &x) ? copy_run(scope, "clone", x, x->view.dtype, x->view.layout)
                                               : NULL;
}

/* Returns the nearest layout that the device's kernels support. */
static tern__layout layout_on(const tern_device *device, const tern__view *view)
{
    if (view->layout == TERN__PLAIN || !device->backend == (view->layout == TERN__BLOCKED16))
        return view->layout;
    return tern__layout_of(device, view->dtype, view->shape[1]);
}

tern_tensor *tern_to(tern_scope *scope, tern_tensor *x, tern_device *device)
{
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    if (!device) {
        tern__scope_fail(scope, __func__, TERN_E_INVALID, "to: the device is NULL");
        return NULL;
    }
    if (x->device == device) return x;
    scope->here = device;
    tern__layout layout = layout_on(device, &x->view);
    return copy_run(scope, "to", x, x->view.dtype, layout);
}

tern_tensor *tern__cast(tern_scope *scope, tern_tensor *x, tern_dtype dtype)
{
    return x->view.dtype == dtype ? x : copy_run(scope, "cast", x, dtype, x->view.layout);
}

tern_tensor *tern__cast_parameter(tern_scope *scope, tern_tensor *x, tern_dtype dtype)
{
    if (x->view.dtype == dtype) return x;
    return copy_run(scope, "cast", x, dtype, tern__weight_layout(scope->here, &x->view));
}

tern_tensor *tern_cast(tern_scope *scope, tern_tensor *x, tern_dtype dtype)
{
    tern_error err = {0};
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    if (!tern__shape_check(__func__, dtype, 0, NULL, &err)) return tern__cast(scope, x, dtype);
    tern__scope_fail_with(scope, &err);
    return NULL;
}
