/* local.h - which of the ranks of its host a process is, as its launcher says in the environment. */
#ifndef TERN_SRC_BASE_LOCAL_H
#define TERN_SRC_BASE_LOCAL_H

#include "base/base.h"

/* "1": tern run has bound this rank to its share of the cores. */
#define TERN__ENV_BOUND "TERN_BOUND"

typedef struct tern__local {
    int rank, world; /* among those of this host                        */
    bool is_bound;   /* the launcher has chosen the cores that it may use */
} tern__local;

/* Whoever has started this process: tern run or torchrun, else mpirun, else srun; 0 of 1 if none says. A
 * variable that contradicts another one, is empty, out of range or no number: E_ENV. */
int tern__local_read(tern__local *out, tern_error *err);

/* LOCAL_RANK and LOCAL_WORLD_SIZE, which is at most `world`; what is not set stays as it is in `out`. */
int tern__local_of_run(tern__local *out, int world, tern_error *err);
/* Those of a task of Slurm. */
int tern__local_of_step(tern__local *out, tern_error *err);
/* A variable of a step of Slurm, without which there is no task. */
int tern__step_int(const char *name, int low, int high, int *out, tern_error *err);

#endif
