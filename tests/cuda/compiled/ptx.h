/* ptx.h - the instructions of PTX that kernels consist of, each a function: add.s32 is add_s32. It
 * takes the machine, then the results, then the operands. compile.py writes calls of these functions,
 * so an instruction that is missing here does not compile, and the compiler's error names it.
 *
 * A register holds bits: one of 32 bits is a uint32_t, also for an f32, and a predicate is a bool.
 * Results and the bounds of their errors are those of NVIDIA's "Parallel Thread Execution ISA". */
#ifndef TERN_TESTS_CUDA_PTX_H
#define TERN_TESTS_CUDA_PTX_H

#include "machine.h"

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" {
#include "base/half.h"
}

/* ---- bits and numbers ---- */

template <class T, class B> T reinterpreted(B bits)
{
    static_assert(sizeof(T) == sizeof(B), "the same bits");
    T value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
static inline float number(uint32_t bits)
{
    return reinterpreted<float>(bits);
}
static inline double number(uint64_t bits)
{
    return reinterpreted<double>(bits);
}
static inline uint32_t bits(float value)
{
    return reinterpreted<uint32_t>(value);
}
static inline uint64_t bits(double value)
{
    return reinterpreted<uint64_t>(value);
}

/* Instructions of one to three operands. B: the bits of an operand, AS: what they are in the expression. */
#define OF_ONE(name, B, AS, expression)                                                                      \
    template <class D> void name(const machine *, D &to, B a_)                                               \
    {                                                                                                        \
        const auto a = AS(a_);                                                                               \
        to = expression;                                                                                     \
    }
#define OF_TWO(name, B, AS, expression)                                                                      \
    template <class D> void name(const machine *m, D &to, B a_, B b_)                                        \
    {                                                                                                        \
        const auto a = AS(a_), b = AS(b_);                                                                   \
        (void)m;                                                                                             \
        to = expression;                                                                                     \
    }
#define OF_THREE(name, B, AS, expression)                                                                    \
    template <class D> void name(const machine *, D &to, B a_, B b_, B c_)                                   \
    {                                                                                                        \
        const auto a = AS(a_), b = AS(b_), c = AS(c_);                                                       \
        to = expression;                                                                                     \
    }
#define FLOATS_OF_ONE(name, expression)                                                                      \
    OF_ONE(name##_f32, uint32_t, number, bits(expression))                                                   \
    OF_ONE(name##_f64, uint64_t, number, bits(expression))
#define FLOATS_OF_TWO(name, expression)                                                                      \
    OF_TWO(name##_f32, uint32_t, number, bits(expression))                                                   \
    OF_TWO(name##_f64, uint64_t, number, bits(expression))
#define WHOLES_OF_TWO(name, expression)                                                                      \
    OF_TWO(name##_s32, uint32_t, int32_t, expression)                                                        \
    OF_TWO(name##_u32, uint32_t, uint32_t, expression)                                                       \
    OF_TWO(name##_s64, uint64_t, int64_t, expression)                                                        \
    OF_TWO(name##_u64, uint64_t, uint64_t, expression)
#define BITS_OF_TWO(name, expression)                                                                        \
    OF_TWO(name##_pred, bool, bool, expression)                                                              \
    OF_TWO(name##_b16, uint16_t, uint16_t, expression)                                                       \
    OF_TWO(name##_b32, uint32_t, uint32_t, expression)                                                       \
    OF_TWO(name##_b64, uint64_t, uint64_t, expression)

/* ---- whole numbers ---- */

template <class T> T nonzero(const machine *m, T divisor)
{
    if (!divisor) m->stop("a division by 0");
    return divisor;
}
/* Shifts by as many bits as there are, or more, leave zeros, or signs. */
template <class T> T shifted_left(T a, uint32_t by)
{
    return by < 8 * sizeof(T) ? T(a << by) : T(0);
}
template <class T> T shifted_right(T a, uint32_t by)
{
    return T(a >> (by < 8 * sizeof(T) ? by : 8 * sizeof(T) - 1) >> (by >= 8 * sizeof(T)));
}
#define SHIFTS(bits)                                                                                         \
    template <class D> void shl_b##bits(const machine *, D &to, uint##bits##_t a, uint32_t by)               \
    {                                                                                                        \
        to = shifted_left(a, by);                                                                            \
    }                                                                                                        \
    template <class D> void shr_u##bits(const machine *, D &to, uint##bits##_t a, uint32_t by)               \
    {                                                                                                        \
        to = shifted_right(a, by);                                                                           \
    }                                                                                                        \
    template <class D> void shr_s##bits(const machine *, D &to, int##bits##_t a, uint32_t by)                \
    {                                                                                                        \
        to = shifted_right(a, by);                                                                           \
    }

WHOLES_OF_TWO(add, a + b)
WHOLES_OF_TWO(sub, a - b)
WHOLES_OF_TWO(min, a < b ? a : b)
WHOLES_OF_TWO(max, a > b ? a : b)
WHOLES_OF_TWO(mul_lo, a *b)
WHOLES_OF_TWO(div, a / nonzero(m, b))
WHOLES_OF_TWO(rem, a % nonzero(m, b))
OF_TWO(mul_wide_s32, uint32_t, int32_t, (int64_t)a *b)
OF_TWO(mul_wide_u32, uint32_t, uint32_t, (uint64_t)a *b)
OF_TWO(mul_hi_u32, uint32_t, uint32_t, (uint64_t)a *b >> 32)
OF_TWO(mul_hi_u64, uint64_t, uint64_t, (uint64_t)((unsigned __int128)a *b >> 64))
OF_THREE(mad_lo_s32, uint32_t, uint32_t, a *b + c)
OF_ONE(neg_s32, uint32_t, uint32_t, 0 - a)
OF_ONE(neg_s64, uint64_t, uint64_t, 0 - a)
OF_ONE(abs_s64, uint64_t, int64_t, a < 0 ? -a : a)
BITS_OF_TWO(and, a &b)
BITS_OF_TWO(or, a | b)
BITS_OF_TWO(xor, a ^ b)
OF_ONE(not_pred, bool, bool, !a)
OF_ONE(not_b32, uint32_t, uint32_t, ~a)
OF_ONE(not_b64, uint64_t, uint64_t, ~a)
SHIFTS(16)
SHIFTS(32)
SHIFTS(64)

/* Bytes of two registers, chosen by four bits each; the last of the four repeats the byte's sign. */
template <class D> void prmt_b32(const machine *, D &to, uint32_t a, uint32_t b, uint32_t choice)
{
    const uint64_t all = a | (uint64_t)b << 32;
    uint32_t bytes = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t which = choice >> 4 * i, byte = (uint32_t)(all >> 8 * (which & 7)) & 255;
        bytes |= (which & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    to = bytes;
}

/* Inserts the low `count` bits of a in b at a place. */
template <class T> T inserted(T a, T b, uint32_t at, uint32_t count)
{
    const T ones = shifted_left((T)(shifted_left((T)1, count) - 1), at);
    return (b & ~ones) | (shifted_left(a, at) & ones);
}
template <class D> void bfi_b32(const machine *, D &to, uint32_t a, uint32_t b, uint32_t at, uint32_t count)
{
    to = inserted(a, b, at, count);
}
template <class D> void bfi_b64(const machine *, D &to, uint64_t a, uint64_t b, uint32_t at, uint32_t count)
{
    to = inserted(a, b, at, count);
}

/* ---- floating-point numbers ---- */

/* The other number if one is a NaN; -0 is less than 0. */
template <class T> T least(T a, T b)
{
    if (a != a || b != b) return a != a ? b : a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T> T largest(T a, T b)
{
    if (a != a || b != b) return a != a ? b : a;
    return a > b || (a == b && !std::signbit(a)) ? a : b;
}

/* An operation that is not rounded to the nearest number; volatile keeps the compiler from moving it. */
static inline float fma_rounded(int way, float a, float b, float c)
{
    volatile float x = a, y = b, z = c, result;
    std::fesetround(way);
    result = std::fma(x, y, z);
    std::fesetround(FE_TONEAREST);
    return result;
}

/* Subnormal numbers are 0 (.ftz). */
static inline float flushed(float x)
{
    return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

/* A result that is wrong by as much as an approximation may be, up or down by the bits of the operand. Powers
 * of two are exact: the numeric library counts on it. */
static inline float wrong_by(double bound, uint32_t operand, double exact)
{
    const uint32_t mixed = (operand * 2654435761u ^ operand >> 15) * 2246822519u;
    return flushed((float)(exact * (1 + bound * (mixed / 0x1p31 - 1))));
}
static inline float approximate_exp2(float x)
{
    const double exact = std::exp2((double)flushed(x));
    return x == std::floor(x) || x != x ? flushed((float)exact) : wrong_by(0x1p-22, bits(x), exact);
}
static inline float approximate_reciprocal(float x)
{
    const double exact = 1 / (double)flushed(x);
    return (bits(x) & 0x7fffff) == 0 || x != x ? flushed((float)exact) : wrong_by(0x1p-23, bits(x), exact);
}
/* Of the upper halves of operand and result. */
static inline double approximate_reciprocal(double x)
{
    const uint64_t upper = ~UINT64_C(0) << 32;
    return number(bits(1 / number(bits(x) & upper)) & upper);
}

FLOATS_OF_TWO(add, a + b)
FLOATS_OF_TWO(add_rn, a + b)
FLOATS_OF_TWO(sub, a - b)
FLOATS_OF_TWO(mul, a *b)
FLOATS_OF_TWO(mul_rn, a *b)
FLOATS_OF_TWO(div_rn, a / b)
FLOATS_OF_TWO(min, least(a, b))
FLOATS_OF_TWO(max, largest(a, b))
FLOATS_OF_TWO(copysign, std::copysign(b, a))
FLOATS_OF_ONE(neg, -a)
FLOATS_OF_ONE(abs, std::fabs(a))
FLOATS_OF_ONE(rcp_rn, 1 / a)
FLOATS_OF_ONE(sqrt_rn, std::sqrt(a))
FLOATS_OF_ONE(rcp_approx_ftz, approximate_reciprocal(a))
OF_ONE(ex2_approx_ftz_f32, uint32_t, number, bits(approximate_exp2(a)))
OF_TWO(add_rz_f32, uint32_t, number, bits(fma_rounded(FE_TOWARDZERO, a, 1, b)))
OF_THREE(fma_rn_f32, uint32_t, number, bits(std::fma(a, b, c)))
OF_THREE(fma_rm_f32, uint32_t, number, bits(fma_rounded(FE_DOWNWARD, a, b, c)))
OF_THREE(fma_rn_f64, uint64_t, number, bits(std::fma(a, b, c)))

/* ---- 16-bit types, also two in a register ---- */

static inline float of_half(uint16_t half)
{
    return tern__f16_to_f32(half);
}
static inline uint16_t half_of(float value)
{
    return value != value ? 0x7fff : tern__f16_from_f32(value);
}
static inline float of_bf(uint16_t bf)
{
    return tern__bf16_to_f32(bf);
}
static inline uint16_t bf_of(float value)
{
    return value != value ? 0x7fff : tern__bf16_from_f32(value);
}
static inline uint32_t pair(uint16_t low, uint16_t high)
{
    return low | (uint32_t)high << 16;
}
static inline uint16_t low(uint32_t pair)
{
    return (uint16_t)pair;
}
static inline uint16_t high(uint32_t pair)
{
    return (uint16_t)(pair >> 16);
}
#define IN_PAIR(half, from, to, a, b) to(largest(from(half(a)), from(half(b))))

OF_ONE(cvt_f32_f16, uint16_t, uint16_t, bits(of_half(a)))
OF_ONE(cvt_rn_f16_f32, uint32_t, number, half_of(a))
OF_ONE(cvt_rn_bf16_f32, uint32_t, number, bf_of(a))
OF_TWO(cvt_rn_f16x2_f32, uint32_t, number, pair(half_of(b), half_of(a)))
OF_TWO(cvt_rn_bf16x2_f32, uint32_t, number, pair(bf_of(b), bf_of(a)))
OF_TWO(max_f16x2, uint32_t, uint32_t,
       pair(IN_PAIR(low, of_half, half_of, a, b), IN_PAIR(high, of_half, half_of, a, b)))
OF_TWO(max_bf16x2, uint32_t, uint32_t,
       pair(IN_PAIR(low, of_bf, bf_of, a, b), IN_PAIR(high, of_bf, bf_of, a, b)))

/* ---- conversions ---- */

/* Truncated, and limited to the type's range; a NaN is 0 in 32 bits and the least number in 64. */
static inline int32_t to_s32(double x)
{
    return x != x ? 0 : x >= 0x1p31 ? INT32_MAX : x <= -0x1p31 ? INT32_MIN : (int32_t)x;
}
static inline int64_t to_s64(double x)
{
    return x != x || x < -0x1p63 ? INT64_MIN : x >= 0x1p63 ? INT64_MAX : (int64_t)x;
}
#define TO_FLOATS(from, B, T)                                                                                \
    OF_ONE(cvt_rn_f32_##from, B, T, bits((float)a))                                                          \
    OF_ONE(cvt_rn_f64_##from, B, T, bits((double)a))
#define TO_WHOLE(to, from, B, T, R) OF_ONE(cvt_##to##_##from, B, T, (R)a)

TO_FLOATS(s16, uint16_t, int16_t)
TO_FLOATS(u16, uint16_t, uint16_t)
TO_FLOATS(s32, uint32_t, int32_t)
TO_FLOATS(u32, uint32_t, uint32_t)
TO_FLOATS(s64, uint64_t, int64_t)
OF_ONE(cvt_f64_f32, uint32_t, number, bits((double)a))
OF_ONE(cvt_rn_f32_f64, uint64_t, number, bits((float)a))
OF_ONE(cvt_rzi_s32_f32, uint32_t, number, to_s32(a))
OF_ONE(cvt_rzi_s32_f64, uint64_t, number, to_s32(a))
OF_ONE(cvt_rzi_s64_f32, uint32_t, number, to_s64(a))
OF_ONE(cvt_rzi_s64_f64, uint64_t, number, to_s64(a))
OF_ONE(cvt_rmi_f32_f32, uint32_t, number, bits(std::floor(a)))
OF_ONE(cvt_rni_f32_f32, uint32_t, number, bits(std::nearbyint(a)))
OF_ONE(cvt_rzi_f32_f32, uint32_t, number, bits(std::trunc(a)))
OF_ONE(cvt_rzi_f64_f64, uint64_t, number, bits(std::trunc(a)))
OF_ONE(cvt_sat_f32_f32, uint32_t, number, bits(a > 0 ? least(a, 1.0f) : 0.0f))
TO_WHOLE(s64, s32, uint32_t, int32_t, int64_t)
TO_WHOLE(s16, s8, uint8_t, int8_t, int16_t)
TO_WHOLE(s64, s8, uint8_t, int8_t, int64_t)
TO_WHOLE(u16, u32, uint32_t, uint32_t, uint16_t)
TO_WHOLE(u16, u64, uint64_t, uint64_t, uint16_t)
TO_WHOLE(u32, u16, uint16_t, uint16_t, uint32_t)
TO_WHOLE(u32, u64, uint64_t, uint64_t, uint32_t)
TO_WHOLE(u64, u16, uint16_t, uint16_t, uint64_t)
TO_WHOLE(u64, u32, uint32_t, uint32_t, uint64_t)

/* ---- moving, comparing, choosing ---- */

#define MOVES(type, B)                                                                                       \
    OF_ONE(mov_##type, B, B, a)                                                                              \
    template <class D> void selp_##type(const machine *, D &to, B a, B b, bool first)                        \
    {                                                                                                        \
        to = first ? a : b;                                                                                  \
    }

MOVES(pred, bool)
MOVES(u16, uint16_t)
MOVES(b32, uint32_t)
MOVES(u32, uint32_t)
MOVES(f32, uint32_t)
MOVES(b64, uint64_t)
MOVES(u64, uint64_t)
MOVES(f64, uint64_t)

/* Of registers of `each` bits, the first in the lowest. */
template <class... T> void split(int each, uint64_t all, T &...to)
{
    int part = 0;
    ((to = (T)(all >> each * part++)), ...);
}
template <class D, class... T> void join(int each, D &to, T... from)
{
    uint64_t all = 0;
    int part = 0;
    ((all |= (uint64_t)from << each * part++), ...);
    to = (D)all;
}

/* Ordered comparisons are false of NaNs, those with a u are true. */
template <class T> bool is_any_nan(T a, T b)
{
    return a != a || b != b;
}
#define COMPARISONS(type, B, AS)                                                                             \
    OF_TWO(setp_eq_##type, B, AS, a == b)                                                                    \
    OF_TWO(setp_ne_##type, B, AS, !is_any_nan(a, b) && a != b)                                               \
    OF_TWO(setp_lt_##type, B, AS, a < b)                                                                     \
    OF_TWO(setp_le_##type, B, AS, a <= b)                                                                    \
    OF_TWO(setp_gt_##type, B, AS, a > b)                                                                     \
    OF_TWO(setp_ge_##type, B, AS, a >= b)
#define FLOAT_COMPARISONS(type, B)                                                                           \
    COMPARISONS(type, B, number)                                                                             \
    OF_TWO(setp_equ_##type, B, number, is_any_nan(a, b) || a == b)                                           \
    OF_TWO(setp_neu_##type, B, number, a != b)                                                               \
    OF_TWO(setp_ltu_##type, B, number, !(a >= b))                                                            \
    OF_TWO(setp_leu_##type, B, number, !(a > b))                                                             \
    OF_TWO(setp_gtu_##type, B, number, !(a <= b))                                                            \
    OF_TWO(setp_geu_##type, B, number, !(a < b))                                                             \
    OF_TWO(setp_num_##type, B, number, !is_any_nan(a, b))                                                    \
    OF_TWO(setp_nan_##type, B, number, is_any_nan(a, b))

COMPARISONS(s16, uint16_t, int16_t)
COMPARISONS(u16, uint16_t, uint16_t)
COMPARISONS(s32, uint32_t, int32_t)
COMPARISONS(u32, uint32_t, uint32_t)
COMPARISONS(b32, uint32_t, uint32_t)
COMPARISONS(s64, uint64_t, int64_t)
COMPARISONS(u64, uint64_t, uint64_t)
COMPARISONS(b64, uint64_t, uint64_t)
FLOAT_COMPARISONS(f32, uint32_t)
FLOAT_COMPARISONS(f64, uint64_t)

/* ---- memory ---- */

/* An address in shared memory is an offset. A generic one has this bit, the block's rank, and the
 * offset. Addresses of parameters and of a thread's own memory are those of the CPU. */
#define GENERIC_SHARED (UINT64_C(1) << 62)
enum space { GLOBAL, SHARED, LOCAL, PARAM, GENERIC };

static inline char *place(const machine *m, space in, uint64_t address, size_t bytes)
{
    if (address % bytes) m->stop("an address that is not aligned");
    if (in == SHARED) return m->shared(m->rank(), (uint32_t)address, bytes);
    if (in == GENERIC && address & GENERIC_SHARED)
        return m->shared((unsigned)(address >> 32 & 0xffff), (uint32_t)address, bytes);
    return (char *)address;
}

/* T: the type of an element in memory. A signed one is extended to its register. */
template <class T, class... D> void load(const machine *m, space in, uint64_t address, D &...to)
{
    T element[sizeof...(to)];
    std::memcpy(element, place(m, in, address, sizeof(element)), sizeof(element));
    const T *next = element;
    ((to = (D)*next++), ...);
}
template <class T, class... A> void store(const machine *m, space in, uint64_t address, A... from)
{
    const T element[] = {(T)from...};
    std::memcpy(place(m, in, address, sizeof(element)), element, sizeof(element));
}

/* One thread runs at a time, so these are atomic. */
template <class T, class D> void atom_add(const machine *m, space in, D &before, uint64_t address, T value)
{
    load<T>(m, in, address, before);
    store<T>(m, in, address, (T)(before + value));
}
template <class T, class D>
void atom_cas(const machine *m, space in, D &before, uint64_t address, T expected, T value)
{
    load<T>(m, in, address, before);
    if (before == expected) store<T>(m, in, address, value);
}

template <class D> void cvta_to_global_u64(const machine *, D &to, uint64_t address)
{
    to = address;
}
template <class D> void cvta_shared_u64(const machine *m, D &to, uint64_t offset)
{
    to = GENERIC_SHARED | (uint64_t)m->rank() << 32 | (uint32_t)offset;
}
/* The same place in the shared memory of another block of the cluster. */
template <class D> void mapa_u64(const machine *, D &to, uint64_t address, uint32_t rank)
{
    to = GENERIC_SHARED | (uint64_t)rank << 32 | (uint32_t)address;
}

/* Copies `bytes` into shared memory, or only the first `filled` and then zeros, by the time that it is
 * waited for. */
static inline void copy_async(const machine *m, uint64_t to, uint64_t from, size_t bytes, size_t filled)
{
    const char *source = filled ? place(m, GLOBAL, from, bytes) : nullptr;
    m->copy_async(place(m, SHARED, to, bytes), source, bytes, bytes - filled);
}
static inline void cp_async_ca_shared_global(const machine *m, uint64_t to, uint64_t from, size_t bytes)
{
    copy_async(m, to, from, bytes, bytes);
}
static inline void cp_async_ca_shared_global(const machine *m, uint64_t to, uint64_t from, size_t bytes,
                                             size_t filled)
{
    copy_async(m, to, from, bytes, filled);
}
static inline void cp_async_cg_shared_global(const machine *m, uint64_t to, uint64_t from, size_t bytes)
{
    copy_async(m, to, from, bytes, bytes);
}
static inline void cp_async_cg_shared_global(const machine *m, uint64_t to, uint64_t from, size_t bytes,
                                             size_t filled)
{
    copy_async(m, to, from, bytes, filled);
}
static inline void cp_async_commit_group(const machine *m)
{
    m->copy_commit();
}
static inline void cp_async_wait_group(const machine *m, size_t groups)
{
    m->copy_wait(groups);
}

/* ---- between threads ---- */

static inline void membar_sys(const machine *)
{
}
static inline void griddepcontrol_wait(const machine *m)
{
    m->wait_for_previous();
}
static inline void griddepcontrol_launch_dependents(const machine *m)
{
    m->let_next_begin();
}
static inline void bar_sync(const machine *m, uint32_t barrier)
{
    if (barrier) m->stop("a barrier but the block's first");
    m->meet_block();
}
static inline void bar_warp_sync(const machine *m, uint32_t mask)
{
    if (mask != ~0u) m->stop("a barrier of a part of a warp");
    m->meet_warp(mask);
}
static inline void barrier_cluster_arrive(const machine *m)
{
    m->arrive_at_cluster();
}
static inline void barrier_cluster_wait(const machine *m)
{
    m->wait_for_cluster();
}
/* The value of the lane whose number differs by these bits. */
template <class D>
void shfl_sync_bfly_b32(const machine *m, D &to, uint32_t value, uint32_t bits, uint32_t last, uint32_t mask)
{
    if (last != 31 || mask != ~0u) m->stop("a shuffle of a part of a warp");
    to = (uint32_t)m->shuffle(value, m->lane() ^ (int)bits);
}

#endif
