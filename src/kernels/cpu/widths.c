/* widths.c - tells whether the CPU's wide vectors may be used. */
#include "kernels/cpu/widths.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static bool is_wide, has_bf16_pairs;

static void widths_find(void)
{
#if defined(__x86_64__)
    const char *name = getenv("ONEDNN_MAX_CPU_ISA");
    bool all = !name || strcmp(name, "ALL") == 0 || strcmp(name, "DEFAULT") == 0;
    is_wide = __builtin_cpu_supports("x86-64-v4") && (all || strstr(name, "AVX512"));
    has_bf16_pairs = is_wide && __builtin_cpu_supports("avx512bf16") &&
                     (all || strstr(name, "BF16") || strstr(name, "AMX") || strstr(name, "FP16"));
#endif
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

bool tern__is_wide(void)
{
    pthread_once(&once, widths_find);
    return is_wide;
}

bool tern__has_bf16_pairs(void)
{
    pthread_once(&once, widths_find);
    return has_bf16_pairs;
}
