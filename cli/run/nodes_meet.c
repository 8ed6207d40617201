/* nodes_meet.c - connects the launchers at the start of a job. Node 0 listens until every other node has
 * joined.
 *
 * A process that connects is a *guest* until it has proved that it knows the secret and has said which node
 * it is. A guest is a small state machine that reads a fixed number of bytes in each stage: no length from
 * the network is trusted, a slow guest delays nobody else, and a guest that misses its deadline is dropped. A
 * crowd of guests keeps no node out: where no slot or no descriptor is left, the guest that came first has to
 * go, once it has had its grace. A node that disconnects before all have joined may come back. */
#include "run/nodes_inner.h"

#include "comm/store/hello.h"
#include "comm/store/listen.h"
#include "comm/sys.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GUESTS     64  /* at a time; others wait in the backlog  */
#define PATIENCE_S 5.0 /* after this, stderr tells who is missing */

typedef enum stage { HELLO, PROOF, JOIN } stage;

typedef struct guest {
    int fd; /* -1: dropped, or a node's now */
    stage stage;
    int64_t came, deadline;
    size_t got;
    union {
        tern__hello hello;
        tern__proof proof;
        tern__nodes_message join;
        uint8_t bytes[sizeof(tern__nodes_message)];
    } in;
    tern__hello hello;
    tern__challenge challenge;
} guest;

typedef struct door {
    tern__nodes *nodes;
    int listen_fd;
    guest guests[GUESTS]; /* in the order in which they came      */
    int count;
    int64_t closed_until; /* no descriptor or memory for one more */
} door;

/* ---- one guest ---- */

static void send_away(guest *g)
{
    tern__close(&g->fd);
}

static void answer(guest *g, const void *bytes, size_t size, stage next)
{
    g->got = 0;
    g->stage = next;
    if (tern__send_all(g->fd, bytes, size, tern__now_ns())) send_away(g);
}

static void take_hello(guest *g, const uint8_t *key)
{
    g->hello = g->in.hello;
    if (!tern__hello_is_for(&g->hello, TERN__PURPOSE_NODES, 0, 0)) {
        send_away(g);
        return;
    }
    tern__hello_challenge(&g->hello, key, &g->challenge);
    answer(g, &g->challenge, sizeof(g->challenge), PROOF);
}

static void take_proof(guest *g, const uint8_t *key)
{
    tern__welcome welcome;
    if (!tern__hello_is_proved(&g->hello, &g->challenge, key, &g->in.proof)) {
        send_away(g);
        return;
    }
    tern__hello_welcome(&welcome);
    answer(g, &welcome, sizeof(welcome), JOIN);
}

/* Returns NULL, or why the guest cannot be a node of this job; `text` is a buffer for the reason. */
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
    return taken->fd >= 0 ? text : NULL;
}

static void refuse(guest *g, const char *why)
{
    tern__nodes_message no = {.kind = TERN__MESSAGE_REFUSED};
    snprintf(no.text, sizeof(no.text), "%s", why);
    fprintf(stderr, "tern run: refused a launcher: %s\n", why);
    tern__message_send(g->fd, &no);
    send_away(g);
}

static void take_join(tern__nodes *nodes, guest *g)
{
    char text[192];
    tern__nodes_message *join = &g->in.join;
    tern__message_clean(join);
    const char *fault = find_fault(nodes, join, text, sizeof(text));
    if (fault) {
        refuse(g, fault);
        return;
    }
    tern__remote_node *node = &nodes->peers[join->node];
    *node = (tern__remote_node){.fd = g->fd, .ranks = join->ranks};
    memcpy(node->role, join->role, sizeof(node->role));
    memcpy(node->host, join->host, sizeof(node->host));
    g->fd = -1;
}

static size_t wanted(const guest *g)
{
    static const size_t sizes[] = {sizeof(tern__hello), sizeof(tern__proof), sizeof(tern__nodes_message)};
    return sizes[g->stage];
}

static void hear(tern__nodes *nodes, guest *g)
{
    ssize_t got = recv(g->fd, g->in.bytes + g->got, wanted(g) - g->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        send_away(g);
        return;
    }
    g->got += (size_t)got;
    if (g->got < wanted(g)) return;
    switch (g->stage) {
    case HELLO: take_hello(g, nodes->job->launch.key); break;
    case PROOF: take_proof(g, nodes->job->launch.key); break;
    case JOIN: take_join(nodes, g); break;
    }
}

/* ---- the door ---- */

static void remove_gone(door *d)
{
    int kept = 0;
    for (int i = 0; i < d->count; i++)
        if (d->guests[i].fd >= 0) d->guests[kept++] = d->guests[i];
    d->count = kept;
}

static void send_first_away(door *d)
{
    send_away(&d->guests[0]);
    remove_gone(d);
}

/* Gives the first guest's descriptor to the next caller; the door is closed until that guest has had its
 * grace. */
static void find_descriptor(door *d)
{
    int64_t until = (d->count ? d->guests[0].came : tern__now_ns()) + TERN__HELLO_GRACE_NS;
    if (tern__now_ns() < until)
        d->closed_until = until;
    else
        send_first_away(d);
}

/* Returns the time from which the next caller may come in. */
static int64_t opening_time(const door *d)
{
    return d->count < GUESTS ? d->closed_until : d->guests[0].came + TERN__HELLO_GRACE_NS;
}

static double silence_of(const tern__job *job)
{
    return (double)job->meeting.keep_alive_s * job->meeting.keep_alive_max;
}

static void let_in(door *d)
{
    if (d->count == GUESTS) send_first_away(d);
    int fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && tern__is_shortage(errno)) find_descriptor(d);
    if (fd < 0) return;
    tern__tcp_tune(fd, silence_of(d->nodes->job));
    d->guests[d->count++] =
        (guest){.fd = fd, .came = tern__now_ns(), .deadline = tern__deadline(TERN__HELLO_DEADLINE_S)};
}

/* Drops a node that has disconnected. Nodes send nothing before all have joined, so anything to read is the
 * end. */
static void drop_gone(tern__remote_node *node)
{
    char byte;
    if (node->fd < 0) return;
    ssize_t got = recv(node->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) tern__close(&node->fd);
}

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

/* Returns when serve() has to do something even if nothing arrives. */
static int64_t prepare(const door *d, struct pollfd *polls, int64_t until)
{
    int64_t opens = opening_time(d);
    bool is_open = tern__now_ns() >= opens;
    if (!is_open) until = TERN__MIN(until, opens);
    polls[0] = (struct pollfd){.fd = is_open ? d->listen_fd : -1, .events = POLLIN};
    for (int i = 0; i < d->count; i++) {
        polls[1 + i] = (struct pollfd){.fd = d->guests[i].fd, .events = POLLIN};
        until = TERN__MIN(until, d->guests[i].deadline);
    }
    return TERN__MIN(until, tern__deadline(1));
}

/* Waits until `until` at most, for a connection, a message, or the deadline of a guest, and handles them. */
static void serve(door *d, int64_t until)
{
    struct pollfd polls[1 + GUESTS];
    until = prepare(d, polls, until);
    tern__poll(polls, (nfds_t)(1 + d->count), until);
    for (int i = 0; i < d->count; i++) {
        guest *g = &d->guests[i];
        if (polls[1 + i].revents) hear(d->nodes, g);
        if (g->fd >= 0 && tern__now_ns() >= g->deadline) send_away(g);
    }
    remove_gone(d);
    for (int i = 1; i < d->nodes->count; i++) drop_gone(&d->nodes->peers[i]);
    if (polls[0].revents) let_in(d);
}

static int fail_missing(const tern__nodes *nodes, tern_error *err)
{
    char missing[128];
    int count = count_missing(nodes);
    tern__nodes_list(nodes, is_missing, missing, sizeof(missing));
    return tern__error_set(err, __func__, TERN_E_TIMEOUT, "%d of %d hosts joined within %g s; missing: %s",
                           nodes->count - count, nodes->count, nodes->job->meeting.timeout_s, missing);
}

static int wait_for_all(door *d, tern_error *err)
{
    char missing[128];
    const tern__launch *launch = &d->nodes->job->launch;
    int64_t end = tern__deadline(d->nodes->job->meeting.timeout_s), patience = tern__deadline(PATIENCE_S);
    while (count_missing(d->nodes)) {
        serve(d, TERN__MIN(end, patience));
        if (tern__now_ns() >= end && count_missing(d->nodes)) return fail_missing(d->nodes, err);
        if (tern__now_ns() < patience || !count_missing(d->nodes)) continue;
        tern__nodes_list(d->nodes, is_missing, missing, sizeof(missing));
        fprintf(stderr, "tern run: waiting at %s port %d for %s\n", launch->addr, launch->port, missing);
        patience = INT64_MAX;
    }
    return TERN_OK;
}

static void warn(const tern__job *job)
{
    if (job->meeting.has_key) return;
    fprintf(
        stderr,
        "tern run: this job of %d hosts is not authenticated: anyone who can reach %s port %d may join it "
        "(set --secret-file or TERN_SECRET)\n",
        job->launch.nodes, job->launch.addr, job->launch.port);
}

static int open_door(tern__nodes *nodes, int *fd, tern_error *err)
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
    static door d;
    d = (door){.nodes = nodes, .listen_fd = -1};
    int status = open_door(nodes, &d.listen_fd, err);
    if (!status) {
        warn(nodes->job);
        status = wait_for_all(&d, err);
    }
    for (int i = 0; i < d.count; i++) send_away(&d.guests[i]);
    tern__close(&d.listen_fd);
    return status;
}

/* ---- the other nodes ---- */

/* Connects to node 0. After PATIENCE_S it prints what it is waiting for. */
static int dial(const tern__job *job, tern_error *err)
{
    tern_error early = {0};
    tern__bootstrap boot = {.rank = job->launch.node, .world = job->launch.nodes, .port = job->launch.port};
    int64_t end = tern__deadline(job->meeting.timeout_s);
    snprintf(boot.addr, sizeof(boot.addr), "%s", job->launch.addr);
    memcpy(boot.secret, job->launch.key, sizeof(boot.secret));
    boot.has_secret = job->meeting.has_key;
    int fd = tern__dial_node(&boot, TERN__MIN(end, tern__deadline(PATIENCE_S)), &early);
    if (fd >= 0) return fd;
    if (early.code != TERN_E_TIMEOUT || tern__now_ns() >= end)
        return tern__error_set(err, __func__, early.code, "%s", early.text);
    fprintf(stderr, "tern run: %s; still trying\n", early.text);
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

int tern__nodes_join(tern__nodes *nodes, tern_error *err)
{
    tern__nodes_message join;
    tern__remote_node *node_0 = &nodes->peers[0];
    node_0->fd = dial(nodes->job, err);
    if (node_0->fd < 0) return node_0->fd;
    snprintf(node_0->host, sizeof(node_0->host), "%.63s", nodes->job->launch.addr);
    make_join(nodes->job, &join);
    int status = -tern__tcp_tune(node_0->fd, silence_of(nodes->job));
    if (!status) status = tern__message_send(node_0->fd, &join);
    if (!status) return TERN_OK;
    errno = -status;
    return tern__error_errno(err, __func__, TERN_E_PEER, "node 0's tern run closed the connection");
}
