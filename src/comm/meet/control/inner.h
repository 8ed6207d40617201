/* inner.h - what the control plane's files share: control.c (open, close, abort), known.c (the first
 * failure, and who the peers are), fd.c (descriptors), meet.c (the meeting of all ranks), note.c (why it
 * failed), connect.c and accept.c (the two ends of a connection), late.c (warns of ranks that hold up the
 * meeting), line.c (messages as packets and as frames), last.c (what a rank is waiting in or did last),
 * fork.c (what a forked child must not keep), watch.c (the thread).
 *
 * Who writes what: a peer's fields are written before the thread starts, except for `left`, `sent`, `came`,
 * the question and answer fields and the outbox. Later the thread writes only `gone` and the inbox. `event`
 * is written once, under `lock`, before `failed` is stored with release; a thread that has seen `failed`
 * may read `event` without the lock. Sockets and pidfds stay open until close, so no write can reach a
 * descriptor number that has been reused. */
#ifndef TERN_SRC_COMM_MEET_CONTROL_INNER_H
#define TERN_SRC_COMM_MEET_CONTROL_INNER_H

#include "comm/bootstrap/rank_info.h"
#include "comm/bootstrap/tcp.h"
#include "comm/meet/control/control.h"
#include "comm/sys.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>

/* ---- messages ---- */

enum tern__message_kind {
    TERN__MESSAGE_GOODBYE = 1,
    TERN__MESSAGE_ABORT = 2,  /* the sender failed; `text` says why */
    TERN__MESSAGE_RELAY = 3,  /* the sender stops because of another rank, which `text` names already */
    TERN__MESSAGE_FD = 4,     /* a descriptor under `tag`; inside a host only */
    TERN__MESSAGE_ASK = 5,    /* what are you waiting in, or what did you do last? */
    TERN__MESSAGE_ANSWER = 6, /* `text` answers question `tag`; `code`: 0 = not waiting, 1 = waiting,
                               * 2 + rank = waiting for that rank */
};

/* Within a host one packet; between hosts a frame of a TCP stream. */
typedef struct tern__message {
    uint32_t kind;
    int32_t code;
    uint64_t tag;
    uint32_t bytes; /* of `text`, including the terminator: 1 to TERN_ERROR_TEXT */
    char text[TERN_ERROR_TEXT];
} tern__message;

/* Returns this rank's code for a peer's failure with `code`. A mismatch is this rank's own failure, too. */
static inline int tern__code_here(int code)
{
    return code == TERN_E_MISMATCH ? TERN_E_MISMATCH : TERN_E_PEER;
}

#define TERN__MESSAGE_HEAD offsetof(tern__message, text)

/* A TCP connection's buffers: the frame being received, and the bytes that the kernel has not taken yet. */
typedef struct tern__stream {
    struct sockaddr_storage at; /* where a lower rank listens */
    tern__message inbox;
    size_t got;
    size_t unsent; /* of `outbox`, under the control's `send_lock` */
    char outbox[4 * sizeof(tern__message)];
} tern__stream;

/* What a peer is doing, the most likely culprits first. */
typedef enum tern__doing {
    TERN__DOING_STOP,    /* its process is stopped, as this process sees */
    TERN__DOING_CUT_OFF, /* its host has not even acknowledged the question */
    TERN__DOING_SILENT,  /* its host received the question, but the rank does not answer: is it stopped? */
    TERN__DOING_LEFT,
    TERN__DOING_OTHER, /* it is not waiting */
    TERN__DOING_WAIT
} tern__doing;

typedef struct tern__peer {
    int rank, host;
    int fd;               /* -1: this rank itself, or not connected yet */
    tern__stream *stream; /* for a rank on another host (TCP); NULL: SOCK_SEQPACKET */
    int pidfd; /* -1: this rank itself, a rank of this process, not visible from here, or on another host */
    tern__rank_info info;
    bool gone; /* nothing more is read from it: left, lost or garbled */
    atomic_bool left;
    uint64_t sent, came;       /* descriptors; `came` under `lock` */
    uint64_t asked, collected; /* questions; group's thread only, as is looked_at */
    int64_t looked_at;         /* when find_stopped has asked last; 0: never */
    uint64_t answered;         /* the last question answered; this and the answer under `lock` */
    int code;                  /* the answer's: see TERN__MESSAGE_ANSWER */
    char last[TERN__LAST_TEXT];
    tern__doing doing; /* group's thread only, like is_suspect */
    bool is_suspect;   /* this rank may be waiting because of it */
} tern__peer;

/* This rank's last collective: see last.c. */
typedef struct tern__last {
    _Alignas(TERN__LINE) _Atomic(uint64_t) turn;   /* odd while the words change */
    _Atomic(uint64_t) words[1 + TERN__LAST_WORDS]; /* the formatting function, then its words */
} tern__last;

/* What this rank is waiting in; only the group's thread writes it, under `lock`. */
typedef struct tern__own_wait {
    char text[TERN__LAST_TEXT];
    int awaited;   /* a rank, or -1 */
    int64_t until; /* from then on it does not wait any more */
} tern__own_wait;

/* A descriptor that has arrived, waiting for its recv_fd. */
typedef struct tern__parcel {
    struct tern__parcel *next;
    int peer;
    uint64_t tag;
    int fd; /* -1: could not be received, because this process has too many open */
} tern__parcel;

#define TERN__CLAIMS 8

/* When the meeting warns of ranks that hold it up; see late.c. */
typedef struct tern__late {
    const tern__bootstrap *boot;
    tern_store *store;
    double timeout_s; /* of the meeting */
    int64_t look_ns, look_at, say_at;
    int64_t silent_ns; /* after this, rank 0's store does not answer */
    tern__warn_time stopped, absent;
    int awaited;          /* a rank, or -1 */
    bool accepts;         /* it waits for all higher ranks that are not connected */
    bool is_store_silent; /* it waits for rank 0's store, which does not answer */
    bool *ranks;          /* [world] those that have not come */
    int mark;             /* says that this rank waits; -1: it does not, or not for long */
    int claims[TERN__CLAIMS], claim_count;
} tern__late;

struct tern__control {
    int rank, world, hosts;
    int pid;                  /* the process that opened it: a forked child must not say goodbye */
    tern__control *next_open; /* in this process */
    uint8_t secret[TERN__SECRET_BYTES];
    double host_timeout_s;      /* a host that does not answer for this long is lost */
    tern__peer *peers;          /* one per rank, including this one */
    int listen_fd;              /* until all ranks have met */
    int listen_tcp;             /* the same for other hosts */
    int lost_callers;           /* of the meeting, who did not say who they are */
    struct sockaddr_storage at; /* its address; its family is 0 in a job of one host */
    int wake_fd;
    tern__warn_time warn; /* of the ranks whose info is missing */
    struct pollfd *polls; /* of the thread: wake_fd, then socket and pidfd of each rank */

    pthread_t thread;
    bool running;
    bool is_loud; /* the thread logs a loss: this rank may be killed before it can report it */
    atomic_bool stop;

    atomic_int failed; /* 1 once `event` is written */
    tern_error event;  /* the first failure */
    bool told;         /* the peers have been told; under `lock` */

    pthread_mutex_t lock; /* event, told, parcels, wait */
    pthread_cond_t changed;
    tern__parcel *parcels;

    tern__last last;
    tern__own_wait wait;
    tern__late late;

    pthread_mutex_t send_lock; /* outboxes: frames must not interleave */

    pthread_mutex_t wake_lock; /* held while `wake` runs */
    void (*wake)(void *ctx);
    void *wake_ctx;
    void (*tick)(void *ctx); /* these, too, under `wake_lock` */
    void *tick_ctx;
};

/* ---- known.c ---- */

/* Makes `why` the event if it is the first failure; returns whether it is. */
bool tern__control_fail(tern__control *control, const tern_error *why);

/* ---- note.c ---- */

#define TERN__NOTE_INTERVAL_S 0.5 /* how often a waiting rank checks for a note */
#define TERN__NOTE_SECONDS    1.0 /* how long a failing rank waits for the others */

void tern__note_leave(tern_store *store, int code, const char *text);
/* Returns E_PEER or E_MISMATCH with a note's text if a rank has left a note that the meeting fails. */
int tern__note_check(tern_store *store, tern_error *err);

/* ---- meet.c ---- */

int tern__control_meet(tern__control *control, const tern__bootstrap *boot, tern_store *store,
                       int64_t deadline, tern_error *err);

/* ---- connect.c ---- */

/* Opens this rank's socket and writes its name in the rank info. */
int tern__control_listen(tern__control *control, tern__rank_info *info, tern_error *err);
/* Connects to a lower rank. */
int tern__control_connect(tern__control *control, tern__peer *peer, int64_t deadline, tern_error *err);
/* True if the other end belongs to this user. *pid = the pid by which this process sees it. */
bool tern__peer_is_ours(int fd, int *pid);
/* Opens the peer's pidfd. Returns 0 or an errno; ESRCH: the process is gone. */
int tern__peer_watch_pid(tern__peer *peer, int pid);
int tern__peer_fail_lost(const tern__peer *peer, tern_error *err);
/* "rank 1 (host, pid 77) did not <what> in time". */
int tern__peer_fail_late(const tern__peer *peer, const char *what, tern_error *err);
int tern__control_fail_descriptors(const tern__control *control, tern_error *err);

/* ---- accept.c ---- */

/* Returns when all higher ranks have connected. */
int tern__control_accept(tern__control *control, tern_store *store, int64_t deadline, tern_error *err);

/* ---- late.c ---- */

/* The meeting begins: from now on the waits for `store` look, too. */
int tern__late_begin(tern__control *control, const tern__bootstrap *boot, tern_store *store, int64_t deadline,
                     tern_error *err);
/* The meeting goes on to a wait for rank `awaited` (-1: for every rank's info), or also for all higher
 * ranks. */
void tern__late_stage(tern__control *control, int awaited, bool accepts);
#define TERN__LATE_LOOK_S 0.1
/* A wait of the meeting calls it ten times a second or so: serves the connected peers, and warns. */
void tern__late_look(tern__control *control);
void tern__late_end(tern__control *control);
/* The store looks no more. */
void tern__late_close(tern__control *control);

/* ---- line.c ---- */

/* Sends a message, from any thread; never blocks. Keeps the part of a frame that the kernel does not take
 * at once. Returns 0 or an errno. */
int tern__line_send(tern__control *control, tern__peer *peer, const tern__message *message);
/* Sends the welcome, the last part of the handshake, in the same way. */
int tern__line_welcome(tern__control *control, tern__peer *peer);
/* Sends what is kept, as far as the kernel takes it. */
void tern__line_flush(tern__control *control, tern__peer *peer);
bool tern__line_is_waiting(tern__control *control, const tern__peer *peer);
/* Returns 1: *message is complete, and *fd is the descriptor that came with it, or -1; 0: nothing more for
 * now; or -errno: -ENODATA at the end of the connection, -EBADMSG for a malformed message. */
int tern__line_recv(tern__peer *peer, tern__message *message, int *fd);

/* ---- last.c ---- */

/* On the control thread: answer a peer's question; keep a peer's answer. */
void tern__control_last_answer(tern__control *control, tern__peer *peer, uint64_t question);
void tern__control_last_keep(tern__control *control, tern__peer *peer, const tern__message *answer);

/* ---- fork.c ---- */

/* From _begin until _end, a forked child closes its copies of the sockets. */
int tern__control_fork_begin(tern__control *control, tern_error *err);
void tern__control_fork_end(tern__control *control);

/* ---- watch.c ---- */

void *tern__control_watch(void *control);
/* Fills in two entries for each rank: socket and pidfd. */
void tern__control_prepare(tern__control *control, struct pollfd *polls);
/* Handles a connected peer's messages and its death. True if there was anything. */
bool tern__control_serve_peer(tern__control *control, tern__peer *peer, short socket_events,
                              short pid_events);

#endif
