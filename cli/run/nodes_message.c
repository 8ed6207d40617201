/* nodes_message.c - sends and checks messages between launchers, and detects silent connections. */
#include "run/nodes_inner.h"

#include "comm/sys.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define SEND_SECONDS 1.0

int tern__message_send(int fd, const tern__nodes_message *message)
{
    return tern__send_all(fd, message, sizeof(*message), tern__deadline(SEND_SECONDS));
}

void tern__message_clean(tern__nodes_message *message)
{
    tern__text_clean(message->role, sizeof(message->role));
    tern__text_clean(message->run_id, sizeof(message->run_id));
    tern__text_clean(message->host, sizeof(message->host));
    tern__text_clean(message->text, sizeof(message->text));
    tern__failure_clean(&message->failure);
}

int tern__node_keep_alive(int fd, const tern__meeting *meeting)
{
    int on = 1, silence_ms = 1000 * meeting->keep_alive_s * meeting->keep_alive_max;
    bool done = !setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) &&
                !setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &meeting->keep_alive_s, sizeof(int)) &&
                !setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &meeting->keep_alive_s, sizeof(int)) &&
                !setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &meeting->keep_alive_max, sizeof(int)) &&
                !setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
    return done ? 0 : -errno;
}
