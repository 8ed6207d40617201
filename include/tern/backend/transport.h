/* transport.h - how bytes go between ranks that share no memory: one const struct in a shared object of its
 * own, found beside the library. Open MPI, MPICH and gloo are such plug-ins.
 *
 * A transport moves messages, and knows neither elements nor collectives: those are made of messages above
 * it, in one place for all transports, so that every rank gets the same bits from any of them.
 *
 * Functions that return int return 0, or a negative tern_status with a reason in why[0..why_size): what
 * failed, and which peer it was, if that is known.
 *
 * Threads: all calls come from the group's, but for `version`, which may come from any. */
#ifndef TERN_BACKEND_TRANSPORT_H
#define TERN_BACKEND_TRANSPORT_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_TRANSPORT_ABI    1
#define TERN_TRANSPORT_SYMBOL "tern_transport_plugin"

#define TERN_TRANSPORT_TAGS      32768      /* tags are from 0 to one less        */
#define TERN_TRANSPORT_BYTES_MAX 1073741824 /* 2^30, of one message; whoever has more sends several */

/* What a plug-in is told about its group. Valid until `open` returns. */
typedef struct tern_transport_place {
    size_t size;
    int rank, world;
    double timeout_s;    /* until all ranks have come                                              */
    const char *address; /* of this host, at which its peers reach it; "127.0.0.1" if it is only one */
    const int *hosts;    /* [world] the number of each rank's host                                 */
    int64_t native;      /* the transport's own name for the group (MPI: the Fortran handle of a
                          * communicator whose ranks are the group's), or -1                       */
    /* Where ranks can leave each other notes. `get` waits for the key, copies at most `cap` bytes, and says
     * in *bytes how many there are. */
    void *store;
    int (*set)(void *store, const char *key, const void *value, size_t bytes, char *why, size_t why_size);
    int (*get)(void *store, const char *key, void *value, size_t cap, size_t *bytes, char *why,
               size_t why_size);
} tern_transport_place;

/* A message that is under way, the plug-in's to fill. Yours to hold, at one address, until `test` has
 * returned something else than TERN_PENDING. */
typedef struct tern_transport_message {
    void *slots[4];
} tern_transport_message;

typedef struct tern_transport {
    int abi;          /* TERN_TRANSPORT_ABI */
    size_t size;      /* sizeof(tern_transport) of the plug-in's build: members beyond it are absent */
    const char *name; /* "mpi", "gloo" */

    /* "Open MPI 4.1.4". Starts nothing. */
    void (*version)(char *text, size_t text_size);

    /* Collective over the place's ranks. NULL on error, with the status in *status. */
    void *(*open)(const tern_transport_place *place, int *status, char *why, size_t why_size);
    /* Without `failed` all messages are done, and peers may close later. With it, what is not done is given
     * up: once this has returned, no buffer is touched any more. Never blocks for longer than a second. */
    void (*close)(void *state, bool failed);

    /* Start to send, or to receive, exactly `bytes` (0 to TERN_TRANSPORT_BYTES_MAX) to or from `peer`, which
     * is not oneself. Messages of one (sender, receiver, tag) arrive in the order in which they were sent,
     * and are received in the order in which that was asked for. Never block; `data` belongs to the message
     * until it is done. A send may stay pending until it is received. */
    int (*send)(void *state, int peer, int tag, const void *data, size_t bytes,
                tern_transport_message *message, char *why, size_t why_size);
    int (*recv)(void *state, int peer, int tag, void *data, size_t bytes, tern_transport_message *message,
                char *why, size_t why_size);
    /* TERN_OK: done, or TERN_PENDING, or an error, after which the state is good for `close` only. Moves all
     * messages on; never blocks. */
    int (*test)(void *state, tern_transport_message *message, char *why, size_t why_size);
    /* NULL or absent: there is nothing to wait on. Sleeps until the message, of which `test` has said that it
     * is pending, may be done or failed, but for no longer than some milliseconds. */
    void (*wait)(void *state, tern_transport_message *message);
    /* 0 or absent: unknown. A message of so many bytes takes about as long as one of a few. */
    size_t short_bytes;
} tern_transport;

#ifdef __cplusplus
}
#endif
#endif
