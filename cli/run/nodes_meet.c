/* nodes_meet.c - connects the launchers at the start of a job. Node 0 listens until every other node has
 * joined.
 *
 * A process that connects is a stranger until it has proved that it knows the secret and has said which node
 * it is (comm/store/reception.h). A node that disconnects before all have joined may come back. */
#include "run/nodes_inner.h"
#include "cli.h"

#include "comm/store/listen.h"
#include "comm/store/reception.h"
#include "comm/sys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_S 5.0 /* after this, stderr tells who is missing */

/* ---- strangers ---- */

static double silence_of(const tern__job *job)
{
    return (double)job->meeting.keep_alive_s * job->meeting.keep_alive_max;
}

static bool greet_stranger(void *host, tern__stranger *s)
{
    const tern__nodes *nodes = host;
    tern__tcp_tune(s->fd, silence_of(nodes->job));
    return true;
}

static bool expect_stranger(void *host, const tern__stranger *s)
{
    (void)host;
    return tern__hello_is_for(&s->hello, TERN__PURPOSE_NODES, 0, 0);
}

/* Returns 1 if there is something to read, 0 if not, and a negative number at the end of the connection. */
static int node_peek(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (got > 0) return 1;
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

/* Whether the node is connected. Nodes send nothing before all have joined: anything to read is the end. */
static bool node_is_here(const tern__remote_node *node)
{
    return node->fd >= 0 && !node_peek(node->fd);
}

/* Returns NULL, or why the caller cannot be a node of this job; `text` is a buffer for the reason. */
static const char *find_fault(const tern__nodes *nodes, const tern__nodes_message *join, char *text,
                              size_t size)
{
    const tern__launch *own = &nodes->job->launch;
    if (join->kind != TERN__MESSAGE_JOIN || join->ranks < 1 || join->ranks > TERN__LAUNCH_RANKS)
        return "it runs another version of tern";
    snprintf(text, size, "--nnodes %d on node %d, %d on node 0", join->nodes, join->node, own->nodes);
    if (join->nodes != own->nodes) return text;
    snprintf(text, size, "--rdzv-id %.40s on node %d, %.40s on node 0", join->run_id, join->node,
             own->run_id);
    if (strcmp(join->run_id, own->run_id)) return text;
    if (join->node < 1 || join->node >= own->nodes) return "this job has a node 0 already";
    const tern__remote_node *taken = &nodes->peers[join->node];
    snprintf(text, size, "--node-rank %d is used twice, by %s and %s", join->node, taken->host, join->host);
    return node_is_here(taken) ? text : NULL;
}

static void refuse_launcher(int fd, const char *why)
{
    tern__nodes_message no = {.kind = TERN__MESSAGE_REFUSED};
    snprintf(no.text, sizeof(no.text), "%s", why);
    tern__cli_complain("tern run", "refused a launcher: %s", why);
    tern__message_send(fd, &no);
}

static bool admit_stranger(void *host, tern__stranger *s)
{
    char text[192];
    tern__nodes *nodes = host;
    tern__nodes_message *join = s->message;
    tern__message_clean(join);
    const char *fault = find_fault(nodes, join, text, sizeof(text));
    if (fault) {
        refuse_launcher(s->fd, fault);
        return false;
    }
    tern__remote_node *node = &nodes->peers[join->node];
    tern__close(&node->fd); /* it has gone, and this is its successor */
    *node = (tern__remote_node){.fd = s->fd, .ranks = join->ranks};
    memcpy(node->role, join->role, sizeof(node->role));
    memcpy(node->host, join->host, sizeof(node->host));
    s->fd = -1; /* the node's now */
    return true;
}

/* Says it once for each host: its launcher may call again and again. */
static void lose_stranger(void *host, const tern__stranger *s, const char *missing)
{
    char from[64];
    tern__nodes *nodes = host;
    tern__address_host((const struct sockaddr *)&s->at, from, sizeof(from));
    for (int i = 0; i < nodes->lost_callers.count; i++)
        if (!strcmp(nodes->lost_callers.hosts[i], from)) return;
    if (nodes->lost_callers.count == (int)TERN__COUNT(nodes->lost_callers.hosts)) return;
    memcpy(nodes->lost_callers.hosts[nodes->lost_callers.count++], from, sizeof(from));
    bool may_differ = s->stage == TERN__PART_PROOF && s->has_hung_up;
    tern__cli_complain("tern run", "%s; still waiting (%s)", missing,
                       may_differ ? "does it have another secret?" : "does the network drop large packets?");
}

/* ---- the meeting ---- */

void tern__nodes_list(const tern__nodes *nodes, bool (*has)(const tern__remote_node *), char *text,
                      size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 1; i < nodes->count && used < size; i++)
        if (has(&nodes->peers[i]))
            used += (size_t)snprintf(text + used, size - used, "%s %d", used ? "," : "node", i);
}

static bool is_missing(const tern__remote_node *node)
{
    return node->fd < 0;
}

static int count_missing(const tern__nodes *nodes)
{
    int missing = 0;
    for (int i = 1; i < nodes->count; i++) missing += is_missing(&nodes->peers[i]);
    return missing;
}

/* Waits until `until` at most, for a connection, a message, or the deadline of a stranger, and handles them.
 * Whoever has gone meanwhile is missing again, also who joined just now. */
static void serve_strangers(tern__nodes *nodes, tern__reception *r, int64_t until)
{
    struct pollfd polls[TERN__RECEPTION_POLLS];
    until = TERN__MIN(until, tern__deadline(1));
    int count = tern__reception_prepare(r, polls, &until);
    tern__poll(polls, (nfds_t)count, until);
    tern__reception_serve(r, polls);
    for (int i = 1; i < nodes->count; i++)
        if (!node_is_here(&nodes->peers[i])) tern__close(&nodes->peers[i].fd);
}

static int fail_missing(const tern__nodes *nodes, tern_error *err)
{
    char missing[128];
    int count = count_missing(nodes);
    tern__nodes_list(nodes, is_missing, missing, sizeof(missing));
    return tern__error_set(err, __func__, TERN_E_TIMEOUT, "%d of %d hosts joined within %g s; missing: %s",
                           nodes->count - count, nodes->count, nodes->job->meeting.timeout_s, missing);
}

static int wait_for_all(tern__nodes *nodes, tern__reception *r, tern_error *err)
{
    char missing[128];
    const tern__launch *launch = &nodes->job->launch;
    int64_t end = tern__deadline(nodes->job->meeting.timeout_s), patience = tern__deadline(PATIENCE_S);
    while (count_missing(nodes)) {
        serve_strangers(nodes, r, TERN__MIN(end, patience));
        if (tern__now_ns() >= end && count_missing(nodes)) return fail_missing(nodes, err);
        if (tern__now_ns() < patience || !count_missing(nodes)) continue;
        tern__nodes_list(nodes, is_missing, missing, sizeof(missing));
        tern__cli_complain("tern run", "waiting at %s port %d for %s", launch->addr, launch->port, missing);
        patience = INT64_MAX;
    }
    return TERN_OK;
}

static void warn_unauthenticated(const tern__job *job)
{
    if (job->meeting.has_key) return;
    fprintf(stderr,
            "tern run: this job of %d hosts is not authenticated: anyone who can reach %s port %d may join "
            "it (set --secret-file or TERN_SECRET)\n",
            job->launch.nodes, job->launch.addr, job->launch.port);
}

static int open_listener(tern__nodes *nodes, int *fd, tern_error *err)
{
    tern__bootstrap boot;
    const tern__launch *launch = &nodes->job->launch;
    tern_error inner = {0};
    int status = tern__launch_place(launch, launch->port, &boot, err);
    if (status) return status;
    *fd = tern__listen(&boot, &inner);
    if (*fd >= 0) return TERN_OK;
    if (inner.native == EADDRINUSE)
        return tern__error_set(err, __func__, TERN_E_SYSTEM,
                               "port %d of %s is taken: choose another --master-port, the same on all hosts",
                               boot.port, boot.addr);
    return tern__error_set(err, __func__, inner.code, "--master-addr: %s", inner.text);
}

int tern__nodes_gather(tern__nodes *nodes, tern_error *err)
{
    static tern__reception r;
    int fd = -1, status = open_listener(nodes, &fd, err);
    if (status) return status;
    r = (tern__reception){.host = nodes,
                          .secret = nodes->job->launch.key,
                          .doors = {-1, fd},
                          .message_bytes = sizeof(tern__nodes_message),
                          .greets = greet_stranger,
                          .expects = expect_stranger,
                          .admits = admit_stranger,
                          .loses = lose_stranger};
    warn_unauthenticated(nodes->job);
    status = wait_for_all(nodes, &r, err);
    tern__reception_close(&r);
    tern__close(&fd);
    return status;
}

/* ---- the other nodes ---- */

static void fill_boot(const tern__job *job, tern__bootstrap *boot)
{
    *boot = (tern__bootstrap){.rank = job->launch.node, .world = job->launch.nodes, .port = job->launch.port};
    snprintf(boot->addr, sizeof(boot->addr), "%s", job->launch.addr);
    memcpy(boot->secret, job->launch.key, sizeof(boot->secret));
    boot->has_secret = job->meeting.has_key;
}

/* Connects to node 0. After PATIENCE_S it prints what it is waiting for. */
static int dial_node_0(const tern__job *job, int64_t end, tern_error *err)
{
    tern_error early = {0};
    tern__bootstrap boot;
    fill_boot(job, &boot);
    int fd = tern__dial_node(&boot, TERN__MIN(end, tern__deadline(PATIENCE_S)), &early);
    if (fd >= 0) return fd;
    if (early.code != TERN_E_TIMEOUT || tern__now_ns() >= end)
        return tern__error_set(err, __func__, early.code, "%s", early.text);
    tern__cli_complain("tern run", "%s; still trying", early.text);
    return tern__dial_node(&boot, end, err);
}

static void make_join(const tern__job *job, tern__nodes_message *join)
{
    *join = (tern__nodes_message){.kind = TERN__MESSAGE_JOIN,
                                  .nodes = job->launch.nodes,
                                  .node = job->launch.node,
                                  .ranks = job->launch.ranks};
    snprintf(join->role, sizeof(join->role), "%s", job->launch.role);
    snprintf(join->run_id, sizeof(join->run_id), "%s", job->launch.run_id);
    gethostname(join->host, sizeof(join->host) - 1);
}

static int send_join(tern__nodes *nodes, tern_error *err)
{
    tern__nodes_message join;
    const tern__remote_node *node_0 = &nodes->peers[0];
    make_join(nodes->job, &join);
    int status = -tern__tcp_tune(node_0->fd, silence_of(nodes->job));
    if (!status) status = tern__message_send(node_0->fd, &join);
    if (!status) return TERN_OK;
    errno = -status;
    return tern__error_errno(err, __func__, TERN_E_PEER, "node 0's tern run closed the connection");
}

int tern__nodes_join(tern__nodes *nodes, tern_error *err)
{
    tern__remote_node *node_0 = &nodes->peers[0];
    node_0->fd = dial_node_0(nodes->job, tern__deadline(nodes->job->meeting.timeout_s), err);
    if (node_0->fd < 0) return node_0->fd;
    snprintf(node_0->host, sizeof(node_0->host), "%.63s", nodes->job->launch.addr);
    return send_join(nodes, err);
}

/* Node 0 drops a node whose message does not come in time (TERN__HELLO_DEADLINE_S), on a line that loses
 * packets, or for ever on one that drops large packets. */
int tern__nodes_join_again(tern__nodes *nodes, tern_error *err)
{
    tern_error why = {0};
    tern__bootstrap boot;
    tern__remote_node *node_0 = &nodes->peers[0];
    if (node_peek(node_0->fd) >= 0) return TERN_OK;
    if (!nodes->rejoins++)
        tern__cli_complain("tern run",
                           "node 0 closed the connection before it had this node's message of %zu bytes; "
                           "still trying (does the network drop large packets?)",
                           sizeof(tern__nodes_message));
    tern__close(&node_0->fd);
    fill_boot(nodes->job, &boot);
    node_0->fd = tern__dial_node(&boot, TERN__MIN(nodes->end, tern__deadline(silence_of(nodes->job))), &why);
    if (node_0->fd >= 0) return send_join(nodes, err);
    return tern__error_set(err, __func__, TERN_E_PEER, "node 0: its tern run is gone: %s", why.text);
}
