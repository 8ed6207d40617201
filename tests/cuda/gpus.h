/* gpus.h - the GPUs that a test may use: two of the emulation, or real ones, whose number is
 * TERN_TEST_GPUS. */
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

/* Another GPU than "cuda:0", or the same one if there is no other. */
static inline const char *other_gpu(void)
{
    return gpu_count() > 1 ? "cuda:1" : "cuda:0";
}

/* Looks up a symbol of the loaded plug-in, such as the emulation's counts. NULL: it is a real one. */
static inline void *emulated_symbol(const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/tern_cuda.so", getenv("TERN_PLUGIN_PATH"));
    void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return plugin ? dlsym(plugin, name) : NULL;
}

/* Counts of the plug-in's calls on the emulation (emulated/cuda_runtime.h):
 * emulated_symbol("emulated_counted"). */
typedef struct emulated_counts {
    int64_t kernels, others, captures, graphs, changes, largest, overlapping, clusters, looks, exportable;
} emulated_counts;

/* The largest grid since the last call; not counted on a real GPU. */
static inline int64_t largest_grid(void)
{
    emulated_counts *counted = emulated_symbol("emulated_counted");
    if (!counted) return INT64_MAX;
    int64_t largest = counted->largest;
    counted->largest = 0;
    return largest;
}

enum { ENOUGH = 64 }; /* enough blocks for the emulated multiprocessors */

/* Opens "cuda:0", which all tests of a program share. */
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
