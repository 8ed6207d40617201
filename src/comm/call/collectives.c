/* collectives.c - the public collectives: each fills in a request, and runs or starts it. */
#include "comm/call/request.h"

/* Takes off the parentheses around parameters. */
#define LIST(...) __VA_ARGS__

/* Defines the call `name`, which blocks, and name_post, which returns its work. Both take `parameters`
 * between the group and the error. The other arguments are the fields of their request. */
#define DEFINE(name, parameters, ...)                                                                        \
    int name(tern_group *group, LIST parameters, tern_error *err)                                            \
    {                                                                                                        \
        const tern__request r = {.func = #name, __VA_ARGS__};                                                \
        return tern__request_run(group, &r, err);                                                            \
    }                                                                                                        \
    tern_work *name##_post(tern_group *group, LIST parameters, tern_error *err)                              \
    {                                                                                                        \
        const tern__request r = {.func = #name, __VA_ARGS__};                                                \
        return tern__request_start(group, &r, err);                                                          \
    }

/* ---- reductions ---- */

DEFINE(tern_all_reduce, (void *buf, size_t count, tern_dtype dtype, tern_reduce_op op),
       .kind = TERN__ALL_REDUCE, .in = buf, .out = buf, .count = count, .dtype = dtype, .op = op)
DEFINE(tern_reduce, (void *buf, size_t count, tern_dtype dtype, tern_reduce_op op, int root),
       .kind = TERN__REDUCE, .in = buf, .out = buf, .count = count, .dtype = dtype, .op = op, .root = root)
DEFINE(tern_reduce_scatter, (const void *in, void *out, size_t count, tern_dtype dtype, tern_reduce_op op),
       .kind = TERN__REDUCE_SCATTER, .in = in, .out = out, .count = count, .dtype = dtype, .op = op)
DEFINE(tern_all_reduce_premul, (void *buf, size_t count, tern_dtype dtype, double factor),
       .kind = TERN__ALL_REDUCE, .in = buf, .out = buf, .count = count, .dtype = dtype, .op = TERN_PREMUL_SUM,
       .is_premul = true, .factor = factor)
DEFINE(tern_reduce_premul, (void *buf, size_t count, tern_dtype dtype, double factor, int root),
       .kind = TERN__REDUCE, .in = buf, .out = buf, .count = count, .dtype = dtype, .op = TERN_PREMUL_SUM,
       .is_premul = true, .factor = factor, .root = root)
DEFINE(tern_reduce_scatter_premul, (const void *in, void *out, size_t count, tern_dtype dtype, double factor),
       .kind = TERN__REDUCE_SCATTER, .in = in, .out = out, .count = count, .dtype = dtype,
       .op = TERN_PREMUL_SUM, .is_premul = true, .factor = factor)

/* ---- moves ---- */

DEFINE(tern_broadcast, (void *buf, size_t count, tern_dtype dtype, int root), .kind = TERN__BROADCAST,
       .in = buf, .out = buf, .count = count, .dtype = dtype, .root = root)
DEFINE(tern_all_gather, (const void *in, void *out, size_t count, tern_dtype dtype), .kind = TERN__ALL_GATHER,
       .in = in, .out = out, .count = count, .dtype = dtype)
DEFINE(tern_gather, (const void *in, void *out, size_t count, tern_dtype dtype, int root),
       .kind = TERN__GATHER, .in = in, .out = out, .count = count, .dtype = dtype, .root = root)
DEFINE(tern_scatter, (const void *in, void *out, size_t count, tern_dtype dtype, int root),
       .kind = TERN__SCATTER, .in = in, .out = out, .count = count, .dtype = dtype, .root = root)
DEFINE(tern_all_to_all, (const void *in, void *out, size_t count, tern_dtype dtype), .kind = TERN__ALL_TO_ALL,
       .in = in, .out = out, .count = count, .dtype = dtype)
DEFINE(tern_all_gather_v, (const void *in, size_t count, const tern_span *outs, tern_dtype dtype),
       .kind = TERN__ALL_GATHER_V, .in = in, .count = count, .outs = outs, .dtype = dtype)
DEFINE(tern_all_to_all_v,
       (const void *in, const size_t *in_counts, void *out, const size_t *out_counts, tern_dtype dtype),
       .kind = TERN__ALL_TO_ALL_V, .in = in, .in_counts = in_counts, .out = out, .out_counts = out_counts,
       .dtype = dtype)

/* ---- many buffers as one work ---- */

DEFINE(tern_all_reduce_coalesced, (const tern_span *bufs, size_t length, tern_dtype dtype, tern_reduce_op op),
       .kind = TERN__ALL_REDUCE, .list = bufs, .is_list = true, .length = length, .dtype = dtype, .op = op)
DEFINE(tern_broadcast_coalesced, (const tern_span *bufs, size_t length, tern_dtype dtype, int root),
       .kind = TERN__BROADCAST, .list = bufs, .is_list = true, .length = length, .dtype = dtype, .root = root)
DEFINE(tern_all_gather_coalesced, (const tern_span *ins, void *const *outs, size_t length, tern_dtype dtype),
       .kind = TERN__ALL_GATHER, .list = ins, .others = outs, .is_list = true, .length = length,
       .dtype = dtype)
DEFINE(tern_reduce_scatter_coalesced,
       (const void *const *ins, const tern_span *outs, size_t length, tern_dtype dtype, tern_reduce_op op),
       .kind = TERN__REDUCE_SCATTER, .list = outs, .others = (void *const *)ins, .is_list = true,
       .length = length, .dtype = dtype, .op = op)

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
