/* reception.h - lets in those callers of a listening socket who prove that they know the job's secret
 * (hello.h).
 *
 * Anybody can connect. Until a caller has proved itself it is a stranger: only parts of fixed size are read
 * from it, and it has TERN__HELLO_DEADLINE_S for all of them, so a slow stranger delays nobody else. A crowd
 * of strangers keeps nobody out: when there is no slot or descriptor left, the oldest stranger is dropped,
 * unless it has only just come; then the doors stay closed until its grace is over or any stranger leaves. */
#ifndef TERN_SRC_COMM_STORE_RECEPTION_H
#define TERN_SRC_COMM_STORE_RECEPTION_H

#include "comm/store/hello.h"

#include <poll.h>
#include <sys/socket.h>

#define TERN__STRANGERS_MAX 64 /* at a time; others wait in the backlog */

/* What a stranger sends, in this order. */
enum { TERN__PART_HELLO, TERN__PART_PROOF, TERN__PART_MESSAGE };

/* Of a Unix socket that keeps packets whole, and of a TCP socket. */
enum { TERN__DOOR_HOST, TERN__DOOR_NETWORK, TERN__DOORS };

typedef struct tern__stranger {
    int fd; /* -1: sent away, or let in */
    bool is_stream;
    struct sockaddr_storage at; /* its address */
    int stage;                  /* how many parts it has sent */
    size_t got;                 /* bytes of the next part */
    size_t sent;                /* bytes of our answer to the last one */
    bool is_owed;               /* some of that answer is not sent yet */
    bool has_hung_up;
    int64_t came, deadline;
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof;
    void *message; /* once it is welcome; r->message_bytes */
} tern__stranger;

/* The caller fills in the first block and zeroes the rest. False from one of the functions sends the stranger
 * away. */
typedef struct tern__reception {
    void *host; /* first argument of the functions */
    const uint8_t *secret;
    int doors[TERN__DOORS];                        /* listening sockets; -1: none */
    size_t message_bytes;                          /* what a stranger sends after its welcome; 0: nothing */
    bool (*greets)(void *host, tern__stranger *s); /* it has connected */
    bool (*expects)(void *host, const tern__stranger *s); /* it has sent its hello */
    /* It has proved itself and sent its message. Takes s->fd over and sets it to -1. Without a message it has
     * not been welcomed yet. */
    bool (*admits)(void *host, tern__stranger *s);
    /* Its time is up, or it has hung up after its first bytes. `missing`: "10.0.0.2 port 4711 has connected,
     * but of its message of 3176 bytes none came within 5 s". */
    void (*loses)(void *host, const tern__stranger *s, const char *missing);

    tern__stranger strangers[TERN__STRANGERS_MAX]; /* in the order in which they came */
    int count;
    int64_t closed_until; /* the doors: there is no descriptor */
} tern__reception;

#define TERN__RECEPTION_POLLS (TERN__DOORS + TERN__STRANGERS_MAX)

/* Fills in entries for the doors and the strangers, and returns how many. *until: when to serve at the
 * latest, if that is earlier. */
int tern__reception_prepare(const tern__reception *r, struct pollfd *polls, int64_t *until);
/* Reads from the strangers and accepts callers, after a poll. False, with errno: there is no descriptor for a
 * caller and no stranger who could leave one. */
bool tern__reception_serve(tern__reception *r, const struct pollfd *polls);
void tern__reception_close(tern__reception *r);

#endif
