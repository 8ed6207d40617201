/* widths.c - tells whether the CPU's wide vectors may be used. */
#include "kernels/cpu/widths.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static bool is_wide;

static void widths_find(void)
{
#if defined(__x86_64__)
    const char *name = getenv("ONEDNN_MAX_CPU_ISA");
    bool forbidden =
        name && !strstr(name, "AVX512") && strcmp(name, "ALL") != 0 && strcmp(name, "DEFAULT") != 0;
    is_wide = __builtin_cpu_supports("x86-64-v4") && !forbidden;
#endif
}

bool tern__is_wide(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, widths_find);
    return is_wide;
}
