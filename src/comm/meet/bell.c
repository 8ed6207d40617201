/* bell.c - the bell of a lobby, on which its ranks sleep.
 *
 * No wake-up is lost. A sleeper first adds itself to the sleepers, then reads the bell, then looks for work
 * again, and then sleeps unless the bell has changed. A rank that stores a word that others may wait for
 * reads the count of sleepers afterwards. These four accesses are sequentially consistent, so either the
 * sleeper sees the new word or the writer sees the sleeper. */
#include "comm/move/window/native.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void futex_wait(atomic_uint *word, unsigned value, long ns)
{
    struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

void tern__lobby_ring(tern__lobby *lobby)
{
    if (!atomic_load(&lobby->sleepers)) return;
    atomic_fetch_add(&lobby->bell, 1);
    syscall(SYS_futex, &lobby->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

unsigned tern__native_listen(const tern__native *native)
{
    atomic_fetch_add(&native->lobby->sleepers, 1);
    return atomic_load(&native->lobby->bell);
}

void tern__native_sleep(const tern__native *native, unsigned bell, long ns)
{
    futex_wait(&native->lobby->bell, bell, ns);
}

void tern__native_listened(const tern__native *native)
{
    atomic_fetch_sub(&native->lobby->sleepers, 1);
}
