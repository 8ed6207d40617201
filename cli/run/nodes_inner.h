/* nodes_inner.h - what nodes.c and nodes_meet.c share. */
#ifndef TERN_CLI_RUN_NODES_INNER_H
#define TERN_CLI_RUN_NODES_INNER_H

#include "run/nodes.h"

typedef enum tern__nodes_message_kind {
    TERN__MESSAGE_JOIN = 1, /* node -> 0: nodes, node, ranks, role, run_id, host            */
    TERN__MESSAGE_REFUSED,  /* 0 -> node: text                                              */
    TERN__MESSAGE_START,    /* 0 -> node: attempt .. meet_port and seed of an attempt       */
    TERN__MESSAGE_FAILED,   /* both ways: failure                                           */
    TERN__MESSAGE_SIGNAL,   /* both ways: signal, kills                                     */
    TERN__MESSAGE_ENDED,    /* node -> 0: code                                              */
    TERN__MESSAGE_FINISHED, /* 0 -> node: code, has_failure, failure                        */
    TERN__MESSAGE_LEFT,     /* both ways: attempt, code (calls of tern_group_open), failure  */
} tern__nodes_message_kind;

/* All messages have the same size, so that no length from the network has to be trusted. There are few of
 * them. */
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
    int fd; /* -1: not connected */
    bool ended, lost;
    int ranks, code;
    char role[32], host[64];
    size_t got; /* bytes of `in` so far */
    tern__nodes_message in;
} tern__remote_node;

struct tern__nodes {
    tern__job *job;
    int count;                /* of `peers`: on node 0 all nodes, elsewhere only node 0 */
    tern__remote_node *peers; /* by node; on node 0, [0] is itself and has no fd       */
    int64_t end;              /* of the meeting, on other nodes than node 0 */
    int rejoins;              /* how often node 0 has closed the connection before the first start */
    struct {
        int count;
        char hosts[16][64];
    } lost_callers; /* on node 0: hosts whose callers it has complained of */
    struct {
        int attempt, begun;
    } leaver; /* the rank with the fewest calls of tern_group_open that all launchers know to have left */
    bool has_start;
    tern__nodes_message start;
    bool is_finished;
    struct tern__news_queue {
        int head, count;
        tern__news items[32];
    } queue;
};

/* Sends a whole message within a second. Returns 0 or -errno. */
int tern__message_send(int fd, const tern__nodes_message *message);
/* Makes the texts of a message from another process safe (tern__text_clean). */
void tern__message_clean(tern__nodes_message *message);

/* nodes_meet.c: node 0 waits for all other nodes; another node connects to node 0. */
int tern__nodes_gather(tern__nodes *nodes, tern_error *err);
int tern__nodes_join(tern__nodes *nodes, tern_error *err);
/* Connects again if node 0 has closed the connection, until the meeting's timeout. E_PEER: node 0 cannot be
 * reached. */
int tern__nodes_join_again(tern__nodes *nodes, tern_error *err);
/* Writes the numbers of the other nodes for which `has` is true: "node 1, 3". */
void tern__nodes_list(const tern__nodes *nodes, bool (*has)(const tern__remote_node *), char *text,
                      size_t size);

#endif
