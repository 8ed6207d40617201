/* thin.c - strided 1x1 convolutions, such as the shortcuts of a ResNet. They read only some positions of
 * x. These are gathered first, or scattered at the end, and the computation in between is a convolution of
 * stride 1, for which every algorithm is at its best: oneDNN's data gradients of strided ones run at half
 * the rate. */
#include "kernels/cpu/conv/conv.h"

#include <string.h>

bool tern__conv_is_thin(const tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *w = c->op[TERN__CONV_W].view;
    const tern__view *y = c->op[TERN__CONV_Y].view;
    bool steps = false, points = x->layout == TERN__BLOCKED16;
    for (int axis = tern__conv_first_axis(c), d = 2; axis < 3; axis++, d++) {
        int64_t stride = c->attr->stride[axis];
        steps = steps || stride > 1;
        points = points && w->shape[d] == 1 && c->attr->padding[axis] == 0 &&
                 (y->shape[d] - 1) * stride < x->shape[d];
    }
    return points && steps;
}

/* The view of every stride-th position of a blocked x, as (blocks, [depth,] height, width, 16). */
static tern__view seen_of(const tern__view *x, const tern__view *like, const int64_t *stride)
{
    tern__view seen = {.data = x->data, .dtype = x->dtype, .ndim = x->ndim};
    int64_t pitch = TERN__BLOCK;
    seen.shape[x->ndim - 1] = TERN__BLOCK;
    seen.stride[x->ndim - 1] = 1;
    for (int d = x->ndim - 1; d >= 2; d--) {
        seen.shape[d - 1] = like->shape[d];
        seen.stride[d - 1] = pitch * stride[d - 2];
        pitch *= x->shape[d];
    }
    seen.shape[0] = x->shape[0] * x->shape[1] / TERN__BLOCK;
    seen.stride[0] = pitch;
    return seen;
}

static int thin_copy(const tern__conv *c, const tern__view *to, const tern__view *from, bool add)
{
    tern__call call = {.device = c->call->device,
                       .kernel = TERN__COPY,
                       .in = {from},
                       .out = {to},
                       .add = {add},
                       .err = c->call->err};
    return tern__kernel_run(&call);
}

static int thin_pass(const tern__conv *c, const tern__view *thin, bool back)
{
    static const int64_t one[3] = {1, 1, 1};
    const tern__conv_operand *x = &c->op[TERN__CONV_X];
    tern__view wide = seen_of(x->view, thin, c->attr->stride + tern__conv_first_axis(c));
    tern__view dense = seen_of(thin, thin, one);
    return back ? thin_copy(c, &wide, &dense, x->add) : thin_copy(c, &dense, &wide, false);
}

/* Replaces x by the view of the positions that are read. */
static void replace(const tern__conv *c, tern__conv_thin *t)
{
    const tern__view *x = c->op[TERN__CONV_X].view;
    for (int i = 0; i < 2; i++)
        if (t->call.in[i] == x) t->call.in[i] = &t->seen;
    if (t->call.out[0] == x) {
        t->call.out[0] = &t->seen;
        t->call.add[0] = t->c.op[TERN__CONV_X].add = false;
    }
    t->c.op[TERN__CONV_X].view = &t->seen;
}

int tern__conv_thin_open(const tern__conv *c, tern__conv_thin *t)
{
    const tern__conv_operand *x = &c->op[TERN__CONV_X];
    *t = (tern__conv_thin){.c = *c, .call = *c->call, .attr = *c->attr, .seen = *x->view};
    for (int d = 2; d < t->seen.ndim; d++) t->seen.shape[d] = c->op[TERN__CONV_Y].view->shape[d];
    for (int axis = 0; axis < 3; axis++) t->attr.stride[axis] = 1;
    t->c.call = &t->call;
    t->c.attr = t->call.attr = &t->attr;
    t->seen.data = tern__device_scratch(c->call->device, TERN__SCRATCH_THIN, tern__view_bytes(&t->seen));
    if (!t->seen.data) return TERN_E_MEMORY;
    replace(c, t);
    return x->result ? TERN_OK : thin_pass(c, &t->seen, false);
}

int tern__conv_thin_close(const tern__conv *c, const tern__conv_thin *t)
{
    const tern__conv_operand *x = &c->op[TERN__CONV_X];
    if (!x->result) return TERN_OK;
    if (!x->add) memset(x->view->data, 0, tern__view_bytes(x->view));
    return thin_pass(c, &t->seen, true);
}
