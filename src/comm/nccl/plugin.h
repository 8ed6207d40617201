/* plugin.h - what is asked of NCCL: one const struct in a shared object, tern_nccl.so, found beside the
 * library, so that the library itself, and a GPU alone, need no NCCL.
 *
 * Communicators do not block: what is asked may still be under way when a call returns (TERN_PENDING), and
 * `test` says when it is over. All calls on one communicator are made one at a time, whatever the thread.
 * Functions that return int return TERN_OK, TERN_PENDING or a negative status with *err set. */
#ifndef TERN_SRC_COMM_NCCL_PLUGIN_H
#define TERN_SRC_COMM_NCCL_PLUGIN_H

#include "base/base.h"

#include <tern/collectives.h>

#define TERN__NCCL_SYMBOL "tern__nccl_functions"
#define TERN__NCCL_ID     128
#define TERN__NCCL_GPU    16

typedef enum tern__nccl_kind {
    TERN__NCCL_ALL_REDUCE,
    TERN__NCCL_REDUCE,         /* to `peer`                                  */
    TERN__NCCL_REDUCE_SCATTER, /* `count` is of one rank's part, as below    */
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
    /* What tells a GPU from all others. */
    int (*gpu)(int index, unsigned char gpu[TERN__NCCL_GPU], tern_error *err);
    /* By which the ranks of one communicator find each other: one rank asks, and tells the others. */
    int (*id)(char id[TERN__NCCL_ID], tern_error *err);

    /* Begins to meet the others. Its works take at most so many `blocks` of the device; 0: as NCCL chooses.
     * NULL: an error. */
    void *(*open)(int index, int rank, int world, int blocks, const char id[TERN__NCCL_ID], tern_error *err);
    /* Of what was asked last, and of what has failed on the way since. */
    int (*test)(void *comm, tern_error *err);
    /* Once nothing is under way: begins the end. */
    int (*finalize)(void *comm, tern_error *err);
    /* The rest of it, which waits until all ranks of this machine have finalized theirs. */
    void (*destroy)(void *comm);
    /* At once: what waits in a stream for others goes on, with any result. The communicator is gone. Of
     * several all are given up between `begin` and `end`: each may wait for its device, in which the others
     * hang. */
    void (*abort)(void *comm);

    /* What lies there moves without copies of NCCL's own from here on. NULL: it cannot, which is no error. */
    void *(*attach)(void *comm, void *data, size_t bytes);
    /* Once nothing that moves it is under way. */
    void (*detach)(void *comm, void *handle);

    /* What is asked between the two is one work. */
    int (*begin)(tern_error *err);
    int (*run)(void *comm, const tern__nccl_call *call, void *stream, tern_error *err);
    int (*end)(void *comm, tern_error *err);
} tern__nccl_plugin;

#endif
