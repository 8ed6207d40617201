/* softmax.h - the softmax of a line, or its logarithm. */
#ifndef TERN_SRC_CUDA_SOFTMAX_H
#define TERN_SRC_CUDA_SOFTMAX_H

#include "cuda/lines.h"

/* Of some of a line's elements: the largest, and the sum of exp(x - top). */
template <class R> struct tern__softmax_sum {
    R top;
    double sum;
};

/* Takes a stretch S in. As long as all is -infinity nothing is taken off, so that no NaN comes of it. */
template <int G, class S>
__device__ __forceinline__ void tern__softmax_take(tern__softmax_sum<typename S::R> *own, const S &values,
                                                   int64_t i, int64_t size)
{
    typename S::R top = own->top, part = 0;
#pragma unroll
    for (int n = 0; n < S::PIECES; n++)
#pragma unroll
        for (int l = 0; l < S::LANES && i + n * G * S::LANES < size; l++)
            top = values.piece[n].get(l) > top ? values.piece[n].get(l) : top;
    typename S::R base = top > -INFINITY ? top : 0;
#pragma unroll
    for (int n = 0; n < S::PIECES; n++)
#pragma unroll
        for (int l = 0; l < S::LANES && i + n * G * S::LANES < size; l++)
            part += exp(values.piece[n].get(l) - base);
    own->sum = own->sum * (double)exp(own->top - base) + (double)part;
    own->top = top;
}

/* By a group of G threads, all of which call it: of the elements from `from` on to those from `to` on, in
 * stretches S. The line is gone through twice, the second time in a cache, or in registers where it is short.
 * Sums are f64. */
template <int G, class S>
__device__ __forceinline__ void tern__softmax_line(const tern__lined &x, int64_t from, const tern__lined &y,
                                                   int64_t to, int64_t size, bool is_log, bool add)
{
    typedef typename S::R R;
    const int64_t pace = S::template pace<G>(), first = S::template first<G>();
    tern__softmax_sum<R> own = {(R)-INFINITY, 0};
    S values;
    for (int64_t i = first; i < size; i += pace) {
        values.template read<G>(x, from, i, size);
        tern__softmax_take<G>(&own, values, i, size);
    }
    R top = tern__group_join<G, tern__high, R>(own.top, (R)-INFINITY);
    double sum = tern__group_sum<G>(own.sum * (double)exp(own.top - top));
    R share = (R)(1 / sum), log_sum = (R)log(sum);
    for (int64_t i = first; i < size; i += pace) {
        if (size > pace) values.template read<G>(x, from, i, size);
#pragma unroll
        for (int n = 0; n < S::PIECES; n++) {
            int64_t at = i + n * G * S::LANES;
            R out[S::LANES];
            if (at >= size) break;
#pragma unroll
            for (int l = 0; l < S::LANES; l++) {
                R value = values.piece[n].get(l) - top;
                out[l] = is_log ? value - log_sum : exp(value) * share;
            }
            S::put(y, to, at, out, add);
        }
    }
}

#endif
