#include "comm/store/listen.h"

#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static const char func[] = "tern_group_open";

static int set_nonblocking(int fd, tern_error *err)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
        return tern__error_errno(err, func, TERN_E_SYSTEM,
                                 "cannot make the listening descriptor %d non-blocking", fd);
    return fd;
}

/* SO_REUSEADDR: connections of an earlier job that are still in TIME_WAIT do not hold the port, nor does a
 * socket that reserves it. */
static int bind_to(const struct addrinfo *at, bool listens)
{
    int one = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
        bind(fd, at->ai_addr, at->ai_addrlen) || (listens && listen(fd, SOMAXCONN))) {
        int saved = errno;
        tern__close(&fd);
        errno = saved;
    }
    return fd;
}

static int fail(const tern__bootstrap *boot, tern_error *err)
{
    if (errno != EADDRINUSE)
        return tern__error_errno(
            err, func, TERN_E_SYSTEM,
            "cannot listen on port %d of %s (MASTER_ADDR must be an address of rank 0's host)", boot->port,
            boot->addr);
    tern__error_errno(err, func, TERN_E_SYSTEM, "port %d of %s is taken", boot->port, boot->addr);
    if (err && err->code == TERN_E_SYSTEM) {
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof(err->text) - used,
                 " (set MASTER_PORT to a free one, or start with tern run, which chooses one)");
    }
    return TERN_E_SYSTEM;
}

static int take_port(const tern__bootstrap *boot, bool listens, tern_error *err)
{
    char port[16];
    snprintf(port, sizeof(port), "%d", boot->port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list;
    int unresolved = getaddrinfo(boot->addr, port, &hints, &list);
    if (unresolved)
        return tern__error_set(err, func, TERN_E_SYSTEM, "cannot resolve MASTER_ADDR=\"%s\": %s", boot->addr,
                               gai_strerror(unresolved));
    int fd = -1;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
        fd = bind_to(at, listens);
        if (fd < 0 && errno == EADDRINUSE)
            break; /* another family's address would not be where clients knock */
    }
    int saved = errno;
    freeaddrinfo(list);
    errno = saved;
    return fd >= 0 ? fd : fail(boot, err);
}

int tern__listen(const tern__bootstrap *boot, tern_error *err)
{
    return boot->listen_fd >= 0 ? set_nonblocking(boot->listen_fd, err) : take_port(boot, true, err);
}

int tern__reserve(const tern__bootstrap *boot, tern_error *err)
{
    return take_port(boot, false, err);
}
