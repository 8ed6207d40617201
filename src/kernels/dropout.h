/* dropout.h - the attributes of dropout, and where its random words stand. What is decided about are
 * elements, or channels: number n C + c is channel c of sample n. */
#ifndef TERN_SRC_KERNELS_DROPOUT_H
#define TERN_SRC_KERNELS_DROPOUT_H

#include "base/philox.h"

/* Number i is kept if word i % 4 of block i / 4 reaches the threshold, p 2^32. What is kept is multiplied
 * with scale. */
typedef struct tern__dropout_attr {
    uint64_t key, step, number, threshold;
    double scale;
} tern__dropout_attr;

/* The counter of a block: the draw's number in the step has 24 bits, the block's number 40. */
TERN__ANYWHERE tern__philox_words tern__dropout_counter(const tern__dropout_attr *a, uint64_t block)
{
    return (tern__philox_words){{(uint32_t)block, (uint32_t)(a->number << 8 | block >> 32), (uint32_t)a->step,
                                 (uint32_t)(a->step >> 32)}};
}

#endif
