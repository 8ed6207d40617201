/* mailbox_wait.c - waits for messages: which ranks a wait is for, and the errors when nothing comes. */
#include "base/text.h"
#include "comm/move/window/mailbox.h"

#include <stdio.h>
#include <string.h>

/* ---- in words ---- */

/* Writes "rank 0 waits in recv of 4 f32 from rank 1, tag 3". */
static void own_text(const tern__mailbox *mailbox, const char *doing, const tern__transfer *t, char *text,
                     size_t size)
{
    const tern__native *native = mailbox->native;
    char what[TERN__WORK_TEXT];
    tern__transfer_text(native->group, t, what, sizeof(what));
    snprintf(text, size, "rank %d %s %s", tern_group_world_rank(native->group, native->rank), doing, what);
}

/* Appends what `rank` did last, as far as this rank can see. */
static void append_last(const tern__mailbox *mailbox, int rank, char *text, size_t size)
{
    const tern__native *native = mailbox->native;
    const tern__letter *letter = &mailbox->in[rank].last;
    char last[TERN__WORK_TEXT];
    if (letter->serial) {
        tern__letter_text(native->group, rank, letter, last, sizeof(last));
        tern__text_append(text, size, ", whose last message to it was %s", last);
    } else
        tern__text_append(text, size, ", which has sent it nothing so far");
    if (tern__deadlock_text(native, rank, last))
        tern__text_append(text, size, ", and which waits in %s", last);
    else if (tern__channel_last(native->first, rank, last, sizeof(last)))
        tern__text_append(text, size, ", and whose last collective was %s", last);
}

static void append_peer(const tern__mailbox *mailbox, int rank, const tern__transfer *t, char *text,
                        size_t size)
{
    char who[192];
    bool is_stopped = tern__native_who(mailbox->native, rank, who, sizeof(who));
    if (t->moved || (t->is_recv && tern__mailbox_has_met(mailbox, t)))
        tern__text_append(text, size, "; %s%s is still transferring it", who, is_stopped ? "," : "");
    else
        tern__text_append(text, size, "; not %s by %s", t->is_recv ? "sent" : "received", who);
    append_last(mailbox, rank, text, size);
}

int tern__mailbox_fail_late(const tern__mailbox *mailbox, const tern__transfer *t, tern_error *err)
{
    const tern__native *native = mailbox->native;
    char text[TERN_ERROR_TEXT], doing[48];
    snprintf(doing, sizeof(doing), "waited %g s in", native->group->opts.timeout_s);
    own_text(mailbox, doing, t, text, sizeof(text));
    for (int rank = 0; rank < native->world; rank++)
        if (rank == t->peer || (t->peer == TERN_ANY_SOURCE && rank != native->rank))
            append_peer(mailbox, rank, t, text, sizeof(text));
    return tern__native_fail(native, TERN_E_TIMEOUT, text, err);
}

int tern__mailbox_fail_left(const tern__mailbox *mailbox, const tern__transfer *t, tern_error *err)
{
    char text[TERN_ERROR_TEXT], own[256], who[128] = "every other rank";
    own_text(mailbox, "waits in", t, own, sizeof(own));
    if (t->peer != TERN_ANY_SOURCE) tern__group_describe(mailbox->native->group, t->peer, who, sizeof(who));
    snprintf(text, sizeof(text), "%s has closed its group while %s", who, own);
    return tern__native_fail(mailbox->native, TERN_E_PEER, text, err);
}

/* ---- ranks that have left ---- */

/* True if `rank` has left and nothing more can come from it. */
static bool is_gone(const tern__mailbox *mailbox, int rank, bool is_recv)
{
    const tern__native *native = mailbox->native;
    if (!tern__native_has_left(native, rank)) return false;
    return !is_recv || mailbox->in[rank].pair || tern__deadlock_lacks_fd(native, rank, TERN__PAIR_SERIAL);
}

static bool are_gone(const tern__mailbox *mailbox, const tern__transfer *t)
{
    const tern__native *native = mailbox->native;
    if (t->peer != TERN_ANY_SOURCE) return is_gone(mailbox, t->peer, t->is_recv);
    for (int rank = 0; rank < native->world; rank++)
        if (rank != native->rank && !is_gone(mailbox, rank, true)) return false;
    return true;
}

/* Messages that were sent before their sender left are there by now: one more progress finds them. */
int tern__mailbox_check_left(tern__mailbox *mailbox, const tern__transfer *t, tern_error *err)
{
    if (!are_gone(mailbox, t)) return TERN_OK;
    int status = tern__mailbox_progress(mailbox, err);
    if (status || t->status != TERN_PENDING) return status;
    return tern__mailbox_fail_left(mailbox, t, err);
}

/* ---- ranks that hold this one up ---- */

/* True if the descriptor of `rank`'s pair may still arrive; a rank is not missed for that. */
static bool is_on_its_way(const tern__mailbox *mailbox, int rank)
{
    return tern__match_wants(&mailbox->match, rank) && !mailbox->in[rank].pair &&
           !tern__deadlock_lacks_fd(mailbox->native, rank, TERN__PAIR_SERIAL);
}

static bool has_business(const tern__mailbox *mailbox, int rank)
{
    const tern__outbox *out = &mailbox->out[rank];
    return out->waiting.first || out->posted.first || mailbox->in[rank].granted.first ||
           tern__match_wants(&mailbox->match, rank);
}

bool tern__mailbox_miss(tern__mailbox *mailbox)
{
    const tern__native *native = mailbox->native;
    for (int rank = 0; rank < native->world && mailbox->pending; rank++) {
        if (rank == native->rank || !has_business(mailbox, rank)) continue;
        uint64_t acts = tern__deadlock_acts(native, rank);
        if (is_on_its_way(mailbox, rank) || tern__mailbox_can_move(mailbox, rank)) return false;
        if (!tern__native_has_left(native, rank)) tern__deadlock_miss(native, rank, acts);
    }
    return true;
}

/* ---- waiting ---- */

void tern__mailbox_trace(const tern__mailbox *mailbox, const tern__transfer *transfer, int64_t began)
{
    tern__trace *trace = mailbox->native->group->trace;
    if (!trace) return;
    tern__trace_event event = {.name = transfer->is_recv ? "wait for recv" : "wait for send",
                               .track = TERN__TRACK_WAIT,
                               .began = began,
                               .ended = tern__now_ns(),
                               .args = {{"bytes", (int64_t)tern__transfer_bytes(transfer)},
                                        {"peer", transfer->peer},
                                        {"tag", transfer->tag}}};
    tern__trace_add(trace, &event);
}

static bool is_over(const tern__goal *goal)
{
    return goal->transfer->status != TERN_PENDING;
}

int tern__mailbox_await(void *self, const tern__transfer *transfer, tern_error *err)
{
    tern__mailbox *mailbox = self;
    tern__goal goal = {.is_met = is_over, .mailbox = mailbox, .transfer = transfer};
    if (transfer->status != TERN_PENDING) return TERN_OK;
    return tern__native_await(mailbox->native, &goal, err);
}
