/* piece.c - a piece of a work: copied into the ring, posted, and copied out. */
#include "comm/call/piece.h"

#include "base/pages.h"
#include "device/memory.h"

#include <string.h>

static int place_number(const tern__staging *staging, const tern__piece *piece)
{
    return (int)(piece - staging->pieces);
}

static bool is_root(const tern__staging *staging, const tern_work *work)
{
    return staging->group->boot.rank == work->post.root;
}

/* ---- the caller's memory and the ring ---- */

static int copy_data(tern__staging *staging, const tern_work *work, void *to, const void *from, size_t bytes,
                     tern_error *err)
{
    if (work->is_away) return tern__ring_copy_run(&staging->copies, to, from, bytes, err);
    memcpy(to, from, bytes);
    return TERN_OK;
}

/* Copies elements [first, first + count) of a part to a place of the ring or back. The part consists of the
 * operands' parts, one after the other. */
static int copy_part(tern__staging *staging, const tern_work *work, size_t part, size_t first, size_t count,
                     char *place, bool is_in, tern_error *err)
{
    size_t size = tern_dtype_bytes(work->post.dtype);
    int status = TERN_OK;
    for (const tern__work_operand *operand = work->operands; count && !status; operand++) {
        if (first >= operand->count) {
            first -= operand->count;
            continue;
        }
        size_t here = TERN__MIN(count, operand->count - first), at = (part * operand->count + first) * size;
        status = copy_data(staging, work, is_in ? place : operand->out + at, is_in ? operand->in + at : place,
                           here * size, err);
        place += here * size;
        count -= here;
        first = 0;
    }
    return status;
}

/* Copies all except the part that this rank keeps, for which `place` has room, too. */
static int copy_others(tern__staging *staging, const tern__piece *piece, char *place, bool is_in,
                       tern_error *err)
{
    const tern__bootstrap *boot = &staging->group->boot;
    const tern_work *work = piece->work;
    tern_dtype dtype = work->post.dtype;
    size_t low = tern__kept_start(piece->count, dtype, boot->world, boot->rank),
           high = tern__kept_start(piece->count, dtype, boot->world, boot->rank + 1);
    int status = copy_part(staging, work, 0, piece->first, low, place, is_in, err);
    if (status) return status;
    return copy_part(staging, work, 0, piece->first + high, piece->count - high,
                     place + high * tern_dtype_bytes(dtype), is_in, err);
}

/* True if the back end reads and writes the caller's memory itself. */
static bool is_in_own(const tern__piece *piece)
{
    return piece->extent.window == TERN__OWN_MEMORY;
}

/* True for a large all_reduce: each rank keeps its part, which no other rank reads, in the caller's memory.
 * If that is a device's, the part is in the ring nevertheless. */
static bool keeps_part(const tern__staging *staging, const tern_work *work)
{
    bool is_large = !tern__work_fits_ring(work) && work->operand_count == 1 && !work->extents;
    return is_large && work->post.kind == TERN__ALL_REDUCE && staging->group->backend->keeps_parts;
}

/* Copies `parts` parts of the piece, which are one after the other at `place`. */
static int copy_parts(tern__staging *staging, const tern__piece *piece, int parts, char *place, bool is_in,
                      tern_error *err)
{
    size_t bytes = piece->count * tern_dtype_bytes(piece->work->post.dtype);
    int status = TERN_OK;
    for (int i = 0; i < parts && !status; i++)
        status = copy_part(staging, piece->work, (size_t)i, piece->first, piece->count,
                           place + (size_t)i * bytes, is_in, err);
    return status;
}

static int copy_in(tern__staging *staging, const tern__piece *piece, tern_error *err)
{
    const tern_work *work = piece->work;
    const tern__bootstrap *boot = &staging->group->boot;
    size_t bytes = piece->count * tern_dtype_bytes(work->post.dtype);
    char *place = piece->at;
    if (!bytes || (work->post.kind == TERN__BROADCAST && !is_root(staging, work))) return TERN_OK;
    if (keeps_part(staging, work) && !work->is_away) return copy_others(staging, piece, place, true, err);
    if (work->post.kind == TERN__ALL_GATHER) place += (size_t)boot->rank * bytes;
    int parts = work->post.kind == TERN__REDUCE_SCATTER ? boot->world : 1;
    return copy_parts(staging, piece, parts, place, true, err);
}

/* True if each rank writes its result to its own memory; if that is a device's, to its own part of the ring.
 */
static bool is_own_part(const tern_work *work)
{
    if (work->is_direct) return work->post.kind == TERN__REDUCE_SCATTER;
    if (tern__group_mover(work->group)->lands_in_windows) return false;
    bool is_list = work->operand_count != 1;
    if (work->is_placed) return work->post.kind == TERN__REDUCE_SCATTER;
    return !tern__work_fits_ring(work) && !is_list && work->post.kind != TERN__ALL_REDUCE &&
           work->post.kind != TERN__REDUCE;
}

/* Returns the results of a piece in its place of the ring. */
static char *results_of(const tern__staging *staging, const tern__piece *piece)
{
    const tern__post *post = &piece->work->post;
    size_t bytes = piece->count * tern_dtype_bytes(post->dtype);
    size_t part = post->kind == TERN__REDUCE_SCATTER ? (size_t)staging->group->boot.rank : 0;
    return piece->at + part * bytes;
}

static int copy_out(tern__staging *staging, const tern__piece *piece, tern_error *err)
{
    const tern_work *work = piece->work;
    tern__kind kind = work->post.kind;
    char *results = results_of(staging, piece);
    if (!piece->count || (kind == TERN__BROADCAST && is_root(staging, work)) ||
        (kind == TERN__REDUCE && !is_root(staging, work)))
        return TERN_OK;
    if (keeps_part(staging, work) && !work->is_away) return copy_others(staging, piece, results, false, err);
    int parts = kind == TERN__ALL_GATHER ? staging->group->boot.world : 1;
    return copy_parts(staging, piece, parts, results, false, err);
}

/* ---- a piece of a move ---- */

/* Return what this rank gives to `rank`, and takes from it, in the whole work. */
static tern_span give_of(const tern__staging *staging, const tern_work *work, int rank)
{
    const tern__work_operand *operand = &work->operand;
    size_t bytes = operand->count * tern_dtype_bytes(work->post.dtype);
    tern_span whole = {(void *)operand->in, operand->count}, part = {NULL, operand->count};
    if (work->gives) return work->gives[rank];
    if (work->post.kind == TERN__GATHER) return rank == work->post.root ? whole : (tern_span){0};
    if (work->post.kind == TERN__SCATTER && !is_root(staging, work)) return (tern_span){0};
    part.data = (char *)operand->in + (size_t)rank * bytes;
    return part;
}

static tern_span take_of(const tern__staging *staging, const tern_work *work, int rank)
{
    const tern__work_operand *operand = &work->operand;
    size_t bytes = operand->count * tern_dtype_bytes(work->post.dtype);
    tern_span whole = {operand->out, operand->count}, part = {NULL, operand->count};
    if (work->takes) return work->takes[rank];
    if (work->post.kind == TERN__SCATTER) return rank == work->post.root ? whole : (tern_span){0};
    if (work->post.kind == TERN__GATHER && !is_root(staging, work)) return (tern_span){0};
    part.data = operand->out + (size_t)rank * bytes;
    return part;
}

/* Returns the part of a span that is in the piece. */
static tern_span clip_span(tern_span whole, const tern__piece *piece, size_t size)
{
    if (whole.count <= piece->first) return (tern_span){0};
    return (tern_span){(char *)whole.data + piece->first * size,
                       TERN__MIN(piece->count, whole.count - piece->first)};
}

static int plan_take(tern__staging *staging, tern__piece *piece, int rank, uint64_t from, tern_error *err)
{
    const tern_work *work = piece->work;
    tern_span take = clip_span(take_of(staging, work, rank), piece, tern_dtype_bytes(work->post.dtype));
    piece->takes[rank] = (tern__move){take.data, from, take.count};
    if (!take.count || !work->is_away) return TERN_OK;
    piece->takes[rank].to =
        tern__ring_copy_landing(&staging->copies, take.data, place_number(staging, piece), rank, err);
    return piece->takes[rank].to ? TERN_OK : TERN_E_MEMORY;
}

static int plan_moves(tern__staging *staging, tern__piece *piece, tern_error *err)
{
    const tern__bootstrap *boot = &staging->group->boot;
    const tern_work *work = piece->work;
    size_t size = tern_dtype_bytes(work->post.dtype);
    bool has_parts = tern__staging_parts(staging->group, work->post.kind) > 1, is_in_place = false;
    int status = TERN_OK;
    for (int rank = 0; rank < boot->world && !status; rank++) {
        piece->gives[rank] = piece->takes[rank] = (tern__move){0};
        if (rank == boot->rank) continue;
        tern_span give = clip_span(give_of(staging, work, rank), piece, size);
        uint64_t from = has_parts ? (uint64_t)rank * piece->count : 0;
        piece->gives[rank] = (tern__move){give.data, from, give.count};
        status = plan_take(staging, piece, rank, has_parts ? (uint64_t)boot->rank * piece->count : 0, err);
        if (status || !give.count || is_in_place || work->extents) continue;
        status = copy_data(staging, work, piece->at + from * size, give.data, give.count * size, err);
        is_in_place = !has_parts;
    }
    return status;
}

/* Copies what has landed in pinned memory to the caller's. */
static int take_moves(tern__staging *staging, const tern__piece *piece, tern_error *err)
{
    const tern_work *work = piece->work;
    size_t size = tern_dtype_bytes(work->post.dtype);
    int status = TERN_OK;
    for (int rank = 0; work->is_away && rank < staging->group->boot.world && !status; rank++) {
        tern_span take = clip_span(take_of(staging, work, rank), piece, size);
        const void *landed = piece->takes[rank].to;
        if (rank == staging->group->boot.rank || !take.count || landed == take.data) continue;
        status = copy_data(staging, work, take.data, landed, take.count * size, err);
    }
    return status;
}

/* ---- the question of a work that asks ---- */

/* Plans the piece in which the ranks exchange their lists of counts. */
static void plan_counts(const tern__staging *staging, tern__piece *piece)
{
    const tern__bootstrap *boot = &staging->group->boot;
    const tern_work *work = piece->work;
    tern__counts *place = (tern__counts *)piece->at;
    uint64_t each = piece->extent.count / (uint64_t)boot->world, most = 0;
    for (int rank = 0; rank < boot->world; rank++)
        if (rank != boot->rank) most = TERN__MAX(most, work->gives[rank].count);
    for (int rank = 0; rank < boot->world; rank++) {
        uint64_t count = rank == boot->rank ? 0 : each;
        place[rank] =
            (tern__counts){work->gives[rank].count, work->takes[rank].count, most, work->home != NULL};
        piece->gives[rank] = (tern__move){NULL, (uint64_t)rank * each, count};
        piece->takes[rank] = (tern__move){&staging->counts[rank], (uint64_t)boot->rank * each, count};
    }
}

/* Returns the elements of a question. Where the memory is, the ranks say by a post that touches none: a rank
 * whose memory is in the arena is idle in it. */
static uint64_t question_count(const tern__staging *staging, const tern_work *work)
{
    uint64_t each = sizeof(tern__counts) / tern_dtype_bytes(work->post.dtype);
    return work->gives ? (uint64_t)staging->group->boot.world * each : 0;
}

/* ---- a piece ---- */

/* True if the back end takes the data from the callers' memory, where that is a single buffer of the host:
 * the same on all ranks. */
static bool reaches_own(const tern__staging *staging, const tern_work *work)
{
    const tern_group *group = staging->group;
    size_t bytes = work->count * tern_dtype_bytes(work->post.dtype);
    if (work->extents) return false;
    return group->reaches_own ||
           (bytes <= group->backend->carries && tern__kind_is_in_place(work->post.kind));
}

/* Lets the back end work in the caller's memory, if the piece is in a single buffer of the host and the
 * result replaces the input. */
static void find_own(const tern__staging *staging, tern__piece *piece)
{
    const tern_work *work = piece->work;
    const tern__work_operand *operand = work->operands;
    size_t first = piece->first;
    bool is_in_place = tern__kind_is_in_place(work->post.kind);
    if (!is_in_place || !piece->count || work->is_away || !reaches_own(staging, work)) return;
    for (; first >= operand->count; operand++) first -= operand->count;
    if (piece->count > operand->count - first || operand->in != operand->out) return;
    piece->extent.window = TERN__OWN_MEMORY;
    piece->extent.offset = (uintptr_t)(operand->out + first * tern_dtype_bytes(work->post.dtype));
}

/* Plans a piece. In a move with lists of counts every data piece takes the whole place: a rank knows only its
 * own counts and the largest one. */
static void plan_piece(tern__staging *staging, tern__piece *piece, tern_work *work)
{
    size_t index = work->loaded - (work->asks && work->loaded), first = index * work->piece;
    size_t world = (size_t)staging->group->boot.world;
    tern__move *moves = staging->moves + (size_t)place_number(staging, piece) * 2 * world;
    *piece = (tern__piece){.work = work,
                           .first = first,
                           .at = staging->ring + (size_t)place_number(staging, piece) * staging->place_bytes,
                           .takes = moves,
                           .gives = moves + world};
    piece->count = work->gives ? work->piece : TERN__MIN(work->piece, work->count - first);
    piece->extent =
        (tern__extent){.window = staging->window,
                       .offset = (uint64_t)(piece->at - staging->ring),
                       .count = piece->count * tern__staging_parts(staging->group, work->post.kind)};
    if (work->is_undecided)
        piece->extent.count = question_count(staging, work);
    else
        find_own(staging, piece);
}

/* Gives a place pages for `bytes`; at least twice as many as before, so that growing calls do it seldom. */
static int place_fill(tern__staging *staging, int place, size_t bytes, tern_error *err)
{
    const size_t fewest = 64 << 10;
    const tern_group *group = staging->group;
    size_t before = staging->filled[place];
    if (bytes <= before) return TERN_OK;
    size_t wish = TERN__MAX(TERN__MAX(2 * before, fewest), bytes);
    size_t after = TERN__MIN(tern__align_up(wish, tern__page_bytes()), staging->place_bytes);
    int status = group->backend->window_commit(group->state, staging->window,
                                               (size_t)place * staging->place_bytes + before, after - before,
                                               true, err);
    if (!status) staging->filled[place] = after;
    return status;
}

/* Returns the bytes of its place that a piece uses: for its data, or the table of a list whose data is
 * elsewhere. */
static size_t piece_bytes(const tern__piece *piece)
{
    const tern_work *work = piece->work;
    if (work->extents) return (size_t)work->extent_count * sizeof(tern__extent);
    return is_in_own(piece) ? 0 : piece->extent.count * tern_dtype_bytes(work->post.dtype);
}

int tern__piece_load(tern__staging *staging, tern__piece *piece, tern_work *work, tern_error *err)
{
    plan_piece(staging, piece, work);
    int status = place_fill(staging, place_number(staging, piece), piece_bytes(piece), err);
    if (status) return status;
    if (work->is_undecided && work->gives)
        plan_counts(staging, piece);
    else if (!work->is_undecided && tern__kind_is_move(work->post.kind))
        status = plan_moves(staging, piece, err);
    else if (!work->is_undecided && !work->extents && !is_in_own(piece))
        status = copy_in(staging, piece, err);
    if (status || !work->is_away) return status;
    return tern__ring_copy_mark(&staging->copies, place_number(staging, piece), err);
}

tern__post tern__piece_post(const tern__staging *staging, const tern__piece *piece)
{
    const tern_work *work = piece->work;
    tern__post post = work->post;
    bool is_one = work->operand_count == 1; /* a list's results never go to memory of their own */
    char *out = is_one ? work->operands->out + piece->first * tern_dtype_bytes(post.dtype) : NULL;
    post.label.part = (uint32_t)work->started;
    post.extents = work->extents ? work->extents : &piece->extent;
    post.extent_count = work->extents ? work->extent_count : piece->extent.count > 0;
    post.is_placed = work->is_placed || reaches_own(staging, work);
    if (work->is_undecided && !work->gives) {
        post.only_meets = true;
        post.terms.idle = work->extents != NULL;
        post.extent_count = 0;
        return post;
    }
    if (work->is_placed && work->operands != &work->operand) {
        post.has_table = true;
        post.table_window = staging->window;
        post.table_offset = (uint64_t)(piece->at - staging->ring);
    }
    if (tern__kind_is_move(post.kind)) {
        post.takes = piece->takes;
        post.gives = piece->gives;
    } else if (is_own_part(work)) {
        post.out = work->is_away ? results_of(staging, piece) : out;
    }
    post.outs = work->outs;
    if (keeps_part(staging, work)) post.kept = work->is_away ? piece->at : out;
    post.stride = work->is_away ? piece->count : work->count;
    return post;
}

int tern__piece_unload(tern__staging *staging, tern__piece *piece, tern_error *err)
{
    const tern_work *work = piece->work;
    int status = TERN_OK;
    if (tern__kind_is_move(work->post.kind))
        status = take_moves(staging, piece, err);
    else if (!work->extents && !is_in_own(piece) && (work->is_away || !is_own_part(work)))
        status = copy_out(staging, piece, err);
    if (status || !work->is_away) return status;
    return tern__ring_copy_mark(&staging->copies, place_number(staging, piece), err);
}

/* ---- the memory of devices ---- */

typedef int (*visit_fn)(tern__ring_copies *copies, const void *data, tern_error *err);

/* Calls `visit` for every buffer of this rank that the work reads or writes. */
static int each_buffer(tern__staging *staging, const tern_work *work, visit_fn visit, tern_error *err)
{
    int status = TERN_OK;
    for (size_t i = 0; i < work->operand_count && !status; i++) {
        status = visit(&staging->copies, work->operands[i].in, err);
        if (!status && work->operands[i].out != work->operands[i].in)
            status = visit(&staging->copies, work->operands[i].out, err);
    }
    for (int rank = 0; work->gives && rank < staging->group->boot.world && !status; rank++) {
        status = visit(&staging->copies, work->gives[rank].data, err);
        if (!status) status = visit(&staging->copies, work->takes[rank].data, err);
    }
    return status;
}

static int find_span(tern__ring_copies *copies, const void *data, tern_error *err)
{
    (void)copies;
    (void)err;
    return tern__memory_device(data) ? TERN_PENDING : TERN_OK;
}

int tern__work_depart(tern__staging *staging, tern_work *work, tern_error *err)
{
    bool is_read_only = tern__kind_is_move(work->post.kind) || work->post.kind == TERN__REDUCE_SCATTER;
    int status = TERN_OK;
    work->is_away = tern__memory_any() && each_buffer(staging, work, find_span, err);
    if (work->is_away && work->extents && is_read_only)
        return tern__error_set(err, work->func, TERN_E_UNSUPPORTED,
                               "in is memory of tern_group_mem_alloc, but out is on a device");
    /* The ring is pinned as a whole. */
    for (int i = 0; work->is_away && i < TERN__FLIGHTS && !status; i++)
        status = place_fill(staging, i, staging->place_bytes, err);
    return work->is_away && !status ? each_buffer(staging, work, tern__ring_copy_begin, err) : status;
}

int tern__work_return(tern__staging *staging, const tern_work *work, tern_error *err)
{
    return work->is_away ? each_buffer(staging, work, tern__ring_copy_end, err) : TERN_OK;
}
