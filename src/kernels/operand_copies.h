/* operand_copies.h - runs kernels whose operands are in another memory than the kernel's, or in several. */
#ifndef TERN_SRC_KERNELS_OPERAND_COPIES_H
#define TERN_SRC_KERNELS_OPERAND_COPIES_H

#include "kernels/kernel.h"

/* Whether an operand is not in the memory of the call's device. */
bool tern__operands_stray(const tern__call *call);

/* Runs `kernel` on copies of the operands it cannot reach, and writes back those it has changed. `home`:
 * the device whose memory the kernel reaches; NULL: the host. Waits for copies to the host. E_MEMORY;
 * E_UNSUPPORTED if the kernel returns it. */
int tern__kernel_run_on_copies(const tern__call *call, tern_device *home, tern__kernel_fn kernel);

#endif
