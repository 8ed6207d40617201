/* presence.c - the memory in which ranks tell their launcher of their groups. */
#include "comm/launch/presence.h"

#include "comm/sys.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- in the launcher ---- */

static size_t rows_size(int ranks)
{
    return (size_t)ranks * sizeof(tern__presence_row);
}

int tern__presence_open(tern__presence *presence, int ranks, tern_error *err)
{
    *presence = (tern__presence){.count = ranks, .fd = memfd_create("presence", MFD_CLOEXEC)};
    if (presence->fd >= 0 && ftruncate(presence->fd, (off_t)rows_size(ranks)) == 0) {
        void *rows = mmap(NULL, rows_size(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, presence->fd, 0);
        presence->rows = rows == MAP_FAILED ? NULL : rows;
    }
    if (presence->rows) return TERN_OK;
    return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot share memory with the ranks");
}

void tern__presence_close(tern__presence *presence)
{
    if (presence->rows) munmap(presence->rows, rows_size(presence->count));
    presence->rows = NULL;
    tern__close(&presence->fd);
}

void tern__presence_reset(const tern__presence *presence)
{
    for (int i = 0; i < presence->count; i++) {
        tern__presence_row *row = &presence->rows[i];
        atomic_store(&row->begun, 0);
        atomic_store(&row->opening, 0);
        atomic_store(&row->open, 0);
        atomic_store(&row->failure, TERN_OK);
    }
}

int tern__presence_enter(const tern__presence *presence, pid_t launcher)
{
    char path[48];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)launcher, presence->fd);
    return setenv(TERN__ENV_PRESENCE, path, 1);
}

bool tern__presence_is_open(const tern__presence *presence, int local)
{
    return atomic_load(&presence->rows[local].open) > 0;
}

int tern__presence_begun(const tern__presence *presence, int local)
{
    return atomic_load(&presence->rows[local].begun);
}

bool tern__presence_lacks(const tern__presence *presence, int local, int other)
{
    return tern__presence_begun(presence, local) < tern__presence_begun(presence, other);
}

int tern__presence_waiter(const tern__presence *presence, int begun)
{
    for (int i = 0; i < presence->count; i++)
        if (atomic_load(&presence->rows[i].opening) && tern__presence_begun(presence, i) > begun) return i;
    return -1;
}

bool tern__presence_failed_by_peer(const tern__presence *presence, int local)
{
    return atomic_load(&presence->rows[local].failure) == TERN_E_PEER;
}

bool tern__presence_failed_itself(const tern__presence *presence, int local)
{
    int code = atomic_load(&presence->rows[local].failure);
    return code && code != TERN_E_PEER;
}

/* ---- in a rank ---- */

/* The memory stays mapped: groups of several threads may use it. */
tern__presence_row *tern__presence_own(int local)
{
    static _Atomic(tern__presence_row *) rows;
    static atomic_int count;
    struct stat at;
    const char *path = tern__env(TERN__ENV_PRESENCE);
    if (!atomic_load(&rows) && path) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &at) == 0 && at.st_size > 0 && at.st_size < INT_MAX) {
            void *map = mmap(NULL, (size_t)at.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            atomic_store(&count, (int)((size_t)at.st_size / sizeof(tern__presence_row)));
            if (map != MAP_FAILED) atomic_store(&rows, map);
        }
        tern__close(&fd);
    }
    return atomic_load(&rows) && local >= 0 && local < atomic_load(&count) ? atomic_load(&rows) + local
                                                                           : NULL;
}

void tern__presence_begin(tern__presence_row *row)
{
    if (!row) return;
    atomic_fetch_add(&row->begun, 1);
    atomic_fetch_add(&row->opening, 1);
}

void tern__presence_end(tern__presence_row *row, bool is_open)
{
    if (!row) return;
    if (is_open) atomic_fetch_add(&row->open, 1);
    atomic_fetch_sub(&row->opening, 1);
}

void tern__presence_leave(tern__presence_row *row)
{
    if (row) atomic_fetch_sub(&row->open, 1);
}

/* Groups that the program opens with a rank of its own, such as torch_tern's, know no local rank. */
void tern__presence_fail(int code)
{
    int local, none = TERN_OK;
    if (tern__env_filled_int("LOCAL_RANK", 0, INT_MAX, -1, &local, NULL)) return;
    tern__presence_row *row = tern__presence_own(local);
    if (row) atomic_compare_exchange_strong(&row->failure, &none, code);
}
