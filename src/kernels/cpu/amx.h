/* amx.h - bf16 products by the CPU's tile unit (AMX), summed in f32.
 *
 * oneDNN has kernels for it, but none for the gradients of a convolution, and it cannot size the tiles on
 * virtual machines that hide CPUID's leaf 0x1d (dnnl.c). On CPUs with the tile unit AVX-512's bf16
 * instruction does not help: on Sapphire and Emerald Rapids it has half the rate of f32's multiply-add,
 * while a tile product has twelve times that rate. */
#ifndef TERN_SRC_KERNELS_CPU_AMX_H
#define TERN_SRC_KERNELS_CPU_AMX_H

#include "base/base.h"

#define TERN__AMX_ROWS  16                                     /* rows of a tile, and columns of a result */
#define TERN__AMX_DEPTH 32                                     /* products that a step adds */
#define TERN__AMX_TILE  (TERN__AMX_ROWS * TERN__AMX_DEPTH * 2) /* bytes of a tile */
#define TERN__AMX_SUMS  (4 * TERN__AMX_ROWS * TERN__AMX_ROWS)  /* floats of a block */

/* Whether the CPU has the unit, and the operating system and the user (tern__isa_allows) let this process use
 * it. */
bool tern__amx_has(void);

/* A thread opens its tiles before its first block and closes them after its last. */
void tern__amx_open(void);
void tern__amx_close(void);

/* The operands of a block: 32 rows by 32 columns, or half of either, summed over `steps` steps of the
 * tiles at a + a_at[i] times those at b + b_at[i] (offsets in bytes). A tile of a is 16 rows of 32 values,
 * `a_row` bytes apart. A tile of b is 1024 bytes: 16 pairs of rows, each with 16 columns of two values.
 * The second tile of each is a_next and b_next bytes after the first; 0: there is none.
 *
 * Floats that are not large are sums of two parts (tern__lanes_split), with the low part a_low and b_low
 * bytes after the high one; 0: there is one part. The product of the low parts is left out: it is below
 * 2^-16 of the whole, and what the two parts do not represent is below 2^-17 of each operand. */
typedef struct tern__amx_operands {
    const char *a, *b;
    int64_t a_row, a_next, b_next, a_low, b_low;
    const int64_t *a_at, *b_at;
    int64_t steps;
    bool more; /* add to the previous sums */
} tern__amx_operands;

/* sums[r * 2 + c]: the tile in row r and column c, row by row. */
void tern__amx_block(const tern__amx_operands *o, float sums[TERN__AMX_SUMS]);

#endif
