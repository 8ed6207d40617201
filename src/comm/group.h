/* group.h - a group from inside: bootstrap, control plane, back end, sticky error, and who listens to a
 * backward. */
#ifndef TERN_SRC_COMM_GROUP_H
#define TERN_SRC_COMM_GROUP_H

#include "comm/backend.h"
#include "comm/bootstrap.h"
#include "comm/control.h"

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
    tern__store *store;     /* owned; NULL in a group of one */
    tern__control *control; /* owned; NULL in a group of one */
    const tern__comm_backend *backend;
    void *state;                   /* the back end's, owned                    */
    void *channel;                 /* the user's own collectives               */
    struct tern__staging *staging; /* their queue; NULL in a group of one      */
    tern__mem *mems;
    tern_error error; /* sticky: the first failure                */
    int pid;          /* of the process that opened it            */
    const int *mark;  /* 1, and 0 in a forked child               */

    /* Backward listeners (live ddps), in creation order; opaque here, defined in autograd. */
    void *listeners;
    uint32_t next_owner; /* numbers handed to ddps         */
};

/* As tern_group_open, with the environment already read: for tests, whose ranks may be threads of one
 * process. */
tern_group *tern__group_open_boot(const tern__bootstrap *boot, const tern_group_opts *opts, tern_error *err);

/* TERN_OK, or the group's sticky error (also E_FORKED in a forked child, and a peer's death): before every
 * call. */
int tern__group_check(tern_group *group, const char *func, tern_error *err);
/* Makes `err` the group's sticky error and tells the peers; returns its code. */
int tern__group_fail(tern_group *group, const tern_error *err);
/* What a back end does for the group while a call of its own blocks: moves the queued collectives on. */
int tern__group_progress(tern_group *group, tern_error *err);

#endif
