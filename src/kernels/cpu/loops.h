/* loops.h - what kernels of vector loops share. */
#ifndef TERN_SRC_KERNELS_CPU_LOOPS_H
#define TERN_SRC_KERNELS_CPU_LOOPS_H

#include "kernels/cpu/cpu.h"

/* Below so many elements a second thread costs more than it gains. */
#define TERN__GRAIN 32768

static inline int tern__loop_threads(const tern__call *call, int64_t count)
{
    return (int)TERN__MIN((int64_t)call->device->threads, count / TERN__GRAIN + 1);
}

/* Whether the view is f32 and contiguous in `like`'s layout, so that element i is at data[i] in both. True
 * for an absent operand. */
static inline bool tern__is_dense(const tern__view *view, const tern__view *like)
{
    return !view || (view->dtype == TERN_F32 && view->layout == like->layout &&
                     (view->layout != TERN__PLAIN || tern__view_is_contiguous(view)));
}

/* Scratch buffer `which` for the duration of this call; NULL: the error is set. */
static inline void *tern__loop_scratch_of(const tern__call *call, int which, size_t bytes)
{
    void *data = tern__device_scratch(call->device, which, bytes);
    const char *name = tern__kernel_name(call->kernel);
    if (!data)
        tern__error_set(call->err, name, TERN_E_MEMORY, "%s: out of memory: %zu bytes of scratch", name,
                        bytes);
    return data;
}

static inline void *tern__loop_scratch(const tern__call *call, size_t bytes)
{
    return tern__loop_scratch_of(call, TERN__SCRATCH_OPERAND, bytes);
}

/* The first output, a scalar, = or += value. */
static inline void tern__put_scalar(const tern__call *call, double value)
{
    float *to = call->out[0]->data;
    *to = (float)(call->add[0] ? (double)*to + value : value);
}

#endif
