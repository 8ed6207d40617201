/* host.h - the ranks of this host as processes: started together, watched, ended. */
#ifndef TERN_CLI_RUN_HOST_H
#define TERN_CLI_RUN_HOST_H

#include "run/rank.h"
#include "run/relay.h"

typedef struct tern__local_host {
    tern__start start;
    tern__rank *ranks;
    int count, alive;
    int epoll_fd;  /* readable when a rank has died */
    int report[2]; /* a rank that cannot run the program says why */
    bool sweeps;   /* whoever became tern run had no children, so all that are no ranks are theirs */
    int sent;      /* the signal that ends the ranks, once it was sent */
} tern__local_host;

/* Becomes the parent of what its ranks leave behind. The pointers of `start` must outlive the host. E_MEMORY,
 * E_SYSTEM. */
int tern__host_adopt(tern__local_host *host, const tern__start *start, tern_error *err);
void tern__host_free(tern__local_host *host);

/* Starts all ranks of an attempt; their output goes to `relay`. After an error some may run. */
int tern__host_start(tern__local_host *host, tern__relay *relay, tern_error *err);

/* How a rank ended. */
typedef struct tern__death {
    int local, status;
    int reason; /* errno where it could not run the program, else 0 */
} tern__death;

/* The next rank that has died, in the order in which they did, also of those that are found dead at the same
 * time; false: no other has. */
bool tern__host_reap(tern__local_host *host, tern__death *death);
/* What ranks left behind and has ended since is no longer kept by the kernel. */
void tern__host_reap_strangers(const tern__local_host *host);

/* `number` to all that live; `deliver`: false where it has reached them already. SIGCONT follows, because a
 * stopped process sees no signal but SIGKILL. */
void tern__host_end(tern__local_host *host, int number, bool deliver);
void tern__host_pass(const tern__local_host *host, int number);
/* SIGKILL to what the dead ranks have left behind, and to what that leaves. */
void tern__host_sweep(const tern__local_host *host);

#endif
