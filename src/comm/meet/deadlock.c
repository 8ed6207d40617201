/* deadlock.c - finds ranks that wait for each other in different works.
 *
 * An act is anything that another rank may wait for: posting, finishing or retiring a work, passing a
 * descriptor, joining, sending, receiving. Rank A misses rank B if B holds up a work or message of A.
 *
 * A rank that has waited for long writes to the shared memory before each sleep: what it is waiting in, how
 * often it has acted so far, and for every rank that it misses how often that rank had acted at that time.
 * From then until it wakes, its turn is odd and it does nothing. Then it follows the chain: the ranks that
 * it misses, the ranks that those miss, and so on. If all of them sleep, and none has acted since it was
 * missed, it is a deadlock.
 *
 * Why this is never wrong: take a moment between the two times that the turns are read. All of these ranks
 * slept, and each missed others of them. The first one to go on would need an act of one that it misses. It
 * cannot have done something else for another rank meanwhile: a rank publishes that it sleeps only if no
 * hook has anything to do for it, and it misses every rank that holds up a work or message of any hook,
 * whether it waits for that or not. A rank that computes, or that was woken and has not run yet, is either
 * awake or has acted. A rank whose wait a limit or tern_group_wake may end is awake in this sense: its caller
 * may then start what a peer waits for.
 *
 * If the family spans hosts, the ranks of each host check among themselves. What a message from another
 * host will let a rank do cannot be foreseen. So a rank does not publish that it sleeps while such a
 * message is on its way, nor if it has acted since it last began to look for work, because works between
 * hosts might then go on.
 *
 * Why a deadlock is always found: once nothing moves, every rank publishes at its next sleep how often it
 * has acted, and at the sleep after that all ranks have seen it. */
#include "comm/meet/wait.h"

#include "base/text.h"
#include "comm/meet/failure.h"

#include <stdio.h>
#include <string.h>

/* ---- the ranks' words ---- */

/* Returns the slot of a rank of `group`. */
static int slot_of(const tern__shm *shm, const tern_group *group, int rank)
{
    int slot = 0, name = tern_group_world_rank(group, rank);
    while (slot < shm->world - 1 && tern_group_world_rank(shm->group, slot) != name) slot++;
    return slot;
}

static tern__waiter *waiter_of_rank(const tern__shm *shm, const tern_group *group, int rank)
{
    return tern__shm_waiter(shm, slot_of(shm, group, rank));
}

/* A rank's hint changes only while its turn is even, and its `text` only while `said` is even. The words
 * are ordered with these counters as in control/last.c: a reader that has got a word of a later text sees
 * that the counter has changed. */
static void write_text(_Atomic(uint64_t) *words, const char *text)
{
    uint64_t copy[TERN__WORK_TEXT / 8] = {0};
    snprintf((char *)copy, sizeof(copy), "%s", text);
    for (size_t i = 0; i < TERN__COUNT(copy); i++)
        atomic_store_explicit(&words[i], copy[i], memory_order_release);
}

static void read_text(_Atomic(uint64_t) *words, char text[TERN__WORK_TEXT])
{
    uint64_t copy[TERN__WORK_TEXT / 8];
    for (size_t i = 0; i < TERN__COUNT(copy); i++)
        copy[i] = atomic_load_explicit(&words[i], memory_order_acquire);
    memcpy(text, copy, sizeof(copy));
    text[TERN__WORK_TEXT - 1] = '\0';
}

/* ---- the ranks that this one misses ---- */

/* If a rank is missed several times, the first count stays, because it is valid for all of them. */
void tern__deadlock_miss(const tern__shm *shm, const tern_group *group, int rank, uint64_t acts)
{
    tern__waiter *own = tern__shm_waiter(shm, shm->rank);
    _Atomic(uint64_t) *word = &own->words[slot_of(shm, group, rank)];
    if (!atomic_load(word)) atomic_store(word, acts + 1);
}

uint64_t tern__deadlock_acts(const tern__shm *shm, const tern_group *group, int rank)
{
    return atomic_load(&waiter_of_rank(shm, group, rank)->acts);
}

bool tern__deadlock_lacks_fd(const tern__shm *shm, const tern_group *group, int rank, uint32_t serial)
{
    const tern__waiter *peer = waiter_of_rank(shm, group, rank);
    uint64_t sent = atomic_load(&peer->words[shm->world + shm->rank]);
    return tern__group_lacks_fd(group, rank, serial, sent);
}

static bool miss_any(const tern__shm *shm, const tern__goal *goal)
{
    tern__waiter *own = tern__shm_waiter(shm, shm->rank);
    for (int slot = 0; slot < shm->world; slot++) atomic_store(&own->words[slot], 0);
    for (tern__progress_hook *hook = shm->hooks; hook; hook = hook->next)
        if (!hook->miss(hook)) return false;
    return goal->miss(goal);
}

/* ---- what this rank is waiting in ---- */

/* A peer may read the text at any time, most likely when both ranks have waited for so long that they give
up. So a text that is still valid is not withdrawn, not even for the moment that it would take to write it
again. */
void tern__deadlock_say(const tern__shm *shm, const char *text)
{
    char before[TERN__WORK_TEXT];
    tern__waiter *own = tern__shm_waiter(shm, shm->rank);
    bool is_said = atomic_load(&own->said) % 2;
    read_text(own->text, before);
    if (!is_said || strncmp(before, text, sizeof(before) - 1)) {
        if (is_said) atomic_fetch_add(&own->said, 1);
        write_text(own->text, text);
        atomic_fetch_add(&own->said, 1);
    }
    atomic_store(&own->until, INT64_MAX);
}

void tern__deadlock_forget(const tern__shm *shm, int64_t end)
{
    tern__waiter *own = tern__shm_waiter(shm, shm->rank);
    if (atomic_load(&own->until) > end) atomic_store(&own->until, end);
}

void tern__deadlock_tell_sent(const tern__shm *shm)
{
    tern__waiter *own = tern__shm_waiter(shm, shm->rank);
    for (int slot = 0; slot < shm->world; slot++)
        atomic_store(&own->words[shm->world + slot],
                     tern__control_sent(shm->root->control, tern_group_world_rank(shm->group, slot)));
}

bool tern__deadlock_text(const tern__shm *shm, const tern_group *group, int rank, char text[TERN__WORK_TEXT])
{
    tern__waiter *waiter = waiter_of_rank(shm, group, rank);
    uint64_t said = atomic_load(&waiter->said);
    read_text(waiter->text, text);
    return said % 2 && atomic_load(&waiter->said) == said && tern__now_ns() < atomic_load(&waiter->until);
}

/* True if only an act of a rank of this host can let this one go on. */
static bool is_idle(const tern__shm *shm)
{
    tern__incoming *incoming = shm->root->incoming;
    return shm->acts == shm->looked && (!incoming || incoming->is_quiet(incoming));
}

bool tern__deadlock_begin(tern__shm *shm, const tern__goal *goal)
{
    char hint[TERN__WORK_TEXT] = "";
    if (!is_idle(shm) || !miss_any(shm, goal)) return false;
    tern__waiter *own = tern__shm_waiter(shm, shm->rank);
    tern__deadlock_tell_sent(shm);
    if (goal->hint) goal->hint(goal, hint, sizeof(hint));
    write_text(own->hint, hint);
    atomic_store(&own->acts, shm->acts);
    atomic_fetch_add(&own->turn, 1);
    return true;
}

void tern__deadlock_end(const tern__shm *shm)
{
    atomic_fetch_add(&tern__shm_waiter(shm, shm->rank)->turn, 1);
}

uint64_t tern__deadlock_turn(const tern__shm *shm, int slot)
{
    return atomic_load(&tern__shm_waiter(shm, slot)->turn);
}

/* ---- the circle ---- */

/* Sets shm->circle to this rank, the ranks that it misses, the ranks that those miss and so on, with their
turns. Returns how many there are, or 0 if one of them is awake. */
static int circle_follow(const tern__shm *shm)
{
    const tern__circle *circle = &shm->circle;
    int count = 1;
    memset(circle->known, 0, (size_t)shm->world * sizeof(*circle->known));
    circle->ranks[0] = shm->rank;
    circle->known[shm->rank] = true;
    for (int i = 0; i < count; i++) {
        tern__waiter *waiter = tern__shm_waiter(shm, circle->ranks[i]);
        circle->turns[i] = tern__deadlock_turn(shm, circle->ranks[i]);
        if (circle->turns[i] % 2 == 0) return 0;
        for (int rank = 0; rank < shm->world; rank++) {
            if (!atomic_load(&waiter->words[rank]) || circle->known[rank]) continue;
            circle->known[rank] = true;
            circle->ranks[count++] = rank;
        }
    }
    return count;
}

/* True if no rank of the circle has acted since it was missed or woken up since `follow`. */
static bool circle_is_closed(const tern__shm *shm, int count)
{
    const tern__circle *circle = &shm->circle;
    for (int i = 0; i < count; i++) {
        tern__waiter *waiter = tern__shm_waiter(shm, circle->ranks[i]);
        for (int rank = 0; rank < shm->world; rank++) {
            uint64_t missed = atomic_load(&waiter->words[rank]);
            if (missed && atomic_load(&tern__shm_waiter(shm, rank)->acts) + 1 != missed) return false;
        }
    }
    for (int i = 0; i < count; i++)
        if (tern__deadlock_turn(shm, circle->ranks[i]) != circle->turns[i]) return false;
    return true;
}

/* Takes the hint if only one of the two ranks has one. Two hints explain nothing: each rank then waits for
 * a ddp's work that the other has not called. */
static void circle_choose_hint(const tern__shm *shm, const int ranks[2], char hint[TERN__WORK_TEXT])
{
    char other[TERN__WORK_TEXT];
    read_text(tern__shm_waiter(shm, ranks[0])->hint, hint);
    read_text(tern__shm_waiter(shm, ranks[1])->hint, other);
    if (*hint && *other)
        *hint = '\0';
    else if (*other)
        memcpy(hint, other, sizeof(other));
}

/* Fails, naming this rank and the first in the circle that waits in something else. */
static int circle_fail(const tern__shm *shm, int count, tern_error *err)
{
    const tern__circle *circle = &shm->circle;
    char what[2][TERN__WORK_TEXT], who[2][128], hint[TERN__WORK_TEXT], text[TERN_ERROR_TEXT];
    int second = 0;
    read_text(tern__shm_waiter(shm, shm->rank)->text, what[0]);
    do read_text(tern__shm_waiter(shm, circle->ranks[++second])->text, what[1]);
    while (second < count - 1 && !strcmp(what[0], what[1]));
    const int ranks[] = {shm->rank, circle->ranks[second]};
    for (int i = 0; i < 2; i++) tern__group_describe(shm->group, ranks[i], who[i], sizeof(who[i]));
    circle_choose_hint(shm, ranks, hint);
    snprintf(text, sizeof(text), "%.80s waits in %.96s while %.80s waits in %.96s", who[0], what[0], who[1],
             what[1]);
    tern__text_append(text, sizeof(text), "%s", hint);
    return tern__failure_set(shm->group, TERN_E_MISMATCH, text, err);
}

int tern__deadlock_check(const tern__shm *shm, tern_error *err)
{
    int count = circle_follow(shm);
    return count > 1 && circle_is_closed(shm, count) ? circle_fail(shm, count, err) : TERN_OK;
}
