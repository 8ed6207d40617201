/* cores.h - the CPUs that this process may use. */
#ifndef TERN_SRC_BASE_CORES_H
#define TERN_SRC_BASE_CORES_H

#include <sched.h>
#include <stdbool.h>

/* Returns the CPUs of OpenMP's places or, if it binds no threads, those of the calling thread's affinity
 * mask. If OpenMP binds its threads to places (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), it has bound
 * the main thread before main, and every thread started from it inherits a mask of one place only. Returns 0,
 * or -1 with errno set. */
int tern__cores_get(cpu_set_t *cores);
/* Returns true if OpenMP binds its threads. */
bool tern__cores_are_placed(void);

#endif
