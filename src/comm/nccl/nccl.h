/* nccl.h - what the files of the NCCL back end share: backend.c (the struct), work.c (a work: its meeting and
 * its part in the device), link.c (a device of each rank), line.c (a communicator of theirs), attach.c
 * (memory that it knows), mail.c (messages between two ranks), watch.c (who ends what hangs).
 *
 * NCCL moves what lies in devices' memory, and nothing else; it knows no time-outs, compares nothing, and who
 * waits in it waits for ever. So this back end stands before another one, as the debug back end does. Windows
 * of the host's memory and works on them are the other's, as they come. A work on a device's memory is done
 * twice: the ranks *meet* for it behind (only_meets: they say and compare it, and nobody's memory is
 * touched), and what moves is put into a stream of the device at once, behind what the step has written. So
 * kind, dtype, counts, weights and who is a shadow are known as ever, errors name ranks, and the host waits
 * for the others' hosts, never for a device: who waits for a work waits for its meeting, and has the step's
 * stream follow the work.
 *
 * All ranks must put their works into a communicator in one order, where other back ends know an order in
 * each channel only. So the meetings of all channels are of one channel behind, the *order*: two works that
 * two ranks post in different order are a mismatch there, which names them. A channel that is to keep an
 * order of its own (channel_part) has a *line* of its own: a communicator, a stream of the device, and its
 * own channel behind for the meetings. A communicator takes one GPU a rank; the first is opened when the
 * first memory of a device is seen, by all ranks together. */
#ifndef TERN_SRC_COMM_NCCL_NCCL_H
#define TERN_SRC_COMM_NCCL_NCCL_H

#include "comm/group.h"
#include "comm/nccl/plugin.h"
#include "device/backend.h"

#include <pthread.h>

#define TERN__NCCL_EVENTS 64
#define TERN__NCCL_SLOTS  512                 /* of the order */
#define TERN__NCCL_AWAY   (UINT32_C(1) << 31) /* in the numbers of windows over devices' memory */

typedef struct tern__nccl tern__nccl;

typedef struct tern__nccl_link tern__nccl_link;
typedef struct tern__nccl_work tern__nccl_work;
typedef struct tern__nccl_channel tern__nccl_channel;

/* One order of works. A link's first line has those of all channels that have none. Of messages each line has
 * those from one rank to another. */
typedef struct tern__nccl_line {
    struct tern__nccl_line *next; /* of the same link */
    tern__nccl_link *link;
    uint64_t number;                   /* of the link's, from 1 on                            */
    const tern__nccl_channel *channel; /* whose it is; NULL: the first one, or nobody's so far */
    void *order;                       /* where its works meet                                */
    tern__device_stream stream;
    void *comm;                /* NULL: aborted; under the group's lock */
    tern__device_event *ready; /* what the step has written            */
    tern__device_event *events[TERN__NCCL_EVENTS];
    int64_t began[TERN__NCCL_EVENTS]; /* since when all ranks have posted it; 0: not yet */
    uint64_t launched, passed;        /* of the device's part of works; under the lock */
    int peer;                         /* of messages: that this rank sends to or receives from */
    bool is_recv;
    char id[TERN__NCCL_ID];
    tern__nccl_work *first, *last; /* that are to be asked of NCCL  */
    tern__nccl_work *asked;        /* that is not in the stream yet   */
    bool is_pending;               /* the communicator takes no other meanwhile */
    bool is_final;                 /* it takes no other any more                */
    void *given_up;                /* the communicator that `comm` was          */
    struct tern__nccl_line *taken; /* that was given up with it                 */
} tern__nccl_line;

/* A device of this rank, which is joined with one of each other rank. */
struct tern__nccl_link {
    tern__guest guest;            /* first: a device knows its links by it */
    struct tern__nccl_link *next; /* of the same group */
    tern__nccl *nccl;
    tern_device *device;
    tern__memory memory;
    tern__nccl_line *lines; /* by number; under the lock */
    bool ends;              /* it takes nothing any more */
    void **ended;           /* [ended_count] communicators that are over but for their peers' part */
    int ended_count;
    pthread_t reaper; /* who waits for that */
    const tern__nccl_plugin *plugin;
};

typedef struct tern__nccl_window {
    char *base;
    size_t bytes;
    tern__nccl_link *link; /* NULL: closed                          */
    tern__nccl_line *line; /* to which it is attached               */
    void *handle;          /* of what is attached; NULL: it is not */
} tern__nccl_window;

/* A work of a channel. */
struct tern__nccl_work {
    tern__nccl_line *line;       /* NULL: it is the back end's behind    */
    uint64_t seq;                /* its place in the channel behind      */
    uint64_t launched;           /* its place in the line; 0: not yet    */
    bool is_queued;              /* it will be launched                  */
    bool is_held;                /* when the ranks have met for it       */
    double divisor;              /* of a mean, before the ranks have met */
    const tern__nccl_call *call; /* of a message: all of it; NULL: as the post says */
    tern__nccl_work *next;       /* in the line's queue                  */
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
    tern__nccl_link *mail; /* for messages, of the first device that has sent or received one; NULL: none */
    struct tern__nccl_mailbox *mailbox;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t watch;
    bool is_watched, stops;
    int aborts; /* under way; under the lock */
};

/* ---- backend.c ---- */

/* What waits in queues, and messages; never blocks. */
int tern__nccl_advance(void *nccl, tern_error *err);

/* ---- work.c ---- */

/* Posts the meeting, and puts the work into the line's queue. */
int tern__nccl_work_post(tern__nccl_work *work, tern__nccl_line *line, const tern__post *post,
                         tern_error *err);
/* Launches what can be of the line's queue; never blocks. */
int tern__nccl_line_advance(tern__nccl_line *line, tern_error *err);
/* Of works that are gone. What of them is under way is so in the order of the step from here on. */
void tern__nccl_line_leave(tern__nccl_line *line, const tern__nccl_channel *channel);
/* Once the ranks have met: TERN_OK when the work is launched; TERN_PENDING, unless it `waits`; or an error.
 */
int tern__nccl_work_settle(tern__nccl_work *work, bool waits, tern_error *err);
/* What the step does from here on comes after the work. */
int tern__nccl_work_finish(tern__nccl_work *work, tern_error *err);
/* Into the line's queue, and out of it. */
int tern__nccl_work_launch(tern__nccl_work *work, tern_error *err);
void tern__nccl_work_drop(tern__nccl_work *work);

/* ---- link.c ---- */

/* The device's, opened with the first call, which is collective. E_UNSUPPORTED: two ranks have one GPU. */
tern__nccl_link *tern__nccl_link_of(tern__nccl *nccl, tern_device *device, tern_error *err);
/* E_STATE: the device of a work or of a message is being closed. */
int tern__nccl_fail_ended(tern_error *err);
/* All of the group's. */
void tern__nccl_links_close(tern__nccl *nccl);
/* For messages, which no other rank need ask for. NULL: there is one already, of another device. */
tern__nccl_link *tern__nccl_mail_of(tern__nccl *nccl, tern_device *device);
/* All of them. */
static inline tern__nccl_link *tern__nccl_link_first(const tern__nccl *nccl)
{
    return nccl->links ? nccl->links : nccl->mail;
}
static inline tern__nccl_link *tern__nccl_link_next(const tern__nccl *nccl, const tern__nccl_link *link)
{
    if (link->next) return link->next;
    return link == nccl->mail ? NULL : nccl->mail;
}
/* Collective: one more line of the link's, for a channel; or one that no channel has any more. */
int tern__nccl_link_part(tern__nccl_link *link, const tern__nccl_channel *channel, tern_error *err);
/* In which the channel's works are. */
tern__nccl_line *tern__nccl_line_of(const tern__nccl_link *link, const tern__nccl_channel *channel);
/* What each rank has to say: `each` bytes at its place of `all`, which are known of all ranks then. */
int tern__nccl_tell(tern__nccl *nccl, void *all, size_t each, tern_error *err);

/* ---- line.c ---- */

/* Behind the link's others. Its communicator is opened by whoever has met the others. */
tern__nccl_line *tern__nccl_line_new(tern__nccl_link *link, tern_error *err);
int tern__nccl_line_open(tern__nccl_line *line, const char id[TERN__NCCL_ID], tern_error *err);
/* The same without waiting for the others. */
int tern__nccl_line_begin(tern__nccl_line *line, int rank, int world, const char id[TERN__NCCL_ID],
                          tern_error *err);
/* Begins the end of its communicator, when that has done what it was asked. */
void tern__nccl_line_finalize(tern__nccl_line *line);
/* Its communicator, if that is over but for being destroyed; else NULL. */
void *tern__nccl_line_free(tern__nccl_line *line);
/* TERN_OK: the device is done with all that was ever asked of the communicator. */
int tern__nccl_line_drain(const tern__nccl_line *line);
/* Is what was asked of the communicator under way? For the first works this takes until all ranks have asked.
 */
int tern__nccl_line_test(tern__nccl_line *line, tern_error *err);
/* Until it is; `what` says what for. */
int tern__nccl_line_await(tern__nccl_line *line, const char *what, tern_error *err);
/* Until `is_over` is TERN_OK, or an error. Moves on what others may wait for. */
int tern__nccl_await(tern__nccl *nccl, int (*is_over)(void *of, tern_error *err), void *of, const char *what,
                     tern_error *err);
/* Gives up all communicators there are. Called with the lock, which is free meanwhile. */
void tern__nccl_abort(tern__nccl *nccl);
/* If the group has failed; and waits until nothing is being given up any more. */
void tern__nccl_abort_failed(tern__nccl *nccl);

/* ---- attach.c ---- */

/* Collective: the window's data go over in that line. Memory that cannot be attached is no error. */
int tern__nccl_attach(tern__nccl_window *window, tern__nccl_line *line, tern_error *err);
/* Waits until the device is done with it. What a failure leaves goes with the communicator. */
void tern__nccl_detach(tern__nccl_window *window);

/* ---- mail.c ---- */

void *tern__nccl_mailbox_open(void *nccl, tern_error *err);
void tern__nccl_mailbox_close(void *mailbox);
int tern__nccl_mailbox_start(void *mailbox, tern__transfer *transfer, tern_error *err);
int tern__nccl_mailbox_carry(void *mailbox, tern_error *err);
int tern__nccl_mailbox_await(void *mailbox, const tern__transfer *transfer, tern_error *err);
void tern__nccl_mailbox_drop(void *mailbox, tern__transfer *transfer);
/* Messages whose ranks have met, and that their devices have moved; never blocks. NULL is fine. */
int tern__nccl_mailbox_advance(struct tern__nccl_mailbox *mailbox, tern_error *err);
/* The device of nccl->mail is closed. NULL is fine. */
void tern__nccl_mailbox_leave(struct tern__nccl_mailbox *mailbox);

/* ---- watch.c ---- */

int tern__nccl_watch(tern__nccl *nccl, tern_error *err);
void tern__nccl_unwatch(tern__nccl *nccl);

#endif
