/* deadlock.c - finds ranks that wait for each other in different works.
 *
 * An act is anything that another rank may wait for: posting, finishing or retiring a work, passing a
 * descriptor, joining, sending, receiving. Rank A misses rank B if B holds up a work or message of A.
 *
 * A rank that has waited for long writes to the lobby before each sleep: what it is waiting in, how often it
 * has acted so far, and for every rank that it misses how often that rank had acted at that time. From then
 * until it wakes, its turn is odd and it does nothing. Then it follows the chain: the ranks that it misses,
 * the ranks that those miss, and so on. If all of them sleep, and none has acted since it was missed, it is a
 * deadlock.
 *
 * Why this is never wrong: take a moment between the two times that the turns are read. All of these ranks
 * slept, and each missed others of them. The first one to go on would need an act of one that it misses. It
 * cannot have done something else for another rank meanwhile: a rank publishes that it sleeps only if no
 * channel has anything to do for it, and it misses every rank that holds up a work of any channel, whether it
 * waits for that work or not. A rank that computes, or that was woken and has not run yet, is either awake or
 * has acted.
 *
 * If the family spans hosts, the ranks of each host check among themselves, through their host's lobby. What
 * a message from another host will let a rank do cannot be foreseen. So a rank does not publish that it
 * sleeps while such a message is on its way, nor if it has acted since it last began to look for work,
 * because works between hosts (comm/hosts/) might then go on.
 *
 * Why a deadlock is always found: once nothing moves, every rank publishes at its next sleep how often it has
 * acted, and at the sleep after that all ranks have seen it. */
#include "comm/move/transport/hosts.h"
#include "comm/move/window/mailbox.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* ---- the ranks' words ---- */

size_t tern__lobby_bytes(int world)
{
    size_t words = 2 * (size_t)world * sizeof(uint64_t);
    return sizeof(tern__lobby) + (size_t)world * tern__align_up(sizeof(tern__waiter) + words, TERN__LINE);
}

/* Returns the waiter at slot `place` of the lobby. */
static tern__waiter *waiter_of(const tern__native *native, int place)
{
    const tern__native *root = native->root;
    size_t each = (tern__lobby_bytes(root->world) - sizeof(tern__lobby)) / (size_t)root->world;
    return (tern__waiter *)((char *)(root->lobby + 1) + (size_t)place * each);
}

/* Returns the rank's slot in the lobby, which has one for each rank of this host. */
static int place_of(const tern__native *native, int rank)
{
    const tern_group *here = native->root->group;
    int place = 0, name = tern_group_world_rank(native->group, rank);
    while (place < native->root->world - 1 && tern_group_world_rank(here, place) != name) place++;
    return place;
}

static tern__waiter *peer_of(const tern__native *native, int rank)
{
    return waiter_of(native, place_of(native, rank));
}

/* A rank's hint changes only while its turn is even, and its `text` only while `said` is even. The words are
 * ordered with these counters as in control/last.c: a reader that has got a word of a later text sees that
 * the counter has changed. */
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
void tern__deadlock_miss(const tern__native *native, int rank, uint64_t acts)
{
    tern__waiter *own = waiter_of(native, native->root->rank);
    _Atomic(uint64_t) *word = &own->words[place_of(native, rank)];
    if (!atomic_load(word)) atomic_store(word, acts + 1);
}

uint64_t tern__deadlock_acts(const tern__native *native, int rank)
{
    return atomic_load(&peer_of(native, rank)->acts);
}

/* True if `rank` holds up the first work that is not done, or with `seq` != 0, if it has not freed the slot
 * that work `seq` needs. */
static bool holds_up(tern__channel *channel, int rank, uint64_t seq)
{
    uint64_t first = tern__channel_blocker(channel);
    if (rank == channel->native->rank) return false;
    if (seq) return atomic_load(&channel->retired[rank].value) + channel->slots < seq;
    return atomic_load(&channel->posted[rank].value) < first ||
           tern__channel_owes_chunk(channel, first, rank);
}

static int miss_in(tern__channel *channel, uint64_t seq)
{
    const tern__native *native = channel->native;
    int count = 0;
    for (int rank = 0; rank < native->world; rank++) {
        uint64_t acts = tern__deadlock_acts(native, rank);
        if (!holds_up(channel, rank, seq)) continue;
        tern__deadlock_miss(native, rank, acts);
        count++;
    }
    return count;
}

/* Returns false if there is anything that this rank could do in any channel or mailbox. */
static bool miss_in_all(const tern__native *native)
{
    for (tern__mailbox *mailbox = native->root->mailboxes; mailbox; mailbox = mailbox->next)
        if (!tern__mailbox_miss(mailbox)) return false;
    for (tern__channel *channel = native->root->channels; channel; channel = channel->next) {
        if (channel->claimed < tern__channel_all_posted(channel)) return false;
        if (channel->own_retired < channel->own_posted && !miss_in(channel, 0)) return false;
    }
    return true;
}

static bool miss_in_work(const tern__goal *goal)
{
    const tern__channel *channel = goal->channel;
    bool is_posted = goal->seq <= channel->own_posted;
    return miss_in(goal->channel, goal->seq) || is_posted ||
           channel->own_retired + channel->slots < goal->seq;
}

/* Misses all other ranks: those that have joined already are waiting there, too. */
static bool miss_joiners(const tern__native *native, const tern__goal *goal)
{
    for (int rank = 0; rank < native->world; rank++)
        if (rank != native->rank) tern__deadlock_miss(native, rank, tern__deadlock_acts(native, rank));
    return !goal->is_met(goal);
}

bool tern__deadlock_lacks_fd(const tern__native *native, int rank, uint32_t serial)
{
    const tern__waiter *peer = peer_of(native, rank);
    uint64_t sent = atomic_load(&peer->words[native->root->world + native->root->rank]);
    return tern__group_lacks_fd(native->group, rank, serial, sent);
}

/* Misses the sender, unless its descriptor may still be on its way: then it returns false. */
static bool miss_sender(const tern__native *native, const tern__goal *goal)
{
    uint64_t acts = tern__deadlock_acts(native, goal->peer);
    if (!tern__deadlock_lacks_fd(native, goal->peer, goal->serial)) return false;
    tern__deadlock_miss(native, goal->peer, acts);
    return true;
}

static bool miss_any(const tern__native *native, const tern__goal *goal)
{
    tern__waiter *own = waiter_of(native, native->root->rank);
    for (int rank = 0; rank < native->root->world; rank++) atomic_store(&own->words[rank], 0);
    if (!miss_in_all(native)) return false;
    if (goal->transfer) return !goal->is_met(goal);
    if (goal->channel) return miss_in_work(goal);
    return goal->head ? miss_joiners(native, goal) : miss_sender(native, goal);
}

/* ---- what this rank is waiting in ---- */

/* A peer may read the text at any time, most likely when both ranks have waited for so long that they give
up. So a text that is still valid is not withdrawn, not even for the moment that it would take to write it
again. */
void tern__deadlock_say(const tern__native *native, const char *text)
{
    char before[TERN__WORK_TEXT];
    if (!native->lobby) return;
    tern__waiter *own = waiter_of(native, native->root->rank);
    bool is_said = atomic_load(&own->said) % 2;
    read_text(own->text, before);
    if (is_said && !strncmp(before, text, sizeof(before) - 1)) return;
    if (is_said) atomic_fetch_add(&own->said, 1);
    write_text(own->text, text);
    atomic_fetch_add(&own->said, 1);
}

void tern__deadlock_forget(const tern__native *native)
{
    if (!native->lobby) return;
    tern__waiter *own = waiter_of(native, native->root->rank);
    if (atomic_load(&own->said) % 2) atomic_fetch_add(&own->said, 1);
}

void tern__deadlock_tell_sent(const tern__native *native)
{
    const tern__native *root = native->root;
    tern__waiter *own = waiter_of(root, root->rank);
    for (int rank = 0; rank < root->world; rank++)
        atomic_store(&own->words[root->world + rank],
                     tern__control_sent(root->control, tern_group_world_rank(root->group, rank)));
}

bool tern__deadlock_text(const tern__native *native, int rank, char text[TERN__WORK_TEXT])
{
    tern__waiter *waiter = peer_of(native, rank);
    uint64_t said = atomic_load(&waiter->said);
    read_text(waiter->text, text);
    return said % 2 && atomic_load(&waiter->said) == said;
}

/* True if only an act of a rank of this host can let this one go on. */
static bool is_idle(const tern__native *root)
{
    const tern__link *link = root->group->root->link;
    return root->acts == root->looked && (!link || tern__link_is_quiet(link));
}

bool tern__deadlock_begin(const tern__native *native, const tern__goal *goal)
{
    const tern__native *root = native->root;
    char hint[TERN__WORK_TEXT] = "";
    if (!native->lobby || !is_idle(root) || !miss_any(native, goal)) return false;
    tern__waiter *own = waiter_of(native, root->rank);
    tern__deadlock_tell_sent(native);
    if (goal->channel) tern__channel_hint(goal->channel, hint, sizeof(hint));
    write_text(own->hint, hint);
    atomic_store(&own->acts, root->acts);
    atomic_fetch_add(&own->turn, 1);
    return true;
}

void tern__deadlock_end(const tern__native *native)
{
    atomic_fetch_add(&waiter_of(native, native->root->rank)->turn, 1);
}

uint64_t tern__deadlock_turn(const tern__native *native, int place)
{
    return atomic_load(&waiter_of(native, place)->turn);
}

/* ---- the circle ---- */

/* Sets root->circle to this rank, the ranks that it misses, the ranks that those miss and so on, with their
turns. Returns how many there are, or 0 if one of them is awake. */
static int follow(const tern__native *root)
{
    const tern__circle *circle = &root->circle;
    int count = 1;
    memset(circle->known, 0, (size_t)root->world * sizeof(*circle->known));
    circle->ranks[0] = root->rank;
    circle->known[root->rank] = true;
    for (int i = 0; i < count; i++) {
        tern__waiter *waiter = waiter_of(root, circle->ranks[i]);
        circle->turns[i] = tern__deadlock_turn(root, circle->ranks[i]);
        if (circle->turns[i] % 2 == 0) return 0;
        for (int rank = 0; rank < root->world; rank++) {
            if (!atomic_load(&waiter->words[rank]) || circle->known[rank]) continue;
            circle->known[rank] = true;
            circle->ranks[count++] = rank;
        }
    }
    return count;
}

/* True if no rank of the circle has acted since it was missed or woken up since `follow`. */
static bool is_closed(const tern__native *root, int count)
{
    const tern__circle *circle = &root->circle;
    for (int i = 0; i < count; i++) {
        tern__waiter *waiter = waiter_of(root, circle->ranks[i]);
        for (int rank = 0; rank < root->world; rank++) {
            uint64_t missed = atomic_load(&waiter->words[rank]);
            if (missed && atomic_load(&waiter_of(root, rank)->acts) + 1 != missed) return false;
        }
    }
    for (int i = 0; i < count; i++)
        if (tern__deadlock_turn(root, circle->ranks[i]) != circle->turns[i]) return false;
    return true;
}

/* Takes the hint if only one of the two ranks has one. Two hints explain nothing: each rank then waits for a
 * ddp's work that the other has not called. */
static void choose_hint(const tern__native *root, const int ranks[2], char hint[TERN__WORK_TEXT])
{
    char other[TERN__WORK_TEXT];
    read_text(waiter_of(root, ranks[0])->hint, hint);
    read_text(waiter_of(root, ranks[1])->hint, other);
    if (*hint && *other)
        *hint = '\0';
    else if (*other)
        memcpy(hint, other, sizeof(other));
}

/* Fails, naming this rank and the first in the circle that waits in something else. */
static int fail(const tern__native *root, int count, tern_error *err)
{
    const tern__circle *circle = &root->circle;
    char what[2][TERN__WORK_TEXT], who[2][128], hint[TERN__WORK_TEXT], text[TERN_ERROR_TEXT];
    int second = 0;
    read_text(waiter_of(root, root->rank)->text, what[0]);
    do read_text(waiter_of(root, circle->ranks[++second])->text, what[1]);
    while (second < count - 1 && !strcmp(what[0], what[1]));
    const int ranks[] = {root->rank, circle->ranks[second]};
    for (int i = 0; i < 2; i++) tern__group_describe(root->group, ranks[i], who[i], sizeof(who[i]));
    choose_hint(root, ranks, hint);
    snprintf(text, sizeof(text), "%.80s waits in %.96s while %.80s waits in %.96s", who[0], what[0], who[1],
             what[1]);
    tern__text_append(text, sizeof(text), "%s", hint);
    tern__native_abort(root, TERN_E_MISMATCH, text);
    return tern__native_check(root, err);
}

int tern__deadlock_check(const tern__native *native, tern_error *err)
{
    const tern__native *root = native->root;
    int count = follow(root);
    return count > 1 && is_closed(root, count) ? fail(root, count, err) : TERN_OK;
}
