/* partial.c - preloaded into a test, it lets a call move one to seven bytes of a stream at a time, gives
 * sockets the smallest buffers, and interrupts the process a thousand times a second by a signal whose
 * handler does not restart system calls. All of this is what a kernel may do at any time.
 *
 * Sockets that keep the boundaries of messages are left alone, and so are writes to a pipe of at most
 * PIPE_BUF bytes, which POSIX promises to be whole, and reads of the few bytes of a report that was
 * written in this way. And so is gloo's number of eight bytes by which its connections begin: since 2023 gloo
 * gives up a connection where that comes in parts. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

/* ---- how much ---- */

static size_t part_of(size_t bytes)
{
    static _Thread_local unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    size_t part = 1 + (state >> 16) % 7;
    return part < bytes ? part : bytes;
}

static bool is_stream(int fd)
{
    int type = 0;
    socklen_t size = sizeof(type);
    return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_STREAM;
}

static bool is_pipe(int fd)
{
    struct stat info;
    return !fstat(fd, &info) && S_ISFIFO(info.st_mode);
}

static size_t readable(int fd, size_t bytes)
{
    const size_t report = 64;
    return is_stream(fd) || (bytes > report && is_pipe(fd)) ? part_of(bytes) : bytes;
}

static size_t writable(int fd, size_t bytes)
{
    return is_stream(fd) || (bytes > PIPE_BUF && is_pipe(fd)) ? part_of(bytes) : bytes;
}

static size_t total_of(const struct iovec *vector, size_t count)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++) total += vector[i].iov_len;
    return total;
}

/* Cuts a copy of the list to `bytes` bytes and returns its length. */
static size_t cut(struct iovec *to, const struct iovec *from, size_t count, size_t bytes)
{
    size_t i = 0;
    for (; i < count && bytes; i++) {
        to[i] = from[i];
        if (to[i].iov_len > bytes) to[i].iov_len = bytes;
        bytes -= to[i].iov_len;
    }
    return i;
}

/* ---- the calls ---- */

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The address is looked up once. */
#define CALL(name, ...)                                                                                      \
    ({                                                                                                       \
        static __typeof__(&name) next_;                                                                      \
        if (!next_) next_ = NEXT(name);                                                                      \
        next_(__VA_ARGS__);                                                                                  \
    })

/* True for the number of a gloo that has an error for one that comes in parts. */
static bool is_gloo_number(void *caller, size_t bytes)
{
    Dl_info info;
    if (bytes != 8 || !dladdr(caller, &info) || !strstr(info.dli_fname, "libgloo.so")) return false;
    void *library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    bool has_error = library && dlsym(library, "_ZTIN4gloo9transport3tcp14ShortReadErrorE");
    if (library) dlclose(library);
    return has_error;
}

ssize_t read(int fd, void *data, size_t bytes)
{
    bool is_whole = is_gloo_number(__builtin_return_address(0), bytes);
    return CALL(read, fd, data, is_whole ? bytes : readable(fd, bytes));
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    bool is_whole = is_gloo_number(__builtin_return_address(0), bytes);
    return CALL(write, fd, data, is_whole ? bytes : writable(fd, bytes));
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
    return CALL(recv, fd, data, flags & MSG_WAITALL ? bytes : readable(fd, bytes), flags);
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    return CALL(send, fd, data, writable(fd, bytes), flags);
}

ssize_t recvfrom(int fd, void *data, size_t bytes, int flags, struct sockaddr *restrict from,
                 socklen_t *restrict size)
{
    return CALL(recvfrom, fd, data, flags & MSG_WAITALL ? bytes : readable(fd, bytes), flags, from, size);
}

ssize_t sendto(int fd, const void *data, size_t bytes, int flags, const struct sockaddr *to, socklen_t size)
{
    return CALL(sendto, fd, data, writable(fd, bytes), flags, to, size);
}

ssize_t readv(int fd, const struct iovec *vector, int count)
{
    struct iovec part[IOV_MAX];
    size_t all = total_of(vector, (size_t)count);
    return CALL(readv, fd, part, (int)cut(part, vector, (size_t)count, readable(fd, all)));
}

ssize_t writev(int fd, const struct iovec *vector, int count)
{
    struct iovec part[IOV_MAX];
    size_t all = total_of(vector, (size_t)count);
    return CALL(writev, fd, part, (int)cut(part, vector, (size_t)count, writable(fd, all)));
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    struct iovec part[IOV_MAX];
    struct msghdr own = *message;
    size_t all = total_of(message->msg_iov, message->msg_iovlen);
    own.msg_iov = part;
    own.msg_iovlen = cut(part, message->msg_iov, message->msg_iovlen, readable(fd, all));
    ssize_t got = CALL(recvmsg, fd, &own, flags);
    message->msg_namelen = own.msg_namelen;
    message->msg_controllen = own.msg_controllen;
    message->msg_flags = own.msg_flags;
    return got;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct iovec part[IOV_MAX];
    struct msghdr own = *message;
    size_t all = total_of(message->msg_iov, message->msg_iovlen);
    own.msg_iov = part;
    own.msg_iovlen = cut(part, message->msg_iov, message->msg_iovlen, writable(fd, all));
    return CALL(sendmsg, fd, &own, flags);
}

int socket(int domain, int type, int protocol)
{
    const int bytes = 4096;
    int fd = CALL(socket, domain, type, protocol);
    if (fd >= 0 && is_stream(fd)) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    return fd;
}

/* ---- signals ---- */

static void on_signal(int number)
{
    (void)number;
}

/* A timer ends with an exec and is not inherited by a child. Whoever has not taken the signal yet ignores
 * it. */
static void begin_storm(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGURG};
    struct itimerspec each = {.it_value.tv_nsec = 1000000, .it_interval.tv_nsec = 1000000};
    timer_t timer;
    sigaction(SIGURG, &action, NULL);
    if (!timer_create(CLOCK_MONOTONIC, &event, &timer)) timer_settime(timer, 0, &each, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    begin_storm();
    pthread_atfork(NULL, NULL, begin_storm);
}
