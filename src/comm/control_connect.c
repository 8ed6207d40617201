/* Control connections: the own socket, the way to a lower rank, and the reception of the higher ones. A rank
 * may be done, work and leave while others still meet, so whoever accepts also listens to those who are
 * connected; but a rank that dies before it is connected ends the meeting at once. */
#include "comm/control_inner.h"
#include "comm/store/hello.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static const char func[] = "tern_group_open";

/* ---- the own socket ---- */

/* The kernel chooses a free abstract name: nothing in the file system, nothing to clean up. */
int tern__control_listen(tern__control *control, tern__card *card, tern_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    socklen_t size = sizeof(addr);
    control->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (control->listen_fd < 0 || bind(control->listen_fd, (struct sockaddr *)&addr, sizeof(sa_family_t)) ||
        listen(control->listen_fd, SOMAXCONN) ||
        getsockname(control->listen_fd, (struct sockaddr *)&addr, &size))
        return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot open the control socket");
    size_t bytes = size - offsetof(struct sockaddr_un, sun_path) - 1;
    if (bytes > sizeof(card->name))
        return tern__error_set(err, func, TERN_E_SYSTEM, "the control socket's name has %zu bytes", bytes);
    card->name_bytes = (uint32_t)bytes;
    memcpy(card->name, addr.sun_path + 1, bytes);
    return TERN_OK;
}

/* ---- peers ---- */

/* A process of another pid namespace has another number here: the socket's credentials will tell it. */
int tern__peer_watch_pid(tern__peer *peer, int pid)
{
    if (peer->pidfd >= 0 || pid <= 0 || pid == getpid()) return 0;
    peer->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return peer->pidfd >= 0 ? 0 : errno;
}

int tern__peer_fail_lost(const tern__peer *peer, tern_error *err)
{
    char who[128];
    tern__card_describe(&peer->card, peer->rank, who, sizeof(who));
    return tern__error_set(err, func, TERN_E_PEER,
                           "%s was lost: killed or exited while the ranks were meeting", who);
}

/* ---- calling ---- */

/* Is the other end of this user? Also finds the pid by which this process sees it. */
static bool is_ours(int fd, int *pid)
{
    struct ucred cred;
    socklen_t size = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size)) return false;
    *pid = cred.pid;
    return cred.uid == geteuid();
}

static bool send_packet(int fd, const void *data, size_t bytes)
{
    ssize_t sent;
    do sent = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes;
}

static bool recv_packet(int fd, void *data, size_t bytes)
{
    ssize_t got;
    do got = recv(fd, data, bytes, MSG_DONTWAIT | MSG_TRUNC);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)bytes;
}

/* 0, or an errno. A full backlog says EAGAIN at once: try again. */
static int connect_to(int fd, const tern__card *card, int64_t deadline)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    memcpy(addr.sun_path + 1, card->name, card->name_bytes);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + card->name_bytes);
    while (connect(fd, (struct sockaddr *)&addr, size)) {
        if (errno != EAGAIN && errno != EINTR) return errno;
        if (tern__now_ns() >= deadline) return ETIMEDOUT;
        tern__poll(NULL, 0, tern__now_ns() + 5000000);
    }
    return 0;
}

static int fail_connection(const tern__peer *peer, const char *why, tern_error *err)
{
    char who[128];
    tern__card_describe(&peer->card, peer->rank, who, sizeof(who));
    return tern__error_set(err, func, TERN_E_PEER, "no control connection to %s: %s", who, why);
}

static int fail_late(const tern__peer *peer, const char *what, tern_error *err)
{
    char who[128];
    tern__card_describe(&peer->card, peer->rank, who, sizeof(who));
    return tern__error_set(err, func, TERN_E_TIMEOUT, "%s did not %s in time", who, what);
}

/* The next packet of a handshake, awaited as long as the peer lives. */
static int await_packet(tern__peer *peer, int fd, void *data, size_t bytes, int64_t deadline, tern_error *err)
{
    struct pollfd polls[2] = {{.fd = fd, .events = POLLIN}, {.fd = peer->pidfd, .events = POLLIN}};
    int ready = tern__poll(polls, 2, deadline);
    if (ready < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "poll failed");
    if (!ready) return fail_late(peer, "answer our hello", err);
    if (!polls[0].revents) return tern__peer_fail_lost(peer, err);
    return recv_packet(fd, data, bytes) ? TERN_OK : fail_connection(peer, "it refused our hello", err);
}

/* The caller's half of the handshake. */
static int shake_hands(const tern__control *control, tern__peer *peer, int fd, int64_t deadline,
                       tern_error *err)
{
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof;
    tern__welcome welcome;
    tern__hello_make(&hello, TERN__PURPOSE_CONTROL, control->rank, peer->rank, control->world);
    if (!send_packet(fd, &hello, sizeof(hello))) return fail_connection(peer, strerror(errno), err);
    int status = await_packet(peer, fd, &challenge, sizeof(challenge), deadline, err);
    if (status) return status;
    if (!tern__hello_answer(&hello, &challenge, control->secret, &proof))
        return fail_connection(peer, "it does not know this job's secret", err);
    if (!send_packet(fd, &proof, sizeof(proof))) return fail_connection(peer, strerror(errno), err);
    status = await_packet(peer, fd, &welcome, sizeof(welcome), deadline, err);
    if (status || tern__hello_is_welcome(&welcome)) return status;
    return fail_connection(peer, "its welcome is malformed", err);
}

static int introduce(const tern__control *control, tern__peer *peer, int fd, int64_t deadline,
                     tern_error *err)
{
    int pid = 0, native = connect_to(fd, &peer->card, deadline);
    if (native == ECONNREFUSED) return tern__peer_fail_lost(peer, err);
    if (native == ETIMEDOUT) return fail_late(peer, "accept our connection", err);
    if (native) return fail_connection(peer, strerror(native), err);
    if (!is_ours(fd, &pid)) return fail_connection(peer, "its socket belongs to another user", err);
    int status = shake_hands(control, peer, fd, deadline, err);
    if (!status) tern__peer_watch_pid(peer, pid);
    return status;
}

/* Each peer takes two descriptors: a socket and a pidfd. */
static int fail_descriptors(const tern__control *control, tern_error *err)
{
    return tern__error_errno(err, func, TERN_E_SYSTEM,
                             "no descriptor for a control connection, %d ranks need about %d", control->world,
                             2 * control->world);
}

int tern__control_connect(const tern__control *control, tern__peer *peer, int64_t deadline, tern_error *err)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return fail_descriptors(control, err);
    int status = introduce(control, peer, fd, deadline, err);
    if (status)
        tern__close(&fd);
    else
        peer->fd = fd;
    return status;
}

/* ---- accepting ---- */

enum { strangers_max = 64 };

/* Connected, but not yet proved. */
typedef struct stranger {
    int fd, pid;
    bool challenged;
    int64_t deadline;
    tern__hello hello;
    tern__challenge challenge;
} stranger;

typedef struct reception {
    tern__control *control;
    tern__store *store;
    stranger strangers[strangers_max];
    int count;
    struct pollfd *polls; /* listener, strangers, socket and pidfd of each rank */
} reception;

static int accept_stranger(reception *r, tern_error *err)
{
    stranger *s = &r->strangers[r->count];
    *s = (stranger){.deadline = tern__deadline(TERN__HELLO_DEADLINE_S)};
    s->fd = accept4(r->control->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s->fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        return fail_descriptors(r->control, err);
    if (s->fd >= 0 && is_ours(s->fd, &s->pid))
        r->count++;
    else
        tern__close(&s->fd);
    return TERN_OK;
}

static bool challenge(const tern__control *control, stranger *s)
{
    if (!recv_packet(s->fd, &s->hello, sizeof(s->hello)) ||
        !tern__hello_is_for(&s->hello, TERN__PURPOSE_CONTROL, control->rank, control->world))
        return false;
    int from = (int)s->hello.from;
    if (from <= control->rank || control->peers[from].fd >= 0) return false;
    tern__hello_challenge(&s->hello, control->secret, &s->challenge);
    s->challenged = true;
    return send_packet(s->fd, &s->challenge, sizeof(s->challenge));
}

static bool is_proved(const tern__control *control, const stranger *s)
{
    tern__proof proof;
    return recv_packet(s->fd, &proof, sizeof(proof)) &&
           tern__hello_is_proved(&s->hello, &s->challenge, control->secret, &proof) &&
           control->peers[s->hello.from].fd < 0;
}

/* The welcome comes last: whoever has it may leave at once, and is then known as one who left. */
static bool admit(tern__control *control, const stranger *s)
{
    tern__peer *peer = &control->peers[s->hello.from];
    tern__welcome welcome;
    tern__hello_welcome(&welcome);
    tern__peer_watch_pid(peer, s->pid);
    peer->fd = s->fd;
    if (send_packet(peer->fd, &welcome, sizeof(welcome))) return true;
    peer->fd = -1;
    return false;
}

/* Takes the stranger's next packet; whoever errs is shown the door, and the meeting goes on. */
static void serve_stranger(tern__control *control, stranger *s, bool readable)
{
    bool fine = tern__now_ns() < s->deadline;
    if (readable && s->challenged) {
        fine = is_proved(control, s) && admit(control, s);
        if (fine) s->fd = -1; /* the peer's now */
    } else if (readable) {
        fine = challenge(control, s);
    }
    if (!fine) tern__close(&s->fd);
}

static int64_t prepare(reception *r, int64_t deadline)
{
    const tern__control *control = r->control;
    int used = 0;
    deadline = TERN__MIN(deadline, tern__deadline(TERN__NOTE_INTERVAL_S));
    bool room = r->count < strangers_max;
    r->polls[used++] = (struct pollfd){.fd = room ? control->listen_fd : -1, .events = POLLIN};
    for (int i = 0; i < r->count; i++) {
        r->polls[used++] = (struct pollfd){.fd = r->strangers[i].fd, .events = POLLIN};
        deadline = TERN__MIN(deadline, r->strangers[i].deadline);
    }
    tern__control_prepare(control, r->polls + used);
    return deadline;
}

static void serve_strangers(reception *r)
{
    int count = r->count, kept = 0;
    for (int i = 0; i < count; i++)
        serve_stranger(r->control, &r->strangers[i], r->polls[1 + i].revents != 0);
    for (int i = 0; i < count; i++)
        if (r->strangers[i].fd >= 0) r->strangers[kept++] = r->strangers[i];
    r->count = kept;
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
        int peers_at = 1 + r->count;
        int ready = tern__poll(r->polls, (nfds_t)(peers_at + 2 * control->world), until);
        if (ready < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "poll failed");
        int status = ready ? serve_peers(control, r->polls + peers_at, err) : tern__note_check(r->store, err);
        if (status) return status;
        serve_strangers(r);
        if (r->polls[0].revents) status = accept_stranger(r, err);
        if (status) return status;
        if (tern__now_ns() >= deadline && first_missing(control)) return fail_late(missing, "connect", err);
    }
    return TERN_OK;
}

int tern__control_accept(tern__control *control, tern__store *store, int64_t deadline, tern_error *err)
{
    reception *r = tern__alloc(sizeof(*r), func, err);
    size_t polls = 1 + strangers_max + 2 * (size_t)control->world;
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
