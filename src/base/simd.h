/* simd.h - compiles a function for several CPUs. */
#ifndef TERN_SRC_SIMD_H
#define TERN_SRC_SIMD_H

/* For functions with loops that the compiler vectorises for the CPU found at run time. Only for static
 * functions without OpenMP pragmas of their own, since an outlined parallel region would lose the target.
 * In a file that is compiled once per vector width (kernels/cpu/width.h): that width. */
#if defined(__x86_64__) && defined(TERN__WIDE)
#define TERN__SIMD __attribute__((target("arch=x86-64-v4")))
#elif !defined(__x86_64__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TERN__SIMD
#elif defined(TERN__SLIM)
#define TERN__SIMD __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TERN__SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

/* For functions that run only beside the tile unit (kernels/cpu/amx.h), which no CPU has without AVX-512. */
#if defined(__x86_64__)
#define TERN__AMX_SIMD __attribute__((target("arch=x86-64-v4")))
#else
#define TERN__AMX_SIMD TERN__SIMD
#endif

#endif
