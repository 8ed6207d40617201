/* loss_scale.c - multiplies a loss by its scale, and keeps the scale in the memory where the loss is. */
#include "kernels/loss_scale.h"
#include "amp/amp.h"
#include "kernels/pointwise.h"
#include "tensor/number.h"

/* ---- the loss ---- */

static bool loss_scale_multiply(tern_scope *scope, const tern__view *to, const tern__view *from,
                                const tern__node *by, bool add)
{
    tern__pointwise_attr attr = {{by->scale}};
    tern__call call = {.kernel = TERN__SCALE, .in = {from}, .out = {to}, .add = {add}, .attr = &attr};
    if (by->scale_at) {
        call.kernel = TERN__MUL;
        call.in[1] = by->scale_at;
    }
    return tern__run(scope, &call);
}

static int loss_scale_gradient(tern_scope *scope, tern__node *node)
{
    bool add;
    const tern__view *to = tern__grad_open(scope, node, 0, &add);
    if (!to || !loss_scale_multiply(scope, to, tern__dy(node), node, add)) return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

/* Takes the scale as it is now, so that backward multiplies by the same number as forward. A scale in a
 * device's memory is copied there. */
static bool take_scale(tern_scope *scope, const tern__loss_scale *scale, tern__node *by, tern_tensor **copy)
{
    *copy = NULL;
    if (!tern__number_is_on_device(scale)) {
        by->scale = scale->scale;
        return true;
    }
    *copy = tern__result(scope, TERN_F64, TERN__PLAIN, 0, NULL);
    if (!*copy) return false;
    tern__view from = tern__number_view(&scale->scale);
    tern__call call = {.kernel = TERN__COPY, .in = {&from}, .out = {&(*copy)->view}};
    by->scale_at = &(*copy)->view;
    return tern__run(scope, &call);
}

tern_tensor *tern__loss_scaled(tern_scope *scope, tern_tensor *loss, const tern__loss_scale *scale)
{
    tern_dtype dtype = loss->view.dtype == TERN_F64 ? TERN_F64 : TERN_F32;
    tern_tensor *scaled = tern__result(scope, dtype, loss->view.layout, loss->view.ndim, loss->view.shape),
                *copy;
    tern__node by = {0};
    if (!scaled || !take_scale(scope, scale, &by, &copy) ||
        !loss_scale_multiply(scope, &scaled->view, &loss->view, &by, false))
        return NULL;
    tern__node *node = tern__record(scope, "scale", loss_scale_gradient, scaled, 1, &loss);
    if (!node) return scaled;
    if (copy) tern__save(node, 0, copy);
    node->scale = by.scale;
    node->scale_at = copy ? &node->saved[0].view : NULL;
    node->normaliser = loss->node ? loss->node->normaliser : node->normaliser;
    node->divisor = loss->node ? loss->node->divisor : NULL;
    return scaled;
}

/* ---- the scale ---- */

int tern__loss_scale_follow(tern__loss_scale **scale, const tern_tensor *loss, tern_error *err)
{
    void *place = *scale;
    int status = tern__numbers_follow(&place, sizeof(**scale), tern__memory_device(loss->view.data),
                                      "tern_scaler_scale", err);
    *scale = place;
    return status;
}

bool tern__loss_scale_find(tern_scope *scope, tern__loss_scale *scale, const double *bad)
{
    tern__pointwise_attr attr = {{0, 1}};
    tern__view from = tern__number_view(bad), to = tern__number_view(&scale->found);
    tern__call call = {.kernel = TERN__CLAMP, .in = {&from}, .out = {&to}, .add = {true}, .attr = &attr};
    tern__go_to(scope, scale);
    return tern__run(scope, &call);
}

bool tern__loss_scale_advance(tern_scope *scope, tern__loss_scale *scale, const tern__scale_attr *attr)
{
    tern__view view = tern__numbers_view(&scale->scale, TERN__LOSS_SCALE_NUMBERS);
    tern__call call = {.kernel = TERN__SCALE_UPDATE, .in = {&view}, .out = {&view}, .attr = attr};
    tern__go_to(scope, scale);
    return tern__run(scope, &call);
}
