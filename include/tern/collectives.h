/* collectives.h - what the ranks of a group do together with their data.
 *
 * All ranks call the same, in the same order, with the same dtype, count, operation and root; see comm.h for
 * what happens where they do not. Counts are elements, of any number, none included; buffers may begin at any
 * byte. A call returns TERN_OK or a negative status, also in *err; any error ends the group: E_INVALID (NULL,
 * overlapping buffers, an unknown operation), E_RANGE (no such root, more than memory holds), E_DTYPE,
 * E_MEMORY, E_MISMATCH, E_TIMEOUT, E_PEER.
 *
 * `in` and `out` do not overlap, but where one is the rank's own part of the other: then that part stays
 * where it is. What is only of the root's use is not looked at elsewhere and may be NULL there. A buffer in
 * memory of tern_group_mem_alloc (the `out` of an all_gather, else `in`) lies there on all ranks, at one
 * offset; that of a scatter or a call with lists of counts may lie anywhere.
 *
 * Each `_post` starts the same and returns at once, NULL on error. The buffers belong to the work until
 * tern_work_wait returns, lists are copied.
 *
 * Any buffer may be in the memory of a device that is open (tern_tensor_data of a tensor there), on some
 * ranks or all: it crosses pinned memory of the host in pieces, beside the device's other work. What the
 * device was asked before the call is in it, and what it is asked after the call has returned, or
 * tern_work_wait, finds the result, so a program waits for nothing by itself. Only the parts that ranks
 * exchange may not be a device's on one side (`out`) and of tern_group_mem_alloc on the other
 * (E_UNSUPPORTED). With the back end "nccl" it goes over between the devices, and all ranks of a call have
 * to have it there.
 *
 * Threads: as the group (comm.h). */
#ifndef TERN_COLLECTIVES_H
#define TERN_COLLECTIVES_H

#include <tern/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* torch.distributed.ReduceOp. Integers wrap, a NaN wins over any number, bf16 and f16 are combined in f32 and
 * rounded once; but between GPUs, with the back end "nccl", in NCCL's order, and what is combined so far goes
 * on in 16 bits, rounded at each rank that it passes, unless NVLink's switches add it up in f32. AVG and
 * PREMUL_SUM are for floating point, BAND, BOR and BXOR for integers and bool (E_DTYPE); of bool SUM and MAX
 * are "or", PRODUCT and MIN "and". PREMUL_SUM has functions of its own, which take the factor: E_INVALID
 * elsewhere. */
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

/* `count` elements from `data` on. */
typedef struct tern_span {
    void *data;
    size_t count;
} tern_span;

/* ---- reductions ---- */

/* buf[0..count) of every rank becomes the reduction in rank order (between GPUs, with the back end "nccl", in
 * NCCL's): the same bits on every rank. */
TERN_API int tern_all_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                             tern_error *err);
TERN_API tern_work *tern_all_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                         tern_reduce_op op, tern_error *err);
/* The same for root's buf alone; the others' stay as they are. */
TERN_API int tern_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                         int root, tern_error *err);
TERN_API tern_work *tern_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                     tern_reduce_op op, int root, tern_error *err);
/* out[0..count) of rank r becomes the reduction of all ranks' in[r * count .. (r + 1) * count); `in` holds
 * count * size elements and is not written, unless `out` is this rank's own part of it. From a window a rank
 * reads count * size elements and writes count. torch.distributed.reduce_scatter_tensor. */
TERN_API int tern_reduce_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                                 tern_reduce_op op, tern_error *err);
TERN_API tern_work *tern_reduce_scatter_post(tern_group *group, const void *in, void *out, size_t count,
                                             tern_dtype dtype, tern_reduce_op op, tern_error *err);

/* The three with PREMUL_SUM: the sum of factor * x in that order, each rank with a factor of its own, finite
 * (E_RANGE), in f32 (f64 for f64). What has the factor 0 is not read. torch's ReduceOp.PREMUL_SUM. */
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

/* ---- moves ---- */

/* buf[0..count) of every rank becomes root's. */
TERN_API int tern_broadcast(tern_group *group, void *buf, size_t count, tern_dtype dtype, int root,
                            tern_error *err);
TERN_API tern_work *tern_broadcast_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                        int root, tern_error *err);
/* out[r * count .. (r + 1) * count) becomes rank r's in[0..count); out holds count * size elements. */
TERN_API int tern_all_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                             tern_error *err);
TERN_API tern_work *tern_all_gather_post(tern_group *group, const void *in, void *out, size_t count,
                                         tern_dtype dtype, tern_error *err);
/* The same to root's `out` alone. */
TERN_API int tern_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                         int root, tern_error *err);
TERN_API tern_work *tern_gather_post(tern_group *group, const void *in, void *out, size_t count,
                                     tern_dtype dtype, int root, tern_error *err);
/* out[0..count) of rank r becomes root's in[r * count .. (r + 1) * count). */
TERN_API int tern_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                          int root, tern_error *err);
TERN_API tern_work *tern_scatter_post(tern_group *group, const void *in, void *out, size_t count,
                                      tern_dtype dtype, int root, tern_error *err);
/* out[r * count .. (r + 1) * count) of rank s becomes rank r's in[s * count .. (s + 1) * count); both hold
 * count * size elements. torch.distributed.all_to_all_single. */
TERN_API int tern_all_to_all(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                             tern_error *err);
TERN_API tern_work *tern_all_to_all_post(tern_group *group, const void *in, void *out, size_t count,
                                         tern_dtype dtype, tern_error *err);

/* The two below have a count for each pair of ranks. Each rank says what it gives and what it takes; they are
 * compared before anything is moved: E_MISMATCH on all ranks, with both numbers. */

/* outs[r] becomes rank r's in[0..count), where outs[r].count is that rank's count; outs[size].
 * torch.distributed.all_gather of a list of tensors. */
TERN_API int tern_all_gather_v(tern_group *group, const void *in, size_t count, const tern_span *outs,
                               tern_dtype dtype, tern_error *err);
TERN_API tern_work *tern_all_gather_v_post(tern_group *group, const void *in, size_t count,
                                           const tern_span *outs, tern_dtype dtype, tern_error *err);
/* `in` is in_counts[0] elements for rank 0, then in_counts[1] for rank 1, and so on; `out` is out_counts[r]
 * from each rank r in the same way. torch.distributed.all_to_all_single with split sizes. */
TERN_API int tern_all_to_all_v(tern_group *group, const void *in, const size_t *in_counts, void *out,
                               const size_t *out_counts, tern_dtype dtype, tern_error *err);
TERN_API tern_work *tern_all_to_all_v_post(tern_group *group, const void *in, const size_t *in_counts,
                                           void *out, const size_t *out_counts, tern_dtype dtype,
                                           tern_error *err);

/* ---- many buffers as one work ---- */

/* As so many calls, one for each of the `length` buffers, but for the cost of one. All ranks give as many, of
 * the same counts. torch.distributed.all_reduce_coalesced and its kin. */
TERN_API int tern_all_reduce_coalesced(tern_group *group, const tern_span *bufs, size_t length,
                                       tern_dtype dtype, tern_reduce_op op, tern_error *err);
TERN_API tern_work *tern_all_reduce_coalesced_post(tern_group *group, const tern_span *bufs, size_t length,
                                                   tern_dtype dtype, tern_reduce_op op, tern_error *err);
TERN_API int tern_broadcast_coalesced(tern_group *group, const tern_span *bufs, size_t length,
                                      tern_dtype dtype, int root, tern_error *err);
TERN_API tern_work *tern_broadcast_coalesced_post(tern_group *group, const tern_span *bufs, size_t length,
                                                  tern_dtype dtype, int root, tern_error *err);
/* outs[i] holds ins[i].count * size elements. */
TERN_API int tern_all_gather_coalesced(tern_group *group, const tern_span *ins, void *const *outs,
                                       size_t length, tern_dtype dtype, tern_error *err);
TERN_API tern_work *tern_all_gather_coalesced_post(tern_group *group, const tern_span *ins, void *const *outs,
                                                   size_t length, tern_dtype dtype, tern_error *err);
/* ins[i] holds outs[i].count * size elements. */
TERN_API int tern_reduce_scatter_coalesced(tern_group *group, const void *const *ins, const tern_span *outs,
                                           size_t length, tern_dtype dtype, tern_reduce_op op,
                                           tern_error *err);
TERN_API tern_work *tern_reduce_scatter_coalesced_post(tern_group *group, const void *const *ins,
                                                       const tern_span *outs, size_t length, tern_dtype dtype,
                                                       tern_reduce_op op, tern_error *err);

/* ---- byte strings, of any length on each rank ---- */

/* Of one string; E_RANGE on all ranks, before any memory is asked for. */
#define TERN_BYTES_MAX 1073741824

/* The data of a string that a function below gave is memory of its own (and a zero behind it), the caller's:
 * tern_bytes_free. They block. torch.distributed.all_gather_object and its kin; how an object becomes bytes
 * is the caller's. */
typedef tern_span tern_bytes;

/* outs[r] becomes rank r's in[0..count); outs[size], whatever is in it. */
TERN_API int tern_all_gather_bytes(tern_group *group, const void *in, size_t count, tern_bytes *outs,
                                   tern_error *err);
/* The same to root's `outs` alone. */
TERN_API int tern_gather_bytes(tern_group *group, const void *in, size_t count, tern_bytes *outs, int root,
                               tern_error *err);
/* Root's *bytes is read and stays; the others' becomes it. */
TERN_API int tern_broadcast_bytes(tern_group *group, tern_bytes *bytes, int root, tern_error *err);
/* *out of rank r becomes root's ins[r]; ins[size]. */
TERN_API int tern_scatter_bytes(tern_group *group, const tern_bytes *ins, tern_bytes *out, int root,
                                tern_error *err);
/* ---- barriers ---- */

/* Returns when every rank has called it. */
TERN_API int tern_barrier(tern_group *group, tern_error *err);
TERN_API tern_work *tern_barrier_post(tern_group *group, tern_error *err);
/* A barrier with a time limit of its own: E_TIMEOUT on all ranks, which names the first rank that has not
 * called it within timeout_s, or, with wait_all_ranks, all of them, and what each did last. The group has
 * failed then, as after any other error; without one it goes on. E_RANGE: timeout_s is not more than 0.
 * torch.distributed.monitored_barrier, where only rank 0 knows. */
TERN_API int tern_monitored_barrier(tern_group *group, double timeout_s, bool wait_all_ranks,
                                    tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
