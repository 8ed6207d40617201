/* scan.c - cumulative sums, and the triangles of matrices: ops whose gradient is the same kernel, of dy. */
#include "kernels/cumsum.h"
#include "kernels/triangle.h"
#include "ops/ops.h"

/* Overwrites dy if nothing else holds it. */
static int scan_gradient(tern_scope *scope, tern__node *node, tern__kernel kernel, const void *attr)
{
    const tern__view *dy = tern__dy(node);
    tern__call call = {.kernel = kernel, .in = {dy}, .attr = attr};
    bool over = tern__owns_dy(node);
    call.out[0] = over ? dy : tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0]) return scope->error.code;
    if (tern__view_count(dy) > 0 && !tern__run(scope, &call)) return scope->error.code;
    return over ? tern__grad_give(scope, node, 0, dy) : tern__grad_done(scope, node, 0);
}

static int cumsum_gradient(tern_scope *scope, tern__node *node)
{
    tern__cumsum_attr back = *(const tern__cumsum_attr *)node->attr;
    back.back = 1;
    return scan_gradient(scope, node, TERN__CUMSUM, &back);
}

static int triangle_gradient(tern_scope *scope, tern__node *node)
{
    return scan_gradient(scope, node, TERN__TRIANGLE, node->attr);
}

static tern_tensor *scan_run(tern_scope *scope, tern_tensor *x, tern_dtype dtype, tern__kernel kernel,
                             const void *attr)
{
    tern_tensor *y = tern__result(scope, dtype, TERN__PLAIN, x->view.ndim, x->view.shape);
    tern__call call = {.kernel = kernel, .in = {&x->view}, .out = {y ? &y->view : NULL}, .attr = attr};
    return y && (tern__view_count(&y->view) == 0 || tern__run(scope, &call)) ? y : NULL;
}

tern_tensor *tern_cumsum(tern_scope *scope, tern_tensor *x, int dim)
{
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    bool is_scalar = x->view.ndim == 0 && (dim == 0 || dim == -1);
    if ((dim = is_scalar ? 0 : tern__dim_of(scope, __func__, x, dim)) < 0) return NULL;
    if (!(x = tern__plain(scope, x))) return NULL;
    tern__cumsum_attr attr = {.dim = dim};
    tern_dtype dtype = tern__dtype_is_float(x->view.dtype) ? x->view.dtype : TERN_I64;
    tern_tensor *y = scan_run(scope, x, dtype, TERN__CUMSUM, &attr);
    if (!y) return NULL;
    tern__save_attr(scope, tern__record(scope, "cumsum", cumsum_gradient, y, 1, &x), &attr, sizeof(attr));
    return y;
}

/* func: "tern_tril" or "tern_triu", for errors. */
static tern_tensor *triangle(tern_scope *scope, const char *func, const char *op, tern_tensor *x,
                             int64_t diagonal, bool upper)
{
    char shape[TERN__SHAPE_TEXT];
    if (!TERN__ENTER(scope, func, 1, &x)) return NULL;
    if (x->view.ndim < 2) {
        tern__scope_fail(scope, func, TERN_E_SHAPE, "%s: expected at least 2 dimensions, got %s", op,
                         tern__shape_text(&x->view, shape));
        return NULL;
    }
    if (!(x = tern__plain(scope, x))) return NULL;
    int64_t most = x->view.shape[x->view.ndim - 1] + x->view.shape[x->view.ndim - 2];
    tern__triangle_attr attr = {TERN__MAX(-most, TERN__MIN(most, diagonal)), upper};
    tern_tensor *y = scan_run(scope, x, x->view.dtype, TERN__TRIANGLE, &attr);
    if (!y) return NULL;
    tern__save_attr(scope, tern__record(scope, op, triangle_gradient, y, 1, &x), &attr, sizeof(attr));
    return y;
}

tern_tensor *tern_tril(tern_scope *scope, tern_tensor *x, int64_t diagonal)
{
    return triangle(scope, __func__, "tril", x, diagonal, false);
}

tern_tensor *tern_triu(tern_scope *scope, tern_tensor *x, int64_t diagonal)
{
    return triangle(scope, __func__, "triu", x, diagonal, true);
}
