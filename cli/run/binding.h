/* binding.h - each rank on its own share of the cores. */
#ifndef TERN_CLI_RUN_BINDING_H
#define TERN_CLI_RUN_BINDING_H

#include "run/job.h"

#include "device/device.h"

#include <sched.h>

/* The CPUs that may be used, those of a core side by side and near cores near each other. */
typedef struct tern__binding {
    int ranks; /* 0: nobody is bound */
    int count;
    int cpus[CPU_SETSIZE];
    int core[CPU_SETSIZE]; /* of cpus[i], counted from 0 */
    int cores;
} tern__binding;

/* Undoes what OMP_PLACES or OMP_PROC_BIND has done to this process, whose ranks would inherit it. */
void tern__binding_undo_openmp(void);

/* Decides, as job->bind says. Errors: E_SYSTEM; E_UNSUPPORTED: --bind core with more ranks than cores. */
int tern__binding_open(tern__binding *binding, const tern__job *job, tern_error *err);
/* The CPUs of the host's rank `local`. */
void tern__binding_mask(const tern__binding *binding, int local, cpu_set_t *mask);
/* In the rank's process. 0, or -1 and errno. */
int tern__binding_enter(const tern__binding *binding, int local);

#endif
