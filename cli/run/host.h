/* host.h - starts, watches and ends the ranks of this host. */
#ifndef TERN_CLI_RUN_HOST_H
#define TERN_CLI_RUN_HOST_H

#include "run/rank.h"
#include "run/relay.h"

typedef struct tern__local_host {
    tern__start start;
    tern__rank *ranks;
    int count, alive;
    int epoll_fd;  /* readable when a rank has died */
    int report[2]; /* a pipe: a rank that cannot run the program writes the reason */
    bool sweeps;   /* tern run had no children at its start, so all others come from the ranks */
    tern__guard guard;
    tern__presence presence;
    tern__terminal terminal;
    int sent; /* the signal that was sent to end the ranks; 0: none yet */
} tern__local_host;

/* Prepares to start ranks and makes this process the parent of orphans that they leave behind. The pointers
 * in `start` must outlive the host. E_MEMORY, E_SYSTEM. */
int tern__host_adopt(tern__local_host *host, const tern__start *start, tern_error *err);
void tern__host_free(tern__local_host *host);

/* Starts all ranks of an attempt; `relay` takes their output. After an error some may be running. */
int tern__host_start(tern__local_host *host, tern__relay *relay, tern_error *err);

/* How a rank ended. */
typedef struct tern__death {
    int local, status;
    int reason; /* errno if it could not run the program, else 0 */
} tern__death;

/* Takes the next dead rank. Deaths come in the order in which they happened, even if several are found at
 * once. Returns false if there is none. */
bool tern__host_reap(tern__local_host *host, tern__death *death);
/* Reaps orphans of the ranks that have ended, and finds out whose groups are gone. */
void tern__host_reap_strangers(tern__local_host *host);
/* Gives up waiting for a rank and for its group. */
void tern__host_leave(tern__local_host *host, int local);

/* Are all ranks gone, and if they were told to end, all processes of their groups? */
bool tern__host_has_ended(const tern__local_host *host);
/* Is a process left in the group of a rank that is gone? */
bool tern__host_has_left(const tern__local_host *host);

/* tern__host_pass sends a signal to the process groups of all ranks, but not to rank 0's if it `is_key`: one
 * of a key at the terminal, which the kernel has sent to rank 0's group already. tern__host_end does so to
 * end them; SIGCONT follows, because a stopped process handles no signal but SIGKILL. */
void tern__host_end(tern__local_host *host, int number, bool is_key);
void tern__host_pass(const tern__local_host *host, int number, bool is_key);
/* Sends SIGKILL to all processes that dead ranks have left behind, and to those that these leave. */
void tern__host_sweep(tern__local_host *host);
/* Ends all ranks and what they leave behind at once, after an error of the launcher's own. */
void tern__host_kill(tern__local_host *host);

#endif
