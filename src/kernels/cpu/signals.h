/* signals.h - no handler in the midst of a kernel that uses the stack pointer for something else. */
#ifndef TERN_SRC_KERNELS_CPU_SIGNALS_H
#define TERN_SRC_KERNELS_CPU_SIGNALS_H

#include <signal.h>

/* This thread takes no signal until it is released, and OpenMP's `threads` workers of it none any more: one
 * that is sent to the process waits. Faults are taken as ever. */
void tern__signals_hold(int threads, sigset_t *before);
void tern__signals_release(const sigset_t *before);

#endif
