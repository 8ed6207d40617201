/* collectives.h - reductions and data movement among all ranks of a group.
 *
 * All ranks of the group make the same call, in the same order, with the same dtype, count, operation and
 * root; comm.h says what happens if they do not. Counts are numbers of elements, from 0. Buffers need no
 * alignment. A function returns TERN_OK or a negative status, which is also in *err. Every error ends the
 * group: E_INVALID (NULL, overlapping buffers, an unknown operation), E_RANGE (no such root, a size beyond
 * memory), E_DTYPE, E_MEMORY, E_MISMATCH, E_TIMEOUT, E_PEER. A call that is given an error already set ends
 * the family too: its peers get E_PEER, with this rank and the error's text.
 *
 * Buffers: `in` and `out` must not overlap, except that one may be exactly this rank's own part of the other,
 * which then stays in place. Arguments that only the root uses are ignored on other ranks and may be NULL
 * there. On each rank a buffer may be in memory of tern_group_mem_alloc, at any offset, or in ordinary
 * memory. What counts is `out` of all_gather, and `in` or `buf` of the others: in such memory the peers reach
 * it without a copy. Scatter, the calls with lists of counts, and all_gather and reduce_scatter of many
 * buffers copy from anywhere. A call of more than 128 KiB (8 MiB between hosts), or of many buffers, makes no
 * copies if all memory of all ranks is such memory, and otherwise copies that of every rank.
 *
 * Asynchronous calls: each `_post` function starts the same operation and returns a work at once, NULL on
 * error. The buffers belong to the work until tern_work_wait returns; lists are copied.
 *
 * Devices: a buffer may be in the memory of an open device (tern_tensor_data of a tensor there), on some or
 * all ranks. It is copied piece by piece through pinned host memory, beside the device's other work. The data
 * sent include everything the device was given to do before the call; work given to it after the call has
 * returned, or after tern_work_wait, sees the result. So the program never waits for the device itself. If
 * `out` is in a device's memory, `in` must not be in memory of tern_group_mem_alloc (E_UNSUPPORTED). With the
 * back end "nccl" data go directly between the GPUs; then all ranks' buffers of a call must be in GPU memory.
 *
 * Threads: as the group (comm.h). */
#ifndef TERN_COLLECTIVES_H
#define TERN_COLLECTIVES_H

#include <tern/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reduction operations, as torch.distributed.ReduceOp. Integers wrap around. A NaN wins over any number. bf16
 * and f16 are combined in f32 and rounded once. Between GPUs with the back end "nccl", elements are combined
 * in NCCL's order instead, and 16-bit partial results are rounded at each rank they pass, unless NVLink's
 * switches add in f32. AVG and PREMUL_SUM are for floating point; BAND, BOR and BXOR for integers and bool
 * (E_DTYPE). For bool, SUM and MAX are "or", PRODUCT and MIN "and". PREMUL_SUM has functions of its own,
 * which take the factor; in others it is E_INVALID. */
typedef enum tern_reduce_op {
    TERN_SUM,
    TERN_AVG,
    TERN_PRODUCT,
    TERN_MIN,
    TERN_MAX,
    TERN_BAND,
    TERN_BOR,
    TERN_BXOR,
    TERN_PREMUL_SUM
} tern_reduce_op;

/* A buffer of `count` elements at `data`. */
typedef struct tern_span {
    void *data;
    size_t count;
} tern_span;

/* ---- reductions ---- */

/* All-reduce: replaces buf[0..count) on every rank by the reduction over all ranks, computed pairwise in rank
 * order, ((0+1) + (2+3)) + .. (between GPUs with "nccl": in NCCL's). All ranks get the same bits.
 * torch.distributed.all_reduce. */
TERN_API int tern_all_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                             tern_error *err);
TERN_API tern_work *tern_all_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                         tern_reduce_op op, tern_error *err);
/* Reduce: as all-reduce, but only root's buf changes. torch.distributed.reduce. */
TERN_API int tern_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                         int root, tern_error *err);
TERN_API tern_work *tern_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                     tern_reduce_op op, int root, tern_error *err);
/* Reduce-scatter: rank r gets in out[0..count) the reduction over all ranks of their in[r * count .. (r + 1)
 * * count). `in` has count * size elements and is not written, unless `out` is this rank's own part of it. In
 * memory of tern_group_mem_alloc, a rank reads count * size elements and writes count.
 * torch.distributed.reduce_scatter_tensor. */
TERN_API int tern_reduce_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                                 tern_reduce_op op, tern_error *err);
TERN_API tern_work *tern_reduce_scatter_post(tern_group *group, const void *in, void *out, size_t count,
                                             tern_dtype dtype, tern_reduce_op op, tern_error *err);

/* The three reductions with PREMUL_SUM: the sum of factor * x in all_reduce's order, computed in f32 (in f64
 * for f64). Each rank gives a factor of its own, which must be finite (E_RANGE). A buffer with the factor 0
 * is not read. torch's ReduceOp.PREMUL_SUM. */
TERN_API int tern_all_reduce_premul(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                    double factor, tern_error *err);
TERN_API tern_work *tern_all_reduce_premul_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                                double factor, tern_error *err);
TERN_API int tern_reduce_premul(tern_group *group, void *buf, size_t count, tern_dtype dtype, double factor,
                                int root, tern_error *err);
TERN_API tern_work *tern_reduce_premul_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                            double factor, int root, tern_error *err);
TERN_API int tern_reduce_scatter_premul(tern_group *group, const void *in, void *out, size_t count,
                                        tern_dtype dtype, double factor, tern_error *err);
TERN_API tern_work *tern_reduce_scatter_premul_post(tern_group *group, const void *in, void *out,
                                                    size_t count, tern_dtype dtype, double factor,
                                                    tern_error *err);

/* ---- data movement ---- */

/* Broadcast: copies root's buf[0..count) to every rank. torch.distributed.broadcast. */
TERN_API int tern_broadcast(tern_group *group, void *buf, size_t count, tern_dtype dtype, int root,
                            tern_error *err);
TERN_API tern_work *tern_broadcast_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                        int root, tern_error *err);
/* All-gather: copies rank r's in[0..count) to out[r * count .. (r + 1) * count) on every rank; `out` has
 * count * size elements. torch.distributed.all_gather_into_tensor. */
TERN_API int tern_all_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                             tern_error *err);
TERN_API tern_work *tern_all_gather_post(tern_group *group, const void *in, void *out, size_t count,
                                         tern_dtype dtype, tern_error *err);
/* Gather: as all-gather, but to root's `out` only. torch.distributed.gather. */
TERN_API int tern_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                         int root, tern_error *err);
TERN_API tern_work *tern_gather_post(tern_group *group, const void *in, void *out, size_t count,
                                     tern_dtype dtype, int root, tern_error *err);
/* Scatter: copies root's in[r * count .. (r + 1) * count) to out[0..count) of rank r.
 * torch.distributed.scatter. */
TERN_API int tern_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                          int root, tern_error *err);
TERN_API tern_work *tern_scatter_post(tern_group *group, const void *in, void *out, size_t count,
                                      tern_dtype dtype, int root, tern_error *err);
/* All-to-all: copies rank r's in[s * count .. (s + 1) * count) to out[r * count .. (r + 1) * count) of rank
 * s; both buffers have count * size elements. torch.distributed.all_to_all_single. */
TERN_API int tern_all_to_all(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                             tern_error *err);
TERN_API tern_work *tern_all_to_all_post(tern_group *group, const void *in, void *out, size_t count,
                                         tern_dtype dtype, tern_error *err);

/* The next two have a count for each pair of ranks. Each rank states what it gives and what it takes. These
 * are compared before any data move: E_MISMATCH on all ranks, with both numbers. */

/* All-gather of different counts: copies rank r's in[0..count) to outs[r] on every rank; outs[r].count must
 * be that rank's count. outs[size]. torch.distributed.all_gather with a list of tensors. */
TERN_API int tern_all_gather_v(tern_group *group, const void *in, size_t count, const tern_span *outs,
                               tern_dtype dtype, tern_error *err);
TERN_API tern_work *tern_all_gather_v_post(tern_group *group, const void *in, size_t count,
                                           const tern_span *outs, tern_dtype dtype, tern_error *err);
/* All-to-all of different counts: `in` holds in_counts[0] elements for rank 0, then in_counts[1] for rank 1
 * and so on; `out` receives out_counts[r] elements from each rank r in the same layout. Both lists have
 * `size` entries. torch.distributed.all_to_all_single with split sizes. */
TERN_API int tern_all_to_all_v(tern_group *group, const void *in, const size_t *in_counts, void *out,
                               const size_t *out_counts, tern_dtype dtype, tern_error *err);
TERN_API tern_work *tern_all_to_all_v_post(tern_group *group, const void *in, const size_t *in_counts,
                                           void *out, const size_t *out_counts, tern_dtype dtype,
                                           tern_error *err);

/* ---- many buffers as one work ---- */

/* Do the same as one call for each of the `length` buffers, at the cost of one call. All ranks give the same
 * number of buffers with the same counts. torch.distributed.all_reduce_coalesced and its kin. */
TERN_API int tern_all_reduce_coalesced(tern_group *group, const tern_span *bufs, size_t length,
                                       tern_dtype dtype, tern_reduce_op op, tern_error *err);
TERN_API tern_work *tern_all_reduce_coalesced_post(tern_group *group, const tern_span *bufs, size_t length,
                                                   tern_dtype dtype, tern_reduce_op op, tern_error *err);
TERN_API int tern_broadcast_coalesced(tern_group *group, const tern_span *bufs, size_t length,
                                      tern_dtype dtype, int root, tern_error *err);
TERN_API tern_work *tern_broadcast_coalesced_post(tern_group *group, const tern_span *bufs, size_t length,
                                                  tern_dtype dtype, int root, tern_error *err);
/* outs[i] has ins[i].count * size elements. */
TERN_API int tern_all_gather_coalesced(tern_group *group, const tern_span *ins, void *const *outs,
                                       size_t length, tern_dtype dtype, tern_error *err);
TERN_API tern_work *tern_all_gather_coalesced_post(tern_group *group, const tern_span *ins, void *const *outs,
                                                   size_t length, tern_dtype dtype, tern_error *err);
/* ins[i] has outs[i].count * size elements. */
TERN_API int tern_reduce_scatter_coalesced(tern_group *group, const void *const *ins, const tern_span *outs,
                                           size_t length, tern_dtype dtype, tern_reduce_op op,
                                           tern_error *err);
TERN_API tern_work *tern_reduce_scatter_coalesced_post(tern_group *group, const void *const *ins,
                                                       const tern_span *outs, size_t length, tern_dtype dtype,
                                                       tern_reduce_op op, tern_error *err);

/* ---- byte strings, of any length on each rank ---- */

/* The longest byte string; a longer one is E_RANGE on all ranks, before memory is allocated. */
#define TERN_BYTES_MAX 1073741824

/* A byte string. The functions below block. Each string that they return has memory of its own, with a zero
 * byte after it; it is yours: tern_bytes_free its data. torch.distributed.all_gather_object and its kin; how
 * an object becomes bytes is up to you. */
typedef tern_span tern_bytes;

/* Copies rank r's in[0..count) to outs[r] on every rank. outs[size]; its old contents are ignored. */
TERN_API int tern_all_gather_bytes(tern_group *group, const void *in, size_t count, tern_bytes *outs,
                                   tern_error *err);
/* The same, but to root's `outs` only. */
TERN_API int tern_gather_bytes(tern_group *group, const void *in, size_t count, tern_bytes *outs, int root,
                               tern_error *err);
/* Copies root's *bytes to every rank. Root's own *bytes stays as it is; the others' is replaced. */
TERN_API int tern_broadcast_bytes(tern_group *group, tern_bytes *bytes, int root, tern_error *err);
/* Copies root's ins[r] to *out of rank r. ins[size]. */
TERN_API int tern_scatter_bytes(tern_group *group, const tern_bytes *ins, tern_bytes *out, int root,
                                tern_error *err);

/* ---- barriers ---- */

/* Barrier: returns when every rank has called it. torch.distributed.barrier. */
TERN_API int tern_barrier(tern_group *group, tern_error *err);
TERN_API tern_work *tern_barrier_post(tern_group *group, tern_error *err);
/* A barrier with a time limit of its own, in seconds. If a rank has not called it in time: E_TIMEOUT on all
 * ranks, which names the first such rank or, with wait_all_ranks, all of them, and what each did last. Then
 * the group has failed, as after any other error. E_RANGE: timeout_s is not above 0.
 * torch.distributed.monitored_barrier, where only rank 0 gets the names. */
TERN_API int tern_monitored_barrier(tern_group *group, double timeout_s, bool wait_all_ranks,
                                    tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
