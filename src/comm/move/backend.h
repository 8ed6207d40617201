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

#include <tern/device.h>
#include <tern/p2p.h>

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
    uint64_t ended; /* once done: its number among the mailbox's completed transfers */
    int status;     /* TERN_PENDING until done; E_STATE if its mailbox was closed before */
    int source;     /* the sender, once a receive is done */
    /* The back end's: */
    struct tern__transfer *next;
    uint64_t serial;
    size_t moved; /* bytes */
} tern__transfer;

/* ---- the struct ---- */

struct tern__comm_backend {
    const char *name;
    bool keeps_parts;      /* supports a post's `kept` */
    bool lands_in_windows; /* results must go to the extents: `out` is never set, and no window of the
                            * caller's is only read */

    /* Opens the state of a group. Blocks until all ranks have called it. */
    void *(*open)(tern_group *group, tern_error *err);
    void (*close)(void *state);

    /* Opens a window. Collective. If `base` is NULL it is new, zeroed memory. Otherwise `base` is a
     * page-aligned range of this process, `bytes` a multiple of the page size: address and contents stay,
     * and the peers can reach its pages from now on. */
    int (*window_open)(void *state, void *base, size_t bytes, uint32_t *window, tern_error *err);
    /* Returns a window over all memory of a device. Collective at the first call for a device. Extents in
     * it may be at different offsets on each rank: only their counts are compared; in an all_gather or a
     * reduce_scatter each holds all ranks' parts. Only back ends that have this function take a `base` in a
     * device's memory, and it need not be whole pages. NULL: the back end cannot reach devices' memory. */
    int (*window_of)(void *state, tern_device *device, uint32_t *window, tern_error *err);
    void *(*window_base)(void *state, uint32_t window);
    /* Returns a rank's memory as this process sees it. */
    char *(*window_peer)(void *state, uint32_t window, int rank);
    /* Unmaps the peers' memory; a caller's `base` keeps its contents. Not collective: the caller makes sure
     * that no work still uses the window. */
    void (*window_close)(void *state, uint32_t window);
    /* True if extents of an all_reduce, a reduce or a broadcast may be in TERN__OWN_MEMORY; the same on all
     * ranks. NULL: never. */
    bool (*reach_own)(void *state);

    /* Opens a channel. Collective. `slots` works may be in flight; choose more than a backward posts, so
     * that post never waits. */
    void *(*channel_open)(void *state, int slots, tern_error *err);
    /* Gives the channel an order of its own for works in devices' memory, as every channel has for works in
     * host memory. Collective, before its first work. NULL: every channel has one. */
    int (*channel_part)(void *channel, tern_error *err);
    /* Prepares a window whose data this channel's works will move. Collective; a second call for the same
     * window does nothing. NULL: no preparation is needed. */
    int (*channel_attach)(void *channel, uint32_t window, tern_error *err);
    void (*channel_close)(void *channel);

    /* Posts a work and sets *seq to its number. While fewer than `slots` works are in flight, it does not
     * wait for peers. */
    int (*post)(void *channel, const tern__post *post, uint64_t *seq, tern_error *err);
    /* Does what can be done now, for works of any rank. Never blocks. Returns TERN_OK or an error. */
    int (*progress)(void *channel, tern_error *err);
    /* Advances works that wait for other ranks, while this rank waits in the back end behind. Never blocks.
     * NULL: there is nothing to advance. */
    int (*advance)(void *state, tern_error *err);
    /* Returns TERN_OK if the work is done, TERN_PENDING, or an error. Makes progress, and never blocks. */
    int (*test)(void *channel, uint64_t seq, tern_error *err);
    /* Blocks until `seq` and all works before it are done, or until an error. */
    int (*wait)(void *channel, uint64_t seq, tern_error *err);
    /* Notes how far this rank is, by a label's `number` and `detail`: errors of ranks that time out quote
     * it. */
    void (*note)(void *channel, const tern__label *label);
    /* Returns the tally of a work that is done; the same on all ranks. Valid until this rank has posted
     * `slots` more works. */
    const tern__tally *(*tally)(void *channel, uint64_t seq);

    /* Opens the mailbox of a rank's messages in one group, at the first message; not collective. A back end
     * for one rank, which has no peer, has none of these six functions. */
    void *(*mailbox_open)(void *state, tern_error *err);
    /* Ends pending transfers with E_STATE, and tells the peers. */
    void (*mailbox_close)(void *mailbox);
    /* Starts a transfer; it may be done at once. Never blocks. */
    int (*start)(void *mailbox, tern__transfer *transfer, tern_error *err);
    /* Advances messages, and works of channels. Never blocks. */
    int (*carry)(void *mailbox, tern_error *err);
    /* Blocks until the transfer is done. */
    int (*await)(void *mailbox, const tern__transfer *transfer, tern_error *err);
    /* Forgets a transfer, which may be half done. Only after a failure of the group. */
    void (*drop)(void *mailbox, tern__transfer *transfer);
};

extern const tern__comm_backend tern__comm_native;
extern const tern__comm_backend tern__comm_self;
extern const tern__comm_backend tern__comm_debug; /* in front of the group's `behind` */
extern const tern__comm_backend tern__comm_hosts;
extern const tern__comm_backend tern__comm_nccl; /* in front of the group's `second` */

/* ---- registry.c ---- */

/* Gives the group the back end of boot.choice, with the debug back end in front of it, and NCCL's in front
 * of that, if its name says so. Sets both names. E_UNSUPPORTED: it cannot join the group's hosts. */
int tern__comm_pick(tern_group *group, tern_error *err);
/* Returns E_INVALID if there is no back end of that name. NULL is valid: it stands for any. */
int tern__comm_check(const char *name, const char *func, tern_error *err);

#endif
