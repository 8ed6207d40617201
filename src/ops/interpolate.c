/* interpolate.c - resizes the spatial dimensions. */
#include "kernels/interpolate.h"
#include "ops/ops.h"

tern_interpolate_opts tern_interpolate_defaults(void)
{
    return (tern_interpolate_opts){.size = sizeof(tern_interpolate_opts), .scale = {2}};
}

static int interpolate_gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {.kernel = TERN__INTERPOLATE_GRAD, .in = {tern__dy(node)}, .attr = node->attr};
    return tern__grad_run(scope, node, 0, &call);
}

/* ---- shape rule ---- */

#define FUNC "tern_interpolate"

static int check_input(tern_scope *scope, const tern__view *x)
{
    char shape[TERN__SHAPE_TEXT];
    bool fits = x->ndim >= 3 && x->ndim <= 2 + TERN__SPACE;
    for (int d = 1; d < x->ndim; d++) fits = fits && x->shape[d] > 0;
    if (!fits)
        return tern__scope_fail(
            scope, FUNC, TERN_E_SHAPE,
            "interpolate: expected (N, C, L), (N, C, H, W) or (N, C, D, H, W), empty at most "
            "in N, got %s",
            tern__shape_text(x, shape));
    if (tern__dtype_is_float(x->dtype)) return TERN_OK;
    return tern__scope_fail(scope, FUNC, TERN_E_DTYPE, "interpolate: expected floating point, got %s",
                            tern_dtype_name(x->dtype));
}

static int interpolate_check_opts(tern_scope *scope, const tern_interpolate_opts *o, int axes)
{
    if (o->mode != TERN_INTERPOLATE_NEAREST && o->mode != TERN_INTERPOLATE_LINEAR)
        return tern__scope_fail(
            scope, FUNC, TERN_E_INVALID,
            "interpolate: expected TERN_INTERPOLATE_NEAREST or TERN_INTERPOLATE_LINEAR, got mode %d",
            (int)o->mode);
    if (o->align_corners && o->mode == TERN_INTERPOLATE_NEAREST)
        return tern__scope_fail(scope, FUNC, TERN_E_INVALID,
                                "interpolate: align_corners has no meaning for TERN_INTERPOLATE_NEAREST");
    for (int d = axes; d < TERN__SPACE; d++)
        if (o->shape[d] || o->scale[d] != 0)
            return tern__scope_fail(
                scope, FUNC, TERN_E_INVALID,
                "interpolate: the input has %d spatial dimension(s), got a shape or scale "
                "of more",
                axes);
    return TERN_OK;
}

static bool has_shape(const tern_interpolate_opts *o)
{
    return o->shape[0] || o->shape[1] || o->shape[2];
}

/* Returns the scale of dimension d, or 0 if the options give a size instead. */
static double scale_of(const tern_interpolate_opts *o, int d)
{
    if (has_shape(o)) return 0;
    return o->scale[d] != 0 ? o->scale[d] : o->scale[0];
}

static int find_size(tern_scope *scope, const tern_interpolate_opts *o, int d, int64_t in, int64_t *out)
{
    double scale = scale_of(o, d), size = has_shape(o) ? (double)o->shape[d] : (double)in * scale;
    if (!has_shape(o) && !(scale > 0 && scale < INFINITY))
        return tern__scope_fail(scope, FUNC, TERN_E_RANGE, "interpolate: expected scales above 0, got %g",
                                scale);
    if (!(size >= 1 && size < INT32_MAX))
        return tern__scope_fail(
            scope, FUNC, TERN_E_SHAPE,
            "interpolate: expected 1 to 2^31 - 2 elements along spatial dimension %d, got %g", d, size);
    *out = (int64_t)size;
    return TERN_OK;
}

static int find_shape(tern_scope *scope, const tern_interpolate_opts *o, const tern__view *x, int64_t *shape,
                      tern__interpolate_attr *attr)
{
    int axes = x->ndim - 2;
    for (int d = 0; d < 2; d++) shape[d] = x->shape[d];
    for (int d = 0; d < axes; d++) {
        if (find_size(scope, o, d, x->shape[2 + d], &shape[2 + d])) return scope->error.code;
        attr->scale[TERN__SPACE - axes + d] = scale_of(o, d);
    }
    attr->mode = o->mode == TERN_INTERPOLATE_LINEAR ? TERN__LINEAR : TERN__NEAREST;
    attr->align_corners = o->align_corners;
    return tern__can_be(scope, FUNC, x->dtype, x->ndim, shape) ? TERN_OK : scope->error.code;
}

/* Runs the kernel into a result of another shape. */
static tern_tensor *interpolate_resize(tern_scope *scope, const char *op, tern_tensor *x,
                                       const int64_t *shape, const tern__interpolate_attr *attr)
{
    if (!(x = tern__dense(scope, x))) return NULL;
    tern_tensor *y = tern__result(scope, x->view.dtype, x->view.layout, x->view.ndim, shape);
    if (!y) return NULL;
    tern__call call = {.kernel = TERN__INTERPOLATE, .in = {&x->view}, .out = {&y->view}, .attr = attr};
    if (tern__view_count(&y->view) > 0 && !tern__run(scope, &call)) return NULL;
    tern__save_attr(scope, tern__record(scope, op, interpolate_gradient, y, 1, &x), attr, sizeof(*attr));
    return y;
}

tern_tensor *tern_interpolate(tern_scope *scope, tern_tensor *x, const tern_interpolate_opts *opts)
{
    tern_interpolate_opts o = tern_interpolate_defaults();
    tern__interpolate_attr attr = {0};
    int64_t shape[TERN_NDIM_MAX];
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    if (tern__scope_opts(scope, &o, sizeof(o), opts, __func__)) return NULL;
    if (check_input(scope, &x->view) || interpolate_check_opts(scope, &o, x->view.ndim - 2) ||
        find_shape(scope, &o, &x->view, shape, &attr))
        return NULL;
    return interpolate_resize(scope, "interpolate", x, shape, &attr);
}

/* ---- adaptive average pooling: the same kernel with means ---- */

static int check_adapted(tern_scope *scope, const char *func, const tern__view *x, int axes,
                         const int64_t *size)
{
    char text[TERN__SHAPE_TEXT];
    const char *depth = axes == 3 ? "D, " : "";
    bool fits = x->ndim == 2 + axes || x->ndim == 1 + axes, sized = true;
    for (int d = x->ndim == 2 + axes; d < x->ndim; d++) fits = fits && x->shape[d] > 0;
    for (int d = 0; d < axes; d++) sized = sized && size[d] >= 1 && size[d] < INT32_MAX;
    if (!fits)
        return tern__scope_fail(
            scope, func, TERN_E_SHAPE,
            "adaptive pooling: expected (N, C, %sH, W) or (C, %sH, W), empty at most in N, got %s", depth,
            depth, tern__shape_text(x, text));
    if (!tern__dtype_is_float(x->dtype))
        return tern__scope_fail(scope, func, TERN_E_DTYPE,
                                "adaptive pooling: expected floating point, got %s",
                                tern_dtype_name(x->dtype));
    if (sized) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_RANGE, "adaptive pooling: expected sizes of at least 1");
}

static tern_tensor *adapt(tern_scope *scope, const char *func, const char *op, tern_tensor *x, int axes,
                          const int64_t *size)
{
    int64_t shape[TERN_NDIM_MAX];
    tern__interpolate_attr attr = {.mode = TERN__MEAN};
    if (check_adapted(scope, func, &x->view, axes, size)) return NULL;
    bool batch = x->view.ndim == 2 + axes;
    if (!batch && !(x = tern__batch_of_one(scope, x))) return NULL;
    for (int d = 0; d < 2 + axes; d++) shape[d] = d < 2 ? x->view.shape[d] : size[d - 2];
    if (!tern__can_be(scope, func, x->view.dtype, x->view.ndim, shape)) return NULL;
    tern_tensor *y = interpolate_resize(scope, op, x, shape, &attr);
    return batch ? y : tern__without_batch(scope, y);
}

tern_tensor *tern_adaptive_avg_pool2d(tern_scope *scope, tern_tensor *x, int64_t height, int64_t width)
{
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    return adapt(scope, __func__, "adaptive_avg_pool2d", x, 2, (int64_t[]){height, width});
}

tern_tensor *tern_adaptive_avg_pool3d(tern_scope *scope, tern_tensor *x, int64_t depth, int64_t height,
                                      int64_t width)
{
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    return adapt(scope, __func__, "adaptive_avg_pool3d", x, 3, (int64_t[]){depth, height, width});
}
