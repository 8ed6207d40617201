/* nccl.h - what the files of the NCCL back end share: backend.c (the struct), work.c (a work: its meeting and
 * its part on the device), device.c (a device of this rank), comm.c (a communicator), attach.c (registered
 * memory), mailbox.c (messages between two ranks), wait.c (a host's waits), watch.c (the thread that ends
 * what hangs).
 *
 * NCCL only moves device memory. It has no time-outs, compares nothing, and a rank that waits in it waits
 * forever. So this back end wraps another one, the back end *behind* it, as the debug back end does. Windows
 * of host memory and works on them are passed on unchanged. A work on device memory has two parts. The ranks
 * *meet* for it through the back end behind (only_meets): they state and compare the work, but no memory is
 * touched. The transfer itself is enqueued at once in a stream of the device, after what the step has
 * written. So kind, dtype, counts, weights and shadows are checked as in any other back end, and errors name
 * ranks. The host waits for other hosts, never for a device: waiting for a work means waiting for its meeting
 * and making the step's stream wait for the work's event.
 *
 * All ranks must enqueue their works in a communicator in the same order, while other back ends require an
 * order within a channel only. So the meetings of all channels use one channel of the back end behind, the
 * *order*: if two ranks post two works in a different order, that channel reports a mismatch and names them.
 * A channel that keeps an order of its own (channel_part) has its own communicator, its own stream of the
 * device, and its own channel behind for the meetings. A communicator has one GPU per rank. All ranks open a
 * device's first communicator together, when memory of the device is first seen. */
#ifndef TERN_SRC_COMM_MOVE_NCCL_NCCL_H
#define TERN_SRC_COMM_MOVE_NCCL_NCCL_H

#include "comm/meet/failure.h"
#include "comm/meet/meeting.h"
#include "comm/move/backend.h"
#include "comm/move/nccl/plugin.h"
#include "device/backend.h"

#include <pthread.h>

#define TERN__NCCL_SLOTS  512                 /* of the order's channel */
#define TERN__NCCL_EVENTS TERN__NCCL_SLOTS    /* a work keeps its event until as many more are launched */
#define TERN__NCCL_AWAY   (UINT32_C(1) << 31) /* set in the numbers of windows over device memory */

typedef struct tern__nccl tern__nccl;

typedef struct tern__nccl_device tern__nccl_device;
typedef struct tern__nccl_work tern__nccl_work;
typedef struct tern__nccl_channel tern__nccl_channel;

/* A communicator of NCCL's with its stream and its queue: one order of works. A device's first communicator
 * serves all channels that have none of their own. For messages there is one for each direction between two
 * ranks. */
typedef struct tern__nccl_comm {
    struct tern__nccl_comm *next; /* of the same device, by number */
    tern__nccl_device *gpu;
    uint64_t number;                   /* from 1 on                                              */
    const tern__nccl_channel *channel; /* its owner; NULL: it is the first one, or not owned     */
    void *order;                       /* the channel behind in which its works meet             */
    tern__device_stream stream;
    void *handle;                                  /* NCCL's communicator; NULL: aborted; under nccl->lock */
    tern__device_event *ready;                     /* recorded in the step's stream before a work          */
    tern__device_event *events[TERN__NCCL_EVENTS]; /* after each of the latest works; made when needed */
    int64_t began[TERN__NCCL_EVENTS]; /* when all ranks had posted the work; 0: they have not    */
    uint64_t launched, passed;        /* works launched, and done on the device; under nccl->lock */
    int peer;                         /* messages: the rank that this one sends to or receives from */
    bool is_recv;
    char id[TERN__NCCL_ID];
    tern__nccl_work *first, *last; /* the queue of works that NCCL has not been given        */
    tern__nccl_work *asked;        /* given to NCCL, which has not enqueued it in the stream */
    bool is_pending;               /* NCCL is still busy with its latest call                */
    bool is_final;                 /* finalized: it takes no more works                      */
    void *given_up;                /* the handle while it is aborted                         */
    struct tern__nccl_comm *taken; /* the next one that is aborted together with it          */
} tern__nccl_comm;

/* A device of this rank, which has communicators with a device of each other rank. */
struct tern__nccl_device {
    tern__close_listener listener;  /* first: on_close casts it back */
    struct tern__nccl_device *next; /* of the same group */
    tern__nccl *nccl;
    tern_device *device;
    tern__memory memory;
    tern__nccl_comm *comms; /* by number; under the lock */
    bool ends;              /* it takes no more works */
    void **ended;           /* [ended_count] finalized handles that wait for their peers to be destroyed */
    int ended_count;
    pthread_t reaper; /* destroys them */
    const tern__nccl_plugin *plugin;
};

typedef struct tern__nccl_window {
    char *base;
    size_t bytes;
    tern__nccl_device *gpu; /* NULL: closed                          */
    tern__nccl_comm *comm;  /* the communicator it was attached to  */
    void *handle;           /* NCCL's registration; NULL: none      */
} tern__nccl_window;

struct tern__nccl_work {
    tern__nccl_comm *comm;       /* NULL: the work belongs to the back end behind, or is_ended */
    bool is_ended;               /* its communicator went with its device            */
    void *order;                 /* a channel's work: the channel behind in which it was posted */
    uint64_t seq;                /* its number in the channel behind                 */
    uint64_t launched;           /* its number in the communicator; 0: not launched  */
    bool is_queued;              /* it will be launched                              */
    bool is_held;                /* it is launched after the ranks have met for it   */
    double divisor;              /* of a mean, assumed before the ranks have met     */
    const tern__nccl_call *call; /* a message's only call; NULL: derived from `post` */
    tern__nccl_work *next;       /* in the communicator's queue                      */
    tern__post post;
};

struct tern__nccl_channel {
    struct tern__nccl_channel *next;
    tern__nccl *nccl;
    void *behind;
    uint64_t slots, posted, finished;
    tern__nccl_work *works; /* [slots] */
};

struct tern__nccl {
    tern__progress_hook hook; /* first: its function casts it back */
    tern_group *group;
    const tern__comm_backend *behind;
    void *state;
    const tern__nccl_plugin *plugin;
    void *order;
    tern__move *nothing; /* [world] empty moves, for meetings         */
    tern__nccl_window *windows;
    uint32_t window_count;
    tern__nccl_channel *channels;
    tern__nccl_device *devices;
    tern__nccl_device *mail_device; /* of messages: the first device that sent or received one, or NULL */
    struct tern__nccl_mailbox *mailbox;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t watch;
    bool is_watched, stops;
    int aborts; /* in progress; under the lock */
};

/* ---- backend.c ---- */

/* Advances all queues and messages; never blocks. */
int tern__nccl_progress(tern__progress_hook *nccl, tern_error *err);

/* ---- work.c ---- */

/* Posts the meeting, and appends the work to the communicator's queue. */
int tern__nccl_work_post(tern__nccl_work *work, tern__nccl_comm *comm, const tern__post *post,
                         tern_error *err);
/* Launches the works at the head of the queue that can be launched; never blocks. */
int tern__nccl_comm_advance(tern__nccl_comm *comm, tern_error *err);
/* Removes the works of a channel that is closed. The step's stream waits for those that were launched. */
void tern__nccl_comm_leave(tern__nccl_comm *comm, const tern__nccl_channel *channel);
/* Called once the ranks have met. TERN_OK: the work is launched. Otherwise waits, or returns TERN_PENDING
 * without `waits`. */
int tern__nccl_work_settle(tern__nccl_work *work, bool waits, tern_error *err);
/* Makes the step's stream wait for the work, and finishes a mean. */
int tern__nccl_work_finish(tern__nccl_work *work, tern_error *err);
/* Append a work to its communicator's queue, and remove it. */
int tern__nccl_work_launch(tern__nccl_work *work, tern_error *err);
void tern__nccl_work_drop(tern__nccl_work *work);

/* ---- device.c ---- */

/* Returns the group's entry for the device. The first call for a device opens it and is collective.
 * E_UNSUPPORTED: two ranks use the same GPU. */
tern__nccl_device *tern__nccl_device_of(tern__nccl *nccl, tern_device *device, tern_error *err);
/* Closes all devices of the group. */
void tern__nccl_devices_close(tern__nccl *nccl);
/* Returns the device for messages, opening it if there is none; not collective. NULL: messages use another
 * device already. */
tern__nccl_device *tern__nccl_mail_device_of(tern__nccl *nccl, tern_device *device);
/* Iterate over all devices, mail_device last. */
static inline tern__nccl_device *tern__nccl_device_first(const tern__nccl *nccl)
{
    return nccl->devices ? nccl->devices : nccl->mail_device;
}
static inline tern__nccl_device *tern__nccl_device_next(const tern__nccl *nccl, const tern__nccl_device *gpu)
{
    if (gpu->next) return gpu->next;
    return gpu == nccl->mail_device ? NULL : nccl->mail_device;
}
/* Collective: gives the channel a communicator of its own, a new one or one whose channel was closed. */
int tern__nccl_device_part(tern__nccl_device *gpu, const tern__nccl_channel *channel, tern_error *err);
/* Returns the communicator of the channel's works. */
tern__nccl_comm *tern__nccl_comm_of(const tern__nccl_device *gpu, const tern__nccl_channel *channel);

/* Returns the only rank that the communicator reaches, for messages; -1: it reaches all ranks. */
static inline int tern__nccl_comm_peer(const tern__nccl_comm *comm)
{
    return comm->gpu == comm->gpu->nccl->mail_device ? comm->peer : -1;
}

/* ---- comm.c ---- */

/* Appends a communicator to the device's list, without a handle until it is opened. */
tern__nccl_comm *tern__nccl_comm_new(tern__nccl_device *gpu, tern_error *err);
int tern__nccl_comm_open(tern__nccl_comm *comm, const char id[TERN__NCCL_ID], tern_error *err);
/* Begins to open it, without waiting for the other ranks. */
int tern__nccl_comm_begin(tern__nccl_comm *comm, int rank, int world, const char id[TERN__NCCL_ID],
                          tern_error *err);
/* Begins to finalize it, after the device has done its works. */
void tern__nccl_comm_finalize(tern__nccl_comm *comm);
/* Frees it. Returns the handle if it was finalized and remains to be destroyed; else NULL. */
void *tern__nccl_comm_free(tern__nccl_comm *comm);
/* Whether it has not been aborted. */
bool tern__nccl_comm_is_open(const tern__nccl_comm *comm);
/* Waits until the device has done all its works. */
int tern__nccl_comm_drain(const tern__nccl_comm *comm);
/* Whether NCCL has enqueued its latest call in the stream. For the first works that takes until all ranks
 * have made the call. TERN_OK, TERN_PENDING or an error. */
int tern__nccl_comm_test(tern__nccl_comm *comm, tern_error *err);
/* Waits until it has; `what` as in tern__nccl_goal. */
int tern__nccl_comm_await(tern__nccl_comm *comm, const char *what, tern_error *err);
/* Aborts all communicators. Called with nccl->lock held; releases it while NCCL aborts. */
void tern__nccl_abort(tern__nccl *nccl);
/* The same if the group has failed. Waits until no abort is in progress. */
void tern__nccl_abort_failed(tern__nccl *nccl);

/* Gathers `each` bytes of every rank into `all`, which holds this rank's at its place. */
int tern__nccl_tell(tern__nccl *nccl, void *all, size_t each, tern_error *err);
/* Sets and returns E_STATE: the device of a work or a message is being closed. */
int tern__nccl_fail_ended(tern_error *err);

/* ---- wait.c ---- */

/* What a host waits for in NCCL. */
typedef struct tern__nccl_goal {
    int (*is_over)(void *of, tern_error *err); /* returns TERN_OK, TERN_PENDING or an error */
    void *of;
    const char *what; /* "to begin all_reduce of 8 f32, sum (work 2)", for peers and errors */
    int peer;         /* the rank that it waits for, which `what` names; -1: all other ranks */
} tern__nccl_goal;

/* Waits until the goal is over. Meanwhile it advances what other ranks may wait for, and once it has waited
 * for long it tells them. E_TIMEOUT says what the awaited ranks do. */
int tern__nccl_await(const tern__nccl *nccl, const tern__nccl_goal *goal, tern_error *err);
/* Tells the peers that this rank waits for the goal, and that it has succeeded; see tern__wait_say. */
void tern__nccl_say(const tern__nccl *nccl, const tern__nccl_goal *goal);
void tern__nccl_forget(const tern__nccl *nccl);

/* ---- attach.c ---- */

/* Collective: registers the window's memory with the communicator that moves it. Memory that cannot be
 * registered is no error. */
int tern__nccl_attach(tern__nccl_window *window, tern__nccl_comm *comm, tern_error *err);
/* Waits until the device is done with the window. After a failure the communicator drops it. */
void tern__nccl_detach(tern__nccl_window *window);

/* ---- mailbox.c ---- */

/* See tern__comm_backend; the first transfer opens the mailbox. */
int tern__nccl_transfer_start(void *nccl, tern__transfer *transfer, tern_error *err);
int tern__nccl_transfer_wait(void *nccl, const tern__transfer *transfer, tern_error *err);
bool tern__nccl_transfer_drop(void *nccl, tern__transfer *transfer, bool if_unmet);
/* No transfer is pending. NULL does nothing. */
void tern__nccl_mailbox_close(struct tern__nccl_mailbox *mailbox);
/* Launches the messages whose ranks have met and finishes those that the device has moved; never blocks. The
 * mailbox may be NULL. */
int tern__nccl_mailbox_advance(struct tern__nccl_mailbox *mailbox, tern_error *err);
/* nccl->mail_device is being closed. The mailbox may be NULL. */
void tern__nccl_mailbox_leave(struct tern__nccl_mailbox *mailbox);

/* ---- watch.c ---- */

int tern__nccl_watch(tern__nccl *nccl, tern_error *err);
void tern__nccl_unwatch(tern__nccl *nccl);

#endif
