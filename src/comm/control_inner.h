/* control_inner.h - what the control plane's files share: control.c (public calls), control_card.c (who a
 * rank is), control_meet.c and control_connect.c (all meet), control_watch.c (the thread).
 *
 * Who writes what: the peers' fields but `left`, `sent` and `came` are written before the thread starts,
 * later only `gone`, by the thread. `event` is written once, under `lock`, before `failed` is released;
 * whoever has seen `failed` may read it without the lock. Sockets and pidfds stay open until close, so nobody
 * writes to a descriptor that became another. */
#ifndef TERN_SRC_COMM_CONTROL_INNER_H
#define TERN_SRC_COMM_CONTROL_INNER_H

#include "comm/control.h"
#include "comm/sys.h"

#include <stdatomic.h>

#define TERN__HOST_BYTES     64
#define TERN__HOST_KEY_BYTES 160

/* What a rank publishes of itself in the store, under "control/RANK". */
typedef struct tern__card {
    int32_t world, pid;
    uint64_t pid_space; /* inode of the pid namespace that `pid` belongs to            */
    char host[TERN__HOST_BYTES];
    char host_key[TERN__HOST_KEY_BYTES]; /* equal on ranks whose Unix sockets can reach each other       */
    uint32_t name_bytes;
    char name[32]; /* of its abstract socket, the leading zero byte left out       */
} tern__card;

typedef struct tern__peer {
    int rank;
    int fd;    /* SOCK_SEQPACKET; -1: oneself, or not yet connected          */
    int pidfd; /* -1: oneself, a rank of this very process, or out of sight   */
    tern__card card;
    bool met;  /* the card is there                                           */
    bool gone; /* no more is read: left, lost or garbled                      */
    atomic_bool left;
    uint64_t sent, came; /* descriptors; what came under `lock` */
} tern__peer;

/* A descriptor that came and waits for its recv_fd. */
typedef struct tern__parcel {
    struct tern__parcel *next;
    int peer;
    uint64_t tag;
    int fd; /* -1: it could not be received, this process has too many open */
} tern__parcel;

struct tern__control {
    int rank, world;
    int pid; /* of the process that opened it: a forked child must not say goodbye */
    uint8_t secret[TERN__SECRET_BYTES];
    tern__peer *peers; /* one per rank, oneself too */
    int listen_fd;     /* until all have met        */
    int bell;
    struct pollfd *polls; /* the thread's: bell, then socket and pidfd of each rank */

    pthread_t thread;
    bool running;
    atomic_bool stop;

    atomic_int failed; /* 1 once `event` is written */
    tern_error event;  /* the first failure         */
    bool told;         /* the peers know it; under `lock` */

    pthread_mutex_t lock; /* event, told, parcels */
    pthread_cond_t changed;
    tern__parcel *parcels;

    pthread_mutex_t wake_lock; /* held while `wake` runs */
    void (*wake)(void *ctx);
    void *wake_ctx;
};

/* ---- messages: one packet each ---- */

enum tern__message_kind {
    TERN__MESSAGE_GOODBYE = 1,
    TERN__MESSAGE_ABORT = 2, /* the sender failed: `text` is why                                     */
    TERN__MESSAGE_RELAY = 3, /* the sender stops because of another rank: `text` names it already    */
    TERN__MESSAGE_FD = 4,    /* a descriptor under `tag`                                              */
};

typedef struct tern__message {
    uint32_t kind;
    int32_t code;
    uint64_t tag;
    char text[TERN_ERROR_TEXT]; /* sent only as far as its terminator */
} tern__message;

#define TERN__MESSAGE_HEAD offsetof(tern__message, text)

/* ---- control_card.c ---- */

/* This rank's own; the name of its socket is the caller's to add. */
int tern__card_make(tern__card *card, int world, tern_error *err);
int tern__card_publish(const tern__card *card, int rank, tern__store *store, tern_error *err);
/* Waits for `rank`'s card. */
int tern__card_get(tern__card *card, int rank, tern__store *store, double timeout_s, tern_error *err);
/* "rank 1 (host, pid 77)". */
void tern__card_describe(const tern__card *card, int rank, char *text, size_t size);

/* ---- control_meet.c ---- */

/* How often a waiting rank looks for a note. */
#define TERN__NOTE_INTERVAL_S 0.5

/* E_PEER with its words if a rank has left a note that the meeting fails. */
int tern__note_check(tern__store *store, tern_error *err);
int tern__control_meet(tern__control *control, tern__store *store, int64_t deadline, tern_error *err);

/* ---- control_connect.c ---- */

/* Opens the own socket and writes its name on the card. */
int tern__control_listen(tern__control *control, tern__card *card, tern_error *err);
int tern__control_connect(const tern__control *control, tern__peer *peer, int64_t deadline, tern_error *err);
/* Returns when all higher ranks have connected. */
int tern__control_accept(tern__control *control, tern__store *store, int64_t deadline, tern_error *err);
/* 0, or an errno: ESRCH says that the process is gone. */
int tern__peer_watch_pid(tern__peer *peer, int pid);
int tern__peer_fail_lost(const tern__peer *peer, tern_error *err);

/* ---- control_watch.c ---- */

void *tern__control_watch(void *control);
/* Two entries for each rank: socket and pidfd. */
void tern__control_prepare(const tern__control *control, struct pollfd *polls);
/* Deals with what a connected peer said, and with its end. True if anything was learnt. */
bool tern__control_serve_peer(tern__control *control, tern__peer *peer, short socket_events,
                              short pid_events);
/* Makes `why` the event and returns true if it is the first failure. */
bool tern__control_fail(tern__control *control, const tern_error *why);

#endif
