/* rng.c - PyTorch's CPU generator and its distributions, bit for bit.
 *
 * The engine is the standard mt19937. A float uniform is the low 24 bits of one draw, a double uniform the
 * low 53 bits of two. normal_ has two paths. Fewer than 16 elements are drawn as Box-Muller pairs in double;
 * the second half of a pair is kept for the next call. 16 or more elements are filled with float uniforms and
 * transformed in blocks of 16, in which element j < 8 gives the radius and element j + 8 the angle. The
 * blocked path uses the float logarithm and sine of the Cephes library. PyTorch's AVX2 build fuses
 * multiplications and additions, so fused operations are written as fmaf here, and this file is compiled with
 * -ffp-contract=off. */
#include <tern/rng.h>

#include "base/base.h"
#include "base/half.h"
#include "base/simd.h"

#include <math.h>
#include <string.h>

enum { STATE = 624, MIDDLE = 397, BLOCK = 16, HALF = BLOCK / 2 };

struct tern_rng {
    uint32_t state[STATE];
    int next; /* index of the next word in `state`; STATE: all are used */
    bool has_normal;
    double normal; /* the second half of the last Box-Muller pair */
    uint64_t seed;
};

/* ---- engine ---- */

tern_rng *tern_rng_new(uint64_t seed, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    tern_rng *rng = tern__alloc(sizeof(*rng), "tern_rng_new", err);
    if (rng) tern_rng_seed(rng, seed);
    return rng;
}

void tern_rng_free(tern_rng *rng)
{
    tern__free(rng);
}

void tern_rng_seed(tern_rng *rng, uint64_t seed)
{
    if (!rng) return;
    uint32_t *s = rng->state;
    s[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < STATE; i++) s[i] = 1812433253u * (s[i - 1] ^ (s[i - 1] >> 30)) + i;
    rng->next = STATE;
    rng->has_normal = false;
    rng->seed = seed;
}

static uint32_t twist(uint32_t high, uint32_t low)
{
    uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (mixed >> 1) ^ ((low & 1u) ? 0x9908b0dfu : 0u);
}

static void refill(tern_rng *rng)
{
    uint32_t *s = rng->state;
    int i = 0;
    for (; i < STATE - MIDDLE; i++) s[i] = s[i + MIDDLE] ^ twist(s[i], s[i + 1]);
    for (; i < STATE - 1; i++) s[i] = s[i + MIDDLE - STATE] ^ twist(s[i], s[i + 1]);
    s[i] = s[MIDDLE - 1] ^ twist(s[i], s[0]);
    rng->next = 0;
}

static inline uint32_t rng_draw(tern_rng *rng)
{
    if (rng->next == STATE) refill(rng);
    uint32_t y = rng->state[rng->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint32_t tern_rng_u32(tern_rng *rng)
{
    return rng ? rng_draw(rng) : 0;
}

uint64_t tern_rng_u64(tern_rng *rng)
{
    uint64_t high = tern_rng_u32(rng);
    return high << 32 | tern_rng_u32(rng);
}

/* A NULL rng, which could not be made, draws zeros. */
static bool is_missing(const tern_rng *rng, void *out, size_t bytes)
{
    if (!rng) memset(out, 0, bytes);
    return !rng;
}

static void fill_unit(tern_rng *rng, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = (float)(rng_draw(rng) & 0xffffffu) * 0x1p-24f;
}

static double unit_double(tern_rng *rng)
{
    return (double)(tern_rng_u64(rng) & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

/* ---- state: at::CPUGeneratorImplState ---- */

typedef struct torch_state {
    uint64_t seed;
    int32_t left; /* words until the refill */
    int32_t seeded;
    uint64_t next;
    uint64_t state[STATE];
    double normal_x, normal_y, normal_rho; /* only y is used */
    int32_t has_normal;
    float float_normal;
    bool has_float_normal;
} torch_state;

_Static_assert(sizeof(torch_state) == TERN_RNG_STATE_BYTES, "the size of torch's state");

void tern_rng_state_get(const tern_rng *rng, void *out)
{
    torch_state s;
    if (is_missing(rng, out, sizeof(s))) return;
    memset(&s, 0, sizeof(s));
    s.seed = rng->seed;
    s.left = STATE + 1 - rng->next;
    s.seeded = 1;
    s.next = (uint64_t)rng->next;
    for (int i = 0; i < STATE; i++) s.state[i] = rng->state[i];
    s.has_normal = rng->has_normal;
    s.normal_y = rng->has_normal ? rng->normal : 0;
    memcpy(out, &s, sizeof(s));
}

int tern_rng_state_set(tern_rng *rng, const void *state, tern_error *err)
{
    torch_state s;
    if (tern__is_set(err)) return err->code;
    if (!rng) return tern__error_set(err, __func__, TERN_E_INVALID, "no rng");
    memcpy(&s, state, offsetof(torch_state, has_float_normal));
    if (s.seeded != 1 || s.left < 1 || s.left > STATE || s.next > STATE ||
        (s.left > 1 && s.next != (uint64_t)(STATE + 1 - s.left)))
        return tern__error_set(err, __func__, TERN_E_FORMAT,
                               "not a generator's state: seeded %d, left %d, next %llu", s.seeded, s.left,
                               (unsigned long long)s.next);
    for (int i = 0; i < STATE; i++) rng->state[i] = (uint32_t)s.state[i];
    rng->next = STATE + 1 - s.left;
    rng->has_normal = s.has_normal != 0;
    rng->normal = s.normal_y;
    rng->seed = s.seed;
    return TERN_OK;
}

/* ---- float loops: the results are the same with and without hardware fused multiply-add ---- */

#define INLINE static inline __attribute__((always_inline))

/* Returns the natural logarithm of a normal x = m 2^e with m in [sqrt(1/2), sqrt(2)): log x = e log 2 + log(1
 * + (m - 1)), the latter as a polynomial. log 2 is split in two, so that the product of its high part with e
 * is exact. */
INLINE float cephes_log(float x)
{
    uint32_t bits = tern__bits_of(x);
    float e = (float)((int32_t)(bits >> 23) - 0x7f) + 1.0f;
    float m = tern__float_of((bits & 0x007fffffu) | 0x3f000000u); /* in [1/2, 1) */
    bool low = m < 0.707106781186547524f;
    e = low ? e - 1.0f : e;
    x = (m - 1.0f) + (low ? m : 0.0f);
    float z = x * x;
    float y = 7.0376836292e-2f;
    y = fmaf(y, x, -1.1514610310e-1f);
    y = fmaf(y, x, 1.1676998740e-1f);
    y = fmaf(y, x, -1.2420140846e-1f);
    y = fmaf(y, x, 1.4249322787e-1f);
    y = fmaf(y, x, -1.6668057665e-1f);
    y = fmaf(y, x, 2.0000714765e-1f);
    y = fmaf(y, x, -2.4999993993e-1f);
    y = fmaf(y, x, 3.3333331174e-1f);
    y = y * x;
    y = fmaf(y, z, e * -2.12194440e-4f);
    y = y - z * 0.5f;
    return fmaf(e, 0.693359375f, x + y);
}

/* Computes sine and cosine of x >= 0. x is reduced by the nearest even multiple j of pi/4, in three steps
 * because pi/4 is split in three. The octant j then decides which polynomial is which, and the signs. */
INLINE void cephes_sincos(float x, float *sine, float *cosine)
{
    int32_t j = ((int32_t)(x * 1.27323954473516f) + 1) & ~1;
    float octants = (float)j;
    x = fmaf(octants, -0.78515625f, x);
    x = fmaf(octants, -2.4187564849853515625e-4f, x);
    x = fmaf(octants, -3.77489497744594108e-8f, x);
    float z = x * x;
    float c = fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    c = fmaf(c, z, 4.166664568298827e-2f) * z;
    c = fmaf(c, z, -(z * 0.5f)) + 1.0f;
    float s = fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f);
    s = fmaf(s, z, -1.6666654611e-1f) * z;
    s = fmaf(s, x, x);
    bool swapped = j & 2;
    uint32_t sine_sign = (uint32_t)(j & 4) << 29;
    uint32_t cosine_sign = (uint32_t)(~(j - 2) & 4) << 29;
    *sine = tern__float_of(tern__bits_of(swapped ? c : s) ^ sine_sign);
    *cosine = tern__float_of(tern__bits_of(swapped ? s : c) ^ cosine_sign);
}

/* Turns blocks of 16 uniforms into normals. */
TERN__SIMD static void normal_blocks(float *d, size_t blocks, float mean, float std)
{
    for (; blocks > 0; blocks--, d += BLOCK) {
        for (int j = 0; j < HALF; j++) {
            float sine, cosine;
            float radius = sqrtf(-2.0f * cephes_log(1.0f - d[j]));
            cephes_sincos(6.28318530717958647692f * d[j + HALF], &sine, &cosine);
            d[j] = fmaf(radius * cosine, std, mean);
            d[j + HALF] = fmaf(radius * sine, std, mean);
        }
    }
}

TERN__SIMD static void scale_all(float *d, size_t n, float range, float from)
{
    for (size_t i = 0; i < n; i++) d[i] = fmaf(d[i], range, from);
}

/* ---- distributions ---- */

void tern_rng_uniform(tern_rng *rng, float *out, size_t n, double from, double to)
{
    float low = (float)from, range = (float)to - (float)from;
    if (is_missing(rng, out, n * sizeof(*out))) return;
    fill_unit(rng, out, n);
    scale_all(out, n, range, low);
}

static double normal_one(tern_rng *rng)
{
    rng->has_normal = !rng->has_normal;
    if (!rng->has_normal) return rng->normal;
    double u1 = unit_double(rng), u2 = unit_double(rng);
    double radius = sqrt(-2.0 * log1p(-u2)), theta = 2.0 * M_PI * u1;
    rng->normal = radius * sin(theta);
    return radius * cos(theta);
}

/* If the tail does not fill a block, the last 16 elements are drawn and transformed again. */
static void normal_many(tern_rng *rng, float *out, size_t n, float mean, float std)
{
    fill_unit(rng, out, n);
    normal_blocks(out, n / BLOCK, mean, std);
    if (n % BLOCK == 0) return;
    fill_unit(rng, out + n - BLOCK, BLOCK);
    normal_blocks(out + n - BLOCK, 1, mean, std);
}

void tern_rng_normal(tern_rng *rng, float *out, size_t n, double mean, double std)
{
    if (is_missing(rng, out, n * sizeof(*out))) return;
    if (n >= BLOCK) {
        normal_many(rng, out, n, (float)mean, (float)std);
        return;
    }
    for (size_t i = 0; i < n; i++) out[i] = (float)(normal_one(rng) * std + mean);
}

static void swap(int64_t *a, int64_t *b)
{
    int64_t kept = *a;
    *a = *b;
    *b = kept;
}

/* PyTorch 2's bound: from here on 32 bits modulo n would favour small numbers, so 64 are drawn. PyTorch 1.13
 * draws 32 for every n. */
#define LARGE_PERMUTATION (UINT32_MAX / 20)

void tern_rng_permutation(tern_rng *rng, int64_t *out, int64_t n)
{
    if (is_missing(rng, out, n > 0 ? (size_t)n * sizeof(*out) : 0)) return;
    if (n < LARGE_PERMUTATION) {
        for (int64_t i = 0; i < n; i++) out[i] = i;
        for (int64_t i = 0; i < n - 1; i++) swap(&out[i], &out[i + rng_draw(rng) % (uint32_t)(n - i)]);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t z = (int64_t)(tern_rng_u64(rng) % (uint64_t)(i + 1));
        out[i] = i;
        swap(&out[i], &out[z]);
    }
}
