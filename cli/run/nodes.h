/* nodes.h - the launchers of a job's hosts: a star around node 0's, on authenticated connections that stay
 * open as long as the job runs. A job of one host is a star without rays. */
#ifndef TERN_CLI_RUN_NODES_H
#define TERN_CLI_RUN_NODES_H

#include "run/failure.h"
#include "run/job.h"

#include <poll.h>

typedef struct tern__nodes tern__nodes;

/* Node 0 waits for all others to come, the others call it, until the meeting's time is over; then node 0
 * reserves MASTER_PORT. What a user should know meanwhile is said on stderr. Errors: E_TIMEOUT names the
 * nodes that have not come, E_PEER, E_SYSTEM. */
tern__nodes *tern__nodes_open(tern__job *job, tern_error *err);
void tern__nodes_close(tern__nodes *nodes);

/* The next attempt begins: node 0 opens its meeting point and sends each launcher its numbers, ports and
 * seed, the others wait for them. Fills job->launch. */
int tern__nodes_start(tern__nodes *nodes, tern_error *err);

/* ---- what this host's launcher says to the others ---- */
void tern__nodes_fail(tern__nodes *nodes, const tern__failure *failure);
/* A signal to this launcher, for all ranks; `kills`: the second one. */
void tern__nodes_signal(tern__nodes *nodes, int number, bool kills);
/* All ranks of this host are gone; `code` is what the job's would be. */
void tern__nodes_end(tern__nodes *nodes, int code);
/* Node 0's last word: no further attempt. */
void tern__nodes_finish(tern__nodes *nodes, const tern__failure *root, int code);

/* ---- what the others say ---- */
typedef enum tern__news_kind {
    TERN__NEWS_FAILED,   /* a rank, or a launcher that is gone                          */
    TERN__NEWS_SIGNAL,   /* somebody's launcher got one                                 */
    TERN__NEWS_FINISHED, /* node 0's last word; `failure` is the root cause if has_failure */
} tern__news_kind;

typedef struct tern__news {
    tern__news_kind kind;
    int node; /* whose */
    bool has_failure, kills;
    int signal, code;
    tern__failure failure;
} tern__news;

/* Its part of a poll, as the relay's. */
nfds_t tern__nodes_poll_count(const tern__nodes *nodes);
void tern__nodes_prepare(tern__nodes *nodes, struct pollfd *polls);
/* Reads what has come; then tern__nodes_next hands it out until it returns false. */
void tern__nodes_handle(tern__nodes *nodes, const struct pollfd *polls);
bool tern__nodes_next(tern__nodes *nodes, tern__news *news);

/* Node 0: the ranks of all other nodes are gone; *code = the first code of theirs that is not 0. */
bool tern__nodes_have_ended(const tern__nodes *nodes, int *code);
/* The other nodes: node 0 has begun another attempt. */
bool tern__nodes_have_started(const tern__nodes *nodes);
/* No connection was lost, so there may be another attempt. */
bool tern__nodes_are_all_there(const tern__nodes *nodes);
/* "node 1, 3": whose ranks are not gone. */
void tern__nodes_name_missing(const tern__nodes *nodes, char *text, size_t size);

#endif
