/* kernel.h - a kernel is a pure function on views: it knows neither scope, nor gradient, nor module.
 *
 * Every entry of kernels.def has a plain reference kernel, which is the oracle and the fallback; a device may
 * have a faster one, which returns E_UNSUPPORTED for what it does not take. Kernels trust the op's shape
 * rule: shapes are right when they are called. */
#ifndef TERN_SRC_KERNELS_KERNEL_H
#define TERN_SRC_KERNELS_KERNEL_H

#include "device/device.h"
#include "tensor/view.h"

typedef enum tern__kernel {
#define X(id, name, inputs, outputs) TERN__##id,
#include "kernels/kernels.def"
#undef X
    TERN__KERNEL_COUNT
} tern__kernel;

#define TERN__KERNEL_INS  8
#define TERN__KERNEL_OUTS 5

typedef struct tern__call {
    tern_device *device;
    tern__kernel kernel;
    const tern__view *in[TERN__KERNEL_INS];
    const tern__view *out[TERN__KERNEL_OUTS]; /* NULL: not wanted                    */
    bool add[TERN__KERNEL_OUTS];              /* out += result instead of out = result */
    const void *attr;                         /* the op's attributes, plain bytes without padding */
    tern_error *err;
} tern__call;

typedef int (*tern__kernel_fn)(const tern__call *call);

/* Runs the device's fast kernel, or the reference where there is none or it declines. TERN_OK or a negative
 * status with call->err filled: E_MEMORY, E_UNSUPPORTED naming op, dtype and shape, E_SYSTEM with the vendor
 * library's code. */
int tern__kernel_run(const tern__call *call);

const char *tern__kernel_name(tern__kernel kernel);

/* What decides on this machine which of the fast kernels run, and so how they round: "oneDNN 2.6.3 for isa
 * 0xe7, AMX". */
void tern__kernel_choices(char *text, size_t size);

/* What this machine lacks to multiply matrices of `dtype` (BF16 or F16) by instructions of its own, "AVX-512
 * BF16 or AMX"; NULL: nothing. Without them results are the same to rounding, but no faster than f32's. */
const char *tern__kernel_lacks(tern_dtype dtype);

/* Told of every kernel that a device was asked for (device->observer), but not of those that it runs for
 * others, and before it if `begins` is there. */
typedef struct tern__kernel_observer {
    void (*ran)(struct tern__kernel_observer *self, const tern__call *call);
    void (*begins)(struct tern__kernel_observer *self);
} tern__kernel_observer;

extern const tern__kernel_fn tern__reference_kernels[TERN__KERNEL_COUNT];
extern const tern__kernel_fn tern__cpu_kernels[TERN__KERNEL_COUNT];

/* Loops that the compiler may vectorise for the CPU it finds at run time. Only for static functions without
 * OpenMP pragmas of their own (an outlined parallel region would lose the target). Of a file that is compiled
 * for each width of vectors (cpu/width.h), those that have it. */
#if defined(__x86_64__) && defined(TERN__WIDE)
#define TERN__SIMD __attribute__((target("arch=x86-64-v4")))
#elif !defined(__x86_64__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TERN__SIMD
#elif defined(TERN__SLIM)
#define TERN__SIMD __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TERN__SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

#endif
