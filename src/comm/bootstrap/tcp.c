/* tcp.c - the network between hosts (tcp.h). */
#include "comm/bootstrap/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char func[] = "tern_group_open";

/* ---- addresses ---- */

static socklen_t address_size(const struct sockaddr_storage *at)
{
    return at->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static void set_port(struct sockaddr_storage *at, int port)
{
    if (at->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)at)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)at)->sin_port = htons((uint16_t)port);
}

void tern__tcp_host(const struct sockaddr_storage *at, char *text, size_t size)
{
    tern__address_host((const struct sockaddr *)at, text, size);
}

void tern__tcp_text(const struct sockaddr_storage *at, char *text, size_t size)
{
    tern__address_text(at, text, size);
}

static bool is_network(const struct sockaddr *at)
{
    return at->sa_family == AF_INET || at->sa_family == AF_INET6;
}

/* A link-local address means nothing on another host. */
static bool is_link_local(const struct sockaddr *at)
{
    return at->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)at)->sin6_addr);
}

static void copy_address(struct sockaddr_storage *to, const struct sockaddr *from)
{
    socklen_t size = from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    memset(to, 0, sizeof(*to));
    memcpy(to, from, size);
}

/* ---- which address is ours ---- */

/* True if the interface is up, has a usable address and is called `name`, or without a name is not
 * loopback. */
static bool is_wanted(const struct ifaddrs *interface, const char *name)
{
    const struct sockaddr *at = interface->ifa_addr;
    if (!at || !is_network(at) || is_link_local(at) || !(interface->ifa_flags & IFF_UP)) return false;
    if (name) return !strcmp(interface->ifa_name, name);
    return !(interface->ifa_flags & IFF_LOOPBACK);
}

/* Finds an address of an interface that is up, preferably IPv4. */
static bool find_interface(const char *name, struct sockaddr_storage *at)
{
    struct ifaddrs *list;
    bool found = false;
    if (getifaddrs(&list)) return false;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        if (!is_wanted(i, name) || (found && i->ifa_addr->sa_family != AF_INET)) continue;
        copy_address(at, i->ifa_addr);
        found = true;
        if (at->ss_family == AF_INET) break;
    }
    freeifaddrs(list);
    return found;
}

/* Connecting a datagram socket sends nothing; it only looks up the route and with it the local address. */
static bool find_route(const struct addrinfo *to, const char *host, struct sockaddr_storage *at,
                       tern__tried *tried)
{
    socklen_t size = sizeof(*at);
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && !connect(fd, to->ai_addr, to->ai_addrlen) &&
                 !getsockname(fd, (struct sockaddr *)at, &size);
    if (!found) tern__tried_add(tried, host, to->ai_addr, errno);
    tern__close(&fd);
    return found;
}

static bool find_route_to(const char *host, struct sockaddr_storage *at, tern__tried *tried)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list;
    bool found = false;
    int unresolved = getaddrinfo(host, "9", &hints, &list);
    if (unresolved) snprintf(tried->text, sizeof(tried->text), "%s", gai_strerror(unresolved));
    if (unresolved) return false;
    for (const struct addrinfo *to = list; to && !found; to = to->ai_next)
        found = find_route(to, host, at, tried);
    freeaddrinfo(list);
    return found;
}

int tern__tcp_own(const tern__bootstrap *boot, bool is_one_machine, struct sockaddr_storage *at,
                  tern_error *err)
{
    tern__tried tried = {""};
    const char *name = tern__env("TERN_SOCKET_IFNAME");
    if (name && find_interface(name, at)) return TERN_OK;
    if (name)
        return tern__error_set(err, func, TERN_E_ENV,
                               "TERN_SOCKET_IFNAME=\"%s\" is not an interface that is up and has an address",
                               name);
    errno = 0;
    if (*boot->addr && find_route_to(boot->addr, at, &tried) &&
        (is_one_machine || !tern__is_loopback((const struct sockaddr *)at)))
        return TERN_OK;
    if (find_interface(NULL, at)) return TERN_OK;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
        return tern__error_errno(err, func, TERN_E_SYSTEM,
                                 "cannot look for the interface that leads to the other hosts");
    return tern__error_set(
        err, func, TERN_E_SYSTEM,
        "no interface of this host leads to rank 0 at \"%s\"%s%s (set TERN_SOCKET_IFNAME to one that does)",
        boot->addr, *tried.text ? ": " : "", tried.text);
}

/* ---- listening ---- */

int tern__tcp_listen(const tern__bootstrap *boot, bool is_one_machine, struct sockaddr_storage *at,
                     tern_error *err)
{
    char text[128];
    socklen_t size = sizeof(*at);
    int status = tern__tcp_own(boot, is_one_machine, at, err);
    if (status) return status;
    set_port(at, 0);
    int fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)at, address_size(at)) && !listen(fd, SOMAXCONN) &&
        !getsockname(fd, (struct sockaddr *)at, &size))
        return fd;
    tern__tcp_text(at, text, sizeof(text));
    tern__error_errno(err, func, TERN_E_SYSTEM, "cannot listen for the other hosts at %s", text);
    tern__close(&fd);
    return TERN_E_SYSTEM;
}

/* The address is not in the rank info but under a key of its own, because only a job of several hosts has
 * one. */
static void address_key(int rank, char *key, size_t size)
{
    snprintf(key, size, "control/%d/tcp", rank);
}

int tern__tcp_publish(const struct sockaddr_storage *at, int rank, tern_store *store, tern_error *err)
{
    char key[32];
    address_key(rank, key, sizeof(key));
    return tern_store_set(store, key, at, sizeof(*at), err);
}

int tern__tcp_get(struct sockaddr_storage *at, int rank, tern_store *store, double timeout_s, tern_error *err)
{
    char key[32];
    size_t bytes;
    address_key(rank, key, sizeof(key));
    int status = tern__store_read(store, key, at, sizeof(*at), &bytes, timeout_s, err);
    if (status || (bytes == sizeof(*at) && is_network((const struct sockaddr *)at))) return status;
    return tern__error_set(err, func, TERN_E_PEER,
                           "rank %d published a malformed address of %zu bytes, expected %zu", rank, bytes,
                           sizeof(*at));
}

/* ---- connecting ---- */

int tern__tcp_connect(const struct sockaddr_storage *at, int64_t deadline)
{
    return tern__connect((const struct sockaddr *)at, address_size(at), deadline);
}

/* Closing a socket with unread data makes the kernel reset the connection, and the last messages would be
 * lost if their packets are. So first read everything. */
void tern__tcp_close(int *fd)
{
    const struct linger linger = {.l_onoff = 1, .l_linger = 1};
    char rest[1024];
    if (*fd < 0) return;
    while (recv(*fd, rest, sizeof(rest), MSG_DONTWAIT) > 0) continue;
    setsockopt(*fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    tern__close(fd);
}
