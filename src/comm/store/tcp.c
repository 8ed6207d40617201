/* tcp.c - the TCP store: a connection to a server. The server is tern's, possibly in this process, or that of
 * PyTorch 1 or 2. A query that PyTorch's server does not have takes several of its queries, or fails with
 * E_UNSUPPORTED. */
#include "base/opts.h"
#include "comm/store/frame.h"
#include "comm/store/hello.h"
#include "comm/store/listen.h"
#include "comm/store/server.h"
#include "comm/store/store.h"
#include "comm/sys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* The minimum timeout of an answer that needs no waiting: after 9 s a packet has been sent six times. */
static const double prompt_s = 15;
static const double count_interval_s = 0.01; /* between two reads of the number of clients */

/* A job's own store serves its ranks only. A program may open others itself. */
typedef enum owner { OF_JOB, OF_PROGRAM } owner;

typedef struct tcp_store {
    tern_store base;
    tern__server *server; /* if this process serves the store */
    tern__bootstrap boot; /* address, for another connection  */
    owner whose;
    bool torch;      /* greet as PyTorch's clients do */
    tern__line line; /* fd -1 once an exchange has failed: the bytes that follow would be unknown */
    tern__buffer in, out;
} tcp_store;

static const tern__store_ops ops;

/* ---- the connection ---- */

/* One exchange with the server. */
typedef struct exchange {
    tcp_store *store;
    int64_t deadline; /* for a query that waits */
    int64_t prompt;   /* for everything else    */
    tern__buffer *answer;
    const char *func;
    tern_error *err;
} exchange;

/* Closes the connection: after a timeout in the middle of a query it cannot be used for another. */
static int tcp_fail(const exchange *x, int native)
{
    tern__close(&x->store->line.fd);
    errno = -native;
    if (native == -ETIMEDOUT)
        return tern__error_errno(x->err, x->func, TERN_E_TIMEOUT, "%s does not answer", x->store->base.where);
    return tern__error_errno(x->err, x->func, TERN_E_PEER,
                             "%s is gone, or closed the connection on this query", x->store->base.where);
}

static int tcp_redial(const exchange *x)
{
    tcp_store *s = x->store;
    tern__close(&s->line.fd);
    s->in.bytes = 0;
    return tern__dial(&s->line, &s->boot, s->torch, x->prompt, x->func, x->err);
}

static int send_query(const exchange *x, tern__bytes query)
{
    tcp_store *s = x->store;
    if (s->line.dialect == TERN__DIALECT_TORCH2)
        return tern__send_all(s->line.fd, query.data, query.bytes, x->prompt);
    s->out.bytes = 0;
    if (!tern__buffer_append(&s->out, query.data, query.bytes)) return -ENOMEM;
    s->out.data[0] = tern__code_to(s->line.dialect, query.data[0]);
    return tern__send_all(s->line.fd, s->out.data, s->out.bytes, x->prompt);
}

static int receive_some(tcp_store *s, int64_t since, int64_t deadline)
{
    enum { least_bytes = 4096 };
    const double look_s = 0.1;
    struct pollfd at = {.fd = s->line.fd, .events = POLLIN};
    if (!tern__buffer_reserve(&s->in, least_bytes)) return -ENOMEM;
    int64_t until = s->base.look ? TERN__MIN(deadline, tern__deadline(look_s)) : deadline;
    int ready = tern__poll(&at, 1, until);
    if (!ready && until < deadline) return s->base.look(s->base.look_ctx, since);
    if (ready <= 0) return ready ? -errno : -ETIMEDOUT;
    ssize_t got = recv(s->line.fd, s->in.data + s->in.bytes, s->in.cap - s->in.bytes, MSG_DONTWAIT);
    if (got > 0) s->in.bytes += (size_t)got;
    if (got < 0 && errno != EAGAIN && errno != EINTR) return -errno;
    return got == 0 ? -ECONNRESET : 0;
}

/* Receives until the frame is complete at the front of `in`. 0 or -errno. */
static int await_frame(tcp_store *s, tern__frame *frame, int64_t deadline)
{
    const int64_t since = tern__now_ns();
    for (;;) {
        tern__frame_state state = tern__frame_scan(frame, tern__buffer_bytes(&s->in));
        if (state == TERN__FRAME_DONE) return 0;
        int status = state == TERN__FRAME_BAD ? -EPROTO : receive_some(s, since, deadline);
        if (status) return status;
    }
}

static int take_answer(const exchange *x, const tern__frame *frame)
{
    tern__buffer *in = &x->store->in;
    bool fine = tern__buffer_append(x->answer, in->data, frame->at);
    tern__buffer_consume(in, frame->at);
    return fine ? 0 : -ENOMEM;
}

/* Cancels a wait. If the wait just ended, its answer comes first; CANCELED comes in any case. */
static int tcp_cancel(const exchange *x, uint8_t code)
{
    tcp_store *s = x->store;
    const uint8_t query = TERN__QUERY_CANCEL_WAIT;
    int status = tern__send_all(s->line.fd, &query, sizeof(query), x->prompt);
    while (!status) {
        tern__frame byte = {.field = "1"}, answer;
        status = await_frame(s, &byte, x->prompt);
        if (!status && s->in.data[0] == TERN__WAIT_CANCELED) {
            tern__buffer_consume(&s->in, 1);
            break;
        }
        tern__frame_answer(&answer, code, 0);
        if (!status) status = await_frame(s, &answer, x->prompt);
        if (!status) tern__buffer_consume(&s->in, answer.at);
    }
    return status ? tcp_fail(x, status) : TERN_E_TIMEOUT;
}

/* After a wait that used up the deadline, the next exchange gets time of its own. Rank 0 may be stopped: then
 * its store answers later, and a host that is gone ends the connection (tern__tcp_tune). */
static exchange next_of(const exchange *x)
{
    exchange next = *x;
    const tcp_store *s = x->store;
    next.prompt = tern__deadline(s->whose == OF_JOB ? TERN__MAX(prompt_s, s->base.timeout_s) : prompt_s);
    return next;
}

static bool can_wait(uint8_t code)
{
    return code == TERN__QUERY_WAIT || code == TERN__QUERY_FETCH || code == TERN__QUERY_BARRIER;
}

/* True for a query that an older PyTorch server may not know; it then closes the connection. */
static bool is_recent(const tcp_store *s, uint8_t code)
{
    return !s->line.is_tern && code >= TERN__QUERY_QUEUE_PUSH;
}

static int refuse_unknown(const exchange *x)
{
    int status = tcp_redial(x);
    if (status) return status;
    return tern__error_set(x->err, x->func, TERN_E_UNSUPPORTED,
                           "%s is an older PyTorch's, which does not know this query", x->store->base.where);
}

/* Sends a query and appends its answer. */
static int tcp_converse(const exchange *x, tern__bytes query, uint64_t keys)
{
    tcp_store *s = x->store;
    tern__frame answer;
    uint8_t code = query.data[0];
    if (tern__code_to(s->line.dialect, code) == TERN__NO_CODE)
        return tern__error_set(x->err, x->func, TERN_E_UNSUPPORTED, "%s is PyTorch 1's, which cannot do this",
                               s->base.where);
    tern__frame_answer(&answer, code, keys);
    int status = send_query(x, query);
    if (!status) status = await_frame(s, &answer, can_wait(code) ? x->deadline : x->prompt);
    if (!status) status = take_answer(x, &answer);
    if (!status) return TERN_OK;
    if (status == -ETIMEDOUT && can_wait(code)) {
        const exchange next = next_of(x);
        if (s->line.dialect == TERN__DIALECT_TORCH2) return tcp_cancel(&next, code);
        int failed = tcp_redial(&next); /* PyTorch 1 has no cancel */
        return failed ? failed : TERN_E_TIMEOUT;
    }
    bool is_gone = status == -ECONNRESET || status == -EPIPE;
    return is_gone && is_recent(s, code) ? refuse_unknown(x) : tcp_fail(x, status);
}

/* ---- queries that PyTorch's servers do in several ---- */

/* Builds and runs a query of one key. */
static int converse_of_key(const exchange *x, uint8_t code, bool counted, tern__bytes key, tern__bytes value)
{
    tern__buffer query = {0};
    const uint64_t one = 1;
    bool fine = tern__buffer_append(&query, &code, sizeof(code)) &&
                (!counted || tern__buffer_append(&query, &one, sizeof(one))) &&
                tern__buffer_append_string(&query, key.data, key.bytes) &&
                (!value.data || tern__buffer_append_string(&query, value.data, value.bytes));
    int status = fine ? tcp_converse(x, tern__buffer_bytes(&query), 1)
                      : tern__error_set(x->err, x->func, TERN_E_MEMORY, "out of memory for a query");
    tern__buffer_release(&query);
    return status;
}

/* FETCH as WAIT and GET: their answers together are FETCH's. */
static int tcp_fetch(const exchange *x, tern__bytes query)
{
    tern__frame_cursor in = {query.data + 1};
    tern__bytes key = tern__take_string(&in);
    int status = converse_of_key(x, TERN__QUERY_WAIT, true, key, (tern__bytes){0});
    const exchange next = next_of(x);
    return status ? status : converse_of_key(&next, TERN__QUERY_GET, false, key, (tern__bytes){0});
}

static int multi_one_by_one(const exchange *x, tern__bytes query)
{
    bool is_set = query.data[0] == TERN__QUERY_MULTI_SET;
    tern__frame_cursor in = {query.data + 1};
    int status = TERN_OK;
    for (uint64_t left = tern__take_number(&in); left && !status; left--) {
        tern__bytes key = tern__take_string(&in), value = {0};
        if (is_set) value = tern__take_string(&in);
        status = converse_of_key(x, is_set ? TERN__QUERY_SET : TERN__QUERY_GET, false, key, value);
    }
    return status;
}

/* A push has no answer, so a ping after it tells whether the server has closed the connection. */
static int push_and_ping(const exchange *x, tern__bytes query)
{
    const uint8_t ping[5] = {TERN__QUERY_PING};
    size_t before = x->answer->bytes;
    int status = tcp_converse(x, query, 0);
    if (status) return status;
    tern__frame answer = {.field = "4"};
    int native = tern__send_all(x->store->line.fd, ping, sizeof(ping), x->prompt);
    if (!native) native = await_frame(x->store, &answer, x->prompt);
    if (!native) native = take_answer(x, &answer);
    x->answer->bytes = before;
    if (!native) return TERN_OK;
    return native == -ECONNRESET || native == -EPIPE ? refuse_unknown(x) : tcp_fail(x, native);
}

static uint64_t keys_of(tern__bytes query)
{
    tern__frame_cursor in = {query.data + 1};
    return query.data[0] == TERN__QUERY_MULTI_GET ? tern__take_number(&in) : 0;
}

static int tcp_ask(tern_store *root, tern__bytes query, int64_t deadline, tern__buffer *answer,
                   const char *func, tern_error *err)
{
    tcp_store *s = (tcp_store *)root;
    exchange x = {s, deadline, TERN__MAX(deadline, tern__deadline(prompt_s)), answer, func, err};
    uint8_t code = query.data[0];
    if (s->line.fd < 0)
        return tern__error_set(err, func, TERN_E_PEER, "the connection to %s was lost", root->where);
    bool is_multi = code == TERN__QUERY_MULTI_GET || code == TERN__QUERY_MULTI_SET;
    if (code == TERN__QUERY_FETCH && !s->line.is_tern) return tcp_fetch(&x, query);
    if (is_multi && s->line.dialect == TERN__DIALECT_TORCH1) return multi_one_by_one(&x, query);
    if (code == TERN__QUERY_QUEUE_PUSH && !s->line.is_tern && s->line.dialect == TERN__DIALECT_TORCH2)
        return push_and_ping(&x, query);
    return tcp_converse(&x, query, keys_of(query));
}

/* ---- opening ---- */

static void tcp_store_close(tern_store *root)
{
    tcp_store *s = (tcp_store *)root;
    tern__close(&s->line.fd);
    tern__server_stop(s->server);
    tern__buffer_release(&s->in);
    tern__buffer_release(&s->out);
}

static int tcp_serve(tcp_store *s, owner whose, const char *func, tern_error *err)
{
    int fd = whose == OF_JOB ? tern__listen(&s->boot, err) : tern__listen_public(&s->boot, func, err);
    if (fd < 0) return fd;
    s->boot.port = tern__port_of(fd);
    s->server = tern__server_start(fd, s->boot.secret, s->torch, func, err);
    return s->server ? TERN_OK : TERN_E_SYSTEM;
}

static tern_store *open_store(const tern__bootstrap *boot, owner whose, bool serves, double timeout_s,
                              const char *func, tern_error *err)
{
    if (tern__is_set(err) || tern__hello_init(err)) return NULL;
    tcp_store *s = tern__alloc(sizeof(*s), func, err);
    if (!s) return NULL;
    int64_t deadline = tern__deadline(timeout_s);
    s->boot = *boot;
    s->whose = whose;
    s->torch = whose == OF_PROGRAM && !boot->has_secret;
    s->line.fd = -1;
    int status = tern__store_init(&s->base, &ops, "/", func, err);
    if (!status && serves) status = tcp_serve(s, whose, func, err);
    snprintf(s->base.where, sizeof(s->base.where), "%s store at %s port %d",
             whose == OF_JOB ? "rank 0's" : "the", s->boot.addr, s->boot.port);
    if (!status) status = tern__dial(&s->line, &s->boot, s->torch, deadline, func, err);
    s->boot.listen_fd = -1;
    s->base.port = s->boot.port;
    s->base.timeout_s = timeout_s;
    if (!status) return &s->base;
    tern_store_close(&s->base);
    return NULL;
}

tern_store *tern__store_open(const tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    return open_store(boot, OF_JOB, boot->rank == 0, timeout_s, "tern_group_open", err);
}

void tern__store_stop_listening(tern_store *store)
{
    const tcp_store *s = (const tcp_store *)store;
    if (s->server) tern__server_stop_listening(s->server);
}

int tern__store_redial(tern_store *store, int64_t deadline, tern_error *err)
{
    const exchange x = {
        .store = (tcp_store *)store, .prompt = deadline, .func = "tern_group_open", .err = err};
    return tcp_redial(&x);
}

static tern_store *tcp_store_clone(tern_store *root, tern_error *err)
{
    const tcp_store *s = (const tcp_store *)root;
    return open_store(&s->boot, s->whose, false, root->timeout_s, "tern_store_clone", err);
}

static const tern__store_ops ops = {
    .ask = tcp_ask, .clone = tcp_store_clone, .close = tcp_store_close, .has_barrier = true};

tern_store_tcp_opts tern_store_tcp_defaults(void)
{
    return (tern_store_tcp_opts){
        .size = sizeof(tern_store_tcp_opts), .listen_fd = -1, .wait_for_workers = true, .timeout_s = 300};
}

/* Waits for the workers as PyTorch's store does: everyone who opens it adds 1 to a key outside all prefixes,
 * and the server waits until all have. */
static int tcp_meet(tern_store *store, const tern_store_tcp_opts *own, const char *func, tern_error *err)
{
    int64_t count = 0, deadline = tern__deadline(own->timeout_s);
    size_t prefix_bytes = store->prefix_bytes;
    store->prefix_bytes = 0;
    int status = tern_store_add(store, "init/", 1, &count, err);
    while (!status && own->is_server && count < own->world) {
        if (tern__now_ns() >= deadline) {
            status = tern__error_set(err, func, TERN_E_TIMEOUT, "%d of %d opened %s within %.3g s",
                                     (int)count, own->world, store->where, own->timeout_s);
            break;
        }
        tern__poll(NULL, 0, TERN__MIN(deadline, tern__deadline(count_interval_s)));
        status = tern_store_add(store, "init/", 0, &count, err);
    }
    store->prefix_bytes = prefix_bytes;
    return status;
}

static int tcp_read_opts(tern_store_tcp_opts *own, const tern_store_tcp_opts *opts, const char *host,
                         int port, const char *func, tern_error *err)
{
    *own = tern_store_tcp_defaults();
    int status = tern__opts_read(own, sizeof(*own), opts, func, err);
    if (status) return status;
    if (!host || !*host || strlen(host) >= sizeof(((tern__bootstrap *)0)->addr))
        return tern__error_set(err, func, TERN_E_INVALID, "expected a host name, got \"%.32s\"",
                               host ? host : "");
    if (port < 0 || port > 65535 || (!port && !own->is_server))
        return tern__error_set(err, func, TERN_E_INVALID, "expected a port, got %d%s", port,
                               port ? "" : ", which only a server can open");
    if (own->world < 0 || !(own->timeout_s > 0))
        return tern__error_set(err, func, TERN_E_INVALID,
                               "expected world >= 0 and timeout_s > 0, got world %d and timeout_s %g",
                               own->world, own->timeout_s);
    return TERN_OK;
}

tern_store *tern_store_tcp_open(const char *host, int port, const tern_store_tcp_opts *opts, tern_error *err)
{
    tern_store_tcp_opts own;
    if (tern__is_set(err) || tcp_read_opts(&own, opts, host, port, __func__, err)) return NULL;
    tern__bootstrap boot = {.world = TERN__MAX(own.world, 1), .port = port, .listen_fd = -1};
    if (own.is_server) boot.listen_fd = own.listen_fd;
    memcpy(boot.addr, host, strlen(host) + 1);
    boot.has_secret = own.secret != NULL;
    if (own.secret) memcpy(boot.secret, own.secret, sizeof(boot.secret));
    tern_store *store = open_store(&boot, OF_PROGRAM, own.is_server, own.timeout_s, __func__, err);
    if (store && own.world && own.wait_for_workers && tcp_meet(store, &own, __func__, err)) {
        tern_store_close(store);
        return NULL;
    }
    return store;
}
