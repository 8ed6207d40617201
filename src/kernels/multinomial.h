/* multinomial.h - the attributes of MULTINOMIAL, and its random numbers.
 *
 * With replacement, sample s of row n is the first category up to which the sum of the weights exceeds u
 * times the sum of all, u from block n count + s. Without, each category c of weight w gets the key log(u) /
 * w, u from block n C + c, and the largest keys are chosen, in order (Efraimidis and Spirakis 2006): that is
 * drawing one after the other. Sums are in double. */
#ifndef TERN_SRC_KERNELS_MULTINOMIAL_H
#define TERN_SRC_KERNELS_MULTINOMIAL_H

#include "kernels/dropout.h"
#include "kernels/kernel.h"

typedef struct tern__multinomial_attr {
    tern__dropout_attr draw; /* its key, step and number */
    int64_t count, replacement;
} tern__multinomial_attr;

/* The random number of a block, in (0, 1). */
static inline double tern__multinomial_uniform(const tern__multinomial_attr *a, int64_t block)
{
    tern__philox_words r = tern__philox(a->draw.key, tern__dropout_counter(&a->draw, (uint64_t)block));
    uint64_t bits = (uint64_t)r.word[0] << 32 | r.word[1];
    return ((double)(bits >> 12) + 0.5) * 0x1p-52;
}

/* The sum of a row's weights. TERN_OK if so many categories can be drawn from it, else E_RANGE. */
int tern__multinomial_check(const tern__call *call, int64_t row, double *sum);

#endif
