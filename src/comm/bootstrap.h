/* bootstrap.h - who am I and where is everybody: the environment, parsed once, kept apart from how bytes
 * move. */
#ifndef TERN_SRC_COMM_BOOTSTRAP_H
#define TERN_SRC_COMM_BOOTSTRAP_H

#include "base/base.h"

#define TERN__SECRET_BYTES 32

/* Environment that `tern run` sets beside torchrun's variables. */
#define TERN__ENV_PORT "TERN_PORT" /* where our ranks meet: MASTER_PORT is left to other libraries */
#define TERN__ENV_LISTEN_FD                                                                                  \
    "TERN_LISTEN_FD"                   /* rank 0: a descriptor that already listens on TERN_PORT       */
#define TERN__ENV_SECRET "TERN_SECRET" /* 64 hex digits: authenticates every connection of the job     */

typedef struct tern__bootstrap {
    int rank, world, local_rank, local_world;
    char addr[256]; /* MASTER_ADDR                                       */
    int port;       /* TERN_PORT, or else MASTER_PORT or beside it       */
    int listen_fd;  /* inherited listening descriptor (rank 0), or -1    */
    bool has_secret;
    uint8_t secret[TERN__SECRET_BYTES];
    const char *source; /* "RANK/WORLD_SIZE" or "alone"                  */
} tern__bootstrap;

/* RANK and WORLD_SIZE unset: alone, rank 0 of 1. One of them without the other, out of range or no number, or
 * a malformed MASTER_* or TERN_PORT: E_ENV naming the variable and its value. Takes TERN_SECRET and
 * TERN_LISTEN_FD out of the environment, so that a rank's own children inherit neither. */
int tern__bootstrap_from_env(tern__bootstrap *out, tern_error *err);

#endif
