/* product.c - see product.h. Sums are kept in registers: of 32 outputs by up to 14 positions where there are
 * 32 registers of 16 floats (AVX-512), of 16 by up to 6 where there are 16 of 8. Vectors are as wide as the
 * registers: of wider ones gcc makes memory. */
#include "kernels/cpu/conv/product.h"
#include "kernels/cpu/lanes.h"

#include <pthread.h>
#include <stdlib.h>

#define LANES TERN__LANES

typedef tern__lanes wide;
typedef float slim __attribute__((vector_size(32)));

/* ---- which of them ---- */

static bool has_wide = true;

/* The instruction set that a user has named for oneDNN is meant for us too. */
static void find(void)
{
#if defined(__x86_64__)
    const char *name = getenv("ONEDNN_MAX_CPU_ISA");
    bool forbidden =
        name && !strstr(name, "AVX512") && strcmp(name, "ALL") != 0 && strcmp(name, "DEFAULT") != 0;
    has_wide = __builtin_cpu_supports("x86-64-v4") && !forbidden;
#endif
}

bool tern__conv_is_wide(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    return has_wide;
}

/* ---- sums over channels ---- */

#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

/* `count` positions of a row, whose first is at in and sums, and as many outputs from `out` on as `vectors`
 * vectors have. */
#define DEFINE_PANEL(vector, vectors, count)                                                                 \
    TERN__SIMD static void vector##_##vectors##_##count(const tern__conv_product *p, int64_t out,            \
                                                        const float *in, float *sums)                        \
    {                                                                                                        \
        enum { FLOATS = sizeof(vector) / sizeof(float) };                                                    \
        const float *w = p->weight + out;                                                                    \
        vector sum[count][vectors] = {{{0}}}, weight[vectors];                                               \
        for (int64_t b = 0; b < p->blocks; b++, in += p->in_pitch)                                           \
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
#define DEFINE_SIX(vector, vectors)                                                                          \
    DEFINE_PANEL(vector, vectors, 1)                                                                         \
    DEFINE_PANEL(vector, vectors, 2)                                                                         \
    DEFINE_PANEL(vector, vectors, 3)                                                                         \
    DEFINE_PANEL(vector, vectors, 4)                                                                         \
    DEFINE_PANEL(vector, vectors, 5)                                                                         \
    DEFINE_PANEL(vector, vectors, 6)
#define DEFINE_FOURTEEN(vector, vectors)                                                                     \
    DEFINE_SIX(vector, vectors)                                                                              \
    DEFINE_PANEL(vector, vectors, 7)                                                                         \
    DEFINE_PANEL(vector, vectors, 8)                                                                         \
    DEFINE_PANEL(vector, vectors, 9)                                                                         \
    DEFINE_PANEL(vector, vectors, 10)                                                                        \
    DEFINE_PANEL(vector, vectors, 11)                                                                        \
    DEFINE_PANEL(vector, vectors, 12)                                                                        \
    DEFINE_PANEL(vector, vectors, 13)                                                                        \
    DEFINE_PANEL(vector, vectors, 14)
DEFINE_FOURTEEN(wide, 2)
DEFINE_FOURTEEN(wide, 1)
DEFINE_SIX(slim, 2)

typedef void (*panel)(const tern__conv_product *p, int64_t out, const float *in, float *sums);

static const panel twos[] = {wide_2_1, wide_2_2, wide_2_3,  wide_2_4,  wide_2_5,  wide_2_6,  wide_2_7,
                             wide_2_8, wide_2_9, wide_2_10, wide_2_11, wide_2_12, wide_2_13, wide_2_14};
static const panel ones[] = {wide_1_1, wide_1_2, wide_1_3,  wide_1_4,  wide_1_5,  wide_1_6,  wide_1_7,
                             wide_1_8, wide_1_9, wide_1_10, wide_1_11, wide_1_12, wide_1_13, wide_1_14};
static const panel slims[] = {slim_2_1, slim_2_2, slim_2_3, slim_2_4, slim_2_5, slim_2_6};

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
    if (!tern__conv_is_wide())
        for (int64_t out = 0; out < j.width; out += LANES) multiply(&j, out, slims, TERN__COUNT(slims));
    else if (j.width > LANES)
        multiply(&j, 0, twos, TERN__COUNT(twos));
    else
        multiply(&j, 0, ones, TERN__COUNT(ones));
}

/* ---- sums over positions ---- */

/* All inputs, `count` of them at a time; as many outputs from `out` on as `vectors` vectors have. */
#define DEFINE_BACK(vector, vectors, count)                                                                  \
    TERN__SIMD static void back_##vector##_##vectors(const tern__conv_product *p, float *dw, int64_t out)    \
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
DEFINE_BACK(wide, 2, 8)
DEFINE_BACK(wide, 1, 8)
DEFINE_BACK(slim, 2, 4)

void tern__conv_multiply_back(const tern__conv_product *p, float *dw)
{
    tern__conv_product j = joined(p);
    if (!tern__conv_is_wide())
        for (int64_t out = 0; out < j.width; out += LANES) back_slim_2(&j, dw, out);
    else
        (j.width > LANES ? back_wide_2 : back_wide_1)(&j, dw, 0);
}
