/* mailbox_life.c - point-to-point messages between hosts: waiting for and dropping a transfer, opening and
 * closing the mailbox. */
#include "comm/move/transport/mailbox.h"

#include <stdio.h>

/* ---- waiting ---- */

typedef struct goal {
    tern__goal goal;
    const struct tern__hosts_mailbox *mailbox;
    const tern__transfer *transfer;
} goal;

static bool transfer_is_over(const tern__goal *until)
{
    return ((const goal *)until)->transfer->status != TERN_PENDING;
}

static void goal_describe(const tern__goal *until, bool *ranks, char *what, size_t size)
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

int tern__hosts_mailbox_wait(void *hosts, const tern__transfer *transfer, tern_error *err)
{
    const struct tern__hosts_mailbox *mailbox = ((tern__hosts *)hosts)->mailbox;
    goal until = {.goal = {.is_met = transfer_is_over,
                           .describe = goal_describe,
                           .find_gone = find_gone,
                           .is_message = true},
                  .mailbox = mailbox,
                  .transfer = transfer};
    return transfer->status != TERN_PENDING ? TERN_OK : tern__wait(mailbox->hosts->group, &until.goal, err);
}

/* ---- ending ---- */

bool tern__hosts_mailbox_drop(void *hosts, tern__transfer *transfer, bool if_unmet)
{
    struct tern__hosts_mailbox *mailbox = ((tern__hosts *)hosts)->mailbox;
    if (!mailbox) return false;
    if (if_unmet) return tern__match_drop(&mailbox->matcher, transfer, true);
    for (int rank = 0; rank < mailbox->hosts->group->boot.world; rank++) {
        tern__mail_out *out = &mailbox->out[rank];
        tern__transfer **place = out->current == transfer ? &out->current : &out->body;
        if (*place != transfer) continue;
        tern__queue_push(&mailbox->matcher.peers[rank].posted, transfer);
        *place = NULL;
    }
    tern__link_give_up(mailbox->hosts->link); /* it may be half transferred */
    return tern__match_drop(&mailbox->matcher, transfer, false);
}

/* True if the transport holds a receive of this mailbox. It may never complete, and until the transport is
 * closed it may write to the mailbox's memory. */
static bool is_asking(const struct tern__hosts_mailbox *mailbox)
{
    bool asks = false;
    for (int rank = 0; rank < mailbox->hosts->group->boot.world; rank++) {
        const tern__mail_in *in = &mailbox->in[rank];
        asks |= in->envelopes.busy || in->shorts.busy || in->grants.busy || in->bodies.busy;
        asks |= mailbox->out[rank].grants.busy;
    }
    return asks;
}

void tern__mail_free(struct tern__hosts_mailbox *mailbox)
{
    tern__matcher_close(&mailbox->matcher);
    tern__free(mailbox->out);
    tern__free(mailbox->in);
    tern__free(mailbox);
}

void tern__hosts_mailbox_close(struct tern__hosts_mailbox *mailbox)
{
    if (!mailbox) return;
    tern__link *link = mailbox->hosts->link;
    tern__progress_hook_remove(&link->hooks, &mailbox->hook);
    if (!link->state || !is_asking(mailbox)) {
        tern__mail_free(mailbox);
        return;
    }
    mailbox->next = link->asking;
    link->asking = mailbox;
}

static struct tern__hosts_mailbox *hosts_mailbox_open(tern__hosts *hosts, tern_error *err)
{
    size_t world = (size_t)hosts->group->boot.world;
    struct tern__hosts_mailbox *mailbox = tern__alloc(sizeof(*mailbox), "tern_send", err);
    if (!mailbox) return NULL;
    mailbox->hook.progress = tern__mail_progress;
    mailbox->hosts = hosts;
    mailbox->matcher = (tern__matcher){.short_bytes = TERN__MAIL_SHORT,
                                       .kept_most = TERN__MAIL_KEPT,
                                       .family_pending = &hosts->link->transfers};
    mailbox->out = tern__alloc(world * sizeof(*mailbox->out), "tern_send", err);
    mailbox->in = tern__alloc(world * sizeof(*mailbox->in), "tern_send", err);
    bool is_made = mailbox->out && mailbox->in;
    if (!is_made || tern__matcher_open(&mailbox->matcher, hosts->group, err)) {
        tern__mail_free(mailbox);
        return NULL;
    }
    tern__progress_hook_add(&hosts->link->hooks, &mailbox->hook);
    return mailbox;
}

int tern__hosts_mailbox_start(void *state, tern__transfer *transfer, tern_error *err)
{
    tern__hosts *hosts = state;
    int status = tern__failure_check(hosts->group, err);
    if (status) return status;
    if (!hosts->mailbox && !(hosts->mailbox = hosts_mailbox_open(hosts, err))) return err->code;
    status = tern__match_start(&hosts->mailbox->matcher, transfer, err);
    return status || transfer->status == TERN_OK ? status : tern__mail_progress(&hosts->mailbox->hook, err);
}
