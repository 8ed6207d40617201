/* spawn.h - starts ranks as forked processes of the program itself.
 *
 * Threads: tern_spawn must be called while the process has one thread only; tern_local_rank_take by any
 * thread. */
#ifndef TERN_SPAWN_H
#define TERN_SPAWN_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_spawn_opts {
    size_t size;
    double grace_s; /* seconds between SIGTERM and SIGKILL after a rank has failed, or PID 1 has got a
                     * signal; default 5 */
} tern_spawn_opts;
/* Returns the default options. */
TERN_API tern_spawn_opts tern_spawn_defaults(void);

/* Forks `n` processes, 1 to 4096, and returns when all have ended. Process r calls fn(r, ctx), with a copy of
 * this process's memory and with the environment variables that tern_group_open reads, and exits with the
 * status that fn returns (255 if it does not fit a byte). There is no exec, so `fn` and `ctx` need no names.
 * If the caller dies, so do the processes, but not what they have started.
 * torch.multiprocessing.spawn.
 *
 * No signal handler is installed in the caller. SIGCHLD is blocked until the function returns, so that a
 * handler that reaps every child does not take the ranks' statuses. If the caller is PID 1, as in a
 * container, SIGHUP, SIGINT, SIGQUIT and SIGTERM without a handler, which the kernel would drop, are passed
 * on to the ranks, a second one as SIGKILL; and orphans, whose parent the caller becomes, are reaped.
 *
 * When a rank fails, all others are ended: with SIGTERM, then with SIGKILL. A rank that does not die of that
 * within 2 s (a frozen control group) is left behind and named in the error. A rank that exits with 0 fails
 * the job if others then cannot open their group, and is named as the cause if it has left a group open and
 * another rank fails. After the end of a rank whose group failed because of another one, that one has a
 * second to end and to be named instead. Errors: E_PEER (names the first rank that failed, its pid and how it
 * ended; err->native is its exit code, or 128 + its signal), E_RANGE (n), E_STATE (forked ranks could not
 * work: the process has more than one thread, such as an open group's or OpenMP's after the first parallel
 * kernel; or it is a rank already, with RANK or WORLD_SIZE set; or it ignores SIGCHLD), E_SYSTEM. */
TERN_API int tern_spawn(int (*fn)(int rank, void *ctx), int n, void *ctx, const tern_spawn_opts *opts,
                        tern_error *err);

/* Removes from a program's arguments the local rank that torch.distributed.launch or `tern run
 * --pass-local-rank` has added: `--local-rank=N` or `--local_rank=N`, or either with N as the next argument.
 * argv[0], everything after `--`, and the final NULL stay. Stores N in *local_rank, the last N if there are
 * several; if there is none, *local_rank keeps its value. E_INVALID: N is not an integer from 0; argv is then
 * unchanged. */
TERN_API int tern_local_rank_take(int *argc, char **argv, int *local_rank, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
