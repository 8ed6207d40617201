/* few_rows_sums.c - the sums of a product of a few rows. They read b once, as fast as memory gives it: as
 * many of its columns as a vector has lanes together, where these are its lines; where rows are, eight, whose
 * products are added to sums that stay in the first-level cache. The next ones are asked for meanwhile,
 * because the processor does not foresee so many lines. A second row of a finds b in a near cache. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/lanes.h"

#define LANES TERN__LANES
#define DEEP  8 /* rows of b that are read together */

#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

TERN__DEFINE_TURN(turn_lanes, tern__lanes)

/* f16 by the processor's own conversion (F16C), where it has it: a dozen instructions would take longer than
 * the memory. It is written as an instruction because gcc has its builtin only for whole files. Functions for
 * processors without it must lose it as dead code, so the compiler has to optimize. */
#define F16C ((tern_dtype)-1)

#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(__clang__)
#define HAS_F16C
TERN__INLINE tern__lanes lanes_of_f16c(tern__halves h)
{
    tern__lanes v;
    __asm__("vcvtph2ps %1, %0" : "=v"(v) : "v"(h));
    return v;
}
#endif

/* tern__lanes_get, and of F16C. */
TERN__INLINE tern__lanes b_load(const void *from, tern_dtype dtype, int64_t at, int n)
{
#ifdef HAS_F16C
    if (dtype == F16C) {
        tern__halves h = {0};
        memcpy(&h, (const uint16_t *)from + at, (size_t)n * sizeof(uint16_t));
        return lanes_of_f16c(h);
    }
#endif
    return tern__lanes_get(from, dtype, at, n);
}

TERN__INLINE const char *b_at(const tern__few_rows *p, tern_dtype dtype, int64_t at)
{
    return (const char *)p->b + at * (int64_t)(dtype == TERN_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* ---- lines are columns ---- */

/* Columns from number `column` on, as many as there are lanes; those from `last` on repeat the one before. */
TERN__INLINE void sum_columns(const tern__few_rows *p, tern_dtype dtype, int64_t column, int64_t last,
                              const float *a, float *sums)
{
    const int64_t depth = p->depth, whole = depth / LANES * LANES,
                  ahead = b_at(p, dtype, LANES * p->line) - b_at(p, dtype, 0);
    const int rest = (int)(depth - whole), count = (int)TERN__MIN(LANES, last - column);
    const char *from[LANES];
    tern__lanes sum[LANES] = {{0}};
    EACH(l, LANES) from[l] = b_at(p, dtype, TERN__MIN(column + l, last - 1) * p->line);
    for (int64_t k = 0; k < whole; k += LANES) {
        tern__lanes factors = tern__lanes_load(a + k, LANES);
        EACH(l, LANES)
        {
            __builtin_prefetch(b_at(&(tern__few_rows){.b = from[l]}, dtype, k) + ahead);
            sum[l] += factors * b_load(from[l], dtype, k, LANES);
        }
    }
    for (int l = 0; l < LANES && rest; l++)
        sum[l] += tern__lanes_load(a + whole, rest) * b_load(from[l], dtype, whole, rest);
    turn_lanes(sum);
    EACH(l, LANES - 1) sum[0] += sum[l + 1];
    tern__lanes_store(sums + column, sum[0], count);
}

TERN__INLINE void by_columns(const tern__few_rows *p, tern_dtype dtype, const tern__few_rows_part *part)
{
    for (int64_t column = part->column[0]; column < part->column[1]; column += LANES)
        for (int64_t i = 0; i < p->rows; i++)
            sum_columns(p, dtype, column, part->column[1], p->a + i * p->depth, part->sums + i * p->columns);
}

/* ---- lines are rows ---- */

/* Adds the products of `deep` rows of b from row k on. */
TERN__INLINE void add_rows(const tern__few_rows *p, tern_dtype dtype, int64_t k, int deep, const float *a,
                           const int64_t range[2], bool adds, float *sums)
{
    const int64_t last = range[1], whole = range[0] + (last - range[0]) / LANES * LANES,
                  ahead = b_at(p, dtype, deep * p->line) - b_at(p, dtype, 0);
    const int rest = (int)(last - whole);
    const char *from[DEEP];
    tern__lanes factor[DEEP] = {{0}}, sum = {0};
    EACH(d, deep)
    {
        from[d] = b_at(p, dtype, (k + d) * p->line);
        factor[d] = a[k + d] - (tern__lanes){0};
    }
    for (int64_t column = range[0]; column < whole; column += LANES) {
        sum = adds ? tern__lanes_load(sums + column, LANES) : (tern__lanes){0};
        EACH(d, deep)
        {
            __builtin_prefetch(b_at(&(tern__few_rows){.b = from[d]}, dtype, column) + ahead);
            sum += factor[d] * b_load(from[d], dtype, column, LANES);
        }
        tern__lanes_store(sums + column, sum, LANES);
    }
    if (!rest) return;
    sum = adds ? tern__lanes_load(sums + whole, rest) : (tern__lanes){0};
    for (int d = 0; d < deep; d++) sum += factor[d] * b_load(from[d], dtype, whole, rest);
    tern__lanes_store(sums + whole, sum, rest);
}

TERN__INLINE void by_rows(const tern__few_rows *p, tern_dtype dtype, const tern__few_rows_part *part)
{
    int64_t k = part->k[0];
    for (; k + DEEP <= part->k[1]; k += DEEP)
        for (int64_t i = 0; i < p->rows; i++)
            add_rows(p, dtype, k, DEEP, p->a + i * p->depth, part->column, k > part->k[0],
                     part->sums + i * p->columns);
    for (; k < part->k[1]; k++)
        for (int64_t i = 0; i < p->rows; i++)
            add_rows(p, dtype, k, 1, p->a + i * p->depth, part->column, k > part->k[0],
                     part->sums + i * p->columns);
}

/* ---- by type ---- */

#define DEFINE(name, simd, sums, dtype)                                                                      \
    simd static void name(const tern__few_rows *p, const tern__few_rows_part *part)                          \
    {                                                                                                        \
        sums(p, dtype, part);                                                                                \
    }
DEFINE(by_columns_f32, TERN__SIMD, by_columns, TERN_F32)
DEFINE(by_columns_bf16, TERN__SIMD, by_columns, TERN_BF16)
DEFINE(by_columns_f16, TERN__SIMD, by_columns, TERN_F16)
DEFINE(by_rows_f32, TERN__SIMD, by_rows, TERN_F32)
DEFINE(by_rows_bf16, TERN__SIMD, by_rows, TERN_BF16)
DEFINE(by_rows_f16, TERN__SIMD, by_rows, TERN_F16)

typedef void sums_fn(const tern__few_rows *p, const tern__few_rows_part *part);

#ifdef HAS_F16C
#ifdef TERN__WIDE
#define WITH_F16C TERN__SIMD
#else
#define WITH_F16C __attribute__((target("arch=x86-64-v3")))
#endif
DEFINE(by_columns_f16c, WITH_F16C, by_columns, F16C)
DEFINE(by_rows_f16c, WITH_F16C, by_rows, F16C)

static sums_fn *f16_sums(bool is_by_columns)
{
    if (__builtin_cpu_supports("x86-64-v3")) return is_by_columns ? by_columns_f16c : by_rows_f16c;
    return is_by_columns ? by_columns_f16 : by_rows_f16;
}
#else
static sums_fn *f16_sums(bool is_by_columns)
{
    return is_by_columns ? by_columns_f16 : by_rows_f16;
}
#endif

static void few_rows_by_columns(const tern__few_rows *p, const tern__few_rows_part *part)
{
    (p->dtype == TERN_F32    ? by_columns_f32
     : p->dtype == TERN_BF16 ? by_columns_bf16
                             : f16_sums(true))(p, part);
}

static void few_rows_by_rows(const tern__few_rows *p, const tern__few_rows_part *part)
{
    (p->dtype == TERN_F32 ? by_rows_f32 : p->dtype == TERN_BF16 ? by_rows_bf16 : f16_sums(false))(p, part);
}

const tern__few_rows_fns TERN__OF_WIDTH(tern__few_rows_sums) = {few_rows_by_columns, few_rows_by_rows};
