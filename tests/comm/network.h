/* network.h - three hosts, simulated by network namespaces. Host 0 has a cable to each of the others and
 * forwards between them, unless told not to.
 *
 * The namespaces have no names: they disappear with the last descriptor that this process and its children
 * have of them, however these end. Needs root and `ip`. */
#ifndef TERN_TESTS_COMM_NETWORK_H
#define TERN_TESTS_COMM_NETWORK_H

#include "comm/ranks.h"

#include <fcntl.h>
#include <sched.h>

enum { NETWORK_HOSTS = 3 };

typedef struct network {
    int home, spaces[NETWORK_HOSTS];
} network;

static const char *const network_addresses[] = {"10.99.1.1", "10.99.1.2", "10.99.2.2"};

/* Moves this thread to `host`. */
static inline bool network_enter(const network *net, int host)
{
    return setns(net->spaces[host], CLONE_NEWNET) == 0;
}

static inline bool network_leave(const network *net)
{
    return setns(net->home, CLONE_NEWNET) == 0;
}

/* Runs a shell command on `host`. */
static inline bool network_run(const network *net, int host, const char *command)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (network_enter(net, host)) execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(126);
    }
    return waitpid(pid, &status, 0) == pid && status == 0;
}

static inline int network_space(void)
{
    return unshare(CLONE_NEWNET) ? -1 : open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

/* Connects `host` to host 0, as its default route. */
static inline bool network_plug(const network *net, int host)
{
    char command[512];
    snprintf(command, sizeof(command),
             "ip link set lo up && ip link add eth%d type veth peer name eth0 netns /proc/%d/fd/%d && "
             "ip addr add 10.99.%d.1/24 dev eth%d && ip link set eth%d up",
             host, (int)getpid(), net->spaces[host], host, host, host);
    if (!network_run(net, 0, command)) return false;
    snprintf(command, sizeof(command),
             "ip link set lo up && ip addr add %s/24 dev eth0 && ip link set eth0 up && "
             "ip route add default via 10.99.%d.1",
             network_addresses[host], host);
    return network_run(net, host, command);
}

static inline bool network_forward(const network *net, bool on)
{
    return network_run(
        net, 0, on ? "echo 1 >/proc/sys/net/ipv4/ip_forward" : "echo 0 >/proc/sys/net/ipv4/ip_forward");
}

/* Returns what this machine lacks for it, or NULL. */
static inline const char *network_open(network *net)
{
    net->home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (int host = 0; host < NETWORK_HOSTS; host++)
        if ((net->spaces[host] = network_space()) < 0) return "no network namespaces here: they need root";
    if (!network_leave(net)) return "no network namespaces here: they cannot be left";
    if (system("command -v ip >/dev/null")) return "no ip command (the package iproute2)";
    for (int host = 1; host < NETWORK_HOSTS; host++)
        if (!network_plug(net, host)) return "no network namespaces here: ip cannot connect them";
    return network_forward(net, true) ? NULL : "no network namespaces here: they do not forward";
}

/* The same as ranks_boot; rank 0 listens on host 0. */
static inline tern__bootstrap network_boot(const network *net, int world)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof(at);
    tern__bootstrap boot = ranks_boot(world);
    close(boot.listen_fd);
    assert_int_equal(inet_pton(AF_INET, network_addresses[0], &at.sin_addr), 1);
    assert_true(network_enter(net, 0));
    boot.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(network_leave(net));
    assert_return_code(bind(boot.listen_fd, (struct sockaddr *)&at, sizeof(at)), errno);
    assert_return_code(listen(boot.listen_fd, SOMAXCONN), errno);
    assert_return_code(getsockname(boot.listen_fd, (struct sockaddr *)&at, &size), errno);
    boot.port = ntohs(at.sin_port);
    snprintf(boot.addr, sizeof(boot.addr), "%s", network_addresses[0]);
    return boot;
}

/* The same as ranks_start. A body enters its host itself. */
static inline ranks network_start(const network *net, int world, ranks_body body, void *arg)
{
    ranks r = {.world = world};
    tern__bootstrap zero = network_boot(net, world);
    for (int rank = 0; rank < world; rank++) {
        r.pids[rank] = ranks_fork(&zero, rank, body, arg);
        assert_true(r.pids[rank] > 0);
    }
    close(zero.listen_fd);
    return r;
}

#endif
