/* comm.h - groups of ranks, works under way and memory that the peers can reach.
 *
 * A group knows who the ranks are; a back end moves the bytes. Every collective (collectives.h) is called by
 * all ranks of the group, in the same order, with the same kind, dtype, count, operation and root: a
 * difference is an error on all of them that shows both descriptions (E_MISMATCH), and so it is, within a
 * second, if ranks of one host wait for each other in different calls, one in a barrier and one in a
 * backward, say, and nothing of theirs is on its way to or from other hosts. Between hosts that ends in the
 * time-out, which names ranks that are in another call, and in which. A rank that dies, leaves or fails ends
 * the group: every pending and later call returns an error that names it. After that the group can only be
 * closed; a new one may be opened. A group and those made from it are a family, which fails as a whole, as
 * its ranks cannot go on in step: a failure in one group of it is a failure of all, on all ranks. Errors name
 * ranks as the world counts them.
 *
 * Threads: a family belongs to one thread at a time. */
#ifndef TERN_COMM_H
#define TERN_COMM_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_group tern_group;
typedef struct tern_work tern_work;

typedef struct tern_group_opts {
    size_t size;              /* sizeof(tern_group_opts), set by tern_group_defaults             */
    double connect_timeout_s; /* until all ranks have met; default 300                            */
    double timeout_s;         /* of one blocking call, while all peers are alive; default 1800    */
    const char *trace;   /* file that becomes the job's timeline, the same on all ranks; default TERN_TRACE,
                          * NULL is none. Groups made from this one share it                               */
    const char *backend; /* "native" (one host), "mpi", "gloo", "native+mpi", "native+gloo"; default
                          * TERN_BACKEND, NULL is what fits the job. "nccl" or "nccl+native" stands before
                          * it for what lies in the memory of GPUs, of which each rank has one of its own
                          * then; it is never chosen unasked. "debug" or "debug+native" stands before
                          * it, says on standard error (TERN_DEBUG_FILE: at that file's end) what each rank
                          * asks it to do, and finds buffers that are changed, or used for two things, while
                          * they are under way (E_STATE, E_INVALID)                                      */
    const char *init_method;  /* where the ranks meet, as torch.distributed.init_process_group's; default
                               * NULL: what the environment says (see below)                             */
    int rank, world;          /* -1: as the method or the environment says                               */
    double host_timeout_s;    /* a host that answers nothing for so long is lost, with all its ranks: a cable
                               * that is pulled, a power cut. Default 15, at least 1 counts. A process that dies
                               * is noticed at once, one that is stopped counts as alive                     */
    struct tern_store *store; /* instead of an init_method, with rank and world: where ranks tell each other
                               * where they meet. Borrowed until tern_group_open returns; the keys are gone
                               * then, but for a meeting that failed. Default NULL                          */
} tern_group_opts;

TERN_API tern_group_opts tern_group_defaults(void);

/* The world: who this process is and where rank 0 listens. Without an init_method, a rank and a world the
 * environment says so: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (set by tern run, torchrun or by hand),
 * else those of mpirun (see tern/mpi.h) or of a step of Slurm (srun); without any of them it is a group of
 * one. TERN_PORT goes before MASTER_PORT: tern run sets both, so that another library can meet at
 * MASTER_PORT; and where torchrun's agent serves a store there (TORCHELASTIC_USE_AGENT_STORE=True), ranks
 * tell each other in it. docs/launchers.md has a table of launchers. An init_method is
 *
 *     env://                                 those four variables, no others
 *     tcp://host:port?rank=0&world_size=4    rank 0 listens there
 *     file:///path?rank=0&world_size=4       rank 0 says in the file where; it is made for this user alone,
 *                                            and gone when all have met
 *
 * where rank and world_size may be given in the method or in the options (env:// takes what is given nowhere
 * from the environment); a rank or world without a method means env://. TERN_SECRET, LOCAL_RANK and
 * LOCAL_WORLD_SIZE hold for all; without the last two ranks are counted on each host when they have met.
 *
 * Ranks of other hosts are reached by TCP, by way of the interface that leads to rank 0 or that
 * TERN_SOCKET_IFNAME names; TERN_HOST_ID tells apart what shares a machine. A job of one host has no port
 * open but rank 0's, and that takes nobody once all have met: the next group may be opened at the same place,
 * when this one is closed or beside it, in the same order by all ranks. Nobody has to wait for rank 0 with
 * that, nor after an opening that failed, for ranks that did not come, say.
 *
 * Collective: returns when all ranks have met. Yours: tern_group_close, which tells the peers goodbye. NULL
 * opts are the defaults. Errors: E_ENV (a malformed or missing variable), E_INVALID (a malformed init_method,
 * or one without rank or world), E_RANGE (a rank that is not below its world, or a world of more than 2^20),
 * E_UNSUPPORTED (a back end that is not there), E_TIMEOUT (names the ranks that did not come; under mpirun
 * MPI cannot say which), E_MISMATCH (names two that have chosen different back ends), E_PEER, E_SYSTEM.
 * torch.distributed.init_process_group. */
TERN_API tern_group *tern_group_open(const tern_group_opts *opts, tern_error *err);
/* The rank that a launcher started this process as, before any group is open; -1: nobody did, so a program
 * may start its ranks itself (tern_spawn). Where the environment is malformed it is 0, and tern_group_open
 * says what is wrong. torch.distributed.is_torchelastic_launched. */
TERN_API int tern_launched_rank(void);
/* In any order: what groups made from this one need of it stays until they are closed, too. */
TERN_API void tern_group_close(tern_group *group);

/* Makes groups of the parent's ranks: one for each color, in which ranks are ordered by key and then by rank
 * in the parent; with a color < 0 a rank is in none and gets NULL without an error. Collective over the
 * parent, which may itself be made so. The group is used like any other, at the same time as the others:
 * order matters inside a group only, and who waits in one moves the works of all on, but blocking calls may
 * not wait for each other in a circle. It costs half a MiB of memory a rank. NULL opts: the
 * parent's, of which only timeout_s says anything here. Yours: tern_group_close. Pairs of neighbours, as
 * apex's create_syncbn_process_group(2) has them, of any number of ranks:
 *
 *     tern_group *pair = tern_group_split(world, tern_group_rank(world) / 2, 0, NULL, &err);
 *
 * Errors end the family. MPI_Comm_split. */
TERN_API tern_group *tern_group_split(tern_group *parent, int color, int key, const tern_group_opts *opts,
                                      tern_error *err);
/* A group of the parent's ranks[0..count), in the parent's order, whatever that of the list; ranks outside
 * get NULL without an error. Collective over the parent: all its ranks call it, with the same set. E_INVALID:
 * a rank that the parent does not have, or twice. E_MISMATCH: different sets. torch.distributed.new_group. */
TERN_API tern_group *tern_group_new(tern_group *parent, const int *ranks, int count,
                                    const tern_group_opts *opts, tern_error *err);
/* What the group's `rank` is in the world, the group that was opened; -1 if there is no such rank.
 * torch.distributed.get_global_rank. */
TERN_API int tern_group_world_rank(const tern_group *group, int rank);

/* NULL, a group that could not be opened, too, is one rank alone: 0 of 1. */
TERN_API int tern_group_rank(const tern_group *group);
TERN_API int tern_group_size(const tern_group *group);
/* This process's on its host, the same in every group. */
TERN_API int tern_group_local_rank(const tern_group *group);
/* What moves the bytes: "self" (one rank), "native", "native+gloo" or another that opts.backend knows,
 * "debug+" and "nccl+" before it. */
TERN_API const char *tern_group_backend(const tern_group *group);

/* Ends the group for all ranks: peers get an error that names this rank and carries `text`. */
TERN_API void tern_group_abort(tern_group *group, int code, const char *text);

/* ---- works: what a `_post` of collectives.h has started ---- */

/* TERN_OK when done, TERN_PENDING, or a negative status; never blocks; makes progress. */
TERN_API int tern_work_test(tern_work *work, tern_error *err);
/* Blocks until done or failed, and frees the work; before tern_group_close. On one host a work that all ranks
 * have finished is done, whatever failed afterwards: the next call tells of that. */
TERN_API int tern_work_wait(tern_work *work, tern_error *err);

/* Of bytes that a function of collectives.h or p2p.h has made; NULL is fine. */
TERN_API void tern_bytes_free(void *bytes);

/* ---- memory that the peers can reach: collectives on it copy nothing ---- */

/* Collective, the same bytes on every rank; zeroed, page-aligned. Any part of it may be a collective's
 * buffer, on all ranks at the same offset. Yours: tern_group_mem_free (collective, with no work on it
 * unfinished), or tern_group_close. */
TERN_API void *tern_group_mem_alloc(tern_group *group, size_t bytes, tern_error *err);
TERN_API void tern_group_mem_free(tern_group *group, void *ptr);

#ifdef __cplusplus
}
#endif
#endif
