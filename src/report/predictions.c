/* predictions.c - checks predictions and labels, and makes them contiguous for the metrics' kernels. */
#include "report/predictions.h"

static int fail_shapes(tern_scope *scope, const char *func, const char *op, const char *expected,
                       const tern__operands *in)
{
    char xs[TERN__SHAPE_TEXT], ls[TERN__SHAPE_TEXT];
    return tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: expected %s; got %s and %s", op, expected,
                            tern__shape_text(&in->x->view, xs), tern__shape_text(&in->label->view, ls));
}

static bool is_label(tern_dtype dtype)
{
    return dtype == TERN_U8 || dtype == TERN_I32 || dtype == TERN_I64;
}

static int check_labels(tern_scope *scope, const char *func, const char *op, const char *what,
                        tern_dtype dtype)
{
    if (is_label(dtype)) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_DTYPE, "%s: expected %s of i64, i32 or u8, got %s", op, what,
                            tern_dtype_name(dtype));
}

static int check_scores(tern_scope *scope, const char *func, const char *op, tern_dtype dtype)
{
    if (tern__dtype_is_float(dtype)) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_DTYPE, "%s: expected floating-point scores, got %s", op,
                            tern_dtype_name(dtype));
}

/* Metrics have no gradient, and their kernels read no gaps. */
static tern_tensor *plain_of(tern_scope *scope, tern_tensor *x)
{
    tern_tensor *d = tern_detach(scope, x);
    return d ? tern__plain(scope, d) : NULL;
}

static int take_plain(tern_scope *scope, tern__operands *in)
{
    const tern__view *label = &in->label->view;
    in->of_sample = 1;
    for (int d = 1; d < label->ndim; d++) in->of_sample *= label->shape[d];
    in->x = plain_of(scope, in->x);
    in->label = in->x ? plain_of(scope, in->label) : NULL;
    return scope->error.code;
}

/* Returns true if map has x's shape without the class dimension: 1, or 0 if it is the only one. */
static bool is_map_of(const tern__view *x, const tern__view *map)
{
    bool fit = x->ndim >= 1 && map->ndim == x->ndim - 1;
    for (int d = 0; d < map->ndim && fit; d++) fit = map->shape[d] == x->shape[d + (d > 0)];
    return fit;
}

int tern__scores_take(tern_scope *scope, const char *func, const char *op, int64_t classes,
                      tern__operands *in)
{
    const tern__view *x = &in->x->view;
    if (!is_map_of(x, &in->label->view))
        return fail_shapes(scope, func, op, "scores (N, C, ..) and labels (N, ..), or (C) and ()", in);
    if (check_scores(scope, func, op, x->dtype) ||
        check_labels(scope, func, op, "labels", in->label->view.dtype))
        return scope->error.code;
    int64_t have = x->shape[x->ndim > 1];
    if (have == 0 || (classes && have != classes))
        return tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: expected scores of %lld classes, got %lld",
                                op, (long long)TERN__MAX(classes, 1), (long long)have);
    return take_plain(scope, in);
}

int tern__maps_take(tern_scope *scope, const char *func, const char *op, tern__operands *in)
{
    if (!tern__view_same_shape(&in->x->view, &in->label->view))
        return fail_shapes(scope, func, op, "two maps of the same shape, or floating-point scores", in);
    if (check_labels(scope, func, op, "predictions", in->x->view.dtype) ||
        check_labels(scope, func, op, "labels", in->label->view.dtype))
        return scope->error.code;
    return take_plain(scope, in);
}

int tern__mask_take(tern_scope *scope, const char *func, const char *op, tern__operands *in)
{
    const tern__view *x = &in->x->view, *mask = &in->label->view;
    bool one_channel = x->ndim > 1 && x->shape[1] == 1 && is_map_of(x, mask);
    if (!tern__view_same_shape(x, mask) && !one_channel)
        return fail_shapes(scope, func, op, "a mask of the scores' shape, or (N, ..) of (N, 1, ..)", in);
    if (check_scores(scope, func, op, x->dtype) ||
        (mask->dtype != TERN_BOOL && check_labels(scope, func, op, "a mask", mask->dtype)))
        return scope->error.code;
    return take_plain(scope, in);
}
