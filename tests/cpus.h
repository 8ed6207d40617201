/* cpus.h - the affinity mask of a test's process before OpenMP bound its first thread. */
#ifndef TERN_TESTS_CPUS_H
#define TERN_TESTS_CPUS_H

#include "check.h"

#include <sched.h>

static cpu_set_t cpus_at_start;

__attribute__((no_sanitize("address", "thread", "undefined"))) static void cpus_keep(void)
{
    sched_getaffinity(0, sizeof(cpus_at_start), &cpus_at_start);
}

__attribute__((section(".preinit_array"), used)) static void (*const cpus_keep_first)(void) = cpus_keep;

/* Returns true if thread `id` (0: the calling thread) may use all of these CPUs. */
static inline bool cpus_are_all(pid_t id)
{
    cpu_set_t now;
    return sched_getaffinity(id, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &cpus_at_start);
}

#endif
