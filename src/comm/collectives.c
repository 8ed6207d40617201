/* collectives.c - the public collectives: each fills in a request, and runs or starts it. */
#include "comm/request.h"

/* A call and its `_post` variant make the same request. */

/* ---- reductions ---- */

static tern__request all_reduce_request(void *buf, size_t count, tern_dtype dtype, tern_reduce_op op)
{
    return (tern__request){.func = "tern_all_reduce",
                           .kind = TERN__ALL_REDUCE,
                           .in = buf,
                           .out = buf,
                           .count = count,
                           .dtype = dtype,
                           .op = op};
}

int tern_all_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                    tern_error *err)
{
    tern__request r = all_reduce_request(buf, count, dtype, op);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                tern_reduce_op op, tern_error *err)
{
    tern__request r = all_reduce_request(buf, count, dtype, op);
    return tern__request_start(group, &r, err);
}

static tern__request reduce_request(void *buf, size_t count, tern_dtype dtype, tern_reduce_op op, int root)
{
    return (tern__request){.func = "tern_reduce",
                           .kind = TERN__REDUCE,
                           .in = buf,
                           .out = buf,
                           .count = count,
                           .dtype = dtype,
                           .op = op,
                           .root = root};
}

int tern_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op, int root,
                tern_error *err)
{
    tern__request r = reduce_request(buf, count, dtype, op, root);
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                            int root, tern_error *err)
{
    tern__request r = reduce_request(buf, count, dtype, op, root);
    return tern__request_start(group, &r, err);
}

static tern__request reduce_scatter_request(const void *in, void *out, size_t count, tern_dtype dtype,
                                            tern_reduce_op op)
{
    return (tern__request){.func = "tern_reduce_scatter",
                           .kind = TERN__REDUCE_SCATTER,
                           .in = in,
                           .out = out,
                           .count = count,
                           .dtype = dtype,
                           .op = op};
}

int tern_reduce_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                        tern_reduce_op op, tern_error *err)
{
    tern__request r = reduce_scatter_request(in, out, count, dtype, op);
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_scatter_post(tern_group *group, const void *in, void *out, size_t count,
                                    tern_dtype dtype, tern_reduce_op op, tern_error *err)
{
    tern__request r = reduce_scatter_request(in, out, count, dtype, op);
    return tern__request_start(group, &r, err);
}

static tern__request all_reduce_premul_request(void *buf, size_t count, tern_dtype dtype, double factor)
{
    return (tern__request){.func = "tern_all_reduce_premul",
                           .kind = TERN__ALL_REDUCE,
                           .in = buf,
                           .out = buf,
                           .count = count,
                           .dtype = dtype,
                           .op = TERN_PREMUL_SUM,
                           .is_premul = true,
                           .factor = factor};
}

int tern_all_reduce_premul(tern_group *group, void *buf, size_t count, tern_dtype dtype, double factor,
                           tern_error *err)
{
    tern__request r = all_reduce_premul_request(buf, count, dtype, factor);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_reduce_premul_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                       double factor, tern_error *err)
{
    tern__request r = all_reduce_premul_request(buf, count, dtype, factor);
    return tern__request_start(group, &r, err);
}

static tern__request reduce_premul_request(void *buf, size_t count, tern_dtype dtype, double factor, int root)
{
    return (tern__request){.func = "tern_reduce_premul",
                           .kind = TERN__REDUCE,
                           .in = buf,
                           .out = buf,
                           .count = count,
                           .dtype = dtype,
                           .op = TERN_PREMUL_SUM,
                           .is_premul = true,
                           .factor = factor,
                           .root = root};
}

int tern_reduce_premul(tern_group *group, void *buf, size_t count, tern_dtype dtype, double factor, int root,
                       tern_error *err)
{
    tern__request r = reduce_premul_request(buf, count, dtype, factor, root);
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_premul_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                   double factor, int root, tern_error *err)
{
    tern__request r = reduce_premul_request(buf, count, dtype, factor, root);
    return tern__request_start(group, &r, err);
}

static tern__request reduce_scatter_premul_request(const void *in, void *out, size_t count, tern_dtype dtype,
                                                   double factor)
{
    return (tern__request){.func = "tern_reduce_scatter_premul",
                           .kind = TERN__REDUCE_SCATTER,
                           .in = in,
                           .out = out,
                           .count = count,
                           .dtype = dtype,
                           .op = TERN_PREMUL_SUM,
                           .is_premul = true,
                           .factor = factor};
}

int tern_reduce_scatter_premul(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                               double factor, tern_error *err)
{
    tern__request r = reduce_scatter_premul_request(in, out, count, dtype, factor);
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_scatter_premul_post(tern_group *group, const void *in, void *out, size_t count,
                                           tern_dtype dtype, double factor, tern_error *err)
{
    tern__request r = reduce_scatter_premul_request(in, out, count, dtype, factor);
    return tern__request_start(group, &r, err);
}

/* ---- moves ---- */

static tern__request broadcast_request(void *buf, size_t count, tern_dtype dtype, int root)
{
    return (tern__request){.func = "tern_broadcast",
                           .kind = TERN__BROADCAST,
                           .in = buf,
                           .out = buf,
                           .count = count,
                           .dtype = dtype,
                           .root = root};
}

int tern_broadcast(tern_group *group, void *buf, size_t count, tern_dtype dtype, int root, tern_error *err)
{
    tern__request r = broadcast_request(buf, count, dtype, root);
    return tern__request_run(group, &r, err);
}

tern_work *tern_broadcast_post(tern_group *group, void *buf, size_t count, tern_dtype dtype, int root,
                               tern_error *err)
{
    tern__request r = broadcast_request(buf, count, dtype, root);
    return tern__request_start(group, &r, err);
}

static tern__request all_gather_request(const void *in, void *out, size_t count, tern_dtype dtype)
{
    return (tern__request){.func = "tern_all_gather",
                           .kind = TERN__ALL_GATHER,
                           .in = in,
                           .out = out,
                           .count = count,
                           .dtype = dtype};
}

int tern_all_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                    tern_error *err)
{
    tern__request r = all_gather_request(in, out, count, dtype);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_gather_post(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                                tern_error *err)
{
    tern__request r = all_gather_request(in, out, count, dtype);
    return tern__request_start(group, &r, err);
}

static tern__request gather_request(const void *in, void *out, size_t count, tern_dtype dtype, int root)
{
    return (tern__request){.func = "tern_gather",
                           .kind = TERN__GATHER,
                           .in = in,
                           .out = out,
                           .count = count,
                           .dtype = dtype,
                           .root = root};
}

int tern_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype, int root,
                tern_error *err)
{
    tern__request r = gather_request(in, out, count, dtype, root);
    return tern__request_run(group, &r, err);
}

tern_work *tern_gather_post(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                            int root, tern_error *err)
{
    tern__request r = gather_request(in, out, count, dtype, root);
    return tern__request_start(group, &r, err);
}

static tern__request scatter_request(const void *in, void *out, size_t count, tern_dtype dtype, int root)
{
    return (tern__request){.func = "tern_scatter",
                           .kind = TERN__SCATTER,
                           .in = in,
                           .out = out,
                           .count = count,
                           .dtype = dtype,
                           .root = root};
}

int tern_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype, int root,
                 tern_error *err)
{
    tern__request r = scatter_request(in, out, count, dtype, root);
    return tern__request_run(group, &r, err);
}

tern_work *tern_scatter_post(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                             int root, tern_error *err)
{
    tern__request r = scatter_request(in, out, count, dtype, root);
    return tern__request_start(group, &r, err);
}

static tern__request all_to_all_request(const void *in, void *out, size_t count, tern_dtype dtype)
{
    return (tern__request){.func = "tern_all_to_all",
                           .kind = TERN__ALL_TO_ALL,
                           .in = in,
                           .out = out,
                           .count = count,
                           .dtype = dtype};
}

int tern_all_to_all(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                    tern_error *err)
{
    tern__request r = all_to_all_request(in, out, count, dtype);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_to_all_post(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                                tern_error *err)
{
    tern__request r = all_to_all_request(in, out, count, dtype);
    return tern__request_start(group, &r, err);
}

static tern__request all_gather_v_request(const void *in, size_t count, const tern_span *outs,
                                          tern_dtype dtype)
{
    return (tern__request){.func = "tern_all_gather_v",
                           .kind = TERN__ALL_GATHER_V,
                           .in = in,
                           .count = count,
                           .outs = outs,
                           .dtype = dtype};
}

int tern_all_gather_v(tern_group *group, const void *in, size_t count, const tern_span *outs,
                      tern_dtype dtype, tern_error *err)
{
    tern__request r = all_gather_v_request(in, count, outs, dtype);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_gather_v_post(tern_group *group, const void *in, size_t count, const tern_span *outs,
                                  tern_dtype dtype, tern_error *err)
{
    tern__request r = all_gather_v_request(in, count, outs, dtype);
    return tern__request_start(group, &r, err);
}

static tern__request all_to_all_v_request(const void *in, const size_t *in_counts, void *out,
                                          const size_t *out_counts, tern_dtype dtype)
{
    return (tern__request){.func = "tern_all_to_all_v",
                           .kind = TERN__ALL_TO_ALL_V,
                           .in = in,
                           .in_counts = in_counts,
                           .out = out,
                           .out_counts = out_counts,
                           .dtype = dtype};
}

int tern_all_to_all_v(tern_group *group, const void *in, const size_t *in_counts, void *out,
                      const size_t *out_counts, tern_dtype dtype, tern_error *err)
{
    tern__request r = all_to_all_v_request(in, in_counts, out, out_counts, dtype);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_to_all_v_post(tern_group *group, const void *in, const size_t *in_counts, void *out,
                                  const size_t *out_counts, tern_dtype dtype, tern_error *err)
{
    tern__request r = all_to_all_v_request(in, in_counts, out, out_counts, dtype);
    return tern__request_start(group, &r, err);
}

/* ---- many buffers as one work ---- */

static tern__request all_reduce_coalesced_request(const tern_span *bufs, size_t length, tern_dtype dtype,
                                                  tern_reduce_op op)
{
    return (tern__request){.func = "tern_all_reduce_coalesced",
                           .kind = TERN__ALL_REDUCE,
                           .list = bufs,
                           .is_list = true,
                           .length = length,
                           .dtype = dtype,
                           .op = op};
}

int tern_all_reduce_coalesced(tern_group *group, const tern_span *bufs, size_t length, tern_dtype dtype,
                              tern_reduce_op op, tern_error *err)
{
    tern__request r = all_reduce_coalesced_request(bufs, length, dtype, op);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_reduce_coalesced_post(tern_group *group, const tern_span *bufs, size_t length,
                                          tern_dtype dtype, tern_reduce_op op, tern_error *err)
{
    tern__request r = all_reduce_coalesced_request(bufs, length, dtype, op);
    return tern__request_start(group, &r, err);
}

static tern__request broadcast_coalesced_request(const tern_span *bufs, size_t length, tern_dtype dtype,
                                                 int root)
{
    return (tern__request){.func = "tern_broadcast_coalesced",
                           .kind = TERN__BROADCAST,
                           .list = bufs,
                           .is_list = true,
                           .length = length,
                           .dtype = dtype,
                           .root = root};
}

int tern_broadcast_coalesced(tern_group *group, const tern_span *bufs, size_t length, tern_dtype dtype,
                             int root, tern_error *err)
{
    tern__request r = broadcast_coalesced_request(bufs, length, dtype, root);
    return tern__request_run(group, &r, err);
}

tern_work *tern_broadcast_coalesced_post(tern_group *group, const tern_span *bufs, size_t length,
                                         tern_dtype dtype, int root, tern_error *err)
{
    tern__request r = broadcast_coalesced_request(bufs, length, dtype, root);
    return tern__request_start(group, &r, err);
}

static tern__request all_gather_coalesced_request(const tern_span *ins, void *const *outs, size_t length,
                                                  tern_dtype dtype)
{
    return (tern__request){.func = "tern_all_gather_coalesced",
                           .kind = TERN__ALL_GATHER,
                           .list = ins,
                           .others = outs,
                           .is_list = true,
                           .length = length,
                           .dtype = dtype};
}

int tern_all_gather_coalesced(tern_group *group, const tern_span *ins, void *const *outs, size_t length,
                              tern_dtype dtype, tern_error *err)
{
    tern__request r = all_gather_coalesced_request(ins, outs, length, dtype);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_gather_coalesced_post(tern_group *group, const tern_span *ins, void *const *outs,
                                          size_t length, tern_dtype dtype, tern_error *err)
{
    tern__request r = all_gather_coalesced_request(ins, outs, length, dtype);
    return tern__request_start(group, &r, err);
}

static tern__request reduce_scatter_coalesced_request(const void *const *ins, const tern_span *outs,
                                                      size_t length, tern_dtype dtype, tern_reduce_op op)
{
    return (tern__request){.func = "tern_reduce_scatter_coalesced",
                           .kind = TERN__REDUCE_SCATTER,
                           .list = outs,
                           .others = (void *const *)ins,
                           .is_list = true,
                           .length = length,
                           .dtype = dtype,
                           .op = op};
}

int tern_reduce_scatter_coalesced(tern_group *group, const void *const *ins, const tern_span *outs,
                                  size_t length, tern_dtype dtype, tern_reduce_op op, tern_error *err)
{
    tern__request r = reduce_scatter_coalesced_request(ins, outs, length, dtype, op);
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_scatter_coalesced_post(tern_group *group, const void *const *ins,
                                              const tern_span *outs, size_t length, tern_dtype dtype,
                                              tern_reduce_op op, tern_error *err)
{
    tern__request r = reduce_scatter_coalesced_request(ins, outs, length, dtype, op);
    return tern__request_start(group, &r, err);
}

/* ---- barriers ---- */

int tern_barrier(tern_group *group, tern_error *err)
{
    tern__request r = {.func = __func__, .kind = TERN__BARRIER, .dtype = TERN_U8};
    return tern__request_run(group, &r, err);
}

tern_work *tern_barrier_post(tern_group *group, tern_error *err)
{
    tern__request r = {.func = "tern_barrier", .kind = TERN__BARRIER, .dtype = TERN_U8};
    return tern__request_start(group, &r, err);
}

/* The back end reads the time limit from the group when it waits, so the call's own limit is set there. */
int tern_monitored_barrier(tern_group *group, double timeout_s, bool wait_all_ranks, tern_error *err)
{
    tern__request r = {
        .func = __func__, .kind = TERN__MONITORED_BARRIER, .dtype = TERN_U8, .wait_all = wait_all_ranks};
    tern_error why = {0};
    int status = tern__request_given(group, __func__, err);
    if (status) return status;
    if (!(timeout_s > 0)) {
        tern__error_set(&why, __func__, TERN_E_RANGE, "timeout_s is %g, expected more than 0", timeout_s);
        return tern__request_fail(group, __func__, &why, err);
    }
    double before = group->opts.timeout_s;
    group->opts.timeout_s = timeout_s;
    status = tern__request_run(group, &r, err);
    group->opts.timeout_s = before;
    return status;
}
