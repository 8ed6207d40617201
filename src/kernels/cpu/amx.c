/* amx.c - detects the tile unit, and multiplies blocks of tiles. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/widths.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ASK_PERMISSION 0x1023 /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILE_DATA      18     /* the state component for tile data */

static bool has;

static void amx_find(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool cpu = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bit_AMX_TILE) && (d & bit_AMX_BF16);
    has = cpu && __builtin_cpu_supports("x86-64-v4") && tern__isa_allows("AMX") &&
          syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
}

bool tern__amx_has(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, amx_find);
    return has;
}

#define TILES __attribute__((target("arch=x86-64-v4,amx-tile,amx-bf16")))

/* gcc's tile loads do not tell the compiler which memory they read. */
#define MEMORY_IS_WRITTEN __asm__ volatile("" ::: "memory")

/* The operand of LDTILECFG: palette 1, and bytes per row and rows of each tile. */
typedef struct config {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} config;

TILES void tern__amx_open(void)
{
    config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.row_bytes[t] = 2 * TERN__AMX_DEPTH;
        c.rows[t] = TERN__AMX_ROWS;
    }
    MEMORY_IS_WRITTEN;
    _tile_loadconfig(&c);
}

TILES void tern__amx_close(void)
{
    _tile_release();
}

/* Tiles 0 to 3 hold the sums, 4 and 5 belong to a, 6 and 7 to b. */
#define BLOCK_PART TILES static inline __attribute__((always_inline)) void

BLOCK_PART load_sums(const float *sums, int rows, int columns)
{
    _tile_loadd(0, sums, 64);
    if (columns > 1) _tile_loadd(1, sums + 256, 64);
    if (rows > 1) _tile_loadd(2, sums + 512, 64);
    if (rows > 1 && columns > 1) _tile_loadd(3, sums + 768, 64);
}

BLOCK_PART clear_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

BLOCK_PART store_sums(float *sums, int rows, int columns)
{
    _tile_stored(0, sums, 64);
    if (columns > 1) _tile_stored(1, sums + 256, 64);
    if (rows > 1) _tile_stored(2, sums + 512, 64);
    if (rows > 1 && columns > 1) _tile_stored(3, sums + 768, 64);
}

BLOCK_PART load_a(const tern__amx_operands *o, const char *a, int rows)
{
    _tile_loadd(4, a, (size_t)o->a_row);
    if (rows > 1) _tile_loadd(5, a + o->a_next, (size_t)o->a_row);
}

BLOCK_PART load_b(const tern__amx_operands *o, const char *b, int columns)
{
    _tile_loadd(6, b, 64);
    if (columns > 1) _tile_loadd(7, b + o->b_next, 64);
}

BLOCK_PART multiply(int rows, int columns)
{
    _tile_dpbf16ps(0, 4, 6);
    if (columns > 1) _tile_dpbf16ps(1, 4, 7);
    if (rows > 1) _tile_dpbf16ps(2, 5, 6);
    if (rows > 1 && columns > 1) _tile_dpbf16ps(3, 5, 7);
}

/* With two parts, first both parts of a are multiplied by the high part of b; then the high part of a,
 * which is loaded already, by the low part of b. */
BLOCK_PART block(const tern__amx_operands *o, float *sums, int rows, int columns, int parts)
{
    MEMORY_IS_WRITTEN;
    if (o->more)
        load_sums(sums, rows, columns);
    else
        clear_sums();
    for (int64_t i = 0; i < o->steps; i++) {
        const char *a = o->a + o->a_at[i], *b = o->b + o->b_at[i];
        load_b(o, b, columns);
        if (parts > 1) {
            load_a(o, a + o->a_low, rows);
            multiply(rows, columns);
        }
        load_a(o, a, rows);
        multiply(rows, columns);
        if (parts > 1) {
            load_b(o, b + o->b_low, columns);
            multiply(rows, columns);
        }
    }
    store_sums(sums, rows, columns);
}

#define BLOCK(name, rows, columns, parts)                                                                    \
    TILES static void name(const tern__amx_operands *o, float *sums)                                         \
    {                                                                                                        \
        block(o, sums, rows, columns, parts);                                                                \
    }
BLOCK(block_1x1, 1, 1, 1)
BLOCK(block_1x2, 1, 2, 1)
BLOCK(block_2x1, 2, 1, 1)
BLOCK(block_2x2, 2, 2, 1)
BLOCK(block_1x1_of_parts, 1, 1, 2)
BLOCK(block_1x2_of_parts, 1, 2, 2)
BLOCK(block_2x1_of_parts, 2, 1, 2)
BLOCK(block_2x2_of_parts, 2, 2, 2)

void tern__amx_block(const tern__amx_operands *o, float sums[TERN__AMX_SUMS])
{
    static void (*const blocks[2][2][2])(const tern__amx_operands *o, float *sums) = {
        {{block_1x1, block_1x2}, {block_2x1, block_2x2}},
        {{block_1x1_of_parts, block_1x2_of_parts}, {block_2x1_of_parts, block_2x2_of_parts}}};
    blocks[o->a_low != 0][o->a_next != 0][o->b_next != 0](o, sums);
}

#else

bool tern__amx_has(void)
{
    return false;
}

void tern__amx_open(void)
{
}

void tern__amx_close(void)
{
}

void tern__amx_block(const tern__amx_operands *o, float sums[TERN__AMX_SUMS])
{
    (void)o;
    (void)sums;
}

#endif
