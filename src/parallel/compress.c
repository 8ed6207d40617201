/* compress.c - gradients of f32 go over in 16 bits: rounded into a window of their own when their bucket is
 * posted, summed in f32 by whoever reduces, and the mean, rounded once more, is what all ranks have then. */
#include "parallel/ddp.h"

#include "base/half.h"

#include <unistd.h>

/* ---- life ---- */

static bool is_narrow(const tern_ddp *ddp, int r)
{
    return ddp->opts.reduce_dtype != TERN_F32 && ddp->seal->ranges[r].grad_dtype == TERN_F32;
}

int tern__compress_open(tern_ddp *ddp, tern_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int r = 0; r < ddp->seal->range_count; r++) {
        if (!is_narrow(ddp, r)) continue;
        size_t bytes = tern__align_up(ddp->seal->ranges[r].grad_bytes / 2, page);
        int status = ddp->group->backend->window_open(ddp->group->state, NULL, bytes, &ddp->narrow[r], err);
        if (status) return status;
        ddp->has_narrow[r] = true;
    }
    return TERN_OK;
}

void tern__compress_close(tern_ddp *ddp)
{
    for (int r = 0; r < ddp->seal->range_count; r++)
        if (ddp->has_narrow[r]) ddp->group->backend->window_close(ddp->group->state, ddp->narrow[r]);
}

tern_dtype tern__compress_dtype(const tern_ddp *ddp, int r)
{
    return is_narrow(ddp, r) ? ddp->opts.reduce_dtype : ddp->seal->ranges[r].grad_dtype;
}

uint32_t tern__compress_window(const tern_ddp *ddp, int r)
{
    return is_narrow(ddp, r) ? ddp->narrow[r] : ddp->windows[r];
}

/* ---- both ways ---- */

#define DEFINE(name, PUT, GET)                                                                               \
    TERN__SIMD static void put_##name(uint16_t *to, const float *from, int64_t count)                        \
    {                                                                                                        \
        for (int64_t i = 0; i < count; i++) to[i] = PUT(from[i]);                                            \
    }                                                                                                        \
    TERN__SIMD static void take_##name(float *to, const uint16_t *from, int64_t count)                       \
    {                                                                                                        \
        for (int64_t i = 0; i < count; i++) to[i] = GET(from[i]);                                            \
    }
DEFINE(bf16, tern__bf16_from_f32, tern__bf16_to_f32)
DEFINE(f16, tern__f16_from_f32, tern__f16_to_f32)

/* Where the gradient of leaf k goes over. */
static uint16_t *place_of(const tern_ddp *ddp, int k)
{
    int r = ddp->seal->range_of[k];
    char *base = ddp->group->backend->window_base(ddp->group->state, ddp->narrow[r]);
    return (uint16_t *)base + ddp->seal->offset[k] / tern_dtype_bytes(ddp->seal->ranges[r].dtype);
}

void tern__compress_put(const tern_ddp *ddp, const tern__bucket *bucket)
{
    for (int place = bucket->first; place < bucket->first + bucket->count; place++) {
        int k = ddp->order[place];
        if (!is_narrow(ddp, ddp->seal->range_of[k])) continue;
        const tern__view *grad = &ddp->seal->leaves[k]->grad->view;
        (ddp->opts.reduce_dtype == TERN_BF16 ? put_bf16 : put_f16)(place_of(ddp, k), grad->data,
                                                                   tern__view_count(grad));
    }
}

void tern__compress_take(const tern_ddp *ddp)
{
    for (int i = 0; i < ddp->leaf_count; i++) {
        int k = ddp->order[i];
        const tern__leaf *leaf = ddp->seal->leaves[k];
        if (!leaf->fresh || !is_narrow(ddp, ddp->seal->range_of[k])) continue;
        const tern__view *grad = &leaf->grad->view;
        (ddp->opts.reduce_dtype == TERN_BF16 ? take_bf16 : take_f16)(grad->data, place_of(ddp, k),
                                                                     tern__view_count(grad));
    }
}
