/* multinomial.c - torch.multinomial with the scope's random numbers: draws like dropout's masks. */
#include "kernels/multinomial.h"
#include "ops/ops.h"

static bool multinomial_fits(tern_scope *scope, const tern__view *w, int64_t count)
{
    const char *func = "tern_multinomial";
    char shape[TERN__SHAPE_TEXT];
    if (!tern__dtype_is_float(w->dtype)) {
        tern__scope_fail(scope, func, TERN_E_DTYPE, "multinomial: expected floating point, got %s",
                         tern_dtype_name(w->dtype));
    } else if (w->ndim < 1 || w->ndim > 2) {
        tern__scope_fail(scope, func, TERN_E_SHAPE, "multinomial: expected weights (N, C) or (C), got %s",
                         tern__shape_text(w, shape));
    } else if (count < 0) {
        tern__scope_fail(scope, func, TERN_E_RANGE, "multinomial: expected a count of at least 0, got %lld",
                         (long long)count);
    }
    return !scope->error.code;
}

tern_tensor *tern_multinomial(tern_scope *scope, tern_tensor *weights, int64_t count, bool replacement)
{
    if (!TERN__ENTER(scope, __func__, 1, &weights) || !multinomial_fits(scope, &weights->view, count))
        return NULL;
    if (!(weights = tern__plain(scope, weights))) return NULL;
    tern__draw draw = tern__scope_draw(scope);
    tern__multinomial_attr attr = {
        {.key = draw.key, .step = draw.step, .number = draw.number}, count, replacement};
    const tern__view *w = &weights->view;
    int64_t shape[] = {w->ndim == 2 ? w->shape[0] : count, count};
    if (!tern__can_be(scope, __func__, TERN_I64, w->ndim, shape)) return NULL;
    tern_tensor *y = tern__result(scope, TERN_I64, TERN__PLAIN, w->ndim, shape);
    tern__call call = {.kernel = TERN__MULTINOMIAL, .in = {w}, .out = {y ? &y->view : NULL}, .attr = &attr};
    return y && tern__run(scope, &call) ? y : NULL;
}
