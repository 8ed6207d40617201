/* gpus.h - the GPUs that a test may use: two of the emulation, or real ones, which TERN_TEST_GPUS counts. */
#ifndef TERN_TESTS_CUDA_GPUS_H
#define TERN_TESTS_CUDA_GPUS_H

#include "check.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static inline bool is_emulated(void)
{
    return !getenv("TERN_TEST_GPUS");
}

static inline int gpu_count(void)
{
    return is_emulated() ? 2 : atoi(getenv("TERN_TEST_GPUS"));
}

/* Another one than "cuda:0"; where there is none that one again. */
static inline const char *other_gpu(void)
{
    return gpu_count() > 1 ? "cuda:1" : "cuda:0";
}

/* Of the plug-in, which a device has loaded: what the emulation counts. NULL: it is a real one. */
static inline void *emulated_symbol(const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/tern_cuda.so", getenv("TERN_PLUGIN_PATH"));
    void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return plugin ? dlsym(plugin, name) : NULL;
}

/* What the plug-in has asked the emulation for (emulated/cuda_runtime.h):
 * emulated_symbol("emulated_counted"). */
typedef struct emulated_counts {
    int64_t kernels, others, captures, graphs, changes, largest, overlapping, clusters, looks, exportable;
} emulated_counts;

/* The most blocks of a kernel since this was asked last. Of a real GPU nobody counts them. */
static inline int64_t largest_grid(void)
{
    emulated_counts *counted = emulated_symbol("emulated_counted");
    if (!counted) return INT64_MAX;
    int64_t largest = counted->largest;
    counted->largest = 0;
    return largest;
}

enum { ENOUGH = 64 }; /* blocks for the processors of the emulated one: as many as they are ever given */

/* What all tests of a program share: "cuda:0". */
static inline int open_gpu(void **state)
{
    tern_error err = {0};
    *state = tern_device_open("cuda:0", &err);
    assert_ok(err);
    return 0;
}

static inline int close_gpu(void **state)
{
    tern_device_close(*state);
    return 0;
}

#endif
