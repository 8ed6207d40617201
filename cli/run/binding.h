/* binding.h - gives each rank its own share of the cores (--bind). */
#ifndef TERN_CLI_RUN_BINDING_H
#define TERN_CLI_RUN_BINDING_H

#include "run/job.h"

#include "device/device.h"

#include <sched.h>

/* The CPUs that this process may use, sorted so that the CPUs of a core, and near cores, are adjacent. */
typedef struct tern__binding {
    int ranks; /* 0: no rank is bound */
    int count;
    int cpus[CPU_SETSIZE];
    int core[CPU_SETSIZE]; /* the core of cpus[i], numbered from 0 */
    int cores;
} tern__binding;

/* Restores the CPU mask that this process started with. The ranks would inherit the binding that OMP_PLACES
 * or OMP_PROC_BIND has imposed on it. */
void tern__binding_undo_openmp(void);

/* Lists the CPUs and decides from job->bind whether to bind. E_UNSUPPORTED: --bind core with more ranks than
 * cores, or where a process may not choose its CPUs. */
int tern__binding_open(tern__binding *binding, const tern__job *job, tern_error *err);
/* Binds the calling process, a rank. Returns 0, or -1 with errno. */
int tern__binding_enter(const tern__binding *binding, int local);

#endif
