/* softmax.h - softmax and log softmax along lines. */
#ifndef TERN_SRC_CUDA_KERNELS_SOFTMAX_H
#define TERN_SRC_CUDA_KERNELS_SOFTMAX_H

#include "cuda/kernels/rows.h"

/* Partial results of a thread's lines: the largest element, and the sum of exp(x - top). */
template <class S> struct tern__softmax_sum {
    typename S::R top[S::LINES];
    double sum[S::LINES];
};

/* Adds a stretch. While all elements are -infinity nothing is subtracted, which would give NaN. What is
 * beyond a line is -infinity, and adds nothing. */
template <int G, class S>
__device__ __forceinline__ void tern__softmax_take(tern__softmax_sum<S> *own, const S &values, int i,
                                                   int size)
{
    typename S::R base[S::LINES], part[S::LINES] = {};
#pragma unroll
    for (int k = 0; k < S::LINES; k++) base[k] = own->top[k];
#pragma unroll
    for (int n = 0; n < S::PIECES && S::template has<G>(i, n, size); n++)
#pragma unroll
        for (int k = 0; k < S::LINES; k++)
            base[k] = fmax(base[k], S::LINES > 1 ? values.piece[n].get(k) : values.piece[n].high());
#pragma unroll
    for (int k = 0; k < S::LINES; k++) {
        const bool is_first = !(own->top[k] > -INFINITY);
        if (base[k] > own->top[k] && !is_first) own->sum[k] *= (double)exp(own->top[k] - base[k]);
        own->top[k] = base[k];
        if (!(base[k] > -INFINITY)) base[k] = 0;
    }
#pragma unroll
    for (int n = 0; n < S::PIECES && S::template has<G>(i, n, size); n++)
#pragma unroll
        for (int l = 0; l < S::LANES; l++)
            part[S::line(l)] += tern__decayed(base[S::line(l)] - values.piece[n].get(l));
#pragma unroll
    for (int k = 0; k < S::LINES; k++) own->sum[k] += (double)part[k];
}

struct tern__unseen {
    template <class T> __device__ __forceinline__ void operator()(int, const T &) const
    {
    }
};

/* Finds top and sum of the lines of a group of G threads, all of which call it; the first line begins at
 * `from`. `values` holds the last stretch afterwards; returns the index of the one that would come next.
 * Final sums are in f64. */
template <int G, class S>
__device__ __forceinline__ int tern__softmax_find(const tern__lined &x, int64_t from, int size, S *values,
                                                  typename S::R (&top)[S::LINES],
                                                  typename S::R (&sum)[S::LINES])
{
    typedef typename S::R R;
    tern__softmax_sum<S> own;
    int i = S::template first<G>(x, from);
#pragma unroll
    for (int k = 0; k < S::LINES; k++) own.top[k] = (R)-INFINITY, own.sum[k] = 0;
    for (; i < size; i += S::template pace<G>()) {
        values->template read<G>(x, from, i, size, (R)-INFINITY);
        tern__softmax_take<G>(&own, *values, i, size);
    }
#pragma unroll
    for (int k = 0; k < S::LINES; k++) {
        top[k] = tern__group_join<G, tern__high, R>(own.top[k], (R)-INFINITY);
        if (G > 1) own.sum[k] *= (double)exp(own.top[k] - top[k]);
        sum[k] = (R)tern__group_sum<G>(own.sum[k]);
    }
    return i;
}

/* Computes the softmax of lines at `from` into those at `to`, in stretches S. Lines are read twice: the
 * second time backward, since the last stretch is still in registers, and those before it in the nearest
 * cache. Calls `show` with each piece and the index of its first element. `base` is what was subtracted from
 * an element; `share` is subtracted from that for the logarithm, or its exponential is multiplied by it. */
template <int G, class S, class F = tern__unseen>
__device__ __forceinline__ void tern__softmax_lines(const tern__lined &x, int64_t from, const tern__lined &y,
                                                    int64_t to, int size, bool is_log, bool add,
                                                    typename S::R (&base)[S::LINES],
                                                    typename S::R (&share)[S::LINES], F &&show = {})
{
    typedef typename S::R R;
    const int pace = S::template pace<G>(), first = S::template first<G>(x, from);
    S values;
    int next = tern__softmax_find<G, S>(x, from, size, &values, base, share);
#pragma unroll
    for (int k = 0; k < S::LINES; k++) share[k] = is_log ? log(share[k]) : 1 / share[k];
    for (int i = next - pace; i >= first; i -= pace) {
        if (i + pace < next) values.template read<G>(x, from, i, size);
        auto *place = S::place(y, to, i);
#pragma unroll
        for (int n = 0; n < S::PIECES && S::template has<G>(i, n, size); n++) {
            R out[S::LANES];
#pragma unroll
            for (int l = 0; l < S::LANES; l++) {
                R value = values.piece[n].get(l) - base[S::line(l)];
                out[l] = is_log ? value - share[S::line(l)] : S::exponential(value) * share[S::line(l)];
            }
            S::put(place, S::template at<G>(i, n, 0), size, out, add);
            place += S::template leap<G>(y);
            show(S::template at<G>(i, n, 0), out);
        }
    }
}

/* The value subtracted from a row in shared memory. NaN shows up later, also that of a row of -infinity. */
template <class R> __device__ __forceinline__ R tern__row_base(const R *row, int size)
{
    R base = -INFINITY;
#pragma unroll 8
    for (int c = 0; c < size; c++) base = fmax(base, row[c]);
    return base;
}

/* In place. */
template <class R> __device__ __forceinline__ void tern__softmax_row(R *row, int size)
{
    const R base = tern__row_base(row, size);
    R sum = 0;
#pragma unroll 4
    for (int c = 0; c < size; c++) sum += row[c] = exp(row[c] - base);
    const R share = 1 / sum;
#pragma unroll 8
    for (int c = 0; c < size; c++) row[c] *= share;
}

/* exp() is inexact for values far below the largest, but they hardly add to the sum. */
template <class R> __device__ __forceinline__ void tern__log_softmax_row(R *row, int size)
{
    const R base = tern__row_base(row, size);
    R sum = 0;
#pragma unroll 8
    for (int c = 0; c < size; c++) sum += tern__decayed(base - row[c]);
    const R share = log(sum);
#pragma unroll 8
    for (int c = 0; c < size; c++) row[c] = row[c] - base - share;
}

#endif
