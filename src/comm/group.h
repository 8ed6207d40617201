/* group.h - the internals of a group: bootstrap, control plane, back end, sticky error, and listeners to
 * backward.
 *
 * A group and the groups made from it are a family. They share a control plane and the first error, and a
 * rank that waits in one of them advances the works of all. What they share belongs to the root, the group
 * that was opened, and lives until the last group of the family is closed. The control plane knows only ranks
 * of the root; members.c translates a group's ranks. */
#ifndef TERN_SRC_COMM_GROUP_H
#define TERN_SRC_COMM_GROUP_H

#include "base/trace.h"
#include "comm/bootstrap/bootstrap.h"
#include "comm/meet/control/control.h"

#include <stdatomic.h>
#include <tern/collectives.h>

typedef struct tern__comm_backend tern__comm_backend; /* move/backend.h */

/* What comes from other hosts: a mover's, for the waits of the ranks that it serves. */
typedef struct tern__incoming {
    uint64_t arrived; /* messages that were completed */
    /* Does what can be done now. Never blocks. */
    int (*progress)(struct tern__incoming *incoming, tern_error *err);
    /* True if no message is in flight. */
    bool (*is_quiet)(struct tern__incoming *incoming);
    /* Sleeps until a message may have arrived, or for a short time. Returns false at once if it cannot, or if
     * progress may come from something else. */
    bool (*sleep)(struct tern__incoming *incoming);
    /* Called after a failure: no memory of the caller's is touched from here on. */
    void (*stop)(struct tern__incoming *incoming);
} tern__incoming;

/* What ends a wait before its goal is met (tern_work_wait_for). */
typedef struct tern__wait_limit {
    int64_t began; /* the first wait for the same work: time-outs count from here */
    int64_t until;
    /* True once something else that ends the wait is done; NULL: there is nothing. */
    bool (*is_reached)(const struct tern__wait_limit *limit);
    bool goes_on; /* the caller only waits again: the wait may be part of a deadlock */
} tern__wait_limit;

struct tern_group {
    tern__bootstrap boot;
    tern_group_opts opts;
    tern_group *root;        /* the family's root; the group itself if it was opened */
    tern_group *next;        /* the next one in the root's `subgroups` */
    const tern_group *whole; /* in the group of a host's ranks: the group over hosts; else NULL */
    int *ranks;              /* [world] the members' ranks in the root, owned; NULL in the root */
    uint32_t id;             /* differs between groups that have two ranks in common; 0: root */
    tern_store *store;       /* the root's, as is control; NULL if world is 1 */
    tern__control *control;
    const char *backend_name;            /* the back end that moves the data: "native+gloo" */
    char shown_name[TERN__BACKEND_NAME]; /* the name that users see: "debug+nccl+native+gloo" */
    const tern__comm_backend *backend;
    const tern__comm_backend *second;  /* the one behind NCCL's, or NULL */
    const tern__comm_backend *behind;  /* the one behind NCCL's and debug: it moves host data; or NULL */
    void *state;                       /* the back end's, owned */
    struct tern__progress_hook *hooks; /* of back ends in front, which the movers' hooks do not advance */
    bool reaches_own; /* the back end takes extents of an all_reduce, a reduce or a broadcast that are in
                       * TERN__OWN_MEMORY; the same on all ranks */
    void *channel;    /* the user's own collectives */
    struct tern__staging *staging;   /* their queue; NULL in a group of one */
    struct tern__group_arena *arena; /* of tern_group_mem_alloc; NULL before its first call, on all ranks */
    bool *awaited;                   /* [world] scratch: the ranks that a wait is for */
    int *spins;                      /* before a wait yields; NULL: waits of this group do not spin */
    tern__trace *trace;              /* the root's; NULL: off */
    uint32_t next_owner;             /* the number of the last ddp */

    /* In the root only, for the whole family: */
    tern_group *subgroups;
    int users;              /* groups of the family that are not closed */
    uint32_t next_id;       /* the id of the family's next group */
    tern_error error;       /* sticky: the first failure */
    int pid;                /* the process that opened it */
    const int *mark;        /* points to a 1, which is 0 in a forked child */
    int64_t stop_look_at;   /* when a wait looks for stopped ranks next; 0: no wait has taken long */
    int64_t wait_ends_at;   /* when a wait that ended at its limit is over, unless it goes on; 0: none */
    int64_t stop_warn_at;   /* from when on it says which it has found */
    int64_t late_looked_at; /* when a wait that takes long last came by */
    int64_t absent_warn_at; /* when a wait of an opening says who has not come; INT64_MAX: it has */
    uint64_t stopped;       /* their bits in the shared memory, until the wait succeeds */
    struct tern__presence_row *presence; /* tells the launcher; NULL: there is none */
    const tern__wait_limit *limit;       /* of the wait that runs; NULL: it has none */
    atomic_bool is_woken;                /* by tern_group_wake */
    tern__incoming *incoming;            /* NULL: the family is on one host */
    struct tern__shm *shm;               /* NULL: this rank is alone on its host */
    /* Advances everything that the family has in progress: what a rank does while it waits. */
    int (*progress)(tern_group *group, tern_error *err);
    struct tern__listener *listeners; /* live ddps, in creation order */
};

static inline tern_group *tern__group_root(const tern_group *group)
{
    return group->root;
}

/* Returns the back end that moves host data. */
static inline const tern__comm_backend *tern__group_mover(const tern_group *group)
{
    return group->behind ? group->behind : group->backend;
}

/* tern_group_open with the environment already read. For tests, whose ranks may be threads of one process. */
tern_group *tern__group_open_boot(const tern__bootstrap *boot, const tern_group_opts *opts, tern_error *err);

/* Reads and checks the user's options over the defaults. */
int tern__group_opts_read(tern_group_opts *opts, const tern_group_opts *user, tern_error *err);
int tern__group_opts_check(const tern_group_opts *opts, const char *func, tern_error *err);
/* True until the group's back end is open. A group of a host's ranks opens with the whole one. */
static inline bool tern__group_is_opening(const tern_group *group)
{
    return !(group->whole ? group->whole : group)->staging;
}

/* Opens the back end of a group whose `boot`, `opts`, `root` and `ranks` are set. */
int tern__group_build(tern_group *group, tern_error *err);

/* ---- failure.c ---- */

/* Call before everything else: returns TERN_OK, or the group's sticky error, a peer's death, or E_FORKED in a
 * forked child. */
int tern__group_check(tern_group *group, const char *func, tern_error *err);
/* The same, but looks only at what this rank knows already: a work that was done before a failure stays done.
 */
int tern__group_told(const tern_group *group, const char *func, tern_error *err);
/* Makes `err` the group's sticky error and tells the peers; returns its code. */
int tern__group_fail(tern_group *group, const tern_error *err);

/* ---- call/work.c ---- */

/* Advances everything that the family has in progress, and notices its failure: what a rank does while it
 * waits. */
int tern__family_progress(tern_group *group, tern_error *err);

/* ---- members.c ---- */

/* Writes "rank 1 (host, pid 77)", with the rank in the root. */
void tern__group_describe(const tern_group *group, int rank, char *text, size_t size);
/* True if the rank is stopped by SIGSTOP or a debugger. False if this process cannot see it. */
bool tern__group_is_stopped(const tern_group *group, int rank);
/* Writes "; in the group of ranks 0, 2", or "" for the root. For the end of an error's text. */
#define TERN__GROUP_TEXT 128
void tern__group_text(const tern_group *group, char *text, size_t size);
/* Writes the same without the semicolon. For the end of a name: "barrier (work 5) in the group of ranks 0,
 * 2". */
void tern__group_in_text(const tern_group *group, char *text, size_t size);
/* True if `rank` has closed all groups of the family. */
bool tern__group_has_left(const tern_group *group, int rank);
/* True if `rank` is in this process: this rank itself, or another thread's. */
bool tern__group_is_same_process(const tern_group *group, int rank);
/* Pass descriptors between ranks. A descriptor is identified by its sender, the group and `serial`. */
int tern__group_send_fd(const tern_group *group, int rank, uint32_t serial, int fd, tern_error *err);
bool tern__group_lacks_fd(const tern_group *group, int rank, uint32_t serial, uint64_t sent);
int tern__group_recv_fd(const tern_group *group, int rank, uint32_t serial, double timeout_s, int *fd,
                        tern_error *err);

#endif
