/* plugin.h - the interface to NCCL: one const struct in a shared object, tern_nccl.so, found beside the
 * library. So neither the library nor a program with one GPU needs NCCL.
 *
 * Communicators do not block: an operation may still be in progress when a call returns (TERN_PENDING), and
 * `test` tells when it is done. Calls on one communicator are made one at a time, from any thread.
 * Functions that return int return TERN_OK, TERN_PENDING or a negative status with *err set. */
#ifndef TERN_SRC_COMM_MOVE_NCCL_PLUGIN_H
#define TERN_SRC_COMM_MOVE_NCCL_PLUGIN_H

#include "base/base.h"

#include <tern/collectives.h>

#define TERN__NCCL_SYMBOL "tern__nccl_functions"
#define TERN__NCCL_ID     128
#define TERN__NCCL_GPU    16

typedef enum tern__nccl_kind {
    TERN__NCCL_ALL_REDUCE,
    TERN__NCCL_REDUCE,         /* to `peer`                                               */
    TERN__NCCL_REDUCE_SCATTER, /* `count`: elements of one rank's part, as for ALL_GATHER */
    TERN__NCCL_ALL_GATHER,
    TERN__NCCL_BROADCAST, /* from `peer` */
    TERN__NCCL_SEND,
    TERN__NCCL_RECV
} tern__nccl_kind;

typedef struct tern__nccl_call {
    tern__nccl_kind kind;
    const void *from;
    void *to;
    size_t count;
    tern_dtype dtype;
    tern_reduce_op op; /* SUM, PRODUCT, MIN, MAX, or PREMUL_SUM by this rank's factor */
    double factor;
    int peer;
} tern__nccl_call;

typedef struct tern__nccl_plugin {
    const char *version; /* TERN_VERSION of its build */
    /* "NCCL 2.28.9". */
    void (*describe)(char *text, size_t size);
    /* The GPU's UUID. */
    int (*gpu)(int index, unsigned char gpu[TERN__NCCL_GPU], tern_error *err);
    /* Makes the id by which the ranks of a communicator find each other: one rank calls it and tells the
     * rest. */
    int (*id)(char id[TERN__NCCL_ID], tern_error *err);

    /* Begins to connect to the other ranks. Its kernels use at most `blocks` blocks of the device; 0: NCCL
     * chooses. NULL: an error. */
    void *(*open)(int index, int rank, int world, int blocks, const char id[TERN__NCCL_ID], tern_error *err);
    /* The status of the latest operation, and of asynchronous failures. */
    int (*test)(void *comm, tern_error *err);
    /* Begins to finalize a communicator that has nothing in progress. */
    int (*finalize)(void *comm, tern_error *err);
    /* Destroys a finalized communicator; waits until all ranks of this host have finalized theirs. */
    void (*destroy)(void *comm);
    /* Aborts and frees the communicator. Works that wait in a stream for other ranks end, with undefined
     * results. Several communicators are aborted between `begin` and `end`, since each abort may wait for its
     * device, in which the others hang. */
    void (*abort)(void *comm);

    /* Registers a buffer, which NCCL then moves without copies of its own. NULL: it cannot, which is no
     * error. */
    void *(*attach)(void *comm, void *data, size_t bytes);
    /* The registered buffer must not be in use by any operation. */
    void (*detach)(void *comm, void *handle);

    /* All calls of `run` between the two form one operation. */
    int (*begin)(tern_error *err);
    int (*run)(void *comm, const tern__nccl_call *call, void *stream, tern_error *err);
    int (*end)(void *comm, tern_error *err);
} tern__nccl_plugin;

#endif
