/* shm_open.c - opening the memory that a host's ranks share. */
#include "comm/meet/wait.h"

#include <sched.h>
#include <unistd.h>

/* The control thread calls this after an event. */
static void wake_ranks(void *shm)
{
    tern__shm_wake(shm);
}

/* Adds this rank's CPUs to those of the host's ranks. */
static void publish_cpus(const tern__shm *shm)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set)) return;
    for (int cpu = 0; cpu < TERN__MIN(CPU_SETSIZE, TERN__SHM_CPUS); cpu++)
        if (CPU_ISSET(cpu, &set)) atomic_fetch_or(&shm->state->cpus[cpu / 64], UINT64_C(1) << cpu % 64);
}

static int count_cpus(const tern__shm *shm)
{
    int count = 0;
    for (size_t i = 0; i < TERN__COUNT(shm->state->cpus); i++)
        count += __builtin_popcountll(atomic_load(&shm->state->cpus[i]));
    return count;
}

/* The state counts each rank twice: when it has mapped it, and when it has published its CPUs. */
static int open_state(tern__shm_group *of, tern_error *err)
{
    tern__shm *shm = of->shm;
    const char *func = "tern_group_open";
    size_t world = (size_t)of->world;
    void *state;
    shm->circle.ranks = tern__alloc(world * sizeof(*shm->circle.ranks), func, err);
    shm->circle.turns = tern__alloc(world * sizeof(*shm->circle.turns), func, err);
    shm->circle.known = tern__alloc(world * sizeof(*shm->circle.known), func, err);
    if (!shm->circle.ranks || !shm->circle.turns || !shm->circle.known) return TERN_E_MEMORY;
    int status = tern__shared_open(of, tern__shm_bytes(of->world), &state, err);
    if (status) return status;
    publish_cpus(shm);
    atomic_fetch_add(&shm->state->head.joined, 1);
    tern__shm_wake(shm);
    status = tern__shared_await(of, &shm->state->head, 2 * (uint64_t)of->world, err);
    shm->cpus = count_cpus(shm);
    return status;
}

static void shm_free(tern__shm *shm, const tern__shm_group *of)
{
    if (shm->root->pid == getpid()) tern__control_wake_set(shm->root->control, NULL, NULL);
    tern__shared_close(of, shm->state, tern__shm_bytes(of->world));
    shm->root->shm = NULL;
    tern__free(shm->circle.ranks);
    tern__free(shm->circle.turns);
    tern__free(shm->circle.known);
    tern__free(shm);
}

static int shm_new(tern__shm_group *of, tern_error *err)
{
    tern__shm *shm = tern__alloc(sizeof(*shm), "tern_group_open", err);
    if (!shm) return TERN_E_MEMORY;
    tern_group *root = of->group->root;
    *shm =
        (tern__shm){.root = root, .group = of->group, .rank = of->rank, .world = of->world, .late_s = 0.05};
    of->shm = shm;
    int status = open_state(of, err);
    if (status) {
        shm_free(shm, of);
        of->shm = NULL;
        return status;
    }
    tern__control_wake_set(shm->root->control, wake_ranks, shm);
    return TERN_OK;
}

/* A rank that sleeps in one group must wake for the works of another, so groups share the family's memory.
 * Spinning pays off only if the ranks have a CPU each. */
int tern__shm_open(tern__shm_group *of, tern_group *group, tern_error *err)
{
    *of = (tern__shm_group){
        .group = group, .shm = group->root->shm, .rank = group->boot.rank, .world = group->boot.world};
    tern__group_in_text(group, of->where, sizeof(of->where));
    int status = of->shm || of->world == 1 ? TERN_OK : shm_new(of, err);
    if (!status && of->shm && of->shm->cpus >= of->shm->world) of->spins = TERN__SPINS_MAX;
    return status;
}

void tern__shm_close(tern__shm_group *of)
{
    if (of->shm && of->shm->group == of->group) shm_free(of->shm, of);
    of->shm = NULL;
}
