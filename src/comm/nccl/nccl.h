/* nccl.h - what the files of the NCCL back end share: backend.c (the struct), work.c (a work: its meeting and
 * its part in the device), link.c (a device and its communicator), watch.c (who ends what hangs).
 *
 * NCCL moves what lies in devices' memory, and nothing else; it knows no time-outs, compares nothing, and who
 * waits in it waits for ever. So this back end stands before another one, as the debug back end does. Windows
 * of the host's memory and works on them are the other's, as they come. A work on a device's memory is done
 * twice: the ranks *meet* for it behind (only_meets: they say and compare it, and nobody's memory is
 * touched), and what moves is put into the device's lane of communication at once, behind what the step has
 * written. So kind, dtype, counts, weights and who is a shadow are known as ever, errors name ranks, and the
 * host waits for the others' hosts, never for a device: who waits for a work waits for its meeting, and has
 * the step's lane follow the work.
 *
 * All ranks must put their works into a communicator in one order, where other back ends know an order in
 * each channel only. So the meetings of all channels are of one channel behind, the *order*: two works that
 * two ranks post in different order are a mismatch there, which names them. A communicator takes one GPU a
 * rank; it is opened when the first memory of a device is seen, by all ranks together. */
#ifndef TERN_SRC_COMM_NCCL_NCCL_H
#define TERN_SRC_COMM_NCCL_NCCL_H

#include "comm/group.h"
#include "comm/nccl/plugin.h"
#include "device/backend.h"

#include <pthread.h>

#define TERN__NCCL_MARKS 64
#define TERN__NCCL_SLOTS 512                 /* of the order */
#define TERN__NCCL_AWAY  (UINT32_C(1) << 31) /* in the numbers of windows over devices' memory */

typedef struct tern__nccl tern__nccl;

/* A device of this rank, which is joined with one of each other rank. */
typedef struct tern__nccl_link {
    tern__guest guest;            /* first: a device knows its links by it */
    struct tern__nccl_link *next; /* of the same group */
    tern__nccl *nccl;
    tern_device *device;
    tern__memory memory;
    void *comm;        /* NULL: aborted; under the group's lock */
    tern__mark *ready; /* what the step has written            */
    tern__mark *marks[TERN__NCCL_MARKS];
    int64_t began[TERN__NCCL_MARKS]; /* since when all ranks have posted it; 0: not yet */
    uint64_t launched, passed;       /* of the device's part of works; under the lock */
} tern__nccl_link;

typedef struct tern__nccl_window {
    char *base;
    size_t bytes;
    tern__nccl_link *link; /* NULL: closed                         */
    void *handle;          /* of what is attached; NULL: it is not */
} tern__nccl_window;

/* A work of a channel. */
typedef struct tern__nccl_work {
    tern__nccl_link *link; /* NULL: it is the back end's behind    */
    uint64_t seq;          /* its place in the channel behind      */
    uint64_t launched;     /* its place in the link; 0: not yet    */
    tern__post post;
} tern__nccl_work;

typedef struct tern__nccl_channel {
    struct tern__nccl_channel *next;
    tern__nccl *nccl;
    void *behind;
    uint64_t slots, posted, finished;
    tern__nccl_work *works; /* [slots] */
} tern__nccl_channel;

struct tern__nccl {
    tern_group *group;
    const tern__comm_backend *behind;
    void *state;
    const tern__nccl_plugin *plugin;
    void *order;
    tern__move *nothing; /* [world] */
    tern__nccl_window *windows;
    uint32_t window_count;
    tern__nccl_channel *channels;
    tern__nccl_link *links;
    tern__nccl_work *held; /* a broadcast whose root is known when the ranks have met */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t watch;
    bool is_watched, stops;
};

/* ---- work.c ---- */

/* Posts the meeting, and puts the work into the device's lane, or holds it until the ranks have met. */
int tern__nccl_work_post(tern__nccl_work *work, tern__nccl *nccl, tern__nccl_link *link,
                         const tern__post *post, tern_error *err);
/* Once the ranks have met: what the step does from here on comes after the work. */
int tern__nccl_work_finish(tern__nccl_work *work, tern__nccl *nccl, tern_error *err);

/* ---- link.c ---- */

/* The device's, opened with the first call, which is collective. E_UNSUPPORTED: two ranks have one GPU. */
tern__nccl_link *tern__nccl_link_of(tern__nccl *nccl, tern_device *device, tern_error *err);
void tern__nccl_link_close(tern__nccl_link *link);
/* TERN_OK: the device is done with all that was ever asked of the communicator. */
int tern__nccl_link_drain(const tern__nccl_link *link);
/* What each rank has to say: `each` bytes at its place of `all`, which are known of all ranks then. */
int tern__nccl_tell(tern__nccl *nccl, void *all, size_t each, tern_error *err);
/* Until what was asked of the communicator is under way in its lane: for the first ones, until all ranks have
 * asked. Moves on what others may wait for. */
int tern__nccl_link_settle(tern__nccl_link *link, int status, const char *what, tern_error *err);
/* Under the lock. */
void tern__nccl_link_abort(tern__nccl_link *link);

/* ---- attach.c ---- */

/* Collective. Memory that cannot be attached is no error. */
int tern__nccl_attach(tern__nccl_window *window, tern_error *err);
/* Waits until the device is done with it; NCCL gives up for itself what a failure leaves. */
void tern__nccl_detach(tern__nccl_window *window);

/* ---- watch.c ---- */

int tern__nccl_watch(tern__nccl *nccl, tern_error *err);
void tern__nccl_unwatch(tern__nccl *nccl);

#endif
