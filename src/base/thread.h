/* thread.h - starts threads of the library, and keeps signals away from calls that they would spoil. */
#ifndef TERN_SRC_BASE_THREAD_H
#define TERN_SRC_BASE_THREAD_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>

/* Starts a thread that runs body(arg) on `cores`; NULL: on all cores that the process may use. Its signals
 * are blocked as by tern__signals_block: they are for the program's own threads. Returns 0 or an errno. */
int tern__thread_new(pthread_t *thread, const cpu_set_t *cores, void *(*body)(void *), void *arg);

/* Blocks the signals of the calling thread until tern__signals_restore, except for those that its own faults
 * raise: SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT. */
void tern__signals_block(sigset_t *before);
void tern__signals_restore(const sigset_t *before);

#endif
