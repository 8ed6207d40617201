/* sys.h - deadlines, doorbells, sockets and quiet threads, as the store and the control plane use them. */
#ifndef TERN_SRC_COMM_SYS_H
#define TERN_SRC_COMM_SYS_H

#include "base/base.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

/* A point of tern__now_ns(), never past the end of the clock. */
int64_t tern__deadline(double seconds);
/* What is left, for poll: rounded up, 0 once it has passed. */
int tern__deadline_ms(int64_t deadline);

/* poll() until `deadline`, whatever signals arrive: the number of ready descriptors, 0 at the deadline, -1
 * and errno. */
int tern__poll(struct pollfd *fds, nfds_t count, int64_t deadline);

/* An internet address of this machine alone. */
bool tern__is_loopback(const struct sockaddr *at);
/* A non-blocking TCP socket that is connected, or -errno (-ETIMEDOUT at the deadline). */
int tern__connect(const struct sockaddr *at, socklen_t size, int64_t deadline);

/* Everything or an error: 0, or -errno (-ETIMEDOUT at the deadline, -ECONNRESET at the end of the stream). */
int tern__send_all(int fd, const void *data, size_t bytes, int64_t deadline);
int tern__recv_all(int fd, void *data, size_t bytes, int64_t deadline);

/* A thread that no signal is delivered to. */
int tern__thread_start(pthread_t *thread, void *(*body)(void *), void *arg, const char *name,
                       tern_error *err);

/* Threads that wait for descriptors look after so long whether these are still there: a program may have
 * closed all that are open. */
#define TERN__SLEEP_S 1.0

/* An eventfd that wakes a thread out of poll. Returns the descriptor, or a negative status. */
int tern__bell_open(tern_error *err);
void tern__bell_ring(int bell);
void tern__bell_clear(int bell);

/* Has accept() failed for want of descriptors or memory? Any other error is the caller's, whose connection
 * has failed meanwhile. */
bool tern__is_shortage(int native);

/* How many descriptors this process may still open (ulimit -n), as far as `wanted`. */
int tern__descriptors_free(int wanted);

/* close() if open; a descriptor is gone after close, whatever it returns. */
void tern__close(int *fd);

#endif
