/* mailbox_life.c - point-to-point messages between hosts: starting, waiting for and dropping a transfer,
 * opening and closing the mailbox. */
#include "comm/move/transport/mailbox.h"

#include <stdio.h>

/* ---- starting ---- */

static int start_send(struct tern__hosts_mailbox *mailbox, tern__transfer *t, tern_error *err)
{
    tern__mail_out *out = &mailbox->out[t->peer];
    t->serial = ++out->serial;
    t->moved = 0;
    tern__queue_push(&out->waiting, t);
    tern__mail_pending_add(mailbox, 1);
    return tern__mail_progress(&mailbox->party, err);
}

static int start_recv(struct tern__hosts_mailbox *mailbox, tern__transfer *t, tern_error *err)
{
    tern__kept *kept = tern__match_receive(&mailbox->match, t);
    t->moved = 0;
    tern__mail_pending_add(mailbox, 1);
    return kept ? tern__mail_take_kept(mailbox, kept, t, err) : tern__mail_progress(&mailbox->party, err);
}

int tern__hosts_mailbox_start(void *self, tern__transfer *transfer, tern_error *err)
{
    struct tern__hosts_mailbox *mailbox = self;
    int status = tern__failure_check(mailbox->hosts->group, err);
    if (status) return status;
    return transfer->is_recv ? start_recv(mailbox, transfer, err) : start_send(mailbox, transfer, err);
}

/* ---- progress ---- */

int tern__hosts_mailbox_carry(void *self, tern_error *err)
{
    tern_group *group = ((struct tern__hosts_mailbox *)self)->hosts->group;
    return group->root->progress(group, err);
}

typedef struct goal {
    tern__goal goal;
    const struct tern__hosts_mailbox *mailbox;
    const tern__transfer *transfer;
} goal;

static bool is_over(const tern__goal *until)
{
    return ((const goal *)until)->transfer->status != TERN_PENDING;
}

static void describe(const tern__goal *until, bool *ranks, char *what, size_t size)
{
    const goal *g = (const goal *)until;
    const tern_group *group = g->mailbox->hosts->group;
    int peer = g->transfer->peer;
    tern__transfer_text(group, g->transfer, what, size);
    for (int rank = 0; rank < group->boot.world; rank++)
        ranks[rank] = peer == TERN_ANY_SOURCE ? rank != group->boot.rank : rank == peer;
}

/* Returns the peer if it has left, or -1. A receive from any rank fails only when all other ranks have left:
 * it returns the last of them. */
static int find_gone(const tern__goal *until)
{
    const goal *g = (const goal *)until;
    const tern_group *group = g->mailbox->hosts->group;
    int peer = g->transfer->peer, gone = -1;
    if (peer != TERN_ANY_SOURCE) return tern__group_has_left(group, peer) ? peer : -1;
    for (int rank = 0; rank < group->boot.world; rank++) {
        if (rank == group->boot.rank) continue;
        if (!tern__group_has_left(group, rank)) return -1;
        gone = rank;
    }
    return gone;
}

int tern__hosts_mailbox_await(void *self, const tern__transfer *transfer, tern_error *err)
{
    const struct tern__hosts_mailbox *mailbox = self;
    goal until = {
        .goal = {.is_met = is_over, .describe = describe, .find_gone = find_gone, .is_message = true},
        .mailbox = mailbox,
        .transfer = transfer};
    return transfer->status != TERN_PENDING ? TERN_OK : tern__wait(mailbox->hosts->group, &until.goal, err);
}

/* ---- ending ---- */

/* Removes and returns the oldest unfinished transfer. */
static tern__transfer *pop_any(struct tern__hosts_mailbox *mailbox)
{
    tern__transfer *t = tern__queue_pop(&mailbox->match.receives);
    for (int rank = 0; rank < mailbox->hosts->group->boot.world && !t; rank++) {
        tern__mail_out *out = &mailbox->out[rank];
        t = tern__queue_pop(&mailbox->in[rank].granted);
        if (!t) t = tern__queue_pop(&out->waiting);
        if (!t) t = tern__queue_pop(&out->posted);
        if (!t && (t = out->current)) out->current = NULL;
        if (!t && (t = out->body)) out->body = NULL;
    }
    return t;
}

void tern__hosts_mailbox_drop(void *self, tern__transfer *transfer)
{
    struct tern__hosts_mailbox *mailbox = self;
    bool found = tern__queue_remove(&mailbox->match.receives, transfer);
    for (int rank = 0; rank < mailbox->hosts->group->boot.world && !found; rank++) {
        tern__mail_out *out = &mailbox->out[rank];
        found = tern__queue_remove(&mailbox->in[rank].granted, transfer) ||
                tern__queue_remove(&out->waiting, transfer) || tern__queue_remove(&out->posted, transfer) ||
                out->current == transfer || out->body == transfer;
        if (out->current == transfer) out->current = NULL;
        if (out->body == transfer) out->body = NULL;
    }
    tern__mail_pending_add(mailbox, -(int)found);
    if (mailbox->hosts->link) tern__link_give_up(mailbox->hosts->link); /* it may be half transferred */
}

/* True if the transport holds a receive of this mailbox. It may never complete, and until the transport is
 * closed it may write to the mailbox's memory. */
static bool is_asking(const struct tern__hosts_mailbox *mailbox)
{
    bool asks = false;
    for (int rank = 0; rank < mailbox->hosts->group->boot.world; rank++) {
        const tern__mail_in *in = &mailbox->in[rank];
        asks |= in->letters.busy || in->shorts.busy || in->grants.busy || in->bodies.busy;
        asks |= mailbox->out[rank].grants.busy;
    }
    return asks;
}

void tern__mail_free(struct tern__hosts_mailbox *mailbox)
{
    tern__match_close(&mailbox->match);
    tern__free(mailbox->out);
    tern__free(mailbox->in);
    tern__free(mailbox);
}

static void fail_unfinished(const struct tern__hosts_mailbox *mailbox, const tern__transfer *t)
{
    const tern__hosts *hosts = mailbox->hosts;
    char what[128], text[TERN_ERROR_TEXT];
    tern_error why = {0};
    tern__transfer_text(hosts->group, t, what, sizeof(what));
    snprintf(text, sizeof(text), "rank %d has closed its group before its %s was done",
             tern_group_world_rank(hosts->group, hosts->group->boot.rank), what);
    tern__failure_set_in(hosts->group, TERN_E_PEER, text, &why);
    tern__group_fail(hosts->group, &why);
}

void tern__hosts_mailbox_close(void *self)
{
    struct tern__hosts_mailbox *mailbox = self;
    tern__link *link = mailbox->hosts->link;
    tern__party_leave(&link->parties, &mailbox->party);
    bool is_unfinished = mailbox->pending > 0;
    tern__mail_pending_add(mailbox, -mailbox->pending);
    for (tern__transfer *t; (t = pop_any(mailbox)); t->status = TERN_E_STATE) fail_unfinished(mailbox, t);
    if (is_unfinished) tern__link_give_up(link);
    if (!link->state || !is_asking(mailbox)) {
        tern__mail_free(mailbox);
        return;
    }
    mailbox->next = link->asking;
    link->asking = mailbox;
}

void *tern__hosts_mailbox_open(void *state, tern_error *err)
{
    tern__hosts *hosts = state;
    size_t world = (size_t)hosts->group->boot.world;
    struct tern__hosts_mailbox *mailbox = tern__alloc(sizeof(*mailbox), "tern_send", err);
    if (!mailbox) return NULL;
    mailbox->party.progress = tern__mail_progress;
    mailbox->hosts = hosts;
    mailbox->out = tern__alloc(world * sizeof(*mailbox->out), "tern_send", err);
    mailbox->in = tern__alloc(world * sizeof(*mailbox->in), "tern_send", err);
    if (!mailbox->out || !mailbox->in) {
        tern__mail_free(mailbox);
        return NULL;
    }
    tern__party_join(&hosts->link->parties, &mailbox->party);
    return mailbox;
}
