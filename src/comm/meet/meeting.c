/* meeting.c - the order of works: who has come, and when a work is done.
 *
 * A rank posts a work by writing its descriptor into the work's slot, and last the work's number to the
 * descriptor and to its `posted` word. Once all ranks have posted it, all compare the descriptors, and the
 * mover does its part: any rank that calls in. When the mover says that the work is done, a rank advances its
 * `retired` word, and the buffers are its own again.
 *
 * A slot is reused only when all ranks have retired the work that had it, so no rank still reads it. The
 * only things that other ranks need from a late rank are its posts, and what only it can do of a work.
 *
 * Why no order of events can block this: take the first work m that is not retired. A rank that has not
 * posted m, or has not done its own part of m, is running, or is blocked elsewhere in tern, where it still
 * progresses, or waits for a free slot. The slot is that of work m - slots, which every blocked rank
 * retires itself. */
#include "comm/meet/meeting.h"

#include "base/text.h"
#include "comm/meet/failure.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- progress ---- */

static int meeting_run(tern__meeting *m, uint64_t seq, tern_error *err)
{
    int64_t began = tern__trace_now(m->of->group->trace);
    int status = tern__tally_take(m, seq, err);
    if (status || !m->mover) return status;
    if (m->mover->run(m->mover_of, seq)) tern__work_trace(m, seq, TERN__TRACK_REDUCE, began);
    return TERN_OK;
}

static void meeting_meet(tern__meeting *m)
{
    m->met++;
    m->met_next = 0;
}

static bool meeting_is_done(const tern__meeting *m, uint64_t seq)
{
    return !m->mover || m->mover->is_done(m->mover_of, seq);
}

static void meeting_retire(tern__meeting *m)
{
    uint64_t before = m->own_retired;
    while (m->own_retired < m->met && meeting_is_done(m, m->own_retired + 1)) m->own_retired++;
    if (m->own_retired == before) return;
    tern__shm_act(m->of->shm);
    atomic_store(&m->retired[m->of->rank].value, m->own_retired);
    if (tern__shm_has_sleepers(m->of->shm) && tern__meeting_all_retired(m) == m->own_retired)
        tern__shm_wake(m->of->shm);
}

/* After a failure: counts works that all ranks had finished before it as done, however late this rank
 * looks. If all have posted a work that is carried, the others may have finished it, so this rank finishes it
 * too, unless its caller knows of the failure and may have freed the memory. Touches no other data. */
static void meeting_settle(tern__meeting *m)
{
    for (uint64_t all = tern__meeting_all_posted(m); m->met < all; meeting_meet(m)) {
        uint64_t next = m->met + 1;
        bool is_carried = m->mover && m->mover->is_carried(m->mover_of, next);
        if (is_carried && m->of->group->root->error.code) return;
        if (!meeting_is_done(m, next) || tern__tally_take(m, next, NULL)) return;
        if (is_carried) m->mover->run(m->mover_of, next);
    }
}

/* True if all ranks have posted the work after the last one met. Each descriptor is looked at until it is
 * posted, and not again. */
static bool meeting_has_next(tern__meeting *m)
{
    const tern__desc *desc = tern__meeting_desc(m, m->met + 1);
    while (m->met_next < m->of->world && atomic_load(&desc[m->met_next].posted) == (uint32_t)(m->met + 1))
        m->met_next++;
    return m->met_next == m->of->world;
}

/* `inside` tells a peer that closes after a failure that its memory is still in use. It is stored before
 * the check for that failure, so either this rank sees the failure or the peer sees `inside`. */
int tern__meeting_progress(tern__meeting *m, tern_error *err)
{
    int status = TERN_OK;
    if (meeting_has_next(m)) {
        tern__word *inside = &m->inside[m->of->rank];
        atomic_store(&inside->value, m->met + 1);
        status = tern__failure_check(m->of->group, err);
        while (!status && meeting_has_next(m)) {
            status = meeting_run(m, m->met + 1, err);
            if (!status) meeting_meet(m);
            tern__shm_act(m->of->shm);
        }
        atomic_store_explicit(&inside->value, 0, memory_order_release);
    } else {
        status = tern__failure_check(m->of->group, err);
    }
    if (status) meeting_settle(m);
    if (m->own_retired < m->met) meeting_retire(m);
    return status;
}

static int hook_progress(tern__progress_hook *hook, tern_error *err)
{
    return tern__meeting_progress((tern__meeting *)hook, err);
}

/* ---- which ranks are missed ---- */

/* True if `rank` holds up the first work that is not done, or with `seq` != 0, if it has not freed the slot
 * that work `seq` needs. */
static bool meeting_holds_up(tern__meeting *m, int rank, uint64_t seq)
{
    uint64_t first = m->own_retired + 1;
    if (rank == m->of->rank) return false;
    if (seq) return atomic_load(&m->retired[rank].value) + m->slots < seq;
    return atomic_load(&m->posted[rank].value) < first ||
           (m->mover && tern__meeting_all_posted(m) >= first && m->mover->owes(m->mover_of, first, rank));
}

static int meeting_miss_in(tern__meeting *m, uint64_t seq)
{
    const tern__shm *shm = m->of->shm;
    int count = 0;
    for (int rank = 0; rank < m->of->world && shm; rank++) {
        uint64_t acts = tern__deadlock_acts(shm, m->of->group, rank);
        if (!meeting_holds_up(m, rank, seq)) continue;
        tern__deadlock_miss(shm, m->of->group, rank, acts);
        count++;
    }
    return count;
}

/* Returns false if there is anything that this rank could do. */
static bool hook_miss(tern__progress_hook *hook)
{
    tern__meeting *m = (tern__meeting *)hook;
    if (m->met < tern__meeting_all_posted(m)) return false;
    return m->own_retired == m->own_posted || meeting_miss_in(m, 0);
}

bool tern__meeting_miss(tern__meeting *m, uint64_t seq)
{
    return meeting_miss_in(m, seq) || seq <= m->own_posted || m->own_retired + m->slots < seq;
}

/* ---- waiting ---- */

typedef struct goal {
    tern__goal goal;
    tern__meeting *meeting;
    uint64_t seq;
} goal;

static bool has_free_slot(const tern__goal *until)
{
    const goal *g = (const goal *)until;
    return tern__meeting_all_retired(g->meeting) + g->meeting->slots >= g->seq;
}

static bool is_retired(const tern__goal *until)
{
    const goal *g = (const goal *)until;
    return g->meeting->own_retired >= g->seq;
}

static void meeting_goal_describe(const tern__goal *until, bool *ranks, char *what, size_t size)
{
    const goal *g = (const goal *)until;
    const tern__meeting *m = g->meeting;
    uint64_t seq = tern__meeting_due(m);
    tern__desc_text(&tern__meeting_desc(m, seq)[m->of->rank], seq, what, size);
    tern__meeting_missing(g->meeting, g->seq, ranks);
}

static int meeting_goal_check(const tern__goal *until, tern_error *err)
{
    return tern__meeting_check_left(((const goal *)until)->meeting, err);
}

static int meeting_goal_fail_late(const tern__goal *until, tern_error *err)
{
    const goal *g = (const goal *)until;
    return tern__meeting_fail_late(g->meeting, g->seq, err);
}

static bool meeting_goal_miss(const tern__goal *until)
{
    const goal *g = (const goal *)until;
    return tern__meeting_miss(g->meeting, g->seq);
}

static void meeting_goal_hint(const tern__goal *until, char *text, size_t size)
{
    tern__meeting_hint(((const goal *)until)->meeting, text, size);
}

static int meeting_await(tern__meeting *m, uint64_t seq, bool (*is_met)(const tern__goal *), tern_error *err)
{
    goal until = {.goal = {.is_met = is_met,
                           .describe = meeting_goal_describe,
                           .check = meeting_goal_check,
                           .fail_late = meeting_goal_fail_late,
                           .miss = meeting_goal_miss,
                           .hint = meeting_goal_hint,
                           .stays_met = true},
                  .meeting = m,
                  .seq = seq};
    int64_t began = tern__trace_now(m->of->group->trace);
    int status = tern__wait(m->of->group, &until.goal, err);
    tern__work_trace(m, TERN__MIN(seq, m->own_posted), TERN__TRACK_WAIT, began);
    return status;
}

int tern__meeting_test(tern__meeting *m, uint64_t seq, tern_error *err)
{
    int status = m->own_retired >= seq ? TERN_OK : tern__meeting_progress(m, err);
    bool is_over = m->own_retired >= seq;
    if (status && is_over) return tern__failure_forget(err);
    return status || is_over ? status : TERN_PENDING;
}

int tern__meeting_wait(tern__meeting *m, uint64_t seq, tern_error *err)
{
    int status = tern__meeting_test(m, seq, err);
    return status == TERN_PENDING ? meeting_await(m, seq, is_retired, err) : status;
}

/* ---- posting ---- */

int tern__meeting_post(tern__meeting *m, const tern__post *post, uint64_t *seq, tern_error *err)
{
    tern_group *group = m->of->group;
    uint64_t next = m->own_posted + 1;
    tern__desc desc;
    tern__desc_write(&desc, post);
    int status = TERN_OK;
    bool is_full = m->all_retired + m->slots < next && tern__meeting_all_retired(m) + m->slots < next;
    if (is_full) status = meeting_await(m, next, has_free_slot, err);
    if (!status) status = tern__failure_check(group, err);
    if (status) return status;
    *seq = m->own_posted = next;
    tern__met *work = tern__meeting_work(m, next);
    work->post = *post;
    work->count = desc.count;
    tern__tally_say(m, next, post, &desc);
    if (m->mover) m->mover->begin(m->mover_of, next);
    if (!group->whole) tern__desc_say(group->control, &desc, next, m->of->where);
    atomic_store_explicit(&m->posted[m->of->rank].value, next, memory_order_release);
    atomic_store(&tern__meeting_desc(m, next)[m->of->rank].posted, (uint32_t)next);
    tern__shm_act(m->of->shm);
    if (tern__shm_has_sleepers(m->of->shm) && tern__meeting_all_posted(m) == next) tern__shm_wake(m->of->shm);
    return m->of->world == 1 ? tern__meeting_progress(m, err) : TERN_OK;
}

void tern__meeting_note(const tern__meeting *m, const tern__label *label)
{
    tern__word *word = &m->noted[m->of->rank];
    atomic_store_explicit(&word->value, tern__tag(label->number, label->detail), memory_order_relaxed);
}

/* ---- life ---- */

static void meeting_lay_out(tern__meeting *m)
{
    size_t world = (size_t)m->of->world;
    m->posted = (tern__word *)((char *)m->base + sizeof(tern__shared_head));
    m->retired = m->posted + world;
    m->inside = m->retired + world;
    m->closed = m->inside + world;
    m->noted = m->closed + world;
    m->slot = (char *)(m->noted + world);
}

static void meeting_release(tern__meeting *m)
{
    if (m->of->world > 1)
        tern__shared_close(m->of, m->base, m->bytes);
    else
        tern__free(m->base);
    tern__free(m->works);
    tern__free(m->shadows);
    tern__free(m->weights);
    tern__free(m);
}

static int meeting_open_parts(tern__meeting *m, tern_error *err)
{
    const char *func = "tern_group";
    size_t world = (size_t)m->of->world;
    m->works = tern__alloc(m->slots * sizeof(*m->works), func, err);
    m->shadows = tern__alloc((m->slots + 1) * world * sizeof(*m->shadows), func, err);
    m->weights = tern__alloc(m->slots * world * sizeof(*m->weights), func, err);
    if (!m->works || !m->shadows || !m->weights) return TERN_E_MEMORY;
    if (world > 1) return tern__shared_open(m->of, m->bytes, &m->base, err);
    m->base = tern__alloc_raw(m->bytes, TERN__LINE);
    if (!m->base) return tern__error_set(err, func, TERN_E_MEMORY, "out of memory: %zu bytes", m->bytes);
    memset(m->base, 0, m->bytes);
    return TERN_OK;
}

tern__meeting *tern__meeting_open(tern__shm_group *of, int slots, const tern__meeting_mover *mover,
                                  void *mover_of, size_t words_bytes, tern_error *err)
{
    size_t world = (size_t)of->world, room = 2;
    while (room < (size_t)TERN__MAX(slots, 2)) room *= 2;
    tern__meeting *m = tern__alloc(sizeof(*m), "tern_group", err);
    if (!m) return NULL;
    *m = (tern__meeting){.hook = {.progress = hook_progress, .miss = hook_miss},
                         .of = of,
                         .mover = mover,
                         .mover_of = mover_of,
                         .slots = room};
    m->slot_bytes = world * (sizeof(tern__desc) + sizeof(tern__mean_part)) + words_bytes;
    m->bytes = sizeof(tern__shared_head) + 5 * world * sizeof(tern__word) + room * m->slot_bytes;
    if (meeting_open_parts(m, err)) {
        meeting_release(m);
        return NULL;
    }
    meeting_lay_out(m);
    if (of->shm) tern__progress_hook_add(&of->shm->hooks, &m->hook);
    if (of->first) return m;
    of->first = m;
    of->closed = m->closed;
    return m;
}

/* Waits for the ranks of this process, which share mappings: after a failure one of them may still be in a
 * work. It will see the failure before it goes on. */
static void meeting_await_outside(const tern__meeting *m)
{
    for (int rank = 0; rank < m->of->world; rank++)
        while (rank != m->of->rank && atomic_load(&m->inside[rank].value) &&
               tern__group_is_same_process(m->of->group, rank))
            sched_yield();
}

static void meeting_fail_unfinished(const tern__meeting *m)
{
    const tern_group *group = m->of->group;
    const tern_error *why = &group->root->error;
    int name = tern_group_world_rank(group, m->of->rank);
    char text[TERN_ERROR_TEXT];
    if (why->code)
        tern__message_format(text, sizeof(text), "rank %d failed: %s", name, why->text);
    else
        snprintf(text, sizeof(text), "rank %d has closed its group before work %llu was done", name,
                 (unsigned long long)(m->own_retired + 1));
    tern__failure_set_in(group, TERN_E_PEER, text, NULL);
}

static void meeting_leave(const tern__meeting *m)
{
    const tern_group *root = m->of->group->root;
    if (m->own_posted != m->own_retired) {
        meeting_fail_unfinished(m);
        meeting_await_outside(m);
    }
    bool has_failed = root->error.code || !tern__control_is_healthy(root->control);
    if (has_failed) return; /* the control plane tells the peers */
    atomic_store(&m->closed[m->of->rank].value, 1);
    tern__shm_wake(m->of->shm);
}

void tern__meeting_close(tern__meeting *m)
{
    if (!m) return;
    if (m->of->shm) tern__progress_hook_remove(&m->of->shm->hooks, &m->hook);
    if (m->of->first == m) m->of->first = NULL, m->of->closed = NULL;
    if (m->of->world > 1 && m->of->group->root->pid == getpid()) meeting_leave(m);
    meeting_release(m);
}
