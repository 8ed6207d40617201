/* tiles.c - convolutions as products of tiles, on CPUs with a unit for these (AMX). */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv/tiles/conv.h"
#include "kernels/cpu/conv/tiles/unfold.h"
#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/loops.h"
#include "kernels/pack.h"

static bool tiles_takes(const tern__conv *c)
{
    tern_dtype dtype = c->op[TERN__CONV_X].view->dtype;
    return (dtype == TERN_BF16 || dtype == TERN_F32) && c->attr->groups == 1 && tern__amx_has();
}

/* f32 weights are split and packed for every run, which does not pay for few positions. Nor do the copies
 * of x pay if they are multiplied little: few channels, or one tap with a stride. */
static bool tiles_pays(const tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *w = c->op[TERN__CONV_W].view;
    if (x->dtype != TERN_F32 || c->op[TERN__CONV_W].result) return true;
    bool is_point = tern__view_count(w) == w->shape[0] * w->shape[1];
    return tern__conv_positions(c, TERN__CONV_Y) >= 256 && w->shape[1] >= 16 &&
           !(is_point && c->attr->stride[2] > 1);
}

/* Copies stay in the caches; sums kept from group to group take as much as the weight. */
static size_t tiles_scratch(const tern__conv *c)
{
    const tern__conv_operand *w = &c->op[TERN__CONV_W];
    return w->result ? (size_t)tern__view_count(w->view) * sizeof(float) : 0;
}

static int run_weight_grad(const tern__conv *c)
{
    const tern__conv_operand *w = &c->op[TERN__CONV_W];
    tern__view dw = *w->view;
    dw.data = (char *)dw.data + (size_t)w->offset * tern_dtype_bytes(dw.dtype);
    int status = tern__amx_conv_weight(c->call, c->op[TERN__CONV_X].view, c->op[TERN__CONV_Y].view, &dw);
    return status ? status : tern__conv_sum_bias(c);
}

/* The key of a kept copy has everything that says how the weight is seen. */
static void *tiles_of(const tern__conv *c, const tern__amx_weight *w)
{
    const tern__view *v = w->view;
    int64_t format[7 + 2 * 3] = {w->tile,         w->offset,        w->columns, w->depth,
                                 w->depth_stride, w->column_stride, w->taps};
    for (int d = 2; d < v->ndim; d++) {
        format[7 + d - 2] = v->shape[d];
        format[10 + d - 2] = v->stride[d];
    }
    size_t bytes = tern__amx_weight_bytes(w);
    bool stale = true;
    void *kept =
        v->packs ? tern__pack_get(v->packs, c->call->device, format, sizeof(format), bytes, &stale) : NULL;
    void *tiles = kept ? kept : tern__loop_scratch_of(c->call, TERN__SCRATCH_OPERAND + TERN__CONV_W, bytes);
    if (tiles && stale) tern__amx_pack(w, c->call->device->threads, tiles);
    return tiles;
}

static int tiles_run(tern__conv *c)
{
    const tern__view *x = c->op[TERN__CONV_X].view, *y = c->op[TERN__CONV_Y].view;
    tern__conv_operand *op = &c->op[TERN__CONV_W];
    bool turned = c->call->kernel == TERN__CONV_DATA_GRAD;
    if (op->result) return run_weight_grad(c);
    tern__amx_weight w =
        tern__amx_weight_of(op->view, op->offset, turned, !turned && tern__amx_unfolds(x, op->view));
    const void *tiles = tiles_of(c, &w);
    return tiles ? tern__amx_conv(c->call, x, y, &w, tiles, c->op[TERN__CONV_B].view) : TERN_E_MEMORY;
}

const tern__conv_algorithm tern__conv_tiles = {.name = "tiles",
                                               .rounds_f32 = true,
                                               .takes = tiles_takes,
                                               .pays = tiles_pays,
                                               .scratch = tiles_scratch,
                                               .run = tiles_run};
