/* nodes.c - exchanges messages between the launchers of a job's hosts. Node 0 is the hub: it passes on
 * failures and signals from each node to the others, numbers the ranks and starts the attempts. */
#include "run/nodes_inner.h"

#include "comm/store/hello.h"
#include "comm/sys.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SEND_SECONDS 1.0

int tern__message_send(int fd, const tern__nodes_message *message)
{
    return tern__send_all(fd, message, sizeof(*message), tern__deadline(SEND_SECONDS));
}

void tern__message_clean(tern__nodes_message *message)
{
    tern__text_clean(message->role, sizeof(message->role));
    tern__text_clean(message->run_id, sizeof(message->run_id));
    tern__text_clean(message->host, sizeof(message->host));
    tern__text_clean(message->text, sizeof(message->text));
    tern__failure_clean(&message->failure);
}

static void push_news(tern__nodes *nodes, const tern__news *news)
{
    struct tern__news_queue *queue = &nodes->queue;
    if (queue->count == (int)TERN__COUNT(queue->items)) return; /* only the first ones matter */
    queue->items[(queue->head + queue->count++) % (int)TERN__COUNT(queue->items)] = *news;
}

bool tern__nodes_next(tern__nodes *nodes, tern__news *news)
{
    struct tern__news_queue *queue = &nodes->queue;
    if (!queue->count) return false;
    *news = queue->items[queue->head];
    queue->head = (queue->head + 1) % (int)TERN__COUNT(queue->items);
    queue->count--;
    return true;
}

static bool is_hub(const tern__nodes *nodes)
{
    return nodes->job->launch.node == 0;
}

/* ---- a launcher is gone ---- */

static void send_all(tern__nodes *nodes, const tern__nodes_message *message, int but);

static tern__failure make_loss(int number, const tern__remote_node *node, const char *why)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    tern__failure loss = {.node = number,
                          .rank = -1,
                          .local = -1,
                          .at_ns = tern__now_ns(),
                          .wall_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec};
    snprintf(loss.host, sizeof(loss.host), "%s", node->host);
    snprintf(loss.error, sizeof(loss.error), "%s", why);
    return loss;
}

static void send_failure(tern__nodes *nodes, const tern__failure *failure, int but)
{
    tern__nodes_message message = {.kind = TERN__MESSAGE_FAILED, .failure = *failure};
    message.failure.at_ns = tern__now_ns() - failure->at_ns;
    send_all(nodes, &message, but);
}

/* Drops a launcher. Its ranks die with it, so it counts as ended. */
static void give_up(tern__nodes *nodes, int number, const char *why)
{
    tern__remote_node *node = &nodes->peers[number];
    tern__close(&node->fd);
    if (nodes->is_finished) return;
    node->ended = node->lost = true;
    tern__news news = {.kind = TERN__NEWS_FAILED, .node = number, .has_failure = true};
    news.failure = make_loss(number, node, why);
    push_news(nodes, &news);
    if (is_hub(nodes)) send_failure(nodes, &news.failure, number);
}

static void lose_node(tern__nodes *nodes, int number, const char *why)
{
    char text[sizeof(((tern__failure *)0)->error)];
    snprintf(text, sizeof(text), "its tern run is gone: %s", why);
    give_up(nodes, number, text);
}

/* Sends to all connected nodes except number `but`. */
static void send_all(tern__nodes *nodes, const tern__nodes_message *message, int but)
{
    for (int i = 0; i < nodes->count; i++) {
        if (nodes->peers[i].fd < 0 || i == but) continue;
        int status = tern__message_send(nodes->peers[i].fd, message);
        if (status) lose_node(nodes, i, strerror(-status));
    }
}

/* ---- messages ---- */

/* A launcher reports ranks of its own host, and ranks of others that its own wait for. */
static bool is_missed(const tern__nodes *nodes, const tern__failure *failure)
{
    return !failure->status && failure->rank >= 0 && failure->node >= 0 && failure->node < nodes->count;
}

/* Messages carry ages instead of times, since clocks differ between hosts. The error is the time in transit.
 */
static void take_failure(tern__nodes *nodes, int from, tern__nodes_message *message)
{
    tern__news news = {.kind = TERN__NEWS_FAILED, .node = from, .has_failure = true};
    if (is_hub(nodes) && !is_missed(nodes, &message->failure)) message->failure.node = from;
    news.failure = message->failure;
    news.failure.at_ns = tern__now_ns() - TERN__MAX(message->failure.at_ns, 0);
    push_news(nodes, &news);
    if (is_hub(nodes)) send_failure(nodes, &news.failure, from);
}

/* Of all ranks that leave in an attempt, only one with fewer calls than those before is news. */
static bool is_old_leaver(const tern__nodes *nodes, int attempt, int begun)
{
    bool is_same = attempt == nodes->leaver.attempt;
    return attempt < nodes->leaver.attempt || (is_same && begun >= nodes->leaver.begun);
}

static void send_leaver(tern__nodes *nodes, const tern__news *news, int but)
{
    tern__nodes_message message = {
        .kind = TERN__MESSAGE_LEFT, .attempt = news->attempt, .code = news->begun, .failure = news->failure};
    message.failure.at_ns = tern__now_ns() - news->failure.at_ns;
    nodes->leaver.attempt = news->attempt;
    nodes->leaver.begun = news->begun;
    send_all(nodes, &message, but);
}

static void take_leaver(tern__nodes *nodes, int from, tern__nodes_message *message)
{
    if (is_old_leaver(nodes, message->attempt, message->code)) return;
    if (is_hub(nodes)) message->failure.node = from;
    tern__news news = {.kind = TERN__NEWS_LEFT,
                       .node = from,
                       .has_failure = true,
                       .attempt = message->attempt,
                       .begun = message->code,
                       .failure = message->failure};
    news.failure.at_ns = tern__now_ns() - TERN__MAX(message->failure.at_ns, 0);
    push_news(nodes, &news);
    send_leaver(nodes, &news, from);
}

static void take_signal(tern__nodes *nodes, int from, const tern__nodes_message *message)
{
    tern__news news = {.kind = TERN__NEWS_SIGNAL, .node = from, .signal = message->signal};
    news.kills = message->kills != 0;
    push_news(nodes, &news);
    if (is_hub(nodes)) send_all(nodes, message, from);
}

static void take_finish(tern__nodes *nodes, tern__nodes_message *message)
{
    tern__news news = {.kind = TERN__NEWS_FINISHED, .code = message->code};
    news.has_failure = message->has_failure != 0;
    news.failure = message->failure;
    news.failure.at_ns = tern__now_ns() - TERN__MAX(message->failure.at_ns, 0);
    nodes->is_finished = true;
    push_news(nodes, &news);
}

static bool is_valid_start(const tern__nodes_message *start, const tern__launch *launch)
{
    return start->attempt >= 0 && start->first > 0 && start->first <= start->world - launch->ranks &&
           start->role_first >= 0 && start->role_first <= start->role_world - launch->ranks &&
           start->port > 0 && start->port < 65536 && start->meet_port > 0 && start->meet_port < 65536;
}

static void take_start(tern__nodes *nodes, const tern__nodes_message *message)
{
    nodes->has_start = is_valid_start(message, &nodes->job->launch);
    nodes->start = *message;
    if (!nodes->has_start) lose_node(nodes, 0, "it sent invalid rank numbers or ports");
}

static void take_from_node(tern__nodes *nodes, int from, tern__nodes_message *message)
{
    tern__remote_node *node = &nodes->peers[from];
    switch (message->kind) {
    case TERN__MESSAGE_FAILED: take_failure(nodes, from, message); break;
    case TERN__MESSAGE_SIGNAL: take_signal(nodes, from, message); break;
    case TERN__MESSAGE_LEFT: take_leaver(nodes, from, message); break;
    case TERN__MESSAGE_ENDED:
        node->ended = true;
        node->code = message->code;
        break;
    default: lose_node(nodes, from, "it sent an invalid message");
    }
}

static void take_refusal(tern__nodes *nodes, const tern__nodes_message *message)
{
    char text[sizeof(message->text) + 32];
    snprintf(text, sizeof(text), "it refused this host: %s", message->text);
    give_up(nodes, 0, text);
}

static void take_from_hub(tern__nodes *nodes, tern__nodes_message *message)
{
    switch (message->kind) {
    case TERN__MESSAGE_FAILED: take_failure(nodes, 0, message); break;
    case TERN__MESSAGE_SIGNAL: take_signal(nodes, 0, message); break;
    case TERN__MESSAGE_LEFT: take_leaver(nodes, 0, message); break;
    case TERN__MESSAGE_START: take_start(nodes, message); break;
    case TERN__MESSAGE_FINISHED: take_finish(nodes, message); break;
    case TERN__MESSAGE_REFUSED: take_refusal(nodes, message); break;
    default: lose_node(nodes, 0, "it sent an invalid message");
    }
}

/* Reads a part of a message, and handles a complete one or the end of the connection. Returns false if there
 * is nothing more to read now. */
static bool read_some(tern__nodes *nodes, int number)
{
    tern__remote_node *node = &nodes->peers[number];
    ssize_t got = recv(node->fd, (char *)&node->in + node->got, sizeof(node->in) - node->got, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) return true;
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) {
        lose_node(nodes, number, got ? strerror(errno) : "it closed the connection");
        return false;
    }
    node->got += (size_t)got;
    if (node->got < sizeof(node->in)) return true;
    node->got = 0;
    tern__message_clean(&node->in);
    if (is_hub(nodes))
        take_from_node(nodes, number, &node->in);
    else
        take_from_hub(nodes, &node->in);
    return node->fd >= 0;
}

nfds_t tern__nodes_poll_count(const tern__nodes *nodes)
{
    return (nfds_t)nodes->count;
}

void tern__nodes_prepare(tern__nodes *nodes, struct pollfd *polls)
{
    for (int i = 0; i < nodes->count; i++)
        polls[i] = (struct pollfd){.fd = nodes->peers[i].fd, .events = POLLIN};
}

void tern__nodes_handle(tern__nodes *nodes, const struct pollfd *polls)
{
    for (int i = 0; i < nodes->count; i++)
        while (polls[i].revents && nodes->peers[i].fd >= 0 && read_some(nodes, i)) continue;
}

/* ---- an attempt ---- */

static void reset_nodes(tern__nodes *nodes)
{
    for (int i = 0; i < nodes->count; i++) nodes->peers[i].ended = nodes->peers[i].lost;
}

/* Fills in the fields of a start message that are the same for all nodes. */
static void fill_common(const tern__nodes *nodes, tern__nodes_message *start)
{
    const tern__launch *own = &nodes->job->launch;
    *start = (tern__nodes_message){.kind = TERN__MESSAGE_START,
                                   .attempt = own->attempt,
                                   .max_restarts = own->max_restarts,
                                   .world = own->ranks,
                                   .port = own->port,
                                   .meet_port = own->meet_port};
    memcpy(start->seed, own->seed, sizeof(start->seed));
    for (int i = 1; i < nodes->count; i++) start->world += nodes->peers[i].ranks;
}

/* Fills in the first rank of a node, over all ranks and within its role. */
static void number_node(const tern__nodes *nodes, int number, tern__nodes_message *start)
{
    const tern__launch *own = &nodes->job->launch;
    const char *role = number ? nodes->peers[number].role : own->role;
    start->first = start->role_first = start->role_world = 0;
    for (int i = 0; i < nodes->count; i++) {
        int ranks = i ? nodes->peers[i].ranks : own->ranks;
        bool same = !strcmp(i ? nodes->peers[i].role : own->role, role);
        if (i < number) start->first += ranks;
        if (i < number && same) start->role_first += ranks;
        if (same) start->role_world += ranks;
    }
}

static void take_numbers(tern__launch *launch, const tern__nodes_message *start)
{
    launch->attempt = start->attempt;
    launch->max_restarts = start->max_restarts;
    launch->first = start->first;
    launch->world = start->world;
    launch->role_first = start->role_first;
    launch->role_world = start->role_world;
    launch->port = start->port;
    launch->meet_port = start->meet_port;
    memcpy(launch->seed, start->seed, sizeof(launch->seed));
}

static int start_all(tern__nodes *nodes, tern_error *err)
{
    tern__nodes_message start;
    int status = tern__launch_listen(&nodes->job->launch, err);
    if (status) return status;
    fill_common(nodes, &start);
    for (int i = nodes->count - 1; i >= 0; i--) {
        number_node(nodes, i, &start);
        if (i == 0 || nodes->peers[i].fd < 0) continue;
        status = tern__message_send(nodes->peers[i].fd, &start);
        if (status) lose_node(nodes, i, strerror(-status));
    }
    take_numbers(&nodes->job->launch, &start);
    return TERN_OK;
}

/* Waits for node 0's start message. Only the first attempt has to wait here. */
static int await_start(tern__nodes *nodes, tern_error *err)
{
    struct pollfd poll_fd;
    char why[128] = "";
    nodes->end = tern__deadline(nodes->job->meeting.timeout_s);
    while (!nodes->has_start) {
        tern__nodes_prepare(nodes, &poll_fd);
        if (nodes->rejoins)
            snprintf(why, sizeof(why),
                     ", and closed %d connections before it had this node's message: does the network drop "
                     "large packets?",
                     nodes->rejoins);
        if (tern__poll(&poll_fd, 1, nodes->end) < 1)
            return tern__error_set(err, __func__, TERN_E_TIMEOUT,
                                   "node 0 did not start the job within %g s%s",
                                   nodes->job->meeting.timeout_s, why);
        int status = tern__nodes_join_again(nodes, err);
        if (status) return status;
        tern__nodes_handle(nodes, &poll_fd);
        if (nodes->peers[0].lost)
            return tern__error_set(err, __func__, TERN_E_PEER, "node 0: %s",
                                   nodes->queue.items[0].failure.error);
    }
    nodes->has_start = false;
    take_numbers(&nodes->job->launch, &nodes->start);
    return TERN_OK;
}

int tern__nodes_start(tern__nodes *nodes, tern_error *err)
{
    reset_nodes(nodes);
    return is_hub(nodes) ? start_all(nodes, err) : await_start(nodes, err);
}

void tern__nodes_fail(tern__nodes *nodes, const tern__failure *failure)
{
    send_failure(nodes, failure, -1);
}

void tern__nodes_leave(tern__nodes *nodes, const tern__failure *leaver, int begun)
{
    const tern__news news = {.attempt = nodes->job->launch.attempt, .begun = begun, .failure = *leaver};
    if (!is_old_leaver(nodes, news.attempt, begun)) send_leaver(nodes, &news, -1);
}

void tern__nodes_signal(tern__nodes *nodes, int number, bool kills)
{
    tern__nodes_message message = {.kind = TERN__MESSAGE_SIGNAL, .signal = number, .kills = kills};
    send_all(nodes, &message, -1);
}

void tern__nodes_end(tern__nodes *nodes, int code)
{
    tern__nodes_message message = {.kind = TERN__MESSAGE_ENDED, .code = code};
    if (!is_hub(nodes)) send_all(nodes, &message, -1);
}

void tern__nodes_finish(tern__nodes *nodes, const tern__failure *root, int code)
{
    tern__nodes_message message = {.kind = TERN__MESSAGE_FINISHED, .code = code, .has_failure = root != NULL};
    if (!is_hub(nodes)) return;
    if (root) message.failure = *root;
    if (root) message.failure.at_ns = tern__now_ns() - root->at_ns;
    nodes->is_finished = true;
    send_all(nodes, &message, -1);
}

/* ---- questions ---- */

bool tern__nodes_have_ended(const tern__nodes *nodes, int *code)
{
    *code = 0;
    for (int i = 1; i < nodes->count; i++) {
        if (!nodes->peers[i].ended) return false;
        if (!*code) *code = nodes->peers[i].code;
    }
    return true;
}

bool tern__nodes_have_started(const tern__nodes *nodes)
{
    return nodes->has_start;
}

bool tern__nodes_are_all_there(const tern__nodes *nodes)
{
    for (int i = 0; i < nodes->count; i++)
        if (nodes->peers[i].lost) return false;
    return true;
}

static bool has_ranks(const tern__remote_node *node)
{
    return !node->ended;
}

void tern__nodes_name_missing(const tern__nodes *nodes, char *text, size_t size)
{
    tern__nodes_list(nodes, has_ranks, text, size);
}

/* ---- open and close ---- */

static int reserve_port(tern__launch *launch, tern_error *err)
{
    tern_error inner = {0};
    if (!tern__launch_reserve(launch, &inner)) return TERN_OK;
    if (inner.native == EADDRINUSE && launch->port)
        return tern__error_set(
            err, __func__, TERN_E_SYSTEM, "port %d of %s is taken: %s", launch->port, launch->addr,
            launch->nodes > 1 ? "choose another --master-port" : "omit --master-port to get a free one");
    return tern__error_set(err, __func__, inner.code, "--master-addr: %s", inner.text);
}

static int meet_nodes(tern__nodes *nodes, tern_error *err)
{
    tern__launch *launch = &nodes->job->launch;
    int status = launch->nodes > 1 ? tern__hello_init(err) : TERN_OK;
    if (!status && launch->node) return tern__nodes_join(nodes, err);
    if (!status && launch->nodes > 1) status = tern__nodes_gather(nodes, err);
    return status ? status : reserve_port(launch, err);
}

tern__nodes *tern__nodes_open(tern__job *job, tern_error *err)
{
    tern__nodes *nodes = tern__alloc(sizeof(*nodes), __func__, err);
    if (!nodes) return NULL;
    nodes->job = job;
    nodes->count = job->launch.node ? 1 : job->launch.nodes;
    nodes->leaver.attempt = -1;
    nodes->peers = tern__alloc((size_t)nodes->count * sizeof(*nodes->peers), __func__, err);
    for (int i = 0; nodes->peers && i < nodes->count; i++) nodes->peers[i].fd = -1;
    if (nodes->peers && !meet_nodes(nodes, err)) return nodes;
    tern__nodes_close(nodes);
    return NULL;
}

void tern__nodes_close(tern__nodes *nodes)
{
    if (!nodes) return;
    for (int i = 0; nodes->peers && i < nodes->count; i++) tern__close(&nodes->peers[i].fd);
    tern__free(nodes->peers);
    tern__free(nodes);
}
