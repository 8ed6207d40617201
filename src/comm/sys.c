/* sys.c - deadlines, poll, sockets, threads and eventfds for the store and the control plane. */
#include "comm/sys.h"

#include "base/text.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

int64_t tern__deadline(double seconds)
{
    const double century = 100.0 * 365 * 86400;
    double clamped = seconds > 0 ? TERN__MIN(seconds, century) : 0; /* NaN counts as 0 */
    return tern__now_ns() + (int64_t)(clamped * 1e9);
}

tern__warn_time tern__warn_at(int64_t deadline)
{
    const int64_t now = tern__now_ns(), warn_ns = INT64_C(30000000000);
    return (tern__warn_time){.at = now + TERN__MIN(warn_ns, TERN__MAX(deadline - now, 0) / 2)};
}

bool tern__warn_is_due(tern__warn_time *time)
{
    const int64_t now = tern__now_ns(), second_ns = INT64_C(1000000000);
    bool is_late = !time->is_put_off && time->at < now - second_ns;
    if (is_late) *time = (tern__warn_time){now + second_ns, true};
    return now >= time->at;
}

int tern__deadline_ms(int64_t deadline)
{
    int64_t left = deadline - tern__now_ns();
    if (left <= 0) return 0;
    return (int)TERN__MIN(left / 1000000 + (left % 1000000 != 0), (int64_t)INT_MAX);
}

int tern__poll(struct pollfd *fds, nfds_t count, int64_t deadline)
{
    for (;;) {
        int timeout = tern__deadline_ms(deadline);
        int ready = poll(fds, count, timeout);
        if (ready > 0 || (ready < 0 && errno != EINTR)) return ready;
        if (ready == 0 && timeout < INT_MAX) return 0;
    }
}

/* Waits after EAGAIN. Returns 0 to try again, or -errno. */
static int poll_until(int fd, short events, int64_t deadline)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int ready = tern__poll(&poll_fd, 1, deadline);
    if (ready < 0) return -errno;
    return ready ? 0 : -ETIMEDOUT;
}

/* Waits for a started connect. Returns 0 or -errno. */
static int await_connected(int fd, int64_t deadline)
{
    int native = 0, status = poll_until(fd, POLLOUT, deadline);
    socklen_t size = sizeof(native);
    if (status) return status;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &native, &size) ? -errno : -native;
}

bool tern__is_loopback(const struct sockaddr *at)
{
    if (at->sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at)->sin6_addr);
    return at->sa_family == AF_INET &&
           ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

int tern__port_in(const struct sockaddr_storage *at)
{
    return ntohs(at->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)at)->sin6_port
                                           : ((const struct sockaddr_in *)at)->sin_port);
}

static bool is_network(const struct sockaddr *at)
{
    return at->sa_family == AF_INET || at->sa_family == AF_INET6;
}

static socklen_t iov_size(const struct sockaddr *at)
{
    return at->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

void tern__address_host(const struct sockaddr *at, char *text, size_t size)
{
    bool is_written =
        is_network(at) && !getnameinfo(at, iov_size(at), text, (socklen_t)size, NULL, 0, NI_NUMERICHOST);
    if (!is_written) snprintf(text, size, "an unknown address");
}

void tern__address_text(const struct sockaddr_storage *at, char *text, size_t size)
{
    char host[64];
    tern__address_host((const struct sockaddr *)at, host, sizeof(host));
    if (at->ss_family == AF_UNIX)
        snprintf(text, size, "a process of this host");
    else
        snprintf(text, size, "%s port %d", host, tern__port_in(at));
}

void tern__tried_add(tern__tried *tried, const char *host, const struct sockaddr *at, int native)
{
    char address[64];
    bool is_first = !*tried->text;
    tern__address_host(at, address, sizeof(address));
    bool is_named = strcmp(address, host);
    tern__text_append(tried->text, sizeof(tried->text), "%s%s%s%s", is_first ? "" : ", ",
                      is_named ? address : "", is_named ? ": " : "", strerror(native));
}

int tern__connect(const struct sockaddr *at, socklen_t size, int64_t deadline)
{
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -errno;
    int status = connect(fd, at, size) ? -errno : 0;
    if (status == -EINPROGRESS) status = await_connected(fd, deadline);
    if (!status) return fd;
    tern__close(&fd);
    return status;
}

static int set_int(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof(value)) ? errno : 0;
}

/* The kernel probes an idle connection every `pause`, a whole number of seconds. Just before each probe it
 * checks whether the last packet is `silence_s` old. An outage must therefore end before the last
 * probe but one: with few probes, one that is much shorter than `silence_s` would be fatal. Data that is not
 * acknowledged is sent again at times that double, so nearly half of `silence_s` always leaves one more try.
 */
int tern__tcp_tune(int fd, double silence_s)
{
    const double clamped = TERN__MIN(TERN__MAX(silence_s, 1.0), 86400.0);
    const int pause = TERN__MAX(1, (int)(clamped / 7));
    int native = set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (!native) native = set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    if (!native) native = set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, pause);
    if (!native) native = set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, pause);
    if (!native) native = set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(clamped * 1000));
    return native;
}

int tern__send_all(int fd, const void *data, size_t bytes, int64_t deadline)
{
    const char *at = data;
    while (bytes) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            at += sent;
            bytes -= (size_t)sent;
        } else if (errno == EAGAIN) {
            int status = poll_until(fd, POLLOUT, deadline);
            if (status) return status;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

int tern__recv_all(int fd, void *data, size_t bytes, int64_t deadline)
{
    char *at = data;
    while (bytes) {
        ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
        if (got == 0) return -ECONNRESET;
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        } else if (errno == EAGAIN) {
            int status = poll_until(fd, POLLIN, deadline);
            if (status) return status;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

int tern__send_part(int fd, const void *data, size_t bytes, size_t *sent)
{
    while (*sent < bytes) {
        ssize_t count = send(fd, (const char *)data + *sent, bytes - *sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count >= 0)
            *sent += (size_t)count;
        else if (errno != EINTR)
            return errno == EAGAIN ? 0 : -1;
    }
    return 1;
}

/* A packet is either complete or wrong; the rest of a stream's part may still arrive. */
int tern__recv_part(int fd, bool is_stream, void *data, size_t bytes, size_t *got)
{
    ssize_t count;
    do count = recv(fd, (char *)data + *got, bytes - *got, MSG_DONTWAIT | (is_stream ? 0 : MSG_TRUNC));
    while (count < 0 && errno == EINTR);
    if (count < 0) return errno == EAGAIN ? 0 : -1;
    *got += (size_t)count;
    if (*got == bytes) return 1;
    return is_stream && count > 0 ? 0 : -1;
}

int tern__thread_start(pthread_t *thread, void *(*body)(void *), void *arg, const char *name,
                       const char *func, tern_error *err)
{
    int status = tern__thread_new(thread, NULL, body, arg);
    if (status) {
        errno = status;
        return tern__error_errno(
            err, func, TERN_E_SYSTEM,
            "cannot start the %s thread: the limits are ulimit -u, and pids.max of the cgroup", name);
    }
    pthread_setname_np(*thread, name);
    return TERN_OK;
}

int tern__wake_fd_open(tern_error *err)
{
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0)
        return tern__error_errno(err, "tern_group_open", TERN_E_SYSTEM, "cannot make an eventfd");
    return wake_fd;
}

void tern__wake_fd_signal(int wake_fd)
{
    uint64_t one = 1;
    while (write(wake_fd, &one, sizeof(one)) < 0 && errno == EINTR) continue;
}

void tern__wake_fd_clear(int wake_fd)
{
    uint64_t rings;
    while (read(wake_fd, &rings, sizeof(rings)) < 0 && errno == EINTR) continue;
}

int tern__descriptors_free(int wanted)
{
    int found = 0;
    struct rlimit limit = {.rlim_cur = INT_MAX};
    getrlimit(RLIMIT_NOFILE, &limit);
    int end = (int)TERN__MIN(limit.rlim_cur, (rlim_t)INT_MAX);
    for (int fd = 0; fd < end && found < wanted; fd++) found += fcntl(fd, F_GETFD) < 0;
    return found;
}

void tern__close(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}
