#include "base/opts.h"
#include "kernels/pool.h"
#include "ops/ops.h"

tern_pool2d_opts tern_pool2d_defaults(void)
{
    return (tern_pool2d_opts){.size = sizeof(tern_pool2d_opts), .count_include_pad = true};
}

/* ---- gradients ---- */

static int run_gradient(tern_scope *scope, tern__node *node, tern__kernel kernel, const tern__view *place)
{
    tern__call call = {.kernel = kernel, .in = {tern__dy(node), place}, .attr = node->attr};
    call.out[0] = tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

static int max_gradient(tern_scope *scope, tern__node *node)
{
    return run_gradient(scope, node, TERN__MAX_POOL2D_GRAD, &node->saved[0].view);
}

static int avg_gradient(tern_scope *scope, tern__node *node)
{
    return run_gradient(scope, node, TERN__AVG_POOL2D_GRAD, NULL);
}

/* ---- shape rule ---- */

static int read_opts(tern_scope *scope, const char *func, const tern_pool2d_opts *opts, tern__pool_attr *attr)
{
    tern_error err = {0};
    tern_pool2d_opts o = tern_pool2d_defaults();
    if (tern__opts_read(&o, sizeof(o), opts, func, &err)) return tern__scope_fail_with(scope, &err);
    bool fit = true;
    for (int d = 0; d < 2; d++) {
        attr->stride[d] = o.stride[d] ? o.stride[d] : attr->kernel[d];
        attr->padding[d] = o.padding[d];
        fit = fit && attr->kernel[d] >= 1 && attr->stride[d] >= 1 && attr->padding[d] >= 0 &&
              attr->padding[d] <= attr->kernel[d] / 2;
    }
    attr->count_pad = o.count_include_pad;
    if (fit) return TERN_OK;
    return tern__scope_fail(
        scope, func, TERN_E_RANGE,
        "pooling: expected a kernel and stride of at least 1 and padding of at most half the "
        "kernel, got kernel (%lld, %lld), stride (%lld, %lld), padding (%lld, %lld)",
        (long long)attr->kernel[0], (long long)attr->kernel[1], (long long)attr->stride[0],
        (long long)attr->stride[1], (long long)attr->padding[0], (long long)attr->padding[1]);
}

/* Fills `shape` with the output's; an empty one is an error. */
static int output_shape(tern_scope *scope, const char *func, const tern__view *x, const tern__pool_attr *attr,
                        int64_t shape[4])
{
    char xs[TERN__SHAPE_TEXT];
    if (x->ndim != 4)
        return tern__scope_fail(scope, func, TERN_E_SHAPE, "pooling: expected (N, C, H, W), got %s",
                                tern__shape_text(x, xs));
    bool empty = false;
    for (int d = 0; d < 2; d++) {
        int64_t room = x->shape[2 + d] + 2 * attr->padding[d] - attr->kernel[d];
        empty = empty || room < 0;
        shape[d] = x->shape[d];
        shape[2 + d] = room / attr->stride[d] + 1;
    }
    if (!empty) return TERN_OK;
    return tern__scope_fail(
        scope, func, TERN_E_SHAPE,
        "pooling: the kernel (%lld, %lld) does not fit into input %s with padding (%lld, %lld)",
        (long long)attr->kernel[0], (long long)attr->kernel[1], tern__shape_text(x, xs),
        (long long)attr->padding[0], (long long)attr->padding[1]);
}

static tern_tensor *new_output(tern_scope *scope, const char *func, const tern_tensor *x,
                               tern__pool_attr *attr, const tern_pool2d_opts *opts)
{
    int64_t shape[4];
    if (read_opts(scope, func, opts, attr) || output_shape(scope, func, &x->view, attr, shape)) return NULL;
    return tern__result(scope, x->view.dtype, x->view.layout, 4, shape);
}

/* ---- ops ---- */

tern_tensor *tern_max_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                             const tern_pool2d_opts *opts)
{
    tern__pool_attr attr = {.kernel = {kernel_h, kernel_w}};
    if (!tern__op_enter(scope, __func__, 1, x)) return NULL;
    tern_tensor *y = new_output(scope, __func__, x, &attr, opts), *place = NULL;
    if (!y) return NULL;
    if (scope->grad && x->requires_grad) {
        tern_dtype dtype = kernel_h * kernel_w <= 256 ? TERN_U8 : TERN_I32;
        place = tern__result(scope, dtype, y->view.layout, 4, y->view.shape);
        if (!place) return NULL;
    }
    tern__call call = {.kernel = TERN__MAX_POOL2D,
                       .in = {&x->view},
                       .out = {&y->view, place ? &place->view : NULL},
                       .attr = &attr};
    if (!tern__run(scope, &call)) return NULL;
    tern__node *node = tern__record(scope, "max_pool2d", max_gradient, y, 1, &x);
    tern__save_attr(scope, node, &attr, sizeof(attr));
    tern__save(node, 0, place);
    return y;
}

tern_tensor *tern_avg_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                             const tern_pool2d_opts *opts)
{
    tern__pool_attr attr = {.kernel = {kernel_h, kernel_w}};
    if (!tern__op_enter(scope, __func__, 1, x)) return NULL;
    tern_tensor *y = new_output(scope, __func__, x, &attr, opts);
    if (!y) return NULL;
    tern__call call = {.kernel = TERN__AVG_POOL2D, .in = {&x->view}, .out = {&y->view}, .attr = &attr};
    if (!tern__run(scope, &call)) return NULL;
    tern__node *node = tern__record(scope, "avg_pool2d", avg_gradient, y, 1, &x);
    tern__save_attr(scope, node, &attr, sizeof(attr));
    return y;
}
