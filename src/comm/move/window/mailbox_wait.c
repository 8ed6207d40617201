/* mailbox_wait.c - waits for messages: which ranks a wait is for, and the errors when nothing comes. */
#include "base/text.h"
#include "comm/move/window/mailbox.h"

#include <stdio.h>
#include <string.h>

/* ---- in words ---- */

/* Writes "rank 0 waits in recv of 4 f32 from rank 1, tag 3". */
static void own_message_text(const tern__mailbox *mailbox, const char *doing, const tern__transfer *t,
                             char *text, size_t size)
{
    const tern__shm_group *ranks = mailbox->ranks;
    char what[TERN__WORK_TEXT];
    tern__transfer_text(ranks->group, t, what, sizeof(what));
    snprintf(text, size, "rank %d %s %s", tern_group_world_rank(ranks->group, ranks->rank), doing, what);
}

/* Appends what `rank` did last, as far as this rank can see. */
static void append_last(const tern__mailbox *mailbox, int rank, char *text, size_t size)
{
    const tern__shm_group *ranks = mailbox->ranks;
    const tern__envelope *envelope = &mailbox->in[rank].last;
    char last[TERN__WORK_TEXT];
    if (envelope->serial) {
        tern__envelope_text(ranks->group, rank, envelope, last, sizeof(last));
        tern__text_append(text, size, ", whose last message to it was %s", last);
    } else
        tern__text_append(text, size, ", which has sent it nothing so far");
    if (tern__deadlock_text(ranks->shm, ranks->group, rank, last))
        tern__text_append(text, size, ", and which waits in %s", last);
    else if (tern__meeting_last_text(ranks->first, rank, last, sizeof(last)))
        tern__text_append(text, size, ", and whose last collective was %s", last);
}

static void append_peer(const tern__mailbox *mailbox, int rank, const tern__transfer *t, char *text,
                        size_t size)
{
    char who[192];
    bool is_stopped = tern__rank_text(mailbox->ranks->group, rank, who, sizeof(who));
    if (t->moved || (t->is_recv && t->serial)) /* it has met its message */
        tern__text_append(text, size, "; %s%s is still transferring it", who, is_stopped ? "," : "");
    else
        tern__text_append(text, size, "; not %s by %s", t->is_recv ? "sent" : "received", who);
    append_last(mailbox, rank, text, size);
}

static int fail_late(const tern__mailbox *mailbox, const tern__transfer *t, tern_error *err)
{
    const tern__shm_group *ranks = mailbox->ranks;
    char text[TERN_ERROR_TEXT], doing[48];
    snprintf(doing, sizeof(doing), "waited %g s in", ranks->group->opts.timeout_s);
    own_message_text(mailbox, doing, t, text, sizeof(text));
    for (int rank = 0; rank < ranks->world; rank++)
        if (rank == t->peer || (t->peer == TERN_ANY_SOURCE && rank != ranks->rank))
            append_peer(mailbox, rank, t, text, sizeof(text));
    return tern__failure_set_in(ranks->group, TERN_E_TIMEOUT, text, err);
}

int tern__mailbox_fail_left(const tern__mailbox *mailbox, const tern__transfer *t, tern_error *err)
{
    char text[TERN_ERROR_TEXT], own[256], who[128] = "every other rank";
    own_message_text(mailbox, "waits in", t, own, sizeof(own));
    if (t->peer != TERN_ANY_SOURCE) tern__group_describe(mailbox->ranks->group, t->peer, who, sizeof(who));
    snprintf(text, sizeof(text), "%s has closed its group while %s", who, own);
    return tern__failure_set_in(mailbox->ranks->group, TERN_E_PEER, text, err);
}

/* ---- ranks that have left ---- */

/* True if `rank` has left and nothing more can come from it. */
static bool is_gone(const tern__mailbox *mailbox, int rank, bool is_recv)
{
    const tern__shm_group *ranks = mailbox->ranks;
    if (!tern__shm_has_left(ranks, rank)) return false;
    return !is_recv || mailbox->in[rank].pair ||
           tern__deadlock_lacks_fd(ranks->shm, ranks->group, rank, TERN__SERIAL_OTHER);
}

static bool are_gone(const tern__mailbox *mailbox, const tern__transfer *t)
{
    const tern__shm_group *ranks = mailbox->ranks;
    if (t->peer != TERN_ANY_SOURCE) return is_gone(mailbox, t->peer, t->is_recv);
    for (int rank = 0; rank < ranks->world; rank++)
        if (rank != ranks->rank && !is_gone(mailbox, rank, true)) return false;
    return true;
}

/* Messages that were sent before their sender left are there by now: one more progress finds them. */
static int check_left(tern__mailbox *mailbox, const tern__transfer *t, tern_error *err)
{
    if (!are_gone(mailbox, t)) return TERN_OK;
    int status = tern__mailbox_progress(&mailbox->hook, err);
    if (status || t->status != TERN_PENDING) return status;
    return tern__mailbox_fail_left(mailbox, t, err);
}

/* ---- ranks that hold this one up ---- */

/* True if the descriptor of `rank`'s pair may still arrive; a rank is not missed for that. */
static bool is_on_its_way(const tern__mailbox *mailbox, int rank)
{
    return tern__match_wants(&mailbox->matcher, rank) && !mailbox->in[rank].pair &&
           !tern__deadlock_lacks_fd(mailbox->ranks->shm, mailbox->ranks->group, rank, TERN__SERIAL_OTHER);
}

static bool has_business(const tern__mailbox *mailbox, int rank)
{
    const tern__match_peer *peer = &mailbox->matcher.peers[rank];
    return peer->waiting.first || peer->posted.first || peer->granted.first ||
           tern__match_wants(&mailbox->matcher, rank);
}

/* Returns false if this rank could do something for a message. */
bool tern__mailbox_miss(tern__progress_hook *hook)
{
    tern__mailbox *mailbox = (tern__mailbox *)hook;
    const tern__shm_group *ranks = mailbox->ranks;
    for (int rank = 0; rank < ranks->world && mailbox->matcher.pending; rank++) {
        if (rank == ranks->rank || !has_business(mailbox, rank)) continue;
        uint64_t acts = tern__deadlock_acts(ranks->shm, ranks->group, rank);
        if (is_on_its_way(mailbox, rank) || tern__mailbox_can_move(mailbox, rank)) return false;
        if (!tern__shm_has_left(ranks, rank)) tern__deadlock_miss(ranks->shm, ranks->group, rank, acts);
    }
    return true;
}

/* ---- waiting ---- */

typedef struct goal {
    tern__goal goal;
    tern__mailbox *mailbox;
    const tern__transfer *transfer;
} goal;

static bool message_is_over(const tern__goal *until)
{
    return ((const goal *)until)->transfer->status != TERN_PENDING;
}

static void message_goal_describe(const tern__goal *until, bool *ranks, char *what, size_t size)
{
    const goal *g = (const goal *)until;
    tern__transfer_text(g->mailbox->ranks->group, g->transfer, what, size);
    if (g->transfer->peer != TERN_ANY_SOURCE) ranks[g->transfer->peer] = true;
}

static int message_goal_check(const tern__goal *until, tern_error *err)
{
    const goal *g = (const goal *)until;
    return check_left(g->mailbox, g->transfer, err);
}

static int message_goal_fail_late(const tern__goal *until, tern_error *err)
{
    const goal *g = (const goal *)until;
    return fail_late(g->mailbox, g->transfer, err);
}

/* The mailbox is a hook: it has missed the ranks already. */
static bool message_goal_miss(const tern__goal *until)
{
    return !message_is_over(until);
}

static void trace_wait(const tern_group *group, const tern__transfer *transfer, int64_t began)
{
    if (!group->trace) return;
    tern__trace_event event = {.name = transfer->is_recv ? "wait for recv" : "wait for send",
                               .track = TERN__TRACK_WAIT,
                               .began = began,
                               .ended = tern__now_ns(),
                               .args = {{"bytes", (int64_t)tern__transfer_bytes(transfer)},
                                        {"peer", transfer->peer},
                                        {"tag", transfer->tag}}};
    tern__trace_add(group->trace, &event);
}

int tern__mailbox_wait(void *windows, const tern__transfer *transfer, tern_error *err)
{
    tern__mailbox *mailbox = ((tern__window_state *)windows)->mailbox;
    tern_group *group = mailbox->ranks->group;
    goal until = {.goal = {.is_met = message_is_over,
                           .describe = message_goal_describe,
                           .check = message_goal_check,
                           .fail_late = message_goal_fail_late,
                           .miss = message_goal_miss,
                           .stays_met = true,
                           .is_message = true},
                  .mailbox = mailbox,
                  .transfer = transfer};
    if (transfer->status != TERN_PENDING) return TERN_OK;
    int64_t began = tern__trace_now(group->trace);
    int status = tern__wait(group, &until.goal, err);
    trace_wait(group, transfer, began);
    return status;
}
