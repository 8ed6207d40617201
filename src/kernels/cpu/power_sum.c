/* power_sum.c - power sums in chunks, whose sums are added in double and in order: the number of threads
 * does not matter. */
#include "kernels/norm_factors.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/staging.h"
#include "kernels/sections.h"

#include <math.h>

#define CHUNK 16384
#define LANES 16

/* Adds an element; a NaN stays. */
#define SIZE(sum, x)   ((sum) + fabs(x))
#define SQUARE(sum, x) ((sum) + (x) * (x))
#define HIGH(most, x)  (fabs(x) <= (most) || (most) != (most) ? (most) : fabs(x))
/* Adds a sum. */
#define ADD(a, b) ((a) + (b))

#define DEFINE(name, type, TAKE, JOIN)                                                                       \
    TERN__SIMD static double name(const void *from, int64_t count, double p)                                 \
    {                                                                                                        \
        const type *x = from;                                                                                \
        double lane[LANES] = {0}, all = 0;                                                                   \
        int64_t whole = count / LANES * LANES;                                                               \
        (void)p;                                                                                             \
        for (int64_t i = 0; i < whole; i += LANES)                                                           \
            for (int l = 0; l < LANES; l++) lane[l] = TAKE(lane[l], (double)x[i + l]);                       \
        for (int64_t i = whole; i < count; i++) all = TAKE(all, (double)x[i]);                               \
        for (int l = 0; l < LANES; l++) all = JOIN(all, lane[l]);                                            \
        return all;                                                                                          \
    }
#define DEFINE_POWER(name, type)                                                                             \
    static double name(const void *from, int64_t count, double p)                                            \
    {                                                                                                        \
        const type *x = from;                                                                                \
        double sum = 0;                                                                                      \
        for (int64_t i = 0; i < count; i++) sum += pow(fabs((double)x[i]), p);                               \
        return sum;                                                                                          \
    }
DEFINE(size_f32, float, SIZE, ADD)
DEFINE(size_f64, double, SIZE, ADD)
DEFINE(square_f32, float, SQUARE, ADD)
DEFINE(square_f64, double, SQUARE, ADD)
DEFINE(high_f32, float, HIGH, HIGH)
DEFINE(high_f64, double, HIGH, HIGH)
DEFINE_POWER(power_f32, float)
DEFINE_POWER(power_f64, double)

typedef double (*sum_fn)(const void *from, int64_t count, double p);

static sum_fn sum_of(double p, bool wide)
{
    if (p == 1) return wide ? size_f64 : size_f32;
    if (p == 2) return wide ? square_f64 : square_f32;
    if (isinf(p)) return wide ? high_f64 : high_f32;
    return wide ? power_f64 : power_f32;
}

static double power_sum_join(double a, double b, double p)
{
    return isinf(p) ? HIGH(a, b) : a + b;
}

/* The sum of `count` elements from `at` on; 16-bit types go through f32 in the first-level cache. */
static double chunk_sum(const tern__view *x, int64_t at, int64_t count, double p, sum_fn sum)
{
    size_t bytes = tern_dtype_bytes(x->dtype);
    if (bytes != sizeof(uint16_t)) return sum((const char *)x->data + (size_t)at * bytes, count, p);
    tern__stage stage;
    double all = 0;
    for (int64_t i = 0; i < count; i += TERN__STAGE) {
        int64_t some = TERN__MIN(TERN__STAGE, count - i);
        tern__stage_load(TERN__COMPUTE_F32, &stage, x->dtype, x->data, at + i, 1, some);
        all = power_sum_join(all, sum(stage.f32, some, p), p);
    }
    return all;
}

/* Sums sections in memory order; sections are short. */
static int sum_sections(const tern__call *call, double p, sum_fn sum)
{
    const tern__view *x = call->in[0], *out = call->out[0];
    int64_t number = tern__section_count(call->in[1]), count = tern__view_count(x);
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < number; n++) {
        tern__section section = tern__section_get(tern__section_table(call->in[1]), n, count);
        tern__view_set(out, n, chunk_sum(x, section.begin, section.count, p, sum));
    }
    return TERN_OK;
}

static int sum_all(const tern__call *call, double p, sum_fn sum)
{
    const tern__view *x = call->in[0];
    int64_t count = tern__view_count(x), chunks = (count + CHUNK - 1) / CHUNK;
    double all = 0, *partial = tern__loop_scratch(call, (size_t)chunks * sizeof(*partial));
    if (!partial) return TERN_E_MEMORY;
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t c = 0; c < chunks; c++)
        partial[c] = chunk_sum(x, c * CHUNK, TERN__MIN(CHUNK, count - c * CHUNK), p, sum);
    for (int64_t c = 0; c < chunks; c++) all = power_sum_join(all, partial[c], p);
    *(double *)call->out[0]->data = all;
    return TERN_OK;
}

int tern__cpu_power_sum(const tern__call *call)
{
    const tern__view *x = call->in[0];
    double p = ((const tern__power_attr *)call->attr)->p;
    sum_fn sum = sum_of(p, x->dtype == TERN_F64);
    if (!tern__dtype_is_float(x->dtype) || !tern__view_is_contiguous(x)) return TERN_E_UNSUPPORTED;
    return call->in[1] ? sum_sections(call, p, sum) : sum_all(call, p, sum);
}
