/* missing.c - which ranks a wait is for, and what a rank tells its peers during a long wait. Ranks of this
 * host read it in the lobby; ranks of other hosts ask the control thread. */
#include "comm/native/mailbox.h"

#include "base/text.h"
#include "comm/sys.h"

#include <stdio.h>
#include <string.h>

/* ---- which ranks a wait is for ---- */

tern__lack tern__channel_lack(tern__channel *channel, int rank, uint64_t goal)
{
    uint64_t seq = tern__channel_due(channel);
    bool is_own = rank == channel->native->rank;
    if (atomic_load(&channel->posted[rank].value) < seq) return TERN__LACKS_POST;
    if (!is_own && atomic_load(&channel->inside[rank].value)) return TERN__LACKS_END;
    if (tern__channel_owes_chunk(channel, seq, rank)) return TERN__LACKS_CHUNK;
    if (atomic_load(&channel->retired[rank].value) + channel->slots < goal) return TERN__LACKS_LEAVE;
    return TERN__LACKS_NOTHING;
}

const bool *tern__channel_missing(tern__channel *channel, uint64_t goal)
{
    const tern__native *native = channel->native;
    bool *ranks = native->root->circle.missing;
    for (int rank = 0; rank < native->world; rank++)
        ranks[rank] = rank != native->rank && tern__channel_lack(channel, rank, goal) != TERN__LACKS_NOTHING;
    return ranks;
}

bool tern__shared_has_joined(const tern__shared_head *head, int rank)
{
    return rank >= TERN__SHARED_RANKS || atomic_load(&head->here[rank / 64]) >> rank % 64 & 1;
}

static const bool *goal_missing(const tern__native *native, const tern__goal *goal)
{
    bool *ranks = native->root->circle.missing;
    if (goal->channel) return tern__channel_missing(goal->channel, goal->seq);
    for (int rank = 0; rank < native->world; rank++)
        ranks[rank] = goal->transfer ? rank == goal->transfer->peer
                      : goal->head   ? !tern__shared_has_joined(goal->head, rank)
                                     : rank == goal->peer;
    return ranks;
}

/* ---- telling the peers ---- */

/* Appends ", for ranks 1, 3". Returns the first one's rank in the root group, or -1. */
static int append_missing(const tern_group *group, const bool *ranks, bool is_named, char *text, size_t size)
{
    int count = 0, first = -1;
    for (int rank = 0; rank < group->boot.world; rank++) count += ranks[rank];
    const char *before = count == 1 ? ", for rank " : ", for ranks ";
    for (int rank = 0; rank < group->boot.world; rank++) {
        if (!ranks[rank]) continue;
        int name = tern_group_world_rank(group, rank);
        if (first < 0) first = name;
        if (is_named) tern__text_append(text, size, "%s%d", before, name);
        before = ", ";
    }
    return first;
}

/* ---- who is stopped ---- */

/* Returns NULL while this rank waits for the lobby itself. */
static tern__lobby *lobby_of(const tern_group *root)
{
    return root->native ? root->native->lobby : NULL;
}

/* True if nobody has said yet that `rank`, one of the root's, is stopped: neither this rank nor another one
 * of its lobby. */
static bool is_first_to_say(tern_group *root, int rank)
{
    uint64_t bit = UINT64_C(1) << rank % 64;
    tern__lobby *lobby = lobby_of(root);
    if (root->stopped & bit) return false;
    if (lobby && atomic_fetch_or(&lobby->stopped, bit) & bit) return false;
    root->stopped |= bit;
    return true;
}

static void forget_stopped(tern_group *root)
{
    tern__lobby *lobby = lobby_of(root);
    if (lobby) atomic_fetch_and(&lobby->stopped, ~root->stopped);
    root->stopped = 0;
    root->stop_look_at = 0;
}

/* `rank` is one of the root's. */
static void warn_of_stopped(const tern_group *group, const char *what, int rank, bool is_seen)
{
    char who[128];
    int own = tern_group_world_rank(group, group->boot.rank);
    tern__control_describe(group->control, rank, who, sizeof(who));
    if (is_seen)
        tern__log(TERN_LOG_WARN,
                  "%s is stopped (by SIGSTOP or a debugger) while rank %d waits for it in %s; SIGCONT "
                  "continues it, and the wait fails after %g s",
                  who, own, what, group->opts.timeout_s);
    else
        tern__log(
            TERN_LOG_WARN,
            "%s does not answer while rank %d waits for it in %s, although its host does: it is stopped "
            "(by SIGSTOP, a debugger or a frozen control group); SIGCONT continues it, and the wait "
            "fails after %g s",
            who, own, what, group->opts.timeout_s);
}

/* Looks for the stopped ranks that hold up `ranks`, and warns of them once it is time to. Only some ranks of
 * other hosts are asked: if another one is stopped, those wait for it, too. */
static void warn_of_all(const tern_group *group, const char *what, const bool *ranks, double silent_s)
{
    const int asks_max = 16;
    int asks = 0;
    tern_group *root = group->root;
    bool is_time = tern__now_ns() >= root->stop_warn_at;
    for (int rank = 0; rank < group->boot.world; rank++) {
        bool is_seen = false;
        int root_rank = tern_group_world_rank(group, rank);
        if (!ranks[rank]) continue;
        if (!tern__control_is_same_host(group->control, root_rank) && ++asks > asks_max) continue;
        int stopped = tern__control_find_stopped(group->control, root_rank, silent_s, &is_seen);
        if (stopped < 0 || !is_time) continue;
        root->stop_look_at = INT64_MAX;
        if (is_first_to_say(root, stopped)) warn_of_stopped(group, what, stopped, is_seen);
    }
}

/* A stopped rank would be an error only after the group's time-out, half an hour. The wait warns of it once,
 * after 10 s or half of a shorter time-out. It looks once a second, and from half of that time on, since
 * ranks of other hosts have to be asked first. */
static void look_for_stopped(const tern_group *group, const char *what, const bool *ranks)
{
    int64_t now = tern__now_ns(), *at = &group->root->stop_look_at;
    double warn_s = TERN__MIN(10, group->opts.timeout_s / 2), look_s = warn_s / 10;
    if (!*at) {
        *at = tern__deadline(warn_s / 2);
        group->root->stop_warn_at = tern__deadline(warn_s);
    }
    if (now < *at) return;
    *at = tern__deadline(look_s);
    warn_of_all(group, what, ranks, 3 * look_s);
}

/* ---- telling the peers ---- */

void tern__wait_say(const tern_group *group, const char *what, const bool *ranks, bool is_named)
{
    char text[TERN__LAST_TEXT];
    snprintf(text, sizeof(text), "%s", what);
    int first = append_missing(group, ranks, is_named, text, sizeof(text));
    tern__control_wait_set(group->control, text, first);
    if (group->root->native) tern__deadlock_say(group->root->native, what);
    look_for_stopped(group, what, ranks);
}

void tern__wait_forget(const tern_group *group)
{
    tern__control_wait_set(group->control, NULL, -1);
    if (group->root->stop_look_at) forget_stopped(group->root);
    if (group->root->native) tern__deadlock_forget(group->root->native);
}

double tern__wait_late_s(const tern_group *group)
{
    return group->root->native ? group->root->native->late_s : 0.05;
}

/* ---- asking them ---- */

static void append_here(const tern_group *group, int rank, char *text, size_t size)
{
    char who[128], what[TERN__WORK_TEXT];
    bool is_stopped = tern__group_is_stopped(group, rank);
    tern__group_describe(group, rank, who, sizeof(who));
    tern__text_append(text, size, "; %s", who);
    if (is_stopped)
        tern__text_append(text, size, " is stopped (by SIGSTOP or a debugger)");
    else if (tern__deadlock_text(group->root->native, tern_group_world_rank(group, rank), what))
        tern__text_append(text, size, " waits in %s", what);
    else
        tern__text_append(text, size, " does not wait");
}

void tern__wait_blame(const tern_group *group, const char *what, const bool *ranks, char *text, size_t size)
{
    bool is_here = group->root->native && tern__control_hosts(group->control) == 1;
    for (int rank = 0; rank < group->boot.world; rank++) {
        if (!ranks[rank]) continue;
        if (is_here)
            append_here(group, rank, text, size);
        else
            tern__control_last_ask(group->control, tern_group_world_rank(group, rank));
    }
    if (!is_here) tern__control_others_text(group->control, what, 0.5, text, size);
}

/* A message's text names its peer already. */
void tern__native_say(const tern__native *native, const tern__goal *goal)
{
    char what[TERN__WORK_TEXT] = "the opening of a window or channel";
    if (goal->channel) {
        uint64_t seq = tern__channel_due(goal->channel);
        tern__desc_text(&tern__slot_desc(goal->channel, seq)[native->rank], seq, what, sizeof(what));
    }
    if (goal->transfer) tern__transfer_text(native->group, goal->transfer, what, sizeof(what));
    tern__text_append(what, sizeof(what), "%s", native->where);
    tern__wait_say(native->group, what, goal_missing(native, goal), !goal->transfer);
}

/* ---- in words ---- */

void tern__native_last(const tern__native *native, int rank, char *text, size_t size)
{
    char last[TERN__WORK_TEXT];
    if (native->lobby && tern__deadlock_text(native, rank, last))
        snprintf(text, size, ", which waits in %s", last);
    else if (tern__channel_last(native->first, rank, last, sizeof(last)))
        snprintf(text, size, ", whose last collective was %s", last);
    else
        snprintf(text, size, ", which has called no collective yet");
}

void tern__channel_hint(const tern__channel *channel, char *text, size_t size)
{
    uint64_t seq = tern__channel_due(channel);
    *text = '\0';
    for (int rank = 0; rank < channel->native->world && !*text; rank++)
        if (atomic_load(&channel->posted[rank].value) < seq)
            tern__desc_hint(channel, seq, rank, TERN__ELSEWHERE_WAITS, text, size);
}
