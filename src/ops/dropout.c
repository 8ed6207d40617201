/* dropout.c - dropout of elements and of whole channels. The mask is a function of the scope's random
 * numbers, so the tape keeps only its position in them, and backward computes the mask again. */
#include "kernels/dropout.h"
#include "ops/ops.h"

/* Overwrites dy if nothing else holds it. */
static int dropout_run_gradient(tern_scope *scope, tern__node *node, tern__kernel kernel)
{
    const tern__view *dy = tern__dy(node);
    tern__call call = {.kernel = kernel, .in = {dy}, .attr = node->attr};
    bool over = tern__owns_dy(node);
    call.out[0] = over ? dy : tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
    return over ? tern__grad_give(scope, node, 0, dy) : tern__grad_done(scope, node, 0);
}

static int dropout_gradient(tern_scope *scope, tern__node *node)
{
    return dropout_run_gradient(scope, node, TERN__DROPOUT);
}

static int channels_gradient(tern_scope *scope, tern__node *node)
{
    return dropout_run_gradient(scope, node, TERN__DROPOUT_CHANNELS);
}

static bool dropout_fits(tern_scope *scope, const char *func, const tern_tensor *x, double p)
{
    if (!tern__dtype_is_float(x->view.dtype)) {
        tern__scope_fail(scope, func, TERN_E_DTYPE, "dropout: expected floating point, got %s",
                         tern_dtype_name(x->view.dtype));
        return false;
    }
    if (p >= 0 && p <= 1) return true;
    tern__scope_fail(scope, func, TERN_E_RANGE, "dropout: expected a probability in [0, 1], got %g", p);
    return false;
}

tern__dropout_attr tern__dropout_draw(tern_scope *scope, double p)
{
    tern__draw draw = tern__scope_draw(scope);
    return (tern__dropout_attr){.key = draw.key,
                                .step = draw.step,
                                .number = draw.number,
                                .threshold = (uint64_t)(p * 4294967296.0 + 0.5),
                                .scale = p < 1 ? 1 / (1 - p) : 0};
}

/* Runs `kernel` into a result like x. */
static tern_tensor *dropout_run(tern_scope *scope, tern_tensor *x, tern__kernel kernel,
                                const tern__dropout_attr *attr)
{
    tern_tensor *y = tern__result(scope, x->view.dtype, x->view.layout, x->view.ndim, x->view.shape);
    tern__call call = {.kernel = kernel, .in = {&x->view}, .out = {y ? &y->view : NULL}, .attr = attr};
    return y && tern__run(scope, &call) ? y : NULL;
}

tern_tensor *tern_dropout(tern_scope *scope, tern_tensor *x, double p)
{
    if (!TERN__ENTER(scope, __func__, 1, &x) || !dropout_fits(scope, __func__, x, p)) return NULL;
    tern__dropout_attr attr = tern__dropout_draw(scope, p);
    if (p == 0) return x;
    tern_tensor *y = (x = tern__plain(scope, x)) ? dropout_run(scope, x, TERN__DROPOUT, &attr) : NULL;
    if (!y) return NULL;
    tern__save_attr(scope, tern__record(scope, "dropout", dropout_gradient, y, 1, &x), &attr, sizeof(attr));
    return y;
}

/* ---- whole channels ---- */

static bool has_channels(tern_scope *scope, const char *func, const tern__view *x, int axes)
{
    char shape[TERN__SHAPE_TEXT];
    if (x->ndim == 2 + axes) return true;
    tern__scope_fail(scope, func, TERN_E_SHAPE, "dropout of channels: expected (N, C, %sH, W), got %s",
                     axes == 3 ? "D, " : "", tern__shape_text(x, shape));
    return false;
}

static tern_tensor *drop_channels(tern_scope *scope, const char *func, const char *op, tern_tensor *x,
                                  double p, int axes)
{
    if (!dropout_fits(scope, func, x, p) || !has_channels(scope, func, &x->view, axes)) return NULL;
    tern__dropout_attr attr = tern__dropout_draw(scope, p);
    if (p == 0) return x;
    tern_tensor *y =
        (x = tern__dense(scope, x)) ? dropout_run(scope, x, TERN__DROPOUT_CHANNELS, &attr) : NULL;
    if (!y) return NULL;
    tern__save_attr(scope, tern__record(scope, op, channels_gradient, y, 1, &x), &attr, sizeof(attr));
    return y;
}

tern_tensor *tern_dropout2d(tern_scope *scope, tern_tensor *x, double p)
{
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    return drop_channels(scope, __func__, "dropout2d", x, p, 2);
}

tern_tensor *tern_dropout3d(tern_scope *scope, tern_tensor *x, double p)
{
    if (!TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    return drop_channels(scope, __func__, "dropout3d", x, p, 3);
}
