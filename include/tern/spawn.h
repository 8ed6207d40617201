/* spawn.h - ranks as forked processes of the program itself.
 *
 * Threads: tern_spawn is called by the only one of the process; tern_local_rank_take by any. */
#ifndef TERN_SPAWN_H
#define TERN_SPAWN_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_spawn_opts {
    size_t size;
    double grace_s; /* from SIGTERM to SIGKILL, once a rank has failed; default 5 */
} tern_spawn_opts;
TERN_API tern_spawn_opts tern_spawn_defaults(void);

/* Forks `n` processes, each of which calls fn(rank, arg) with what it had in memory so far and in the
 * environment that tern_group_open reads, and exits with the status that fn returns (255 for one that a byte
 * does not hold); returns when all are gone. They die with the caller, and no signal handler is installed in
 * it. Without exec, so neither `arg` nor `fn` have to be found again. torch.multiprocessing.spawn.
 *
 * The first rank that fails ends the others: SIGTERM, then SIGKILL. Errors: E_PEER names it, its pid and how
 * it ended, err->native holds its exit code (128 + signal); E_RANGE (n from 1 to 4096); E_STATE where a
 * forked rank could not work: the process has more than one thread (an open group's, OpenMP's after the first
 * kernel on several), is a rank already (RANK or WORLD_SIZE is set), or ignores SIGCHLD; E_SYSTEM. */
TERN_API int tern_spawn(int (*fn)(int rank, void *arg), int n, void *arg, const tern_spawn_opts *opts,
                        tern_error *err);

/* Takes what torch.distributed.launch and `tern run --pass-local-rank` put among a program's arguments out of
 * them: `--local-rank=N`, `--local_rank=N` and the same with N as the next one. argv[0], what is behind `--`
 * and the NULL at the end stay where they are. *local_rank = N, the last one where there are several, and
 * stays as it was where there is none. Errors: E_INVALID where N is no whole number from 0; argv is then as
 * it was. */
TERN_API int tern_local_rank_take(int *argc, char **argv, int *local_rank, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
