/* away.h - kernels whose operands are in a device's own memory, or in several memories. */
#ifndef TERN_SRC_KERNELS_AWAY_H
#define TERN_SRC_KERNELS_AWAY_H

#include "kernels/kernel.h"

/* Some operand is not in the memory of the call's device. */
bool tern__call_strays(const tern__call *call);

/* Runs `kernel` with copies of those operands where it can reach them, and writes back what it has changed;
 * `home` is whose memory it reaches, NULL for the host. Waits for what it reads back. E_MEMORY; E_UNSUPPORTED
 * as the kernel says. */
int tern__call_carried(const tern__call *call, tern_device *home, tern__kernel_fn kernel);

#endif
