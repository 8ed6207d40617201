/* sys.h - deadlines, sockets, eventfds and signal-free threads, for the store and the control plane. */
#ifndef TERN_SRC_COMM_SYS_H
#define TERN_SRC_COMM_SYS_H

#include "base/base.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

/* Returns the time, on tern__now_ns()'s clock, `seconds` from now; clamped, so that it cannot overflow. */
int64_t tern__deadline(double seconds);
/* Returns the time left in ms, for poll: rounded up; 0 once the deadline has passed. */
int tern__deadline_ms(int64_t deadline);

/* When a wait is to be reported. INT64_MAX: it has been. */
typedef struct tern__warn_time {
    int64_t at;
    bool is_put_off;
} tern__warn_time;

/* Returns the time for a wait for other ranks to come that ends at `deadline`: after 30 s, or half of a
 * shorter wait. */
tern__warn_time tern__warn_at(int64_t deadline);
/* Is it time? A process that looks a second too late was stopped itself: then it waits for one more second.
 */
bool tern__warn_is_due(tern__warn_time *time);

/* Polls until `deadline`, continuing after signals. Returns the number of ready descriptors, 0 at the
 * deadline, or -1 and errno. */
int tern__poll(struct pollfd *fds, nfds_t count, int64_t deadline);

/* True for a loopback address, IPv4 or IPv6. */
bool tern__is_loopback(const struct sockaddr *at);
/* Returns the port of an IPv4 or IPv6 address. */
int tern__port_in(const struct sockaddr_storage *at);
/* Writes an address without its port: "10.0.0.1". */
void tern__address_host(const struct sockaddr *at, char *text, size_t size);
/* Writes "10.0.0.1 port 4711", or "a process of this host" for a Unix socket. */
void tern__address_text(const struct sockaddr_storage *at, char *text, size_t size);

/* The addresses of a host that were tried in vain, for an error: "::1: Connection refused, 127.0.0.1:
 * Connection refused". If the host was given as an address, only the reason. */
typedef struct tern__tried {
    char text[256];
} tern__tried;
void tern__tried_add(tern__tried *tried, const char *host, const struct sockaddr *at, int native);

/* Returns a connected, non-blocking TCP socket, or -errno (-ETIMEDOUT at the deadline). */
int tern__connect(const struct sockaddr *at, socklen_t size, int64_t deadline);

/* Makes small messages go out at once, and the connection fail once the other host has not answered for
 * `silence_s` (1 s to a day), even while nothing is sent. From 4 s on a silence of nearly half of it is
 * survived. A stopped process does not time out, as its kernel answers. Returns 0 or an errno. */
int tern__tcp_tune(int fd, double silence_s);

/* Send or receive all `bytes`. Return 0, or -errno (-ETIMEDOUT at the deadline, -ECONNRESET at the end of the
 * stream). */
int tern__send_all(int fd, const void *data, size_t bytes, int64_t deadline);
int tern__recv_all(int fd, void *data, size_t bytes, int64_t deadline);

/* Sends what the kernel takes of the `bytes` without waiting; it may take a few at a time. Returns 1: all; 0,
 * and EAGAIN in errno: not yet (*sent bytes so far); -1 and errno. A packet is sent whole or not at all. */
int tern__send_part(int fd, const void *data, size_t bytes, size_t *sent);
/* Receives the next `bytes` without waiting, as one packet or from a stream. Returns 1: complete; 0: not yet
 * (*got bytes so far); -1: the other end has closed or sent something else. */
int tern__recv_part(int fd, bool is_stream, void *data, size_t bytes, size_t *got);

/* Starts a thread with all signals blocked. E_SYSTEM in the name of `func`. */
int tern__thread_start(pthread_t *thread, void *(*body)(void *), void *arg, const char *name,
                       const char *func, tern_error *err);

/* Threads that poll descriptors wake up this often to check that these are still open: some programs close
 * every descriptor they find. */
#define TERN__SLEEP_S 1.0

/* An eventfd that wakes a thread out of poll. Returns the descriptor, or a negative status. */
int tern__wake_fd_open(tern_error *err);
void tern__wake_fd_signal(int wake_fd);
void tern__wake_fd_clear(int wake_fd);

/* Returns how many descriptors this process may still open (ulimit -n), counting no further than `wanted`. */
int tern__descriptors_free(int wanted);

/* Closes *fd if it is open and sets it to -1. Ignores close's result: the descriptor is gone in any case. */
void tern__close(int *fd);

#endif
