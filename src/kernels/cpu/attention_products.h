/* attention_products.h - attention's vectors, exponentials and products, for the type REAL of the file that
 * includes attention_loops.h.
 *
 * The operands of a product are made of FACTORs. Where PAIR is 1, a FACTOR is a REAL. Where PAIR is 2 it is a
 * word with two bf16, and the CPU multiplies two words in pairs and adds both products to a sum in f32. The
 * two are neighbours along the product's sum: in a they lie side by side in a row, as in memory, and in b
 * they come from two rows, which are interleaved. */
#ifndef TERN_SRC_KERNELS_CPU_ATTENTION_PRODUCTS_H
#define TERN_SRC_KERNELS_CPU_ATTENTION_PRODUCTS_H

#include <math.h>

/* The sums of a product that stay in registers: rows by vectors. */
#ifdef TERN__SLIM
#define ROWS 4
#else
#define ROWS 8
#endif
#define VECTORS 3

#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

/* A vector of one number. gcc 12 makes one load of this, but sixteen of the same in a function. */
#define ALL(value) ((value) - (VECTOR){0})

/* The steps of a sum over `count` numbers. */
#define STEPS(count) (((count) + PAIR - 1) / PAIR)

/* ---- vectors ---- */

TERN__INLINE VECTOR vector_load(const REAL *from)
{
    VECTOR v;
    memcpy(&v, from, sizeof(v));
    return v;
}

TERN__INLINE void vector_store(REAL *to, VECTOR v)
{
    memcpy(to, &v, sizeof(v));
}

/* v where `keep` is not 0, else 0. */
TERN__INLINE VECTOR vector_where(INTEGERS keep, VECTOR v)
{
    return (VECTOR)((INTEGERS)v & keep);
}

/* In each lane the larger one; b, if a is NaN. */
TERN__INLINE VECTOR vector_larger(VECTOR a, VECTOR b)
{
    INTEGERS above = (INTEGERS)(a > b);
    return (VECTOR)((INTEGERS)vector_where(above, a) | (INTEGERS)vector_where(~above, b));
}

/* Factors of a polynomial for 2^r with |r| <= 1/2, exact to about REAL's precision: in f32 those whose
 * largest relative error is least (9.1e-8), with 2^0 = 1, in f64 the powers of ln 2 over the factorials. */
static const double series[] = {
#if MANTISSA == 23
    1,
    0.6931469775987161,
    0.24022242084635026,
    0.05550733743574463,
    0.009671512688157075,
    0.001326472724707467
#else
    1,
    0.693147180559945309,
    0.240226506959100712,
    0.0555041086648215800,
    0.00961812910762847716,
    0.00133335581464284434,
    0.000154035303933816100,
    0.0000152527338040598403,
    1.32154867901443095e-6,
    1.01780860092396997e-7,
    7.05491162080112333e-9,
    4.44553827187081150e-10,
    2.56784359934882051e-11,
    1.36914888539041289e-12
#endif
};
#define TERMS ((int)TERN__COUNT(series))

/* 2^x for x up to about 0; 0 where that would hardly be a normal number. Adding a large number rounds x to
 * an integer, which is then at the end of the sum's bits, with the exponent's bias. NaN stays. */
TERN__INLINE VECTOR vector_power_of_2(VECTOR x)
{
    const VECTOR large = ALL((REAL)(3LL << (MANTISSA - 1)) + BIAS);
    VECTOR sum = x + large, rest = x - (sum - large);
    VECTOR power = ALL((REAL)series[TERMS - 1]);
    EACH(i, TERMS - 1) power = power * rest + (REAL)series[TERMS - 2 - i];
    power *= (VECTOR)((WORDS)sum << MANTISSA);
    return vector_where(~(INTEGERS)(x < ALL(1 - BIAS)), power);
}

/* ---- products ---- */

/* c (rows, vectors) = c decay + scale a (rows, depth) b (depth, vectors), with a's and b's elements
 * anywhere. */
typedef struct product {
    const FACTOR *a, *b;
    REAL *c;
    int64_t rows, depth, vectors;
    int64_t a_row, a_step, b_step, c_step;
    const REAL *decay; /* a factor for each column of c, NULL: 1 */
    REAL scale;        /* 0: 1 */
    bool add;          /* false: c = scale a b */
} product;

/* How a's rows are stored. */
enum { ADJACENT, IN_ROWS, ANYHOW };

/* A part of c that stays in registers. Rows behind the last one are computed from the last and not stored. */
TERN__INLINE void product_panel(const product *p, int64_t row, int64_t column, int rows, int vectors,
                                int form)
{
    const FACTOR *a[ROWS], *b = p->b + column;
    int64_t step = form == IN_ROWS ? 1 : p->a_step;
    VECTOR sum[ROWS][VECTORS] = {{{0}}};
    FACTORS values[VECTORS];
    EACH(r, rows)
    a[r] = form == ADJACENT ? p->a + row + r : p->a + TERN__MIN(row + r, p->rows - 1) * p->a_row;
    _Pragma("GCC unroll 4") for (int64_t t = 0; t < p->depth; t++, b += p->b_step)
    {
        EACH(v, vectors) memcpy(&values[v], b + v * WIDTH, sizeof(FACTORS));
        EACH(r, rows)
        {
            FACTORS factor = a[r][t * step] - (FACTORS){0};
            EACH(v, vectors) sum[r][v] = MULTIPLY_ADD(sum[r][v], factor, values[v]);
        }
    }
    EACH(r, rows)
    {
        if (row + r >= p->rows) continue;
        REAL *to = p->c + (row + r) * p->c_step + column;
        EACH(v, vectors)
        {
            VECTOR before = p->add ? vector_load(to + v * WIDTH) : (VECTOR){0};
            if (p->decay) before *= vector_load(p->decay + column + v * WIDTH);
            vector_store(to + v * WIDTH, before + (p->scale != 0 ? sum[r][v] * p->scale : sum[r][v]));
        }
    }
}

TERN__INLINE void product_columns(const product *p, int64_t column, int vectors)
{
    for (int64_t row = 0; row < p->rows; row += ROWS) {
        if (p->rows == 1)
            product_panel(p, row, column, 1, vectors, ANYHOW);
        else if (p->a_step == 1)
            product_panel(p, row, column, ROWS, vectors, IN_ROWS);
        else if (p->a_row == 1 && row + ROWS <= p->rows)
            product_panel(p, row, column, ROWS, vectors, ADJACENT);
        else
            product_panel(p, row, column, ROWS, vectors, ANYHOW);
    }
}

TERN__SIMD static void attention_multiply(const product *p)
{
    int64_t groups = (p->vectors + VECTORS - 1) / VECTORS;
    for (int64_t g = 0; g < groups; g++) {
        int64_t first = p->vectors * g / groups, last = p->vectors * (g + 1) / groups;
        switch (last - first) {
        case 1: product_columns(p, first * WIDTH, 1); break;
        case 2: product_columns(p, first * WIDTH, 2); break;
        default: product_columns(p, first * WIDTH, VECTORS); break;
        }
    }
}

#endif
