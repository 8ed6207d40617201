/* bootstrap.h - this process's rank, the world's size and the place where the ranks meet, read once from an
 * init_method or from the environment. It is independent of the back ends that move data. */
#ifndef TERN_SRC_COMM_BOOTSTRAP_BOOTSTRAP_H
#define TERN_SRC_COMM_BOOTSTRAP_BOOTSTRAP_H

#include "comm/bootstrap/choice.h"

#include <tern/comm.h>

#define TERN__SECRET_BYTES 32

/* A rank has a descriptor for every other rank, and this is Linux's default limit for a process (fs.nr_open).
 * A larger world is a mistake, which would otherwise take gigabytes of memory before a missing rank is
 * noticed. */
#define TERN__WORLD_MAX (1 << 20)

/* Environment variables that `tern run` sets in addition to torchrun's. */
#define TERN__ENV_PORT      "TERN_PORT" /* where the ranks meet; MASTER_PORT is left to other libraries */
#define TERN__ENV_LISTEN_FD "TERN_LISTEN_FD" /* rank 0: a descriptor that listens on TERN_PORT already */
#define TERN__ENV_SECRET    "TERN_SECRET"    /* 64 hex digits: authenticates every connection of the job */

typedef struct tern__bootstrap {
    int rank, world, local_rank, local_world;
    bool is_placed;      /* the local numbers were given; else they are counted once all ranks have met */
    bool is_local_given; /* by the caller, whatever the environment says; a local_world of 0: not placed */
    char addr[256];      /* MASTER_ADDR */
    int port;            /* TERN_PORT, or else MASTER_PORT */
    int listen_fd;       /* rank 0: a listening socket, which the store takes over; or -1 */
    bool lost_listener;  /* the socket that the launcher passed to rank 0 has been closed since */
    bool has_secret;
    uint8_t secret[TERN__SECRET_BYTES];
    const char *source;  /* where this was read: "RANK/WORLD_SIZE", "MPI", "tcp://", "alone"; static */
    const char *host_id; /* used in place of TERN_HOST_ID, if not NULL */
    /* Where the ranks will learn where rank 0 listens: the caller's store or a file (both borrowed until
     * then), or the store that torchrun's agent serves at addr and port. */
    struct tern_store *store;
    const char *file;
    size_t file_bytes;
    bool by_agent;
    bool by_launcher;           /* RANK and WORLD_SIZE are the environment's, and so the launcher's */
    bool by_mpi;                /* the ranks will meet through MPI, which provides the rest */
    const struct tern_mpi *mpi; /* the plug-in that was started for this group, or NULL */
    int comm; /* with mpi, until the group is open: the ranks' communicator (Fortran handle) */
    tern__comm_choice choice; /* of the group's back end; the ranks compare it */
} tern__bootstrap;

/* Reads opts->init_method, rank and world, or the environment if none of them is given. E_INVALID: the
 * init_method is malformed, or the rank or the world is given nowhere. */
int tern__bootstrap_read(tern__bootstrap *out, const tern_group_opts *opts, tern_error *err);

/* Reads the first source in the environment that applies (bootstrap.c has their order); if none does, this
 * process is alone: rank 0 of 1. E_ENV, with the variable and its value: a variable is not a number, is out
 * of range or contradicts another one. Removes TERN_SECRET and TERN_LISTEN_FD from the environment, so that
 * the rank's children inherit neither. */
int tern__bootstrap_from_env(tern__bootstrap *out, tern_error *err);

/* Reads a secret of 64 hex digits; white space may follow. Returns whether the text is one, and erases it. */
bool tern__secret_parse(char *text, uint8_t key[TERN__SECRET_BYTES]);
/* Reads TERN_SECRET and removes it from the environment; *found: whether it was set. E_ENV. */
int tern__secret_take(uint8_t key[TERN__SECRET_BYTES], bool *found, const char *func, tern_error *err);

#endif
