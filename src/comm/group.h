/* group.h - a group from inside: bootstrap, control plane, back end, sticky error, and who listens to a
 * backward.
 *
 * A group and those made from it are a family: they share the control plane and the first error, and whoever
 * waits in one of them moves the works of all on. What they share is the root's, the group that was opened;
 * it stays until the last of the family is closed. The control plane knows ranks of the root only: members.c
 * is where a group's ranks become those. */
#ifndef TERN_SRC_COMM_GROUP_H
#define TERN_SRC_COMM_GROUP_H

#include "base/trace.h"
#include "comm/backend.h"
#include "comm/bootstrap/bootstrap.h"
#include "comm/control/control.h"

/* What tern_group_mem_alloc gave. */
typedef struct tern__mem {
    struct tern__mem *next;
    char *base;
    size_t bytes;
    uint32_t window;
} tern__mem;

struct tern_group {
    tern__bootstrap boot;
    tern_group_opts opts;
    tern_group *root;        /* of the family; itself if it was opened                         */
    tern_group *next;        /* in the root's `subgroups`                                      */
    const tern_group *whole; /* of the ranks of a host: the group that they are of; else NULL  */
    int *ranks;              /* [world] owned: its ranks in the root; NULL in the root          */
    uint32_t id;             /* unique among the groups that any two ranks have in common; 0: root */
    tern_store *store;       /* the root's, as is control; NULL if it is one rank               */
    tern__control *control;
    char wish[TERN__BACKEND_NAME];       /* of the root: opts.backend, of which the caller's is read      */
    char backend_name[32];               /* of the one that moves the data: "native+gloo" */
    char shown_name[TERN__BACKEND_NAME]; /* as the user sees it: "debug+nccl+native+gloo" */
    const tern__comm_backend *backend;
    const tern__comm_backend *second; /* of NCCL's back end: the one that it stands before */
    const tern__comm_backend *behind; /* of those two: the one that moves the host's data  */
    void *state;                      /* the back end's, owned                    */
    void *channel;                    /* the user's own collectives               */
    struct tern__staging *staging;    /* their queue; NULL in a group of one      */
    void *mailbox;                    /* the back end's; NULL until a message     */
    tern__mem *mems;
    tern__trace *trace;  /* the root's; NULL: off                   */
    uint32_t next_owner; /* numbers handed to ddps                      */

    /* Of the root only: the family's. */
    tern_group *subgroups;
    int users;                        /* groups of it that are not closed            */
    uint32_t next_id;                 /* of the next group made from any of them     */
    tern_error error;                 /* sticky: the first failure                   */
    int pid;                          /* of the process that opened it               */
    const int *mark;                  /* 1, and 0 in a forked child                  */
    struct tern__link *link;          /* messages between hosts; NULL: none needed                         */
    struct tern__native *native;      /* whose lobby the ranks of this host wait in    */
    struct tern__listener *listeners; /* to backward (live ddps), in creation order   */
};

static inline tern_group *tern__group_root(const tern_group *group)
{
    return group->root;
}

/* The one that moves the data. */
static inline const tern__comm_backend *tern__group_mover(const tern_group *group)
{
    return group->behind ? group->behind : group->backend;
}

/* As tern_group_open, with the environment already read: for tests, whose ranks may be threads of one
 * process. */
tern_group *tern__group_open_boot(const tern__bootstrap *boot, const tern_group_opts *opts, tern_error *err);

/* TERN_OK, or the group's sticky error (also E_FORKED in a forked child, and a peer's death): before every
 * call. */
int tern__group_check(tern_group *group, const char *func, tern_error *err);
/* The same of what this rank has been told already: work that was done before a failure still is. */
int tern__group_told(const tern_group *group, const char *func, tern_error *err);
/* Makes `err` the group's sticky error and tells the peers; returns its code. */
int tern__group_fail(tern_group *group, const tern_error *err);
/* What a back end does while a call of its own blocks: moves the family's queued collectives on. */
int tern__group_progress(tern_group *group, tern_error *err);
/* The defaults with what `user` has changed, checked. */
int tern__group_opts_read(tern_group_opts *opts, const tern_group_opts *user, tern_error *err);
int tern__group_opts_check(const tern_group_opts *opts, const char *func, tern_error *err);
/* Opens the back end of a group whose `boot`, `opts`, `root` and `ranks` are there. */
int tern__group_build(tern_group *group, tern_error *err);

/* ---- members.c ---- */

/* "rank 1 (host, pid 77)": its rank in the root. */
void tern__group_describe(const tern_group *group, int rank, char *text, size_t size);
/* By SIGSTOP, or a debugger; false of one that this process does not see. */
bool tern__group_is_stopped(const tern_group *group, int rank);
/* "; in the group of ranks 0, 2", or "" for the root: for the end of an error. */
#define TERN__GROUP_TEXT 128
void tern__group_text(const tern_group *group, char *text, size_t size);
/* The same without the semicolon, for the end of a name: "barrier (work 5) in the group of ranks 0, 2". */
void tern__group_in_text(const tern_group *group, char *text, size_t size);
/* `rank` has closed the root and all that was made from it. */
bool tern__group_has_left(const tern_group *group, int rank);
/* Another rank of this very process, or oneself. */
bool tern__group_is_same_process(const tern_group *group, int rank);
/* Descriptors are known by their sender, the group and `serial`. */
int tern__group_send_fd(const tern_group *group, int rank, uint32_t serial, int fd, tern_error *err);
bool tern__group_lacks_fd(const tern_group *group, int rank, uint32_t serial, uint64_t sent);
int tern__group_recv_fd(const tern_group *group, int rank, uint32_t serial, double timeout_s, int *fd,
                        tern_error *err);

#endif
