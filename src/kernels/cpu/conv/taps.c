/* taps.c - dilated convolutions of f32 as sums over taps (taps/conv.h). */
#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/conv/taps/conv.h"
#include "kernels/cpu/conv/taps/plane.h"

/* Without dilation a tap sees hardly more padding than the next, and others are faster. */
static bool takes(const tern__conv *c)
{
    const tern__view *w = c->op[TERN__CONV_W].view;
    bool dilated =
        (w->shape[2] > 1 && c->attr->dilation[1] > 1) || (w->shape[3] > 1 && c->attr->dilation[2] > 1);
    return dilated && tern__taps_takes(c->call, c->op[TERN__CONV_X].view, w, c->op[TERN__CONV_Y].view);
}

/* Of an axis' pairs of outputs and taps the share that sees the image. */
static double seen(const tern__taps_axis *a)
{
    int64_t pairs = 0;
    for (int64_t tap = 0; tap < a->taps; tap++) pairs += tern__taps_see(a, tap, 0, a->out).count;
    return (double)pairs / (double)(a->taps * a->out);
}

static bool pays(const tern__conv *c)
{
    tern__taps_plane p = tern__taps_plane_of(c->attr, c->op[TERN__CONV_X].view, c->op[TERN__CONV_Y].view,
                                             c->op[TERN__CONV_W].view, false);
    return seen(&p.axis[0]) * seen(&p.axis[1]) <= 0.6;
}

static size_t scratch(const tern__conv *c)
{
    const tern__conv_operand *op = c->op;
    return (op[TERN__CONV_W].result ? tern__taps_weight_scratch : tern__taps_scratch)(
        c->call, op[TERN__CONV_X].view, op[TERN__CONV_W].view, op[TERN__CONV_Y].view);
}

static int run(tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *w = c->op[TERN__CONV_W].view;
    const tern__view *y = c->op[TERN__CONV_Y].view;
    int64_t offset = c->op[TERN__CONV_W].offset;
    if (!c->op[TERN__CONV_W].result) return tern__taps(c->call, x, w, offset, y, c->op[TERN__CONV_B].view);
    int status = tern__taps_weight_grad(c->call, x, y, w, offset);
    return status ? status : tern__conv_sum_bias(c);
}

const tern__conv_algorithm tern__conv_taps = {
    .name = "taps", .takes = takes, .pays = pays, .scratch = scratch, .run = run};
