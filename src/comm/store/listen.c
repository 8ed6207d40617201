/* listen.c - the server's end of a store's connection: which address to bind, the listening socket, and a
 * socket that only reserves a port. */
#include "comm/store/listen.h"

#include "comm/sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* The caller's name and hint for errors. */
typedef struct caller {
    const char *func, *hint;
} caller;

static const caller group = {"tern_group_open",
                             " (set MASTER_PORT to a free one, or start with tern run, which chooses one)"};

static const caller orphan = {"tern_group_open",
                              " (the process that started this program holds the socket that tern run opened "
                              "for rank 0: start the program with exec, or pass descriptors on, as "
                              "subprocess.run(.., close_fds=False) does)"};

static int set_nonblocking(int fd, const caller *who, tern_error *err)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
        return tern__error_errno(err, who->func, TERN_E_SYSTEM,
                                 "cannot make the listening descriptor %d non-blocking", fd);
    return fd;
}

/* With SO_REUSEADDR the bind succeeds although connections of an earlier job are in TIME_WAIT, or another
 * socket reserves the port. */
static int bind_to(const struct addrinfo *at, bool listens)
{
    int zero = 0, one = 1;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0) return -1;
    if (at->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
        bind(fd, at->ai_addr, at->ai_addrlen) || (listens && listen(fd, SOMAXCONN))) {
        int saved = errno;
        tern__close(&fd);
        errno = saved;
    }
    return fd;
}

/* After a failure errno is the last address's. */
static int bind_first_of(const struct addrinfo *list, const char *host, bool listens, tern__tried *tried)
{
    int fd = -1, native = 0;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
        fd = bind_to(at, listens);
        native = errno;
        if (fd < 0) tern__tried_add(tried, host, at->ai_addr, native);
        if (fd < 0 && native == EADDRINUSE) break; /* clients would not try the other family's address */
    }
    errno = native;
    return fd;
}

/* Binds all addresses, of both families if the host has both. */
static int bind_all(int port, const char *host, bool listens, tern__tried *tried)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct addrinfo last = {
        .ai_family = AF_INET, .ai_addr = (struct sockaddr *)&four, .ai_addrlen = sizeof(four)};
    struct addrinfo first = {.ai_family = AF_INET6,
                             .ai_addr = (struct sockaddr *)&six,
                             .ai_addrlen = sizeof(six),
                             .ai_next = &last};
    return bind_first_of(&first, host, listens, tried);
}

static bool is_of_one_host(const tern__bootstrap *boot)
{
    return boot->is_placed && boot->local_world == boot->world;
}

/* True if boot->addr is this host's name and resolves to loopback here. Debian's /etc/hosts maps the host's
 * own name to 127.0.1.1, while other hosts resolve it to an address on the network. So the local result does
 * not tell which address they connect to. A numeric address, or a name such as localhost, means loopback
 * itself. */
static bool is_own_name(const tern__bootstrap *boot, const struct addrinfo *list)
{
    struct in6_addr number;
    if (is_of_one_host(boot) || strstr(boot->addr, "localhost") || strstr(boot->addr, "loopback"))
        return false;
    if (inet_pton(AF_INET, boot->addr, &number) == 1 || inet_pton(AF_INET6, boot->addr, &number) == 1)
        return false;
    for (; list; list = list->ai_next)
        if (tern__is_loopback(list->ai_addr)) return true;
    return false;
}

static int listen_fail(const tern__bootstrap *boot, int native, const tern__tried *tried, const caller *who,
                       tern_error *err)
{
    bool is_fresh = err && !err->code;
    if (native == EADDRINUSE)
        tern__error_set(err, who->func, TERN_E_SYSTEM, "port %d of %s is taken: %s%s", boot->port, boot->addr,
                        tried->text, who->hint);
    else
        tern__error_set(err, who->func, TERN_E_SYSTEM,
                        "cannot listen on port %d of %s, which must be an address of this host: %s",
                        boot->port, boot->addr, tried->text);
    if (is_fresh) err->native = native;
    return TERN_E_SYSTEM;
}

static int take_port(const tern__bootstrap *boot, bool listens, const caller *who, tern_error *err)
{
    char port[16];
    snprintf(port, sizeof(port), "%d", boot->port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list;
    tern__tried tried = {""};
    int unresolved = getaddrinfo(boot->addr, port, &hints, &list);
    if (unresolved)
        return tern__error_set(err, who->func, TERN_E_SYSTEM, "cannot resolve the host \"%s\": %s",
                               boot->addr, gai_strerror(unresolved));
    /* A program may listen on every address, as PyTorch's store does. A port chosen here is free on all. */
    bool binds_all = is_own_name(boot, list) || (!listens && !boot->port);
    int fd = binds_all ? bind_all(boot->port, boot->addr, listens, &tried)
                       : bind_first_of(list, boot->addr, listens, &tried);
    int native = errno;
    freeaddrinfo(list);
    return fd >= 0 ? fd : listen_fail(boot, native, &tried, who, err);
}

int tern__port_of(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof(at);
    if (getsockname(fd, (struct sockaddr *)&at, &size)) return 0;
    return at.ss_family == AF_INET || at.ss_family == AF_INET6 ? tern__port_in(&at) : 0;
}

bool tern__listens_at(int fd, int port)
{
    int listens = 0;
    socklen_t size = sizeof(listens);
    return fd >= 0 && !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) && listens &&
           tern__port_of(fd) == port;
}

/* A socket that somebody else has bound need not listen yet. Serving one that cannot listen would spin. */
static int listen_on(int fd, int port, const caller *who, tern_error *err)
{
    int bound = tern__port_of(fd);
    if (!bound)
        return tern__error_set(err, who->func, TERN_E_INVALID,
                               "listen_fd %d is no TCP socket that is bound to a port", fd);
    if (port && port != bound)
        return tern__error_set(err, who->func, TERN_E_INVALID,
                               "listen_fd %d is bound to port %d, expected %d", fd, bound, port);
    if (listen(fd, SOMAXCONN))
        return tern__error_errno(err, who->func, TERN_E_INVALID, "listen_fd %d cannot listen", fd);
    return set_nonblocking(fd, who, err);
}

static int listen_for(const tern__bootstrap *boot, const caller *who, tern_error *err)
{
    return boot->listen_fd >= 0 ? listen_on(boot->listen_fd, boot->port, who, err)
                                : take_port(boot, true, who, err);
}

int tern__listen(const tern__bootstrap *boot, tern_error *err)
{
    return listen_for(boot, boot->lost_listener ? &orphan : &group, err);
}

int tern__listen_public(const tern__bootstrap *boot, const char *func, tern_error *err)
{
    return listen_for(boot, &(caller){func, " (port 0 chooses a free one)"}, err);
}

int tern__reserve(const tern__bootstrap *boot, tern_error *err)
{
    return take_port(boot, false, &group, err);
}
