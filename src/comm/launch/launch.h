/* launch.h - what tern run and tern_spawn give the ranks that they start: a meeting point, a secret, and
 * environment variables that name both. */
#ifndef TERN_SRC_COMM_LAUNCH_LAUNCH_H
#define TERN_SRC_COMM_LAUNCH_LAUNCH_H

#include "comm/bootstrap/bootstrap.h"

#include <sys/types.h>

#define TERN__LAUNCH_RANKS 4096 /* at most, on one host */

/* The ranks of this host, and their place in the job. */
typedef struct tern__launch {
    int ranks;                        /* number of ranks on this host */
    int first, world;                 /* global rank of the first one; ranks on all hosts */
    int node, nodes;                  /* this host's number; number of hosts */
    int role_first, role_world;       /* the same as first and world, within this role */
    const char *role;                 /* ROLE_NAME */
    const char *run_id;               /* TORCHELASTIC_RUN_ID */
    int attempt, max_restarts;        /* 0, 1, ..: number of restarts of the whole job */
    const char *addr;                 /* MASTER_ADDR: an address of node 0 */
    int port;                         /* MASTER_PORT: as requested, 0 for any; the real port once reserved */
    int meet_port;                    /* TERN_PORT */
    uint8_t key[TERN__SECRET_BYTES];  /* the job's key from the user, or zeros */
    uint8_t seed[TERN__SECRET_BYTES]; /* random, new for each attempt */
    /* Only on node 0: */
    const char *at_addr; /* where it listens and its own ranks connect; NULL: addr */
    int reserve_fd;      /* holds MASTER_PORT for the program while the job runs */
    int listen_fd; /* where rank 0 will accept its peers; the launcher closes it once all ranks are started */
} tern__launch;

/* Returns a job on this host only, at 127.0.0.1, with no descriptor open. */
tern__launch tern__launch_local(int ranks);

/* Node 0: fills `boot` for a store at `port` whose ranks are the nodes. */
int tern__launch_place(const tern__launch *launch, int port, tern__bootstrap *boot, tern_error *err);
/* Node 0: reserves MASTER_PORT. The ranks meet at another port, since the program itself may listen on this
 * one. Errors: E_INVALID, E_SYSTEM (native EADDRINUSE: the port is taken). */
int tern__launch_reserve(tern__launch *launch, tern_error *err);
/* Node 0: makes a new seed and a socket that listens for the ranks. Rank 0 inherits the socket, so no other
 * program can take the port before it is used. */
int tern__launch_listen(tern__launch *launch, tern_error *err);
/* Does both, for a job on one host. Close it also after an error. */
int tern__launch_open(tern__launch *launch, tern_error *err);
void tern__launch_close(tern__launch *launch);

/* Returns the number of OpenMP threads of each rank: OMP_NUM_THREADS, or cores / ranks. */
int tern__launch_threads(const tern__launch *launch);

/* Makes a forked child the host's rank `local`: it is killed when `parent` dies, keeps the listening socket
 * if it is rank 0, and gets its environment: torchrun's variables, TERN_*, and OMP_NUM_THREADS (cores /
 * ranks) unless it is set. The ranks' secret is HMAC-SHA256(key, seed). It is valid for one attempt, so that
 * a rank that is left from an earlier attempt cannot join. Returns 0, or -1 and errno. */
int tern__launch_enter(const tern__launch *launch, int local, pid_t parent);

/* Writes a signal's name: "SIGKILL", "SIGRTMIN+3". Returns text. */
#define TERN__SIGNAL_TEXT 24
const char *tern__signal_text(int number, char text[TERN__SIGNAL_TEXT]);

/* Return what waitpid's `status` means: 128 + signal, or the exit code; and as words in `text`: "rank 1 (pid
 * 4711) was killed by signal 9 (SIGKILL)". */
int tern__launch_exit_code(int status);
void tern__launch_describe(int rank, pid_t pid, int status, char *text, size_t size);

#endif
