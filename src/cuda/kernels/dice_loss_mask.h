/* dice_loss_mask.h - what the forward and backward kernels of Dice share where each channel has its own
 * mask: elements and their targets, and how a thread reads them.
 *
 * A channel of a sample may begin at any element, and so may its pieces. Groups of four elements are
 * aligned among all elements, and the rest at both ends is taken one by one. */
#ifndef TERN_SRC_CUDA_KERNELS_DICE_LOSS_MASK_H
#define TERN_SRC_CUDA_KERNELS_DICE_LOSS_MASK_H

#include "cuda/kernels/dice_loss_inner.h"

/* Values of a logit: the larger of its probability p and 1 - p, the smaller, and e^-|x|. */
namespace
{
template <class R> struct sigmoid {
    R most, least, tail;
};
} // namespace

template <class R> static __device__ __forceinline__ sigmoid<R> sigmoid_of(R x)
{
    R tail = tern__decayed(fabs(x)), most = tern__reciprocal(1 + tail);
    return {most, most * tail, tail};
}

/* NaN stays. */
template <class R> static __device__ __forceinline__ R probability(R x, const sigmoid<R> &of)
{
    return x < 0 ? of.least : of.most;
}

/* Elements of dtype DTYPE and their targets, of dtype T or, for -1, of any. IGNORES: targets may be
 * ignored. */
template <int DTYPE, int T, bool IGNORES> struct mask {
    typedef tern__number<DTYPE> R;
    enum { X_DTYPE = DTYPE, OF_BYTES = T == TERN_U8, HAS_IGNORED = IGNORES };
    /* MOST: fours that a thread loads at a time; AT_ONCE: blocks that fit a multiprocessor. */
    enum { MOST = T >= 0 ? 4 : sizeof(R) == 8 ? 1 : 2, AT_ONCE = T < 0 ? 2 : 3 };
    enum { STEP = THREADS * 4, EACH = sizeof(R) == 8 ? 2 : 4 };
    tern__bunch<DTYPE, EACH> x[MOST][4 / EACH];
    tern__words t[MOST];

    static __device__ __forceinline__ int target_dtype(const problem &p)
    {
        return T < 0 ? p.target_dtype : T;
    }
    static __device__ __forceinline__ bool is_checked(const problem &p)
    {
        return T < 0 ? p.checks : (bool)OF_BYTES;
    }
    __device__ __forceinline__ void ask(const problem &p, int64_t at, int fours)
    {
#pragma unroll
        for (int j = 0; j < MOST; j++, at += STEP) {
            if (j >= fours) break;
#pragma unroll
            for (int n = 0; n < 4 / EACH; n++) x[j][n] = tern__bunch_get<DTYPE, EACH>(p.x, at + n * EACH);
            t[j] = tern__words_read(p.target, target_dtype(p), at);
        }
    }
    __device__ __forceinline__ void get(const problem &p, int j, R (&logit)[4], R (&to)[4]) const
    {
        const tern__four<R> target = tern__words_of<R>(t[j], target_dtype(p));
#pragma unroll
        for (int l = 0; l < 4; l++) logit[l] = x[j][l / EACH].get(l % EACH), to[l] = target.v[l];
    }
};

/* Reports elements of the target that are neither 0, 1 nor ignored. */
static __device__ __forceinline__ void tell(const problem &p, int64_t at, int count)
{
#pragma unroll 1
    for (int64_t i = at; i < at + count; i++)
        is_counted(p, i, tern__element<int64_t>(p.target, p.target_dtype, i));
}

/* Neutralises ignored elements among the neighbours from `at` on: they get a logit far below 0 and no
 * target, so they add nothing. Returns how many others there are. */
template <class M, int N>
static __device__ __forceinline__ typename M::R leave_out(const problem &p, int64_t at, typename M::R (&x)[N],
                                                          typename M::R (&t)[N], bool (&counts)[N])
{
    typedef typename M::R R;
    const R ignored = ignored_as<R>(p), nothing = p.attr.probabilities ? R(0) : R(-1e30);
    R left = N;
    bool fine = true;
#pragma unroll
    for (int l = 0; l < N; l++) {
        bool can_be = !M::is_checked(p) || ((M::OF_BYTES || t[l] >= 0) && t[l] <= 1);
        bool is_ignored = M::HAS_IGNORED && t[l] == ignored;
        fine &= can_be || is_ignored;
        counts[l] = !M::HAS_IGNORED || (can_be && !is_ignored);
        x[l] = counts[l] ? x[l] : nothing;
        t[l] = counts[l] ? t[l] : R(0);
        left -= counts[l] ? R(0) : R(1);
    }
    if (!fine) tell(p, at, N);
    return left;
}

/* Calls `to` with a thread's part of a piece: runs of neighbours, their x and their targets. to.through()
 * is called after each batch of loads. */
template <class M, class TO>
static __device__ __forceinline__ void show_mask(const problem &p, const piece &own, TO &to)
{
    typedef typename M::R R;
    const int64_t first = p.fours ? TERN__MIN((own.first + 3) / 4 * 4, own.last) : own.last;
    const int64_t last = TERN__MAX(first, own.last / 4 * 4);
    const int count = (int)(last - first), head = (int)(first - own.first), tail = (int)(own.last - last);
    for (int i = (int)threadIdx.x * 4; i < count; i += M::MOST * M::STEP) {
        const int fours = (count - i + M::STEP - 1) / M::STEP;
        M all;
        all.ask(p, first + i, fours);
#pragma unroll
        for (int j = 0; j < M::MOST; j++) {
            R x[4], t[4];
            if (j >= fours) break;
            all.get(p, j, x, t);
            to.take(first + i + j * M::STEP, x, t);
        }
        to.through();
    }
    for (int n = (int)threadIdx.x; n < head + tail; n += THREADS) {
        int64_t i = n < head ? own.first + n : last + n - head;
        R x[1] = {tern__element<R>(p.x, M::X_DTYPE, i)},
          t[1] = {tern__element<R>(p.target, M::target_dtype(p), i)};
        to.take(i, x, t);
        to.through();
    }
}

/* START<M>(..) with the mask type M for p. */
#define MASK_OF(p, START, ...)                                                                               \
    ((p).x_dtype == TERN_F32    ? TARGET_OF(p, START, TERN_F32, __VA_ARGS__)                                 \
     : (p).x_dtype == TERN_BF16 ? TARGET_OF(p, START, TERN_BF16, __VA_ARGS__)                                \
     : (p).x_dtype == TERN_F16  ? TARGET_OF(p, START, TERN_F16, __VA_ARGS__)                                 \
                                : START<mask<TERN_F64, -1, true>>(__VA_ARGS__))
#define TARGET_OF(p, START, DTYPE, ...)                                                                      \
    ((p).target_dtype == TERN_F32       ? START<mask<DTYPE, TERN_F32, true>>(__VA_ARGS__)                    \
     : is_of_bytes(p) && !can_ignore(p) ? START<mask<DTYPE, TERN_U8, false>>(__VA_ARGS__)                    \
     : is_of_bytes(p)                   ? START<mask<DTYPE, TERN_U8, true>>(__VA_ARGS__)                     \
                                        : START<mask<DTYPE, -1, true>>(__VA_ARGS__))

#endif
