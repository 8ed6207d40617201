/* scale.c - multiplies elements in a device's memory by a factor, for TERN_PREMUL_SUM and weighted means. */
#include "comm/move/reduce.h"

#include "kernels/kernel.h"
#include "kernels/pointwise.h"

static tern__view elements_of(tern_dtype dtype, const void *data, uint64_t count)
{
    int64_t shape = (int64_t)count;
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 1, &shape);
    view.data = (void *)data;
    return view;
}

int tern__reduce_scale(tern_device *device, tern_dtype dtype, const void *from, void *to, uint64_t count,
                       double factor, tern_error *err)
{
    tern__view in = elements_of(dtype, from, count), out = elements_of(dtype, to, count);
    const tern__pointwise_attr attr = {.k = {factor}};
    const tern__call call = {
        .device = device, .kernel = TERN__SCALE, .in = {&in}, .out = {&out}, .attr = &attr, .err = err};
    return count ? tern__kernel_run(&call) : TERN_OK;
}
