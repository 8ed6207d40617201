/* listen.h - the two ends of a store's connection: rank 0 listens, every rank dials. */
#ifndef TERN_SRC_COMM_STORE_LISTEN_H
#define TERN_SRC_COMM_STORE_LISTEN_H

#include "comm/bootstrap.h"

/* A non-blocking listening socket: boot->listen_fd, yours from now on, or a fresh one on MASTER_ADDR's
 * address only. A negative status on error. */
int tern__listen(const tern__bootstrap *boot, tern_error *err);
/* A socket that keeps boot's port, or a free one for port 0, for whoever will listen there with SO_REUSEADDR,
 * as PyTorch's and our own stores do: it is bound and never listens, so the kernel gives its port to nobody
 * who did not ask for that number. */
int tern__reserve(const tern__bootstrap *boot, tern_error *err);

/* A connection to rank 0's store on which both sides have proved that they know the secret. Retries with a
 * growing, jittered pause until `deadline`. A negative status on error. */
int tern__dial(const tern__bootstrap *boot, int64_t deadline, tern_error *err);

#endif
