/* listen.h - the two ends of a store's connection: rank 0 listens, every rank dials. */
#ifndef TERN_SRC_COMM_STORE_LISTEN_H
#define TERN_SRC_COMM_STORE_LISTEN_H

#include "comm/bootstrap/bootstrap.h"
#include "comm/store/frame.h"

/* Returns a non-blocking listening socket, or a negative status. The socket is boot->listen_fd, which may
 * be only bound so far and is the caller's from here on, or a new one bound to MASTER_ADDR's address only.
 * If other hosts must reach it and MASTER_ADDR is a name that resolves to loopback here, the new socket is
 * bound to all addresses. */
int tern__listen(const tern__bootstrap *boot, tern_error *err);
/* The same for a store that a program opens itself, with `func`. */
int tern__listen_public(const tern__bootstrap *boot, const char *func, tern_error *err);
/* Returns the port that a socket is bound to, or 0 if there is none. */
int tern__port_of(int fd);
/* Returns true if fd is a socket that listens on `port`. */
bool tern__listens_at(int fd, int port);
/* Returns a socket that reserves boot's port for a process that will listen there with SO_REUSEADDR, as
 * PyTorch's and tern's stores do. Port 0: a port that is free on all addresses, and reserved on all. The
 * socket is bound but never listens, so the kernel does not hand the port out to anyone who did not ask for
 * its number. */
int tern__reserve(const tern__bootstrap *boot, tern_error *err);

typedef struct tern__line {
    int fd;
    tern__dialect dialect;
    bool is_tern; /* the server is tern's, and knows FETCH */
} tern__line;

/* Connects to the store at boot's address. The connection begins with tern's hello, in which both sides prove
 * that they know the secret. With `torch` it begins as PyTorch 2's clients do, and if the server closes the
 * connection, as PyTorch 1's. Retries with a growing, jittered pause until `deadline`. */
int tern__dial(tern__line *line, const tern__bootstrap *boot, bool torch, int64_t deadline, const char *func,
               tern_error *err);
/* Connects a launcher to node 0's launcher, with tern's hello. Returns a descriptor or a negative status.
 * boot->rank and boot->world count nodes. */
int tern__dial_node(const tern__bootstrap *boot, int64_t deadline, tern_error *err);

#endif
