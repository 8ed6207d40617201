/* comm.h - groups of ranks, collectives under way, and memory that peers can reach.
 *
 * A group knows its ranks; a back end moves the bytes between them. All ranks of a group must call the same
 * collectives (collectives.h) in the same order, with the same kind, dtype, count, operation and root. If
 * they differ, all of them get an error that shows both calls (E_MISMATCH). On one host tern also finds,
 * within a second, ranks that wait for each other in different calls, say one in a barrier and one in a
 * backward, as long as they exchange nothing with other hosts meanwhile. Between hosts such a wait ends
 * with a time-out, which names ranks that are in another call, and the call.
 *
 * If a rank dies, leaves or fails, the group fails: every pending and later call returns an error that
 * names this rank. Then the group can only be closed; a new one may be opened. A group and all groups made
 * from it are a family. A failure in one group is a failure of the whole family on all its ranks, since
 * they can no longer stay in step. Errors give ranks as numbers in the world, the group that was opened.
 *
 * Threads: a family belongs to one thread at a time. tern_group_wake alone may be called by another one. */
#ifndef TERN_COMM_H
#define TERN_COMM_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_group tern_group;
typedef struct tern_work tern_work;

typedef struct tern_group_opts {
    size_t size;              /* sizeof(tern_group_opts), set by tern_group_defaults               */
    double connect_timeout_s; /* seconds until all ranks must have met; default 300                */
    double timeout_s;         /* seconds that one call may block while all peers live; default 1800 */
    const char *trace;   /* path of the job's timeline, a file that is written, the same on all ranks. Groups
                          * made from this one share it. Default: TERN_TRACE; NULL: none           */
    const char *backend; /* "native" (one host), "mpi", "gloo", "native+mpi" or "native+gloo". Default:
                          * TERN_BACKEND; NULL: the one that fits the job. Two prefixes:
                          * "nccl+" (or "nccl" alone) moves data in GPU memory with NCCL; each rank needs a
                          * GPU of its own. It is never chosen by default.
                          * "debug+" (or "debug") writes every call of each rank to stderr, or appends it to
                          * the file TERN_DEBUG_FILE, and finds buffers that are changed (E_STATE) or used
                          * twice (E_INVALID) while a collective uses them                         */
    const char *init_method;     /* where the ranks meet, as for torch.distributed.init_process_group; see
                               * tern_group_open. Default NULL: as the environment says            */
    int rank, world;             /* default -1: as the init_method or the environment says            */
    double host_timeout_s;       /* a host that does not answer for so many seconds (a pulled cable, a power
                               * failure) is lost, with all its ranks; from 4 s on, the network may fail for
                               * nearly half of it. Default 15; less than 1 counts as 1. A process that dies
                               * is noticed at once; a stopped one counts as alive              */
    struct tern_store *store;    /* a store by which the ranks meet, instead of an init_method; needs rank and
                               * world. Borrowed until tern_group_open returns, which deletes its keys unless
                               * it failed. Default NULL                                           */
    int local_rank, local_world; /* this process among the ranks of its host; default -1: LOCAL_RANK and
                                  * LOCAL_WORLD_SIZE say. A local_world of 0: counted once all have met, for
                                  * a group of some of a launcher's processes                      */
} tern_group_opts;

/* Returns the default options. */
TERN_API tern_group_opts tern_group_defaults(void);

/* Opens the world, the group of all ranks of the job. Collective: returns when all ranks have met. NULL
 * options are the defaults. Yours: tern_group_close. torch.distributed.init_process_group.
 *
 * Without init_method, rank and world, the environment says who this process is and where rank 0 listens:
 * RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (set by tern run, torchrun or by hand), else the variables
 * of mpirun (see mpi.h) or of a Slurm step (srun). Without any of these the group has one rank. TERN_PORT
 * takes precedence over MASTER_PORT: tern run sets both, so that another library can meet at MASTER_PORT.
 * If torchrun's agent serves a store there (TORCHELASTIC_USE_AGENT_STORE=True), the ranks meet through that
 * store. docs/launchers.md has a table of launchers. Otherwise, init_method is one of:
 *
 *     env://                                 the four variables above and no others
 *     tcp://host:port?rank=0&world_size=4    rank 0 listens at this address
 *     file:///path?rank=0&world_size=4       rank 0 writes its address to this file, which only this user can
 *                                            read (others are refused), and which is removed when all have
 *                                            met or the last rank has given up
 *
 * rank and world_size may be given in the method or in the options; env:// takes those given nowhere from
 * the environment. A rank or world without a method means env://. TERN_SECRET is read with every method,
 * and LOCAL_RANK and LOCAL_WORLD_SIZE unless local_world says otherwise. Without local numbers, ranks are
 * counted on each host after they have met.
 *
 * Ranks on other hosts are reached by TCP, through the network interface that leads to rank 0, or the one
 * that TERN_SOCKET_IFNAME names. TERN_HOST_ID separates ranks that share a machine into several hosts. A
 * job on one host has no open port except rank 0's, which accepts nobody once all ranks have met. So the
 * next group may be opened at the same address, beside this group or after it is closed, in the same order
 * on all ranks. No rank has to wait for rank 0 before it does so, not even after an opening that failed.
 *
 * NULL on error: E_ENV (a malformed or missing variable), E_INVALID (a malformed init_method, or one
 * without rank or world), E_RANGE (a rank not below the world, or a world above 2^20; local numbers
 * likewise), E_UNSUPPORTED (a back end that is not installed), E_TIMEOUT (names the ranks that did not
 * come; under mpirun MPI cannot tell which), E_MISMATCH (names two ranks with different back ends), E_PEER,
 * E_SYSTEM. */
TERN_API tern_group *tern_group_open(const tern_group_opts *opts, tern_error *err);
/* Returns this process's rank as the launcher has set it, before any group is open; -1 if no launcher started
 * it, and the program may start ranks itself (tern_spawn). If the environment is malformed it returns 0, and
 * tern_group_open reports the error. torch.distributed.is_torchelastic_launched. */
TERN_API int tern_launched_rank(void);
/* Closes a group and tells the peers so; NULL is allowed. The groups of a family may be closed in any order:
 * those made from this one keep what they need of it. */
TERN_API void tern_group_close(tern_group *group);

/* Splits the parent: each color becomes a group, in which ranks are ordered by key and then by their rank in
 * the parent. A rank with a negative color is in no group and gets NULL without an error. Collective over the
 * parent, which may itself come from a split. NULL options are the parent's; of others only timeout_s is
 * used. A group costs half a MiB of memory per rank. Yours: tern_group_close. For instance pairs of
 * neighbours, as apex's create_syncbn_process_group(2) makes them, but for any number of ranks:
 *
 *     tern_group *pair = tern_group_split(world, tern_group_rank(world) / 2, 0, NULL, &err);
 *
 * All groups of a family can be used at the same time. The order of calls matters only within a group.
 * Waiting in one group also advances the works of the others. But blocking calls in different groups must not
 * wait for each other in a circle. Errors end the family. MPI_Comm_split. */
TERN_API tern_group *tern_group_split(tern_group *parent, int color, int key, const tern_group_opts *opts,
                                      tern_error *err);
/* Makes a group of the parent's ranks[0..count). They keep the parent's order, whatever the order of the
 * list; other ranks get NULL without an error. Collective: all ranks of the parent call it with the same set.
 * E_INVALID: a rank that the parent does not have, or one given twice. E_MISMATCH: different sets. Yours:
 * tern_group_close. torch.distributed.new_group. */
TERN_API tern_group *tern_group_new(tern_group *parent, const int *ranks, int count,
                                    const tern_group_opts *opts, tern_error *err);
/* Returns the rank in the world (the group that was opened) of the group's `rank`; -1 if there is no such
 * rank. torch.distributed.get_global_rank. */
TERN_API int tern_group_world_rank(const tern_group *group, int rank);

/* Return this process's rank in the group, and the number of ranks. NULL, as from a tern_group_open that
 * failed, counts as a group of one: 0 and 1. */
TERN_API int tern_group_rank(const tern_group *group);
TERN_API int tern_group_size(const tern_group *group);
/* Returns this process's rank on its host; every group returns the same. */
TERN_API int tern_group_local_rank(const tern_group *group);
/* Returns the name of the back end: "self" (one rank), "native", "native+gloo" or another value of
 * opts.backend, with "debug+" or "nccl+" before it where that is used. */
TERN_API const char *tern_group_backend(const tern_group *group);

/* Makes the group fail on all ranks: peers get an error that names this rank and contains `text`. */
TERN_API void tern_group_abort(tern_group *group, int code, const char *text);

/* ---- works: collectives and messages under way, which a `_post`, tern_isend or tern_irecv starts ---- */

/* Returns TERN_OK when the work is done, TERN_PENDING before, or a negative status. Never blocks. Each call
 * moves the family's works on. */
TERN_API int tern_work_test(tern_work *work, tern_error *err);
/* Waits until the work is done or has failed, and frees it. Call it for every work, before tern_group_close.
 * On one host, a work that all ranks have finished succeeds even if a rank fails afterwards; the next call
 * returns that error. */
TERN_API int tern_work_wait(tern_work *work, tern_error *err);

/* Waits as tern_work_wait does, but for at most timeout_s seconds, and leaves the work to be freed by
 * tern_work_wait. Returns as tern_work_test does: TERN_PENDING, too, if tern_group_wake has ended the wait.
 * So a program can wait and still react to something else, such as another thread that needs the family. */
TERN_API int tern_work_wait_for(tern_work *work, double timeout_s, tern_error *err);
/* The same for several works of one family: waits until one of works[0..count) is done or has failed, and
 * stores its index in *index, unless `index` is NULL. The text of a time-out names works[0]. E_INVALID: no
 * works, or a work that is NULL. Waits of these two kinds are never found to wait for each other in
 * different calls, since the program may start another call when one ends. MPI_Waitany. */
TERN_API int tern_work_wait_any(tern_work *const *works, size_t count, double timeout_s, size_t *index,
                                tern_error *err);
/* Ends the tern_work_wait_for or tern_work_wait_any that runs in the group's family, or else the next one.
 * While the group is open, any thread may call it, and a signal handler. */
TERN_API void tern_group_wake(tern_group *group);
/* Gives a work a time-out of its own, in place of the group's timeout_s. Like that, it counts from the
 * first wait for the work. E_RANGE: it is not above 0. */
TERN_API int tern_work_timeout_set(tern_work *work, double timeout_s, tern_error *err);

/* Gives up a receive of tern_irecv or tern_batch_isend_irecv that no message has met yet: frees the work and
 * returns true. A message that comes later is for another receive. Returns false, and the work goes on, if a
 * message is there or on its way, the group has failed, or the work is something else. MPI_Cancel. */
TERN_API bool tern_work_cancel(tern_work *work);

/* Frees bytes that a function of collectives.h or p2p.h has allocated. NULL is allowed. */
TERN_API void tern_bytes_free(void *bytes);

/* ---- shared memory: peers reach it directly, so collectives on it need no copies ---- */

/* Allocates `bytes` bytes, zeroed and page-aligned. The first call in a group is collective: it reserves
 * address space, on every rank. Each later call is this rank's own business, of any size and at any time; it
 * waits for no peer. A collective may use any part of any block, at other offsets on other ranks, where it
 * may also use ordinary memory. The result and its bits are the same.
 *
 * E_MEMORY: the machine has no room for the block, or the blocks of this rank together are more than the
 * memory of the machine divided by the group's ranks on it. If the first call has succeeded once, this error
 * does not end the group. Yours: tern_group_mem_free; tern_group_close frees it too. */
TERN_API void *tern_group_mem_alloc(tern_group *group, size_t bytes, tern_error *err);
/* Frees a block when no work uses it any more; in any order, and not collective. Its memory goes back to the
 * system, and its addresses are used again. NULL is allowed. */
TERN_API void tern_group_mem_free(tern_group *group, void *ptr);

#ifdef __cplusplus
}
#endif
#endif
