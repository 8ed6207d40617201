/* dial.c - the client's end of a store's connection: connecting, the handshake or PyTorch's greeting,
 * retries, and the errors that say why it failed. */
#include "comm/store/listen.h"

#include "comm/store/hello.h"
#include "comm/store/store.h"
#include "comm/sys.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum {
    attempt_seconds = 10, /* a host that does not answer must not use up the whole deadline */
    pause_first_ms = 10,
    pause_last_ms = 1000,
};

/* The kind of server to connect to. */
typedef struct party {
    tern__purpose purpose;
    const char *name, *caller; /* names for errors; caller NULL: this process */
    const char *hint;          /* why a correct address may not answer        */
    bool torch;                /* greet as PyTorch's clients do               */
} party;

static const party store = {TERN__PURPOSE_STORE, "rank 0's store", "rank",
                            "; it accepts nobody once all ranks have met: does this rank run already?",
                            false};
static const party public_store = {TERN__PURPOSE_STORE, "the store", NULL, "", true};
static const party node_0 = {TERN__PURPOSE_NODES, "node 0's tern run", "node", "", false};

typedef struct dialer {
    const tern__bootstrap *boot;
    const party *callee;
    int64_t start, deadline;
    tern__warn_time warn; /* of the wait */
    int mark;             /* tells other ranks of this host that this one waits; -1: it does not yet */
    int claim;            /* on the warning of rank 0; -1: it has not warned */
    int attempts, hangups;
    /* Of the last failure: */
    const char *why;                 /* a static string, or NULL: `tried` */
    int native;                      /* the errno of the last address, or 0 */
    tern__tried tried;               /* the addresses */
    struct sockaddr_storage address; /* the one that has answered */
    bool is_unanswered;              /* an address has refused the connection, or has not answered */
    /* Conditions in which another attempt is useless: */
    bool refused;  /* the server is not the right one        */
    bool is_down;  /* the loopback interface is down         */
    bool is_spent; /* no file descriptor is left             */
} dialer;

static int dial_failed(dialer *d, int native)
{
    d->native = native;
    d->why = NULL;
    d->is_spent = native == EMFILE || native == ENFILE;
    d->is_unanswered |= native == ECONNREFUSED || native == ETIMEDOUT;
    return -1;
}

static int fail_address(dialer *d, const struct sockaddr *at, int native)
{
    tern__tried_add(&d->tried, d->boot->addr, at, native);
    return dial_failed(d, native);
}

/* A resolver that cannot open a file reports the name as unknown. errno has the real reason. */
static int fail_unresolved(dialer *d, int unresolved)
{
    dial_failed(d, errno);
    if (d->is_spent) return -1;
    d->why = gai_strerror(unresolved);
    d->native = 0;
    d->is_unanswered = false;
    return -1;
}

/* A job's ranks wait for the answer of a rank 0 that is stopped, but not for that of a host that is gone. */
static int tune_socket(const dialer *d, int fd)
{
    const double silence_s = 15;
    int one = 1;
    if (d->callee == &store) return tern__tcp_tune(fd, silence_s);
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) ? errno : 0;
}

static int connect_to(dialer *d, const struct addrinfo *at)
{
    int64_t deadline = TERN__MIN(d->deadline, tern__deadline(attempt_seconds));
    int fd = tern__connect(at->ai_addr, at->ai_addrlen, deadline);
    d->is_down &= fd == -ENETUNREACH && tern__is_loopback(at->ai_addr);
    if (fd < 0) return fail_address(d, at->ai_addr, -fd);
    memcpy(&d->address, at->ai_addr, at->ai_addrlen);
    int native = tune_socket(d, fd);
    if (!native) return fd;
    tern__close(&fd);
    return fail_address(d, at->ai_addr, native);
}

static int connect_any(dialer *d)
{
    char port[16];
    snprintf(port, sizeof(port), "%d", d->boot->port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list;
    *d->tried.text = '\0';
    d->is_unanswered = false;
    errno = 0;
    int unresolved = getaddrinfo(d->boot->addr, port, &hints, &list);
    if (unresolved) return fail_unresolved(d, unresolved);
    int fd = -1;
    d->is_down = true; /* unless one address fails for another reason */
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) fd = connect_to(d, at);
    freeaddrinfo(list);
    return fd;
}

/* A rank that waits for rank 0 makes its mark, so that others of its host need not report it as missing. */
static void make_mark(dialer *d)
{
    if (d->callee == &store && d->boot->rank && d->mark < 0) d->mark = tern__mark_make(d->boot);
}

/* On each host the lowest rank that waits reports, once, that rank 0 has not come, and which other ranks of
 * its host have not. */
static void warn_late(dialer *d)
{
    char others[320];
    const tern__bootstrap *boot = d->boot;
    if (!tern__warn_is_due(&d->warn)) return;
    d->warn.at = INT64_MAX;
    if (d->callee != &store || !boot->rank || !tern__mark_missing(boot, others, sizeof(others))) return;
    d->claim = tern__mark_claim(boot, 0);
    if (d->claim < 0 && errno == EADDRINUSE) return;
    tern__log(TERN_LOG_WARN,
              "rank %d has waited %.3g s in tern_group_open for rank 0, which does not answer at %s port %d: "
              "has it not come, or is it stopped?%s",
              boot->rank, (double)(tern__now_ns() - d->start) * 1e-9, boot->addr, boot->port, others);
}

/* The launcher's socket takes connections before rank 0 answers them, and rank 0 may stop in the middle. */
static void await_answer(dialer *d, int fd)
{
    const double soon_s = 0.1;
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    if (d->warn.at >= d->deadline || tern__poll(&answer, 1, tern__deadline(soon_s))) return;
    make_mark(d);
    while (d->warn.at < d->deadline && tern__poll(&answer, 1, d->warn.at) == 0) warn_late(d);
}

/* ---- greetings: return 0 or -errno. They wait for the answer until the deadline, because the launcher
 * listens before rank 0 serves. ---- */

static int greet_tern(dialer *d, int fd)
{
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof;
    tern__hello_make(&hello, d->callee->purpose, d->boot->rank, 0, d->boot->world);
    int status = tern__send_all(fd, &hello, sizeof(hello), d->deadline);
    if (!status) await_answer(d, fd);
    if (!status) status = tern__recv_all(fd, &challenge, sizeof(challenge), d->deadline);
    if (status) return status;
    if (!tern__hello_answer(&hello, &challenge, d->boot->secret, &proof)) {
        d->why = d->boot->has_secret
                     ? "it does not know this job's secret"
                     : "it is not tern, or it has a secret and this job has none (TERN_SECRET)";
        d->refused = true;
        return -EACCES;
    }
    tern__welcome welcome;
    status = tern__send_all(fd, &proof, sizeof(proof), d->deadline);
    if (!status) await_answer(d, fd);
    if (!status) status = tern__recv_all(fd, &welcome, sizeof(welcome), d->deadline);
    return status || tern__hello_is_welcome(&welcome) ? status : -EPROTO;
}

/* The server returns the PING's number. A tern server answers our clients' number with its own. */
static int greet_torch2(const dialer *d, tern__line *line)
{
    uint8_t hello[10] = {TERN__VALIDATE, [5] = TERN__QUERY_PING};
    const uint32_t magic = TERN__MAGIC, asks = TERN__PING_ASKS;
    uint32_t answer;
    memcpy(hello + 1, &magic, sizeof(magic));
    memcpy(hello + 6, &asks, sizeof(asks));
    int status = tern__send_all(line->fd, hello, sizeof(hello), d->deadline);
    if (!status) status = tern__recv_all(line->fd, &answer, sizeof(answer), d->deadline);
    if (status) return status;
    line->dialect = TERN__DIALECT_TORCH2;
    line->is_tern = answer == TERN__PING_IS_TERN;
    return line->is_tern || answer == asks ? 0 : -EPROTO;
}

/* Version 1 has no greeting, so this asks a query that changes nothing. */
static int greet_torch1(const dialer *d, tern__line *line)
{
    uint8_t ask = tern__code_to(TERN__DIALECT_TORCH1, TERN__QUERY_NUM_KEYS);
    int64_t keys;
    line->dialect = TERN__DIALECT_TORCH1;
    line->is_tern = false;
    int status = tern__send_all(line->fd, &ask, sizeof(ask), d->deadline);
    if (!status) status = tern__recv_all(line->fd, &keys, sizeof(keys), d->deadline);
    return status || keys >= 0 ? status : -EPROTO;
}

static bool hung_up(int status)
{
    return status && status != -ETIMEDOUT;
}

static int greet_server(dialer *d, tern__line *line)
{
    if (!d->callee->torch) {
        line->dialect = TERN__DIALECT_TORCH2;
        line->is_tern = true;
        return greet_tern(d, line->fd);
    }
    int status = greet_torch2(d, line);
    if (!hung_up(status)) return status;
    tern__close(&line->fd);
    line->fd = connect_any(d);
    return line->fd < 0 ? status : greet_torch1(d, line);
}

static bool dial_once(dialer *d, tern__line *line)
{
    d->attempts++;
    line->fd = connect_any(d);
    if (line->fd < 0) return false;
    int status = greet_server(d, line);
    if (!status) return true;
    tern__close(&line->fd);
    if (d->refused) return false;
    /* A store that is shutting down closes one connection, a foreign service all. */
    if (hung_up(status) && ++d->hangups >= TERN__HELLO_TRIES) {
        d->why = d->callee->torch
                     ? "it closes the connection: it is not a store, or it requires a secret"
                     : "it closes the connection: it belongs to another job or another version of tern";
        d->refused = true;
        return false;
    }
    fail_address(d, (const struct sockaddr *)&d->address, -status);
    return false;
}

/* Sleeps for a random time between half the pause and all of it. The pause grows by half each time. */
static void pause_dialing(const dialer *d, int *pause_ms)
{
    uint32_t half = (uint32_t)*pause_ms / 2;
    int64_t until = tern__now_ns() + (half + randombytes_uniform(half + 1)) * INT64_C(1000000);
    tern__poll(NULL, 0, TERN__MIN(until, d->deadline));
    *pause_ms = TERN__MIN(*pause_ms * 3 / 2, (int)pause_last_ms);
}

static void name_caller(const dialer *d, char *text, size_t size)
{
    if (d->callee->caller)
        snprintf(text, size, "%s %d", d->callee->caller, d->boot->rank);
    else
        snprintf(text, size, "this process");
}

static int fail_spent(const dialer *d, const char *caller, const char *func, tern_error *err)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    errno = d->native;
    return tern__error_errno(err, func, TERN_E_SYSTEM,
                             "%s has no file descriptor left to connect to %s at %s port %d (limit %llu): "
                             "raise the limit (%s)",
                             caller, d->callee->name, d->boot->addr, d->boot->port,
                             (unsigned long long)limit.rlim_cur,
                             d->native == EMFILE ? "ulimit -n" : "sysctl fs.file-max");
}

/* Returns the server's hint if nothing answered the last attempt. */
static const char *hint_of(const dialer *d)
{
    return d->is_unanswered ? d->callee->hint : "";
}

static int dial_give_up(const dialer *d, const char *func, tern_error *err)
{
    char caller[32];
    const tern__bootstrap *boot = d->boot;
    const char *why = d->why ? d->why : d->tried.text;
    double seconds = (double)(tern__now_ns() - d->start) * 1e-9;
    name_caller(d, caller, sizeof(caller));
    if (d->is_spent) return fail_spent(d, caller, func, err);
    if (d->refused)
        return tern__error_set(err, func, TERN_E_PEER, "the server at %s port %d refused %s: %s", boot->addr,
                               boot->port, caller, why);
    int code = tern__error_set(err, func, d->is_down ? TERN_E_SYSTEM : TERN_E_TIMEOUT,
                               "cannot reach %s at %s port %d: %d attempt%s in %.1f s, the last: %s%s",
                               d->callee->name, boot->addr, boot->port, d->attempts,
                               d->attempts == 1 ? "" : "s", seconds, why, hint_of(d));
    if (err && err->code == code) err->native = d->native;
    return code;
}

static int dial_until(const party *callee, tern__line *line, const tern__bootstrap *boot, int64_t deadline,
                      const char *func, tern_error *err)
{
    int status = TERN_OK;
    dialer d = {.boot = boot,
                .callee = callee,
                .start = tern__now_ns(),
                .deadline = deadline,
                .mark = -1,
                .claim = -1};
    d.warn = tern__warn_at(deadline);
    for (int pause_ms = pause_first_ms; !dial_once(&d, line); pause_dialing(&d, &pause_ms)) {
        make_mark(&d);
        warn_late(&d);
        bool is_over = d.refused || d.is_down || d.is_spent || tern__now_ns() >= deadline;
        if (is_over) status = dial_give_up(&d, func, err);
        if (is_over) break;
    }
    tern__close(&d.mark);
    tern__close(&d.claim);
    return status;
}

int tern__dial(tern__line *line, const tern__bootstrap *boot, bool torch, int64_t deadline, const char *func,
               tern_error *err)
{
    return dial_until(torch ? &public_store : &store, line, boot, deadline, func, err);
}

int tern__dial_node(const tern__bootstrap *boot, int64_t deadline, tern_error *err)
{
    tern__line line;
    int status = dial_until(&node_0, &line, boot, deadline, "tern_group_open", err);
    return status ? status : line.fd;
}
