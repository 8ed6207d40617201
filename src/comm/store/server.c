/* server.c - the TCP store's server: one thread that accepts guests (guest.h), serves them in an epoll loop,
 * and limits their number and their buffers. */
#include "comm/store/server.h"

#include "comm/store/guest.h"
#include "comm/sys.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    strangers_max = 256,         /* further ones wait in the backlog                   */
    silent_max = 256,            /* plus one for each client of PyTorch 1              */
    accept_pause_ns = 100000000, /* after an accept failed for want of a descriptor or memory */
    accepts_per_round = 64,
    events_per_round = 64,
};

static const size_t buffered_max = 256u << 20; /* in the buffers of all guests */

typedef struct guest_list {
    tern__store_guest *first, *last;
    int count;
} guest_list;

struct tern__server {
    tern__store_host host;
    int listen_fd, wake_fd, epoll, pid;
    pthread_mutex_t door; /* guards listen_fd while the thread runs */
    pthread_t thread;
    uint8_t secret[TERN__SECRET_BYTES];
    guest_list guests[TERN__STANDINGS]; /* strangers by deadline, silent ones by age  */
    guest_list closed;                  /* closed in this round                       */
    int torch1_count;                   /* known guests that are clients of PyTorch 1 */
    size_t buffered;                    /* bytes in the open guests' buffers          */
    int64_t accept_after;               /* no accept before this time                 */
    bool listens;                       /* epoll watches the listening socket         */
    atomic_bool stop;
};

/* ---- lists ---- */

static void list_add(guest_list *list, tern__store_guest *g)
{
    g->next = NULL;
    g->prev = list->last;
    *(list->last ? &list->last->next : &list->first) = g;
    list->last = g;
    list->count++;
}

static void list_remove(guest_list *list, tern__store_guest *g)
{
    *(g->prev ? &g->prev->next : &list->first) = g->next;
    *(g->next ? &g->next->prev : &list->last) = g->prev;
    list->count--;
}

static bool is_torch1(const tern__store_guest *g)
{
    return g->dialect == TERN__DIALECT_TORCH1;
}

/* Moves a guest from the list of `from` to that of its standing, or to the closed ones. The buffers of a
 * closed one no longer count, although they are freed only at the end of the round. */
static void server_move(tern__server *server, tern__store_guest *g, tern__standing from)
{
    if (!g->is_closed && g->standing == from) return;
    list_remove(&server->guests[from], g);
    server->torch1_count -= from == TERN__KNOWN && is_torch1(g);
    server->torch1_count += !g->is_closed && g->standing == TERN__KNOWN && is_torch1(g);
    if (g->is_closed) server->buffered -= g->counted;
    list_add(g->is_closed ? &server->closed : &server->guests[g->standing], g);
}

static void close_guest(tern__server *server, tern__store_guest *g)
{
    g->is_closed = true;
    server_move(server, g, g->standing);
}

/* ---- one guest ---- */

static void server_watch(const tern__server *server, tern__store_guest *g)
{
    uint32_t events = g->out.bytes ? EPOLLOUT : EPOLLIN;
    if (events == g->events || g->is_closed) return;
    struct epoll_event event = {.events = events, .data.ptr = g};
    if (epoll_ctl(server->epoll, g->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, g->fd, &event))
        g->is_closed = true;
    g->events = events;
}

static tern__store_guest *largest_guest(const tern__server *server)
{
    tern__store_guest *largest = NULL;
    for (int i = 0; i < TERN__STANDINGS; i++)
        for (tern__store_guest *g = server->guests[i].first; g; g = g->next)
            if (!largest || g->counted > largest->counted) largest = g;
    return largest;
}

/* Limits the bytes in the buffers of all guests together: over the limit, the guest with most of them is
 * closed. */
static void count_buffers(tern__server *server, tern__store_guest *g)
{
    server->buffered += g->in.cap + g->out.cap - g->counted;
    g->counted = g->in.cap + g->out.cap;
    if (server->buffered <= buffered_max) return;
    tern__store_guest *largest = largest_guest(server);
    tern__guest_refuse(&server->host, largest, "the unfinished queries of all clients are over the limit");
    server_move(server, largest, largest->standing);
}

static void guest_settle(tern__server *server, tern__store_guest *g, tern__standing from)
{
    server_watch(server, g);
    server_move(server, g, from);
    if (!g->is_closed) count_buffers(server, g);
}

static void server_serve(tern__server *server, tern__store_guest *g)
{
    tern__standing from = g->standing;
    tern__guest_run(&server->host, g);
    guest_settle(server, g, from);
}

/* Serves the woken guests: their answers must be sent, and more queries may have arrived meanwhile. */
static void serve_ready(tern__server *server)
{
    while (server->host.ready) {
        tern__store_guest *g = server->host.ready;
        server->host.ready = g->next_ready;
        g->is_ready = false;
        if (!g->is_closed) server_serve(server, g);
    }
}

static void guest_handle(tern__server *server, tern__store_guest *g, uint32_t events)
{
    tern__standing from = g->standing;
    if (g->is_closed) return;
    if (events & EPOLLOUT) tern__guest_flush(g);
    if (!g->out.bytes) tern__guest_receive(&server->host, g);
    if (from == TERN__SILENT && g->in.bytes) {
        g->standing = TERN__STRANGER;
        g->deadline = tern__deadline(TERN__HELLO_DEADLINE_S);
    }
    if (!g->is_closed) tern__guest_run(&server->host, g);
    guest_settle(server, g, from);
    serve_ready(server);
}

/* ---- all guests ---- */

static tern__store_guest *guest_new(int fd)
{
    int one = 1;
    tern__store_guest *fresh = tern__alloc(sizeof(*fresh), __func__, NULL);
    if (!fresh) return NULL;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* if it fails, answers are only slower */
    fresh->fd = fd;
    fresh->deadline = tern__deadline(TERN__HELLO_DEADLINE_S);
    return fresh;
}

/* Closes a stranger whose time is up. At a public store one that has sent nothing stays, as a silent guest.
 */
static void end_stranger(tern__server *server, tern__store_guest *g)
{
    if (server->host.is_public && g->stage == TERN__STAGE_FIRST && !g->in.bytes)
        g->standing = TERN__SILENT;
    else
        tern__guest_refuse(&server->host, g, "no proof or query in time");
    server_move(server, g, TERN__STRANGER);
}

static void end_strangers(tern__server *server)
{
    guest_list *strangers = &server->guests[TERN__STRANGER], *silent = &server->guests[TERN__SILENT];
    int64_t now = tern__now_ns(),
            extra = strangers->first ? tern__hello_extra(strangers->first->deadline) : 0;
    for (tern__store_guest *g = strangers->first; g; g = g->next) g->deadline += extra;
    while (strangers->first && now >= strangers->first->deadline) end_stranger(server, strangers->first);
    while (silent->count > silent_max + server->torch1_count) close_guest(server, silent->first);
}

/* Returns the time from which the first stranger may be closed if its slot or descriptor is needed. */
static int64_t grace_end(const tern__server *server)
{
    const tern__store_guest *first = server->guests[TERN__STRANGER].first;
    return first ? first->deadline - (int64_t)(TERN__HELLO_DEADLINE_S * 1e9) + TERN__HELLO_GRACE_NS
                 : INT64_MAX;
}

/* Frees a descriptor: that of the first stranger or, if its grace has not ended, that of a silent guest. */
static void find_descriptor(tern__server *server)
{
    tern__store_guest *silent = server->guests[TERN__SILENT].first;
    int64_t now = tern__now_ns();
    if (now >= grace_end(server)) {
        end_stranger(server, server->guests[TERN__STRANGER].first);
        return;
    }
    if (silent) close_guest(server, silent);
    server->accept_after = now + accept_pause_ns;
}

static bool is_full(const tern__server *server)
{
    return server->guests[TERN__STRANGER].count >= strangers_max;
}

/* Returns the time from which the next caller may be accepted. */
static int64_t accept_time(const tern__server *server)
{
    return is_full(server) ? TERN__MAX(server->accept_after, grace_end(server)) : server->accept_after;
}

static bool may_accept(const tern__server *server)
{
    return tern__now_ns() >= accept_time(server);
}

/* Closing alone would not remove the socket from the epoll if the process has another descriptor of it. */
static void close_door(tern__server *server)
{
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, server->listen_fd, NULL);
    tern__close(&server->listen_fd);
}

/* Returns false if no caller waits, or if there is no descriptor or memory for one more. */
static bool accept_one(tern__server *server)
{
    int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && errno == EINVAL) { /* another owner of the socket has shut it down */
        close_door(server);
        return false;
    }
    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return false;
    tern__store_guest *fresh = fd >= 0 ? guest_new(fd) : NULL;
    if (!fresh) {
        tern__close(&fd);
        find_descriptor(server);
        return false;
    }
    if (is_full(server)) end_stranger(server, server->guests[TERN__STRANGER].first);
    list_add(&server->guests[TERN__STRANGER], fresh);
    guest_settle(server, fresh, TERN__STRANGER);
    return true;
}

static void free_closed(tern__server *server)
{
    for (tern__store_guest *g; (g = server->closed.first) != NULL;) {
        list_remove(&server->closed, g);
        /* If a forked child has the descriptor, too, closing it here does not remove it from the epoll. */
        epoll_ctl(server->epoll, EPOLL_CTL_DEL, g->fd, NULL);
        tern__guest_free(&server->host, g);
    }
}

static void listen_if(tern__server *server, bool listens)
{
    struct epoll_event event = {.events = listens ? EPOLLIN : 0, .data.ptr = &server->listen_fd};
    if (listens == server->listens) return;
    pthread_mutex_lock(&server->door);
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, server->listen_fd, &event);
    pthread_mutex_unlock(&server->door);
    server->listens = listens;
}

static void accept_some(tern__server *server)
{
    pthread_mutex_lock(&server->door);
    for (int i = 0; i < accepts_per_round && server->listen_fd >= 0 && may_accept(server); i++)
        if (!accept_one(server)) break;
    pthread_mutex_unlock(&server->door);
}

/* Returns how long to sleep: until the next stranger's deadline or the end of an accept pause. Never long: a
 * program that closes all descriptors closes the wake_fd, too. */
static int sleep_ms(const tern__server *server)
{
    const tern__store_guest *next = server->guests[TERN__STRANGER].first;
    int64_t until = next ? next->deadline : INT64_MAX;
    if (!server->listens) until = TERN__MIN(until, accept_time(server));
    return tern__deadline_ms(TERN__MIN(until, tern__deadline(TERN__SLEEP_S)));
}

static void round_trip(tern__server *server)
{
    struct epoll_event events[events_per_round];
    bool knocks = false;
    listen_if(server, may_accept(server));
    int count = epoll_wait(server->epoll, events, events_per_round, sleep_ms(server));
    if (count < 0 && errno != EINTR) atomic_store(&server->stop, true); /* the program has closed the epoll */
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr == &server->wake_fd)
            continue; /* only wakes the thread, which then looks at `stop` */
        else if (events[i].data.ptr == &server->listen_fd)
            knocks = true;
        else
            guest_handle(server, events[i].data.ptr, events[i].events);
    }
    if (knocks) accept_some(server);
    end_strangers(server);
    free_closed(server);
}

static void *serve_all(void *arg)
{
    tern__server *server = arg;
    while (!atomic_load(&server->stop)) round_trip(server);
    return NULL;
}

/* ---- start and stop ---- */

static void server_release(tern__server *server)
{
    for (int i = 0; i < TERN__STANDINGS; i++)
        while (server->guests[i].first) close_guest(server, server->guests[i].first);
    free_closed(server);
    tern__table_free(server->host.table);
    tern__close(&server->listen_fd);
    tern__close(&server->wake_fd);
    tern__close(&server->epoll);
    pthread_mutex_destroy(&server->door);
    sodium_memzero(server->secret, sizeof(server->secret));
    tern__free(server);
}

static int poll_fd(const tern__server *server, const int *fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = (void *)fd};
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, *fd, &event);
}

static int server_prepare(tern__server *server, const char *func, tern_error *err)
{
    server->host.table = tern__table_new(TERN__STORE_KEYS_MAX, TERN__STORE_BYTES_MAX, func, err);
    if (!server->host.table) return TERN_E_MEMORY;
    server->wake_fd = tern__wake_fd_open(err);
    if (server->wake_fd < 0) return server->wake_fd;
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (server->epoll < 0 || poll_fd(server, &server->wake_fd) || poll_fd(server, &server->listen_fd))
        return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot make an epoll of the store's sockets");
    server->listens = true;
    return TERN_OK;
}

tern__server *tern__server_start(int listen_fd, const uint8_t secret[TERN__SECRET_BYTES], bool is_public,
                                 const char *func, tern_error *err)
{
    tern__server *server = tern__alloc(sizeof(*server), func, err);
    if (!server) {
        tern__close(&listen_fd);
        return NULL;
    }
    *server = (tern__server){.listen_fd = listen_fd,
                             .wake_fd = -1,
                             .epoll = -1,
                             .pid = getpid(),
                             .door = PTHREAD_MUTEX_INITIALIZER};
    memcpy(server->secret, secret, sizeof(server->secret));
    server->host.secret = server->secret;
    server->host.is_public = is_public;
    if (!server_prepare(server, func, err) &&
        !tern__thread_start(&server->thread, serve_all, server, "tern-store", func, err))
        return server;
    server_release(server);
    return NULL;
}

void tern__server_stop_listening(tern__server *server)
{
    pthread_mutex_lock(&server->door);
    close_door(server);
    pthread_mutex_unlock(&server->door);
}

/* A forked child has a copy of the server without its thread: it only frees the copy. */
void tern__server_stop(tern__server *server)
{
    if (!server) return;
    if (server->pid == getpid()) {
        atomic_store(&server->stop, true);
        tern__wake_fd_signal(server->wake_fd);
        pthread_join(server->thread, NULL);
    }
    server_release(server);
}
