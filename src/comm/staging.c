#include "comm/staging.h"

#include "comm/debug/debug.h"

#include <string.h>

enum { place_bytes = 128 << 10 };

/* A piece that is posted: elements [first, first + count) of its work. Flight i uses place i of the ring. */
typedef struct flight {
    tern_work *work;
    uint64_t seq;
    size_t first, count;
    tern__extent extent;
    tern__move *takes, *gives; /* [world] of the staging's */
} flight;

/* What a rank says to another of a move with lists of counts. */
typedef struct counts {
    uint64_t gives, takes; /* to and from the other                      */
    uint64_t most;         /* that it gives to anyone but itself */
} counts;

/* A work that a caller holds, or has given back. */
typedef struct held {
    tern_work work;
    struct held *next;
    tern__staging *home; /* NULL: closed, or none */
    void *room;          /* tern__work_room's     */
    size_t bytes;
} held;

struct tern__staging {
    tern_group *group;
    uint32_t window;
    char *ring;
    flight flights[TERN__FLIGHTS];
    uint64_t started, landed; /* flights so far; those between are in the air */
    uint64_t calls;
    tern_work *first, *last; /* the queue                                     */
    tern_work *next;         /* of which pieces are posted next, or NULL      */
    held *held, *spare;      /* by callers; given back                        */
    tern__move *moves;       /* [FLIGHTS][2][world]                           */
    counts *counts;          /* [world] of the work whose counts are exchanged */
};

/* ---- life ---- */

static void release(tern__staging *staging)
{
    tern__free(staging->moves);
    tern__free(staging->counts);
    tern__free(staging);
}

tern__staging *tern__staging_open(tern_group *group, tern_error *err)
{
    tern__staging *staging = tern__alloc(sizeof(*staging), "tern_group_open", err);
    if (!staging) return NULL;
    size_t world = (size_t)group->boot.world;
    staging->group = group;
    staging->moves = tern__alloc(TERN__FLIGHTS * 2 * world * sizeof(*staging->moves), "tern_group_open", err);
    staging->counts = tern__alloc(world * sizeof(*staging->counts), "tern_group_open", err);
    if (!staging->moves || !staging->counts ||
        group->backend->window_open(group->state, NULL, (size_t)TERN__FLIGHTS * place_bytes, &staging->window,
                                    err)) {
        release(staging);
        return NULL;
    }
    staging->ring = group->backend->window_base(group->state, staging->window);
    return staging;
}

static held *held_pop(held **list)
{
    held *first = *list;
    if (first) *list = first->next;
    return first;
}

static void held_free(held *h)
{
    if (h) tern__free(h->room);
    tern__free(h);
}

void tern__staging_close(tern__staging *staging)
{
    if (!staging) return;
    for (held *h; (h = held_pop(&staging->held));) h->home = NULL;
    for (held *h; (h = held_pop(&staging->spare));) held_free(h);
    for (tern_work *work = staging->first; work; work = work->next) {
        work->group = NULL;
        work->status = TERN_E_STATE;
    }
    staging->group->backend->window_close(staging->group->state, staging->window);
    release(staging);
}

/* ---- works ---- */

tern_work *tern__work_new(tern__staging *staging, const char *func, tern_error *err)
{
    held *h = staging ? held_pop(&staging->spare) : NULL;
    if (!h && !(h = tern__alloc(sizeof(*h), func, err))) return NULL;
    h->home = staging;
    h->next = staging ? staging->held : NULL;
    if (staging) staging->held = h;
    return &h->work;
}

void tern__work_free(tern_work *work)
{
    held *h = (held *)work;
    if (!h || !h->home) {
        held_free(h);
        return;
    }
    held **link = &h->home->held;
    while (*link != h) link = &(*link)->next;
    *link = h->next;
    h->next = h->home->spare;
    h->home->spare = h;
}

void *tern__work_room(tern_work *work, size_t bytes, const char *func, tern_error *err)
{
    held *h = (held *)work;
    if (h->bytes >= bytes) return h->room;
    tern__free(h->room);
    h->bytes = 0;
    h->room = tern__alloc(bytes, func, err);
    if (h->room) h->bytes = bytes;
    return h->room;
}

/* ---- the queue ---- */

size_t tern__staging_parts(const tern_group *group, tern__kind kind)
{
    switch (kind) {
    case TERN__ALL_GATHER:
    case TERN__REDUCE_SCATTER:
    case TERN__SCATTER:
    case TERN__ALL_TO_ALL:
    case TERN__ALL_TO_ALL_V: return (size_t)group->boot.world;
    default: return 1;
    }
}

size_t tern__staging_piece(const tern_group *group, tern__kind kind, tern_dtype dtype)
{
    return place_bytes / tern_dtype_bytes(dtype) / tern__staging_parts(group, kind);
}

uint64_t tern__staging_calls(const tern__staging *staging)
{
    return staging->calls;
}

void tern__staging_push(tern__staging *staging, tern_work *work)
{
    work->post.backward = ++staging->calls;
    work->status = TERN_PENDING;
    if (staging->last)
        staging->last->next = work;
    else
        staging->first = work;
    staging->last = work;
    if (!staging->next) staging->next = work;
}

void tern__staging_drop(tern__staging *staging, tern_work *work, int status)
{
    tern_work **link = &staging->first, *before = NULL;
    while (*link != work) {
        before = *link;
        link = &before->next;
    }
    *link = work->next;
    if (staging->last == work) staging->last = before;
    if (staging->next == work) staging->next = work->next;
    tern__debug_call_end(work);
    work->next = NULL;
    work->group = NULL;
    work->status = status;
}

/* ---- a piece: the caller's memory and the ring ---- */

static char *place_of(const tern__staging *staging, const flight *f)
{
    return staging->ring + (f - staging->flights) * (ptrdiff_t)place_bytes;
}

/* Elements [first, first + count) of one part, the items' one behind the other, to the place or from it. */
static void copy_part(const tern_work *work, size_t part, size_t first, size_t count, char *place, bool is_in)
{
    size_t size = tern_dtype_bytes(work->post.dtype);
    for (const tern__item *item = work->items; count; item++) {
        if (first >= item->count) {
            first -= item->count;
            continue;
        }
        size_t here = TERN__MIN(count, item->count - first), at = (part * item->count + first) * size;
        memcpy(is_in ? place : item->out + at, is_in ? item->in + at : place, here * size);
        place += here * size;
        count -= here;
        first = 0;
    }
}

/* All but this rank's part, where it keeps that; `place` has the part's room all the same. */
static void copy_others(const tern__staging *staging, const flight *f, char *place, bool is_in)
{
    const tern__bootstrap *boot = &staging->group->boot;
    tern_dtype dtype = f->work->post.dtype;
    size_t low = tern__kept_start(f->count, dtype, boot->world, boot->rank),
           high = tern__kept_start(f->count, dtype, boot->world, boot->rank + 1);
    copy_part(f->work, 0, f->first, low, place, is_in);
    copy_part(f->work, 0, f->first + high, f->count - high, place + high * tern_dtype_bytes(dtype), is_in);
}

/* A rank has its part of a large all_reduce where it is, which nobody else reads. */
static bool keeps_part(const tern__staging *staging, const tern_work *work)
{
    bool is_large = work->pieces > TERN__FLIGHTS && work->item_count == 1 && !work->extents;
    return is_large && work->post.kind == TERN__ALL_REDUCE && staging->group->backend->keeps_parts;
}

static bool is_root(const tern__staging *staging, const tern_work *work)
{
    return staging->group->boot.rank == work->post.root;
}

static void copy_in(const tern__staging *staging, const flight *f)
{
    const tern_work *work = f->work;
    size_t bytes = f->count * tern_dtype_bytes(work->post.dtype);
    char *place = place_of(staging, f);
    if (!bytes || (work->post.kind == TERN__BROADCAST && !is_root(staging, work))) return;
    if (keeps_part(staging, work)) {
        copy_others(staging, f, place, true);
        return;
    }
    if (work->post.kind == TERN__ALL_GATHER) place += (size_t)staging->group->boot.rank * bytes;
    int parts = work->post.kind == TERN__REDUCE_SCATTER ? staging->group->boot.world : 1;
    for (int i = 0; i < parts; i++)
        copy_part(work, (size_t)i, f->first, f->count, place + (size_t)i * bytes, true);
}

/* Each rank puts its result into its own memory itself. */
static bool is_own(const tern_work *work)
{
    if (tern__group_mover(work->group)->lands_in_windows) return false;
    bool is_whole = work->pieces <= TERN__FLIGHTS, is_list = work->item_count != 1;
    if (work->extents) return work->post.kind == TERN__REDUCE_SCATTER;
    return !is_whole && !is_list && work->post.kind != TERN__ALL_REDUCE && work->post.kind != TERN__REDUCE;
}

static void copy_out(const tern__staging *staging, const flight *f)
{
    const tern_work *work = f->work;
    const tern__bootstrap *boot = &staging->group->boot;
    tern__kind kind = work->post.kind;
    size_t bytes = f->count * tern_dtype_bytes(work->post.dtype);
    char *place = place_of(staging, f);
    if (!bytes || (kind == TERN__BROADCAST && is_root(staging, work)) ||
        (kind == TERN__REDUCE && !is_root(staging, work)))
        return;
    if (keeps_part(staging, work)) {
        copy_others(staging, f, place, false);
        return;
    }
    if (kind == TERN__REDUCE_SCATTER) place += (size_t)boot->rank * bytes;
    int parts = kind == TERN__ALL_GATHER ? boot->world : 1;
    for (int i = 0; i < parts; i++)
        copy_part(work, (size_t)i, f->first, f->count, place + (size_t)i * bytes, false);
}

/* ---- a piece of a move ---- */

/* What this rank gives to `rank` in the whole of it; what it takes from it. */
static tern_span give_of(const tern__staging *staging, const tern_work *work, int rank)
{
    const tern__item *item = &work->item;
    size_t bytes = item->count * tern_dtype_bytes(work->post.dtype);
    tern_span whole = {(void *)item->in, item->count}, part = {NULL, item->count};
    if (work->gives) return work->gives[rank];
    if (work->post.kind == TERN__GATHER) return rank == work->post.root ? whole : (tern_span){0};
    if (work->post.kind == TERN__SCATTER && !is_root(staging, work)) return (tern_span){0};
    part.data = (char *)item->in + (size_t)rank * bytes;
    return part;
}

static tern_span take_of(const tern__staging *staging, const tern_work *work, int rank)
{
    const tern__item *item = &work->item;
    size_t bytes = item->count * tern_dtype_bytes(work->post.dtype);
    tern_span whole = {item->out, item->count}, part = {NULL, item->count};
    if (work->takes) return work->takes[rank];
    if (work->post.kind == TERN__SCATTER) return rank == work->post.root ? whole : (tern_span){0};
    if (work->post.kind == TERN__GATHER && !is_root(staging, work)) return (tern_span){0};
    part.data = item->out + (size_t)rank * bytes;
    return part;
}

/* What of it is among the elements of the piece. */
static tern_span clip(tern_span whole, const flight *f, size_t size)
{
    if (whole.count <= f->first) return (tern_span){0};
    return (tern_span){(char *)whole.data + f->first * size, TERN__MIN(f->count, whole.count - f->first)};
}

static void plan_moves(const tern__staging *staging, flight *f)
{
    const tern__bootstrap *boot = &staging->group->boot;
    const tern_work *work = f->work;
    size_t size = tern_dtype_bytes(work->post.dtype);
    bool has_parts = tern__staging_parts(staging->group, work->post.kind) > 1, is_in_place = false;
    for (int rank = 0; rank < boot->world; rank++) {
        f->gives[rank] = f->takes[rank] = (tern__move){0};
        if (rank == boot->rank) continue;
        tern_span give = clip(give_of(staging, work, rank), f, size),
                  take = clip(take_of(staging, work, rank), f, size);
        f->gives[rank] = (tern__move){.from = has_parts ? (size_t)rank * f->count : 0, .count = give.count};
        f->takes[rank] = (tern__move){take.data, has_parts ? (size_t)boot->rank * f->count : 0, take.count};
        if (!give.count || is_in_place || work->extents) continue;
        memcpy(place_of(staging, f) + f->gives[rank].from * size, give.data, give.count * size);
        is_in_place = !has_parts;
    }
}

/* ---- the first piece of a move with lists of counts ---- */

static void plan_counts(const tern__staging *staging, flight *f)
{
    const tern__bootstrap *boot = &staging->group->boot;
    const tern_work *work = f->work;
    counts *place = (counts *)place_of(staging, f);
    uint64_t each = sizeof(counts) / tern_dtype_bytes(work->post.dtype), most = 0;
    for (int rank = 0; rank < boot->world; rank++)
        if (rank != boot->rank) most = TERN__MAX(most, work->gives[rank].count);
    for (int rank = 0; rank < boot->world; rank++) {
        uint64_t count = rank == boot->rank ? 0 : each;
        place[rank] = (counts){work->gives[rank].count, work->takes[rank].count, most};
        f->gives[rank] = (tern__move){NULL, (uint64_t)rank * each, count};
        f->takes[rank] = (tern__move){&staging->counts[rank], (uint64_t)boot->rank * each, count};
    }
    f->extent.count = (uint64_t)boot->world * each;
}

static int fail_counts(const tern_group *group, int giver, uint64_t given, int taker, uint64_t taken,
                       const char *func, tern_error *err)
{
    return tern__error_set(err, func, TERN_E_MISMATCH,
                           "rank %d gives %llu elements to rank %d, which takes %llu",
                           tern_group_world_rank(group, giver), (unsigned long long)given,
                           tern_group_world_rank(group, taker), (unsigned long long)taken);
}

/* The two ranks that differ fail in the same words, of which the others hear. */
static int take_counts(const tern__staging *staging, tern_work *work, tern_error *err)
{
    const tern_group *group = staging->group;
    int me = group->boot.rank;
    uint64_t most = 0;
    for (int rank = 0; rank < group->boot.world; rank++) {
        uint64_t given = work->gives[rank].count, taken = work->takes[rank].count;
        const counts *theirs = &staging->counts[rank];
        if (rank == me) continue;
        if (given != theirs->takes)
            return fail_counts(group, me, given, rank, theirs->takes, work->func, err);
        if (theirs->gives != taken)
            return fail_counts(group, rank, theirs->gives, me, taken, work->func, err);
        most = TERN__MAX(most, TERN__MAX(theirs->most, given));
    }
    work->is_uncounted = false;
    work->pieces += (most + work->piece - 1) / work->piece;
    return TERN_OK;
}

/* ---- starting and landing one ---- */

/* Of a move with lists of counts every data piece has the whole place: ranks know no more of each other's
 * counts than their own and the largest. */
static void plan(const tern__staging *staging, flight *f, tern_work *work)
{
    size_t index = work->started - (work->gives && work->started), first = index * work->piece;
    tern__move *moves = staging->moves + (f - staging->flights) * 2 * staging->group->boot.world;
    *f = (flight){.work = work, .first = first, .takes = moves};
    f->gives = moves + staging->group->boot.world;
    f->count = work->gives ? work->piece : TERN__MIN(work->piece, work->count - first);
    f->extent = (tern__extent){.window = staging->window,
                               .offset = (uint64_t)(place_of(staging, f) - staging->ring),
                               .count = f->count * tern__staging_parts(staging->group, work->post.kind)};
    if (work->is_uncounted)
        plan_counts(staging, f);
    else if (tern__kind_is_move(work->post.kind))
        plan_moves(staging, f);
    else if (!work->extents)
        copy_in(staging, f);
}

static int start_piece(tern__staging *staging, tern_work *work, tern_error *err)
{
    flight *f = &staging->flights[staging->started % TERN__FLIGHTS];
    bool is_move = tern__kind_is_move(work->post.kind);
    plan(staging, f, work);
    tern__post post = work->post;
    post.bucket = (uint32_t)work->started;
    post.extents = work->extents ? work->extents : &f->extent;
    post.extent_count = work->extents ? work->extent_count : f->extent.count > 0;
    if (is_move) {
        post.takes = f->takes;
        post.gives = f->gives;
    } else if (is_own(work)) {
        post.out = work->item.out + f->first * tern_dtype_bytes(post.dtype);
    }
    if (keeps_part(staging, work)) post.kept = work->item.out + f->first * tern_dtype_bytes(post.dtype);
    post.stride = work->count;
    int status = staging->group->backend->post(staging->group->channel, &post, &f->seq, err);
    if (status) return status;
    work->started++;
    staging->started++;
    return TERN_OK;
}

static int land(tern__staging *staging, const flight *f, tern_error *err)
{
    tern_work *work = f->work;
    int status = work->call ? tern__debug_call_land(work, err) : TERN_OK;
    staging->landed++;
    if (status) return status;
    if (work->is_uncounted)
        status = take_counts(staging, work, err);
    else if (!work->extents && !tern__kind_is_move(work->post.kind) && !is_own(work))
        copy_out(staging, f);
    if (!status && ++work->landed == work->pieces) tern__staging_drop(staging, work, TERN_OK);
    return status;
}

/* ---- moving on ---- */

static flight *oldest(tern__staging *staging)
{
    return &staging->flights[staging->landed % TERN__FLIGHTS];
}

static int land_all(tern__staging *staging, tern_error *err)
{
    const tern_group *group = staging->group;
    while (staging->landed < staging->started) {
        int status = group->backend->test(group->channel, oldest(staging)->seq, err);
        if (status) return status == TERN_PENDING ? TERN_OK : status;
        status = land(staging, oldest(staging), err);
        if (status) return status;
    }
    return TERN_OK;
}

static int start_all(tern__staging *staging, tern_error *err)
{
    while (staging->next && staging->started - staging->landed < TERN__FLIGHTS) {
        tern_work *work = staging->next;
        if (work->is_uncounted && work->started) break;
        int status = start_piece(staging, work, err);
        if (status) return status;
        if (work->started == work->pieces && !work->is_uncounted) staging->next = work->next;
    }
    return TERN_OK;
}

int tern__staging_pump(tern__staging *staging, tern_error *err)
{
    if (!staging->first || staging->group->root->error.code) return TERN_OK;
    int status = land_all(staging, err);
    return status ? status : start_all(staging, err);
}

/* After a failure nothing is pumped any more, so flights of a work that is gone are not looked at again. */
int tern__staging_finish(tern__staging *staging, tern_work *work, tern_error *err)
{
    const tern_group *group = staging->group;
    int status = tern__staging_pump(staging, err);
    while (!status && work->status == TERN_PENDING) {
        status = group->backend->wait(group->channel, oldest(staging)->seq, err);
        if (!status) status = tern__staging_pump(staging, err);
    }
    if (work->status == TERN_PENDING) tern__staging_drop(staging, work, status);
    return work->status;
}
