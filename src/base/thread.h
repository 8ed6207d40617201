/* thread.h - threads of tern's own. */
#ifndef TERN_SRC_BASE_THREAD_H
#define TERN_SRC_BASE_THREAD_H

#include <pthread.h>
#include <sched.h>

/* One that runs body(arg) on `cores`, NULL: on all that the process may use. It takes no signals, which are
 * for the program's own threads. 0, or an errno. */
int tern__thread_new(pthread_t *thread, const cpu_set_t *cores, void *(*body)(void *), void *arg);

#endif
