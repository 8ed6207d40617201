/* conv_operands.h - the operands of a convolution or of one of its gradients, a call on them, and a device
 * that runs it. */
#ifndef TERN_TESTS_KERNELS_CONV_OPERANDS_H
#define TERN_TESTS_KERNELS_CONV_OPERANDS_H

#include "check.h"

#include "kernels/conv.h"
#include "kernels/kernel.h"

#include <string.h>

typedef struct operands {
    tern__view x, w, b, y; /* in a backward y is its gradient, and one of the others is the result */
    tern__conv_attr attr;
} operands;

static inline void release(operands *o)
{
    tern__free(o->x.data);
    tern__free(o->w.data);
    tern__free(o->b.data);
    tern__free(o->y.data);
}

static inline const tern__view *result_of(const operands *o, tern__kernel kernel)
{
    return kernel == TERN__CONV ? &o->y : kernel == TERN__CONV_DATA_GRAD ? &o->x : &o->w;
}

/* The bias' gradient is a second result. */
static inline tern__call call_of(tern_device *device, tern__kernel kernel, const operands *o, bool add,
                                 bool bias, tern_error *err)
{
    const tern__view *b = bias ? &o->b : NULL;
    const tern__view *ins[][3] = {{&o->x, &o->w, b}, {&o->y, &o->w}, {&o->y, &o->x}};
    int k = (int)kernel - TERN__CONV;
    tern__call call = {.device = device, .kernel = kernel, .attr = &o->attr, .add = {add, add}, .err = err};
    for (int i = 0; i < 3; i++) call.in[i] = ins[k][i];
    call.out[0] = result_of(o, kernel);
    if (kernel == TERN__CONV_WEIGHT_GRAD) call.out[1] = b;
    return call;
}

static inline tern_device *open_device(const char *name, int threads)
{
    tern_error err = {0};
    tern_device *device = check_device(name);
    tern_device_threads_set(device, threads, &err);
    assert_ok(err);
    return device;
}

/* Fills the scratch buffers with NaN, so that a kernel that reads before it writes is found. */
static inline void poison(tern_device *device)
{
    for (int i = 0; i < TERN__SCRATCH_COUNT; i++)
        if (device->scratch[i].data) memset(device->scratch[i].data, 0xff, device->scratch[i].bytes);
}

static inline uint32_t draw_below(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

#endif
