/* power_sum.c - in chunks, whose sums are added up in double and in order: the number of threads does not
 * matter. */
#include "kernels/power_sum.h"
#include "kernels/cpu/loops.h"

#include <math.h>

#define CHUNK 16384
#define LANES 16

/* One more element; a NaN stays. */
#define SIZE(sum, x)   ((sum) + fabs(x))
#define SQUARE(sum, x) ((sum) + (x) * (x))
#define HIGH(most, x)  (fabs(x) <= (most) || (most) != (most) ? (most) : fabs(x))
/* One more sum. */
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

int tern__cpu_power_sum(const tern__call *call)
{
    const tern__view *x = call->in[0];
    bool wide = x->dtype == TERN_F64;
    if ((!wide && x->dtype != TERN_F32) || !tern__view_is_contiguous(x)) return TERN_E_UNSUPPORTED;
    double p = ((const tern__power_attr *)call->attr)->p, all = 0;
    int64_t count = tern__view_count(x), chunks = (count + CHUNK - 1) / CHUNK;
    double *partial = tern__loop_scratch(call, (size_t)chunks * sizeof(*partial));
    if (!partial) return TERN_E_MEMORY;
    sum_fn sum = sum_of(p, wide);
    size_t bytes = tern_dtype_bytes(x->dtype);
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t c = 0; c < chunks; c++)
        partial[c] =
            sum((const char *)x->data + (size_t)c * CHUNK * bytes, TERN__MIN(CHUNK, count - c * CHUNK), p);
    for (int64_t c = 0; c < chunks; c++) all = isinf(p) ? HIGH(all, partial[c]) : all + partial[c];
    *(double *)call->out[0]->data = all;
    return TERN_OK;
}
