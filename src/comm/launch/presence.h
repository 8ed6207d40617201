/* presence.h - memory that a launcher shares with its ranks: which of them is opening a group, which has one
 * open, and whose group has failed. So the launcher knows that a rank which has exited with 0 is missed, and
 * whether one that has failed is the cause or stopped because of another. */
#ifndef TERN_SRC_COMM_LAUNCH_PRESENCE_H
#define TERN_SRC_COMM_LAUNCH_PRESENCE_H

#include "base/base.h"

#include <stdatomic.h>
#include <sys/types.h>

/* Where a rank finds the memory: the launcher's descriptor in /proc, which a wrapper need not pass on. */
#define TERN__ENV_PRESENCE "TERN_PRESENCE"

/* A row has a cache line for itself. It never grows: a launcher and a library of other releases find each
 * other's rows, and a field that one of them does not know stays 0. */
typedef struct tern__presence_row {
    _Alignas(TERN__LINE) atomic_int begun; /* calls of tern_group_open */
    atomic_int opening;                    /* those that have not returned */
    atomic_int open;                       /* groups */
    atomic_int failure; /* the code of the first failure of a group; TERN_OK: there is none */
} tern__presence_row;
_Static_assert(sizeof(tern__presence_row) == TERN__LINE, "a row's size is the same in every release");

typedef struct tern__presence {
    int fd;
    int count;
    tern__presence_row *rows; /* by local rank */
} tern__presence;

/* ---- in the launcher ---- */

/* E_SYSTEM. */
int tern__presence_open(tern__presence *presence, int ranks, tern_error *err);
void tern__presence_close(tern__presence *presence);
/* For another attempt. */
void tern__presence_reset(const tern__presence *presence);
/* In a forked rank: puts the variable into its environment. Returns 0, or -1 and errno. */
int tern__presence_enter(const tern__presence *presence, pid_t launcher);

/* Has this rank, which has ended, left a group open? */
bool tern__presence_is_open(const tern__presence *presence, int local);
/* Returns how often this rank has called tern_group_open. */
int tern__presence_begun(const tern__presence *presence, int local);
/* Returns a rank that is opening a group, and has called tern_group_open more than `begun` times: it waits
 * for a rank that has ended after so many calls. Or -1. */
int tern__presence_waiter(const tern__presence *presence, int begun);

/* Has `local`, which has ended, never begun to open a group that `other` has begun to open? */
bool tern__presence_lacks(const tern__presence *presence, int local, int other);
/* Has a group of this rank failed first because of another rank (TERN_E_PEER), or by an error of its own? */
bool tern__presence_failed_by_peer(const tern__presence *presence, int local);
bool tern__presence_failed_itself(const tern__presence *presence, int local);

/* ---- in a rank ---- */

/* Returns this rank's row; NULL: its launcher shares none, or not with this process. */
tern__presence_row *tern__presence_own(int local);
/* tern_group_open begins; it ends; the group is closed. `row` may be NULL. */
void tern__presence_begin(tern__presence_row *row);
void tern__presence_end(tern__presence_row *row, bool is_open);
void tern__presence_leave(tern__presence_row *row);
/* A group has failed, or could not be opened; this rank's program is told so now. */
void tern__presence_fail(int code);

#endif
