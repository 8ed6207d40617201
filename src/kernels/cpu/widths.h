/* widths.h - which of the tables that a file of width.h exports suits this CPU. */
#ifndef TERN_SRC_KERNELS_CPU_WIDTHS_H
#define TERN_SRC_KERNELS_CPU_WIDTHS_H

#include <stdbool.h>

/* The CPU has registers of sixteen floats, and the user has not forbidden them to oneDNN, which is meant for
 * us too. */
bool tern__is_wide(void);

#ifdef __x86_64__
#define TERN__DECLARE_WIDTHS(type, table) extern const type table##_wide, table##_slim
#define TERN__BY_WIDTH(table)             (tern__is_wide() ? &table##_wide : &table##_slim)
#else
#define TERN__DECLARE_WIDTHS(type, table) extern const type table##_slim
#define TERN__BY_WIDTH(table)             (&table##_slim)
#endif

#endif
