/* listen.h - the two ends of a store's connection: rank 0 listens, every rank dials. */
#ifndef TERN_SRC_COMM_STORE_LISTEN_H
#define TERN_SRC_COMM_STORE_LISTEN_H

#include "comm/bootstrap.h"

/* A non-blocking listening socket: boot->listen_fd, yours from now on, or a fresh one on MASTER_ADDR's
 * address only. A negative status on error. */
int tern__listen(const tern__bootstrap *boot, tern_error *err);

/* A connection to rank 0's store on which both sides have proved that they know the secret. Retries with a
 * growing, jittered pause until `deadline`. A negative status on error. */
int tern__dial(const tern__bootstrap *boot, int64_t deadline, tern_error *err);

#endif
