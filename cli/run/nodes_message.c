/* nodes_message.c - sends and checks messages between launchers. */
#include "run/nodes_inner.h"

#include "comm/sys.h"

#include <errno.h>
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
