/* comm.h - groups of ranks and their collectives.
 *
 * A group knows who the ranks are; a back end moves the bytes. Every collective is called by all ranks of the
 * group, in the same order, with the same kind, dtype, count, operation and root: a difference is an error on
 * all of them that shows both descriptions (E_MISMATCH), and so it is, within a second, if ranks wait for
 * each other in different calls, one in a barrier and one in a backward, say. A rank that dies, leaves or
 * fails ends the group: every pending and later call returns an error that names it. After that the group can
 * only be closed; a new one may be opened. A group and those made from it are a family, which fails as a
 * whole, as its ranks cannot go on in step: a failure in one group of it is a failure of all, on all ranks.
 * Errors name ranks as the world counts them.
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
    const char *trace; /* file that becomes the job's timeline, the same on all ranks; default TERN_TRACE,
                        * NULL is none. Groups made from this one share it                               */
} tern_group_opts;

TERN_API tern_group_opts tern_group_defaults(void);

/* The world: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who this process is and where rank 0 listens
 * (set by tern run, torchrun or by hand); without them a group of one. TERN_PORT goes before MASTER_PORT:
 * tern run sets both, so that another library can meet at MASTER_PORT; and where torchrun's agent has taken
 * that (TORCHELASTIC_USE_AGENT_STORE=True), it is the next port. Collective: returns when all ranks have met.
 * Yours: tern_group_close, which tells the peers goodbye. NULL opts are the defaults. Errors: E_ENV (a
 * malformed variable), E_TIMEOUT (names the ranks that did not come), E_PEER, E_SYSTEM. */
TERN_API tern_group *tern_group_open(const tern_group_opts *opts, tern_error *err);
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
/* "native" (shared windows of one host) or "self" (one rank). */
TERN_API const char *tern_group_backend(const tern_group *group);

/* Ends the group for all ranks: peers get an error that names this rank and carries `text`. */
TERN_API void tern_group_abort(tern_group *group, int code, const char *text);

/* Integers wrap, a NaN wins over any number, bf16 and f16 are combined in f32 and rounded once. AVG is for
 * floating point (E_DTYPE), and of bool SUM and MAX are "or", PRODUCT and MIN "and". */
typedef enum tern_reduce_op { TERN_SUM, TERN_AVG, TERN_MIN, TERN_MAX, TERN_PRODUCT } tern_reduce_op;

/* ---- collectives that block. Return TERN_OK or a negative status, also in *err. ---- */

/* buf[0..count) of every rank becomes the reduction in rank order: the same bits on every rank. */
TERN_API int tern_all_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                             tern_error *err);
/* buf[0..count) of every rank becomes root's. */
TERN_API int tern_broadcast(tern_group *group, void *buf, size_t count, tern_dtype dtype, int root,
                            tern_error *err);
/* out[r * count .. (r + 1) * count) becomes rank r's in[0..count); out holds count * size elements. */
TERN_API int tern_all_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                             tern_error *err);
/* out[0..count) of rank r becomes the reduction of all ranks' in[r * count .. (r + 1) * count); `in` holds
 * count * size elements and is not written, unless `out` is this rank's own part of it. From a window a rank
 * reads count * size elements and writes count. torch.distributed.reduce_scatter_tensor. */
TERN_API int tern_reduce_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                                 tern_reduce_op op, tern_error *err);
/* Returns when every rank has called it. */
TERN_API int tern_barrier(tern_group *group, tern_error *err);

/* ---- the same, started now and finished later ---- */

/* The buffers belong to the work until wait returns. NULL on error. */
TERN_API tern_work *tern_all_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                         tern_reduce_op op, tern_error *err);
TERN_API tern_work *tern_broadcast_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                        int root, tern_error *err);
TERN_API tern_work *tern_all_gather_post(tern_group *group, const void *in, void *out, size_t count,
                                         tern_dtype dtype, tern_error *err);
TERN_API tern_work *tern_reduce_scatter_post(tern_group *group, const void *in, void *out, size_t count,
                                             tern_dtype dtype, tern_reduce_op op, tern_error *err);
/* TERN_OK when done, TERN_PENDING, or a negative status; never blocks; makes progress. */
TERN_API int tern_work_test(tern_work *work, tern_error *err);
/* Blocks until done or failed, and frees the work; before tern_group_close. */
TERN_API int tern_work_wait(tern_work *work, tern_error *err);

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
