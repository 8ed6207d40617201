/* product.c - see winograd/product.h. Sums are kept in registers: of 32 outputs by up to 14 tiles
 * where there are 32 registers of 16 floats (AVX-512), of 16 by up to 6 where there are 16 of 8. Vectors are
 * as wide as the registers: of wider ones gcc makes memory. */
#include "kernels/cpu/conv/winograd/product.h"
#include "kernels/cpu/lanes.h"

#include <pthread.h>
#include <stdlib.h>

#define LANES TERN__LANES
#define WIDE  14
#define SLIM  6

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

bool tern__winograd_is_wide(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    return has_wide;
}

/* ---- sums over channels ---- */

#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

/* `tiles` tiles from `tile` on, and as many outputs from `out` on as `vectors` vectors have. */
#define DEFINE_PANEL(vector, vectors, tiles)                                                                 \
    TERN__SIMD static void vector##_##vectors##_##tiles(const tern__winograd_product *p, int64_t out,        \
                                                        int64_t tile)                                        \
    {                                                                                                        \
        enum { FLOATS = sizeof(vector) / sizeof(float) };                                                    \
        const float *w = p->weight + out, *in = p->in + tile * LANES;                                        \
        vector sum[tiles][vectors] = {{{0}}}, weight[vectors];                                               \
        for (int64_t b = 0; b < p->blocks; b++, in += p->in_pitch)                                           \
            for (int c = 0; c < LANES; c++, w += p->width) {                                                 \
                EACH(v, vectors) memcpy(&weight[v], w + v * FLOATS, sizeof(vector));                         \
                EACH(t, tiles)                                                                               \
                {                                                                                            \
                    vector value = in[t * LANES + c] - (vector){0};                                          \
                    EACH(v, vectors) sum[t][v] += weight[v] * value;                                         \
                }                                                                                            \
            }                                                                                                \
        EACH(t, tiles) EACH(v, vectors)                                                                      \
        {                                                                                                    \
            int64_t o = out + v * FLOATS;                                                                    \
            float *to = p->sums + o / LANES * p->sum_pitch + (tile + t) * LANES + o % LANES;                 \
            vector old = {0};                                                                                \
            if (p->add) memcpy(&old, to, sizeof(vector));                                                    \
            old += sum[t][v];                                                                                \
            memcpy(to, &old, sizeof(vector));                                                                \
        }                                                                                                    \
    }
DEFINE_PANEL(wide, 2, 8)
DEFINE_PANEL(wide, 2, 10)
DEFINE_PANEL(wide, 2, 12)
DEFINE_PANEL(wide, 2, 14)
DEFINE_PANEL(wide, 1, 8)
DEFINE_PANEL(wide, 1, 10)
DEFINE_PANEL(wide, 1, 12)
DEFINE_PANEL(wide, 1, 14)
DEFINE_PANEL(slim, 2, 2)
DEFINE_PANEL(slim, 2, 4)
DEFINE_PANEL(slim, 2, 6)

typedef void (*panel)(const tern__winograd_product *p, int64_t out, int64_t tile);

int64_t tern__winograd_room(int64_t tiles)
{
    return TERN__MAX(TERN__WINOGRAD_LEAST, tiles + tiles % 2);
}

/* Panels of nearly the same number of pairs of tiles. */
static void multiply(const tern__winograd_product *p, int64_t out, const panel *panels, int64_t most)
{
    int64_t pairs = tern__winograd_room(p->tiles) / 2, count = (pairs + most / 2 - 1) / (most / 2);
    for (int64_t i = 0; i < count; i++) {
        int64_t first = pairs * i / count, last = pairs * (i + 1) / count;
        panels[last - first](p, out, 2 * first);
    }
}

void tern__winograd_multiply(const tern__winograd_product *p)
{
    static const panel two[] = {NULL, NULL, NULL, NULL, wide_2_8, wide_2_10, wide_2_12, wide_2_14};
    static const panel one[] = {NULL, NULL, NULL, NULL, wide_1_8, wide_1_10, wide_1_12, wide_1_14};
    static const panel slims[] = {NULL, slim_2_2, slim_2_4, slim_2_6};
    if (!tern__winograd_is_wide())
        for (int64_t out = 0; out < p->width; out += LANES) multiply(p, out, slims, SLIM);
    else
        multiply(p, 0, p->width > LANES ? two : one, WIDE);
}

/* ---- sums over tiles ---- */

/* All inputs, `count` of them at a time; as many outputs from `out` on as `vectors` vectors have. */
#define DEFINE_BACK(vector, vectors, count)                                                                  \
    TERN__SIMD static void back_##vector##_##vectors(const tern__winograd_product *p, float *dw,             \
                                                     int64_t out)                                            \
    {                                                                                                        \
        enum { FLOATS = sizeof(vector) / sizeof(float) };                                                    \
        const float *from = p->sums + out / LANES * p->sum_pitch;                                            \
        for (int64_t c = 0; c < p->blocks * LANES; c += count) {                                             \
            const float *in = p->in + c / LANES * p->in_pitch + c % LANES;                                   \
            vector sum[count][vectors] = {{{0}}}, dy[vectors];                                               \
            for (int64_t t = 0; t < p->tiles; t++) {                                                         \
                EACH(v, vectors)                                                                             \
                memcpy(&dy[v], from + v * FLOATS / LANES * p->sum_pitch + t * LANES + v * FLOATS % LANES,    \
                       sizeof(vector));                                                                      \
                EACH(i, count)                                                                               \
                {                                                                                            \
                    vector value = in[t * LANES + i] - (vector){0};                                          \
                    EACH(v, vectors) sum[i][v] += dy[v] * value;                                             \
                }                                                                                            \
            }                                                                                                \
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

void tern__winograd_multiply_back(const tern__winograd_product *p, float *dw)
{
    if (!tern__winograd_is_wide())
        for (int64_t out = 0; out < p->width; out += LANES) back_slim_2(p, dw, out);
    else
        (p->width > LANES ? back_wide_2 : back_wide_1)(p, dw, 0);
}
