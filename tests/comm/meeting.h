/* meeting.h - ranks synchronise through shared memory, outside their group. A rank that is slow to leave a
 * collective may learn there of a peer's later failure, so a rank that is going to fail waits here until all
 * have opened the group. */
#ifndef TERN_TESTS_COMM_MEETING_H
#define TERN_TESTS_COMM_MEETING_H

#include "group_fixture.h"

#include <stdatomic.h>
#include <sys/mman.h>

/* The number of arrivals so far. */
static atomic_int *met;

/* Call it before any rank is started. */
static inline int meeting_setup(void **state)
{
    (void)state;
    met = share_memory(sizeof(*met));
    return 0;
}

static inline ranks meeting_run(int world, ranks_body body, void *arg)
{
    atomic_store(met, 0);
    return ranks_run(world, body, arg);
}

static inline ranks meeting_run_threads(int world, ranks_body body, void *arg)
{
    atomic_store(met, 0);
    return ranks_run_threads(world, body, arg);
}

/* Waits until all ranks have called it for the `times`-th time. */
static inline bool all_meet(int world, int times)
{
    int64_t deadline = tern__now_ns() + INT64_C(20000000000);
    atomic_fetch_add(met, 1);
    while (atomic_load(met) < times * world && tern__now_ns() < deadline) usleep(100);
    return atomic_load(met) >= times * world;
}

/* Calls fixture_open, and waits until all ranks have. */
static inline int open_together(fixture *f, int rank, const tern__bootstrap *boot, size_t bytes)
{
    if (fixture_open(f, rank, boot, bytes)) return 1;
    RANK_CHECK(rank, all_meet(boot->world, 1));
    return 0;
}

#endif
