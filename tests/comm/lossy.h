/* lossy.h - two hosts, simulated by network namespaces, and between them a line that loses, delays and
 * reorders packets and has little room: a process that holds the far ends of both hosts' interfaces and
 * passes packets on. Needs root, `ip` and /dev/net/tun. */
#ifndef TERN_TESTS_COMM_LOSSY_H
#define TERN_TESTS_COMM_LOSSY_H

#include "comm/network.h"

#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/ioctl.h>

enum { LOSSY_MTU = 1500, LOSSY_QUEUE = 256 };

typedef struct lossy_line {
    double loss;            /* of 1 */
    double delay_s, jitter; /* a packet takes delay_s times 1 - jitter to 1 + jitter */
    double rate;            /* bytes a second in each direction */
} lossy_line;

typedef struct lossy_packet {
    int64_t due; /* 0: the slot is free */
    int to;
    size_t bytes;
    char data[LOSSY_MTU];
} lossy_packet;

/* Opens the far end of this namespace's only interface, and gives it an address. */
static inline int lossy_plug(const network *net, int host)
{
    char command[256];
    struct ifreq ask = {.ifr_name = "tun0", .ifr_flags = IFF_TUN | IFF_NO_PI};
    if (!network_enter(net, host)) return -1;
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    bool fine = fd >= 0 && !ioctl(fd, TUNSETIFF, &ask);
    fine &= network_leave(net);
    snprintf(command, sizeof(command),
             "ip link set lo up && ip addr add %s peer %s dev tun0 && ip link set tun0 up mtu %d",
             network_addresses[host], network_addresses[1 - host], LOSSY_MTU);
    return fine && network_run(net, host, command) ? fd : -1;
}

/* Hosts 0 and 1 of a network. False if this machine does not allow it. */
static inline bool lossy_open(network *net, int ends[2])
{
    net->home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (int host = 0; host < 2; host++) net->spaces[host] = network_space();
    if (!network_leave(net) || net->spaces[0] < 0 || net->spaces[1] < 0) return false;
    for (int host = 0; host < 2; host++) ends[host] = lossy_plug(net, host);
    return ends[0] >= 0 && ends[1] >= 0;
}

/* Takes one packet from host `from`. A full queue drops it, as a router would. */
static inline void lossy_take(const lossy_line *line, const int ends[2], int from, lossy_packet *queue,
                              int64_t free_at[2], unsigned short draw[3])
{
    char data[LOSSY_MTU];
    ssize_t bytes = read(ends[from], data, sizeof(data));
    int slot = 0;
    if (bytes <= 0 || erand48(draw) < line->loss) return;
    while (slot < LOSSY_QUEUE && queue[slot].due) slot++;
    if (slot == LOSSY_QUEUE) return;
    int64_t now = tern__now_ns();
    free_at[from] = TERN__MAX(free_at[from], now) + (int64_t)((double)bytes / line->rate * 1e9);
    double late_s = line->delay_s * (1 + line->jitter * (2 * erand48(draw) - 1));
    queue[slot] = (lossy_packet){free_at[from] + (int64_t)(late_s * 1e9), 1 - from, (size_t)bytes, {0}};
    memcpy(queue[slot].data, data, (size_t)bytes);
}

static inline void lossy_pass(const lossy_line *line, const int ends[2])
{
    static lossy_packet queue[LOSSY_QUEUE];
    int64_t free_at[2] = {0};
    unsigned short draw[3] = {1, 2, 3};
    struct pollfd polls[] = {{.fd = ends[0], .events = POLLIN}, {.fd = ends[1], .events = POLLIN}};
    for (;;) {
        poll(polls, 2, 1);
        for (int host = 0; host < 2; host++)
            if (polls[host].revents) lossy_take(line, ends, host, queue, free_at, draw);
        for (lossy_packet *p = queue; p < queue + LOSSY_QUEUE; p++) {
            if (!p->due || p->due > tern__now_ns()) continue;
            ssize_t sent = write(ends[p->to], p->data, p->bytes);
            (void)sent;
            p->due = 0;
        }
    }
}

/* Returns the pid of the process that is the line, which ends with this one. */
static inline pid_t lossy_start(const lossy_line *line, const int ends[2])
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    lossy_pass(line, ends);
    _exit(0);
}

static inline void lossy_stop(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

#endif
