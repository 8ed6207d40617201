/* preempt.h - being asked to stop: the ranks agree on the step at which they save and leave.
 *
 *     tern_preempt *preempt = tern_preempt_new(world, NULL, &err);
 *     while (...) {
 *         ... one step ...
 *         if (tern_preempt_pending(preempt, &err)) break;
 *     }
 *     tern_snapshot_save(snapshot, step, &err);
 *
 * A cluster takes a machine back with SIGTERM and some seconds of grace (tern run passes it on and gives the
 * ranks --grace seconds, 30 if nothing is said), and Slurm warns before if the job asks for it
 * (#SBATCH --signal=USR1@120). The signal may reach one rank first, or one only: who has it tells the others,
 * which they hear a step later. No time is lost with it: what is told travels while the next step computes.
 *
 * Threads: a preempt belongs to the thread of its group, but for tern_preempt_ask. */
#ifndef TERN_PREEMPT_H
#define TERN_PREEMPT_H

#include <tern/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_preempt tern_preempt;

typedef struct tern_preempt_opts {
    size_t size;
    int signal;  /* that asks; default SIGTERM; 0: none       */
    int warning; /* another one; default SIGUSR1; 0: none     */
    int every;   /* the ranks tell each other in every so-manyth call of tern_preempt_pending; default 1 */
} tern_preempt_opts;
TERN_API tern_preempt_opts tern_preempt_defaults(void);

/* From now on the signals do not end the process. On every rank of `group`, which may be NULL and is
 * borrowed; not collective. Yours: tern_preempt_free, before the group is closed, which puts the handlers
 * back that were there. E_RANGE: every < 1; E_INVALID: no such signal, or one that cannot be handled;
 * E_STATE: a signal that another preempt of this process has; E_SYSTEM, E_MEMORY. */
TERN_API tern_preempt *tern_preempt_new(tern_group *group, const tern_preempt_opts *opts, tern_error *err);
TERN_API void tern_preempt_free(tern_preempt *preempt);

/* Once a step. 1 from the call on, the same on all ranks, in which they hear that any has been asked; 0; or a
 * negative status. Collective: in every `every`th call an all_reduce of one byte is posted, and the one that
 * was posted before is waited for. Alone a rank hears at once. */
TERN_API int tern_preempt_pending(tern_preempt *preempt, tern_error *err);

/* Asks without a signal; from any thread, or from a signal handler. */
TERN_API void tern_preempt_ask(tern_preempt *preempt);
/* Becomes readable when this rank is asked, for who waits in poll(); borrowed, and not to be read from. */
TERN_API int tern_preempt_fd(const tern_preempt *preempt);

#ifdef __cplusplus
}
#endif
#endif
