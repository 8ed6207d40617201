/* accept.c - accepts the connections of the higher ranks.
 *
 * A rank may finish the meeting, work and leave while other ranks still meet, so an accepting rank also
 * serves the peers that are connected already. A rank that dies before it is connected ends the meeting at
 * once.
 *
 * Anybody can connect. Until it has proved that it knows the secret, a caller is a stranger: only a hello and
 * a proof are read from it, and it has a few seconds for them. A crowd of strangers cannot keep the ranks
 * out: when there is no slot or descriptor left, the oldest stranger is dropped, unless it has only just
 * come; then the doors stay closed until its grace is over or any stranger leaves. */
#include "comm/control/inner.h"
#include "comm/store/hello.h"

#include <errno.h>
#include <string.h>

static const char func[] = "tern_group_open";

enum { doors = 2 };

/* A caller that is connected but has not proved itself yet. */
typedef struct stranger {
    int fd, pid;
    bool is_stream;
    bool challenged;
    int64_t came, deadline;
    size_t got; /* of its hello, or later of its proof */
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof;
} stranger;

typedef struct reception {
    tern__control *control;
    tern_store *store;
    stranger strangers[TERN__STRANGERS_MAX];
    int count;            /* in the order in which they came */
    int64_t closed_until; /* the doors: there is no room */
    struct pollfd *polls; /* doors (this host, other hosts), strangers, socket and pidfd of each rank */
} reception;

/* On this host a caller must belong to this user; a caller from the network has only its proof. */
static bool is_presentable(const tern__control *control, stranger *s)
{
    return s->is_stream ? !tern__tcp_tune(s->fd, control->host_timeout_s)
                        : tern__peer_is_ours(s->fd, &s->pid);
}

static void make_room(reception *r)
{
    int64_t patience = r->strangers[0].came + TERN__HELLO_GRACE_NS;
    if (tern__now_ns() < patience) {
        r->closed_until = patience;
        return;
    }
    tern__close(&r->strangers[0].fd);
    memmove(r->strangers, r->strangers + 1, (size_t)--r->count * sizeof(*r->strangers));
}

static int accept_stranger(reception *r, bool is_stream, tern_error *err)
{
    int listen_fd = is_stream ? r->control->listen_tcp : r->control->listen_fd;
    if (r->count == TERN__STRANGERS_MAX) make_room(r);
    if (r->count == TERN__STRANGERS_MAX) return TERN_OK;
    stranger *s = &r->strangers[r->count];
    *s = (stranger){
        .is_stream = is_stream, .came = tern__now_ns(), .deadline = tern__deadline(TERN__HELLO_DEADLINE_S)};
    s->fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s->fd < 0 && tern__is_shortage(errno)) { /* any other error is that of the caller */
        if (!r->count) return tern__control_fail_descriptors(r->control, err);
        make_room(r);
    } else if (s->fd >= 0 && is_presentable(r->control, s)) {
        r->count++;
    } else {
        tern__close(&s->fd);
    }
    return TERN_OK;
}

/* True if the caller is a higher rank that is not connected yet and came to the right socket for its host. */
static bool is_expected(const tern__control *control, const stranger *s)
{
    if (!tern__hello_is_for(&s->hello, TERN__PURPOSE_CONTROL, control->rank, control->world)) return false;
    if ((int)s->hello.from <= control->rank) return false;
    const tern__peer *peer = &control->peers[s->hello.from];
    return peer->fd < 0 && !peer->stream == !s->is_stream;
}

static bool challenge(const tern__control *control, stranger *s)
{
    if (!is_expected(control, s)) return false;
    tern__hello_challenge(&s->hello, control->secret, &s->challenge);
    s->challenged = true;
    s->got = 0;
    return tern__line_put(s->fd, &s->challenge, sizeof(s->challenge));
}

static bool is_proved(const tern__control *control, const stranger *s)
{
    return tern__hello_is_proved(&s->hello, &s->challenge, control->secret, &s->proof) &&
           control->peers[s->hello.from].fd < 0;
}

/* The welcome is sent last: a rank that has received it may leave at once, and must then be known as a peer
 * that left. */
static bool admit(tern__control *control, const stranger *s)
{
    tern__peer *peer = &control->peers[s->hello.from];
    tern__welcome welcome;
    tern__hello_welcome(&welcome);
    if (!peer->stream) tern__peer_watch_pid(peer, s->pid);
    peer->fd = s->fd;
    if (tern__line_put(peer->fd, &welcome, sizeof(welcome))) return true;
    peer->fd = -1;
    return false;
}

static bool take_hello(const tern__control *control, stranger *s)
{
    int took = tern__line_take(s->fd, s->is_stream, &s->hello, sizeof(s->hello), &s->got);
    return took > 0 ? challenge(control, s) : took == 0;
}

static bool take_proof(tern__control *control, stranger *s)
{
    int took = tern__line_take(s->fd, s->is_stream, &s->proof, sizeof(s->proof), &s->got);
    if (took <= 0) return took == 0;
    if (!is_proved(control, s) || !admit(control, s)) return false;
    s->fd = -1; /* the peer's now */
    return true;
}

/* A stranger that makes an error is dropped, and the meeting goes on. */
static void serve_stranger(tern__control *control, stranger *s, bool readable)
{
    bool fine = tern__now_ns() < s->deadline;
    if (readable) fine &= s->challenged ? take_proof(control, s) : take_hello(control, s);
    if (!fine) tern__close(&s->fd);
}

static int64_t prepare(reception *r, int64_t deadline)
{
    tern__control *control = r->control;
    int used = 0;
    deadline = TERN__MIN(deadline, tern__deadline(TERN__NOTE_INTERVAL_S));
    bool room = tern__now_ns() >= r->closed_until;
    if (!room) deadline = TERN__MIN(deadline, r->closed_until);
    r->polls[used++] = (struct pollfd){.fd = room ? control->listen_fd : -1, .events = POLLIN};
    r->polls[used++] = (struct pollfd){.fd = room ? control->listen_tcp : -1, .events = POLLIN};
    for (int i = 0; i < r->count; i++) {
        r->polls[used++] = (struct pollfd){.fd = r->strangers[i].fd, .events = POLLIN};
        deadline = TERN__MIN(deadline, r->strangers[i].deadline);
    }
    tern__control_prepare(control, r->polls + used);
    return deadline;
}

/* The place of a stranger who goes is free at once. */
static void serve_strangers(reception *r)
{
    int count = r->count, kept = 0;
    for (int i = 0; i < count; i++)
        serve_stranger(r->control, &r->strangers[i], r->polls[doors + i].revents != 0);
    for (int i = 0; i < count; i++)
        if (r->strangers[i].fd >= 0) r->strangers[kept++] = r->strangers[i];
    r->count = kept;
    if (kept < count) r->closed_until = 0;
}

static tern__peer *first_missing(const tern__control *control)
{
    for (int rank = control->rank + 1; rank < control->world; rank++)
        if (control->peers[rank].fd < 0) return &control->peers[rank];
    return NULL;
}

/* `polls`: socket and pidfd of each rank. A rank that is not yet connected cannot have left in peace. */
static int serve_peers(tern__control *control, const struct pollfd *polls, tern_error *err)
{
    for (int rank = 0; rank < control->world; rank++) {
        tern__peer *peer = &control->peers[rank];
        const struct pollfd *of = polls + 2 * rank;
        if (of[0].fd >= 0)
            tern__control_serve_peer(control, peer, of[0].revents, of[1].revents);
        else if (of[1].revents)
            return tern__peer_fail_lost(peer, err);
    }
    return tern__control_check(control, func, err);
}

static int receive_peers(reception *r, int64_t deadline, tern_error *err)
{
    tern__control *control = r->control;
    for (const tern__peer *missing; (missing = first_missing(control));) {
        int64_t until = prepare(r, deadline);
        int peers_at = doors + r->count;
        int ready = tern__poll(r->polls, (nfds_t)(peers_at + 2 * control->world), until);
        if (ready < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "poll failed");
        int status = ready ? serve_peers(control, r->polls + peers_at, err) : tern__note_check(r->store, err);
        if (status) return status;
        serve_strangers(r);
        for (int door = 0; door < doors && !status; door++)
            if (r->polls[door].revents) status = accept_stranger(r, door == 1, err);
        if (status) return status;
        if (tern__now_ns() >= deadline && first_missing(control))
            return tern__peer_fail_late(missing, "connect", err);
    }
    return TERN_OK;
}

int tern__control_accept(tern__control *control, tern_store *store, int64_t deadline, tern_error *err)
{
    reception *r = tern__alloc(sizeof(*r), func, err);
    size_t polls = doors + TERN__STRANGERS_MAX + 2 * (size_t)control->world;
    if (r) r->polls = tern__alloc(polls * sizeof(*r->polls), func, err);
    int status = TERN_E_MEMORY;
    if (r && r->polls) {
        r->control = control;
        r->store = store;
        status = receive_peers(r, deadline, err);
        for (int i = 0; i < r->count; i++) tern__close(&r->strangers[i].fd);
    }
    if (r) tern__free(r->polls);
    tern__free(r);
    return status;
}
