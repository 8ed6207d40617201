/* cost.h - the least that a kernel call has to do: what a profile measures its time against. */
#ifndef TERN_SRC_KERNELS_COST_H
#define TERN_SRC_KERNELS_COST_H

#include "kernels/kernel.h"

typedef struct tern__cost {
    double flops; /* of matmul, convolutions and their gradients, two for each product that an element of y is
                     made of, those by a convolution's padding not counted; of the other kernels 0: their
                     bytes are what takes time */
    double bytes; /* every operand once; twice what is added to or updated in place, and what a batch norm's
                     second pass reads again in the memory of a device of its own */
} tern__cost;

tern__cost tern__call_cost(const tern__call *call);

#endif
