/* trunc_normal.c - draws from the normal distribution truncated to [low, high]: the inverse of its
 * distribution function, applied to uniform draws between the function's values at both ends.
 *
 * The inverse error function is PyTorch's: a rational approximation in y^2 up to |y| = 0.7 and in
 * sqrt(-log((1 - |y|) / 2)) beyond, then two Newton steps. Its AVX2 build contracts the polynomials to fused
 * multiply-adds, so they are written fmaf and this file is compiled with -ffp-contract=off; logarithm,
 * exponential and error function are the C library's in both. */
#include "nn/init.h"

#include <math.h>

static float polynomial(const float *coefficient, int degree, float x)
{
    float y = coefficient[degree];
    for (int i = degree - 1; i >= 0; i--) y = fmaf(y, x, coefficient[i]);
    return y;
}

static float central(float y)
{
    static const float above[] = {0.886226899f, -1.645349621f, 0.914624893f, -0.140543331f};
    static const float below[] = {1.0f, -2.118377725f, 1.442710462f, -0.329097515f, 0.012229801f};
    float z = y * y;
    return y * polynomial(above, 3, z) / polynomial(below, 4, z);
}

static float outer(float y)
{
    static const float above[] = {-1.970840454f, -1.624906493f, 3.429567803f, 1.641345311f};
    static const float below[] = {1.0f, 3.543889200f, 1.637067800f};
    float z = sqrtf(-logf((1.0f - fabsf(y)) / 2.0f));
    return copysignf(polynomial(above, 3, z), y) / polynomial(below, 2, z);
}

static float newton(float x, float y)
{
    const float two_over_sqrt_pi = 2.0f / (float)1.77245385090551602730;
    return x - (erff(x) - y) / (two_over_sqrt_pi * expf(-x * x));
}

static float inverse_erf(float y)
{
    if (fabsf(y) == 1.0f) return copysignf(INFINITY, y);
    float x = fabsf(y) <= 0.7f ? central(y) : outer(y);
    return newton(newton(x, y), y);
}

/* Maps a value of the distribution function to [-1, 1], the argument of the inverse error function. */
static double twice_less_one(double x)
{
    return 2 * ((1.0 + erf(x / sqrt(2.0))) / 2.0) - 1;
}

int tern_init_trunc_normal(tern_tensor *tensor, double mean, double std, double low, double high,
                           tern_rng *rng, tern_error *err)
{
    int status = tern__init_check(tensor, 0, TERN_NDIM_MAX, __func__, err);
    if (status) return status;
    if (!(std > 0 && low <= high))
        return tern__error_set(err, __func__, TERN_E_RANGE,
                               "std is %g, expected more than 0; low %g, high %g, expected low <= high", std,
                               low, high);
    double from = twice_less_one((low - mean) / std), to = twice_less_one((high - mean) / std);
    status = tern__init_uniform(tensor, from, to, rng, __func__, err);
    if (status) return status;
    tern__host host;
    status = tern__init_open(&host, tensor, err);
    if (status) return status;
    float *values = host.view.data;
    float scale = (float)(std * sqrt(2.0)), shift = (float)mean, least = (float)low, most = (float)high;
    int64_t count = tern_tensor_count(tensor);
    for (int64_t i = 0; i < count; i++) {
        float value = inverse_erf(values[i]) * scale + shift;
        values[i] = value < least ? least : value > most ? most : value;
    }
    return tern__host_close(&host, true, err);
}
