/* thread.h - starts threads of the library. */
#ifndef TERN_SRC_BASE_THREAD_H
#define TERN_SRC_BASE_THREAD_H

#include <pthread.h>
#include <sched.h>

/* Starts a thread that runs body(arg) on `cores`; NULL: on all cores that the process may use. It blocks all
 * signals: they are for the program's own threads. Returns 0 or an errno. */
int tern__thread_new(pthread_t *thread, const cpu_set_t *cores, void *(*body)(void *), void *arg);

#endif
