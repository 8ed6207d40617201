/* staging.c - the queue of a group's collectives: pieces are loaded, posted and landed in order. */
#include "comm/call/piece.h"

#include "comm/call/debug/debug.h"

#include <string.h>

/* A work that a caller holds, or that waits for reuse. */
typedef struct tern__held {
    tern_work work;
    struct tern__held *next;
    tern__staging *home; /* NULL: closed, or none */
    void *room;          /* from tern__work_room */
    size_t bytes;
} held;

/* ---- life ---- */

/* Within a host, a place stays in the second-level cache beside the callers' buffers. Between hosts each
 * piece costs a message's latency, and only large calls fill a place. */
size_t tern__staging_place(const tern_group *group)
{
    return (size_t)(tern__group_mover(group)->lands_in_windows ? 8192 : 128) << 10;
}

/* True if a place holds all the data that a rank takes in a move's piece, however many ranks there are. This
 * is so between hosts. For a device, the pinned landing memory is as large. */
static bool shares_place(const tern_group *group, tern__kind kind)
{
    return tern__kind_is_move(kind) && tern__group_mover(group)->lands_in_windows;
}

static tern__ring_copies ring_copies_of(const tern__staging *staging)
{
    size_t world = (size_t)staging->group->boot.world, bytes = staging->place_bytes;
    bool shares = shares_place(staging->group, TERN__GATHER);
    return (tern__ring_copies){.ring = staging->ring,
                               .place_bytes = bytes,
                               .landing_bytes = shares ? tern__align_up(bytes / world, TERN__LINE) : bytes,
                               .world = staging->group->boot.world};
}

static void staging_release(tern__staging *staging)
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
    staging->place_bytes = tern__staging_place(group);
    staging->moves = tern__alloc(TERN__FLIGHTS * 2 * world * sizeof(*staging->moves), "tern_group_open", err);
    staging->counts = tern__alloc(world * sizeof(*staging->counts), "tern_group_open", err);
    /* A group of several hosts is often opened and makes small calls only, so its large places get their
     * pages when a call needs them. */
    bool is_sparse = tern__group_mover(group)->lands_in_windows;
    tern__window_opts opts = {.bytes = TERN__FLIGHTS * staging->place_bytes, .is_sparse = is_sparse};
    for (int i = 0; i < TERN__FLIGHTS; i++) staging->filled[i] = is_sparse ? 0 : staging->place_bytes;
    if (!staging->moves || !staging->counts ||
        group->backend->window_open(group->state, &opts, &staging->window, err)) {
        staging_release(staging);
        return NULL;
    }
    staging->ring = tern__window_own(group, staging->window);
    staging->copies = ring_copies_of(staging);
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
    tern__ring_copies_close(&staging->copies);
    staging->group->backend->window_close(staging->group->state, staging->window);
    staging_release(staging);
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

tern_work *tern__staging_held(const tern__staging *staging, const tern_work *after)
{
    held *next = after ? ((const held *)after)->next : staging->held;
    return next ? &next->work : NULL;
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

/* Returns the best number of pieces: enough that the copies of one overlap with the messages of others,
 * unless the pieces would get too short. Without copies it is 1. */
static size_t wished_pieces(const tern_group *group, size_t bytes)
{
    const size_t shortest = 1 << 20;
    return group->reaches_own ? 1 : TERN__MIN(bytes / shortest, TERN__FLIGHTS);
}

size_t tern__staging_piece(const tern_group *group, tern__kind kind, tern_dtype dtype, size_t count)
{
    size_t parts = shares_place(group, kind) ? (size_t)group->boot.world : tern__staging_parts(group, kind),
           each = tern_dtype_bytes(dtype) * parts, most = tern__staging_place(group) / each;
    if (!count || !tern__group_mover(group)->lands_in_windows) return most;
    size_t pieces = TERN__MAX((count + most - 1) / most, wished_pieces(group, count * each));
    return TERN__MIN(tern__align_up((count + pieces - 1) / pieces, TERN__LINE), most);
}

uint64_t tern__staging_calls(const tern__staging *staging)
{
    return staging->calls;
}

void tern__staging_push(tern__staging *staging, tern_work *work)
{
    work->post.label.number = ++staging->calls;
    work->status = TERN_PENDING;
    if (staging->last)
        staging->last->next = work;
    else
        staging->first = work;
    staging->last = work;
    if (!staging->next) staging->next = work;
}

uint64_t tern__staging_pass(tern__staging *staging)
{
    staging->loaded = staging->started = ++staging->landed;
    return ++staging->calls;
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
    if (status) tern__work_return(staging, work, NULL);
    tern__debug_call_end(work);
    work->next = NULL;
    work->group = NULL;
    work->status = status;
}

/* ---- the answer to a work's question ---- */

static int fail_counts(const tern_group *group, int giver, uint64_t given, int taker, uint64_t taken,
                       const char *func, tern_error *err)
{
    return tern__error_set(err, func, TERN_E_MISMATCH,
                           "rank %d gives %llu elements to rank %d, which takes %llu",
                           tern_group_world_rank(group, giver), (unsigned long long)given,
                           tern_group_world_rank(group, taker), (unsigned long long)taken);
}

/* Compares the peers' counts with this rank's. If two ranks differ, both fail with the same text, which the
 * other ranks get, too. Only now is it known whether the data goes directly or through the ring. */
static int take_counts(tern__staging *staging, tern_work *work, tern_error *err)
{
    const tern_group *group = staging->group;
    int me = group->boot.rank;
    uint64_t most = 0;
    bool is_direct = work->home;
    for (int rank = 0; rank < group->boot.world; rank++) {
        uint64_t given = work->gives[rank].count, taken = work->takes[rank].count;
        const tern__counts *theirs = &staging->counts[rank];
        if (rank == me) continue;
        if (given != theirs->takes)
            return fail_counts(group, me, given, rank, theirs->takes, work->func, err);
        if (theirs->gives != taken)
            return fail_counts(group, rank, theirs->gives, me, taken, work->func, err);
        most = TERN__MAX(most, TERN__MAX(theirs->most, given));
        is_direct &= theirs->has_home != 0;
    }
    int status =
        is_direct && most ? tern__direct_move(work, group, most, err) : tern__work_depart(staging, work, err);
    if (status) return status;
    work->pieces += (most + work->piece - 1) / work->piece;
    return TERN_OK;
}

/* If all ranks have their memory in the arena, the rest is one piece; else the ring's pieces. */
static void take_places(const tern__staging *staging, tern_work *work, uint64_t seq)
{
    const tern_group *group = staging->group;
    if (group->backend->tally(group->channel, seq)->idle) {
        work->piece = work->count;
    } else {
        work->is_placed = false;
        work->extents = NULL;
        work->extent_count = 0;
    }
    work->pieces += (work->count + work->piece - 1) / work->piece;
}

static int take_answer(tern__staging *staging, tern_work *work, uint64_t seq, tern_error *err)
{
    int status = TERN_OK;
    if (work->gives)
        status = take_counts(staging, work, err);
    else
        take_places(staging, work, seq);
    work->is_undecided = status != TERN_OK;
    return status;
}

/* ---- a piece is loaded, started, landed ---- */

static tern__piece *piece_at(tern__staging *staging, uint64_t number)
{
    return &staging->pieces[number % TERN__FLIGHTS];
}

static int load_piece(tern__staging *staging, tern_error *err)
{
    tern_work *work = staging->next;
    int status = tern__piece_load(staging, piece_at(staging, staging->loaded), work, err);
    if (status) return status;
    staging->loaded++;
    work->loaded++;
    if (work->loaded == work->pieces && !work->is_undecided) staging->next = work->next;
    return TERN_OK;
}

static int start_piece(tern__staging *staging, tern_error *err)
{
    tern__piece *piece = piece_at(staging, staging->started);
    tern__post post = tern__piece_post(staging, piece);
    int status = staging->group->backend->post(staging->group->channel, &post, &piece->seq, err);
    if (status) return status;
    piece->work->started++;
    staging->started++;
    return TERN_OK;
}

static int land_piece(tern__staging *staging, tern_error *err)
{
    tern__piece *piece = piece_at(staging, staging->landed);
    tern_work *work = piece->work;
    bool is_question = work->is_undecided;
    int status = is_question ? take_answer(staging, work, piece->seq, err) : TERN_OK;
    if (!status && work->call) status = tern__debug_call_land(work, err);
    staging->landed++;
    if (!status && !is_question) status = tern__piece_unload(staging, piece, err);
    if (status || ++work->landed < work->pieces) return status;
    status = tern__work_return(staging, work, err);
    if (!status) tern__staging_drop(staging, work, TERN_OK);
    return status;
}

/* ---- progress ---- */

static int land_all(tern__staging *staging, tern_error *err)
{
    const tern_group *group = staging->group;
    while (staging->landed < staging->started) {
        int status = group->backend->test(group->channel, piece_at(staging, staging->landed)->seq, err);
        if (!status) status = land_piece(staging, err);
        if (status) return status == TERN_PENDING ? TERN_OK : status;
    }
    return TERN_OK;
}

static int start_pieces(tern__staging *staging, tern_error *err)
{
    while (staging->started < staging->loaded) {
        int status = tern__ring_copy_test(&staging->copies, (int)(staging->started % TERN__FLIGHTS), err);
        if (!status) status = start_piece(staging, err);
        if (status) return status == TERN_PENDING ? TERN_OK : status;
    }
    return TERN_OK;
}

/* Returns TERN_OK if there is a piece to load and its place is free. */
static int can_load(tern__staging *staging, tern_error *err)
{
    const tern_work *work = staging->next;
    bool is_full = staging->loaded - staging->landed == TERN__FLIGHTS;
    if (!work || is_full || (work->is_undecided && work->loaded)) return TERN_PENDING;
    return tern__ring_copy_test(&staging->copies, (int)(staging->loaded % TERN__FLIGHTS), err);
}

/* Posts each piece before it loads the next one, so that peers need not wait for the loading. */
static int load_all(tern__staging *staging, tern_error *err)
{
    int status = TERN_OK;
    while (!status) {
        status = start_pieces(staging, err);
        if (!status) status = can_load(staging, err);
        if (!status) status = load_piece(staging, err);
    }
    return status == TERN_PENDING ? TERN_OK : status;
}

/* A failure is the group's at once: the caller may wait for another work, which is done, and forget it. */
int tern__staging_pump(tern__staging *staging, tern_error *err)
{
    tern_error why;
    if (!staging->first || staging->group->root->error.code) return TERN_OK;
    tern__error_clear(&why);
    int status = land_all(staging, &why);
    if (!status) status = load_all(staging, &why);
    if (!status) return TERN_OK;
    if (err && !err->code) *err = why;
    return tern__group_fail(staging->group, &why);
}

/* Waits for the device whose copies are next, or else for the peers. */
static int wait_for_piece(tern__staging *staging, tern_error *err)
{
    const tern_group *group = staging->group;
    if (staging->started < staging->loaded || staging->landed == staging->loaded)
        return tern__ring_copy_wait(&staging->copies, (int)(staging->started % TERN__FLIGHTS), err);
    return group->backend->wait(group->channel, piece_at(staging, staging->landed)->seq, err);
}

int tern__staging_wait(tern__staging *staging, tern_work *work, tern_error *err)
{
    int status = tern__staging_pump(staging, err);
    while (!status && work->status == TERN_PENDING) {
        status = tern__group_told(staging->group, work->func, err);
        if (!status) status = wait_for_piece(staging, err);
        if (!status) status = tern__staging_pump(staging, err);
    }
    return status;
}

/* After a failure nothing is pumped any more, so nothing looks at pieces of works that are gone. */
int tern__staging_finish(tern__staging *staging, tern_work *work, tern_error *err)
{
    int status = tern__staging_wait(staging, work, err);
    if (work->status == TERN_PENDING) tern__staging_drop(staging, work, status);
    return work->status;
}
