/* widen.c - runs a kernel on f32 copies of 16-bit operands, or on f64 copies of all. */
#include "kernels/cpu/widen.h"

#define OPERANDS (TERN__KERNEL_INS + TERN__KERNEL_OUTS)

/* The copies: inputs, then outputs; data NULL: no copy. */
typedef struct wide {
    tern__call call;
    tern_dtype dtype;
    tern__view view[OPERANDS];
} wide;

/* The view without its broadcast dimensions, as it is in memory. */
static tern__view widen_own_part(const tern__view *view)
{
    tern__view own = *view;
    for (int d = 0; d < own.ndim && own.layout == TERN__PLAIN; d++)
        if (!own.stride[d]) own.shape[d] = TERN__MIN(own.shape[d], 1);
    return own;
}

/* A view like `from`, broadcast along the same dimensions. Kernels in f64 take no blocks. */
static tern__view wide_view(tern_dtype dtype, const tern__view *from)
{
    tern__view own = widen_own_part(from);
    tern__view w = tern__view_make(dtype, dtype == TERN_F64 ? TERN__PLAIN : own.layout, own.ndim, own.shape);
    for (int d = 0; d < w.ndim && w.layout == TERN__PLAIN; d++) {
        w.shape[d] = from->shape[d];
        if (from->layout == TERN__PLAIN && !from->stride[d]) w.stride[d] = 0;
    }
    return w;
}

static int widen_copy(const tern__call *call, const tern__view *all, const tern__view *source, bool add)
{
    tern__call one = *call;
    tern__view own[2] = {widen_own_part(all), widen_own_part(source)}, *to = &own[0], *from = &own[1];
    one.kernel = TERN__COPY;
    one.attr = NULL;
    for (int i = 0; i < TERN__KERNEL_INS; i++) one.in[i] = i ? NULL : from;
    for (int i = 0; i < TERN__KERNEL_OUTS; i++) one.out[i] = i ? NULL : to;
    one.add[0] = add;
    return tern__cpu_pointwise(&one);
}

/* Replaces an operand by a view like `from` with its own memory. */
static int widen(wide *w, int i, const tern__view *from, const tern__view **operand)
{
    if (!from || (w->dtype == TERN_F32 && !tern__view_is_half(from))) return TERN_OK;
    tern__view own = widen_own_part(from);
    size_t bytes = (size_t)tern__view_count(&own) * tern_dtype_bytes(w->dtype);
    w->view[i] = wide_view(w->dtype, from);
    w->view[i].data = tern__device_alloc(w->call.device, bytes);
    *operand = &w->view[i];
    if (w->view[i].data) return TERN_OK;
    const char *name = tern__kernel_name(w->call.kernel);
    return tern__error_set(w->call.err, name, TERN_E_MEMORY, "%s: out of memory: %zu bytes for a copy in %s",
                           name, bytes, tern_dtype_name(w->dtype));
}

static int widen_all(wide *w, const tern__call *call)
{
    int status = TERN_OK;
    for (int i = 0; i < TERN__KERNEL_INS && !status; i++) {
        status = widen(w, i, call->in[i], &w->call.in[i]);
        if (!status && w->view[i].data) status = widen_copy(call, &w->view[i], call->in[i], false);
    }
    for (int i = 0; i < TERN__KERNEL_OUTS && !status; i++) {
        status = widen(w, TERN__KERNEL_INS + i, call->out[i], &w->call.out[i]);
        if (w->view[TERN__KERNEL_INS + i].data) w->call.add[i] = false;
    }
    return status;
}

static int run_widened(const tern__call *call, tern__kernel_fn kernel, tern_dtype dtype)
{
    wide w = {.call = *call, .dtype = dtype};
    int status = widen_all(&w, call);
    if (!status) status = kernel(&w.call);
    for (int i = 0; i < TERN__KERNEL_OUTS && !status; i++)
        if (w.view[TERN__KERNEL_INS + i].data)
            status = widen_copy(call, call->out[i], &w.view[TERN__KERNEL_INS + i], call->add[i]);
    for (int i = 0; i < OPERANDS; i++)
        if (w.view[i].data) tern__device_free(call->device, w.view[i].data);
    return status;
}

int tern__cpu_widened(const tern__call *call, tern__kernel_fn kernel)
{
    return run_widened(call, kernel, TERN_F32);
}

int tern__cpu_widened_to_f64(const tern__call *call, tern__kernel_fn kernel)
{
    return run_widened(call, kernel, TERN_F64);
}
