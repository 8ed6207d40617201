/* server.h - the store's server: one thread, one poll loop, no client that can stall another. */
#ifndef TERN_SRC_COMM_STORE_SERVER_H
#define TERN_SRC_COMM_STORE_SERVER_H

#include "comm/bootstrap.h"

typedef struct tern__server tern__server;

/* Listens on boot's address (or takes boot->listen_fd over) and starts serving. */
tern__server *tern__server_start(const tern__bootstrap *boot, tern_error *err);
void tern__server_stop(tern__server *server);

#endif
