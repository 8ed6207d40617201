#include "base/opts.h"
#include "kernels/pool.h"
#include "ops/ops.h"

tern_pool2d_opts tern_pool2d_defaults(void)
{
    return (tern_pool2d_opts){
        .size = sizeof(tern_pool2d_opts), .count_include_pad = true, .dilation = {1, 1}};
}

/* ---- gradients ---- */

static int run_gradient(tern_scope *scope, tern__node *node, tern__kernel kernel, const tern__view *place)
{
    tern__call call = {.kernel = kernel, .in = {tern__dy(node), place}, .attr = node->attr};
    call.out[0] = tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0]) return scope->error.code;
    if (tern__view_count(call.in[0]) > 0 && !tern__run(scope, &call)) return scope->error.code;
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

/* ceil_mode is no matter of the kernels. */
typedef struct pool {
    const char *func;
    tern__pool_attr attr;
    bool dilates, ceil_mode;
} pool;

static int fail_numbers(tern_scope *scope, const pool *p)
{
    const tern__pool_attr *a = &p->attr;
    return tern__scope_fail(
        scope, p->func, TERN_E_RANGE,
        "pooling: expected a kernel, stride and dilation of at least 1%s and padding of at most half the "
        "kernel, got kernel (%lld, %lld), stride (%lld, %lld), padding (%lld, %lld), dilation (%lld, %lld)",
        p->dilates ? "" : " (no dilation of averages)", (long long)a->kernel[0], (long long)a->kernel[1],
        (long long)a->stride[0], (long long)a->stride[1], (long long)a->padding[0], (long long)a->padding[1],
        (long long)a->dilation[0], (long long)a->dilation[1]);
}

static int read_opts(tern_scope *scope, const tern_pool2d_opts *opts, pool *p)
{
    tern_error err = {0};
    tern__pool_attr *a = &p->attr;
    tern_pool2d_opts o = tern_pool2d_defaults();
    if (tern__opts_read(&o, sizeof(o), opts, p->func, &err)) return tern__scope_fail_with(scope, &err);
    bool fit = true;
    for (int d = 0; d < 2; d++) {
        a->stride[d] = o.stride[d] ? o.stride[d] : a->kernel[d];
        a->padding[d] = o.padding[d];
        a->dilation[d] = o.dilation[d];
        fit = fit && a->kernel[d] >= 1 && a->stride[d] >= 1 && a->padding[d] >= 0 &&
              a->padding[d] <= a->kernel[d] / 2 && a->dilation[d] >= 1 && (p->dilates || a->dilation[d] == 1);
    }
    a->count_pad = o.count_include_pad;
    p->ceil_mode = o.ceil_mode;
    return fit ? TERN_OK : fail_numbers(scope, p);
}

static int check(tern_scope *scope, const pool *p, const tern__view *x)
{
    char shape[TERN__SHAPE_TEXT];
    if (x->ndim != 4 || x->shape[1] == 0 || x->shape[2] == 0 || x->shape[3] == 0)
        return tern__scope_fail(scope, p->func, TERN_E_SHAPE,
                                "pooling: expected (N, C, H, W), empty at most in N, got %s",
                                tern__shape_text(x, shape));
    if (tern__dtype_is_float(x->dtype)) return TERN_OK;
    return tern__scope_fail(scope, p->func, TERN_E_DTYPE, "pooling: expected floating point, got %s",
                            tern_dtype_name(x->dtype));
}

/* Windows along one axis; 0: none fits. With ceil_mode the last one may end beyond the padding, but begins
 * before that on the right. */
static int64_t output_size(const pool *p, int64_t input, int axis)
{
    const tern__pool_attr *a = &p->attr;
    int64_t stride = a->stride[axis], padding = a->padding[axis];
    int64_t room = input + 2 * padding - a->dilation[axis] * (a->kernel[axis] - 1) - 1;
    if (p->ceil_mode) room += stride - 1;
    if (room < 0) return 0;
    int64_t size = room / stride + 1;
    return p->ceil_mode && (size - 1) * stride >= input + padding ? size - 1 : size;
}

static int output_shape(tern_scope *scope, const pool *p, const tern__view *x, int64_t shape[4])
{
    char xs[TERN__SHAPE_TEXT];
    const tern__pool_attr *a = &p->attr;
    for (int d = 0; d < 2; d++) {
        shape[d] = x->shape[d];
        shape[2 + d] = output_size(p, x->shape[2 + d], d);
    }
    if (shape[2] && shape[3]) return TERN_OK;
    return tern__scope_fail(scope, p->func, TERN_E_SHAPE,
                            "pooling: the kernel (%lld, %lld) does not fit into input %s with padding (%lld, "
                            "%lld), dilation (%lld, %lld)",
                            (long long)a->kernel[0], (long long)a->kernel[1], tern__shape_text(x, xs),
                            (long long)a->padding[0], (long long)a->padding[1], (long long)a->dilation[0],
                            (long long)a->dilation[1]);
}

/* Replaces *x by what the kernels take. */
static tern_tensor *new_output(tern_scope *scope, pool *p, tern_tensor **x, const tern_pool2d_opts *opts)
{
    int64_t shape[4];
    if (read_opts(scope, opts, p) || check(scope, p, &(*x)->view) ||
        output_shape(scope, p, &(*x)->view, shape))
        return NULL;
    *x = tern__dense(scope, *x);
    return *x ? tern__result(scope, (*x)->view.dtype, (*x)->view.layout, 4, shape) : NULL;
}

/* ---- ops ---- */

static bool run(tern_scope *scope, tern__kernel kernel, const pool *p, const tern_tensor *x,
                const tern_tensor *y, const tern_tensor *place)
{
    tern__call call = {
        .kernel = kernel, .in = {&x->view}, .out = {&y->view, place ? &place->view : NULL}, .attr = &p->attr};
    return tern__view_count(&y->view) == 0 || tern__run(scope, &call);
}

tern_tensor *tern_max_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                             const tern_pool2d_opts *opts)
{
    pool p = {.func = __func__, .attr = {.kernel = {kernel_h, kernel_w}}, .dilates = true};
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    tern_tensor *y = new_output(scope, &p, &x, opts), *place = NULL;
    if (!y) return NULL;
    if (scope->grad && x->requires_grad) {
        tern_dtype dtype = kernel_h * kernel_w <= 256 ? TERN_U8 : TERN_I32;
        place = tern__result(scope, dtype, y->view.layout, 4, y->view.shape);
        if (!place) return NULL;
    }
    if (!run(scope, TERN__MAX_POOL2D, &p, x, y, place)) return NULL;
    tern__node *node = tern__record(scope, "max_pool2d", max_gradient, y, 1, &x);
    tern__save_attr(scope, node, &p.attr, sizeof(p.attr));
    tern__save(node, 0, place);
    return y;
}

tern_tensor *tern_avg_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                             const tern_pool2d_opts *opts)
{
    pool p = {.func = __func__, .attr = {.kernel = {kernel_h, kernel_w}}};
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    tern_tensor *y = new_output(scope, &p, &x, opts);
    if (!y || !run(scope, TERN__AVG_POOL2D, &p, x, y, NULL)) return NULL;
    tern__node *node = tern__record(scope, "avg_pool2d", avg_gradient, y, 1, &x);
    tern__save_attr(scope, node, &p.attr, sizeof(p.attr));
    return y;
}
