/* machine.h - what the cores or the device under a bench can do at most: the yardstick of a profile. */
#ifndef TERN_CLI_BENCH_MACHINE_H
#define TERN_CLI_BENCH_MACHINE_H

#include "device/device.h"

typedef struct tern__machine {
    double gflops;   /* a multiplication and an addition counting two                */
    double copy_gbs; /* bytes read plus bytes written, out of cache; on a CPU by plain stores */
} tern__machine;

/* Of the device's threads together, in f32; of a device with memory of its own what large products in `dtype`
 * reach. The best of a few tries. Ranks that want to know what each of them has while all work call it at the
 * same time. E_MEMORY. */
int tern__machine_measure(tern_device *device, tern_dtype dtype, tern__machine *machine, tern_error *err);
/* machine_device.c: of one with memory of its own. */
int tern__machine_measure_device(tern_device *device, tern_dtype dtype, tern__machine *machine,
                                 tern_error *err);

/* GB/s of a copy within such a device that moves so many bytes, half of them read and half written. Copies
 * are timed as a profile times kernels: one after the other without waiting, each from the place before it to
 * the one behind it, its launch included; the mean counts. 0: there is no memory for it, or an error. */
double tern__machine_copy_of(tern_device *device, double bytes, tern_error *err);

/* One pass of that copy over `count` floats, for who times it beside something else. */
void tern__machine_copy(float *to, const float *from, size_t count, int threads);

#endif
