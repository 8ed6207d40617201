/* local.h - the process's local rank: its number among the ranks of its host, from the launcher's environment
 * variables. */
#ifndef TERN_SRC_BASE_LOCAL_H
#define TERN_SRC_BASE_LOCAL_H

#include "base/base.h"

/* "1": tern run has bound this rank to its share of the cores. */
#define TERN__ENV_BOUND "TERN_BOUND"

typedef struct tern__local {
    int rank, world; /* among the ranks of this host                    */
    bool is_bound;   /* the launcher has bound the process to cores       */
} tern__local;

/* Reads the variables of tern run or torchrun, else of mpirun, else of srun; 0 of 1 if there are none. E_ENV:
 * a variable contradicts another one, is empty, out of range or not a number. */
int tern__local_read(tern__local *out, tern_error *err);

/* Reads LOCAL_RANK and LOCAL_WORLD_SIZE, which is at most `world`; a variable that is not set leaves `out` as
 * it is. */
int tern__local_of_run(tern__local *out, int world, tern_error *err);
/* Slurm's ids have 32 bits without a sign.
 *
 * *found: srun has started this process as a task of step *id. The shell of an interactive step, the
 * script of a batch step and an extern step have ids above those of all such steps; they are processes
 * without peers. True, too, if the id is malformed. */
int tern__step_find(bool *found, long *id, tern_error *err);
int tern__job_id(long *id, tern_error *err);
/* Reads the variables of a Slurm task. */
int tern__local_of_step(tern__local *out, tern_error *err);
/* Reads a variable that every Slurm task has. */
int tern__step_int(const char *name, int low, int high, int *out, tern_error *err);

#endif
