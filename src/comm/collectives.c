#include "comm/staging.h"

#include <string.h>

/* What the caller asked for. */
typedef struct request {
    const char *func;
    tern__kind kind;
    const void *in;
    void *out;
    size_t count;
    tern_dtype dtype;
    tern_reduce_op op;
    int root;
} request;

/* ---- checking ---- */

static int check_kind(const tern_group *group, const request *r, tern_error *err)
{
    if (r->kind == TERN__BROADCAST && (r->root < 0 || r->root >= group->boot.world))
        return tern__error_set(err, r->func, TERN_E_RANGE, "root is %d, expected 0 to %d", r->root,
                               group->boot.world - 1);
    if (r->kind != TERN__ALL_REDUCE && r->kind != TERN__REDUCE_SCATTER) return TERN_OK;
    if ((unsigned)r->op > TERN_PRODUCT)
        return tern__error_set(err, r->func, TERN_E_INVALID,
                               "operation %d is not one of sum, avg, min, max, product", (int)r->op);
    if (r->op == TERN_AVG && !tern__dtype_is_float(r->dtype))
        return tern__error_set(err, r->func, TERN_E_DTYPE,
                               "avg of %s, expected f32, f64, bf16 or f16: a mean is no whole number",
                               tern_dtype_name(r->dtype));
    return TERN_OK;
}

/* All_gather and reduce_scatter may be in place: one buffer is the rank's own part of the other. Any other
 * overlap would be read after it was written. */
static int check_overlap(const tern_group *group, const request *r, size_t bytes, tern_error *err)
{
    bool gathers = r->kind == TERN__ALL_GATHER;
    if (!gathers && r->kind != TERN__REDUCE_SCATTER) return TERN_OK;
    uintptr_t in = (uintptr_t)r->in, out = (uintptr_t)r->out;
    uintptr_t part = gathers ? in : out, all = gathers ? out : in;
    size_t all_bytes = bytes * (size_t)group->boot.world;
    bool is_own = part == all + (size_t)group->boot.rank * bytes;
    if (is_own || part + bytes <= all || all + all_bytes <= part) return TERN_OK;
    return tern__error_set(err, r->func, TERN_E_INVALID, "%s overlaps %s, but is not rank %d's part of it",
                           gathers ? "in" : "out", gathers ? "out" : "in", group->boot.rank);
}

static int check_request(const tern_group *group, const request *r, tern_error *err)
{
    if ((unsigned)r->dtype >= TERN_DTYPE_COUNT)
        return tern__error_set(err, r->func, TERN_E_DTYPE, "dtype %d is not one of tern's", (int)r->dtype);
    size_t bytes, all;
    if (__builtin_mul_overflow(r->count, tern_dtype_bytes(r->dtype), &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)group->boot.world, &all) || all > (size_t)PTRDIFF_MAX)
        return tern__error_set(err, r->func, TERN_E_RANGE, "%zu %s of %d ranks are more than memory holds",
                               r->count, tern_dtype_name(r->dtype), group->boot.world);
    if (r->count && (!r->in || !r->out))
        return tern__error_set(err, r->func, TERN_E_INVALID, "buffer is NULL, expected %zu %s", r->count,
                               tern_dtype_name(r->dtype));
    int status = check_kind(group, r, err);
    return status || !r->count ? status : check_overlap(group, r, bytes, err);
}

/* ---- starting ---- */

/* Is the buffer in memory that the peers can reach? */
static int find_window(const tern_group *group, const request *r, size_t count, tern_work *work,
                       tern_error *err)
{
    size_t bytes = count * tern_dtype_bytes(r->dtype);
    uintptr_t at = (uintptr_t)(r->kind == TERN__REDUCE_SCATTER ? r->in : r->out);
    for (const tern__mem *mem = group->mems; mem; mem = mem->next) {
        uintptr_t base = (uintptr_t)mem->base;
        if (at < base || at >= base + mem->bytes) continue;
        if (bytes > mem->bytes - (at - base))
            return tern__error_set(err, r->func, TERN_E_RANGE,
                                   "%zu bytes at %zu run past the end of the %zu of tern_group_mem_alloc",
                                   bytes, (size_t)(at - base), mem->bytes);
        work->is_direct = true;
        work->extent = (tern__extent){.window = mem->window, .offset = at - base, .count = count};
        return TERN_OK;
    }
    return TERN_OK;
}

static void put_own_part(const tern_group *group, const request *r)
{
    size_t bytes = r->count * tern_dtype_bytes(r->dtype);
    char *to = r->out;
    if (r->kind == TERN__ALL_GATHER) to += (size_t)group->boot.rank * bytes;
    if (bytes && to != r->in) memcpy(to, r->in, bytes);
}

static int begin(tern_work *work, tern_group *group, const request *r, tern_error *err)
{
    size_t parts = tern__staging_parts(group, r->kind);
    *work = (tern_work){
        .group = group, .func = r->func, .in = r->in, .out = r->out, .count = r->count, .pieces = 1};
    work->post = (tern__post){
        .kind = r->kind, .dtype = r->dtype, .op = r->op, .root = r->root, .total = r->count * parts};
    int status = check_request(group, r, err);
    if (!status) status = tern__group_check(group, r->func, err);
    if (!status && r->count) status = find_window(group, r, r->count * parts, work, err);
    if (status) return status;
    if (group->boot.world == 1 || (r->kind == TERN__ALL_GATHER && work->is_direct)) put_own_part(group, r);
    if (group->boot.world == 1) {
        work->group = NULL;
        return TERN_OK;
    }
    work->piece = work->is_direct ? r->count : tern__staging_piece(group, r->kind, r->dtype);
    if (r->count > work->piece) work->pieces = (r->count + work->piece - 1) / work->piece;
    tern__staging_push(group->staging, work);
    return TERN_OK;
}

/* ---- ending ---- */

/* What went wrong for this rank ends the group, so that no peer waits for it. */
static int fail(tern_group *group, const char *func, tern_error *why, tern_error *err)
{
    why->func = func;
    tern__group_fail(group, why);
    if (err && !err->code) *err = *why;
    return why->code;
}

static int check_given(tern_group *group, const char *func, tern_error *err)
{
    if (!group) return tern__error_set(err, func, TERN_E_INVALID, "group is NULL");
    return tern__is_set(err) ? tern__group_fail(group, err) : TERN_OK;
}

static int run(tern_group *group, const request *r, tern_error *err)
{
    tern_error why = {0};
    tern_work work;
    int status = check_given(group, r->func, err);
    if (status) return status;
    status = begin(&work, group, r, &why);
    if (!status && work.status) status = tern__staging_finish(group->staging, &work, &why);
    return status ? fail(group, r->func, &why, err) : TERN_OK;
}

static tern_work *start(tern_group *group, const request *r, tern_error *err)
{
    tern_error why = {0};
    if (check_given(group, r->func, err)) return NULL;
    tern_work *work = tern__work_new(group->staging, r->func, &why);
    if (work && !begin(work, group, r, &why) && (!work->status || !tern__staging_pump(group->staging, &why)))
        return work;
    fail(group, r->func, &why, err);
    if (work && work->status == TERN_PENDING) tern__staging_drop(group->staging, work, why.code);
    tern__work_free(work);
    return NULL;
}

/* ---- public ---- */

static request reduce_request(void *buf, size_t count, tern_dtype dtype, tern_reduce_op op)
{
    return (request){"tern_all_reduce", TERN__ALL_REDUCE, buf, buf, count, dtype, op, 0};
}

static request broadcast_request(void *buf, size_t count, tern_dtype dtype, int root)
{
    return (request){"tern_broadcast", TERN__BROADCAST, buf, buf, count, dtype, TERN_SUM, root};
}

static request gather_request(const void *in, void *out, size_t count, tern_dtype dtype)
{
    return (request){"tern_all_gather", TERN__ALL_GATHER, in, out, count, dtype, TERN_SUM, 0};
}

static request scatter_request(const void *in, void *out, size_t count, tern_dtype dtype, tern_reduce_op op)
{
    return (request){"tern_reduce_scatter", TERN__REDUCE_SCATTER, in, out, count, dtype, op, 0};
}

int tern_all_reduce(tern_group *group, void *buf, size_t count, tern_dtype dtype, tern_reduce_op op,
                    tern_error *err)
{
    request r = reduce_request(buf, count, dtype, op);
    return run(group, &r, err);
}

int tern_broadcast(tern_group *group, void *buf, size_t count, tern_dtype dtype, int root, tern_error *err)
{
    request r = broadcast_request(buf, count, dtype, root);
    return run(group, &r, err);
}

int tern_all_gather(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                    tern_error *err)
{
    request r = gather_request(in, out, count, dtype);
    return run(group, &r, err);
}

int tern_reduce_scatter(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                        tern_reduce_op op, tern_error *err)
{
    request r = scatter_request(in, out, count, dtype, op);
    return run(group, &r, err);
}

int tern_barrier(tern_group *group, tern_error *err)
{
    request r = {.func = __func__, .kind = TERN__BARRIER, .dtype = TERN_U8};
    return run(group, &r, err);
}

tern_work *tern_all_reduce_post(tern_group *group, void *buf, size_t count, tern_dtype dtype,
                                tern_reduce_op op, tern_error *err)
{
    request r = reduce_request(buf, count, dtype, op);
    return start(group, &r, err);
}

tern_work *tern_broadcast_post(tern_group *group, void *buf, size_t count, tern_dtype dtype, int root,
                               tern_error *err)
{
    request r = broadcast_request(buf, count, dtype, root);
    return start(group, &r, err);
}

tern_work *tern_all_gather_post(tern_group *group, const void *in, void *out, size_t count, tern_dtype dtype,
                                tern_error *err)
{
    request r = gather_request(in, out, count, dtype);
    return start(group, &r, err);
}

tern_work *tern_reduce_scatter_post(tern_group *group, const void *in, void *out, size_t count,
                                    tern_dtype dtype, tern_reduce_op op, tern_error *err)
{
    request r = scatter_request(in, out, count, dtype, op);
    return start(group, &r, err);
}

static int fail_closed(const tern_work *work, tern_error *err)
{
    return tern__error_set(err, work->func, work->status, "the work was not done when its group was closed");
}

int tern_work_test(tern_work *work, tern_error *err)
{
    tern_error why = {0};
    if (!work) return tern__error_set(err, __func__, TERN_E_INVALID, "work is NULL");
    if (work->status == TERN_OK) return TERN_OK;
    tern_group *group = work->group;
    if (!group) return fail_closed(work, err);
    int status = tern__group_check(group, work->func, &why);
    if (!status) status = tern__group_progress(group, &why);
    return status ? fail(group, work->func, &why, err) : work->status;
}

int tern_work_wait(tern_work *work, tern_error *err)
{
    tern_error why = {0};
    if (!work) return tern__error_set(err, __func__, TERN_E_INVALID, "work is NULL");
    int status = work->status;
    tern_group *group = work->group;
    if (status && !group) fail_closed(work, err);
    if (status && group) {
        status = tern__group_check(group, work->func, &why);
        if (!status)
            status = tern__staging_finish(group->staging, work, &why);
        else
            tern__staging_drop(group->staging, work, status);
        if (status) fail(group, work->func, &why, err);
    }
    tern__work_free(work);
    return status;
}
