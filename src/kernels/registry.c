/* registry.c - the tables of the host's kernels; runs a kernel call: on which thread, on which device, by
 * which kernel. */
#include "device/backend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/operand_copies.h"
#include "kernels/reference/reference.h"

#include <stdatomic.h>

#ifdef _OPENMP
#include <omp.h>
#endif

static const char *const names[] = {
#define X(id, name, inputs, outputs) name,
#include "kernels/kernels.def"
};

const tern__kernel_fn tern__reference_kernels[TERN__KERNEL_COUNT] = {
#define K(id, name, inputs, outputs)            [TERN__##id] = tern__reference_##name,
#define P(id, name, inputs, dtypes, expression) [TERN__##id] = tern__reference_pointwise,
#include "kernels/kernels.def"
};

const tern__kernel_fn tern__cpu_kernels[TERN__KERNEL_COUNT] = {
#define K(id, name, inputs, outputs) [TERN__##id] = tern__cpu_##name,
#define G(id, name, inputs, outputs)
#define P(id, name, inputs, dtypes, expression) [TERN__##id] = tern__cpu_pointwise,
#include "kernels/kernels.def"
};

const char *tern__kernel_name(tern__kernel kernel)
{
    return (unsigned)kernel < TERN__KERNEL_COUNT ? names[kernel] : "?";
}

/* oneDNN takes the thread count from OpenMP, whose setting belongs to the calling program. So it is set
 * for the duration of one call: oneDNN reads it both when it plans and when it runs. */
static int run_with_threads(const tern__call *call, tern__kernel_fn fast)
{
#ifdef _OPENMP
    int before = omp_get_max_threads(), threads = call->device->threads;
    if (before != threads) omp_set_num_threads(threads);
    tern__device_gather(call->device);
    int status = fast(call);
    if (before != threads) omp_set_num_threads(before);
    return status;
#else
    return fast(call);
#endif
}

/* Sets an error message if the kernel failed without setting one. */
static int explain_failure(const tern__call *call, int status)
{
    const tern__view *of = call->in[0] ? call->in[0] : call->out[0];
    char shape[TERN__SHAPE_TEXT];
    return tern__error_set(call->err, tern__kernel_name(call->kernel), status, "%s of %s %s: %s",
                           tern__kernel_name(call->kernel), tern_dtype_name(of->dtype),
                           tern__shape_text(of, shape), tern_status_text(status));
}

static int run_on_host(const tern__call *call)
{
    tern__kernel_fn fast = call->device->reference ? NULL : tern__cpu_kernels[call->kernel];
    int status = fast ? run_with_threads(call, fast) : TERN_E_UNSUPPORTED;
    return status == TERN_E_UNSUPPORTED ? tern__reference_kernels[call->kernel](call) : status;
}

/* Warns once per process and kernel, so that the cost is not looked for elsewhere. */
static void warn_of_host(const tern__call *call)
{
    static atomic_bool told[TERN__KERNEL_COUNT];
    const tern__view *of = call->in[0] ? call->in[0] : call->out[0];
    char shape[TERN__SHAPE_TEXT];
    if (atomic_exchange(&told[call->kernel], true)) return;
    tern__log(TERN_LOG_WARN,
              "%s has no kernel for %s of %s %s: the host computes it on copies, which is slow",
              call->device->name, tern__kernel_name(call->kernel), tern_dtype_name(of->dtype),
              tern__shape_text(of, shape));
}

/* Runs the device's kernel, or the host's if there is none. */
static int run_on_device(const tern__call *call)
{
    tern__kernel_fn fast = call->device->backend->kernels[call->kernel];
    int status = fast ? TERN_OK : TERN_E_UNSUPPORTED;
    if (fast)
        status =
            tern__operands_stray(call) ? tern__kernel_run_on_copies(call, call->device, fast) : fast(call);
    if (status != TERN_E_UNSUPPORTED) return status;
    warn_of_host(call);
    return tern__kernel_run_on_copies(call, NULL, tern__reference_kernels[call->kernel]);
}

static int kernel_run(const tern__call *call)
{
    int status = call->device->backend        ? run_on_device(call)
                 : tern__operands_stray(call) ? tern__kernel_run_on_copies(call, NULL, run_on_host)
                                              : run_on_host(call);
    return status ? explain_failure(call, status) : TERN_OK;
}

/* Kernels that a kernel runs in turn count as part of it. */
static int run_observed(const tern__call *call)
{
    tern_device *device = call->device;
    tern__kernel_observer *observer = device->observer;
    if (observer->begins) observer->begins(observer);
    device->algorithm = NULL;
    device->observer = NULL;
    int status = kernel_run(call);
    device->observer = observer;
    observer->ran(observer, call);
    return status;
}

static int run_here(const tern__call *call)
{
    return call->device->observer ? run_observed(call) : kernel_run(call);
}

/* A call that is run on the device's thread. */
typedef struct errand {
    const tern__call *call;
    int status;
} errand;

static void run_errand(void *ctx)
{
    errand *e = ctx;
    e->status = run_here(e->call);
}

/* Whether the call takes less time than waking the device's thread and being woken by it. */
static bool is_small(const tern__call *call)
{
    size_t bytes = 0;
    for (int i = 0; i < TERN__KERNEL_INS; i++)
        if (call->in[i]) bytes += tern__view_bytes(call->in[i]);
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        if (call->out[i]) bytes += tern__view_bytes(call->out[i]);
    return bytes <= 32 << 10 && call->device->threads == 1;
}

int tern__kernel_run(const tern__call *call)
{
    if (tern__device_is_here(call->device) || is_small(call)) return run_here(call);
    errand e = {.call = call};
    tern__device_start(call->device, run_errand, &e);
    tern__device_await(call->device);
    return e.status;
}
