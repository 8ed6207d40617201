/* control.h - the control plane: one sleeping thread per process in poll() on every peer's socket and pidfd.
 *
 * * * It carries no tensor data, only goodbye, abort(code, text) and, within a host, file descriptors. A
 * waiting rank learns from it within milliseconds that a peer has died (pidfd, or EOF without a goodbye),
 * aborted or left, and can name that peer.
 *
 * Two ranks are on the same host if their Unix sockets can reach each other (same kernel and network
 * namespace) and TERN_HOST_ID is the same. These sockets are abstract and refuse other users (SO_PEERCRED).
 * Between hosts the control plane uses TCP, on the interface that leads to rank 0 or that TERN_SOCKET_IFNAME
 * names. A port is open only in a job of several hosts, and only while the ranks meet. Every connection is
 * authenticated with the job's secret and a random number of this meeting. A host that vanishes is noticed by
 * its silence.
 *
 * Threads: check, has_left and abort may be called by any thread, the other functions by the group's thread.
 */
#ifndef TERN_SRC_COMM_MEET_CONTROL_CONTROL_H
#define TERN_SRC_COMM_MEET_CONTROL_CONTROL_H

#include "comm/bootstrap/bootstrap.h"
#include "comm/store/store.h"

typedef struct tern__control tern__control;

/* Collective: meets all peers through the store and connects to each. A host that does not answer for
 * `host_timeout_s` counts as lost. E_TIMEOUT names the ranks that did not come; E_ENV names two processes
 * with the same RANK, or ranks that disagree on WORLD_SIZE; E_MISMATCH names two ranks with different back
 * ends; E_PEER names a rank that died, failed or cannot be reached. If it fails on one rank, it soon fails on
 * all. */
tern__control *tern__control_open(const tern__bootstrap *boot, tern_store *store, double timeout_s,
                                  double host_timeout_s, tern_error *err);
/* Tells the peers, unless they were told of an abort, that this rank has done its part and leaves. It comes
 * before any connection to them is closed, which they would take for a death. NULL is allowed; in a forked
 * child it does nothing. */
void tern__control_goodbye(tern__control *control);
/* Says goodbye if nobody has, and ends the thread. NULL is allowed. In a forked child it only frees
 * memory. */
void tern__control_close(tern__control *control);

/* Sets a function that the control thread calls after every event (a death, an abort, including this rank's
 * own, a goodbye, a descriptor), so that it can wake a sleeping waiter. Events before this call are not
 * repeated, so call check after it. Once it returns, the previous `wake` no longer runs. */
void tern__control_wake_set(tern__control *control, void (*wake)(void *ctx), void *ctx);

/* Sets a function that the control thread calls ten times a second, for the time in which the group's thread
 * waits in code that is not ours. NULL: none; once it returns, the previous one no longer runs. */
void tern__control_tick_set(tern__control *control, void (*tick)(void *ctx), void *ctx);

/* True while no rank has died or aborted: one relaxed load, for spin loops. */
bool tern__control_is_healthy(const tern__control *control);
/* Returns TERN_OK, or from the first failure on always that failure: E_PEER with "rank 1 (host, pid 77) was
 * lost: ..." or "rank 1 (host, pid 77) failed: <its text>" (the peer's code is in err->native), or what this
 * rank itself passed to abort. A peer's E_MISMATCH stays E_MISMATCH, because this rank is one of those that
 * differ. */
int tern__control_check(const tern__control *control, const char *func, tern_error *err);
/* True once `peer` has said goodbye; it will post nothing more. */
bool tern__control_has_left(const tern__control *control, int peer);
/* True if `peer` is this rank, or another rank of this process. */
bool tern__control_is_same_process(const tern__control *control, int peer);
/* Hosts are numbered from 0 in the order of their first ranks; the same on all ranks. */
int tern__control_host(const tern__control *control, int rank);
int tern__control_hosts(const tern__control *control);
bool tern__control_is_same_host(const tern__control *control, int peer);
/* True if `peer` is this rank, or a rank of this host whose set of usable cores overlaps with this rank's. */
bool tern__control_shares_cores(const tern__control *control, int peer);
/* Writes the address at which the other hosts reach this one, "10.0.0.1"; "127.0.0.1" if there is only one
 * host. */
void tern__control_address(const tern__control *control, char *text, size_t size);
/* Writes "rank 1 (host, pid 77)", or "rank 1 (host/attic, pid 77)" with TERN_HOST_ID=attic. */
void tern__control_describe(const tern__control *control, int peer, char *text, size_t size);

/* Tells every peer, once; from then on this rank's own check fails, too. Never blocks. If a peer has failed
 * before, that peer's failure is passed on in its own words, so that all ranks name the rank that failed
 * first. */
void tern__control_abort(tern__control *control, int code, const char *text);

/* ---- what a rank is waiting in, or did last ---- */

#define TERN__LAST_WORDS 25
#define TERN__LAST_TEXT  256

/* Formats the work that `words` encode: "all_reduce of 100 f32, sum (work 5)". Runs on the control thread. */
typedef void tern__last_format(const uint64_t *words, char *text, size_t size);

/* The group's thread calls these functions. last_set keeps `count` words of a work (at most TERN__LAST_WORDS)
 * for peers that ask. It costs a few stores per post. */
void tern__control_last_set(tern__control *control, tern__last_format *format, const uint64_t *words,
                            int count);
/* Keeps what this rank is waiting in, "all_reduce of 8 f32, sum (work 2), for rank 3", and the first rank
 * that it waits for, or -1. A wait calls it once it has taken long. */
void tern__control_wait_set(tern__control *control, const char *text, int awaited);
/* From time `end` on this rank does not wait any more. After a failure nobody calls this, so that peers still
 * learn what this rank was waiting in. */
void tern__control_wait_end(tern__control *control, int64_t end);

/* Asks what `peer` is doing, without waiting for the answer, which its control thread gives at once even
 * while the rank computes. */
void tern__control_last_ask(tern__control *control, int peer);
/* Appends "; rank 1 (host, pid 77) <what it is doing>" for each peer that was asked, and for the ranks that
 * those wait for in turn. `what` is this rank's own wait, named as in wait_set but without "for rank 3": a
 * peer in the same work "waits in it, too". If the text is full, it ends with how many more ranks there
 * are. */
void tern__control_others_text(tern__control *control, const char *what, double timeout_s, char *text,
                               size_t size);
/* True if this process can see `peer`'s process and it is stopped (by SIGSTOP or a debugger). */
bool tern__control_is_stopped(const tern__control *control, int peer);
/* Returns the rank that holds up `peer`, or is it, and seems to be stopped; -1: there is none, as far as is
 * known. Call it again and again during a long wait: it never blocks, but asks `peer`, and the rank that
 * `peer` waits for in turn. A rank that this process can see is stopped if the kernel says so, *is_seen; one
 * of another host if it has answered nothing for `silent_s`, although its host has acknowledged the question.
 */
int tern__control_find_stopped(tern__control *control, int peer, double silent_s, bool *is_seen);

/* True if `peer` has last answered that it waits itself. */
bool tern__control_waits(tern__control *control, int peer);
/* True if this rank is to warn of `peer`, and no other rank of its host has begun to, until they _unclaim.
 * Their store was at the place of `boot`. */
bool tern__control_claim(tern__control *control, const tern__bootstrap *boot, int peer);
void tern__control_unclaim(tern__control *control);
/* Warn that `peer` is stopped, and that the `ranks` [world] have not come, while this rank waits in `what`.
 */
void tern__control_warn_stopped(const tern__control *control, int peer, const char *what, bool is_seen,
                                double timeout_s);
void tern__control_warn_absent(const tern__control *control, const bool *ranks, const char *what);

/* ---- descriptors ---- */

/* Sends a duplicate of `fd` under `tag` to a rank of this host; E_INVALID if it is on another host. */
int tern__control_send_fd(tern__control *control, int peer, uint64_t tag, int fd, tern_error *err);
/* Returns how many descriptors were sent to `peer` so far. */
uint64_t tern__control_sent(const tern__control *control, int peer);
/* True if at least `sent` descriptors have arrived from `peer` and none with this `tag` is waiting. */
bool tern__control_lacks_fd(tern__control *control, int peer, uint64_t tag, uint64_t sent);
/* Sets *fd to the descriptor that `peer` sent under `tag`; the caller closes it. Fails early if the peer
 * leaves, or if any rank dies or aborts. */
int tern__control_recv_fd(tern__control *control, int peer, uint64_t tag, double timeout_s, int *fd,
                          tern_error *err);

#endif
