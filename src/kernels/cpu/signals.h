/* signals.h - keeps signal handlers from running during a kernel that uses the stack pointer for something
 * else. */
#ifndef TERN_SRC_KERNELS_CPU_SIGNALS_H
#define TERN_SRC_KERNELS_CPU_SIGNALS_H

#include <signal.h>

/* Blocks signals in this thread and its `threads` OpenMP workers until release: one that is sent to the
 * process waits. Faults are still delivered. */
void tern__signals_hold(int threads, sigset_t *before);
void tern__signals_release(int threads, const sigset_t *before);

#endif
