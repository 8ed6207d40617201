/* amx.h - products of bf16 by the tile unit (AMX) of the CPU, summed in f32.
 *
 * oneDNN has kernels for it, but none for the gradients of a convolution, and it cannot size the tiles on
 * virtual machines that hide CPUID's leaf 0x1d (dnnl.c). Where that unit is, AVX-512's own bf16 instruction
 * is no help: on Sapphire and Emerald Rapids it has half the rate of f32's multiply-add, while a tile product
 * has twelve times that rate. */
#ifndef TERN_SRC_KERNELS_CPU_AMX_H
#define TERN_SRC_KERNELS_CPU_AMX_H

#include "base/base.h"

#define TERN__AMX_ROWS  16                                     /* of a tile, and columns of a result */
#define TERN__AMX_DEPTH 32                                     /* products that a step adds          */
#define TERN__AMX_TILE  (TERN__AMX_ROWS * TERN__AMX_DEPTH * 2) /* bytes of a tile                    */
#define TERN__AMX_SUMS  (4 * TERN__AMX_ROWS * TERN__AMX_ROWS)  /* floats of a block                  */

/* Whether the CPU has it, the kernel lets this process use it and ONEDNN_MAX_CPU_ISA names no lesser
 * instruction set. */
bool tern__amx_has(void);

/* A thread opens its tiles before its first block and closes them after the last. */
void tern__amx_open(void);
void tern__amx_close(void);

/* A block: 32 rows by 32 columns, or half of either, as the sum over `steps` steps of what stands at a +
 * a_at[i] times what stands at b + b_at[i] (offsets in bytes). A tile of a is 16 rows of 32 values, `a_row`
 * bytes apart; of b it is 1024 bytes, 16 pairs of rows, each with 16 columns of two values. The second tile
 * of each stands a_next and b_next behind the first; 0: there is none.
 *
 * Floats are sums of two parts (tern__lanes_split), of which the lower stand a_low and b_low behind the
 * higher; 0: there are none. Of their product the lower parts' is left out: it is below 2^-16 of it, and what
 * is beyond the parts below 2^-17 of each operand. */
typedef struct tern__amx_operands {
    const char *a, *b;
    int64_t a_row, a_next, b_next, a_low, b_low;
    const int64_t *a_at, *b_at;
    int64_t steps;
    bool more; /* the sums go on from what they were */
} tern__amx_operands;

/* sums[r * 2 + c]: the tile in row r, column c, row by row. */
void tern__amx_block(const tern__amx_operands *o, float sums[TERN__AMX_SUMS]);

#endif
