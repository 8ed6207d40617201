/* pointwise.h - the attributes of the pointwise kernels, and the formulas used in their list
 * (pointwise.def): macros, because each is compiled for several types R. */
#ifndef TERN_SRC_KERNELS_POINTWISE_H
#define TERN_SRC_KERNELS_POINTWISE_H

#include "base/host_device.h"
#include "kernels/kernel.h"

#include <math.h>
#include <stdint.h>

#define TERN__POINTWISE_INS 4

typedef struct tern__pointwise_attr {
    double k[2];
} tern__pointwise_attr;

/* Gives a kernel's numbers: those of the attributes, or zeros. CLAMP's `low` is at most its `high`, since
 * `high` wins: the loops count on that (CLAMPED). */
static inline void tern__pointwise_numbers(const tern__call *call, double k[2])
{
    const tern__pointwise_attr *attr = (const tern__pointwise_attr *)call->attr;
    k[0] = attr ? attr->k[0] : 0;
    k[1] = attr ? attr->k[1] : 0;
    if (call->kernel == TERN__CLAMP && k[0] > k[1]) k[0] = k[1];
}

/* Converts a number of the attributes for kernels that compute in integers: the nearest integer. */
TERN__ANYWHERE int64_t tern__nearest_integer(double k)
{
    if (k >= 0x1p63) return INT64_MAX;
    return k < -0x1p63 ? INT64_MIN : (int64_t)k;
}

/* Phi(x), given bell = exp(-x^2 / 2), with an error of 1e-7, so accurate to the last place where Phi is
 * near 1. erfc(z) is about bell times a polynomial in t = 1 / (1 + p z) (Abramowitz and Stegun 1964,
 * 7.1.26). */
TERN__ANYWHERE __attribute__((always_inline)) float tern__normal_f32(float x, float bell)
{
    float z = fabsf(x) * 0.70710678f, t = 1 / (1 + 0.3275911f * z);
    float sum = 1.061405429f * t - 1.453152027f;
    sum = ((sum * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
    float beyond = 0.5f * sum * t * bell;
    return x < 0 ? beyond : 1 - beyond;
}

/* Clamps to [low, high]; NaN if any of the three is NaN. Two macros, since the first one's result is used
 * twice. `low` must not be above `high`: gcc 14 concludes that when an x is neither less nor greater, as a
 * NaN is, and then clamps the next x by `low` alone. Ensuring it here, for each x, costs the vector loops. */
#define AT_LEAST(x, low)      ((x) < (low) || (low) != (low) ? (low) : (x))
#define AT_MOST(x, high)      ((x) > (high) || (high) != (high) ? (high) : (x))
#define CLAMPED(x, low, high) AT_MOST(AT_LEAST(x, low), high)
/* The derivative of x^e with respect to x: e x^(e-1), and 0 for e = 0 whatever x is; with respect to e: y
 * log x, and 0 where x = 0 and y = 0 or 1. */
#define POW_SLOPE(dy, e, power)     ((e) == 0 ? 0 : (dy) * ((e) * (power)))
#define POW_GROWTH(dy, y, x, x_log) ((dy) * ((x) == 0 && ((y) == 0 || (y) == 1) ? 0 : (y) * (x_log)))
#define SILU_SLOPE(x, s)            ((s) * (1 + (x) * (1 - (s))))
/* GELU (Hendrycks and Gimpel 2016): x Phi(x) with the normal distribution's Phi, or its approximation by
 * tanh. In f32 Phi is computed from the bell curve. 0.398.. = 1 / sqrt(2 pi). */
#define BELL(x) exp((x) * (x) * (R)-0.5)
#ifdef __cplusplus
#define NORMAL(x, bell)                                                                                      \
    (sizeof(R) == sizeof(float) ? (R)tern__normal_f32((float)(x), (float)(bell))                             \
                                : (R)(0.5 * (1 + erf((double)(x)*M_SQRT1_2))))
#else
#define NORMAL(x, bell)                                                                                      \
    _Generic((R)0, float                                                                                     \
             : tern__normal_f32((float)(x), (float)(bell)), default : 0.5 * (1 + erf((x)*M_SQRT1_2)))
#endif
#define GELU_SLOPE(x, bell)   (NORMAL(x, bell) + (x) * (bell) * (R)0.39894228040143267794)
#define GELU_INNER(x)         ((R)(M_SQRT2 * M_2_SQRTPI * 0.5) * ((x) + (R)0.044715 * (x) * (x) * (x)))
#define GELU_INNER_SLOPE(x)   ((R)(M_SQRT2 * M_2_SQRTPI * 0.5) * (1 + (R)(3 * 0.044715) * (x) * (x)))
#define GELU_TANH_SLOPE(x, t) ((R)0.5 * (1 + (t)) + (R)0.5 * (x) * (1 - (t) * (t)) * GELU_INNER_SLOPE(x))
/* Huber's: e^2 / (2 beta) for |e| < beta, else |e| - beta / 2. */
#define SMOOTH(size, beta)    ((size) < (beta) ? (R)0.5 * (size) * (size) / (beta) : (size) - (R)0.5 * (beta))
#define SMOOTH_SLOPE(e, beta) ((e) >= (beta) ? 1 : (e) <= -(beta) ? -1 : (e) / (beta))
/* -(t log x + (1 - t) log(1 - x)) with logarithms of at least -100, and what divides its slope x - t: both
 * stay finite for a probability of 0 or 1. The bounds are PyTorch's. */
#define PROBABILITY_LOG(l) ((l) < -100 ? -100 : (l))
#define PROBABILITY_ERROR_OF(t, x_log, rest_log)                                                             \
    (((t)-1) * PROBABILITY_LOG(rest_log) - (t)*PROBABILITY_LOG(x_log))
#define PROBABILITY_SPREAD(x) ((1 - (x)) * (x) < (R)1e-12 ? (R)1e-12 : (1 - (x)) * (x))
/* (1 - t) x + (1 + (w - 1) t) log(1 + e^-x), where log(1 + e^-x) = log(1 + e^-|x|) + max(-x, 0). */
#define LOGIT_ERROR_OF(x, t, w, tail)                                                                        \
    ((1 - (t)) * (x) + (1 + ((w)-1) * (t)) * ((tail) + ((x) < 0 ? -(x) : 0)))
/* Its slope (1 - t) s(x) - w t s(-x) with the sigmoid s(|x|) = 1 / (1 + e), s(-|x|) = e / (1 + e). */
#define LOGIT_SLOPE(x, t, w, e)                                                                              \
    (((x) < 0 ? (1 - (t)) * (e) - (w) * (t) : (1 - (t)) - (w) * (t) * (e)) / (1 + (e)))
/* Focal loss (Lin et al. 2017): the error above with w = 1, written without the cancellation where x is
 * right, times share(t) q^gamma. q = s(x) (1 - t) + s(-x) t is the probability of the wrong class. The
 * slope is share q^gamma (gamma q' / q error + error'); if q underflows to 0, so does q'. */
#define FOCAL_SHARE(t, alpha)     ((alpha) < 0 ? 1 : (alpha) * (t) + (1 - (alpha)) * (1 - (t)))
#define FOCAL_ENTROPY(x, t, tail) (((x) < 0 ? -(x) * (t) : (x) * (1 - (t))) + (tail))
#define FOCAL_MISS(x, t, e)       (((x) < 0 ? (1 - (t)) * (e) + (t) : (1 - (t)) + (t) * (e)) / (1 + (e)))
#define FOCAL_GROWTH(x, t, e)                                                                                \
    ((1 - 2 * (t)) * (e) / ((1 + (e)) * (1 + (e))) / (FOCAL_MISS(x, t, e) + (R)1e-37))
#define FOCAL_ERROR_OF(x, t, gamma, alpha, e)                                                                \
    (FOCAL_SHARE(t, alpha) * pow(FOCAL_MISS(x, t, e), gamma) * FOCAL_ENTROPY(x, t, log1p(e)))
#define FOCAL_SLOPE(x, t, gamma, alpha, e)                                                                   \
    (FOCAL_SHARE(t, alpha) * pow(FOCAL_MISS(x, t, e), gamma) *                                               \
     ((gamma)*FOCAL_GROWTH(x, t, e) * FOCAL_ENTROPY(x, t, log1p(e)) + LOGIT_SLOPE(x, t, 1, e)))

#endif
