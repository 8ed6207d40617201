/* shm.c - sleeping in the memory that a host's ranks share, and what they advance while they wait.
 *
 * No wake-up is lost. A sleeper first adds itself to the sleepers, then reads `wakes`, then looks for work
 * again, and then sleeps unless `wakes` has changed. A rank that stores a word that others may wait for reads
 * the count of sleepers afterwards. These four accesses are sequentially consistent, so either the sleeper
 * sees the new word or the writer sees the sleeper. */
#include "comm/meet/shm.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- sleeping ---- */

void tern__shm_wake(const tern__shm *shm)
{
    if (!tern__shm_has_sleepers(shm)) return;
    atomic_fetch_add(&shm->state->wakes, 1);
    syscall(SYS_futex, &shm->state->wakes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

unsigned tern__shm_listen(const tern__shm *shm)
{
    if (!shm) return 0;
    atomic_fetch_add(&shm->state->sleepers, 1);
    return atomic_load(&shm->state->wakes);
}

void tern__shm_sleep(const tern__shm *shm, unsigned wakes, long ns)
{
    struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    syscall(SYS_futex, &shm->state->wakes, FUTEX_WAIT, wakes, &timeout, NULL, 0);
}

void tern__shm_listened(const tern__shm *shm)
{
    if (shm) atomic_fetch_sub(&shm->state->sleepers, 1);
}

/* ---- progress ---- */

int tern__shm_progress(tern__shm *shm, tern_error *err)
{
    shm->looked = shm->acts;
    return tern__progress_hooks_run(shm->hooks, err);
}

void tern__progress_hook_add(tern__progress_hook **list, tern__progress_hook *hook)
{
    hook->next = *list;
    *list = hook;
}

void tern__progress_hook_remove(tern__progress_hook **list, tern__progress_hook *hook)
{
    while (*list && *list != hook) list = &(*list)->next;
    if (*list) *list = hook->next;
}

bool tern__shm_has_left(const tern__shm_group *of, int rank)
{
    return tern__group_has_left(of->group, rank) || (of->closed && atomic_load(&of->closed[rank].value));
}
