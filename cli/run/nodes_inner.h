/* nodes_inner.h - what nodes.c and nodes_meet.c share. */
#ifndef TERN_CLI_RUN_NODES_INNER_H
#define TERN_CLI_RUN_NODES_INNER_H

#include "run/nodes.h"

typedef enum tern__nodes_message_kind {
    TERN__MESSAGE_JOIN = 1, /* node -> 0: nodes, node, ranks, role, run_id, host            */
    TERN__MESSAGE_REFUSED,  /* 0 -> node: text                                              */
    TERN__MESSAGE_START,    /* 0 -> node: the numbers of an attempt                         */
    TERN__MESSAGE_FAILED,   /* both ways: failure                                           */
    TERN__MESSAGE_SIGNAL,   /* both ways: signal, kills                                     */
    TERN__MESSAGE_ENDED,    /* node -> 0: code                                              */
    TERN__MESSAGE_FINISHED, /* 0 -> node: code, has_failure, failure                        */
} tern__nodes_message_kind;

/* One size for all, so that no length has to be believed; there are few. */
typedef struct tern__nodes_message {
    uint32_t kind;
    int32_t nodes, node, ranks;
    int32_t attempt, max_restarts, first, world, role_first, role_world, port, meet_port;
    int32_t signal, kills, code, has_failure;
    uint8_t seed[TERN__SECRET_BYTES];
    char role[32], run_id[128], host[64], text[192];
    tern__failure failure;
} tern__nodes_message;

typedef struct tern__remote_node {
    int fd; /* -1: not here (yet) */
    bool ended, lost;
    int ranks, code;
    char role[32], host[64];
    size_t got; /* of `in` */
    tern__nodes_message in;
} tern__remote_node;

struct tern__nodes {
    tern__job *job;
    int count;                /* of `peers`: node 0 has all others, they have node 0 */
    tern__remote_node *peers; /* by node; [0] of node 0 is itself and has no fd     */
    bool has_start;
    tern__nodes_message start;
    bool is_finished;
    struct tern__news_queue {
        int head, count;
        tern__news items[32];
    } queue;
};

/* Sends it all, within a second. 0 or -errno. */
int tern__message_send(int fd, const tern__nodes_message *message);
/* What came from another process: every text ends. */
void tern__message_clean(tern__nodes_message *message);
/* After how much silence the other end is gone, also while nothing is sent. 0 or -errno. */
int tern__node_keep_alive(int fd, const tern__meeting *meeting);

/* nodes_meet.c */
int tern__nodes_gather(tern__nodes *nodes, tern_error *err);
int tern__nodes_join(tern__nodes *nodes, tern_error *err);

#endif
