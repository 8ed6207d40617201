/* create.c - new tensors: zeros, ones, a value, random numbers. */
#include "kernels/pointwise.h"
#include "ops/ops.h"
#include "tensor/host.h"

#include <tern/rng.h>

#include <math.h>
#include <string.h>

bool tern__can_be(tern_scope *scope, const char *func, tern_dtype dtype, int ndim, const int64_t *shape)
{
    tern_error err = {0};
    if (!tern__shape_check(func, dtype, ndim, shape, &err)) return true;
    tern__scope_fail_with(scope, &err);
    return false;
}

bool tern__ndim_fits(tern_scope *scope, const char *func, int ndim)
{
    if (ndim >= 0 && ndim <= TERN_NDIM_MAX) return true;
    tern__scope_fail(scope, func, TERN_E_RANGE, "%s: ndim %d is not in [0, %d]", func + strlen("tern_"), ndim,
                     TERN_NDIM_MAX);
    return false;
}

void tern__shape_fail(tern_scope *scope, const char *func, const tern__view *x, const char *why, int ndim,
                      const int64_t *shape)
{
    char from[TERN__SHAPE_TEXT], to[TERN__SHAPE_TEXT];
    tern__view wanted = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) wanted.shape[d] = shape[d];
    tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: %s %s %s", func + strlen("tern_"),
                     tern__shape_text(x, from), why, tern__shape_text(&wanted, to));
}

static tern_tensor *tensor_create(tern_scope *scope, const char *func, tern_dtype dtype, int ndim,
                                  const int64_t *shape)
{
    if (!scope || scope->error.code || !tern__can_be(scope, func, dtype, ndim, shape)) return NULL;
    scope->here = scope->device;
    return tern__result(scope, dtype, TERN__PLAIN, ndim, shape);
}

bool tern__integer_holds(tern_dtype dtype, double value)
{
    double end = dtype == TERN_U8 ? 256 : ldexp(1, (int)(8 * tern_dtype_bytes(dtype)) - 1);
    return value >= (dtype == TERN_U8 ? 0 : -end) && value < end;
}

/* As PyTorch: any number is true, or false if 0. */
static bool create_can_hold(tern_scope *scope, const char *func, tern_dtype dtype, double value)
{
    if (tern__dtype_is_float(dtype) || dtype == TERN_BOOL || tern__integer_holds(dtype, value)) return true;
    tern__scope_fail(scope, func, TERN_E_RANGE, "full: %g is outside of the range of %s", value,
                     tern_dtype_name(dtype));
    return false;
}

tern_tensor *tern_full(tern_scope *scope, tern_dtype dtype, int ndim, const int64_t *shape, double value)
{
    tern_tensor *y = tensor_create(scope, __func__, dtype, ndim, shape);
    return y && create_can_hold(scope, __func__, dtype, value) && tern__fill(scope, &y->view, value) ? y
                                                                                                     : NULL;
}

tern_tensor *tern__beside(tern_scope *scope, tern_tensor *y, const tern_tensor *like)
{
    tern_device *device = like ? tern__device_of(scope, like) : NULL;
    return y && device ? tern_to(scope, y, device) : y;
}

tern_tensor *tern__number(tern_scope *scope, const tern_tensor *like, tern_dtype dtype, double value)
{
    return tern__beside(scope, tern_full(scope, dtype, 0, NULL, value), like);
}

/* ---- draws ---- */

typedef void (*draw_fn)(tern_rng *rng, float *values, size_t count);

static void uniform(tern_rng *rng, float *values, size_t count)
{
    tern_rng_uniform(rng, values, count, 0, 1);
}

static void normal(tern_rng *rng, float *values, size_t count)
{
    tern_rng_normal(rng, values, count, 0, 1);
}

/* Draws on the host wherever the tensor is, so that a seed gives the same values on all devices. */
static tern_tensor *create_draw(tern_scope *scope, const char *func, draw_fn fill, tern_rng *rng, int ndim,
                                const int64_t *shape)
{
    tern_error err = {0};
    tern__host host;
    tern_tensor *y = tensor_create(scope, func, TERN_F32, ndim, shape);
    if (!y) return NULL;
    int status = tern__host_open(&host, &y->view, &err);
    if (!status) {
        fill(rng, host.view.data, (size_t)tern__view_count(&y->view));
        status = tern__host_close(&host, true, &err);
    }
    if (!status) return y;
    tern__scope_fail_with(scope, &err);
    return NULL;
}

tern_tensor *tern_rand(tern_scope *scope, tern_rng *rng, int ndim, const int64_t *shape)
{
    return create_draw(scope, __func__, uniform, rng, ndim, shape);
}

tern_tensor *tern_randn(tern_scope *scope, tern_rng *rng, int ndim, const int64_t *shape)
{
    return create_draw(scope, __func__, normal, rng, ndim, shape);
}
