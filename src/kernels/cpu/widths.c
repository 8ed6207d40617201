/* widths.c - tells which of the CPU's instructions may be used. */
#include "kernels/cpu/widths.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char *isa_name(void)
{
    const char *name = getenv("ONEDNN_MAX_CPU_ISA");
    return name ? name : getenv("DNNL_MAX_CPU_ISA");
}

bool tern__isa_is_named(void)
{
    return isa_name() != NULL;
}

bool tern__isa_allows(const char *word)
{
    const char *name = isa_name();
    return !name || strcasecmp(name, "ALL") == 0 || strcasecmp(name, "DEFAULT") == 0 ||
           strcasestr(name, word);
}

static bool is_wide, has_bf16_pairs;

static void widths_find(void)
{
#if defined(__x86_64__)
    is_wide = __builtin_cpu_supports("x86-64-v4") && tern__isa_allows("AVX512");
    has_bf16_pairs = is_wide && __builtin_cpu_supports("avx512bf16") &&
                     (tern__isa_allows("BF16") || tern__isa_allows("AMX") || tern__isa_allows("FP16"));
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
