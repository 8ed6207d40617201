/* nodes.h - connects the launchers of a job's hosts. Every launcher is connected to node 0's, and the
 * authenticated connections stay open while the job runs. A job of one host has no connections. */
#ifndef TERN_CLI_RUN_NODES_H
#define TERN_CLI_RUN_NODES_H

#include "run/failure.h"
#include "run/job.h"

#include <poll.h>

typedef struct tern__nodes tern__nodes;

/* Connects all nodes within the meeting's timeout: node 0 waits for the others, which connect to it. Then
 * node 0 reserves MASTER_PORT. Reports long waits on stderr. Errors: E_TIMEOUT names the missing nodes;
 * E_PEER, E_SYSTEM. */
tern__nodes *tern__nodes_open(tern__job *job, tern_error *err);
void tern__nodes_close(tern__nodes *nodes);

/* Starts the next attempt and fills in job->launch: node 0 opens the meeting point of the ranks and sends
 * each launcher its rank numbers, ports and seed; the other launchers wait for them. */
int tern__nodes_start(tern__nodes *nodes, tern_error *err);

/* ---- messages to the other launchers ---- */

/* Reports a failure of this host, or a rank of another host that has left although ranks of this one wait
 * for it. */
void tern__nodes_fail(tern__nodes *nodes, const tern__failure *failure);
/* Reports a rank of this host that has exited with 0 after `begun` calls of tern_group_open, unless all
 * launchers know of one that has made as few: ranks of other hosts may wait for it there. */
void tern__nodes_leave(tern__nodes *nodes, const tern__failure *leaver, int begun);
/* Passes on a signal that this launcher got, for all ranks; `kills`: it is the second one, which means
 * SIGKILL. */
void tern__nodes_signal(tern__nodes *nodes, int number, bool kills);
/* Reports that all ranks of this host are gone; `code` is the exit code of this host. */
void tern__nodes_end(tern__nodes *nodes, int code);
/* On node 0: ends the job, without a further attempt. */
void tern__nodes_finish(tern__nodes *nodes, const tern__failure *root, int code);

/* ---- messages from the other launchers ---- */
typedef enum tern__news_kind {
    TERN__NEWS_FAILED,   /* a rank has failed or a launcher is gone                        */
    TERN__NEWS_SIGNAL,   /* a launcher got a signal                                        */
    TERN__NEWS_LEFT,     /* a rank, `failure`, has exited with 0 after `begun` calls of tern_group_open */
    TERN__NEWS_FINISHED, /* node 0 ends the job; `failure` is the root cause if has_failure */
} tern__news_kind;

typedef struct tern__news {
    tern__news_kind kind;
    int node; /* the sender */
    bool has_failure, kills;
    int signal, code, attempt, begun;
    tern__failure failure;
} tern__news;

/* The connections' part of a poll, as tern__relay_poll_count and tern__relay_prepare. */
nfds_t tern__nodes_poll_count(const tern__nodes *nodes);
void tern__nodes_prepare(tern__nodes *nodes, struct pollfd *polls);
/* Reads the messages that have arrived; call tern__nodes_next until it returns false to take them. */
void tern__nodes_handle(tern__nodes *nodes, const struct pollfd *polls);
bool tern__nodes_next(tern__nodes *nodes, tern__news *news);

/* On node 0: are the ranks of all other nodes gone? *code: the first exit code of theirs that is not 0. */
bool tern__nodes_have_ended(const tern__nodes *nodes, int *code);
/* On other nodes: has node 0 started another attempt? */
bool tern__nodes_have_started(const tern__nodes *nodes);
/* Are all connections alive, so that another attempt is possible? */
bool tern__nodes_are_all_there(const tern__nodes *nodes);
/* Writes the nodes whose ranks are not gone yet: "node 1, 3". */
void tern__nodes_name_missing(const tern__nodes *nodes, char *text, size_t size);

#endif
