/* transport.h - the interface of a transport plug-in, which moves bytes between ranks that share no memory:
 * one const struct in a shared object that is installed beside the library. There are plug-ins for Open MPI,
 * MPICH and gloo.
 *
 * A transport moves messages and knows neither elements nor collectives. The library builds collectives from
 * messages in one place for all transports, so that every rank gets the same bits from any of them.
 *
 * Functions that return int return 0, or a negative tern_status with a reason in why[0..why_size): what
 * failed, and with which peer, if that is known.
 *
 * Threads: all calls come from the group's thread, except `version`, which may come from any. */
#ifndef TERN_BACKEND_TRANSPORT_H
#define TERN_BACKEND_TRANSPORT_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_TRANSPORT_ABI    1
#define TERN_TRANSPORT_SYMBOL "tern_transport_plugin"

#define TERN_TRANSPORT_TAGS      32768      /* tags are from 0 to TERN_TRANSPORT_TAGS - 1            */
#define TERN_TRANSPORT_BYTES_MAX 1073741824 /* 2^30, the longest message; longer data need several */

/* Describes the group to the plug-in. Valid until `open` returns. */
typedef struct tern_transport_place {
    size_t size;
    int rank, world;
    double timeout_s;    /* seconds until all ranks must have come                                 */
    const char *address; /* this host's address for its peers; "127.0.0.1" if there is only one host */
    const int *hosts;    /* [world] the number of each rank's host                                 */
    int64_t native;      /* the transport's own name for the group (MPI: the Fortran handle of a
                          * communicator whose ranks are the group's), or -1                       */
    /* A key-value store that all ranks share. `get` waits for the key, copies at most `cap` bytes of its
     * value, and stores the value's length in *bytes. */
    void *store;
    int (*set)(void *store, const char *key, const void *value, size_t bytes, char *why, size_t why_size);
    int (*get)(void *store, const char *key, void *value, size_t cap, size_t *bytes, char *why,
               size_t why_size);
    double host_timeout_s; /* bytes that a peer's host does not acknowledge for longer are lost */
} tern_transport_place;

/* A message under way. The plug-in fills it; the caller keeps it at the same address until `test` returns
 * something other than TERN_PENDING. */
typedef struct tern_transport_message {
    void *slots[4];
} tern_transport_message;

typedef struct tern_transport {
    int abi;          /* TERN_TRANSPORT_ABI */
    size_t size;      /* sizeof(tern_transport) of the plug-in's build: members beyond it are absent */
    const char *name; /* "mpi", "gloo" */

    /* Writes the transport's version, such as "Open MPI 4.1.4". Starts nothing. */
    void (*version)(char *text, size_t text_size);

    /* Opens the transport; collective over the place's ranks. Returns its state; NULL on error, with the
     * status in *status. */
    void *(*open)(const tern_transport_place *place, int *status, char *why, size_t why_size);
    /* Closes the transport. Without `failed` all messages are done, and peers may close later. With `failed`,
     * messages that are not done are given up: after the return no buffer is accessed any more. Never blocks
     * for longer than a second. */
    void (*close)(void *state, bool failed);

    /* Start to send to, or receive from, `peer`, another rank, exactly `bytes` bytes (0 to
     * TERN_TRANSPORT_BYTES_MAX). Messages with the same sender, receiver and tag arrive in the order of the
     * sends, and fill the receives in the order of their calls. Never block; `data` belongs to the message
     * until it is done. A send may stay pending until it is received. */
    int (*send)(void *state, int peer, int tag, const void *data, size_t bytes,
                tern_transport_message *message, char *why, size_t why_size);
    int (*recv)(void *state, int peer, int tag, void *data, size_t bytes, tern_transport_message *message,
                char *why, size_t why_size);
    /* Returns TERN_OK if the message is done, TERN_PENDING, or an error, after which only `close` may be
     * called. Moves all messages on; never blocks. */
    int (*test)(void *state, tern_transport_message *message, char *why, size_t why_size);
    /* Sleeps until a message that `test` has found pending may be done or may have failed, but no longer than
     * some milliseconds. NULL or absent: the transport has nothing to wait on. */
    void (*wait)(void *state, tern_transport_message *message);
    /* Up to so many bytes, a message takes about as long as one of a few bytes. 0 or absent: unknown. */
    size_t short_bytes;
} tern_transport;

#ifdef __cplusplus
}
#endif
#endif
