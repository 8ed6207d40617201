/* f64_attention.c - attention's loops in f64. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/lanes.h"

#define DOUBLES (TERN__LANES / 2)
typedef double doubles __attribute__((vector_size(8 * DOUBLES)));
typedef int64_t integers __attribute__((vector_size(8 * DOUBLES)));
typedef uint64_t words __attribute__((vector_size(8 * DOUBLES)));

TERN__INLINE void vector_turn(doubles v[DOUBLES])
{
    double from[DOUBLES][DOUBLES], to[DOUBLES][DOUBLES];
    memcpy(from, v, sizeof(from));
    for (int r = 0; r < DOUBLES; r++)
        for (int c = 0; c < DOUBLES; c++) to[c][r] = from[r][c];
    memcpy(v, to, sizeof(to));
}

TERN__INLINE doubles doubles_get(const void *from, tern_dtype dtype, int64_t at, int n)
{
    doubles v = {0};
    (void)dtype;
    memcpy(&v, (const double *)from + at, (size_t)n * sizeof(double));
    return v;
}

TERN__INLINE void doubles_set(void *to, tern_dtype dtype, int64_t at, doubles v, int n, bool add)
{
    if (add) v += doubles_get(to, dtype, at, n);
    memcpy((double *)to + at, &v, (size_t)n * sizeof(double));
}

#define REAL                    double
#define VECTOR                  doubles
#define INTEGERS                integers
#define WORDS                   words
#define WIDTH                   DOUBLES
#define MANTISSA                52
#define BIAS                    1023
#define GET                     doubles_get
#define SET                     doubles_set
#define PAIR                    1
#define FACTOR                  REAL
#define FACTORS                 VECTOR
#define MULTIPLY_ADD(sum, a, b) ((sum) + (a) * (b))
#include "kernels/cpu/attention_few.h"

const tern__attention_fns TERN__OF_WIDTH(tern__attention_f64) = {
    forward_room, attention_forward, few_room, attention_few, backward_room, attention_backward};
