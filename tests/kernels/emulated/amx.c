/* amx.c - the CPU's tile unit (AMX) in software, for CPUs without it. src/kernels/cpu/amx.c is compiled once
 * more with the instructions below, and the linker's --wrap option makes a test's calls go there.
 *
 * TDPBF16PS is done as Intel's manual writes it down: the even products of a row are added up in order, the
 * odd ones beside them, by fused multiply-adds; their sum is added to the result. Denormal numbers are zeros,
 * as operands and as results, and sums are rounded to the nearest. */
#define tern__amx_has   amx_has_unit
#define tern__amx_open  __wrap_tern__amx_open
#define tern__amx_close __wrap_tern__amx_close
#define tern__amx_block __wrap_tern__amx_block

#ifdef __x86_64__
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 16
#define WIDE 64     /* bytes of a row */
#define ZERO 0x8040 /* MXCSR: denormal results and operands are zero */

/* The eight tiles of a thread. */
static _Thread_local struct {
    bool is_open;
    uint8_t row[8][ROWS][WIDE];
} unit;

/* A tile instruction without a configuration is invalid. */
static void expect_open(void)
{
    if (unit.is_open) return;
    fprintf(stderr, "a tile instruction without a configuration\n");
    abort();
}

/* The palette, and for each tile bytes per row and rows. The code under test uses whole tiles only. */
static void emulated_loadconfig(const void *config)
{
    const uint8_t *bytes = config;
    unit.is_open = bytes[0] == 1;
    for (int t = 0; t < 8; t++)
        unit.is_open = unit.is_open && bytes[16 + 2 * t] == WIDE && bytes[48 + t] == ROWS;
    memset(unit.row, 0, sizeof(unit.row));
    expect_open();
}

static void emulated_release(void)
{
    unit.is_open = false;
}

static void emulated_zero(int tile)
{
    expect_open();
    memset(unit.row[tile], 0, sizeof(unit.row[tile]));
}

static void emulated_loadd(int tile, const void *from, size_t stride)
{
    expect_open();
    for (size_t r = 0; r < ROWS; r++) memcpy(unit.row[tile][r], (const char *)from + r * stride, WIDE);
}

static void emulated_stored(int tile, void *to, size_t stride)
{
    expect_open();
    for (size_t r = 0; r < ROWS; r++) memcpy((char *)to + r * stride, unit.row[tile][r], WIDE);
}

__attribute__((target("avx512f"))) static void emulated_dpbf16ps(int sums, int a, int b)
{
    expect_open();
    const unsigned before = _mm_getcsr();
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    _mm_setcsr(0x1f80 | ZERO);
    for (int m = 0; m < ROWS; m++) {
        uint32_t pairs[ROWS];
        memcpy(pairs, unit.row[a][m], WIDE);
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < ROWS; k++) {
            __m512i words = _mm512_loadu_si512(unit.row[b][k]);
            __m512 first = _mm512_castsi512_ps(_mm512_set1_epi32((int)(pairs[k] << 16)));
            __m512 second = _mm512_castsi512_ps(_mm512_set1_epi32((int)(pairs[k] & 0xffff0000)));
            even = _mm512_fmadd_ps(first, _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)), even);
            odd = _mm512_fmadd_ps(second, _mm512_castsi512_ps(_mm512_and_si512(words, upper)), odd);
        }
        __m512 sum = _mm512_loadu_ps(unit.row[sums][m]);
        _mm512_storeu_ps(unit.row[sums][m], _mm512_add_ps(sum, _mm512_add_ps(even, odd)));
    }
    _mm_setcsr(before);
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated_loadconfig
#define _tile_release    emulated_release
#define _tile_loadd      emulated_loadd
#define _tile_stored     emulated_stored
#define _tile_zero       emulated_zero
#define _tile_dpbf16ps   emulated_dpbf16ps
#endif

#include "kernels/cpu/amx.c"

bool __wrap_tern__amx_has(void);

bool __wrap_tern__amx_has(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("x86-64-v4");
#else
    return false;
#endif
}
