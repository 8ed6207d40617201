/* launch.h - what tern run and tern_spawn give the ranks that they start: a meeting point, a secret, and the
 * environment that says so. */
#ifndef TERN_SRC_COMM_LAUNCH_H
#define TERN_SRC_COMM_LAUNCH_H

#include "comm/bootstrap/bootstrap.h"

#include <sys/types.h>

#define TERN__LAUNCH_RANKS 4096 /* at most, on one host */

/* The ranks of one host among those of all. */
typedef struct tern__launch {
    int ranks;                        /* on this host                                            */
    int first, world;                 /* the first one's global rank, and the ranks of all hosts */
    int node, nodes;                  /* this host's number, and how many there are              */
    int role_first, role_world;       /* first and world among the hosts of this role            */
    const char *role;                 /* ROLE_NAME                                               */
    const char *run_id;               /* TORCHELASTIC_RUN_ID                                     */
    int attempt, max_restarts;        /* 0, 1, ..: counts restarts of the whole job              */
    const char *addr;                 /* MASTER_ADDR: an address of node 0                       */
    int port;                         /* MASTER_PORT: as asked for, 0 for any; the real one once reserved */
    int meet_port;                    /* TERN_PORT                                               */
    uint8_t key[TERN__SECRET_BYTES];  /* of the job, as the user gave it, or zeros               */
    uint8_t seed[TERN__SECRET_BYTES]; /* random, of this attempt                                 */
    /* node 0's */
    const char *at_addr; /* listens here, where its own ranks call; NULL: at addr */
    int reserve_fd;      /* keeps MASTER_PORT for the program, as long as the job runs */
    int listen_fd; /* where rank 0 will accept its peers; whoever starts the ranks closes it after the last */
} tern__launch;

/* All ranks of a job of one host, on 127.0.0.1, with no descriptor open. */
tern__launch tern__launch_local(int ranks);

/* Node 0: where to listen, at `port`, for nodes, of which rank and world are those. */
int tern__launch_place(const tern__launch *launch, int port, tern__bootstrap *boot, tern_error *err);
/* Node 0: keeps MASTER_PORT; it is not the one at which the ranks meet, since the program itself may want to
 * listen on it. Errors: E_INVALID, E_SYSTEM (native EADDRINUSE: the port is taken). */
int tern__launch_reserve(tern__launch *launch, tern_error *err);
/* Node 0: a fresh seed, and a socket that listens for the ranks. Rank 0 inherits it, so no port is ever free
 * between being chosen and being used. */
int tern__launch_listen(tern__launch *launch, tern_error *err);
/* Both, for a job of one host. Close it after an error, too. */
int tern__launch_open(tern__launch *launch, tern_error *err);
void tern__launch_close(tern__launch *launch);

/* In the forked child, of the host's rank `local`: it dies with `parent`, however that dies, keeps rank 0's
 * descriptor and gets its environment: torchrun's variables, TERN_*, and OMP_NUM_THREADS (cores / ranks)
 * unless it is set. The ranks' secret is HMAC-SHA256(key, seed): of one attempt only, so that a rank of an
 * earlier one that is still alive is a stranger. 0, or -1 and errno. */
int tern__launch_enter(const tern__launch *launch, int local, pid_t parent);

/* What a waited-for rank's status means: 128 + signal or the exit code; and in words, to `text`: "rank 1 (pid
 * 4711) was killed by signal 9 (SIGKILL)". */
int tern__launch_exit_code(int status);
void tern__launch_describe(int rank, pid_t pid, int status, char *text, size_t size);

#endif
