#include "comm/store/listen.h"

#include "comm/store/hello.h"
#include "comm/sys.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static const char func[] = "tern_group_open";

enum {
    attempt_seconds = 10, /* a host that answers nothing does not eat the whole deadline */
    pause_first_ms = 10,
    pause_last_ms = 1000,
    hangups_max = 5, /* a store that is just closing hangs up once; a stranger's service always */
};

typedef struct dialer {
    const tern__bootstrap *boot;
    int64_t start, deadline;
    int attempts, hangups;
    const char *why; /* of the last failure; static */
    int native;      /* its errno, or 0             */
    bool refused;    /* trying again is of no use   */
} dialer;

static int failed(dialer *d, int native)
{
    d->native = native;
    d->why = NULL;
    return -1;
}

/* The result of a connect that was begun: 0 or an errno. */
static int await_connect(int fd, int64_t deadline)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
    int ready = tern__poll(&poll_fd, 1, deadline), result = 0;
    socklen_t size = sizeof(result);
    if (ready < 0) return errno;
    if (ready == 0) return ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &result, &size) ? errno : result;
}

static int connect_to(dialer *d, const struct addrinfo *at)
{
    int one = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0) return failed(d, errno);
    int status = connect(fd, at->ai_addr, at->ai_addrlen) ? errno : 0;
    if (status == EINPROGRESS)
        status = await_connect(fd, TERN__MIN(d->deadline, tern__deadline(attempt_seconds)));
    if (!status && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))) status = errno;
    if (status) {
        tern__close(&fd);
        return failed(d, status);
    }
    return fd;
}

static int connect_any(dialer *d)
{
    char port[16];
    snprintf(port, sizeof(port), "%d", d->boot->port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list;
    int unresolved = getaddrinfo(d->boot->addr, port, &hints, &list);
    if (unresolved) {
        d->why = gai_strerror(unresolved);
        d->native = 0;
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) fd = connect_to(d, at);
    freeaddrinfo(list);
    return fd;
}

/* 0, or -errno. Waits for the answer as long as there is time: the launcher listens before rank 0 serves. */
static int shake_hands(dialer *d, int fd)
{
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof;
    tern__hello_make(&hello, TERN__PURPOSE_STORE, d->boot->rank, 0, d->boot->world);
    int status = tern__send_all(fd, &hello, sizeof(hello), d->deadline);
    if (!status) status = tern__recv_all(fd, &challenge, sizeof(challenge), d->deadline);
    if (status) return status;
    if (!tern__hello_answer(&hello, &challenge, d->boot->secret, &proof)) {
        d->why = "it does not know this job's secret";
        d->refused = true;
        return -EACCES;
    }
    tern__welcome welcome;
    status = tern__send_all(fd, &proof, sizeof(proof), d->deadline);
    if (!status) status = tern__recv_all(fd, &welcome, sizeof(welcome), d->deadline);
    return status || tern__hello_is_welcome(&welcome) ? status : -EPROTO;
}

static int dial_once(dialer *d)
{
    d->attempts++;
    int fd = connect_any(d);
    if (fd < 0) return -1;
    int status = shake_hands(d, fd);
    if (!status) return fd;
    tern__close(&fd);
    if (d->refused) return -1;
    if (status != -ETIMEDOUT && ++d->hangups >= hangups_max) {
        d->why = "it hangs up on our hello: it is no store of this job, or of another version of tern";
        d->refused = true;
        return -1;
    }
    return failed(d, -status);
}

/* Sleeps between half and all of the pause, which grows by half each time. */
static void pause_dialing(const dialer *d, int *pause_ms)
{
    uint32_t half = (uint32_t)*pause_ms / 2;
    int64_t until = tern__now_ns() + (half + randombytes_uniform(half + 1)) * INT64_C(1000000);
    tern__poll(NULL, 0, TERN__MIN(until, d->deadline));
    *pause_ms = TERN__MIN(*pause_ms * 3 / 2, (int)pause_last_ms);
}

static int give_up(const dialer *d, tern_error *err)
{
    const tern__bootstrap *boot = d->boot;
    const char *why = d->why ? d->why : strerror(d->native);
    double seconds = (double)(tern__now_ns() - d->start) * 1e-9;
    if (d->refused)
        return tern__error_set(err, func, TERN_E_PEER, "what listens at %s port %d refused rank %d: %s",
                               boot->addr, boot->port, boot->rank, why);
    int code =
        tern__error_set(err, func, TERN_E_TIMEOUT,
                        "cannot reach rank 0's store at %s port %d: %d attempts in %.1f s, the last: %s",
                        boot->addr, boot->port, d->attempts, seconds, why);
    if (err && err->code == code) err->native = d->native;
    return code;
}

int tern__dial(const tern__bootstrap *boot, int64_t deadline, tern_error *err)
{
    dialer d = {.boot = boot, .start = tern__now_ns(), .deadline = deadline};
    for (int pause_ms = pause_first_ms;; pause_dialing(&d, &pause_ms)) {
        int fd = dial_once(&d);
        if (fd >= 0) return fd;
        if (d.refused || tern__now_ns() >= deadline) return give_up(&d, err);
    }
}
