/* widths.h - selects the table of a width.h file that suits this CPU. */
#ifndef TERN_SRC_KERNELS_CPU_WIDTHS_H
#define TERN_SRC_KERNELS_CPU_WIDTHS_H

#include <stdbool.h>

/* True if kernels use vectors of 16 floats: the CPU has AVX-512, and ONEDNN_MAX_CPU_ISA does not forbid it.
 */
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
