/* tcp.h - the network between hosts: the address at which other hosts reach this one, and connections whose
 * other end may vanish silently (tern__tcp_tune notices). */
#ifndef TERN_SRC_COMM_BOOTSTRAP_TCP_H
#define TERN_SRC_COMM_BOOTSTRAP_TCP_H

#include "comm/bootstrap/bootstrap.h"
#include "comm/store/store.h"
#include "comm/sys.h"

#include <sys/socket.h>

/* Sets *at to an address, without a port, of the interface that TERN_SOCKET_IFNAME names, or else of the
 * interface that leads to rank 0 at boot->addr. If that interface does not lead to other machines (rank 0's
 * name may resolve to loopback there), or if the ranks did not meet at an address, it takes the first
 * interface that is not loopback. */
int tern__tcp_own(const tern__bootstrap *boot, bool is_one_machine, struct sockaddr_storage *at,
                  tern_error *err);
/* Listens on a free port at the address at which the other hosts reach this one; *at = the address and port.
 * If all "hosts" are one machine, the address may be loopback. */
int tern__tcp_listen(const tern__bootstrap *boot, bool is_one_machine, struct sockaddr_storage *at,
                     tern_error *err);
int tern__tcp_publish(const struct sockaddr_storage *at, int rank, tern_store *store, tern_error *err);
int tern__tcp_get(struct sockaddr_storage *at, int rank, tern_store *store, double timeout_s,
                  tern_error *err);
/* Returns a connected socket, or -errno. */
int tern__tcp_connect(const struct sockaddr_storage *at, int64_t deadline);
/* Closes once the other host has everything that was sent, or after a second. */
void tern__tcp_close(int *fd);
/* "10.0.0.1". */
void tern__tcp_host(const struct sockaddr_storage *at, char *text, size_t size);
/* "10.0.0.1 port 4123". */
void tern__tcp_text(const struct sockaddr_storage *at, char *text, size_t size);

#endif
