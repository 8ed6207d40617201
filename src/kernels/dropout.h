/* dropout.h - the attributes of dropout, and the positions of its random words. Elements are dropped, or
 * whole channels: item n C + c is channel c of sample n. */
#ifndef TERN_SRC_KERNELS_DROPOUT_H
#define TERN_SRC_KERNELS_DROPOUT_H

#include "base/philox.h"

/* Item i is kept if word i % 4 of block i / 4 is at least the threshold, p 2^32. Kept items are multiplied
 * by scale. */
typedef struct tern__dropout_attr {
    uint64_t key, step, number, threshold;
    double scale;
} tern__dropout_attr;

/* The Philox counter of a block. The draw's number within the step has 24 bits, the block's number 40. */
TERN__ANYWHERE tern__philox_words tern__dropout_counter(const tern__dropout_attr *a, uint64_t block)
{
    return (tern__philox_words){{(uint32_t)block, (uint32_t)(a->number << 8 | block >> 32), (uint32_t)a->step,
                                 (uint32_t)(a->step >> 32)}};
}

#endif
