/* wait.c - blocking. A rank that waits does any work that there is, also for other ranks. With nothing to do
 * it spins for a short time if every rank has a CPU of its own, then yields, then sleeps on the lobby's bell
 * (bell.c). */
#include "comm/move/window/mailbox.h"

#include "base/text.h"
#include "comm/sys.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum {
    spins_min = 8,
    yields_max = 100,
    sleep_ns = 50 * 1000000, /* at most this long, then look again */
};

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Progresses the works and messages of all groups of the family. */
int tern__native_progress(tern__native *native, tern_error *err)
{
    tern__channel *channels = native->root->channels;
    native->root->looked = native->root->acts;
    int status = channels ? TERN_OK : tern__native_check(native, err);
    for (tern__channel *channel = channels; channel && !status; channel = channel->next)
        status = tern__channel_progress(channel, err);
    for (tern__mailbox *mailbox = native->root->mailboxes; mailbox && !status; mailbox = mailbox->next)
        status = tern__mailbox_progress(mailbox, err);
    return status;
}

/* ---- why it takes so long ---- */

static tern__elsewhere find_elsewhere(const tern__native *native, int rank, bool waits)
{
    if (tern__native_has_left(native, rank)) return TERN__ELSEWHERE_LEFT;
    return waits ? TERN__ELSEWHERE_WAITS : TERN__ELSEWHERE_UNKNOWN;
}

/* Writes "all_reduce of 100 f32, sum (work 7)". */
static void own_text(const tern__channel *channel, uint64_t seq, char *text, size_t size)
{
    tern__desc_text(&tern__slot_desc(channel, seq)[channel->native->rank], seq, text, size);
}

static void append_who(const tern__native *native, int rank, const char *what, char *text, size_t size)
{
    char who[192];
    bool is_stopped = tern__native_who(native, rank, who, sizeof(who));
    tern__text_append(text, size, "; %s%s %s", who, is_stopped ? "," : "", what);
}

/* Appends ", which waits in barrier (work 7)" or `rank`'s last work, and a hint. */
static void append_last(const tern__channel *channel, int rank, bool is_stopped, char *text, size_t size)
{
    const tern__native *native = channel->native;
    char last[TERN__WORK_TEXT], hint[TERN__WORK_TEXT];
    const char *of = channel == native->first ? "in this group" : "there";
    bool waits = !is_stopped && tern__deadlock_text(native, rank, last);
    tern__elsewhere where = is_stopped ? TERN__ELSEWHERE_UNKNOWN : find_elsewhere(native, rank, waits);
    tern__desc_hint(channel, tern__channel_due(channel), rank, where, hint, sizeof(hint));
    if (waits)
        tern__text_append(text, size, ", which waits in %s%s", last, hint);
    else if (tern__channel_last(channel, rank, last, sizeof(last)))
        tern__text_append(text, size, ", whose last %s was %s%s", of, last, hint);
    else
        tern__text_append(text, size, ", which has called nothing %s yet%s", of, hint);
}

/* A call may consist of several works: a rank whose last work has the same text as the one that is due has
 * made the call already. */
static void append_late(const tern__channel *channel, int rank, char *text, size_t size)
{
    char who[192], work[TERN__WORK_TEXT], last[TERN__WORK_TEXT];
    own_text(channel, tern__channel_due(channel), work, sizeof(work));
    if (tern__channel_last(channel, rank, last, sizeof(last)) && !strcmp(last, work)) {
        append_who(channel->native, rank, "has not come back to do its part", text, size);
        return;
    }
    bool is_stopped = tern__native_who(channel->native, rank, who, sizeof(who));
    tern__text_append(text, size, "; not called by %s", who);
    append_last(channel, rank, is_stopped, text, size);
}

static int count_missing(const tern__channel *channel, uint64_t seq)
{
    int count = 0;
    for (int rank = 0; rank < channel->native->world; rank++)
        count += atomic_load(&channel->posted[rank].value) < seq;
    return count;
}

/* Appends "; ranks 1, 3 failed to pass". It lists all of them briefly, because the clauses that follow may
 * not fit. */
static void append_missing(const tern__channel *channel, uint64_t seq, char *text, size_t size)
{
    int count = count_missing(channel, seq);
    const char *before = count == 1 ? "; rank " : "; ranks ";
    for (int rank = 0; rank < channel->native->world; rank++) {
        if (atomic_load(&channel->posted[rank].value) >= seq) continue;
        tern__text_append(text, size, "%s%d", before, tern_group_world_rank(channel->native->group, rank));
        before = ", ";
    }
    if (*before == ',') tern__text_append(text, size, " failed to pass");
}

/* Appends why `goal` waits for `rank`, if it does. Returns true if the rank has not called the work that is
 * due. */
static bool append_why(tern__channel *channel, int rank, uint64_t goal, char *text, size_t size)
{
    static const char *const whys[] = {[TERN__LACKS_END] = "is still working on it",
                                       [TERN__LACKS_CHUNK] = "has not come back to do its part",
                                       [TERN__LACKS_LEAVE] = "has not come back to finish its earlier works"};
    tern__lack lack = tern__channel_lack(channel, rank, goal);
    if (lack == TERN__LACKS_POST)
        append_late(channel, rank, text, size);
    else if (lack != TERN__LACKS_NOTHING)
        append_who(channel->native, rank, whys[lack], text, size);
    return lack == TERN__LACKS_POST;
}

/* A monitored barrier names the first missing rank, or with wait_all every missing rank. */
static void append_all(tern__channel *channel, uint64_t seq, uint64_t goal, char *text, size_t size)
{
    const tern__post *post = &channel->tasks[seq & (channel->slots - 1)].post;
    bool is_monitored = post->kind == TERN__MONITORED_BARRIER, is_named = false;
    if (is_monitored && post->wait_all) append_missing(channel, seq, text, size);
    for (int rank = 0; rank < channel->native->world && !is_named; rank++)
        is_named = append_why(channel, rank, goal, text, size) && is_monitored && !post->wait_all;
}

static int fail_late(const tern__goal *goal, tern_error *err)
{
    tern__channel *channel = goal->channel;
    const tern__native *native = channel->native;
    char text[TERN_ERROR_TEXT], work[TERN__WORK_TEXT];
    uint64_t seq = tern__channel_due(channel);
    own_text(channel, seq, work, sizeof(work));
    snprintf(text, sizeof(text), "rank %d waited %g s in %s",
             tern_group_world_rank(native->group, native->rank), native->group->opts.timeout_s, work);
    append_all(channel, seq, goal->seq, text, sizeof(text));
    return tern__native_fail(native, TERN_E_TIMEOUT, text, err);
}

/* A rank that has left without joining will never join. */
static int check_joining(const tern__native *native, const tern__goal *goal, tern_error *err)
{
    for (int rank = 0; rank < native->world; rank++) {
        if (rank == native->rank || !tern__native_has_left(native, rank) || goal->is_met(goal)) continue;
        char who[128];
        tern__group_describe(native->group, rank, who, sizeof(who));
        return tern__error_set(err, "tern_group", TERN_E_PEER,
                               "%s has closed its group while rank %d opens a channel", who,
                               tern_group_world_rank(native->group, native->rank));
    }
    return TERN_OK;
}

static int fail_joining(const tern__native *native, const tern__goal *goal, tern_error *err)
{
    char text[TERN_ERROR_TEXT], last[256];
    snprintf(text, sizeof(text), "rank %d waited %g s for all ranks to open a channel",
             tern_group_world_rank(native->group, native->rank), native->group->opts.timeout_s);
    for (int rank = 0; rank < native->world; rank++) {
        if (tern__shared_has_joined(goal->head, rank)) continue;
        tern__native_last(native, rank, last, sizeof(last));
        append_who(native, rank, "has not joined", text, sizeof(text));
        tern__text_append(text, sizeof(text), "%s", last);
    }
    return tern__error_set(err, "tern_group", TERN_E_TIMEOUT, "%s", text);
}

/* A rank that has left without posting the work that is due will never post it. */
static int check_left(const tern__goal *goal, tern_error *err)
{
    tern__channel *channel = goal->channel;
    const tern__native *native = channel->native;
    uint64_t seq = tern__channel_due(channel);
    for (int rank = 0; rank < native->world; rank++) {
        bool has_left = tern__native_has_left(native, rank);
        if (rank == native->rank || !(has_left || tern__channel_is_closed(channel, rank))) continue;
        if (atomic_load(&channel->posted[rank].value) >= seq) continue;
        char text[TERN_ERROR_TEXT], who[128], work[TERN__WORK_TEXT], hint[TERN__WORK_TEXT];
        tern__group_describe(native->group, rank, who, sizeof(who));
        own_text(channel, seq, work, sizeof(work));
        tern__desc_hint(channel, seq, rank, TERN__ELSEWHERE_LEFT, hint, sizeof(hint));
        snprintf(text, sizeof(text), "%s has %s while rank %d waits in %s%s", who,
                 has_left ? "closed its group" : "freed its ddp",
                 tern_group_world_rank(native->group, native->rank), work, hint);
        return tern__native_fail(native, TERN_E_PEER, text, err);
    }
    return TERN_OK;
}

/* ---- waiting ---- */

/* Progresses once. If the goal is met although there was a failure, the wait succeeds: a failure does not
 * undo what was done before it. */
static int look(tern__native *native, const tern__goal *goal, bool *met, tern_error *err)
{
    int status = tern__native_progress(native, err);
    if (status) {
        *met = goal->is_met(goal);
        return *met ? tern__native_pardon(err) : status;
    }
    status = tern__group_progress(native->group, err);
    *met = !status && goal->is_met(goal);
    return status;
}

/* Sleeps. A rank that has waited for long first publishes that it waits, and checks for a deadlock. */
static int rest(tern__native *native, const tern__goal *goal, unsigned bell, bool is_late, tern_error *err)
{
    if (is_late) tern__native_say(native, goal);
    bool is_said = is_late && tern__deadlock_begin(native, goal);
    int status = is_said ? tern__deadlock_check(native, err) : TERN_OK;
    if (!status) tern__native_sleep(native, bell, sleep_ns);
    if (is_said) tern__deadlock_end(native);
    return status;
}

static int sleep_once(tern__native *native, const tern__goal *goal, bool is_late, bool *met, tern_error *err)
{
    unsigned bell = tern__native_listen(native);
    int status = look(native, goal, met, err);
    if (!status && !*met) status = rest(native, goal, bell, is_late, err);
    tern__native_listened(native);
    return status;
}

static int check_slow(const tern__native *native, const tern__goal *goal, int64_t deadline, tern_error *err)
{
    int status = goal->channel    ? check_left(goal, err)
                 : goal->transfer ? tern__mailbox_check_left(goal->mailbox, goal->transfer, err)
                                  : check_joining(native, goal, err);
    if (status || tern__now_ns() < deadline || goal->is_met(goal)) return status;
    if (goal->transfer) return tern__mailbox_fail_late(goal->mailbox, goal->transfer, err);
    return goal->channel ? fail_late(goal, err) : fail_joining(native, goal, err);
}

static int spin(tern__native *native, const tern__goal *goal, bool *met, tern_error *err)
{
    int status = look(native, goal, met, err);
    for (int i = 0; i < native->spins && !status && !*met; i++) {
        pause_cpu();
        status = look(native, goal, met, err);
    }
    if (native->spins)
        native->spins =
            *met ? TERN__MIN(2 * native->spins, TERN__SPINS_MAX) : TERN__MAX(native->spins / 2, spins_min);
    return status;
}

static int await_longer(tern__native *native, const tern__goal *goal, tern_error *err)
{
    bool met = false;
    int status = TERN_OK;
    int64_t late = tern__deadline(native->root->late_s),
            deadline = tern__deadline(native->group->opts.timeout_s);
    for (int i = 0; !status && !met; i++) {
        bool is_late = tern__now_ns() >= late, yields = i < yields_max && !is_late;
        if (yields) sched_yield();
        status = yields ? look(native, goal, &met, err) : sleep_once(native, goal, is_late, &met, err);
        if (!status && !met) status = check_slow(native, goal, deadline, err);
    }
    return status;
}

static int await_goal(tern__native *native, const tern__goal *goal, tern_error *err)
{
    bool met = false;
    int status = spin(native, goal, &met, err);
    if (status || met) return status;
    status = await_longer(native, goal, err);
    if (!status) tern__wait_forget(native->group);
    return status;
}

int tern__native_await(tern__native *native, const tern__goal *goal, tern_error *err)
{
    int64_t began = tern__trace_now(native->group->trace);
    int status = await_goal(native, goal, err);
    tern__channel *channel = goal->channel;
    if (goal->transfer) tern__mailbox_trace(goal->mailbox, goal->transfer, began);
    if (channel)
        tern__work_trace(channel, TERN__MIN(goal->seq, channel->own_posted), TERN__TRACK_WAIT, began);
    return status;
}
