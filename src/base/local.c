/* local.c - reads the local rank from the variables of torchrun, mpirun and srun. */
#include "base/local.h"

#include "base/nodelist.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Slurm's variable names the kind of binding, which may be "none". */
static bool is_bound(const char *name)
{
    const char *value = tern__env(name);
    return value && !strstr(value, "none");
}

/* ---- tern run, torchrun ---- */

static int check_rank(const tern__local *local, tern_error *err)
{
    if (local->rank < local->world) return TERN_OK;
    if (!getenv("LOCAL_RANK"))
        return tern__error_set(
            err, __func__, TERN_E_ENV,
            "LOCAL_WORLD_SIZE=%d is set but LOCAL_RANK is not, and RANK=%d is not a local rank", local->world,
            local->rank);
    return tern__error_set(err, __func__, TERN_E_ENV, "LOCAL_RANK=%d is not below LOCAL_WORLD_SIZE=%d",
                           local->rank, local->world);
}

int tern__local_of_run(tern__local *out, int world, tern_error *err)
{
    int status = tern__env_filled_int("LOCAL_WORLD_SIZE", 1, world, out->world, &out->world, err);
    if (!status) status = tern__env_filled_int("LOCAL_RANK", 0, INT_MAX, out->rank, &out->rank, err);
    out->is_bound = is_bound(TERN__ENV_BOUND);
    return status ? status : check_rank(out, err);
}

/* ---- mpirun ---- */

static const struct {
    const char *rank, *world, *bound;
} mpis[] = {
    {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_orte_bound_at_launch"},
    {"MPI_LOCALRANKID", "MPI_LOCALNRANKS", "HYDRA_USER_PROVIDED_BINDING"}, /* MPICH's */
};

static int read_mpi(tern__local *out, bool *found, tern_error *err)
{
    size_t i = 0;
    while (i < TERN__COUNT(mpis) && !(getenv(mpis[i].rank) && getenv(mpis[i].world))) i++;
    *found = i < TERN__COUNT(mpis);
    if (!*found) return TERN_OK;
    out->is_bound = is_bound(mpis[i].bound);
    int status = tern__env_filled_int(mpis[i].world, 1, INT_MAX, 1, &out->world, err);
    return status ? status : tern__env_filled_int(mpis[i].rank, 0, out->world - 1, 0, &out->rank, err);
}

/* ---- srun ---- */

static const long slurm_id_max = UINT32_MAX;
static const long step_max = 0xfffffff0; /* a larger id has a meaning of its own */

int tern__step_find(bool *found, long *id, tern_error *err)
{
    static const char name[] = "SLURM_STEP_ID";
    int status = tern__env_filled(name, err);
    if (!status) status = tern__env_int(name, 0, slurm_id_max, LONG_MAX, id, err);
    *found = getenv(name) && (status || *id <= step_max);
    return status;
}

static int check_there(const char *name, tern_error *err)
{
    if (getenv(name)) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_ENV,
                           "SLURM_STEP_ID=\"%s\" is set but %s is not: srun sets both",
                           getenv("SLURM_STEP_ID"), name);
}

int tern__step_int(const char *name, int low, int high, int *out, tern_error *err)
{
    int status = check_there(name, err);
    return status ? status : tern__env_filled_int(name, low, high, 0, out, err);
}

int tern__job_id(long *id, tern_error *err)
{
    static const char name[] = "SLURM_JOB_ID";
    int status = check_there(name, err);
    if (!status) status = tern__env_filled(name, err);
    return status ? status : tern__env_int(name, 0, slurm_id_max, 0, id, err);
}

int tern__local_of_step(tern__local *out, tern_error *err)
{
    static const char name[] = "SLURM_STEP_TASKS_PER_NODE";
    int node = 0;
    int status = tern__step_int("SLURM_NODEID", 0, INT_MAX, &node, err);
    if (!status) status = tern__step_int("SLURM_LOCALID", 0, INT_MAX, &out->rank, err);
    if (!status) status = check_there(name, err);
    if (status) return status;
    out->world = tern__nodelist_tasks(getenv(name), node);
    out->is_bound = is_bound("SLURM_CPU_BIND_TYPE");
    if (out->world > out->rank) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_ENV,
                           "%s=\"%s\" has no task %d (SLURM_LOCALID) on node %d (SLURM_NODEID)", name,
                           getenv(name), out->rank, node);
}

/* ---- the closest launcher counts, as for the ranks of the world ---- */

int tern__local_read(tern__local *out, tern_error *err)
{
    bool found = false;
    long step;
    *out = (tern__local){.world = 1};
    if (getenv("LOCAL_WORLD_SIZE")) return tern__local_of_run(out, 1 << 20, err);
    int status = read_mpi(out, &found, err);
    if (found || status) return status;
    status = tern__step_find(&found, &step, err);
    return status || !found ? status : tern__local_of_step(out, err);
}
