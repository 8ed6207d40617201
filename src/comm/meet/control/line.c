/* line.c - sends and receives control messages. Within a host a connection is a Unix socket that keeps
 * packets whole and can pass descriptors. Between hosts it is a TCP stream of frames: a head of fixed size,
 * which says how long the text is, and the text. The length is checked before it is used. */
#include "comm/meet/control/inner.h"
#include "comm/store/hello.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

/* ---- sending ---- */

/* The caller holds send_lock. Nothing is kept for a connection that has failed. */
static int line_flush(tern__stream *stream, int fd)
{
    size_t sent = 0;
    int native = tern__send_part(fd, stream->outbox, stream->unsent, &sent) < 0 ? errno : 0;
    stream->unsent = native ? 0 : stream->unsent - sent;
    memmove(stream->outbox, stream->outbox + sent, stream->unsent);
    return native;
}

static int send_bytes(tern__stream *stream, int fd, const void *data, size_t bytes)
{
    int native = line_flush(stream, fd);
    if (native) return native;
    if (stream->unsent + bytes > sizeof(stream->outbox)) return EAGAIN;
    memcpy(stream->outbox + stream->unsent, data, bytes);
    stream->unsent += bytes;
    return line_flush(stream, fd);
}

static int send_whole(tern__control *control, tern__peer *peer, const void *data, size_t bytes)
{
    size_t sent = 0;
    if (!peer->stream) return tern__send_part(peer->fd, data, bytes, &sent) > 0 ? 0 : errno;
    pthread_mutex_lock(&control->send_lock);
    int native = send_bytes(peer->stream, peer->fd, data, bytes);
    pthread_mutex_unlock(&control->send_lock);
    return native;
}

int tern__line_send(tern__control *control, tern__peer *peer, const tern__message *message)
{
    return send_whole(control, peer, message, TERN__MESSAGE_HEAD + message->bytes);
}

int tern__line_welcome(tern__control *control, tern__peer *peer)
{
    tern__welcome welcome;
    tern__hello_welcome(&welcome);
    return send_whole(control, peer, &welcome, sizeof(welcome));
}

/* An error is ignored here: it shows when the stream is read. */
void tern__line_flush(tern__control *control, tern__peer *peer)
{
    if (!peer->stream) return;
    pthread_mutex_lock(&control->send_lock);
    line_flush(peer->stream, peer->fd);
    pthread_mutex_unlock(&control->send_lock);
}

bool tern__line_is_waiting(tern__control *control, const tern__peer *peer)
{
    if (!peer->stream) return false;
    pthread_mutex_lock(&control->send_lock);
    bool is_waiting = peer->stream->unsent > 0;
    pthread_mutex_unlock(&control->send_lock);
    return is_waiting;
}

/* ---- receiving ---- */

static bool is_sound(const tern__message *message)
{
    return message->bytes >= 1 && message->bytes <= sizeof(message->text);
}

static bool is_terminated(const tern__message *message)
{
    return message->text[message->bytes - 1] == '\0';
}

/* Returns the message's descriptor, or -1. The padding of the control data leaves room for a second
 * descriptor; if two have come, both are closed. */
static int take_fd(struct msghdr *header)
{
    const struct cmsghdr *c = CMSG_FIRSTHDR(header);
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) return -1;
    int fd = -1, count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(fd));
    for (int i = 0; i < count; i++) {
        memcpy(&fd, CMSG_DATA(c) + (size_t)i * sizeof(fd), sizeof(fd));
        if (count > 1) tern__close(&fd);
    }
    return fd;
}

/* ECONNRESET only means that the peer closed with some of our messages unread. What it sent is still there,
 * so read again. */
static int recv_packet(const tern__peer *peer, tern__message *message, int *fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } room;
    struct iovec body = {.iov_base = message, .iov_len = sizeof(*message)};
    struct msghdr header = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof(room.bytes)};
    ssize_t got;
    do got = recvmsg(peer->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && (errno == EINTR || errno == ECONNRESET));
    if (got < 0) return errno == EAGAIN ? 0 : -errno;
    *fd = take_fd(&header);
    if (got == 0) return -ENODATA;
    bool whole = got >= (ssize_t)TERN__MESSAGE_HEAD && !(header.msg_flags & MSG_TRUNC) && is_sound(message) &&
                 (size_t)got == TERN__MESSAGE_HEAD + message->bytes && is_terminated(message);
    if (whole) return 1;
    tern__close(fd);
    return -EBADMSG;
}

/* Reads the frame's head first, then as many bytes as the head says. */
static int recv_frame(tern__stream *stream, int fd, tern__message *message)
{
    tern__message *inbox = &stream->inbox;
    for (;;) {
        bool has_head = stream->got >= TERN__MESSAGE_HEAD;
        size_t wanted = TERN__MESSAGE_HEAD + (has_head ? inbox->bytes : 0);
        ssize_t got = recv(fd, (char *)inbox + stream->got, wanted - stream->got, MSG_DONTWAIT);
        if (got == 0) return -ENODATA;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno == EAGAIN ? 0 : -errno;
        stream->got += (size_t)got;
        if (stream->got < wanted) continue;
        if (!has_head && !is_sound(inbox)) return -EBADMSG;
        if (!has_head) continue;
        stream->got = 0;
        *message = *inbox;
        return is_terminated(message) && message->kind != TERN__MESSAGE_FD ? 1 : -EBADMSG;
    }
}

int tern__line_recv(tern__peer *peer, tern__message *message, int *fd)
{
    *fd = -1;
    return peer->stream ? recv_frame(peer->stream, peer->fd, message) : recv_packet(peer, message, fd);
}
