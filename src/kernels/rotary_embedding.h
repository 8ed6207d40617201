/* rotary_embedding.h - the attributes of rotary position embedding, and its operands.
 *
 * x and y are (.., D), and cos and sin are seen as (.., K) with the same dimensions before the last one,
 * along which they may be broadcast. Pair k of a row, of K <= D / 2 pairs, turns by the angle of which the
 * tables have the cosine and the sine: (a, b) becomes (a cos - b sin, b cos + a sin). The pair is elements k
 * and k + K of the row, or 2 k and 2 k + 1 if pairs are interleaved. Elements from 2 K on are copied. y may
 * be x. */
#ifndef TERN_SRC_KERNELS_ROTARY_EMBEDDING_H
#define TERN_SRC_KERNELS_ROTARY_EMBEDDING_H

#include <stdint.h>

typedef struct tern__rotary_attr {
    int64_t interleaved, back; /* back: turn by the opposite angle, as the gradient does */
} tern__rotary_attr;

#endif
