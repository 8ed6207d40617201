/* backend.h - the interface of a communication back end: one const struct of functions, listed in
 * registry.c.
 *
 * A back end moves plain buffers. A *window* is memory of the same size on every rank that the back end can
 * reach. A *channel* is an ordered sequence of works: order matters within a channel, never between two. A
 * *work* is one collective under way. Its data are *extents*, pieces of windows; its number is its position
 * in the channel's sequence, counted from 1.
 *
 * All calls come from the group's thread. A call that can fail fills *err and returns a negative status. */
#ifndef TERN_SRC_COMM_MOVE_BACKEND_H
#define TERN_SRC_COMM_MOVE_BACKEND_H

#include "comm/meet/work.h"
#include "device/device.h"

#include <tern/device.h>
#include <tern/p2p.h>

#include <string.h>

/* ---- messages between two ranks ---- */

/* The form of a message: the caller's data, or a string of bytes that is preceded by its length. */
typedef enum tern__form { TERN__FORM_DATA, TERN__FORM_LENGTH, TERN__FORM_BYTES } tern__form;

#define TERN__TOKEN 128 /* bytes */

/* A message that this rank sends or receives. The caller keeps it at one address while it is pending. */
typedef struct tern__transfer {
    bool is_recv;
    tern__form form; /* compared between the two ranks, as are dtype and count */
    int peer;        /* rank in the group; in a receive also TERN_ANY_SOURCE */
    int tag;
    tern_dtype dtype;
    size_t count;
    char *buf;
    char *home; /* the data in a device's memory, of which `buf` is a copy; NULL: `buf` is the data */
    /* Set if a back end in front can move the data itself. `place` identifies the memory and is not 0. If
     * both sides have one and they differ, TERN__TOKEN bytes are sent in place of the data. */
    uint32_t place;
    char *token;
    void (*fetch)(struct tern__transfer *transfer); /* fills `buf`, if the data is sent after all */
    bool is_apart;                                  /* the token was sent, not the data */
    uint64_t ended; /* once done: its number among the group's completed transfers */
    int status;     /* TERN_PENDING until done; E_STATE if its group was closed before */
    int source;     /* the sender, once a receive is done */
    /* The back end's: */
    struct tern__transfer *next;
    uint64_t serial;
    size_t moved; /* bytes */
} tern__transfer;

/* ---- the struct ---- */

typedef struct tern__window_opts {
    /* NULL: new, zeroed memory. Otherwise a page-aligned range of this process, `bytes` a multiple of the
     * page size: address and contents stay, and the peers can reach its pages from now on. A range of a
     * device's memory need not be whole pages. If it is all of the device's memory, the window is always the
     * same one, and the call is collective only at the first time. Extents in it may be at different offsets
     * on each rank: only their counts are compared; in an all_gather or a reduce_scatter each holds all
     * ranks' parts. */
    void *base;
    size_t
        bytes; /* 0, of a sparse window: as much as the machine has memory to fill, which window_open sets */
    bool is_sparse; /* new memory, as address space: without pages until they are committed */
} tern__window_opts;

typedef struct tern__channel_opts {
    int slots; /* works that may be in flight; choose more than a backward posts, so that post never waits */
    bool
        is_separate; /* works in devices' memory have an order of their own, too, as those in host memory do */
    const uint32_t *windows; /* whose data the channel's works will move; a back end may prepare them */
    int window_count;
} tern__channel_opts;

struct tern__comm_backend {
    const char *name;
    bool keeps_parts;      /* supports a post's `kept` */
    bool lands_in_windows; /* results must go to the extents: `out` is never set, and no window of the
                            * caller's is only read */
    bool reaches_devices;  /* has windows over devices' memory */
    size_t carries; /* the extent of an all_reduce, a reduce or a broadcast of at most so many bytes may be in
                     * TERN__OWN_MEMORY */

    /* Opens the state of a group. Blocks until all ranks have called it. May set group->reaches_own, and add
     * to group->hooks. */
    void *(*open)(tern_group *group, tern_error *err);
    void (*close)(void *state);

    /* Opens a window. Collective. */
    int (*window_open)(void *state, tern__window_opts *opts, uint32_t *window, tern_error *err);
    /* Returns a rank's memory as this process sees it; NULL: it cannot. */
    char *(*window_at)(void *state, uint32_t window, int rank);
    /* Unmaps the peers' memory; a caller's `base` keeps its contents. Not collective: the caller makes sure
     * that no work still uses the window. */
    void (*window_close)(void *state, uint32_t window);
    /* Sets whether a part of this rank's own memory in a sparse window has pages: gives it zeroed ones, or
     * returns them to the system, once no work uses them. Whole pages. A rank does so at any time, without
     * its peers. E_MEMORY: the machine has no more. */
    int (*window_commit)(void *state, uint32_t window, size_t offset, size_t bytes, bool has_pages,
                         tern_error *err);

    /* Opens a channel. Collective. */
    void *(*channel_open)(void *state, const tern__channel_opts *opts, tern_error *err);
    void (*channel_close)(void *channel);
    /* Posts a work and sets *seq to its number. While fewer than `slots` works are in flight, it does not
     * wait for peers. */
    int (*post)(void *channel, const tern__post *post, uint64_t *seq, tern_error *err);
    /* Returns TERN_OK if the work is done, TERN_PENDING, or an error. Makes progress, and never blocks. */
    int (*test)(void *channel, uint64_t seq, tern_error *err);
    /* Blocks until `seq` and all works before it are done, or until an error. */
    int (*wait)(void *channel, uint64_t seq, tern_error *err);
    /* Returns the tally of a work that is done; the same on all ranks. Valid until this rank has posted
     * `slots` more works. */
    const tern__tally *(*tally)(void *channel, uint64_t seq);
    /* Notes how far this rank is, by a label's `number` and `detail`: errors of ranks that time out quote
     * it. */
    void (*note)(void *channel, const tern__label *label);

    /* Starts a transfer; it may be done at once. Never blocks. A back end for one rank, which has no peer,
     * has none of these three functions. */
    int (*transfer_start)(void *state, tern__transfer *transfer, tern_error *err);
    /* Blocks until the transfer is done. */
    int (*transfer_wait)(void *state, const tern__transfer *transfer, tern_error *err);
    /* Forgets a transfer. With `if_unmet` it has to be a receive that no message has met, else it may be half
     * done, which is for a group that has failed. Returns false if it is not forgotten. */
    bool (*transfer_drop)(void *state, tern__transfer *transfer, bool if_unmet);
};

/* Opens a window over all memory of a device. */
static inline int tern__window_of(const tern_group *group, const tern_device *device, uint32_t *window,
                                  tern_error *err)
{
    tern__window_opts opts = {.base = device->memory.base, .bytes = device->memory.bytes};
    return group->backend->window_open(group->state, &opts, window, err);
}

/* Returns this rank's own memory in a window. */
static inline char *tern__window_own(const tern_group *group, uint32_t window)
{
    return group->backend->window_at(group->state, window, group->boot.rank);
}

/* Writes a post's table to this rank's memory in the table's window. */
static inline void tern__table_write(const tern__post *post, char *base)
{
    memcpy(base + post->table_offset, post->extents, (size_t)post->extent_count * sizeof(*post->extents));
}

extern const tern__comm_backend tern__comm_native;
extern const tern__comm_backend tern__comm_self;
extern const tern__comm_backend tern__comm_debug; /* in front of the group's `behind` */
extern const tern__comm_backend tern__comm_hosts;
extern const tern__comm_backend tern__comm_nccl; /* in front of the group's `second` */

/* ---- registry.c ---- */

/* The back ends that a user may name: name, kind, the transport that it needs, help. A front stands before
 * a mover: "debug+native". Errors, `tern info` and `tern bench` read these rows. */
#define TERN__COMM_ROWS(ROW)                                                                                 \
    ROW("native", MOVER, "", "the memory that the ranks of one host share")                                  \
    ROW("mpi", MOVER, "mpi", "MPI, also within a host")                                                      \
    ROW("gloo", MOVER, "gloo", "gloo, also within a host")                                                   \
    ROW("native+mpi", MOVER, "mpi", "shared memory within a host, MPI between hosts")                        \
    ROW("native+gloo", MOVER, "gloo", "shared memory within a host, gloo between hosts")                     \
    ROW("nccl", FRONT, "nccl", "NCCL for GPUs' memory")                                                      \
    ROW("debug", FRONT, "", "checks every buffer and writes every call")

typedef enum tern__comm_row_kind { TERN__COMM_MOVER, TERN__COMM_FRONT } tern__comm_row_kind;

typedef struct tern__comm_row {
    const char *name;
    tern__comm_row_kind kind;
    const char *transport; /* "": none */
    const char *help;
} tern__comm_row;

extern const tern__comm_row tern__comm_rows[];
extern const int tern__comm_row_count;

/* Gives the group the back end of boot.choice, with the debug back end in front of it, and NCCL's in front
 * of that, if its name says so. Sets both names. E_UNSUPPORTED: it cannot join the group's hosts. */
int tern__comm_pick(tern_group *group, tern_error *err);
/* Returns E_INVALID if there is no back end of that name. NULL is valid: it stands for any. */
int tern__comm_check(const char *name, const char *func, tern_error *err);

#endif
