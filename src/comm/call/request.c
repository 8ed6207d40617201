/* request.c - checks a collective, finds out whether its buffers are in a window, in ordinary memory or on a
 * device, and makes it a work. */
#include "comm/call/request.h"

#include "base/hash.h"
#include "comm/call/arena.h"
#include "comm/call/debug/debug.h"
#include "comm/call/piece.h"
#include "comm/move/reduce.h"
#include "device/memory.h"
#include "tensor/host.h"

#include <math.h>
#include <string.h>

/* ---- checks of any request ---- */

static bool has_root(tern__kind kind)
{
    return kind == TERN__BROADCAST || kind == TERN__REDUCE || kind == TERN__GATHER || kind == TERN__SCATTER;
}

static int check_op(const tern__request *r, tern_error *err)
{
    bool is_float = tern__dtype_is_float(r->dtype), is_bits = r->op >= TERN_BAND && r->op <= TERN_BXOR;
    bool is_premul = r->op == TERN_PREMUL_SUM;
    if ((unsigned)r->op > TERN_PREMUL_SUM)
        return tern__error_set(err, r->func, TERN_E_INVALID,
                               "operation %d is not one of sum, avg, product, min, max, band, bor, bxor",
                               (int)r->op);
    if (is_premul && !r->is_premul)
        return tern__error_set(err, r->func, TERN_E_INVALID,
                               "premul_sum without a factor, expected %s_premul", r->func);
    if (is_premul && !isfinite(r->factor))
        return tern__error_set(err, r->func, TERN_E_RANGE, "factor is %g, expected a number", r->factor);
    if ((r->op == TERN_AVG || is_premul) && !is_float)
        return tern__error_set(err, r->func, TERN_E_DTYPE,
                               "%s of %s, expected f32, f64, bf16 or f16: a mean is not a whole number",
                               is_premul ? "premul_sum" : "avg", tern_dtype_name(r->dtype));
    if (is_bits && is_float)
        return tern__error_set(err, r->func, TERN_E_DTYPE,
                               "band, bor or bxor of %s, expected i64, i32, i16, i8, u8 or bool",
                               tern_dtype_name(r->dtype));
    return TERN_OK;
}

static int check_request(const tern_group *group, const tern__request *r, tern_error *err)
{
    if ((unsigned)r->dtype >= TERN_DTYPE_COUNT)
        return tern__error_set(err, r->func, TERN_E_DTYPE, "dtype %d is not one of tern's", (int)r->dtype);
    if (has_root(r->kind) && (r->root < 0 || r->root >= group->boot.world))
        return tern__error_set(err, r->func, TERN_E_RANGE, "root is %d, expected 0 to %d", r->root,
                               group->boot.world - 1);
    return tern__kind_reduces(r->kind) ? check_op(r, err) : TERN_OK;
}

/* ---- checks of buffers ---- */

/* One buffer may be this rank's own part of the other. With any other overlap, data would be read after it
 * was overwritten. */
static int check_overlap(const tern_group *group, const tern__request *r, const tern__work_operand *operand,
                         tern__parts of, tern_error *err)
{
    size_t bytes = operand->count * tern_dtype_bytes(r->dtype), own = (size_t)group->boot.rank * bytes;
    uintptr_t in = (uintptr_t)operand->in, out = (uintptr_t)operand->out;
    bool is_own = of.in < of.out ? in == out + own : out == in + own;
    if (of.in == of.out) is_own = of.in == 1 && in == out;
    if (is_own || in + of.in * bytes <= out || out + of.out * bytes <= in) return TERN_OK;
    if (of.in == of.out) return tern__error_set(err, r->func, TERN_E_INVALID, "in overlaps out");
    return tern__error_set(err, r->func, TERN_E_INVALID, "%s overlaps %s, but is not rank %d's part of it",
                           of.in < of.out ? "in" : "out", of.in < of.out ? "out" : "in", group->boot.rank);
}

static int check_size(const tern_group *group, const tern__request *r, size_t count, tern_error *err)
{
    size_t bytes, all;
    if (!__builtin_mul_overflow(count, tern_dtype_bytes(r->dtype), &bytes) &&
        !__builtin_mul_overflow(bytes, (size_t)group->boot.world, &all) && all <= (size_t)PTRDIFF_MAX)
        return TERN_OK;
    return tern__error_set(err, r->func, TERN_E_RANGE, "%zu %s of %d ranks are more than memory holds", count,
                           tern_dtype_name(r->dtype), group->boot.world);
}

static int check_operand(const tern_group *group, const tern__request *r, const tern__work_operand *operand,
                         tern_error *err)
{
    tern__parts of = tern__request_parts(group, r->kind, r->root);
    int status = check_size(group, r, operand->count, err);
    if (status || !operand->count) return status;
    if ((of.in && !operand->in) || (of.out && !operand->out))
        return tern__call_fail_null(r->func, operand->count, r->dtype, err);
    return of.in && of.out ? check_overlap(group, r, operand, of, err) : TERN_OK;
}

/* ---- where the data is ---- */

/* True if the peers may work in this rank's memory of such a call. Between hosts the memory may not be only
 * read, since results arrive in it. */
static bool uses_windows(const tern_group *group, tern__kind kind)
{
    switch (kind) {
    case TERN__ALL_REDUCE:
    case TERN__BROADCAST:
    case TERN__ALL_GATHER:
    case TERN__REDUCE: return true;
    case TERN__REDUCE_SCATTER:
    case TERN__GATHER:
    case TERN__ALL_TO_ALL: return !tern__group_mover(group)->lands_in_windows;
    default: return false;
    }
}

/* Finds the extent in the arena of the memory that the peers read, in a call that uses windows. Its count is
 * 0 if the memory is elsewhere. */
static int find_extent(const tern_group *group, const tern__request *r, const tern__work_operand *operand,
                       tern__extent *extent, tern_error *err)
{
    const char *at = r->kind == TERN__ALL_GATHER ? operand->out : operand->in;
    tern__group_arena *arena = group->arena;
    size_t offset = (uintptr_t)at - (uintptr_t)arena->base;
    extent->count = 0;
    if (offset >= arena->bytes) return TERN_OK;
    const tern__group_block *block = tern__arena_find(arena, offset);
    if (!block)
        return tern__error_set(err, r->func, TERN_E_INVALID,
                               "the buffer is in memory that tern_group_mem_free freed");
    size_t count = operand->count * tern__staging_parts(group, r->kind),
           bytes = count * tern_dtype_bytes(r->dtype), within = offset - block->offset;
    if (within > block->bytes || bytes > block->bytes - within)
        return tern__error_set(err, r->func, TERN_E_RANGE,
                               "%zu bytes at %zu run past the end of the %zu of tern_group_mem_alloc", bytes,
                               within, block->bytes);
    *extent = (tern__extent){.window = arena->window, .offset = offset, .count = count};
    return TERN_OK;
}

static int place_operand(tern_work *work, const tern_group *group, const tern__request *r, tern_error *err)
{
    work->operands = &work->operand;
    work->operand_count = 1;
    work->operand = (tern__work_operand){r->in, r->out, r->count};
    work->count = r->count;
    int status = check_operand(group, r, &work->operand, err);
    if (status || !r->count || !work->is_placed) return status;
    status = find_extent(group, r, &work->operand, &work->extent, err);
    if (!work->extent.count) return status;
    work->extents = &work->extent;
    work->extent_count = 1;
    return TERN_OK;
}

/* ---- a list of buffers ---- */

static tern__work_operand operand_of(const tern__request *r, size_t i)
{
    void *data = r->list[i].data, *other = r->others ? r->others[i] : data;
    if (r->kind == TERN__REDUCE_SCATTER) return (tern__work_operand){other, data, r->list[i].count};
    return (tern__work_operand){data, other, r->list[i].count};
}

/* Returns a digest of the counts, which is never 0: 0 stands for a call without a list. */
static uint32_t digest_of(const tern__request *r)
{
    uint64_t hash = tern__fnv_word(TERN__FNV, r->length);
    for (size_t i = 0; i < r->length; i++) hash = tern__fnv_word(hash, r->list[i].count);
    return tern__fnv_fold(hash) | 1;
}

/* True if a list may be placed: its table fits a place of the ring. */
static bool is_placed_list(const tern_group *group, const tern__request *r)
{
    return tern__staging_parts(group, r->kind) == 1 &&
           r->length <= tern__staging_place(group) / sizeof(tern__extent);
}

/* Finds the extents of a list that is placed, if all its buffers are in the arena. */
static int find_extents(tern_work *work, const tern_group *group, const tern__request *r,
                        tern__extent *extents, tern_error *err)
{
    int found = 0, status = TERN_OK;
    bool are_all = true;
    for (size_t i = 0; i < work->operand_count && !status; i++) {
        if (!work->operands[i].count) continue;
        status = find_extent(group, r, &work->operands[i], &extents[found], err);
        are_all &= extents[found++].count > 0;
    }
    if (status || !are_all || !found) return status;
    work->extents = extents;
    work->extent_count = found;
    return TERN_OK;
}

static int place_list(tern_work *work, const tern_group *group, const tern__request *r, tern_error *err)
{
    size_t each = sizeof(tern__work_operand) + 2 * sizeof(tern__extent), bytes;
    if (r->length && (!r->list || (!r->others && r->kind != TERN__ALL_REDUCE && r->kind != TERN__BROADCAST)))
        return tern__error_set(err, r->func, TERN_E_INVALID, "the list of %zu buffers is NULL", r->length);
    if (__builtin_mul_overflow(r->length, each, &bytes) || r->length > INT32_MAX)
        return tern__error_set(err, r->func, TERN_E_RANGE, "a list of %zu buffers, expected fewer than 2^31",
                               r->length);
    work->post.label.detail = digest_of(r);
    if (!r->length) return TERN_OK;
    tern__work_operand *operands = tern__work_room(work, bytes, r->func, err);
    if (!operands) return TERN_E_MEMORY;
    work->operands = operands;
    work->operand_count = r->length;
    for (size_t i = 0; i < r->length; i++) {
        operands[i] = operand_of(r, i);
        int status = check_operand(group, r, &operands[i], err);
        if (status) return status;
        if (__builtin_add_overflow(work->count, operands[i].count, &work->count))
            return tern__error_set(err, r->func, TERN_E_RANGE, "%zu buffers are more than memory holds",
                                   r->length);
    }
    int status = check_size(group, r, work->count, err);
    if (status || !work->is_placed) return status;
    return find_extents(work, group, r, (tern__extent *)(operands + r->length), err);
}

/* ---- lists of counts ---- */

/* Cuts a buffer into spans, one after the other. */
static int cut_spans(tern_span *spans, const tern_group *group, const tern__request *r, const void *data,
                     const size_t *list, tern_error *err)
{
    size_t total = 0, size = tern_dtype_bytes(r->dtype);
    for (int rank = 0; rank < group->boot.world; rank++) {
        spans[rank] = (tern_span){data ? (char *)data + total * size : NULL, list[rank]};
        int status = check_size(group, r, list[rank], err);
        if (!status && __builtin_add_overflow(total, list[rank], &total))
            status = tern__error_set(err, r->func, TERN_E_RANGE, "the counts are more than memory holds");
        if (!status) status = check_size(group, r, total, err);
        if (status) return status;
    }
    return TERN_OK;
}

static int check_spans(const tern_group *group, const tern__request *r, const tern_span *spans,
                       tern_error *err)
{
    for (int rank = 0; rank < group->boot.world; rank++) {
        int status = check_size(group, r, spans[rank].count, err);
        if (status) return status;
        if (spans[rank].count && !spans[rank].data)
            return tern__error_set(err, r->func, TERN_E_INVALID, "buffer of rank %d is NULL, expected %zu %s",
                                   rank, spans[rank].count, tern_dtype_name(r->dtype));
    }
    return TERN_OK;
}

/* Checks that no destination overlaps the gives, which are one buffer. The part that this rank gives to
 * itself may stay in place. */
static int check_moves(const tern_group *group, const tern__request *r, const tern_span *gives,
                       const tern_span *takes, tern_error *err)
{
    const tern_span *last = &gives[group->boot.world - 1];
    size_t size = tern_dtype_bytes(r->dtype);
    uintptr_t low = (uintptr_t)gives[0].data, high = (uintptr_t)last->data + last->count * size;
    for (int rank = 0; rank < group->boot.world; rank++) {
        uintptr_t out = (uintptr_t)takes[rank].data, end = out + takes[rank].count * size;
        bool is_own = rank == group->boot.rank && takes[rank].data == gives[rank].data;
        if (is_own || out == end || low == high || high <= out || end <= low) continue;
        return tern__error_set(err, r->func, TERN_E_INVALID, "in overlaps the memory for rank %d's data",
                               rank);
    }
    return TERN_OK;
}

static int place_counts(tern_work *work, const tern_group *group, const tern__request *r, tern_error *err)
{
    size_t world = (size_t)group->boot.world;
    bool gathers = r->kind == TERN__ALL_GATHER_V, has_counts = r->in_counts && r->out_counts;
    if (!r->outs && !has_counts)
        return tern__error_set(err, r->func, TERN_E_INVALID, "%s is NULL, expected %zu",
                               gathers ? "outs" : "a list of counts", world);
    tern_span *gives = tern__work_room(work, 2 * world * sizeof(*gives), r->func, err), *takes;
    if (!gives) return TERN_E_MEMORY;
    takes = gives + world;
    work->gives = gives;
    work->takes = takes;
    work->asks = work->is_undecided = true;
    for (size_t i = 0; r->outs && i < world; i++) {
        gives[i] = r->ins ? r->ins[i] : (tern_span){(void *)r->in, r->count};
        takes[i] = r->outs[i];
    }
    int status = has_counts ? cut_spans(gives, group, r, r->in, r->in_counts, err) : TERN_OK;
    if (has_counts && !status) status = cut_spans(takes, group, r, r->out, r->out_counts, err);
    if (!status) status = check_spans(group, r, gives, err);
    if (!status) status = check_spans(group, r, takes, err);
    if (!status && !r->ins) status = check_moves(group, r, gives, takes, err);
    size_t given = gives[group->boot.rank].count, taken = takes[group->boot.rank].count;
    if (status || given == taken) return status;
    int name = tern_group_world_rank(group, group->boot.rank);
    return tern__error_set(err, r->func, TERN_E_MISMATCH,
                           "rank %d gives %zu elements to rank %d, which takes %zu", name, given, name,
                           taken);
}

/* ---- a rank's own part ---- */

static int copy_span(const void *in, void *out, size_t count, tern_dtype dtype, tern_error *err)
{
    return count && in != out ? tern__memory_copy(out, in, count * tern_dtype_bytes(dtype), err) : TERN_OK;
}

/* Copies the rank's part of its own data; in a group of one, that is all. */
static int put_own_part(const tern_work *work, const tern_group *group, const tern__request *r,
                        tern_error *err)
{
    int rank = group->boot.rank, status = TERN_OK;
    if (work->gives)
        return copy_span(work->gives[rank].data, work->takes[rank].data, work->takes[rank].count, r->dtype,
                         err);
    tern__parts of = tern__request_parts(group, r->kind, r->root);
    for (size_t i = 0; of.in && of.out && i < work->operand_count && !status; i++) {
        const tern__work_operand *operand = &work->operands[i];
        size_t bytes = (size_t)rank * operand->count * tern_dtype_bytes(r->dtype);
        if (!operand->count) continue;
        status = copy_span(operand->in + (of.in > 1 ? bytes : 0), operand->out + (of.out > 1 ? bytes : 0),
                           operand->count, r->dtype, err);
    }
    return status;
}

/* Multiplies by the factor of TERN_PREMUL_SUM. */
static int scale_operand(const tern__work_operand *operand, tern_dtype dtype, double factor, tern_error *err)
{
    tern__host host;
    int64_t count = (int64_t)operand->count;
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 1, &count);
    view.data = operand->out;
    int status = tern__host_open(&host, &view, err);
    if (status) return status;
    char *at = host.view.data;
    tern__reduce_weighted(dtype, &factor, 1, (const char *const *)&at, 1, &at, 1, operand->count);
    return tern__host_close(&host, true, err);
}

static int finish_alone(tern_work *work, const tern_group *group, const tern__request *r, tern_error *err)
{
    int status = put_own_part(work, group, r, err);
    for (size_t i = 0; r->is_premul && r->factor != 1 && i < work->operand_count && !status; i++)
        status = scale_operand(&work->operands[i], r->dtype, r->factor, err);
    work->group = NULL;
    work->status = status;
    return status;
}

/* ---- starting ---- */

static int place_work(tern_work *work, const tern_group *group, const tern__request *r, tern_error *err)
{
    if (r->kind == TERN__ALL_GATHER_V || r->kind == TERN__ALL_TO_ALL_V)
        return place_counts(work, group, r, err);
    return r->is_list ? place_list(work, group, r, err) : place_operand(work, group, r, err);
}

static uint64_t total_of(const tern_group *group, const tern_work *work)
{
    bool has_parts = tern__staging_parts(group, work->post.kind) > 1 || work->post.kind == TERN__GATHER;
    return work->count * (has_parts ? (uint64_t)group->boot.world : 1);
}

/* Cuts a work into pieces. A work that asks is cut when it has the answer; its question is one piece. */
static void work_cut(tern_work *work, const tern_group *group, const tern__request *r)
{
    work->is_placed &= !work->is_direct && work->count;
    work->piece = work->is_direct ? work->count : tern__staging_piece(group, r->kind, r->dtype, work->count);
    if (work->is_placed && (r->is_list || work->count > work->piece)) work->asks = work->is_undecided = true;
    if (!work->asks && work->count > work->piece)
        work->pieces = (work->count + work->piece - 1) / work->piece;
}

static tern__post post_of_request(const tern__request *r)
{
    return (tern__post){.kind = r->kind,
                        .dtype = r->dtype,
                        .op = r->op,
                        .root = r->root,
                        .terms = {.weighted = r->is_premul, .weight = r->factor, .share = 1},
                        .wait_all = r->wait_all,
                        .is_vote = r->is_vote};
}

static int work_begin(tern_work *work, tern_group *group, const tern__request *r, tern_error *err)
{
    *work = (tern_work){.group = group,
                        .func = r->func,
                        .post = post_of_request(r),
                        .pieces = 1,
                        .is_placed = group->arena && uses_windows(group, r->kind)};
    if (r->is_list) work->is_placed &= is_placed_list(group, r);
    int status = check_request(group, r, err);
    if (!status) status = tern__group_check(group, r->func, err);
    if (!status) status = place_work(work, group, r, err);
    if (status) return status;
    if (group->boot.world == 1) return finish_alone(work, group, r, err);
    status = tern__direct_begin(work, group, err);
    if (!status && (tern__kind_is_move(r->kind) || (r->kind == TERN__ALL_GATHER && work->extents)))
        status = put_own_part(work, group, r, err);
    if (!status && !work->is_direct && !work->gives) status = tern__work_depart(group->staging, work, err);
    if (status) return status;
    work->post.total = total_of(group, work);
    work_cut(work, group, r);
    status = tern__debug_call_begin(work, tern__staging_calls(group->staging) + 1, err);
    if (status) return status;
    tern__staging_push(group->staging, work);
    return TERN_OK;
}

/* ---- a request whose data the posts carry ---- */

/* True if the back end carries the request's data, and no work is before it. Such a request goes without the
 * queue and a piece, whose instructions would take most of its time. */
static bool request_is_carried(const tern_group *group, const tern__request *r)
{
    size_t most = group->backend->carries;
    if (!group->staging || group->staging->first || r->count > most) return false;
    if (r->kind == TERN__BARRIER) return most > 0;
    return r->count && r->count * tern_dtype_bytes(r->dtype) <= most && tern__kind_is_in_place(r->kind) &&
           !tern__memory_device(r->out);
}

/* Posts it as its only piece would be. The extent of a buffer in the arena is only checked: the posts carry
 * its data. */
static int run_carried(tern_group *group, const tern__request *r, tern_error *err)
{
    tern__work_operand operand = {r->in, r->out, r->count};
    tern__extent extent;
    tern__post post = post_of_request(r);
    uint64_t seq;
    int status = check_request(group, r, err);
    if (!status) status = tern__group_check(group, r->func, err);
    if (!status) status = check_operand(group, r, &operand, err);
    if (!status && group->arena) status = find_extent(group, r, &operand, &extent, err);
    if (status) return status;
    extent = (tern__extent){TERN__OWN_MEMORY, (uintptr_t)r->out, r->count};
    post.label.number = tern__staging_pass(group->staging);
    post.total = r->count;
    post.extents = &extent;
    post.extent_count = r->count > 0;
    post.is_placed = r->count > 0;
    status = group->backend->post(group->channel, &post, &seq, err);
    return status ? status : group->backend->wait(group->channel, seq, err);
}

/* ---- running ---- */

tern_work *tern__request_start(tern_group *group, const tern__request *r, tern_error *err)
{
    tern_error why = {0};
    if (tern__call_given(group, r->func, err)) return NULL;
    tern_work *work = tern__work_new(group->staging, r->func, &why);
    if (work && !work_begin(work, group, r, &why) &&
        (!work->status || !tern__staging_pump(group->staging, &why)))
        return work;
    tern__call_fail(group, r->func, &why, err);
    if (work && work->status == TERN_PENDING) tern__staging_drop(group->staging, work, why.code);
    tern__work_free(work);
    return NULL;
}

/* Runs a request with lists, as a work whose memory the staging keeps for reuse. */
static int run_held(tern_group *group, const tern__request *r, tern_error *err)
{
    tern_error why = {0};
    tern_work *work = tern__request_start(group, r, &why);
    int status = why.code;
    if (work) {
        status = work->status ? tern__staging_finish(group->staging, work, &why) : TERN_OK;
        if (status) tern__call_fail(group, r->func, &why, NULL);
        tern__work_free(work);
    }
    if (status && err && !err->code) *err = why;
    return status;
}

int tern__request_run(tern_group *group, const tern__request *r, tern_error *err)
{
    tern_error why;
    tern_work work;
    tern__error_clear(&why);
    int status = tern__call_given(group, r->func, err);
    if (status) return status;
    if (r->is_list || r->outs || r->in_counts) return run_held(group, r, err);
    if (request_is_carried(group, r)) {
        status = run_carried(group, r, &why);
    } else {
        status = work_begin(&work, group, r, &why);
        if (!status && work.status) status = tern__staging_finish(group->staging, &work, &why);
    }
    return status ? tern__call_fail(group, r->func, &why, err) : TERN_OK;
}
