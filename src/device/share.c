/* share.c - the cores that this process may use, and its share of them among the ranks of the host. */
#include "device/device.h"

#include "base/cores.h"
#include "base/local.h"

#include <stdatomic.h>
#include <unistd.h>

static int affinity_cores(void)
{
    cpu_set_t set; /* too small for a kernel of more than 1024 CPUs */
    return tern__cores_get(&set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
}

int tern__device_cores(void)
{
    int cores = affinity_cores(), quota = tern__device_quota();
    return TERN__MIN(cores, quota);
}

/* ---- the share ---- */

/* Set by tern__device_share_among; sharers is 0 before. All ranks of the host (`neighbours`) share the quota,
 * whichever cores they use. */
static atomic_int sharer, sharers, neighbours;

void tern__device_share_among(int rank, int ranks, int on_host)
{
    atomic_store(&sharer, rank);
    atomic_store(&neighbours, on_host);
    atomic_store(&sharers, ranks);
}

/* Which ranks share the cores that a launcher has bound this one to, for example a socket, is unknown
 * until all have met. Until then no rank takes more than an even part of the machine. */
static int share_part_of(int cores, const tern__local *local)
{
    if (!local->is_bound) return cores / local->world;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return (int)TERN__MIN((long)cores, (online + local->world - 1) / local->world);
}

static int read_share(int cores, int *place, int *part, int *on_host, tern_error *err)
{
    tern__local local;
    int among = atomic_load(&sharers), status = among ? TERN_OK : tern__local_read(&local, err);
    if (status) return status;
    *place = among ? atomic_load(&sharer) : local.rank;
    *part = among ? cores / among : share_part_of(cores, &local);
    *on_host = among ? atomic_load(&neighbours) : local.world;
    return TERN_OK;
}

/* Reads the cores and the quota once, because somebody may change them meanwhile. */
int tern__device_share(int *first, int *count, tern_error *err)
{
    int place, part, on_host, cores = affinity_cores(), quota = tern__device_quota();
    int status = read_share(cores, &place, &part, &on_host, err);
    if (status) return status;
    *count = TERN__MAX(1, TERN__MIN(part, quota / on_host));
    *first = place % (TERN__MIN(cores, quota) / *count) * *count;
    return TERN_OK;
}

/* The narrower limit: the cores among the ranks that use them, or the quota among those of the host. */
int tern_device_cores(int *ranks)
{
    int cores = affinity_cores(), quota = tern__device_quota();
    int among = TERN__MAX(1, atomic_load(&sharers)), on_host = TERN__MAX(1, atomic_load(&neighbours));
    bool is_quota = (double)quota / on_host < (double)cores / among;
    if (ranks) *ranks = is_quota ? on_host : among;
    return is_quota ? quota : cores;
}
