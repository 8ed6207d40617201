/* accept.c - accepts the connections of the higher ranks.
 *
 * A rank may finish the meeting, work and leave while other ranks still meet, so an accepting rank also
 * serves the peers that are connected already. A rank that dies before it is connected ends the meeting at
 * once. */
#include "comm/meet/control/inner.h"
#include "comm/store/reception.h"

#include <errno.h>

static const char func[] = "tern_group_open";

/* ---- strangers ---- */

/* On this host a caller must belong to this user; a caller from the network has only its proof. */
static bool peer_greets(void *host, tern__stranger *s)
{
    const tern__control *control = host;
    int pid;
    return s->is_stream ? !tern__tcp_tune(s->fd, control->host_timeout_s) : tern__peer_is_ours(s->fd, &pid);
}

/* True if the caller is a higher rank that is not connected yet and came to the right socket for its host. */
static bool peer_expected(void *host, const tern__stranger *s)
{
    const tern__control *control = host;
    if (!tern__hello_is_for(&s->hello, TERN__PURPOSE_CONTROL, control->rank, control->world)) return false;
    if ((int)s->hello.from <= control->rank) return false;
    const tern__peer *peer = &control->peers[s->hello.from];
    return peer->fd < 0 && !peer->stream == !s->is_stream;
}

/* The welcome is sent last: a rank that has received it may leave at once, and must then be known as a peer
 * that left. */
static bool peer_admitted(void *host, tern__stranger *s)
{
    tern__control *control = host;
    tern__peer *peer = &control->peers[s->hello.from];
    int pid;
    if (peer->fd >= 0) return false;
    if (!peer->stream && tern__peer_is_ours(s->fd, &pid)) tern__peer_watch_pid(peer, pid);
    peer->fd = s->fd;
    bool is_welcome = !tern__line_welcome(control, peer);
    if (is_welcome)
        s->fd = -1; /* the peer's now */
    else
        peer->fd = -1;
    return is_welcome;
}

/* A rank has the address only from the store, so a caller that says nothing is rare: a rank whose packets are
 * lost, or a scanner of ports. Only the first one is a warning. On this host it is a rank that is stopped, of
 * which late.c warns. */
static void peer_lost(void *host, const tern__stranger *s, const char *missing)
{
    tern__control *control = host;
    bool is_first = s->is_stream && !control->lost_callers++;
    tern__log(is_first ? TERN_LOG_WARN : TERN_LOG_INFO, "rank %d: %s", control->rank, missing);
}

/* ---- the meeting ---- */

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

static int receive_peers(tern__control *control, tern__reception *r, struct pollfd *polls, tern_store *store,
                         int64_t deadline, tern_error *err)
{
    for (const tern__peer *missing; (missing = first_missing(control));) {
        if (missing->rank != control->late.awaited) tern__late_stage(control, missing->rank, true);
        int64_t until = TERN__MIN(deadline, tern__deadline(TERN__NOTE_INTERVAL_S));
        int peers_at = tern__reception_prepare(r, polls, &until);
        tern__control_prepare(control, polls + peers_at);
        int ready = tern__poll(polls, (nfds_t)(peers_at + 2 * control->world), until);
        if (ready < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "poll failed");
        int status = ready ? serve_peers(control, polls + peers_at, err) : tern__note_check(store, err);
        if (!status && !ready) tern__late_look(control);
        if (status) return status;
        if (!tern__reception_serve(r, polls)) return tern__control_fail_descriptors(control, err);
        if (tern__now_ns() >= deadline && first_missing(control))
            return tern__peer_fail_late(missing, "connect", err);
    }
    return TERN_OK;
}

int tern__control_accept(tern__control *control, tern_store *store, int64_t deadline, tern_error *err)
{
    tern__reception *r = tern__alloc(sizeof(*r), func, err);
    size_t count = TERN__RECEPTION_POLLS + 2 * (size_t)control->world;
    struct pollfd *polls = r ? tern__alloc(count * sizeof(*polls), func, err) : NULL;
    int status = TERN_E_MEMORY;
    if (polls) {
        *r = (tern__reception){.host = control,
                               .secret = control->secret,
                               .doors = {control->listen_fd, control->listen_tcp},
                               .greets = peer_greets,
                               .expects = peer_expected,
                               .admits = peer_admitted,
                               .loses = peer_lost};
        status = receive_peers(control, r, polls, store, deadline, err);
        tern__reception_close(r);
    }
    tern__free(polls);
    tern__free(r);
    return status;
}
