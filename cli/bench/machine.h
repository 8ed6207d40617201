/* machine.h - measures the peak arithmetic and copy rates of the CPU or the GPU, to which a profile compares
 * the kernels. */
#ifndef TERN_CLI_BENCH_MACHINE_H
#define TERN_CLI_BENCH_MACHINE_H

#include "device/device.h"

typedef struct tern__machine {
    double gflops;   /* a multiply-add counts as two operations */
    double copy_gbs; /* bytes read plus bytes written, out of cache; on a CPU with plain stores */
} tern__machine;

/* Measures a CPU with all threads of the device in f32, a GPU with large matrix products in `dtype`; takes
 * the best of a few tries. To measure each rank's share under load, all ranks call it at the same time.
 * E_MEMORY. */
int tern__machine_measure(tern_device *device, tern_dtype dtype, tern__machine *machine, tern_error *err);
/* The same for a GPU (machine_device.c). */
int tern__machine_measure_device(tern_device *device, tern_dtype dtype, tern__machine *machine,
                                 tern_error *err);

/* Returns the GB/s of a copy within a GPU that moves `bytes`, half of them read and half written. Copies are
 * timed as a profile times kernels: queued without waiting, each with an event before and one after it, so
 * the launch is included; returns the mean. 0 if memory is short or after an error. */
double tern__machine_copy_of(tern_device *device, double bytes, tern_error *err);

/* Does one pass of the CPU's copy over `count` floats; the optimizer bench times it itself. */
void tern__machine_copy(float *to, const float *from, size_t count, int threads);

#endif
