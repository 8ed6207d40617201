#include "amp/amp.h"
#include "kernels/pointwise.h"

static bool multiply(tern_scope *scope, const tern__view *to, const tern__view *from, double scale, bool add)
{
    tern__pointwise_attr attr = {{scale}};
    tern__call call = {.kernel = TERN__SCALE, .in = {from}, .out = {to}, .add = {add}, .attr = &attr};
    return tern__run(scope, &call);
}

static int gradient(tern_scope *scope, tern__node *node)
{
    bool add;
    const tern__view *to = tern__grad_open(scope, node, 0, &add);
    if (!to || !multiply(scope, to, tern__dy(node), node->scale, add)) return scope->error.code;
    return tern__grad_done(scope, node, 0);
}

tern_tensor *tern__loss_scale(tern_scope *scope, tern_tensor *loss, double scale)
{
    tern_dtype dtype = loss->view.dtype == TERN_F64 ? TERN_F64 : TERN_F32;
    tern_tensor *scaled = tern__result(scope, dtype, loss->view.layout, loss->view.ndim, loss->view.shape);
    if (!scaled || !multiply(scope, &scaled->view, &loss->view, scale, false)) return NULL;
    tern__node *node = tern__record(scope, "scale", gradient, scaled, 1, &loss);
    if (!node) return scaled;
    node->scale = scale;
    node->normaliser = loss->node ? loss->node->normaliser : node->normaliser;
    node->divisor = loss->node ? loss->node->divisor : NULL;
    return scaled;
}
