/* gpus.h - the GPUs that a test may use: two of the emulation, or real ones, which TERN_TEST_GPUS counts. */
#ifndef TERN_TESTS_CUDA_GPUS_H
#define TERN_TESTS_CUDA_GPUS_H

#include <stdbool.h>
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

#endif
