/* fd.c - passes descriptors between the ranks of a host. */
#include "comm/meet/control/inner.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

/* ---- sending ---- */

static int check_peer(const tern__control *control, int peer, tern_error *err)
{
    bool is_peer = peer >= 0 && peer < control->world && peer != control->rank;
    if (is_peer && !control->peers[peer].stream) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID,
                           "rank %d of %d cannot exchange descriptors with rank %d%s", control->rank,
                           control->world, peer, is_peer ? " on another host" : "");
}

static int fail_left(const tern__control *control, int peer, tern_error *err)
{
    char who[128];
    tern__control_describe(control, peer, who, sizeof(who));
    return tern__error_set(err, "tern_group", TERN_E_PEER,
                           "%s has closed its group while rank %d shares memory with it", who, control->rank);
}

static int send_once(int socket_fd, uint64_t tag, int fd)
{
    tern__message message = {.kind = TERN__MESSAGE_FD, .tag = tag, .bytes = 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } room = {0};
    struct iovec body = {.iov_base = &message, .iov_len = TERN__MESSAGE_HEAD + 1};
    struct msghdr header = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof(room.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    return sendmsg(socket_fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

/* The peer's end is closed, so the control thread will read its goodbye, or find that it is lost. */
static int explain_closed(const tern__control *control, int peer, tern_error *err)
{
    while (tern__control_is_healthy(control) && !tern__control_has_left(control, peer))
        tern__poll(NULL, 0, tern__now_ns() + 1000000);
    int status = tern__control_check(control, "tern_group", err);
    return status ? status : fail_left(control, peer, err);
}

int tern__control_send_fd(tern__control *control, int peer, uint64_t tag, int fd, tern_error *err)
{
    int status = check_peer(control, peer, err);
    if (status) return status;
    for (;;) {
        status = tern__control_check(control, "tern_group", err);
        if (status) return status;
        int native = send_once(control->peers[peer].fd, tag, fd);
        control->peers[peer].sent += !native;
        if (!native) return TERN_OK;
        if (native == EPIPE || native == ECONNRESET) return explain_closed(control, peer, err);
        errno = native;
        if (native != EAGAIN && native != EINTR)
            return tern__error_errno(err, "tern_group", TERN_E_SYSTEM, "cannot pass descriptor %d to rank %d",
                                     fd, peer);
        struct pollfd room = {.fd = control->peers[peer].fd, .events = POLLOUT};
        tern__poll(&room, 1, tern__now_ns() + 10000000); /* short, to notice a failure elsewhere */
    }
}

/* ---- receiving ---- */

/* Removes the parcel from the list and returns it, or NULL. The caller holds the lock. */
static tern__parcel *take_parcel(tern__control *control, int peer, uint64_t tag)
{
    tern__parcel **link = &control->parcels;
    while (*link && ((*link)->peer != peer || (*link)->tag != tag)) link = &(*link)->next;
    tern__parcel *found = *link;
    if (found) *link = found->next;
    return found;
}

uint64_t tern__control_sent(const tern__control *control, int peer)
{
    return control->peers[peer].sent;
}

bool tern__control_lacks_fd(tern__control *control, int peer, uint64_t tag, uint64_t sent)
{
    pthread_mutex_lock(&control->lock);
    bool lacks = control->peers[peer].came >= sent;
    for (const tern__parcel *parcel = control->parcels; parcel; parcel = parcel->next)
        lacks &= parcel->peer != peer || parcel->tag != tag;
    pthread_mutex_unlock(&control->lock);
    return lacks;
}

/* Waits for the parcel. Returns NULL after a failure, the peer's goodbye or the deadline. */
static tern__parcel *await_parcel(tern__control *control, int peer, uint64_t tag, int64_t deadline)
{
    struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    tern__parcel *found;
    int status = 0;
    pthread_mutex_lock(&control->lock);
    while (!(found = take_parcel(control, peer, tag)) && !control->event.code &&
           !tern__control_has_left(control, peer) && !status)
        status = pthread_cond_timedwait(&control->changed, &control->lock, &until);
    pthread_mutex_unlock(&control->lock);
    return found;
}

int tern__control_recv_fd(tern__control *control, int peer, uint64_t tag, double timeout_s, int *fd,
                          tern_error *err)
{
    int status = check_peer(control, peer, err);
    if (status) return status;
    tern__parcel *parcel = await_parcel(control, peer, tag, tern__deadline(timeout_s));
    if (parcel) {
        *fd = parcel->fd;
        tern__free(parcel);
        if (*fd >= 0) return TERN_OK;
        return tern__error_set(
            err, "tern_group", TERN_E_SYSTEM,
            "cannot receive a descriptor from rank %d: this process has too many open (ulimit -n)", peer);
    }
    status = tern__control_check(control, "tern_group", err);
    if (status) return status;
    if (tern__control_has_left(control, peer)) return fail_left(control, peer, err);
    char who[128];
    tern__control_describe(control, peer, who, sizeof(who));
    return tern__error_set(err, "tern_group", TERN_E_TIMEOUT, "%s passed no descriptor within %.3g s", who,
                           timeout_s);
}
