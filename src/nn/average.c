/* average.c - a second model whose parameters are an exponential moving average of the first one's. */
#include "kernels/pointwise.h"
#include "nn/nn.h"

#include <string.h>

static int average_check(tern_scope *scope, const tern_module *average, const tern_module *model, int i)
{
    char one[TERN__SHAPE_TEXT], two[TERN__SHAPE_TEXT];
    tern_state_entry a = tern_state_get(average, i), m = tern_state_get(model, i);
    if (!a.name || !m.name || strcmp(a.name, m.name))
        return tern__scope_fail(scope, "tern_ema_update", TERN_E_INVALID,
                                "the average has \"%s\" where the model has \"%s\"",
                                a.name ? a.name : "nothing", m.name ? m.name : "nothing");
    if (tern__view_same_shape(&a.tensor->view, &m.tensor->view) &&
        a.tensor->view.dtype == m.tensor->view.dtype)
        return TERN_OK;
    return tern__scope_fail(scope, "tern_ema_update", TERN_E_SHAPE,
                            "\"%s\" is %s of %s, but in the model %s of %s", a.name,
                            tern__shape_text(&a.tensor->view, one), tern_dtype_name(a.tensor->view.dtype),
                            tern__shape_text(&m.tensor->view, two), tern_dtype_name(m.tensor->view.dtype));
}

static bool average_follow(tern_scope *scope, tern_tensor *average, const tern_tensor *model, bool is_buffer,
                           double decay)
{
    tern__pointwise_attr attr = {{1 - decay, 0}};
    tern__call lerp = {
        .kernel = TERN__LERP, .in = {&average->view, &model->view}, .out = {&average->view}, .attr = &attr};
    tern__call copy = {.kernel = TERN__COPY, .in = {&model->view}, .out = {&average->view}};
    if (average->view.packs) average->view.packs->version++;
    return tern__run(scope, is_buffer || decay == 0 ? &copy : &lerp);
}

void tern_ema_update(tern_scope *scope, tern_module *average, const tern_module *model, double decay)
{
    if (!scope || scope->error.code) return;
    if (!average || !model || !(decay >= 0 && decay <= 1)) {
        tern__scope_fail(scope, __func__, average && model ? TERN_E_RANGE : TERN_E_INVALID,
                         "expected two modules and a decay in [0, 1], got %s and %g",
                         average && model ? "both" : "NULL", decay);
        return;
    }
    int count = TERN__MAX(tern_state_count(average), tern_state_count(model));
    for (int i = 0; i < count; i++)
        if (average_check(scope, average, model, i)) return;
    for (int i = 0; i < count; i++) {
        if (tern__state_repeats(average, i)) continue;
        tern_state_entry a = tern_state_get(average, i), m = tern_state_get(model, i);
        if (!average_follow(scope, a.tensor, m.tensor, a.is_buffer, decay)) return;
    }
}
