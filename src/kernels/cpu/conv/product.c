/* product.c - see product.h. Sums are kept in registers: of 32 outputs by up to 14 positions where there are
 * 32 registers of 16 floats (AVX-512), of 16 by up to 6 where there are 16 of 8, or 32 of 4 (NEON). Vectors
 * are as wide as the registers: of wider ones gcc makes memory. */
#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/widths.h"

#define LANES TERN__LANES

typedef tern__lanes wide;
#ifdef __x86_64__
#define SLIMS 2 /* that hold a block of channels */
#else
#define SLIMS 4
#endif
typedef float slim __attribute__((vector_size(4 * TERN__LANES / SLIMS)));

/* ---- sums over channels ---- */

#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

static inline const float *next(const tern__conv_product *p, const float *in, int64_t *left)
{
    if (--*left) return in + p->in_pitch;
    *left = p->period;
    return in + p->in_pitch + p->skip;
}

/* `count` positions of a row, whose first is at in and sums, and as many outputs from `out` on as `vectors`
 * vectors have. */
#define DEFINE_PANEL(name, vector, vectors, count)                                                           \
    TERN__SIMD static void name##_##count(const tern__conv_product *p, int64_t out, const float *in,         \
                                          float *sums)                                                       \
    {                                                                                                        \
        enum { FLOATS = sizeof(vector) / sizeof(float) };                                                    \
        const float *w = p->weight + out;                                                                    \
        vector sum[count][vectors] = {{{0}}}, weight[vectors];                                               \
        for (int64_t b = 0, left = p->near; b < p->blocks; b++, in = next(p, in, &left))                     \
            for (int c = 0; c < LANES; c++, w += p->width) {                                                 \
                EACH(v, vectors) memcpy(&weight[v], w + v * FLOATS, sizeof(vector));                         \
                EACH(i, count)                                                                               \
                {                                                                                            \
                    vector value = in[i * LANES + c] - (vector){0};                                          \
                    EACH(v, vectors) sum[i][v] += weight[v] * value;                                         \
                }                                                                                            \
            }                                                                                                \
        EACH(i, count) EACH(v, vectors)                                                                      \
        {                                                                                                    \
            int64_t o = out + v * FLOATS;                                                                    \
            float *to = sums + o / LANES * p->sum_pitch + i * LANES + o % LANES;                             \
            vector old = {0};                                                                                \
            if (p->add) memcpy(&old, to, sizeof(vector));                                                    \
            old += sum[i][v];                                                                                \
            memcpy(to, &old, sizeof(vector));                                                                \
        }                                                                                                    \
    }
#define DEFINE_SIX(name, vector, vectors)                                                                    \
    DEFINE_PANEL(name, vector, vectors, 1)                                                                   \
    DEFINE_PANEL(name, vector, vectors, 2)                                                                   \
    DEFINE_PANEL(name, vector, vectors, 3)                                                                   \
    DEFINE_PANEL(name, vector, vectors, 4)                                                                   \
    DEFINE_PANEL(name, vector, vectors, 5)                                                                   \
    DEFINE_PANEL(name, vector, vectors, 6)
#define DEFINE_FOURTEEN(name, vector, vectors)                                                               \
    DEFINE_SIX(name, vector, vectors)                                                                        \
    DEFINE_PANEL(name, vector, vectors, 7)                                                                   \
    DEFINE_PANEL(name, vector, vectors, 8)                                                                   \
    DEFINE_PANEL(name, vector, vectors, 9)                                                                   \
    DEFINE_PANEL(name, vector, vectors, 10)                                                                  \
    DEFINE_PANEL(name, vector, vectors, 11)                                                                  \
    DEFINE_PANEL(name, vector, vectors, 12)                                                                  \
    DEFINE_PANEL(name, vector, vectors, 13)                                                                  \
    DEFINE_PANEL(name, vector, vectors, 14)
DEFINE_FOURTEEN(two, wide, 2)
DEFINE_FOURTEEN(one, wide, 1)
DEFINE_SIX(slim, slim, SLIMS)

typedef void (*panel)(const tern__conv_product *p, int64_t out, const float *in, float *sums);

static const panel twos[] = {two_1, two_2, two_3,  two_4,  two_5,  two_6,  two_7,
                             two_8, two_9, two_10, two_11, two_12, two_13, two_14};
static const panel ones[] = {one_1, one_2, one_3,  one_4,  one_5,  one_6,  one_7,
                             one_8, one_9, one_10, one_11, one_12, one_13, one_14};
static const panel slims[] = {slim_1, slim_2, slim_3, slim_4, slim_5, slim_6};

/* Rows that follow each other in both operands are one. */
static tern__conv_product joined(const tern__conv_product *p)
{
    tern__conv_product j = *p;
    if (j.in_row == j.columns * LANES && j.sum_row == j.in_row) {
        j.columns *= j.rows;
        j.rows = 1;
    }
    return j;
}

/* A row is cut into panels of nearly the same number of positions. */
static void multiply(const tern__conv_product *p, int64_t out, const panel *panels, int64_t most)
{
    int64_t count = (p->columns + most - 1) / most;
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t i = 0; i < count; i++) {
            int64_t first = p->columns * i / count, last = p->columns * (i + 1) / count;
            panels[last - first - 1](p, out, p->in + r * p->in_row + first * LANES,
                                     p->sums + r * p->sum_row + first * LANES);
        }
}

void tern__conv_multiply(const tern__conv_product *p)
{
    tern__conv_product j = joined(p);
    if (!tern__is_wide())
        for (int64_t out = 0; out < j.width; out += LANES) multiply(&j, out, slims, TERN__COUNT(slims));
    else if (j.width > LANES)
        multiply(&j, 0, twos, TERN__COUNT(twos));
    else
        multiply(&j, 0, ones, TERN__COUNT(ones));
}

/* ---- sums over positions ---- */

/* All inputs, `count` of them at a time; as many outputs from `out` on as `vectors` vectors have. */
#define DEFINE_BACK(name, vector, vectors, count)                                                            \
    TERN__SIMD static void back_##name(const tern__conv_product *p, float *dw, int64_t out)                  \
    {                                                                                                        \
        enum { FLOATS = sizeof(vector) / sizeof(float) };                                                    \
        for (int64_t c = 0; c < p->blocks * LANES; c += count) {                                             \
            const float *in = p->in + c / LANES * p->in_pitch + c % LANES;                                   \
            const float *from = p->sums + out / LANES * p->sum_pitch;                                        \
            vector sum[count][vectors] = {{{0}}}, dy[vectors];                                               \
            for (int64_t r = 0; r < p->rows; r++, in += p->in_row, from += p->sum_row)                       \
                for (int64_t t = 0; t < p->columns; t++) {                                                   \
                    EACH(v, vectors)                                                                         \
                    memcpy(&dy[v],                                                                           \
                           from + v * FLOATS / LANES * p->sum_pitch + t * LANES + v * FLOATS % LANES,        \
                           sizeof(vector));                                                                  \
                    EACH(i, count)                                                                           \
                    {                                                                                        \
                        vector value = in[t * LANES + i] - (vector){0};                                      \
                        EACH(v, vectors) sum[i][v] += dy[v] * value;                                         \
                    }                                                                                        \
                }                                                                                            \
            EACH(i, count) EACH(v, vectors)                                                                  \
            {                                                                                                \
                float *to = dw + (c + i) * p->width + out + v * FLOATS;                                      \
                vector old = {0};                                                                            \
                if (p->add) memcpy(&old, to, sizeof(vector));                                                \
                old += sum[i][v];                                                                            \
                memcpy(to, &old, sizeof(vector));                                                            \
            }                                                                                                \
        }                                                                                                    \
    }
DEFINE_BACK(two, wide, 2, 8)
DEFINE_BACK(one, wide, 1, 8)
DEFINE_BACK(slim, slim, SLIMS, 4)

void tern__conv_multiply_back(const tern__conv_product *p, float *dw)
{
    tern__conv_product j = joined(p);
    if (!tern__is_wide())
        for (int64_t out = 0; out < j.width; out += LANES) back_slim(&j, dw, out);
    else
        (j.width > LANES ? back_two : back_one)(&j, dw, 0);
}
