/* connect.c - the calling end of control connections: opens this rank's socket and connects to the lower
 * ranks. */
#include "comm/meet/control/inner.h"
#include "comm/store/hello.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static const char func[] = "tern_group_open";
static const double retry_pause_s = 0.1;

/* ---- this rank's socket ---- */

/* The kernel chooses a free abstract name, so there is no file to clean up. */
int tern__control_listen(tern__control *control, tern__rank_info *info, tern_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    socklen_t size = sizeof(addr);
    control->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (control->listen_fd < 0 || bind(control->listen_fd, (struct sockaddr *)&addr, sizeof(sa_family_t)) ||
        listen(control->listen_fd, SOMAXCONN) ||
        getsockname(control->listen_fd, (struct sockaddr *)&addr, &size))
        return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot open the control socket");
    size_t bytes = size - offsetof(struct sockaddr_un, sun_path) - 1;
    if (bytes > sizeof(info->name))
        return tern__error_set(err, func, TERN_E_SYSTEM, "the control socket's name has %zu bytes", bytes);
    info->name_bytes = (uint32_t)bytes;
    memcpy(info->name, addr.sun_path + 1, bytes);
    return TERN_OK;
}

/* ---- peers ---- */

/* A pid from another pid namespace must not be passed here; the socket's credentials give the pid in this
 * one. */
int tern__peer_watch_pid(tern__peer *peer, int pid)
{
    if (peer->pidfd >= 0 || pid <= 0 || pid == getpid()) return 0;
    peer->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return peer->pidfd >= 0 ? 0 : errno;
}

int tern__peer_fail_lost(const tern__peer *peer, tern_error *err)
{
    char who[128];
    tern__rank_info_describe(&peer->info, peer->rank, who, sizeof(who));
    return tern__error_set(err, func, TERN_E_PEER,
                           "%s was lost: killed or exited while the ranks were meeting", who);
}

int tern__peer_fail_late(const tern__peer *peer, const char *what, tern_error *err)
{
    char who[128];
    tern__rank_info_describe(&peer->info, peer->rank, who, sizeof(who));
    return tern__error_set(err, func, TERN_E_TIMEOUT, "%s did not %s in time", who, what);
}

/* ---- connecting ---- */

bool tern__peer_is_ours(int fd, int *pid)
{
    struct ucred cred;
    socklen_t size = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size)) return false;
    *pid = cred.pid;
    return cred.uid == geteuid();
}

/* Returns 0 or an errno. If the backlog is full, connect returns EAGAIN at once: try again. */
static int connect_to(tern__control *control, int fd, const tern__rank_info *info, int64_t deadline)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    memcpy(addr.sun_path + 1, info->name, info->name_bytes);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + info->name_bytes);
    while (connect(fd, (struct sockaddr *)&addr, size)) {
        if (errno != EAGAIN && errno != EINTR) return errno;
        if (tern__now_ns() >= deadline) return ETIMEDOUT;
        tern__poll(NULL, 0, tern__now_ns() + 5000000);
        tern__late_look(control);
    }
    return 0;
}

static int fail_connection(const tern__peer *peer, const char *why, tern_error *err)
{
    char who[128];
    tern__rank_info_describe(&peer->info, peer->rank, who, sizeof(who));
    return tern__error_set(err, func, TERN_E_PEER, "no control connection to %s: %s", who, why);
}

/* Waits for the next part of the handshake until the deadline or the peer's death. Returns TERN_PENDING if
 * the peer has closed the connection. */
static int await_part(tern__control *control, tern__peer *peer, int fd, void *data, size_t bytes,
                      int64_t deadline, tern_error *err)
{
    struct pollfd polls[2] = {{.fd = fd, .events = POLLIN}, {.fd = peer->pidfd, .events = POLLIN}};
    size_t got = 0;
    for (;;) {
        int ready = tern__poll(polls, 2, TERN__MIN(deadline, tern__deadline(TERN__LATE_LOOK_S)));
        if (ready < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "poll failed");
        if (!ready && tern__now_ns() >= deadline) return tern__peer_fail_late(peer, "answer our hello", err);
        if (!ready) tern__late_look(control);
        int status = ready ? TERN_OK : tern__control_check(control, func, err);
        if (status) return status;
        if (!ready) continue;
        if (!polls[0].revents) return tern__peer_fail_lost(peer, err);
        errno = 0;
        int took = tern__recv_part(fd, peer->stream, data, bytes, &got);
        bool is_network = errno && errno != EAGAIN && errno != ECONNRESET;
        if (took > 0) return TERN_OK;
        if (took < 0 && is_network) return fail_connection(peer, strerror(errno), err);
        if (took < 0) return TERN_PENDING;
    }
}

/* TERN_PENDING if the peer has closed the connection. */
static int fail_sending(const tern__peer *peer, int native, tern_error *err)
{
    bool is_closed = native == EPIPE || native == ECONNRESET;
    return is_closed ? TERN_PENDING : fail_connection(peer, strerror(native), err);
}

/* The caller's half of the handshake. */
static int shake_hands(tern__control *control, tern__peer *peer, int fd, int64_t deadline, tern_error *err)
{
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof;
    tern__welcome welcome;
    tern__hello_make(&hello, TERN__PURPOSE_CONTROL, control->rank, peer->rank, control->world);
    int native = -tern__send_all(fd, &hello, sizeof(hello), deadline);
    if (native) return fail_sending(peer, native, err);
    int status = await_part(control, peer, fd, &challenge, sizeof(challenge), deadline, err);
    if (status) return status;
    if (!tern__hello_answer(&hello, &challenge, control->secret, &proof))
        return fail_connection(peer, "it does not know this job's secret", err);
    native = -tern__send_all(fd, &proof, sizeof(proof), deadline);
    if (native) return fail_sending(peer, native, err);
    status = await_part(control, peer, fd, &welcome, sizeof(welcome), deadline, err);
    if (status || tern__hello_is_welcome(&welcome)) return status;
    return fail_connection(peer, "its welcome is malformed", err);
}

/* Connects `fd` to a rank of this host, and checks that it belongs to this user. */
static int call_neighbour(tern__control *control, tern__peer *peer, int fd, int64_t deadline, tern_error *err)
{
    int pid = 0, native = connect_to(control, fd, &peer->info, deadline);
    if (native == ECONNREFUSED) return tern__peer_fail_lost(peer, err);
    if (native == ETIMEDOUT) return tern__peer_fail_late(peer, "accept our connection", err);
    if (native) return fail_connection(peer, strerror(native), err);
    if (!tern__peer_is_ours(fd, &pid))
        return fail_connection(peer, "its socket belongs to another user", err);
    tern__peer_watch_pid(peer, pid);
    return TERN_OK;
}

/* Each peer needs two descriptors: a socket and a pidfd. */
int tern__control_fail_descriptors(const tern__control *control, tern_error *err)
{
    return tern__error_errno(
        err, func, TERN_E_SYSTEM,
        "no free descriptor for a control connection: %d ranks need about %d (ulimit -n)", control->world,
        2 * control->world);
}

static int connect_inside(tern__control *control, tern__peer *peer, int *fd, int64_t deadline,
                          tern_error *err)
{
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *fd >= 0 ? call_neighbour(control, peer, *fd, deadline, err)
                    : tern__control_fail_descriptors(control, err);
}

/* The peer already listens (its address is published), so a host that does not answer within host_timeout_s
 * cannot be reached. This short deadline lets the two ranks concerned report that, before the ranks that wait
 * for them time out. */
static int connect_outside(const tern__control *control, tern__peer *peer, int *fd, int64_t deadline,
                           tern_error *err)
{
    const struct sockaddr_storage *at = &peer->stream->at;
    char own[128], where[128], why[320];
    *fd = tern__tcp_connect(at, TERN__MIN(deadline, tern__deadline(control->host_timeout_s)));
    int native = *fd < 0 ? -*fd : tern__tcp_tune(*fd, control->host_timeout_s);
    if (!native) return TERN_OK;
    errno = native;
    if (native == EMFILE || native == ENFILE) return tern__control_fail_descriptors(control, err);
    tern__control_describe(control, control->rank, own, sizeof(own));
    tern__tcp_text(at, where, sizeof(where));
    snprintf(why, sizeof(why), "%.100s cannot reach it at %.60s: %.60s", own, where, strerror(native));
    return fail_connection(peer, why, err);
}

static int try_connect(tern__control *control, tern__peer *peer, int64_t deadline, tern_error *err)
{
    int fd;
    int status = peer->stream ? connect_outside(control, peer, &fd, deadline, err)
                              : connect_inside(control, peer, &fd, deadline, err);
    if (!status) status = shake_hands(control, peer, fd, deadline, err);
    if (status)
        tern__close(&fd);
    else
        peer->fd = fd;
    return status;
}

/* A rank whose packets are lost, or that is stopped for a while, looks to its peer like a stranger, who gets
 * TERN__HELLO_DEADLINE_S for its hello and its proof, or has to make room for another one. So it comes again.
 */
int tern__control_connect(tern__control *control, tern__peer *peer, int64_t deadline, tern_error *err)
{
    int status = TERN_PENDING;
    for (int i = 0; i < TERN__HELLO_TRIES && status == TERN_PENDING; i++) {
        if (i) tern__poll(NULL, 0, TERN__MIN(deadline, tern__deadline(retry_pause_s)));
        status = try_connect(control, peer, deadline, err);
    }
    return status == TERN_PENDING ? fail_connection(peer, "it closed the connection without an answer", err)
                                  : status;
}
