#include "kernels/cpu/amx.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ASK_PERMISSION 0x1023 /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILE_DATA      18     /* the state that it is asked for  */

static bool has;

/* The instruction set that a user has named for oneDNN is meant for us too. */
static bool is_forbidden(void)
{
    const char *name = getenv("ONEDNN_MAX_CPU_ISA");
    if (!name) name = getenv("DNNL_MAX_CPU_ISA");
    return name && !strstr(name, "AMX") && strcmp(name, "ALL") != 0 && strcmp(name, "DEFAULT") != 0;
}

static void find(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool cpu = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bit_AMX_TILE) && (d & bit_AMX_BF16);
    has = cpu && __builtin_cpu_supports("x86-64-v4") && !is_forbidden() &&
          syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
}

bool tern__amx_has(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    return has;
}

#define TILES __attribute__((target("arch=x86-64-v4,amx-tile,amx-bf16")))

/* gcc's tile loads do not tell the compiler what they read. */
#define MEMORY_IS_WRITTEN __asm__ volatile("" ::: "memory")

/* What LDTILECFG reads: palette 1, and of each tile the bytes of a row and the rows. */
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

/* Tiles 0 to 3 hold the sums, 4 and 5 are of a, 6 and 7 of b. */
#define BLOCK(name, rows, columns)                                                                           \
    TILES static void name(const tern__amx_operands *o, float *sums)                                         \
    {                                                                                                        \
        MEMORY_IS_WRITTEN;                                                                                   \
        if (o->more) {                                                                                       \
            _tile_loadd(0, sums, 64);                                                                        \
            if (columns > 1) _tile_loadd(1, sums + 256, 64);                                                 \
            if (rows > 1) _tile_loadd(2, sums + 512, 64);                                                    \
            if (rows > 1 && columns > 1) _tile_loadd(3, sums + 768, 64);                                     \
        } else {                                                                                             \
            _tile_zero(0);                                                                                   \
            if (columns > 1) _tile_zero(1);                                                                  \
            if (rows > 1) _tile_zero(2);                                                                     \
            if (rows > 1 && columns > 1) _tile_zero(3);                                                      \
        }                                                                                                    \
        for (int64_t i = 0; i < o->steps; i++) {                                                             \
            const char *a = o->a + o->a_at[i], *b = o->b + o->b_at[i];                                       \
            _tile_loadd(6, b, 64);                                                                           \
            _tile_loadd(4, a, (size_t)o->a_row);                                                             \
            if (columns > 1) _tile_loadd(7, b + o->b_next, 64);                                              \
            if (rows > 1) _tile_loadd(5, a + o->a_next, (size_t)o->a_row);                                   \
            _tile_dpbf16ps(0, 4, 6);                                                                         \
            if (columns > 1) _tile_dpbf16ps(1, 4, 7);                                                        \
            if (rows > 1) _tile_dpbf16ps(2, 5, 6);                                                           \
            if (rows > 1 && columns > 1) _tile_dpbf16ps(3, 5, 7);                                            \
        }                                                                                                    \
        _tile_stored(0, sums, 64);                                                                           \
        if (columns > 1) _tile_stored(1, sums + 256, 64);                                                    \
        if (rows > 1) _tile_stored(2, sums + 512, 64);                                                       \
        if (rows > 1 && columns > 1) _tile_stored(3, sums + 768, 64);                                        \
    }
BLOCK(block_1x1, 1, 1)
BLOCK(block_1x2, 1, 2)
BLOCK(block_2x1, 2, 1)
BLOCK(block_2x2, 2, 2)

void tern__amx_block(const tern__amx_operands *o, float sums[TERN__AMX_SUMS])
{
    if (o->a_next)
        (o->b_next ? block_2x2 : block_2x1)(o, sums);
    else
        (o->b_next ? block_1x2 : block_1x1)(o, sums);
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
