/* taps.c - f32 convolutions as sums over taps (taps/conv.h): dilated and strided ones, 1x1 on CPUs without
 * AVX-512, and all if oneDNN has no code for the CPU. */
#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/conv/taps/conv.h"
#include "kernels/cpu/conv/taps/space.h"
#include "kernels/cpu/widths.h"

/* Without dilation one tap reads hardly more padding than another, and other algorithms are faster. */
static bool is_dilated(const tern__conv *c)
{
    const tern__view *w = c->op[TERN__CONV_W].view;
    bool dilated = false;
    for (int axis = tern__conv_first_axis(c), d = 2; axis < 3; axis++, d++)
        dilated = dilated || (w->shape[d] > 1 && c->attr->dilation[axis] > 1);
    return dilated;
}

static bool is_point(const tern__conv *c)
{
    const tern__view *w = c->op[TERN__CONV_W].view;
    return tern__view_count(w) == w->shape[0] * w->shape[1];
}

static bool is_gradient_of_taps(const tern__conv *c)
{
    return c->op[TERN__CONV_W].result && !is_point(c);
}

static bool is_strided(const tern__conv *c)
{
    bool strided = false;
    for (int axis = tern__conv_first_axis(c); axis < 3; axis++)
        strided = strided || c->attr->stride[axis] > 1;
    return strided;
}

static bool taps_takes(const tern__conv *c)
{
    const tern__conv_operand *op = c->op;
    bool many = !tern__dnnl_has_convolutions() || (is_point(c) && !tern__is_wide());
    return (many || is_dilated(c) || is_strided(c) || is_gradient_of_taps(c)) &&
           tern__taps_takes(c->call, op[TERN__CONV_X].view, op[TERN__CONV_W].view, op[TERN__CONV_Y].view);
}

/* The share of an axis's pairs of outputs and taps that read the image. */
static double seen(const tern__taps_axis *a)
{
    int64_t pairs = 0;
    for (int64_t tap = 0; tap < a->taps; tap++) pairs += tern__taps_see(a, tap, 0, a->out).count;
    return (double)pairs / (double)(a->taps * a->out);
}

/* Whether Winograd's algorithm multiplies less. */
static bool is_winograds(const tern__conv *c)
{
    const tern__conv_algorithm *winograd = &tern__conv_winograd;
    return !c->call->device->conv.exact && winograd->takes(c) && winograd->pays(c);
}

/* Without code for the CPU oneDNN multiplies matrices between copies. With eight floats per vector its
 * strided convolutions reach half of the speed here, and its gradients of weights on volumes of few channels
 * a fifth to a half: sums stay in registers, as fast as with sixteen floats. Of 1x1 it reaches four fifths,
 * and of their weights' gradients on large maps three quarters to nine tenths. With few positions most of the
 * time goes into storing the sums, or into packing the weights; oneDNN's loops of 1x1 lose less by it. */
static bool beats_direct(const tern__conv *c)
{
    if (!tern__dnnl_has_convolutions()) return true;
    bool result = c->op[TERN__CONV_W].result, slow = result || is_strided(c) || is_point(c);
    int64_t least = !is_point(c) ? 512 : result ? 4096 : 1024;
    return slow && !tern__is_wide() && tern__conv_positions(c, TERN__CONV_Y) >= least;
}

static bool taps_pays(const tern__conv *c)
{
    const tern__conv_operand *op = c->op;
    tern__taps_space s = tern__taps_space_of(c->attr, op[TERN__CONV_X].view, op[TERN__CONV_Y].view,
                                             op[TERN__CONV_W].view, false);
    bool sees_little = seen(&s.axis[0]) * seen(&s.axis[1]) * seen(&s.axis[2]) <= 0.6;
    return sees_little || (beats_direct(c) && !is_winograds(c));
}

static size_t taps_scratch(const tern__conv *c)
{
    const tern__conv_operand *op = c->op;
    return (op[TERN__CONV_W].result ? tern__taps_weight_scratch : tern__taps_scratch)(
        c->call, op[TERN__CONV_X].view, op[TERN__CONV_W].view, op[TERN__CONV_Y].view);
}

static int taps_run(tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *w = c->op[TERN__CONV_W].view;
    const tern__view *y = c->op[TERN__CONV_Y].view;
    int64_t offset = c->op[TERN__CONV_W].offset;
    if (!c->op[TERN__CONV_W].result) return tern__taps(c->call, x, w, offset, y, c->op[TERN__CONV_B].view);
    int status = tern__taps_weight_grad(c->call, x, y, w, offset);
    return status ? status : tern__conv_sum_bias(c);
}

const tern__conv_algorithm tern__conv_taps = {
    .name = "taps", .takes = taps_takes, .pays = taps_pays, .scratch = taps_scratch, .run = taps_run};
