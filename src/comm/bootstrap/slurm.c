/* slurm.c - reads what srun tells the tasks of a step: their number, how many there are, and the nodes.
 *
 * Slurm does not say where the ranks meet. Rank 0's node is the first in the list, and every rank computes
 * the port from the numbers of the job and the step. Steps that run at the same time on one node get
 * different ports, unless their numbers are thousands of jobs apart. If another program has the port, the
 * error says so, and MASTER_PORT or TERN_PORT can choose another one. The ports are below 32768, where the
 * kernel's ephemeral ports begin. */
#include "comm/bootstrap/inner.h"

#include "base/local.h"
#include "base/nodelist.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    port_first = 20000,
    port_count = 12763, /* a prime */
    port_steps = 31,    /* a job's steps beyond this many get the next job's ports */
};

static int read_ranks(tern__bootstrap *out, tern_error *err)
{
    if (tern__step_int("SLURM_STEP_NUM_TASKS", 1, TERN__WORLD_MAX, &out->world, err)) return err->code;
    if (tern__step_int("SLURM_PROCID", 0, INT_MAX, &out->rank, err)) return err->code;
    if (out->rank < out->world) return TERN_OK;
    return tern__error_set(err, tern__boot_func, TERN_E_ENV,
                           "SLURM_PROCID=%d is not below SLURM_STEP_NUM_TASKS=%d", out->rank, out->world);
}

static int read_local(tern__bootstrap *out, tern_error *err)
{
    tern__local local = {.world = 1};
    int status = tern__local_of_step(&local, err);
    out->local_rank = local.rank;
    out->local_world = local.world;
    out->is_placed = true;
    return status;
}

/* A step on one node uses loopback. */
static int read_addr(tern__bootstrap *out, tern_error *err)
{
    static const char name[] = "SLURM_STEP_NODELIST";
    int nodes = 0, unused;
    const char *addr = tern__env("MASTER_ADDR");
    if (tern__env_filled("MASTER_ADDR", err)) return err->code;
    if (tern__step_int("SLURM_STEP_NUM_NODES", 1, INT_MAX, &nodes, err)) return err->code;
    if (!addr && nodes == 1) addr = "127.0.0.1";
    if (addr) return tern__boot_addr(out, "MASTER_ADDR", addr, strlen(addr), err);
    if (!getenv(name)) return tern__step_int(name, 0, 0, &unused, err);
    if (tern__nodelist_first(getenv(name), out->addr, sizeof(out->addr))) return TERN_OK;
    return tern__error_set(err, tern__boot_func, TERN_E_ENV, "%s=\"%s\" is not a list of nodes", name,
                           getenv(name));
}

static int read_port(tern__bootstrap *out, long step, tern_error *err)
{
    long job;
    if (tern__job_id(&job, err)) return err->code;
    int port = port_first + (int)((job * port_steps + step) % port_count);
    if (tern__env_filled_int("MASTER_PORT", 1, 65535, port, &port, err)) return err->code;
    return tern__env_filled_int(TERN__ENV_PORT, 1, 65535, port, &out->port, err);
}

int tern__bootstrap_from_slurm(tern__bootstrap *out, bool *found, tern_error *err)
{
    long step;
    int status = tern__step_find(found, &step, err);
    if (!*found) return status;
    if (!status) status = read_ranks(out, err);
    if (!status) status = read_local(out, err);
    if (!status) status = read_addr(out, err);
    if (!status) status = read_port(out, step, err);
    if (!status) out->source = "SLURM_PROCID";
    return status;
}

/* ---- a process in a job but not in a step ---- */

static bool is_many(const char *name)
{
    const char *value = tern__env(name);
    return value && atoi(value) > 1;
}

void tern__bootstrap_warn_slurm(void)
{
    static atomic_bool was_said;
    const char *name = is_many("SLURM_NTASKS") ? "SLURM_NTASKS" : "SLURM_JOB_NUM_NODES";
    if (!is_many(name) || atomic_exchange(&was_said, true)) return;
    tern__log(
        TERN_LOG_WARN,
        "%s=%s, but this process, which trains alone, was not started by a Slurm step: inside sbatch or "
        "salloc, start it with srun",
        name, getenv(name));
}
