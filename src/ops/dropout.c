/* dropout.c - the mask is a function of the scope's stream and is made again for the gradient: nothing but
 * its place in the stream is kept. */
#include "kernels/dropout.h"
#include "ops/ops.h"

/* Over dy where nobody else has it. */
static int gradient(tern_scope *scope, tern__node *node)
{
    const tern__view *dy = tern__dy(node);
    tern__call call = {.kernel = TERN__DROPOUT, .in = {dy}, .attr = node->attr};
    bool over = tern__owns_dy(node);
    call.out[0] = over ? dy : tern__grad_open(scope, node, 0, &call.add[0]);
    if (!call.out[0] || !tern__run(scope, &call)) return scope->error.code;
    return over ? tern__grad_give(scope, node, 0, dy) : tern__grad_done(scope, node, 0);
}

static bool fits(tern_scope *scope, const tern_tensor *x, double p)
{
    if (!tern__dtype_is_float(x->view.dtype)) {
        tern__scope_fail(scope, "tern_dropout", TERN_E_DTYPE, "dropout: expected floating point, got %s",
                         tern_dtype_name(x->view.dtype));
        return false;
    }
    if (p >= 0 && p <= 1) return true;
    tern__scope_fail(scope, "tern_dropout", TERN_E_RANGE, "dropout: expected a probability in [0, 1], got %g",
                     p);
    return false;
}

/* The next draw of the step, whose mask drops with probability p. */
static tern__dropout_attr next_draw(tern_scope *scope, double p)
{
    tern__draw draw = tern__scope_draw(scope);
    return (tern__dropout_attr){.key = draw.key,
                                .step = draw.step,
                                .number = draw.number,
                                .threshold = (uint64_t)(p * 4294967296.0 + 0.5),
                                .scale = p < 1 ? 1 / (1 - p) : 0};
}

tern_tensor *tern_dropout(tern_scope *scope, tern_tensor *x, double p)
{
    if (!TERN__ENTER(scope, __func__, 1, &x) || !fits(scope, x, p)) return NULL;
    tern__dropout_attr attr = next_draw(scope, p);
    if (p == 0) return x;
    if (!(x = tern__plain(scope, x))) return NULL;
    tern_tensor *y = tern__result(scope, x->view.dtype, TERN__PLAIN, x->view.ndim, x->view.shape);
    tern__call call = {
        .kernel = TERN__DROPOUT, .in = {&x->view}, .out = {y ? &y->view : NULL}, .attr = &attr};
    if (!y || !tern__run(scope, &call)) return NULL;
    tern__save_attr(scope, tern__record(scope, "dropout", gradient, y, 1, &x), &attr, sizeof(attr));
    return y;
}
