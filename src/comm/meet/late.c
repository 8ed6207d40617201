/* late.c - a work that waits for ranks: which ones, why, and what they do instead. */
#include "comm/meet/meeting.h"

#include "base/text.h"
#include "comm/meet/failure.h"

#include <stdio.h>
#include <string.h>

/* ---- which ranks a work is waiting for ---- */

/* What a rank has not done yet. */
typedef enum tern__lack {
    TERN__LACKS_NOTHING,
    TERN__LACKS_POST, /* has not called the work that is due */
    TERN__LACKS_END,  /* is in the middle of it */
    TERN__LACKS_PART, /* has not begun what only it can do */
    TERN__LACKS_LEAVE /* has not retired the earlier work whose slot `goal` needs */
} tern__lack;

/* Returns why work `goal`, or the work that is due before it, waits for `rank`. */
static tern__lack find_lack(tern__meeting *m, int rank, uint64_t goal)
{
    uint64_t seq = tern__meeting_due(m);
    bool is_own = rank == m->of->rank;
    if (atomic_load(&m->posted[rank].value) < seq) return TERN__LACKS_POST;
    if (!is_own && atomic_load(&m->inside[rank].value)) return TERN__LACKS_END;
    if (m->mover && tern__meeting_all_posted(m) >= seq && m->mover->owes(m->mover_of, seq, rank))
        return TERN__LACKS_PART;
    if (atomic_load(&m->retired[rank].value) + m->slots < goal) return TERN__LACKS_LEAVE;
    return TERN__LACKS_NOTHING;
}

void tern__meeting_missing(tern__meeting *m, uint64_t goal, bool *ranks)
{
    for (int rank = 0; rank < m->of->world; rank++)
        ranks[rank] = rank != m->of->rank && find_lack(m, rank, goal) != TERN__LACKS_NOTHING;
}

/* ---- why it takes so long ---- */

static tern__elsewhere find_elsewhere(const tern__shm_group *of, int rank, bool waits)
{
    if (tern__shm_has_left(of, rank)) return TERN__ELSEWHERE_LEFT;
    return waits ? TERN__ELSEWHERE_WAITS : TERN__ELSEWHERE_UNKNOWN;
}

/* Writes "all_reduce of 100 f32, sum (work 7)". */
static void own_work_text(const tern__meeting *m, uint64_t seq, char *text, size_t size)
{
    tern__desc_text(&tern__meeting_desc(m, seq)[m->of->rank], seq, text, size);
}

static void append_who(const tern_group *group, int rank, const char *what, char *text, size_t size)
{
    char who[192];
    bool is_stopped = tern__rank_text(group, rank, who, sizeof(who));
    tern__text_append(text, size, "; %s%s %s", who, is_stopped ? "," : "", what);
}

/* Appends ", which waits in barrier (work 7)" or `rank`'s last work, and a hint. */
static void append_last(const tern__meeting *m, int rank, bool is_stopped, char *text, size_t size)
{
    const tern__shm_group *of = m->of;
    char last[TERN__WORK_TEXT], hint[TERN__WORK_TEXT];
    const char *in = m == of->first ? "in this group" : "there";
    bool waits = !is_stopped && tern__deadlock_text(of->shm, of->group, rank, last);
    tern__elsewhere where = is_stopped ? TERN__ELSEWHERE_UNKNOWN : find_elsewhere(of, rank, waits);
    tern__desc_hint(m, tern__meeting_due(m), rank, where, hint, sizeof(hint));
    if (waits)
        tern__text_append(text, size, ", which waits in %s%s", last, hint);
    else if (tern__meeting_last_text(m, rank, last, sizeof(last)))
        tern__text_append(text, size, ", whose last %s was %s%s", in, last, hint);
    else
        tern__text_append(text, size, ", which has called nothing %s yet%s", in, hint);
}

/* A call may consist of several works: a rank whose last work has the same text as the one that is due has
 * made the call already. */
static void append_late(const tern__meeting *m, int rank, char *text, size_t size)
{
    char who[192], work[TERN__WORK_TEXT], last[TERN__WORK_TEXT];
    own_work_text(m, tern__meeting_due(m), work, sizeof(work));
    if (tern__meeting_last_text(m, rank, last, sizeof(last)) && !strcmp(last, work)) {
        append_who(m->of->group, rank, "has not come back to do its part", text, size);
        return;
    }
    bool is_stopped = tern__rank_text(m->of->group, rank, who, sizeof(who));
    tern__text_append(text, size, "; not called by %s", who);
    append_last(m, rank, is_stopped, text, size);
}

static int count_missing(const tern__meeting *m, uint64_t seq)
{
    int count = 0;
    for (int rank = 0; rank < m->of->world; rank++) count += atomic_load(&m->posted[rank].value) < seq;
    return count;
}

/* Appends "; ranks 1, 3 failed to pass". It lists all of them briefly, because the clauses that follow may
 * not fit. */
static void append_missing(const tern__meeting *m, uint64_t seq, char *text, size_t size)
{
    int count = count_missing(m, seq);
    const char *before = count == 1 ? "; rank " : "; ranks ";
    for (int rank = 0; rank < m->of->world; rank++) {
        if (atomic_load(&m->posted[rank].value) >= seq) continue;
        tern__text_append(text, size, "%s%d", before, tern_group_world_rank(m->of->group, rank));
        before = ", ";
    }
    if (*before == ',') tern__text_append(text, size, " failed to pass");
}

/* Appends why `goal` waits for `rank`, if it does. Returns true if the rank has not called the work that is
 * due. */
static bool append_why(tern__meeting *m, int rank, uint64_t goal, char *text, size_t size)
{
    static const char *const whys[] = {[TERN__LACKS_END] = "is still working on it",
                                       [TERN__LACKS_PART] = "has not come back to do its part",
                                       [TERN__LACKS_LEAVE] = "has not come back to finish its earlier works"};
    tern__lack lack = find_lack(m, rank, goal);
    if (lack == TERN__LACKS_POST)
        append_late(m, rank, text, size);
    else if (lack != TERN__LACKS_NOTHING)
        append_who(m->of->group, rank, whys[lack], text, size);
    return lack == TERN__LACKS_POST;
}

/* A monitored barrier names the first missing rank, or with wait_all every missing rank. */
static void append_all(tern__meeting *m, uint64_t seq, uint64_t goal, char *text, size_t size)
{
    const tern__post *post = &tern__meeting_work(m, seq)->post;
    bool is_monitored = post->kind == TERN__MONITORED_BARRIER, is_named = false;
    if (is_monitored && post->wait_all) append_missing(m, seq, text, size);
    for (int rank = 0; rank < m->of->world && !is_named; rank++)
        is_named = append_why(m, rank, goal, text, size) && is_monitored && !post->wait_all;
}

int tern__meeting_fail_late(tern__meeting *m, uint64_t goal, tern_error *err)
{
    const tern_group *group = m->of->group;
    char text[TERN_ERROR_TEXT], work[TERN__WORK_TEXT];
    uint64_t seq = tern__meeting_due(m);
    own_work_text(m, seq, work, sizeof(work));
    snprintf(text, sizeof(text), "rank %d waited %g s in %s", tern_group_world_rank(group, m->of->rank),
             group->opts.timeout_s, work);
    append_all(m, seq, goal, text, sizeof(text));
    return tern__failure_set_in(group, TERN_E_TIMEOUT, text, err);
}

/* A rank that has left without posting the work that is due will never post it. */
int tern__meeting_check_left(const tern__meeting *m, tern_error *err)
{
    const tern_group *group = m->of->group;
    uint64_t seq = tern__meeting_due(m);
    for (int rank = 0; rank < m->of->world; rank++) {
        bool has_left = tern__shm_has_left(m->of, rank);
        if (rank == m->of->rank || !(has_left || tern__meeting_is_closed(m, rank))) continue;
        if (atomic_load(&m->posted[rank].value) >= seq) continue;
        char text[TERN_ERROR_TEXT], who[128], work[TERN__WORK_TEXT], hint[TERN__WORK_TEXT];
        tern__group_describe(group, rank, who, sizeof(who));
        own_work_text(m, seq, work, sizeof(work));
        tern__desc_hint(m, seq, rank, TERN__ELSEWHERE_LEFT, hint, sizeof(hint));
        snprintf(text, sizeof(text), "%s has %s while rank %d waits in %s%s", who,
                 has_left ? "closed its group" : tern__desc_left(m, seq),
                 tern_group_world_rank(group, m->of->rank), work, hint);
        return tern__failure_set_in(group, TERN_E_PEER, text, err);
    }
    return TERN_OK;
}

/* ---- in words ---- */

void tern__meeting_hint(const tern__meeting *m, char *text, size_t size)
{
    uint64_t seq = tern__meeting_due(m);
    *text = '\0';
    for (int rank = 0; rank < m->of->world && !*text; rank++)
        if (atomic_load(&m->posted[rank].value) < seq)
            tern__desc_hint(m, seq, rank, TERN__ELSEWHERE_WAITS, text, size);
}
