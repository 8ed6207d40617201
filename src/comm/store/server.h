/* server.h - the TCP store's server: one thread with an epoll loop. No client can stall another. */
#ifndef TERN_SRC_COMM_STORE_SERVER_H
#define TERN_SRC_COMM_STORE_SERVER_H

#include "comm/bootstrap/bootstrap.h"

typedef struct tern__server tern__server;

/* Serves on `listen_fd`, which the server owns from here on, also on error. A client must prove that it knows
 * the secret. If `is_public`, PyTorch's clients are accepted, too. */
tern__server *tern__server_start(int listen_fd, const uint8_t secret[TERN__SECRET_BYTES], bool is_public,
                                 const char *func, tern_error *err);
/* Once this has returned, the server accepts no more clients. Those that are connected stay. */
void tern__server_stop_listening(tern__server *server);
void tern__server_stop(tern__server *server);

#endif
