/* inner.h - what the control plane's files share: control.c (public calls), fd.c (descriptors), card.c (who a
 * rank is), meet.c (all meet), connect.c and accept.c (the two ends of a connection), tcp.c (the network
 * between hosts), line.c (messages as packets and as frames), last.c (what a rank waits in or did last),
 * fork.c (what a child must not keep), watch.c (the thread).
 *
 * Who writes what: the peers' fields but `left`, `sent`, `came` and the outbox are written before the thread
 * starts, later only `gone` and the inbox, by the thread. `event` is written once, under `lock`, before
 * `failed` is released; whoever has seen `failed` may read it without the lock. Sockets and pidfds stay open
 * until close, so nobody writes to a descriptor that became another. */
#ifndef TERN_SRC_COMM_CONTROL_INNER_H
#define TERN_SRC_COMM_CONTROL_INNER_H

#include "comm/control/control.h"
#include "comm/sys.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define TERN__HOST_BYTES     64
#define TERN__HOST_KEY_BYTES 160

/* What a rank publishes of itself in the store, under "control/RANK". */
typedef struct tern__card {
    int32_t world, pid;
    uint64_t pid_space; /* inode of the pid namespace that `pid` belongs to            */
    char host[TERN__HOST_BYTES];
    char host_key[TERN__HOST_KEY_BYTES]; /* equal on ranks whose Unix sockets can reach each other       */
    tern__comm_choice choice;
    cpu_set_t cores;                   /* that it may use                                              */
    uint8_t epoch[TERN__SECRET_BYTES]; /* rank 0's: tells this meeting from any other                  */
    uint32_t name_bytes;
    char name[32]; /* of its abstract socket, the leading zero byte left out       */
} tern__card;

/* ---- messages ---- */

enum tern__message_kind {
    TERN__MESSAGE_GOODBYE = 1,
    TERN__MESSAGE_ABORT = 2,  /* the sender failed: `text` is why                                     */
    TERN__MESSAGE_RELAY = 3,  /* the sender stops because of another rank: `text` names it already    */
    TERN__MESSAGE_FD = 4,     /* a descriptor under `tag`; inside a host only                          */
    TERN__MESSAGE_ASK = 5,    /* what do you wait in, or did you do last?                              */
    TERN__MESSAGE_ANSWER = 6, /* to the question `tag`: `text`; `code` is 0: it does not wait, 1: it waits,
                               * 2 + rank: it waits for that one */
};

/* Inside a host a packet of its own; between hosts a frame of a stream. */
typedef struct tern__message {
    uint32_t kind;
    int32_t code;
    uint64_t tag;
    uint32_t bytes; /* of the text, with its terminator: 1 to TERN_ERROR_TEXT */
    char text[TERN_ERROR_TEXT];
} tern__message;

/* Of a peer's failure with `code`: one that is a disagreement is this rank's too. */
static inline int tern__code_here(int code)
{
    return code == TERN_E_MISMATCH ? TERN_E_MISMATCH : TERN_E_PEER;
}

#define TERN__MESSAGE_HEAD offsetof(tern__message, text)

/* What has come of the next frame, and what the kernel has not taken yet of those that go. */
typedef struct tern__stream {
    struct sockaddr_storage at; /* where a lower rank listens */
    tern__message inbox;
    size_t got;
    size_t unsent; /* of `outbox`, under the control's `send_lock` */
    char outbox[4 * sizeof(tern__message)];
} tern__stream;

typedef struct tern__peer {
    int rank, host;
    int fd;               /* -1: oneself, or not yet connected                       */
    tern__stream *stream; /* of a rank on another host (TCP); NULL: SOCK_SEQPACKET   */
    int pidfd;            /* -1: oneself, a rank of this very process, out of sight, or on another host */
    tern__card card;
    bool gone; /* no more is read: left, lost or garbled                      */
    atomic_bool left;
    uint64_t sent, came;       /* descriptors; what came under `lock` */
    uint64_t asked, collected; /* questions, by the group's thread          */
    uint64_t answered;         /* the last one that is, and how, under `lock` */
    int code;                  /* of that answer: see TERN__MESSAGE_ANSWER */
    char last[TERN__LAST_TEXT];
    tern__doing doing; /* by the group's thread, as is_suspect */
    bool is_suspect;   /* is asked why this rank waits          */
} tern__peer;

/* This rank's last collective: see last.c. */
typedef struct tern__last {
    _Alignas(TERN__LINE) _Atomic(uint64_t) turn;   /* odd while the words change             */
    _Atomic(uint64_t) words[1 + TERN__LAST_WORDS]; /* the function that formats them, then they */
} tern__last;

/* What this rank waits in; only the group's thread writes it, under `lock`. */
typedef struct tern__own_wait {
    char text[TERN__LAST_TEXT]; /* "": it does not wait, or not for long */
    int awaited;                /* a rank, or -1                         */
} tern__own_wait;

/* A descriptor that came and waits for its recv_fd. */
typedef struct tern__parcel {
    struct tern__parcel *next;
    int peer;
    uint64_t tag;
    int fd; /* -1: it could not be received, this process has too many open */
} tern__parcel;

struct tern__control {
    int rank, world, hosts;
    int pid;                  /* of the process that opened it: a forked child must not say goodbye */
    tern__control *next_open; /* in this process */
    uint8_t secret[TERN__SECRET_BYTES];
    double host_timeout_s;      /* a host that answers nothing for so long is lost */
    tern__peer *peers;          /* one per rank, oneself too */
    int listen_fd;              /* until all have met        */
    int listen_tcp;             /* the same for other hosts  */
    struct sockaddr_storage at; /* where that is; of no family in a job of one host */
    int bell;
    struct pollfd *polls; /* the thread's: bell, then socket and pidfd of each rank */

    pthread_t thread;
    bool running;
    bool is_loud; /* a loss is logged by the thread: the rank may be killed before it can say why it ends */
    atomic_bool stop;

    atomic_int failed; /* 1 once `event` is written */
    tern_error event;  /* the first failure         */
    bool told;         /* the peers know it; under `lock` */

    pthread_mutex_t lock; /* event, told, parcels, wait */
    pthread_cond_t changed;
    tern__parcel *parcels;

    tern__last last;
    tern__own_wait wait;

    pthread_mutex_t send_lock; /* outboxes: a frame goes whole before the next */

    pthread_mutex_t wake_lock; /* held while `wake` runs */
    void (*wake)(void *ctx);
    void *wake_ctx;
};

/* ---- card.c ---- */

/* This rank's own; the name of its socket is the caller's to add. */
int tern__card_make(tern__card *card, const tern__bootstrap *boot, tern_error *err);
/* Sets key `name`RANK to the card. */
int tern__card_publish(const tern__card *card, const char *name, int rank, tern_store *store,
                       tern_error *err);
/* Waits for `rank`'s card. */
int tern__card_get(tern__card *card, const char *name, int rank, tern_store *store, double timeout_s,
                   tern_error *err);
/* Whatever TERN_HOST_ID says. */
bool tern__card_is_same_machine(const tern__card *one, const tern__card *other);
bool tern__card_is_same_process(const tern__card *one, const tern__card *other);
/* "rank 1 (host, pid 77)". */
void tern__card_describe(const tern__card *card, int rank, char *text, size_t size);

/* ---- meet.c ---- */

/* How often a waiting rank looks for a note. */
#define TERN__NOTE_INTERVAL_S 0.5

/* E_PEER, or E_MISMATCH, with its words if a rank has left a note that the meeting fails. */
int tern__note_check(tern_store *store, tern_error *err);
int tern__control_meet(tern__control *control, const tern__bootstrap *boot, tern_store *store,
                       int64_t deadline, tern_error *err);

/* ---- connect.c ---- */

/* Opens the own socket and writes its name on the card. */
int tern__control_listen(tern__control *control, tern__card *card, tern_error *err);
/* To a lower rank. */
int tern__control_connect(const tern__control *control, tern__peer *peer, int64_t deadline, tern_error *err);
/* Is the other end of this user? Also finds the pid by which this process sees it. */
bool tern__peer_is_ours(int fd, int *pid);
/* 0, or an errno: ESRCH says that the process is gone. */
int tern__peer_watch_pid(tern__peer *peer, int pid);
int tern__peer_fail_lost(const tern__peer *peer, tern_error *err);
/* "rank 1 (host, pid 77) did not <what> in time". */
int tern__peer_fail_late(const tern__peer *peer, const char *what, tern_error *err);
int tern__control_fail_descriptors(const tern__control *control, tern_error *err);

/* ---- accept.c ---- */

/* Returns when all higher ranks have connected. */
int tern__control_accept(tern__control *control, tern_store *store, int64_t deadline, tern_error *err);

/* ---- tcp.c ---- */

/* *at = the address, without a port, of the interface that TERN_SOCKET_IFNAME names, or of the one that leads
 * to rank 0 at boot->addr. Where that is no way to other machines (rank 0's name may be its own loopback) or
 * ranks met at no address, of the first that may be one. */
int tern__tcp_own(const tern__bootstrap *boot, bool is_one_machine, struct sockaddr_storage *at,
                  tern_error *err);
/* Listens on the address that the other hosts reach this one by, on a free port; *at = where. If the hosts
 * are one machine that may be its loopback. */
int tern__tcp_listen(const tern__bootstrap *boot, bool is_one_machine, struct sockaddr_storage *at,
                     tern_error *err);
int tern__tcp_publish(const struct sockaddr_storage *at, int rank, tern_store *store, tern_error *err);
int tern__tcp_get(struct sockaddr_storage *at, int rank, tern_store *store, double timeout_s,
                  tern_error *err);
/* A connected socket, or -errno. */
int tern__tcp_connect(const struct sockaddr_storage *at, int64_t deadline);
/* Small messages go at once, and a host that is silent for `host_timeout_s` ends the connection: 0, or an
 * errno. */
int tern__tcp_tune(int fd, double host_timeout_s);
/* Closes when the other host has all that was sent, or after a second. */
void tern__tcp_close(int *fd);
/* "10.0.0.1". */
void tern__tcp_host(const struct sockaddr_storage *at, char *text, size_t size);
/* "10.0.0.1 port 4123". */
void tern__tcp_text(const struct sockaddr_storage *at, char *text, size_t size);

/* ---- line.c ---- */

/* Before the proof: the next `bytes` of a handshake, a packet or a piece of a stream. 1: they are there, 0:
 * not all yet (*got says how many), -1: the other end has closed or sent something else. */
int tern__line_take(int fd, bool is_stream, void *data, size_t bytes, size_t *got);
bool tern__line_put(int fd, const void *data, size_t bytes);

/* Any thread; never blocks. What the kernel does not take at once of a frame is kept. 0, or an errno. */
int tern__line_send(tern__control *control, tern__peer *peer, const tern__message *message);
/* Sends on what is kept. */
void tern__line_flush(tern__control *control, tern__peer *peer);
bool tern__line_is_waiting(tern__control *control, const tern__peer *peer);
/* 1: *message is there, and *fd a descriptor that came with it, or -1; 0: no more now; or -errno: -ENODATA at
 * the end, -EBADMSG for what is no message. */
int tern__line_recv(tern__peer *peer, tern__message *message, int *fd);

/* ---- last.c ---- */

/* The control thread's part: answers a peer's question, and keeps a peer's answer. */
void tern__control_last_answer(tern__control *control, tern__peer *peer, uint64_t question);
void tern__control_last_keep(tern__control *control, tern__peer *peer, const tern__message *answer);

/* ---- fork.c ---- */

/* From here until _end a forked child closes its copies of the sockets. */
int tern__control_fork_begin(tern__control *control, tern_error *err);
void tern__control_fork_end(tern__control *control);

/* ---- watch.c ---- */

void *tern__control_watch(void *control);
/* Two entries for each rank: socket and pidfd. */
void tern__control_prepare(tern__control *control, struct pollfd *polls);
/* Deals with what a connected peer said, and with its end. True if anything was learnt. */
bool tern__control_serve_peer(tern__control *control, tern__peer *peer, short socket_events,
                              short pid_events);
/* Makes `why` the event and returns true if it is the first failure. */
bool tern__control_fail(tern__control *control, const tern_error *why);

#endif
