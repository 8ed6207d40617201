/* widths.h - the instructions that kernels may use, and the table of a width.h file that suits them. */
#ifndef TERN_SRC_KERNELS_CPU_WIDTHS_H
#define TERN_SRC_KERNELS_CPU_WIDTHS_H

#include <stdbool.h>

/* Whether the user allows instruction sets whose name in oneDNN has this word: AVX512, BF16, AMX. The most
 * that is allowed is in ONEDNN_MAX_CPU_ISA, or in DNNL_MAX_CPU_ISA where that is not set. oneDNN reads both
 * itself, so one variable holds its kernels and tern's. */
bool tern__isa_allows(const char *word);
/* Whether the user allows less than the CPU has, or says that all of it may be used. */
bool tern__isa_is_named(void);

/* True if kernels use vectors of 16 floats: the CPU has AVX-512, and the user allows it. */
bool tern__is_wide(void);

/* True if they may multiply pairs of bf16: AVX-512 BF16, with the same limit. */
bool tern__has_bf16_pairs(void);

#ifdef __x86_64__
#define TERN__DECLARE_WIDTHS(type, table) extern const type table##_wide, table##_slim
#define TERN__BY_WIDTH(table)             (tern__is_wide() ? &table##_wide : &table##_slim)
#else
#define TERN__DECLARE_WIDTHS(type, table) extern const type table##_slim
#define TERN__BY_WIDTH(table)             (&table##_slim)
#endif

#endif
