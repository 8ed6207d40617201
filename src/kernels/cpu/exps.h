/* exps.h - the exponentials and sums of softmax and its losses; inlined into loops of one target. */
#ifndef TERN_SRC_KERNELS_CPU_EXPS_H
#define TERN_SRC_KERNELS_CPU_EXPS_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vector_math.h"

/* y = exp(x); y may be x. Results that would hardly be normal f32 numbers become 0: libmvec is slow below
 * those, and -infinity, the usual mask, is common. Two loops, because in a single one the compiler sees
 * that the bound matters only where its exponential is not used, and drops it. */
TERN__INLINE void tern__exps(float *y, const float *x, int64_t n)
{
    const float least = -87.2f, least_exp = 1.6e-38f;
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) y[i] = x[i] < least ? least : x[i];
    for (int64_t i = 0; i < n; i++) {
        float e = expf(y[i]);
        y[i] = e < least_exp ? 0 : e;
    }
}

#define TERN__SUM_STRETCH 1024 /* elements that are added in f32 */

/* The sum of a b; of a, if b is NULL. */
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
