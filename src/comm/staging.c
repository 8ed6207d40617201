#include "comm/staging.h"

#include <string.h>

enum { place_bytes = 128 << 10 };

/* A piece that is posted: elements [first, first + count) of its work. Flight i uses place i of the ring. */
typedef struct flight {
    tern_work *work;
    uint64_t seq;
    size_t first, count;
    tern__extent extent;
} flight;

/* A work that a caller holds, or has given back. */
typedef struct held {
    tern_work work;
    struct held *next;
    tern__staging *home; /* NULL: closed, or none */
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
};

/* ---- life ---- */

tern__staging *tern__staging_open(tern_group *group, tern_error *err)
{
    tern__staging *staging = tern__alloc(sizeof(*staging), "tern_group_open", err);
    if (!staging) return NULL;
    staging->group = group;
    if (group->backend->window_open(group->state, NULL, (size_t)TERN__FLIGHTS * place_bytes, &staging->window,
                                    err)) {
        tern__free(staging);
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

void tern__staging_close(tern__staging *staging)
{
    if (!staging) return;
    for (held *h; (h = held_pop(&staging->held));) h->home = NULL;
    for (held *h; (h = held_pop(&staging->spare));) tern__free(h);
    for (tern_work *work = staging->first; work; work = work->next) {
        work->group = NULL;
        work->status = TERN_E_STATE;
    }
    staging->group->backend->window_close(staging->group->state, staging->window);
    tern__free(staging);
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
        tern__free(h);
        return;
    }
    held **link = &h->home->held;
    while (*link != h) link = &(*link)->next;
    *link = h->next;
    h->next = h->home->spare;
    h->home->spare = h;
}

/* ---- the queue ---- */

size_t tern__staging_parts(const tern_group *group, tern__kind kind)
{
    bool has_parts = kind == TERN__ALL_GATHER || kind == TERN__REDUCE_SCATTER;
    return has_parts ? (size_t)group->boot.world : 1;
}

size_t tern__staging_piece(const tern_group *group, tern__kind kind, tern_dtype dtype)
{
    return place_bytes / tern_dtype_bytes(dtype) / tern__staging_parts(group, kind);
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
    work->next = NULL;
    work->group = NULL;
    work->status = status;
}

/* ---- a piece ---- */

static char *place_of(const tern__staging *staging, const flight *f)
{
    return staging->ring + (f - staging->flights) * (ptrdiff_t)place_bytes;
}

static void copy_in(const tern__staging *staging, const flight *f)
{
    const tern_work *work = f->work;
    int rank = staging->group->boot.rank;
    size_t size = tern_dtype_bytes(work->post.dtype), bytes = f->count * size;
    char *place = place_of(staging, f);
    const char *from = work->in + f->first * size;
    if (!bytes || (work->post.kind == TERN__BROADCAST && rank != work->post.root)) return;
    if (work->post.kind == TERN__ALL_GATHER) place += (size_t)rank * bytes;
    int parts = work->post.kind == TERN__REDUCE_SCATTER ? staging->group->boot.world : 1;
    for (int i = 0; i < parts; i++)
        memcpy(place + (size_t)i * bytes, from + (size_t)i * work->count * size, bytes);
}

/* Each rank puts its result into its own memory itself. */
static bool is_own(const tern_work *work)
{
    bool is_whole = work->pieces <= TERN__FLIGHTS;
    if (work->is_direct) return work->post.kind == TERN__REDUCE_SCATTER;
    return !is_whole && work->post.kind != TERN__ALL_REDUCE;
}

static void copy_out(const tern__staging *staging, const flight *f)
{
    const tern_work *work = f->work;
    const tern__bootstrap *boot = &staging->group->boot;
    size_t size = tern_dtype_bytes(work->post.dtype), bytes = f->count * size;
    const char *place = place_of(staging, f);
    char *to = work->out + f->first * size;
    if (!bytes || (work->post.kind == TERN__BROADCAST && boot->rank == work->post.root)) return;
    if (work->post.kind == TERN__REDUCE_SCATTER) place += (size_t)boot->rank * bytes;
    int parts = work->post.kind == TERN__ALL_GATHER ? boot->world : 1;
    for (int i = 0; i < parts; i++)
        memcpy(to + (size_t)i * work->count * size, place + (size_t)i * bytes, bytes);
}

static int start_piece(tern__staging *staging, tern_work *work, tern_error *err)
{
    flight *f = &staging->flights[staging->started % TERN__FLIGHTS];
    size_t first = work->started * work->piece;
    *f = (flight){.work = work, .first = first, .count = TERN__MIN(work->piece, work->count - first)};
    f->extent = (tern__extent){.window = staging->window,
                               .offset = (uint64_t)(place_of(staging, f) - staging->ring),
                               .count = f->count * tern__staging_parts(staging->group, work->post.kind)};
    if (work->is_direct)
        f->extent = work->extent;
    else
        copy_in(staging, f);
    tern__post post = work->post;
    post.bucket = (uint32_t)work->started;
    post.extents = &f->extent;
    post.extent_count = f->extent.count > 0;
    post.out = is_own(work) ? work->out + first * tern_dtype_bytes(post.dtype) : NULL;
    post.stride = work->count;
    int status = staging->group->backend->post(staging->group->channel, &post, &f->seq, err);
    if (status) return status;
    work->started++;
    staging->started++;
    return TERN_OK;
}

static void land(tern__staging *staging, const flight *f)
{
    tern_work *work = f->work;
    staging->landed++;
    if (!work->is_direct && !is_own(work)) copy_out(staging, f);
    if (++work->landed == work->pieces) tern__staging_drop(staging, work, TERN_OK);
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
        land(staging, oldest(staging));
    }
    return TERN_OK;
}

static int start_all(tern__staging *staging, tern_error *err)
{
    while (staging->next && staging->started - staging->landed < TERN__FLIGHTS) {
        tern_work *work = staging->next;
        int status = start_piece(staging, work, err);
        if (status) return status;
        if (work->started == work->pieces) staging->next = work->next;
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
