/* collectives.c - the public collectives: each fills in a request, and runs or starts it. */
#include "comm/call/request.h"

/* ---- reductions ---- */

static tern__request premul_request(const char *func, tern__kind kind, const void *in, void *out,
                                    size_t count, tern_dtype dtype, double factor)
{
    tern__request r = {func, kind, in, out, count, dtype, .op = TERN_PREMUL_SUM};
    r.is_premul = true;
    r.factor = factor;
    return r;
}

int tern_all_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                    tern_error *err)
{
    const tern__request r = {__func__, TERN__ALL_REDUCE, buf, buf, count, dtype, .op = op};
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                tern_reduce_op op, tern_error *err)
{
    const tern__request r = {"tern_all_reduce", TERN__ALL_REDUCE, buf, buf, count, dtype, .op = op};
    return tern__request_start(group, &r, err);
}

int tern_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op, int root,
                tern_error *err)
{
    const tern__request r = {__func__, TERN__REDUCE, buf, buf, count, dtype, .op = op, .root = root};
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                            int root, tern_error *err)
{
    const tern__request r = {"tern_reduce", TERN__REDUCE, buf, buf, count, dtype, .op = op, .root = root};
    return tern__request_start(group, &r, err);
}

int tern_reduce_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                        tern_reduce_op op, tern_error *err)
{
    const tern__request r = {__func__, TERN__REDUCE_SCATTER, in, out, count, dtype, .op = op};
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_scatter_post(tern_group *group, const void *in, void *out, size_t count,
                                    tern_dtype dtype, tern_reduce_op op, tern_error *err)
{
    const tern__request r = {"tern_reduce_scatter", TERN__REDUCE_SCATTER, in, out, count, dtype, .op = op};
    return tern__request_start(group, &r, err);
}

int tern_all_reduce_premul(tern_group *group, void *buf, size_t count, tern_dtype dtype, double factor,
                           tern_error *err)
{
    const tern__request r = premul_request(__func__, TERN__ALL_REDUCE, buf, buf, count, dtype, factor);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_reduce_premul_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                       double factor, tern_error *err)
{
    const tern__request r =
        premul_request("tern_all_reduce_premul", TERN__ALL_REDUCE, buf, buf, count, dtype, factor);
    return tern__request_start(group, &r, err);
}

int tern_reduce_premul(tern_group *group, void *buf, size_t count, tern_dtype dtype, double factor, int root,
                       tern_error *err)
{
    tern__request r = premul_request(__func__, TERN__REDUCE, buf, buf, count, dtype, factor);
    r.root = root;
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_premul_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                   double factor, int root, tern_error *err)
{
    tern__request r = premul_request("tern_reduce_premul", TERN__REDUCE, buf, buf, count, dtype, factor);
    r.root = root;
    return tern__request_start(group, &r, err);
}

int tern_reduce_scatter_premul(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                               double factor, tern_error *err)
{
    const tern__request r = premul_request(__func__, TERN__REDUCE_SCATTER, in, out, count, dtype, factor);
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_scatter_premul_post(tern_group *group, const void *in, void *out, size_t count,
                                           tern_dtype dtype, double factor, tern_error *err)
{
    const tern__request r =
        premul_request("tern_reduce_scatter_premul", TERN__REDUCE_SCATTER, in, out, count, dtype, factor);
    return tern__request_start(group, &r, err);
}

/* ---- moves ---- */

int tern_broadcast(tern_group *group, void *buf, size_t count, tern_dtype dtype, int root, tern_error *err)
{
    const tern__request r = {__func__, TERN__BROADCAST, buf, buf, count, dtype, .root = root};
    return tern__request_run(group, &r, err);
}

tern_work *tern_broadcast_post(tern_group *group, void *buf, size_t count, tern_dtype dtype, int root,
                               tern_error *err)
{
    const tern__request r = {"tern_broadcast", TERN__BROADCAST, buf, buf, count, dtype, .root = root};
    return tern__request_start(group, &r, err);
}

int tern_all_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                    tern_error *err)
{
    const tern__request r = {__func__, TERN__ALL_GATHER, in, out, count, .dtype = dtype};
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_gather_post(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                                tern_error *err)
{
    const tern__request r = {"tern_all_gather", TERN__ALL_GATHER, in, out, count, .dtype = dtype};
    return tern__request_start(group, &r, err);
}

int tern_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype, int root,
                tern_error *err)
{
    const tern__request r = {__func__, TERN__GATHER, in, out, count, dtype, .root = root};
    return tern__request_run(group, &r, err);
}

tern_work *tern_gather_post(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                            int root, tern_error *err)
{
    const tern__request r = {"tern_gather", TERN__GATHER, in, out, count, dtype, .root = root};
    return tern__request_start(group, &r, err);
}

int tern_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype, int root,
                 tern_error *err)
{
    const tern__request r = {__func__, TERN__SCATTER, in, out, count, dtype, .root = root};
    return tern__request_run(group, &r, err);
}

tern_work *tern_scatter_post(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                             int root, tern_error *err)
{
    const tern__request r = {"tern_scatter", TERN__SCATTER, in, out, count, dtype, .root = root};
    return tern__request_start(group, &r, err);
}

int tern_all_to_all(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                    tern_error *err)
{
    const tern__request r = {__func__, TERN__ALL_TO_ALL, in, out, count, .dtype = dtype};
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_to_all_post(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                                tern_error *err)
{
    const tern__request r = {"tern_all_to_all", TERN__ALL_TO_ALL, in, out, count, .dtype = dtype};
    return tern__request_start(group, &r, err);
}

int tern_all_gather_v(tern_group *group, const void *in, size_t count, const tern_span *outs,
                      tern_dtype dtype, tern_error *err)
{
    const tern__request r = {__func__, TERN__ALL_GATHER_V, in, NULL, count, dtype, .outs = outs};
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_gather_v_post(tern_group *group, const void *in, size_t count, const tern_span *outs,
                                  tern_dtype dtype, tern_error *err)
{
    const tern__request r = {"tern_all_gather_v", TERN__ALL_GATHER_V, in, NULL, count, dtype, .outs = outs};
    return tern__request_start(group, &r, err);
}

int tern_all_to_all_v(tern_group *group, const void *in, const size_t *in_counts, void *out,
                      const size_t *out_counts, tern_dtype dtype, tern_error *err)
{
    tern__request r = {__func__, TERN__ALL_TO_ALL_V, in, out, .dtype = dtype};
    r.in_counts = in_counts;
    r.out_counts = out_counts;
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_to_all_v_post(tern_group *group, const void *in, const size_t *in_counts, void *out,
                                  const size_t *out_counts, tern_dtype dtype, tern_error *err)
{
    tern__request r = {"tern_all_to_all_v", TERN__ALL_TO_ALL_V, in, out, .dtype = dtype};
    r.in_counts = in_counts;
    r.out_counts = out_counts;
    return tern__request_start(group, &r, err);
}

/* ---- many buffers as one work ---- */

static tern__request list_request(const char *func, tern__kind kind, const tern_span *list,
                                  void *const *others, size_t length, tern_dtype dtype)
{
    return (tern__request){
        func, kind, .dtype = dtype, .is_list = true, .list = list, .others = others, .length = length};
}

int tern_all_reduce_coalesced(tern_group *group, const tern_span *bufs, size_t length, tern_dtype dtype,
                              tern_reduce_op op, tern_error *err)
{
    tern__request r = list_request(__func__, TERN__ALL_REDUCE, bufs, NULL, length, dtype);
    r.op = op;
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_reduce_coalesced_post(tern_group *group, const tern_span *bufs, size_t length,
                                          tern_dtype dtype, tern_reduce_op op, tern_error *err)
{
    tern__request r = list_request("tern_all_reduce_coalesced", TERN__ALL_REDUCE, bufs, NULL, length, dtype);
    r.op = op;
    return tern__request_start(group, &r, err);
}

int tern_broadcast_coalesced(tern_group *group, const tern_span *bufs, size_t length, tern_dtype dtype,
                             int root, tern_error *err)
{
    tern__request r = list_request(__func__, TERN__BROADCAST, bufs, NULL, length, dtype);
    r.root = root;
    return tern__request_run(group, &r, err);
}

tern_work *tern_broadcast_coalesced_post(tern_group *group, const tern_span *bufs, size_t length,
                                         tern_dtype dtype, int root, tern_error *err)
{
    tern__request r = list_request("tern_broadcast_coalesced", TERN__BROADCAST, bufs, NULL, length, dtype);
    r.root = root;
    return tern__request_start(group, &r, err);
}

int tern_all_gather_coalesced(tern_group *group, const tern_span *ins, void *const *outs, size_t length,
                              tern_dtype dtype, tern_error *err)
{
    const tern__request r = list_request(__func__, TERN__ALL_GATHER, ins, outs, length, dtype);
    return tern__request_run(group, &r, err);
}

tern_work *tern_all_gather_coalesced_post(tern_group *group, const tern_span *ins, void *const *outs,
                                          size_t length, tern_dtype dtype, tern_error *err)
{
    const tern__request r =
        list_request("tern_all_gather_coalesced", TERN__ALL_GATHER, ins, outs, length, dtype);
    return tern__request_start(group, &r, err);
}

int tern_reduce_scatter_coalesced(tern_group *group, const void *const *ins, const tern_span *outs,
                                  size_t length, tern_dtype dtype, tern_reduce_op op, tern_error *err)
{
    tern__request r = list_request(__func__, TERN__REDUCE_SCATTER, outs, (void *const *)ins, length, dtype);
    r.op = op;
    return tern__request_run(group, &r, err);
}

tern_work *tern_reduce_scatter_coalesced_post(tern_group *group, const void *const *ins,
                                              const tern_span *outs, size_t length, tern_dtype dtype,
                                              tern_reduce_op op, tern_error *err)
{
    tern__request r = list_request("tern_reduce_scatter_coalesced", TERN__REDUCE_SCATTER, outs,
                                   (void *const *)ins, length, dtype);
    r.op = op;
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
    int status = tern__call_given(group, __func__, err);
    if (status) return status;
    if (!(timeout_s > 0)) {
        tern__error_set(&why, __func__, TERN_E_RANGE, "timeout_s is %g, expected more than 0", timeout_s);
        return tern__call_fail(group, __func__, &why, err);
    }
    double before = group->opts.timeout_s;
    group->opts.timeout_s = timeout_s;
    status = tern__request_run(group, &r, err);
    group->opts.timeout_s = before;
    return status;
}
