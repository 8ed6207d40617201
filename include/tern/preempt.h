/* preempt.h - stopping on request: all ranks agree on the step at which they save and exit.
 *
 *     tern_preempt *preempt = tern_preempt_new(world, NULL, &err);
 *     while (...) {
 *         ... one step ...
 *         if (tern_preempt_pending(preempt, &err)) break;
 *     }
 *     tern_snapshot_save(snapshot, step, &err);
 *
 * A cluster takes a machine back with SIGTERM and some seconds of grace (tern run passes the signal on and
 * gives the ranks --grace seconds, 30 by default). Slurm warns earlier if the job asks for it (#SBATCH
 * --signal=USR1@120). The signal may reach one rank first, or one rank only: that rank tells the others,
 * which learn it one step later. This costs no time, since the message is exchanged while the next step
 * computes. A rank that has been asked measures no further algorithms of convolutions and products
 * (docs/conv.md), so that a first step ends soon. Where the data may hang, wait for them with
 * tern_loader_wait.
 *
 * A program may let Ctrl-C ask, too: opts.interrupt = SIGINT. The second Ctrl-C then ends the process at
 * once, as the first one does otherwise.
 *
 * Threads: a preempt belongs to the thread of its group, except for tern_preempt_ask. */
#ifndef TERN_PREEMPT_H
#define TERN_PREEMPT_H

#include <tern/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_preempt tern_preempt;

typedef struct tern_preempt_opts {
    size_t size;
    int signal;    /* the signal that asks to stop; default SIGTERM; 0: none      */
    int warning;   /* another one; default SIGUSR1; 0: none                       */
    int every;     /* the ranks tell each other in every n-th call of tern_preempt_pending; default 1 */
    int interrupt; /* SIGINT: asks once, and the second one ends the process; default 0: none. Stays ignored
                    * if it is, as in a shell's background jobs. A launcher's copy of the terminal's Ctrl-C,
                    * within a second, is not a second one */
} tern_preempt_opts;
/* Returns the default options. */
TERN_API tern_preempt_opts tern_preempt_defaults(void);

/* Handles the signals from now on, so that they no longer end the process. Call it on every rank of `group`,
 * which is borrowed and may be NULL; not collective. Yours: tern_preempt_free, before the group is closed; it
 * restores the old signal handlers. NULL on error: E_RANGE (every < 1), E_INVALID (no such signal, or one
 * that cannot be handled), E_STATE (another preempt of this process has the signal), E_SYSTEM, E_MEMORY. */
TERN_API tern_preempt *tern_preempt_new(tern_group *group, const tern_preempt_opts *opts, tern_error *err);
TERN_API void tern_preempt_free(tern_preempt *preempt);

/* Tells whether the ranks should stop; call it once a step. Returns 1 once any rank has been asked, from the
 * same call on all ranks; 0 before; or a negative status. Collective: every `every`-th call starts an
 * all_reduce of one byte and waits for the previous one. A single process learns at once. */
TERN_API int tern_preempt_pending(tern_preempt *preempt, tern_error *err);

/* Asks to stop without a signal. May be called from any thread and from a signal handler. */
TERN_API void tern_preempt_ask(tern_preempt *preempt);
/* Returns a file descriptor that becomes readable when this rank is asked, to use in poll(). Borrowed; do not
 * read from it. */
TERN_API int tern_preempt_fd(const tern_preempt *preempt);

#ifdef __cplusplus
}
#endif
#endif
