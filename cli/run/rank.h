/* rank.h - starts a rank as a child process with its environment, arguments, cores and descriptors. A rank
 * leads a process group. */
#ifndef TERN_CLI_RUN_RANK_H
#define TERN_CLI_RUN_RANK_H

#include "run/binding.h"
#include "run/guard.h"
#include "run/logs.h"
#include "run/terminal.h"

#include "comm/launch/presence.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

typedef struct tern__rank {
    pid_t pid;
    int pid_fd;   /* a pidfd; -1: the kernel has none                         */
    int error_fd; /* without a log folder: the file of TORCHELASTIC_ERROR_FILE; else -1 */
    bool polled;  /* its end is looked for with waitpid: the kernel has no pidfds, or the pidfd has become
                   * readable but a debugger still holds the rank             */
    bool gone;    /* reaped: the pid belongs to its group, or to another process by now */
    bool has_succeeded; /* exited with 0 */
    bool is_group_gone; /* no process is left in the group that it led            */
} tern__rank;

/* What all ranks of an attempt have in common. */
typedef struct tern__start {
    const tern__job *job;
    const tern__logs *logs;
    const tern__binding *binding;
    const tern__guard *guard;
    const tern__terminal *terminal;
    const tern__presence *presence;
    const sigset_t *mask;
    struct rlimit files;  /* the limit of descriptors that tern run had at its start; ranks get it back */
    bool cores_are_short; /* there are more threads, of the ranks and of others, than cores */
    int report_fd;        /* a child that cannot run the program writes two ints: errno and its local rank */
} tern__start;

/* Returns whether the ranks' threads and those of other programs that are running now take turns on the
 * cores. False for ranks of one thread, which wait for no team. */
bool tern__cores_are_short(const tern__launch *launch);

/* Starts the program as local rank `local` and fills in outputs[].fd, which the caller owns. A child that
 * cannot run the program exits with 127 if there is no such program, else with 126. Errors: E_SYSTEM. */
int tern__rank_start(const tern__start *start, int local, tern__cli_output outputs[2], tern__rank *rank,
                     tern_error *err);
/* Closes the descriptors; does not touch the process. */
void tern__rank_close(tern__rank *rank);

#endif
