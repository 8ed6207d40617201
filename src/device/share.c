/* The cores that this process may use, and its share of them beside the other ranks of the host. */
#include "device/device.h"

#include "base/local.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/* Whole cores that the cgroup's CPU quota allows, or `fallback` without one. */
static int quota_cores(int fallback)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!file) return fallback;
    long quota, period;
    int fields = fscanf(file, "%ld %ld", &quota, &period);
    fclose(file);
    if (fields != 2 || quota <= 0 || period <= 0) return fallback;
    return (int)TERN__MAX(1, TERN__MIN((long)fallback, quota / period));
}

int tern__device_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set)) return 1;
    return quota_cores(CPU_COUNT(&set));
}

/* ---- the other ranks ---- */

static atomic_int sharer, sharers; /* of these cores, and of how many; 0: no group has met yet */

void tern__device_share_among(int rank, int ranks)
{
    atomic_store(&sharer, rank);
    atomic_store(&sharers, ranks);
}

static int read_ranks(tern__local *local, tern_error *err)
{
    *local = (tern__local){.rank = atomic_load(&sharer), .world = atomic_load(&sharers)};
    return local->world ? TERN_OK : tern__local_read(local, err);
}

/* Who shares the cores that a launcher has chosen, as those of a socket, is not known before all have met:
 * until then no rank takes more than an even part of the machine. */
static int part_of(int cores, const tern__local *local)
{
    if (!local->is_bound) return cores / local->world;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return (int)TERN__MIN((long)cores, (online + local->world - 1) / local->world);
}

int tern__device_share(int *first, int *count, tern_error *err)
{
    tern__local local;
    int status = read_ranks(&local, err);
    if (status) return status;
    int cores = tern__device_cores();
    *count = TERN__MAX(1, part_of(cores, &local));
    *first = (int)((long)local.rank * *count % cores);
    return TERN_OK;
}
