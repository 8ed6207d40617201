/* global_avg_pool.c - the mean of each channel over all positions. */
#include "ops/ops.h"

static int gradient(tern_scope *scope, tern__node *node)
{
    tern__call call = {.kernel = TERN__GLOBAL_AVG_POOL_GRAD, .in = {tern__dy(node)}};
    return tern__grad_run(scope, node, 0, &call);
}

static int check(tern_scope *scope, const tern__view *x)
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
    if (!TERN__ENTER(scope, __func__, 1, &x) || check(scope, &x->view)) return NULL;
    x = tern__dense(scope, x);
    tern_tensor *y = x ? tern__result(scope, x->view.dtype, TERN__PLAIN, 2, x->view.shape) : NULL;
    if (!y) return NULL;
    tern__call call = {.kernel = TERN__GLOBAL_AVG_POOL, .in = {&x->view}, .out = {&y->view}};
    if (tern__view_count(&y->view) > 0 && !tern__run(scope, &call)) return NULL;
    tern__record(scope, "global_avg_pool", gradient, y, 1, &x);
    return y;
}
