/* control.h - the control plane: one sleeping thread per process in poll() on every peer's socket and pidfd.
 *
 * It carries no tensor data: goodbye, abort(code, text) and, inside a host, file descriptors. Its use is that
 * a waiting rank learns within milliseconds that a peer has died (pidfd or EOF without a goodbye), aborted or
 * left, and can say which.
 *
 * Ranks are of one host if their Unix sockets reach each other, which depends on kernel and network
 * namespace, and TERN_HOST_ID is the same. These sockets are abstract and refuse another uid (SO_PEERCRED).
 * Between hosts it is TCP, on the interface that leads to rank 0 or that TERN_SOCKET_IFNAME names; it has no
 * port open in a job of one host, nor after the meeting. All connections are authenticated by the job's
 * secret and by a number of this meeting. A host that vanishes is noticed by its silence.
 *
 * Threads: open, close, send_fd, recv_fd and what is said of them by the group's thread; check, left and
 * abort by any. */
#ifndef TERN_SRC_COMM_CONTROL_H
#define TERN_SRC_COMM_CONTROL_H

#include "comm/bootstrap/bootstrap.h"
#include "comm/store/store.h"

typedef struct tern__control tern__control;

/* Collective: meets all peers through the store and connects to each. A host that answers nothing for
 * `host_timeout_s` is lost. E_TIMEOUT names the ranks that did not come, E_ENV two processes with the same
 * RANK or ranks that disagree on WORLD_SIZE, E_MISMATCH two of different back ends, E_PEER a rank that died,
 * failed or cannot be reached: soon after one rank, all fail. */
tern__control *tern__control_open(const tern__bootstrap *boot, tern_store *store, double timeout_s,
                                  double host_timeout_s, tern_error *err);
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
 * pid 77) failed: <its text>" (its code in err->native; E_MISMATCH if that is it, for this rank is one of
 * those that differ), or what this rank itself gave to abort. */
int tern__control_check(const tern__control *control, const char *func, tern_error *err);
/* True once `peer` has said goodbye: it will post nothing more. */
bool tern__control_has_left(const tern__control *control, int peer);
/* True if `peer` is another rank of this very process: the kernel says so of its socket. */
bool tern__control_is_same_process(const tern__control *control, int peer);
/* Hosts are numbered from 0 in the order of their first ranks; the same on all ranks. */
int tern__control_host(const tern__control *control, int rank);
int tern__control_hosts(const tern__control *control);
bool tern__control_is_same_host(const tern__control *control, int peer);
/* True of oneself, and of a rank of this host that may use some of the same cores. */
bool tern__control_shares_cores(const tern__control *control, int peer);
/* The address at which the other hosts reach this one, "10.0.0.1"; "127.0.0.1" if there is only one. */
void tern__control_address(const tern__control *control, char *text, size_t size);
/* "rank 1 (host, pid 77)"; "rank 1 (host/attic, pid 77)" under TERN_HOST_ID=attic. */
void tern__control_describe(const tern__control *control, int peer, char *text, size_t size);

/* Tells every peer, once; this rank's own check fails from then on too. Never blocks. If a peer has failed
 * before, that is what is passed on, in its words: all ranks name the rank that failed first. */
void tern__control_abort(tern__control *control, int code, const char *text);

/* ---- what a rank last did ---- */

#define TERN__LAST_WORDS 12
#define TERN__LAST_TEXT  256

/* Puts a work into words, which `words` describe: "all_reduce of 100 f32, sum (work 5)". Runs on the control
 * thread. */
typedef void tern__last_format(const uint64_t *words, char *text, size_t size);

/* Says what this rank does now, for peers that will ask: stores `count` words (at most TERN__LAST_WORDS), for
 * every post. By the group's thread, as are the others here. */
void tern__control_last_set(tern__control *control, tern__last_format *format, const uint64_t *words,
                            int count);
/* Says that the group's thread is about to sleep until others come, or that it goes on. */
void tern__control_wait_set(tern__control *control, bool waits);
/* What `peer` last did, in its own words, for "..., whose last was %s": asks its control thread, which
 * answers at once even while the rank computes. `text` is always filled. E_TIMEOUT: no answer, as of a
 * process that is stopped; E_PEER: it has left. */
int tern__control_last_get(tern__control *control, int peer, double timeout_s, char *text, size_t size);
/* Of all ranks those that do not wait for others, or wait with another last than this one's, at whom a
 * time-out is to be blamed: "; rank 1 (host, pid 77) does not answer: is it stopped?", or what it did last.
 * "" if all wait in the same. */
void tern__control_others_text(tern__control *control, double timeout_s, char *text, size_t size);
/* True if `peer` is a process that this one sees and that is stopped: by SIGSTOP, or a debugger. */
bool tern__control_is_stopped(const tern__control *control, int peer);
/* Asks, so that a later _get need not: for who wants to know it of several. */
void tern__control_last_ask(tern__control *control, int peer);

/* ---- descriptors ---- */

/* Sends a duplicate of `fd` under `tag`, to a rank of this host: E_INVALID otherwise. */
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
