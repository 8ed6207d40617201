/* group.h - a group from inside: bootstrap, control plane, back end, sticky error, and who listens to a
 * backward. */
#ifndef TERN_SRC_COMM_GROUP_H
#define TERN_SRC_COMM_GROUP_H

#include "comm/backend.h"
#include "comm/bootstrap.h"
#include "comm/control.h"

struct tern_group {
    tern__bootstrap boot;
    tern_group_opts opts;
    tern__store *store;     /* owned; NULL in a group of one */
    tern__control *control; /* owned; NULL in a group of one */
    const tern__comm_backend *backend;
    void *state;                   /* the back end's, owned         */
    void *channel;                 /* the user's own collectives    */
    struct tern__staging *staging; /* for ordinary memory; made on first use */
    struct tern__mem *mems;        /* what tern_group_mem_alloc gave */
    tern_error error;              /* sticky: the first failure      */
    int pid;                       /* of the process that opened it  */

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

#endif
