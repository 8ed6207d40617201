/* launch.h - what tern run and tern_spawn give the ranks that they start: a meeting point, a secret, and the
 * environment that says so. */
#ifndef TERN_SRC_COMM_LAUNCH_H
#define TERN_SRC_COMM_LAUNCH_H

#include "comm/bootstrap.h"

#include <sys/types.h>

#define TERN__LAUNCH_RANKS 4096 /* at most */

typedef struct tern__launch {
    int ranks;
    const char *addr; /* MASTER_ADDR: an address of this host                                */
    int port;         /* MASTER_PORT: as asked for, 0 for any; once open, the real one        */
    int reserve_fd;   /* keeps it for the program, as long as the job runs                    */
    int meet_port;    /* TERN_PORT                                                            */
    int listen_fd; /* where rank 0 will accept its peers; whoever starts the ranks closes it after the last */
    char secret[2 * TERN__SECRET_BYTES + 1];
} tern__launch;

/* On 127.0.0.1, with no descriptor open. */
tern__launch tern__launch_local(int ranks);

/* Makes the secret and listens for the ranks: rank 0 inherits the socket, so no port is ever free between
 * being chosen and being used. MASTER_PORT is another one, which the program itself may want to listen on.
 * Close it after an error, too. Errors: E_INVALID, E_SYSTEM (native EADDRINUSE: the port is taken). */
int tern__launch_open(tern__launch *launch, tern_error *err);
void tern__launch_close(tern__launch *launch);

/* In the forked child: it dies with `parent`, however that dies, keeps rank 0's descriptor and gets its
 * environment: torchrun's variables, TERN_*, and OMP_NUM_THREADS (cores / ranks) unless it is set. 0, or -1
 * and errno. */
int tern__launch_enter(const tern__launch *launch, int rank, pid_t parent);

/* What a waited-for rank's status means: 128 + signal or the exit code; and in words, to `text`: "rank 1 (pid
 * 4711) was killed by signal 9 (SIGKILL)". */
int tern__launch_exit_code(int status);
void tern__launch_describe(int rank, pid_t pid, int status, char *text, size_t size);

#endif
