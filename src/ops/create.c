/* create.c - tensors that come from no other tensor. */
#include "kernels/pointwise.h"
#include "ops/ops.h"

#include <tern/rng.h>

bool tern__can_be(tern_scope *scope, const char *func, tern_dtype dtype, int ndim, const int64_t *shape)
{
    tern_error err = {0};
    if (!tern__shape_check(func, dtype, ndim, shape, &err)) return true;
    tern__scope_fail_with(scope, &err);
    return false;
}

static tern_tensor *create(tern_scope *scope, const char *func, tern_dtype dtype, int ndim,
                           const int64_t *shape)
{
    if (!scope || scope->error.code || !tern__can_be(scope, func, dtype, ndim, shape)) return NULL;
    scope->here = scope->device;
    return tern__result(scope, dtype, TERN__PLAIN, ndim, shape);
}

tern_tensor *tern_full(tern_scope *scope, tern_dtype dtype, int ndim, const int64_t *shape, double value)
{
    tern_tensor *y = create(scope, __func__, dtype, ndim, shape);
    return y && tern__fill(scope, &y->view, value) ? y : NULL;
}

tern_tensor *tern_rand(tern_scope *scope, tern_rng *rng, int ndim, const int64_t *shape)
{
    tern_tensor *y = create(scope, __func__, TERN_F32, ndim, shape);
    if (y) tern_rng_uniform(rng, y->view.data, (size_t)tern__view_count(&y->view), 0, 1);
    return y;
}

tern_tensor *tern_randn(tern_scope *scope, tern_rng *rng, int ndim, const int64_t *shape)
{
    tern_tensor *y = create(scope, __func__, TERN_F32, ndim, shape);
    if (y) tern_rng_normal(rng, y->view.data, (size_t)tern__view_count(&y->view), 0, 1);
    return y;
}
