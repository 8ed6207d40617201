/* kernel.h - a kernel is a pure function on views: it knows neither scope, nor gradient, nor module.
 *
 * Every entry of kernels.def has a reference kernel, which is the oracle and the fallback. A device may
 * have a faster kernel, which returns E_UNSUPPORTED for calls that it does not take. Kernels rely on the
 * op's shape rule: their operands' shapes are valid. */
#ifndef TERN_SRC_KERNELS_KERNEL_H
#define TERN_SRC_KERNELS_KERNEL_H

#include "base/simd.h"
#include "device/device.h"
#include "tensor/view.h"

typedef enum tern__kernel {
#define X(id, name, inputs, outputs) TERN__##id,
#include "kernels/kernels.def"
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
    const void *attr;                         /* the op's attributes, a struct without padding */
    tern_error *err;
} tern__call;

typedef int (*tern__kernel_fn)(const tern__call *call);

/* Runs the device's fast kernel, or the reference kernel if there is none or it declines. Returns TERN_OK,
 * or a negative status with call->err set: E_MEMORY, E_UNSUPPORTED with op, dtype and shape, E_SYSTEM with
 * the vendor library's code. */
int tern__kernel_run(const tern__call *call);

const char *tern__kernel_name(tern__kernel kernel);

/* Describes what decides on this machine which fast kernels run, and so how they round: "oneDNN 2.6.3 for
 * isa 0xe7, AMX". */
void tern__kernel_choices(char *text, size_t size);

/* Names what this machine lacks for native matrix products of `dtype` (BF16 or F16): "AVX-512 BF16 or
 * AMX"; NULL: nothing. Without it results are the same up to rounding, but no faster than f32's. */
const char *tern__kernel_lacks(tern_dtype dtype);

/* Called after every kernel that a device was asked for (device->observer), except those that it runs on
 * behalf of other kernels; `begins`, if set, is called before. */
typedef struct tern__kernel_observer {
    void (*ran)(struct tern__kernel_observer *self, const tern__call *call);
    void (*begins)(struct tern__kernel_observer *self);
} tern__kernel_observer;

extern const tern__kernel_fn tern__reference_kernels[TERN__KERNEL_COUNT];
extern const tern__kernel_fn tern__cpu_kernels[TERN__KERNEL_COUNT];

#endif
