/* widths.h - selects the table of a width.h file that suits this CPU. */
#ifndef TERN_SRC_KERNELS_CPU_WIDTHS_H
#define TERN_SRC_KERNELS_CPU_WIDTHS_H

#include <stdbool.h>

/* Whether the CPU has registers of sixteen floats and the user has not forbidden them to oneDNN, a limit
 * that applies here as well. */
bool tern__is_wide(void);

#ifdef __x86_64__
#define TERN__DECLARE_WIDTHS(type, table) extern const type table##_wide, table##_slim
#define TERN__BY_WIDTH(table)             (tern__is_wide() ? &table##_wide : &table##_slim)
#else
#define TERN__DECLARE_WIDTHS(type, table) extern const type table##_slim
#define TERN__BY_WIDTH(table)             (&table##_slim)
#endif

#endif
