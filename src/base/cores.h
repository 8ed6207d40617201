/* cores.h - the CPUs that this process may use. */
#ifndef TERN_SRC_BASE_CORES_H
#define TERN_SRC_BASE_CORES_H

#include <sched.h>
#include <stdbool.h>

/* Where OpenMP binds its threads to places (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), it has bound the
 * program's first one before main, and whatever that one starts inherits a mask of one place. So these are
 * the CPUs of all places, and else those of the calling thread's mask. 0, or -1 and errno. */
int tern__cores_get(cpu_set_t *cores);
/* Does OpenMP bind its threads? */
bool tern__cores_are_placed(void);

#endif
