/* pool.c - max and average pooling over two or three spatial dimensions, and global average pooling. */
#include "kernels/pool.h"
#include "ops/ops.h"

tern_pool2d_opts tern_pool2d_defaults(void)
{
    return (tern_pool2d_opts){
        .size = sizeof(tern_pool2d_opts), .count_include_pad = true, .dilation = {1, 1}};
}

tern_pool3d_opts tern_pool3d_defaults(void)
{
    return (tern_pool3d_opts){
        .size = sizeof(tern_pool3d_opts), .count_include_pad = true, .dilation = {1, 1, 1}};
}

/* ---- gradients ---- */

static int pool_run_gradient(tern_scope *scope, tern__node *node, tern__kernel kernel,
                             const tern__view *place)
{
    tern__call call = {.kernel = kernel, .in = {tern__dy(node), place}, .attr = node->attr};
    return tern__grad_run(scope, node, 0, &call);
}

static int max_gradient(tern_scope *scope, tern__node *node)
{
    return pool_run_gradient(scope, node, TERN__MAX_POOL_GRAD, &node->saved[0].view);
}

static int avg_gradient(tern_scope *scope, tern__node *node)
{
    return pool_run_gradient(scope, node, TERN__AVG_POOL_GRAD, NULL);
}

/* ---- options ---- */

/* A pooling's options; the kernels do not see ceil_mode. */
typedef struct pool {
    const char *func, *op;
    int axes;
    tern__pool_attr attr;
    bool dilates, ceil_mode;
} pool;

/* In 2-D, the depth's numbers are those of a kernel of one slice. */
static pool pool_of(const char *func, const char *op, int axes, bool dilates)
{
    tern__pool_attr none = {{1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 0};
    return (pool){.func = func, .op = op, .axes = axes, .attr = none, .dilates = dilates};
}

/* Formats the numbers of the op's axes as "(3, 3)". */
static const char *numbers(const pool *p, const int64_t values[TERN__SPACE], char text[TERN__SHAPE_TEXT])
{
    tern__view view = tern__view_make(TERN_F32, TERN__PLAIN, p->axes, values + TERN__SPACE - p->axes);
    return tern__shape_text(&view, text);
}

static int fail_numbers(tern_scope *scope, const pool *p)
{
    char kernel[TERN__SHAPE_TEXT], stride[TERN__SHAPE_TEXT], padding[TERN__SHAPE_TEXT],
        dilation[TERN__SHAPE_TEXT];
    return tern__scope_fail(scope, p->func, TERN_E_RANGE,
                            "pooling: expected a kernel of 1 to 2^31 - 1 places, a stride and dilation in "
                            "that range%s and padding "
                            "of at most half the kernel, got kernel %s, stride %s, padding %s, dilation %s",
                            p->dilates ? "" : " (no dilation of averages)",
                            numbers(p, p->attr.kernel, kernel), numbers(p, p->attr.stride, stride),
                            numbers(p, p->attr.padding, padding), numbers(p, p->attr.dilation, dilation));
}

/* Kernels count positions in 32 bits, and window sizes must not overflow. */
static bool is_count(int64_t number, int64_t most)
{
    return number >= 1 && number <= most;
}

/* Reads the caller's numbers; each array starts with the op's first axis. */
static int pool_take(tern_scope *scope, pool *p, const int64_t *kernel, const tern_pool3d_opts *o)
{
    tern__pool_attr *a = &p->attr;
    int64_t places = INT32_MAX;
    bool fit = true;
    for (int d = 0; d < p->axes; d++) {
        int axis = TERN__SPACE - p->axes + d;
        a->kernel[axis] = kernel[d];
        a->stride[axis] = o->stride[d] ? o->stride[d] : kernel[d];
        a->padding[axis] = o->padding[d];
        a->dilation[axis] = o->dilation[d];
        fit = fit && is_count(kernel[d], places) && is_count(a->stride[axis], INT32_MAX) &&
              is_count(o->dilation[d], p->dilates ? INT32_MAX : 1) && o->padding[d] >= 0 &&
              o->padding[d] <= kernel[d] / 2;
        if (fit) places /= kernel[d];
    }
    a->count_pad = o->count_include_pad;
    p->ceil_mode = o->ceil_mode;
    return fit ? TERN_OK : fail_numbers(scope, p);
}

static int read_opts2d(tern_scope *scope, pool *p, int64_t kernel_h, int64_t kernel_w,
                       const tern_pool2d_opts *opts)
{
    tern_pool2d_opts o = tern_pool2d_defaults();
    if (tern__scope_opts(scope, &o, sizeof(o), opts, p->func)) return scope->error.code;
    tern_pool3d_opts two = {.stride = {o.stride[0], o.stride[1]},
                            .padding = {o.padding[0], o.padding[1]},
                            .count_include_pad = o.count_include_pad,
                            .dilation = {o.dilation[0], o.dilation[1]},
                            .ceil_mode = o.ceil_mode};
    return pool_take(scope, p, (int64_t[]){kernel_h, kernel_w}, &two);
}

static int read_opts3d(tern_scope *scope, pool *p, int64_t kernel_d, int64_t kernel_h, int64_t kernel_w,
                       const tern_pool3d_opts *opts)
{
    tern_pool3d_opts o = tern_pool3d_defaults();
    if (tern__scope_opts(scope, &o, sizeof(o), opts, p->func)) return scope->error.code;
    return pool_take(scope, p, (int64_t[]){kernel_d, kernel_h, kernel_w}, &o);
}

/* ---- shape rule ---- */

static int pool_check(tern_scope *scope, const pool *p, const tern__view *x)
{
    char shape[TERN__SHAPE_TEXT];
    const char *depth = p->axes == 3 ? "D, " : "";
    bool fits = x->ndim == 2 + p->axes || x->ndim == 1 + p->axes;
    for (int d = x->ndim == 2 + p->axes; d < x->ndim; d++) fits = fits && x->shape[d] > 0;
    if (!fits)
        return tern__scope_fail(scope, p->func, TERN_E_SHAPE,
                                "pooling: expected (N, C, %sH, W) or (C, %sH, W), empty at most in N, got %s",
                                depth, depth, tern__shape_text(x, shape));
    if (tern__dtype_is_float(x->dtype)) return TERN_OK;
    return tern__scope_fail(scope, p->func, TERN_E_DTYPE, "pooling: expected floating point, got %s",
                            tern_dtype_name(x->dtype));
}

/* Returns the number of windows along an axis; 0 if none fits. With ceil_mode the last window may end beyond
 * the padding, but must start before the right padding. */
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

static int output_shape(tern_scope *scope, const pool *p, const tern__view *x, int64_t shape[TERN_NDIM_MAX])
{
    char xs[TERN__SHAPE_TEXT], kernel[TERN__SHAPE_TEXT], padding[TERN__SHAPE_TEXT],
        dilation[TERN__SHAPE_TEXT];
    bool fits = true;
    for (int d = 0; d < x->ndim; d++) {
        int axis = TERN__SPACE - x->ndim + d;
        bool spatial = d >= x->ndim - p->axes;
        shape[d] = spatial ? output_size(p, x->shape[d], axis) : x->shape[d];
        fits = fits && (!spatial || shape[d] > 0);
    }
    if (fits) return TERN_OK;
    return tern__scope_fail(scope, p->func, TERN_E_SHAPE,
                            "pooling: the kernel %s does not fit into input %s with padding %s, dilation %s",
                            numbers(p, p->attr.kernel, kernel), tern__shape_text(x, xs),
                            numbers(p, p->attr.padding, padding), numbers(p, p->attr.dilation, dilation));
}

/* Pools a batch. Replaces *x by a tensor in the form that the kernels need. */
static tern_tensor *new_output(tern_scope *scope, const pool *p, tern_tensor **x)
{
    int64_t shape[TERN_NDIM_MAX];
    if (output_shape(scope, p, &(*x)->view, shape)) return NULL;
    *x = tern__dense(scope, *x);
    return *x ? tern__result(scope, (*x)->view.dtype, (*x)->view.layout, (*x)->view.ndim, shape) : NULL;
}

/* ---- ops ---- */

static bool pool_run(tern_scope *scope, tern__kernel kernel, const pool *p, const tern_tensor *x,
                     const tern_tensor *y, const tern_tensor *place)
{
    tern__call call = {
        .kernel = kernel, .in = {&x->view}, .out = {&y->view, place ? &place->view : NULL}, .attr = &p->attr};
    return tern__view_count(&y->view) == 0 || tern__run(scope, &call);
}

static tern_tensor *max_pool(tern_scope *scope, tern_tensor *x, const pool *p)
{
    tern_tensor *y = new_output(scope, p, &x), *place = NULL;
    if (!y) return NULL;
    if (tern__is_taped(scope, x)) {
        tern_dtype dtype = tern__pool_places(&p->attr) <= 256 ? TERN_U8 : TERN_I32;
        place = tern__result(scope, dtype, y->view.layout, y->view.ndim, y->view.shape);
        if (!place) return NULL;
    }
    if (!pool_run(scope, TERN__MAX_POOL, p, x, y, place)) return NULL;
    tern__node *node = tern__record(scope, p->op, max_gradient, y, 1, &x);
    tern__save_attr(scope, node, &p->attr, sizeof(p->attr));
    tern__save(node, 0, place);
    return y;
}

static tern_tensor *avg_pool(tern_scope *scope, tern_tensor *x, const pool *p)
{
    tern_tensor *y = new_output(scope, p, &x);
    if (!y || !pool_run(scope, TERN__AVG_POOL, p, x, y, NULL)) return NULL;
    tern__save_attr(scope, tern__record(scope, p->op, avg_gradient, y, 1, &x), &p->attr, sizeof(p->attr));
    return y;
}

typedef tern_tensor *(*pool_fn)(tern_scope *scope, tern_tensor *x, const pool *p);

/* Pools a batch or a single sample. */
static tern_tensor *run_any(tern_scope *scope, tern_tensor *x, const pool *p, pool_fn fn)
{
    if (pool_check(scope, p, &x->view)) return NULL;
    if (x->view.ndim == 2 + p->axes) return fn(scope, x, p);
    x = tern__batch_of_one(scope, x);
    return x ? tern__without_batch(scope, fn(scope, x, p)) : NULL;
}

tern_tensor *tern_max_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                             const tern_pool2d_opts *opts)
{
    pool p = pool_of(__func__, "max_pool2d", 2, true);
    if (!TERN__ENTER(scope, __func__, 1, &x) || read_opts2d(scope, &p, kernel_h, kernel_w, opts)) return NULL;
    return run_any(scope, x, &p, max_pool);
}

tern_tensor *tern_avg_pool2d(tern_scope *scope, tern_tensor *x, int64_t kernel_h, int64_t kernel_w,
                             const tern_pool2d_opts *opts)
{
    pool p = pool_of(__func__, "avg_pool2d", 2, false);
    if (!TERN__ENTER(scope, __func__, 1, &x) || read_opts2d(scope, &p, kernel_h, kernel_w, opts)) return NULL;
    return run_any(scope, x, &p, avg_pool);
}

tern_tensor *tern_max_pool3d(tern_scope *scope, tern_tensor *x, int64_t kernel_d, int64_t kernel_h,
                             int64_t kernel_w, const tern_pool3d_opts *opts)
{
    pool p = pool_of(__func__, "max_pool3d", 3, true);
    if (!TERN__ENTER(scope, __func__, 1, &x) || read_opts3d(scope, &p, kernel_d, kernel_h, kernel_w, opts))
        return NULL;
    return run_any(scope, x, &p, max_pool);
}

tern_tensor *tern_avg_pool3d(tern_scope *scope, tern_tensor *x, int64_t kernel_d, int64_t kernel_h,
                             int64_t kernel_w, const tern_pool3d_opts *opts)
{
    pool p = pool_of(__func__, "avg_pool3d", 3, false);
    if (!TERN__ENTER(scope, __func__, 1, &x) || read_opts3d(scope, &p, kernel_d, kernel_h, kernel_w, opts))
        return NULL;
    return run_any(scope, x, &p, avg_pool);
}

/* ---- the mean of each channel over all positions ---- */

static int global_avg_gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {.kernel = TERN__GLOBAL_AVG_POOL_GRAD, .in = {tern__dy(node)}};
    return tern__grad_run(scope, node, 0, &call);
}

static int global_avg_check(tern_scope *scope, const tern__view *x)
{
    bool fit = x->ndim >= 3;
    for (int d = 2; d < x->ndim; d++) fit = fit && x->shape[d] > 0;
    char shape[TERN__SHAPE_TEXT];
    if (!fit)
        return tern__scope_fail(scope, "tern_global_avg_pool", TERN_E_SHAPE,
                                "global_avg_pool: expected (N, C, H, W) with at least one position, got %s",
                                tern__shape_text(x, shape));
    if (tern__dtype_is_float(x->dtype)) return TERN_OK;
    return tern__scope_fail(scope, "tern_global_avg_pool", TERN_E_DTYPE,
                            "global_avg_pool: expected floating point, got %s", tern_dtype_name(x->dtype));
}

tern_tensor *tern_global_avg_pool(tern_scope *scope, tern_tensor *x)
{
    if (!TERN__ENTER(scope, __func__, 1, &x) || global_avg_check(scope, &x->view)) return NULL;
    x = tern__dense(scope, x);
    tern_tensor *y = x ? tern__result(scope, x->view.dtype, TERN__PLAIN, 2, x->view.shape) : NULL;
    if (!y) return NULL;
    tern__call call = {.kernel = TERN__GLOBAL_AVG_POOL, .in = {&x->view}, .out = {&y->view}};
    if (tern__view_count(&y->view) > 0 && !tern__run(scope, &call)) return NULL;
    tern__record(scope, "global_avg_pool", global_avg_gradient, y, 1, &x);
    return y;
}
