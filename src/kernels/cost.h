/* cost.h - the least work of a kernel call, against which a profile measures its time. */
#ifndef TERN_SRC_KERNELS_COST_H
#define TERN_SRC_KERNELS_COST_H

#include "kernels/kernel.h"

typedef struct tern__cost {
    double flops; /* matmul, convolutions and their gradients: two for each product in a sum, without those
                   * of a convolution's padding; other kernels: 0, since their bytes take the time */
    double bytes; /* every operand once; twice those that are added to or updated in place, and those that
                   * the second pass of a batch norm reads again on a device with memory of its own */
} tern__cost;

tern__cost tern__call_cost(const tern__call *call);

#endif
