/* watch.c - the control thread. It sleeps in poll() on an eventfd and on every peer's socket and pidfd. A
 * peer's socket is always read to its end before its death is reported, so the peer's last message (abort,
 * goodbye) takes precedence. */
#include "comm/meet/control/inner.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define END_SECONDS  1
#define TERN__TICK_S 0.1

/* The peers get this text unchanged, so it names this rank. */
static void fail_own(tern__control *control, int code, const char *text)
{
    char who[128];
    tern_error why = {0};
    tern__rank_info_describe(&control->peers[control->rank].info, control->rank, who, sizeof(who));
    tern__error_set(&why, NULL, code, "%s failed: the control thread: %s", who, text);
    tern__control_fail(control, &why);
}

/* Makes "rank 2 (node1, pid 71) was lost: killed or exited ...". */
static tern_error peer_error(const tern__peer *peer, int native, const char *verb, const char *text)
{
    char who[128];
    tern_error why = {0};
    tern__rank_info_describe(&peer->info, peer->rank, who, sizeof(who));
    tern__error_set(&why, NULL, tern__code_here(native), "%s %s: %s", who, verb, text);
    why.native = native;
    return why;
}

/* Logs the failure before any wait: a launcher that kills the remaining ranks may be as fast as this
 * thread. */
static void say_failure(const tern__control *control, const tern_error *why)
{
    if (control->is_loud && !atomic_load(&control->failed)) tern__log(TERN_LOG_ERROR, "%s", why->text);
}

static void fail_peer(tern__control *control, const tern__peer *peer, int native, const char *verb,
                      const char *text)
{
    tern_error why = peer_error(peer, native, verb, text);
    say_failure(control, &why);
    tern__control_fail(control, &why);
}

/* The sender's text already names the rank that failed first. */
static void fail_relayed(tern__control *control, int native, const char *text)
{
    tern_error why = {0};
    tern__error_set(&why, NULL, tern__code_here(native), "%s", text);
    why.native = native;
    tern__control_fail(control, &why);
}

/* Waits until the peer's process has ended. A dying process closes its sockets before its parent can see that
 * it has ended. If the peers reported the loss and exited in between, the parent might find one of them dead
 * first and name the wrong rank. The wait is short, as the process may have closed only the socket. There is
 * none if a failure is known already or the group is being closed; the eventfd ends it. */
static void await_end(const tern__control *control, const tern__peer *peer)
{
    struct pollfd ends[] = {{.fd = peer->pidfd, .events = POLLIN},
                            {.fd = control->wake_fd, .events = POLLIN}};
    bool is_first = tern__control_is_healthy(control) && !atomic_load(&control->stop);
    if (peer->pidfd >= 0 && is_first) tern__poll(ends, TERN__COUNT(ends), tern__deadline(END_SECONDS));
}

/* Writes why a peer was lost. `native` is an errno. ENODATA: the peer's kernel has closed the connection, so
 * the process is gone. ECONNRESET means the same on this host; between hosts the peer may live and have given
 * up the connection, because it got no answer. The kernel gives a connection without answers up after
 * host_timeout_s; a router's message that it cannot forward becomes the reason. */
static void describe_loss(const tern__control *control, const tern__peer *peer, int native, char text[256])
{
    const char *own = control->peers[control->rank].info.host, *reason = strerror(native);
    const char *ended = "killed or exited without tern_group_close";
    if (native == ETIMEDOUT || native == EHOSTUNREACH || native == ENETUNREACH || native == EHOSTDOWN)
        snprintf(text, 256, "%.64s got no answer from %.64s for %g s (%.40s)", own, peer->info.host,
                 control->host_timeout_s, reason);
    else if (native == ECONNRESET && peer->stream)
        snprintf(text, 256, "%s, or it gave up its connection to %.64s (%.40s)", ended, own, reason);
    else if (native == ENODATA || native == ECONNRESET)
        snprintf(text, 256, "%s", ended);
    else
        snprintf(text, 256, "the connection between %.64s and %.64s broke (%.40s)", own, peer->info.host,
                 reason);
}

static void peer_lose(tern__control *control, tern__peer *peer, int native)
{
    char text[256];
    describe_loss(control, peer, native, text);
    peer->gone = true;
    if (atomic_load(&peer->left)) return;
    tern_error why = peer_error(peer, 0, "was lost", text);
    say_failure(control, &why);
    await_end(control, peer);
    tern__control_fail(control, &why);
}

/* After a malformed frame of a stream, the start of the next one is unknown, so nothing more is read from
 * it. */
static void fail_garbled(tern__control *control, tern__peer *peer, const char *text)
{
    peer->gone = peer->stream != NULL;
    fail_peer(control, peer, 0, "broke the protocol", text);
}

static void store_parcel(tern__control *control, tern__peer *peer, uint64_t tag, int fd)
{
    tern__parcel *parcel = tern__alloc(sizeof(*parcel), __func__, NULL);
    if (!parcel) {
        tern__close(&fd);
        fail_own(control, TERN_E_MEMORY, "no memory for a descriptor that a peer sent");
        return;
    }
    *parcel = (tern__parcel){.peer = peer->rank, .tag = tag, .fd = fd};
    pthread_mutex_lock(&control->lock);
    tern__parcel **end = &control->parcels;
    while (*end) end = &(*end)->next;
    *end = parcel;
    peer->came++;
    pthread_cond_broadcast(&control->changed);
    pthread_mutex_unlock(&control->lock);
}

static void say_goodbye_of(tern__control *control, tern__peer *peer)
{
    pthread_mutex_lock(&control->lock);
    atomic_store(&peer->left, true);
    pthread_cond_broadcast(&control->changed);
    pthread_mutex_unlock(&control->lock);
}

static void take_message(tern__control *control, tern__peer *peer, const tern__message *message, int fd)
{
    switch (message->kind) {
    case TERN__MESSAGE_GOODBYE: say_goodbye_of(control, peer); break;
    case TERN__MESSAGE_ABORT: fail_peer(control, peer, message->code, "failed", message->text); break;
    case TERN__MESSAGE_RELAY: fail_relayed(control, message->code, message->text); break;
    case TERN__MESSAGE_FD: store_parcel(control, peer, message->tag, fd); return;
    case TERN__MESSAGE_ASK: tern__control_last_answer(control, peer, message->tag); break;
    case TERN__MESSAGE_ANSWER: tern__control_last_keep(control, peer, message); break;
    default: fail_garbled(control, peer, "it sent a control message of an unknown kind");
    }
    tern__close(&fd);
}

static void fail_line(tern__control *control)
{
    fail_own(control, TERN_E_SYSTEM, "the program has closed the group's descriptors");
}

/* The program has closed the descriptor after poll returned. */
static void lose_own(tern__control *control, tern__peer *peer)
{
    peer->gone = true;
    fail_line(control);
}

/* Returns true if there may be more messages. */
static bool read_message(tern__control *control, tern__peer *peer)
{
    tern__message message;
    int fd, got = tern__line_recv(peer, &message, &fd);
    if (got == 0) return false;
    if (got > 0)
        take_message(control, peer, &message, fd);
    else if (got == -EBADMSG)
        fail_garbled(control, peer, "it sent a malformed control message");
    else if (got == -EBADF)
        lose_own(control, peer);
    else
        peer_lose(control, peer, -got);
    return true;
}

bool tern__control_serve_peer(tern__control *control, tern__peer *peer, short socket_events, short pid_events)
{
    if (peer->gone || !(socket_events | pid_events)) return false;
    if (socket_events & POLLOUT) tern__line_flush(control, peer);
    while (!peer->gone && read_message(control, peer)) continue;
    if (pid_events && !peer->gone) peer_lose(control, peer, ENODATA);
    return true;
}

static void call_wake(tern__control *control)
{
    pthread_mutex_lock(&control->wake_lock);
    if (control->wake) control->wake(control->wake_ctx);
    pthread_mutex_unlock(&control->wake_lock);
}

/* Returns true if there is a tick, and calls it. */
static bool call_tick(tern__control *control)
{
    pthread_mutex_lock(&control->wake_lock);
    bool ticks = control->tick != NULL;
    if (ticks) control->tick(control->tick_ctx);
    pthread_mutex_unlock(&control->wake_lock);
    return ticks;
}

void tern__control_prepare(tern__control *control, struct pollfd *polls)
{
    for (int rank = 0; rank < control->world; rank++) {
        const tern__peer *peer = &control->peers[rank];
        const short events = tern__line_is_waiting(control, peer) ? POLLIN | POLLOUT : POLLIN;
        *polls++ = (struct pollfd){.fd = peer->gone ? -1 : peer->fd, .events = events};
        *polls++ = (struct pollfd){.fd = peer->gone ? -1 : peer->pidfd, .events = POLLIN};
    }
}

void *tern__control_watch(void *arg)
{
    tern__control *control = arg;
    while (!atomic_load(&control->stop)) {
        struct pollfd *polls = control->polls;
        polls[0] = (struct pollfd){.fd = control->wake_fd, .events = POLLIN};
        tern__control_prepare(control, polls + 1);
        double sleep_s = call_tick(control) ? TERN__TICK_S : TERN__SLEEP_S;
        int ready = tern__poll(polls, (nfds_t)(1 + 2 * control->world), tern__deadline(sleep_s));
        if (ready < 0 || polls[0].revents & POLLNVAL) {
            if (ready < 0)
                fail_own(control, TERN_E_SYSTEM, strerror(errno));
            else
                fail_line(control);
            call_wake(control);
            break;
        }
        bool learnt = polls[0].revents != 0;
        if (learnt) tern__wake_fd_clear(control->wake_fd);
        for (int rank = 0; rank < control->world; rank++) {
            const struct pollfd *of = polls + 1 + 2 * rank;
            learnt |= tern__control_serve_peer(control, &control->peers[rank], of[0].revents, of[1].revents);
        }
        if (learnt) call_wake(control);
    }
    return NULL;
}
