/* machine.c - peak arithmetic and copy rates of the CPU. */
#include "bench/machine.h"

#include "kernels/cpu/widths.h"
#include "kernels/kernel.h"

#include <unistd.h>

enum { CHAIN_TRIES = 20, COPY_TRIES = 5 };

static double seconds_since(int64_t started)
{
    return (double)(tern__now_ns() - started) * 1e-9;
}

/* ---- arithmetic ----
 *
 * In a chain of multiply-adds each waits for the result before it. Twelve independent chains, one register
 * each, keep all units of a core busy; with two constants they fit into the sixteen registers of the smaller
 * targets. They start with different values, or else the compiler would merge them. */

enum { CHAINS = 12, TURNS = 1 << 20 };

/* Runs the chains in registers of `bytes` bytes; returns the number of operations. */
#define DEFINE_RUN(name, bytes, target)                                                                      \
    target static double name(float seed)                                                                    \
    {                                                                                                        \
        typedef float vector __attribute__((vector_size(bytes)));                                            \
        vector x[CHAINS], a = (vector){0} + 0.5f, b = (vector){0} + seed;                                    \
        for (int i = 0; i < CHAINS; i++) x[i] = b + (float)i;                                                \
        for (int turn = 0; turn < TURNS; turn++)                                                             \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) x[i] = x[i] * a + b;                   \
        for (int i = 1; i < CHAINS; i++) x[0] += x[i];                                                       \
        volatile float used = x[0][0];                                                                       \
        (void)used;                                                                                          \
        return 2.0 * CHAINS * TURNS * (bytes) / sizeof(float);                                               \
    }
#ifdef __x86_64__
DEFINE_RUN(run_v4, 64, __attribute__((target("arch=x86-64-v4"))))
DEFINE_RUN(run_v3, 32, __attribute__((target("arch=x86-64-v3"))))
#endif
DEFINE_RUN(run_any, 16, )

static double run_core(float seed)
{
#ifdef __x86_64__
    if (tern__is_wide()) return run_v4(seed);
    if (__builtin_cpu_supports("x86-64-v3")) return run_v3(seed);
#endif
    return run_any(seed);
}

static double measure_gflops(int threads)
{
    double best = 0;
    for (int try = 0; try < CHAIN_TRIES; try++) {
        double flops = 0;
        int64_t started = tern__now_ns();
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : flops)
        for (int i = 0; i < threads; i++) flops += run_core((float)i);
        best = TERN__MAX(best, flops / seconds_since(started) * 1e-9);
    }
    return best;
}

/* ---- copying ----
 *
 * Each element is multiplied: the compiler would turn a plain copy into a memcpy, whose stores bypass the
 * caches, unlike those of any kernel. */

TERN__SIMD static void scale(float *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = 3 * from[i];
}

void tern__machine_copy(float *to, const float *from, size_t count, int threads)
{
    size_t share = tern__align_up(count / (size_t)threads, TERN__LINE / sizeof(float));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int i = 0; i < threads; i++) {
        size_t first = TERN__MIN(count, share * (size_t)i);
        scale(to + first, from + first, i == threads - 1 ? count - first : TERN__MIN(share, count - first));
    }
}

/* Returns the bytes of each buffer: the size of the last-level cache, at least 64 MiB and at most 256 MiB. */
static size_t copied_bytes(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return tern__align_up((size_t)TERN__MIN(TERN__MAX(cache, 64L << 20), 256L << 20), TERN__LINE);
}

static double machine_measure_copy(int threads, tern_error *err)
{
    size_t bytes = copied_bytes();
    float *from = tern__alloc(bytes, "tern bench", err), *to = tern__alloc(bytes, "tern bench", err);
    double best = 0;
    for (int try = 0; from && to && try < COPY_TRIES; try++) {
        int64_t started = tern__now_ns();
        tern__machine_copy(to, from, bytes / sizeof(*to), threads);
        best = TERN__MAX(best, 2 * (double)bytes / seconds_since(started) * 1e-9);
    }
    tern__free(from);
    tern__free(to);
    return best;
}

int tern__machine_measure(tern_device *device, tern_dtype dtype, tern__machine *machine, tern_error *err)
{
    if (device->backend) return tern__machine_measure_device(device, dtype, machine, err);
    machine->gflops = measure_gflops(device->threads);
    machine->copy_gbs = machine_measure_copy(device->threads, err);
    return tern__is_set(err) ? err->code : TERN_OK;
}
