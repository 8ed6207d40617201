/* control.h - the control plane: one sleeping thread per process in poll() on every peer's pidfd and Unix
 * socket.
 *
 * It carries no tensor data: goodbye, abort(code, text) and file descriptors. Its use is that a waiting rank
 * learns within milliseconds that a peer has died (pidfd or EOF without a goodbye), aborted or left, and can
 * say which. Same host means: a file descriptor was really passed. Sockets are abstract, authenticated by the
 * job's secret, and refuse another uid (SO_PEERCRED).
 *
 * Threads: open, close, send_fd, recv_fd and what
 * is said of them by the group's thread; check, left and abort by any. */
#ifndef TERN_SRC_COMM_CONTROL_H
#define TERN_SRC_COMM_CONTROL_H

#include "comm/bootstrap.h"
#include "comm/store/store.h"

typedef struct tern__control tern__control;

/* Collective: meets all peers through the store and connects to each. E_TIMEOUT names the ranks that did not
 * come, E_ENV two processes with the same RANK or ranks that disagree on WORLD_SIZE, E_UNSUPPORTED a rank on
 * another host, E_PEER a rank that died or failed on the way: soon after one rank, all fail. */
tern__control *tern__control_open(const tern__bootstrap *boot, tern__store *store, double timeout_s,
                                  tern_error *err);
/* Tells the peers goodbye (unless aborted) and ends the thread. NULL is fine. In a forked child it only
 * frees. */
void tern__control_close(tern__control *control);

/* Called by the control thread after every event (death, abort, also one's own, goodbye, a descriptor), so
 * that a sleeping waiter can be woken. Events before this call are not repeated: check after it. Once it
 * returns, the earlier `wake` does not run any more. */
void tern__control_wake_set(tern__control *control, void (*wake)(void *ctx), void *ctx);

/* True as long as nobody has died or aborted: one relaxed load, for spin loops. */
bool tern__control_is_healthy(const tern__control *control);
/* TERN_OK or the first event, for ever: E_PEER with "rank 1 (host, pid 77) was lost: ..." or "rank 1 (host,
 * pid 77) failed: <its text>" (its code in err->native), or what this rank itself gave to abort. */
int tern__control_check(const tern__control *control, const char *func, tern_error *err);
/* True once `peer` has said goodbye: it will post nothing more. */
bool tern__control_has_left(const tern__control *control, int peer);
/* True if `peer` is another rank of this very process: the kernel says so of its socket. */
bool tern__control_is_same_process(const tern__control *control, int peer);
/* "rank 1 (host, pid 77)". */
void tern__control_describe(const tern__control *control, int peer, char *text, size_t size);

/* Tells every peer, once; this rank's own check fails from then on too. Never blocks. If a peer has failed
 * before, that is what is passed on, in its words: all ranks name the rank that failed first. */
void tern__control_abort(tern__control *control, int code, const char *text);

/* Sends a duplicate of `fd` under `tag`. */
int tern__control_send_fd(tern__control *control, int peer, uint64_t tag, int fd, tern_error *err);
/* How many were sent to `peer` so far. */
uint64_t tern__control_sent(const tern__control *control, int peer);
/* True if `sent` or more of peer's have come, and none that waits is under `tag`. */
bool tern__control_lacks_fd(tern__control *control, int peer, uint64_t tag, uint64_t sent);
/* *fd = the descriptor that `peer` sent under `tag`; yours to close. Fails early if the peer leaves
 * or anybody dies or aborts. */
int tern__control_recv_fd(tern__control *control, int peer, uint64_t tag, double timeout_s, int *fd,
                          tern_error *err);

#endif
