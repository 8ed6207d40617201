/* exps.h - the exponentials and sums that softmax and its losses are made of; inlined into loops of one
 * target. */
#ifndef TERN_SRC_KERNELS_CPU_EXPS_H
#define TERN_SRC_KERNELS_CPU_EXPS_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vector_math.h"

/* y = exp(x); y may be x. What would be less than f32's normal numbers is 0, since it is slow to compute; so
 * is the exponential of -infinity, the usual mask. */
TERN__INLINE void tern__exps(float *y, const float *x, int64_t n)
{
    const float least = -87;
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)
    {
        float e = expf(x[i] < least ? least : x[i]);
        y[i] = x[i] < least ? 0 : e;
    }
}

#define TERN__SUM_STRETCH 1024 /* elements that are added in f32 */

/* The sum of a b; of a, where b is NULL. */
TERN__INLINE double tern__dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t first = 0; first < n; first += TERN__SUM_STRETCH) {
        int64_t last = TERN__MIN(n, first + TERN__SUM_STRETCH);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = first; i < last; i++) part += b ? a[i] * b[i] : a[i];
        sum += (double)part;
    }
    return sum;
}

#endif
