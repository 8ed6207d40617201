/* signals.h - no handler in the midst of a kernel that uses the stack pointer for something else. */
#ifndef TERN_SRC_KERNELS_CPU_SIGNALS_H
#define TERN_SRC_KERNELS_CPU_SIGNALS_H

#include <signal.h>

/* This thread and OpenMP's `threads` workers of it take no signal until they are released: one that is sent
 * to the process waits. Faults are taken as ever. */
void tern__signals_hold(int threads, sigset_t *before);
void tern__signals_release(int threads, const sigset_t *before);

#endif
