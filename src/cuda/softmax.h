/* softmax.h - the softmax of a line, or its logarithm. */
#ifndef TERN_SRC_CUDA_SOFTMAX_H
#define TERN_SRC_CUDA_SOFTMAX_H

#include "cuda/lines.h"

/* By a group of G threads, all of which call it: of the elements from `from` on to those from `to` on. The
 * line is gone through several times, from the second on in a cache. Sums are f64. */
template <int G, class R>
__device__ __forceinline__ void tern__softmax_line(const tern__lined &x, int64_t from, const tern__lined &y,
                                                   int64_t to, int64_t size, bool is_log, bool add)
{
    R top = (R)-INFINITY;
    double sum = 0;
    for (int64_t i = threadIdx.x % G; i < size; i += G) {
        R value = tern__lined_get<R>(x, from + i * x.step);
        top = value > top ? value : top;
    }
    top = tern__group_join<G, tern__high, R>(top, (R)-INFINITY);
    for (int64_t i = threadIdx.x % G; i < size; i += G)
        sum += (double)exp(tern__lined_get<R>(x, from + i * x.step) - top);
    sum = tern__group_sum<G>(sum);
    R share = (R)(1 / sum), log_sum = (R)log(sum);
    for (int64_t i = threadIdx.x % G; i < size; i += G) {
        R value = tern__lined_get<R>(x, from + i * x.step) - top;
        tern__lined_put<R>(y, to + i * y.step, is_log ? value - log_sum : exp(value) * share, add);
    }
}

#endif
