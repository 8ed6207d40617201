/* channel_sum.h - a sum over all but the channels of a blocked tensor. */
#ifndef TERN_SRC_KERNELS_CPU_CHANNEL_SUM_H
#define TERN_SRC_KERNELS_CPU_CHANNEL_SUM_H

#include "kernels/cpu/cpu.h"

/* E_UNSUPPORTED: the call is another reduction. */
int tern__cpu_channel_sum(const tern__call *call);

#endif
