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
/* True if `peer` is this rank, or another rank of this process. */
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

/* ---- what a rank waits in, or did last ---- */

#define TERN__LAST_WORDS 25
#define TERN__LAST_TEXT  256

/* Puts a work into words, which `words` describe: "all_reduce of 100 f32, sum (work 5)". Runs on the control
 * thread. */
typedef void tern__last_format(const uint64_t *words, char *text, size_t size);

/* The group's thread calls all of these. Keeps `count` words of a work (at most TERN__LAST_WORDS) for peers
 * that ask: some stores for every post. */
void tern__control_last_set(tern__control *control, tern__last_format *format, const uint64_t *words,
                            int count);
/* Keeps what this rank waits in, "all_reduce of 8 f32, sum (work 2), for rank 3", and the first rank that it
 * waits for, or -1. A wait calls it once it is long, and with NULL when it has succeeded: never after a
 * failure, for a rank that gives up has waited. */
void tern__control_wait_set(tern__control *control, const char *text, int awaited);

/* What a peer does, those first that others most likely wait for. */
typedef enum tern__doing {
    TERN__DOING_STOP,    /* its process is stopped, as this one sees                        */
    TERN__DOING_CUT_OFF, /* its host does not even acknowledge the question                 */
    TERN__DOING_SILENT,  /* its host has the question, but it does not answer: is it stopped? */
    TERN__DOING_LEFT,
    TERN__DOING_OTHER, /* it does not wait */
    TERN__DOING_WAIT
} tern__doing;

/* Asks `peer`, whose control thread answers at once even while the rank computes, and puts what it does
 * behind "rank 1 (host, pid 77)": " waits in barrier (work 5), for rank 2". */
tern__doing tern__control_last_get(tern__control *control, int peer, double timeout_s, char *text,
                                   size_t size);
/* Asks and does not wait for the answer. */
void tern__control_last_ask(tern__control *control, int peer);
/* Appends "; rank 1 (host, pid 77) <what it does>" for each peer that was asked, and for those that these
 * wait for in turn. `what` is this rank's own wait, named as in wait_set but without "for rank 3": a peer in
 * the same "waits in it, too". Where the room ends it says how many more there are. */
void tern__control_others_text(tern__control *control, const char *what, double timeout_s, char *text,
                               size_t size);
/* True if `peer` is a process that this one sees and that is stopped: by SIGSTOP, or a debugger. */
bool tern__control_is_stopped(const tern__control *control, int peer);

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
