/* attention_bf16.c - attention's loops with AVX-512's products of pairs of bf16, summed in f32. Weights and
 * the scores' gradients are rounded to bf16 where they are multiplied. */
#ifdef __x86_64__
#define TERN__WIDE
#include "kernels/cpu/width.h"

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/lanes.h"

#include <immintrin.h>

/* All of this file's functions are for one target, whose instructions those that are inlined may use. */
#define TARGET "arch=x86-64-v4,avx512bf16"
#undef TERN__SIMD
#undef TERN__INLINE
#define TERN__SIMD   __attribute__((target(TARGET)))
#define TERN__INLINE static inline __attribute__((always_inline, target(TARGET)))

TERN__DEFINE_TURN(vector_turn, tern__lanes)

TERN__INLINE tern__lanes bf16_multiply_add(tern__lanes sum, tern__words a, tern__words b)
{
    return (tern__lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

TERN__INLINE tern__halves bf16_halves(tern__lanes v)
{
    return (tern__halves)_mm512_cvtneps_pbh((__m512)v);
}

/* Words of which v's lanes are the lower halves. */
TERN__INLINE tern__words bf16_zip(tern__lanes low, tern__lanes high)
{
    typedef uint16_t both __attribute__((vector_size(64)));
    both v = (both)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (tern__words)__builtin_shufflevector(v, v, TERN__ZIP_FIRST, TERN__ZIP_SECOND);
}

#define REAL                    float
#define VECTOR                  tern__lanes
#define INTEGERS                tern__masks
#define WORDS                   tern__words
#define WIDTH                   TERN__LANES
#define MANTISSA                23
#define BIAS                    127
#define GET                     tern__lanes_get
#define SET                     tern__lanes_set
#define PAIR                    2
#define FACTOR                  uint32_t
#define FACTORS                 tern__words
#define MULTIPLY_ADD(sum, a, b) bf16_multiply_add(sum, a, b)
#define HALVES                  bf16_halves
#define ZIP                     bf16_zip
#include "kernels/cpu/attention_loops.h"

const tern__attention_fns tern__attention_bf16 = {forward_room, attention_forward, NULL,
                                                  NULL,         backward_room,     attention_backward};
#endif
