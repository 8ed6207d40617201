/* A client is a small state machine: hello, proof, queries. Until its proof it may send exactly the
 * handshake's bytes, within 5 s; after it, a query is parsed as far as its bytes have come. Nothing blocks,
 * so nobody waits for a slow client but that client: an answer that does not fit its socket waits in its
 * buffer, and until it has left no more of this client is read. A client that errs is closed; the server goes
 * on. */
#include "comm/store/server.h"

#include "comm/store/hello.h"
#include "comm/store/listen.h"
#include "comm/store/query.h"
#include "comm/store/wire.h"
#include "comm/sys.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    strangers_max = 256,   /* connections without a proof; more wait in the backlog       */
    read_bytes = 64 << 10, /* of one client in one round, so that all get their turn       */
    accept_pause_ms = 100, /* when descriptors or memory have run out                      */
    accepts_per_round = 64,
};

typedef enum stage { STAGE_HELLO, STAGE_PROOF, STAGE_QUERIES } stage;

typedef struct client {
    int fd;
    stage stage;
    int64_t deadline; /* of the handshake */
    tern__hello hello;
    tern__challenge challenge;
    tern__buffer in, out;
    bool closed;
} client;

struct tern__server {
    int listen_fd, bell, pid;
    pthread_t thread;
    uint8_t secret[TERN__SECRET_BYTES];
    tern__table *table;
    client **clients;     /* owned */
    struct pollfd *polls; /* bell, listener, then one per client; as long as `cap` + 2 */
    int count, cap, strangers, refused;
    int64_t accept_after; /* no accept before this time */
    bool stop;            /* the thread's own */
};

/* ---- one client ---- */

static void refuse(tern__server *server, client *c, const char *why)
{
    char host[64] = "?", port[16] = "?";
    struct sockaddr_storage addr;
    socklen_t size = sizeof(addr);
    if (!getpeername(c->fd, (struct sockaddr *)&addr, &size))
        getnameinfo((struct sockaddr *)&addr, size, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV);
    server->refused++;
    tern__log(server->refused == 1 ? TERN_LOG_WARN : TERN_LOG_INFO,
              "store: refused %s port %s (%d so far): %s", host, port, server->refused, why);
    c->closed = true;
}

/* Reads what is there, at most `limit` bytes in all. False: nothing came, or the client is gone. */
static bool receive(client *c, size_t limit)
{
    size_t room = TERN__MIN(limit - c->in.bytes, (size_t)read_bytes);
    if (!tern__buffer_reserve(&c->in, room)) {
        c->closed = true;
        return false;
    }
    ssize_t got = recv(c->fd, c->in.data + c->in.bytes, room, MSG_DONTWAIT);
    if (got > 0) c->in.bytes += (size_t)got;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) c->closed = true;
    return got > 0;
}

/* Sends what fits. */
static void flush(client *c)
{
    if (!c->out.bytes) return;
    ssize_t sent = send(c->fd, c->out.data, c->out.bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) tern__buffer_consume(&c->out, (size_t)sent);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) c->closed = true;
}

static void take_hello(tern__server *server, client *c)
{
    if (!receive(c, sizeof(c->hello))) return;
    if (c->in.data[0] != 'T') {
        refuse(server, c, "no hello of tern's");
        return;
    }
    if (c->in.bytes < sizeof(c->hello)) return;
    memcpy(&c->hello, c->in.data, sizeof(c->hello));
    tern__buffer_release(&c->in);
    if (!tern__hello_is_for(&c->hello, TERN__PURPOSE_STORE, 0, 0)) {
        refuse(server, c, "malformed hello, or another version of tern");
        return;
    }
    tern__hello_challenge(&c->hello, server->secret, &c->challenge);
    c->closed = !tern__buffer_append(&c->out, &c->challenge, sizeof(c->challenge));
    c->stage = STAGE_PROOF;
    flush(c);
}

static void take_proof(tern__server *server, client *c)
{
    if (!receive(c, sizeof(tern__proof)) || c->in.bytes < sizeof(tern__proof)) return;
    tern__proof proof;
    memcpy(&proof, c->in.data, sizeof(proof));
    tern__buffer_release(&c->in);
    if (!tern__hello_is_proved(&c->hello, &c->challenge, server->secret, &proof)) {
        refuse(server, c, "it does not know this job's secret");
        return;
    }
    tern__welcome welcome;
    tern__hello_welcome(&welcome);
    c->closed = !tern__buffer_append(&c->out, &welcome, sizeof(welcome));
    c->stage = STAGE_QUERIES;
    server->strangers--;
    flush(c);
}

/* Runs the queries that are complete, until an answer does not fit the socket. */
static bool run_queries(tern__server *server, client *c)
{
    bool any_change = false;
    size_t at = 0;
    while (!c->closed && at < c->in.bytes && !c->out.bytes) {
        bool changed;
        size_t used;
        tern__slice in = {c->in.data + at, c->in.bytes - at};
        tern__query_result result = tern__query_run(server->table, in, &used, &c->out, &changed);
        any_change |= changed;
        at += used;
        if (result == TERN__QUERY_BAD) refuse(server, c, "malformed query, or one over a limit");
        if (result != TERN__QUERY_DONE) break;
        flush(c);
    }
    if (at) tern__buffer_consume(&c->in, at);
    return any_change;
}

/* A key that somebody waits for may exist now; whoever wakes may have sent more behind its wait. */
static void wake_waiters(tern__server *server)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < server->count; i++)
            if (server->clients[i]->stage == STAGE_QUERIES)
                changed |= run_queries(server, server->clients[i]);
    }
}

static void serve_client(tern__server *server, client *c, short events)
{
    if (events & POLLOUT) flush(c);
    if (events & (POLLIN | POLLHUP | POLLERR)) {
        if (c->stage == STAGE_HELLO)
            take_hello(server, c);
        else if (c->stage == STAGE_PROOF)
            take_proof(server, c);
        else
            receive(c, TERN__QUERY_BYTES_MAX);
    }
    if (c->stage == STAGE_QUERIES && run_queries(server, c)) wake_waiters(server);
    if (c->stage != STAGE_QUERIES && !c->closed && tern__now_ns() >= c->deadline)
        refuse(server, c, "no proof within the handshake's deadline");
}

static void client_free(tern__server *server, client *c)
{
    if (c->stage != STAGE_QUERIES) server->strangers--;
    tern__close(&c->fd);
    tern__buffer_release(&c->in);
    tern__buffer_release(&c->out);
    tern__free(c);
}

/* ---- all clients ---- */

static bool grow(tern__server *server)
{
    if (server->count < server->cap) return true;
    int cap = server->cap ? 2 * server->cap : 16;
    client **clients = tern__realloc_array(server->clients, (size_t)server->cap * sizeof(*clients),
                                           (size_t)cap * sizeof(*clients), __func__, NULL);
    if (!clients) return false;
    server->clients = clients;
    struct pollfd *polls = tern__alloc((size_t)(cap + 2) * sizeof(*polls), __func__, NULL);
    if (!polls) return false;
    tern__free(server->polls);
    server->polls = polls;
    server->cap = cap;
    return true;
}

/* False: nobody is there, or the resources for one more have run out, and accepting pauses. */
static bool accept_one(tern__server *server)
{
    int one = 1;
    client *fresh = NULL;
    int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return false;
    if (fd >= 0 && grow(server)) fresh = tern__alloc(sizeof(*fresh), __func__, NULL);
    if (!fresh) {
        tern__close(&fd);
        server->accept_after = tern__now_ns() + accept_pause_ms * INT64_C(1000000);
        return false;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* else answers are only later */
    fresh->fd = fd;
    fresh->deadline = tern__deadline(TERN__HELLO_DEADLINE_S);
    server->clients[server->count++] = fresh;
    server->strangers++;
    return true;
}

static bool may_accept(const tern__server *server)
{
    return server->strangers < strangers_max && tern__now_ns() >= server->accept_after;
}

static void sweep(tern__server *server)
{
    int kept = 0;
    for (int i = 0; i < server->count; i++) {
        client *c = server->clients[i];
        if (c->closed)
            client_free(server, c);
        else
            server->clients[kept++] = c;
    }
    server->count = kept;
}

/* Fills the poll list; returns until when to sleep: the next handshake's deadline, or the end of an accept
 * pause. */
static int64_t prepare(tern__server *server)
{
    int64_t until = INT64_MAX;
    bool accepting = may_accept(server);
    server->polls[0] = (struct pollfd){.fd = server->bell, .events = POLLIN};
    server->polls[1] = (struct pollfd){.fd = accepting ? server->listen_fd : -1, .events = POLLIN};
    if (!accepting && tern__now_ns() < server->accept_after) until = server->accept_after;
    for (int i = 0; i < server->count; i++) {
        client *c = server->clients[i];
        short events = c->out.bytes ? POLLOUT : POLLIN;
        server->polls[2 + i] = (struct pollfd){.fd = c->fd, .events = events};
        if (c->stage != STAGE_QUERIES) until = TERN__MIN(until, c->deadline);
    }
    return until;
}

static void round_trip(tern__server *server)
{
    int count = server->count;
    int ready = tern__poll(server->polls, (nfds_t)count + 2, prepare(server));
    if (ready < 0) { /* out of kernel memory: the one reason left */
        server->accept_after = tern__now_ns() + accept_pause_ms * INT64_C(1000000);
        return;
    }
    if (server->polls[0].revents) server->stop = true;
    for (int i = 0; i < count; i++) serve_client(server, server->clients[i], server->polls[2 + i].revents);
    bool knocks = server->polls[1].revents != 0;
    for (int i = 0; knocks && i < accepts_per_round && may_accept(server) && accept_one(server); i++)
        continue;
    sweep(server);
}

static void *serve(void *arg)
{
    tern__server *server = arg;
    while (!server->stop) round_trip(server);
    return NULL;
}

/* ---- start and stop ---- */

static void release(tern__server *server)
{
    for (int i = 0; i < server->count; i++) client_free(server, server->clients[i]);
    tern__free(server->clients);
    tern__free(server->polls);
    tern__table_free(server->table);
    tern__close(&server->listen_fd);
    tern__close(&server->bell);
    sodium_memzero(server->secret, sizeof(server->secret));
    tern__free(server);
}

tern__server *tern__server_start(const tern__bootstrap *boot, tern_error *err)
{
    tern__server *server = tern__alloc(sizeof(*server), "tern_group_open", err);
    if (!server) return NULL;
    *server = (tern__server){.listen_fd = -1, .bell = -1, .pid = getpid()};
    memcpy(server->secret, boot->secret, sizeof(server->secret));
    server->table = tern__table_new(TERN__STORE_KEYS_MAX, TERN__STORE_BYTES_MAX, err);
    bool ready = server->table && (server->bell = tern__bell_open(err)) >= 0 &&
                 (server->listen_fd = tern__listen(boot, err)) >= 0;
    if (ready && !grow(server)) {
        tern__error_set(err, "tern_group_open", TERN_E_MEMORY, "out of memory for the store's clients");
        ready = false;
    }
    if (ready && !tern__thread_start(&server->thread, serve, server, "tern-store", err)) return server;
    release(server);
    return NULL;
}

/* A forked child has a copy of the server, but not its thread: it only gives its copies back. */
void tern__server_stop(tern__server *server)
{
    if (!server) return;
    if (server->pid == getpid()) {
        tern__bell_ring(server->bell);
        pthread_join(server->thread, NULL);
    }
    release(server);
}
