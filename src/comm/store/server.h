/* server.h - the TCP store's server: one thread that sleeps in epoll, no client that can stall another. */
#ifndef TERN_SRC_COMM_STORE_SERVER_H
#define TERN_SRC_COMM_STORE_SERVER_H

#include "comm/bootstrap/bootstrap.h"

typedef struct tern__server tern__server;

/* Serves on `listen_fd`, which is the server's from now on, also on error. Whoever connects must prove that
 * it knows the secret, or, if `is_public`, may be a client of PyTorch's. */
tern__server *tern__server_start(int listen_fd, const uint8_t secret[TERN__SECRET_BYTES], bool is_public,
                                 const char *func, tern_error *err);
/* Accepts nobody from now on, not when this has returned; who is there stays. */
void tern__server_stop_listening(tern__server *server);
void tern__server_stop(tern__server *server);

#endif
