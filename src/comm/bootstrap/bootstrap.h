/* bootstrap.h - who am I and where is everybody: an init_method or the environment, parsed once, kept apart
 * from how bytes move. */
#ifndef TERN_SRC_COMM_BOOTSTRAP_H
#define TERN_SRC_COMM_BOOTSTRAP_H

#include "comm/choice.h"

#include <tern/comm.h>

#define TERN__SECRET_BYTES 32

/* A rank has a descriptor for every other one, and Linux lets a process have so many, unless told otherwise
 * (fs.nr_open). What is more was written by mistake, and would take gigabytes before anybody is missing. */
#define TERN__WORLD_MAX (1 << 20)

/* Environment that `tern run` sets beside torchrun's variables. */
#define TERN__ENV_PORT "TERN_PORT" /* where our ranks meet: MASTER_PORT is left to other libraries */
#define TERN__ENV_LISTEN_FD                                                                                  \
    "TERN_LISTEN_FD"                   /* rank 0: a descriptor that already listens on TERN_PORT       */
#define TERN__ENV_SECRET "TERN_SECRET" /* 64 hex digits: authenticates every connection of the job     */

typedef struct tern__bootstrap {
    int rank, world, local_rank, local_world;
    bool is_placed;     /* the launcher said the local numbers; else they are counted when all have met */
    char addr[256];     /* MASTER_ADDR                                       */
    int port;           /* TERN_PORT, or else MASTER_PORT                    */
    int listen_fd;      /* rank 0: listens already; whoever opens the store gives it away. Or -1    */
    bool lost_listener; /* what the launcher left to rank 0 was closed on the way                   */
    bool has_secret;
    uint8_t secret[TERN__SECRET_BYTES];
    const char *source;       /* which one said so: "RANK/WORLD_SIZE", "MPI", "tcp://", "alone"; static */
    const char *host_id;      /* tells hosts apart that share a machine; NULL: TERN_HOST_ID does        */
    struct tern_store *store; /* where the ranks have yet to tell each other where rank 0 listens:      */
    const char *file;         /* the caller's store, a file (both borrowed until then), or the one that */
    size_t file_bytes;        /* torchrun's agent serves at addr and port                               */
    bool by_agent;
    bool by_mpi;                /* the ranks have yet to meet by MPI, which says the rest          */
    const struct tern_mpi *mpi; /* the plug-in that was started for this group, or NULL            */
    int comm; /* with it, until the group is open: a communicator of the ranks (Fortran handle)    */
    tern__comm_choice choice; /* of the group's back end, for the other ranks to compare               */
} tern__bootstrap;

/* As opts->init_method, rank and world say; if they say nothing, as the environment does. E_INVALID: a
 * malformed init_method, or nobody says the rank or the world. */
int tern__bootstrap_read(tern__bootstrap *out, const tern_group_opts *opts, tern_error *err);

/* The first source of the environment that knows this process (bootstrap.c has their order), or alone: rank 0
 * of 1. A variable that contradicts another one, is out of range or no number: E_ENV naming the variable and
 * its value. Takes TERN_SECRET and TERN_LISTEN_FD out of the environment, so that a rank's own children
 * inherit neither. */
int tern__bootstrap_from_env(tern__bootstrap *out, tern_error *err);

/* Reads a secret of 64 hex digits; white space may follow. Returns whether the text is one, and erases it. */
bool tern__secret_parse(char *text, uint8_t key[TERN__SECRET_BYTES]);
/* Reads TERN_SECRET and removes it from the environment; *found: whether it was set. E_ENV. */
int tern__secret_take(uint8_t key[TERN__SECRET_BYTES], bool *found, const char *func, tern_error *err);

#endif
