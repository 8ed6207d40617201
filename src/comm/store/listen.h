/* listen.h - the two ends of a store's connection: rank 0 listens, every rank dials. */
#ifndef TERN_SRC_COMM_STORE_LISTEN_H
#define TERN_SRC_COMM_STORE_LISTEN_H

#include "comm/bootstrap/bootstrap.h"
#include "comm/store/frame.h"

/* A non-blocking listening socket: boot->listen_fd, yours from now on, or a fresh one on MASTER_ADDR's
 * address only; but where other hosts may have to reach it and MASTER_ADDR is a name for which this one knows
 * its own loopback, on all of its addresses. A negative status on error. */
int tern__listen(const tern__bootstrap *boot, tern_error *err);
/* The same for a store that a program opened by itself, by `func`. */
int tern__listen_public(const tern__bootstrap *boot, const char *func, tern_error *err);
/* The port that a socket is bound to; 0 if that cannot be known. */
int tern__port_of(int fd);
/* Is it a socket, and does it listen there? */
bool tern__listens_at(int fd, int port);
/* A socket that keeps boot's port, or a free one for port 0, for whoever will listen there with SO_REUSEADDR,
 * as PyTorch's and our own stores do: it is bound and never listens, so the kernel gives its port to nobody
 * who did not ask for that number. */
int tern__reserve(const tern__bootstrap *boot, tern_error *err);

typedef struct tern__line {
    int fd;
    tern__dialect dialect;
    bool is_tern; /* the server is ours, and knows FETCH */
} tern__line;

/* A connection to the store at boot's address. By our own hello, after which both sides have proved that they
 * know the secret; or, with `torch`, as PyTorch's clients greet: version 2's first, and if that is hung up
 * on, version 1's. Retries with a growing, jittered pause until `deadline`. */
int tern__dial(tern__line *line, const tern__bootstrap *boot, bool torch, int64_t deadline, const char *func,
               tern_error *err);
/* The same of a launcher to node 0's, by our hello: a descriptor, or a negative status. boot->rank and
 * boot->world count nodes. */
int tern__dial_node(const tern__bootstrap *boot, int64_t deadline, tern_error *err);

#endif
