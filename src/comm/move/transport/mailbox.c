/* mailbox.c - the messages of a group that spans hosts: what match.c decides, carried by the transport.
 * Each pair of ranks uses three tags in each direction: envelopes, grants and bodies. The body of a short
 * message is sent right behind its envelope. A long one follows its grant in pieces of a size that the
 * transport takes, so bodies arrive in the order of their grants. */
#include "comm/move/transport/mailbox.h"

#include "comm/sys.h"

#include <string.h>

enum { ENVELOPES, GRANTS, BODIES };

/* ---- parcels ---- */

static int begin_send(const struct tern__hosts_mailbox *mailbox, int rank, int what, const void *data,
                      size_t bytes, tern__parcel_slot *slot, tern_error *err)
{
    const tern__hosts *hosts = mailbox->hosts;
    int tag = hosts->mail_tag + what;
    int status = tern__link_send(hosts->link, hosts->group, rank, tag, data, bytes, &slot->message, err);
    slot->busy = !status;
    return status;
}

static int begin_recv(const struct tern__hosts_mailbox *mailbox, int rank, int what, void *data, size_t bytes,
                      tern__parcel_slot *slot, tern_error *err)
{
    const tern__hosts *hosts = mailbox->hosts;
    int tag = hosts->mail_tag + what;
    int status = tern__link_recv(hosts->link, hosts->group, rank, tag, data, bytes, &slot->message, err);
    slot->busy = !status;
    return status;
}

/* Returns TERN_OK if the slot's message is complete, or if it has none. */
static int slot_test(const struct tern__hosts_mailbox *mailbox, tern__parcel_slot *slot, tern_error *err)
{
    if (!slot->busy) return TERN_OK;
    int status = tern__link_test(mailbox->hosts->link, &slot->message, err);
    slot->busy = status == TERN_PENDING;
    return status;
}

static tern__match_peer *peer_of(const struct tern__hosts_mailbox *mailbox, int rank)
{
    return &mailbox->matcher.peers[rank];
}

static size_t next_piece(const tern__transfer *t)
{
    return TERN__MIN(tern__body_bytes(t) - t->moved, TERN_TRANSPORT_BYTES_MAX);
}

/* ---- sending ---- */

static int post_envelope(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    tern__mail_out *out = &mailbox->out[rank];
    tern__match_peer *peer = peer_of(mailbox, rank);
    tern__transfer *t = tern__queue_pop(&peer->waiting);
    size_t bytes = tern__transfer_bytes(t);
    out->envelope = tern__envelope_of(t);
    if (tern__match_is_short(&mailbox->matcher, &out->envelope))
        out->current = t;
    else
        tern__queue_push(&peer->posted, t);
    int status =
        begin_send(mailbox, rank, ENVELOPES, &out->envelope, sizeof(out->envelope), &out->envelopes, err);
    if (status || !out->current || !bytes) return status;
    return begin_send(mailbox, rank, ENVELOPES, t->buf, bytes, &out->shorts, err);
}

static int push_envelopes(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    tern__mail_out *out = &mailbox->out[rank];
    for (;;) {
        int status = slot_test(mailbox, &out->envelopes, err);
        if (!status) status = slot_test(mailbox, &out->shorts, err);
        if (status) return status;
        if (out->current) tern__match_finish(&mailbox->matcher, out->current);
        out->current = NULL;
        if (!peer_of(mailbox, rank)->waiting.first) return TERN_OK;
        status = post_envelope(mailbox, rank, err);
        if (status) return status;
    }
}

static int send_body(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    tern__mail_out *out = &mailbox->out[rank];
    while (out->body) {
        tern__transfer *t = out->body;
        int status = slot_test(mailbox, &out->bodies, err);
        if (status) return status;
        size_t piece = next_piece(t);
        if (piece)
            status = begin_send(mailbox, rank, BODIES, tern__body(t) + t->moved, piece, &out->bodies, err);
        if (status) return status;
        t->moved += piece;
        if (piece) continue;
        tern__match_finish(&mailbox->matcher, t);
        out->body = NULL;
    }
    return TERN_OK;
}

/* Receives a grant and makes its transfer the next body to send. */
static int take_grant(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    tern__mail_out *out = &mailbox->out[rank];
    int status = TERN_OK;
    if (out->body || !peer_of(mailbox, rank)->posted.first) return TERN_OK;
    if (!out->grants.busy)
        status = begin_recv(mailbox, rank, GRANTS, &out->granted, sizeof(out->granted), &out->grants, err);
    if (!status) status = slot_test(mailbox, &out->grants, err);
    if (status) return status;
    tern__transfer *t = tern__match_posted(&mailbox->matcher, rank, out->granted);
    if (!t)
        return tern__error_set(
            err, "tern_send", TERN_E_PEER, "rank %d granted message %llu, which does not wait for a grant",
            tern_group_world_rank(mailbox->hosts->group, rank), (unsigned long long)out->granted);
    tern__grant_take(t, out->granted);
    tern__queue_remove(&peer_of(mailbox, rank)->posted, t);
    out->body = t;
    return TERN_OK;
}

static int send_to_rank(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    int status = push_envelopes(mailbox, rank, err);
    if (status >= 0) status = send_body(mailbox, rank, err);
    if (status >= 0) status = take_grant(mailbox, rank, err);
    if (status >= 0) status = send_body(mailbox, rank, err);
    return TERN__MIN(status, 0);
}

/* ---- receiving ---- */

/* Accepts an envelope that has arrived completely, with its short body. There is room to keep it: it was
 * asked for only if there was. */
static int accept_envelope(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    size_t bytes = tern__match_short_bytes(&mailbox->matcher, &in->envelope);
    tern__transfer *t;
    char *body;
    int status = tern__match_accept(&mailbox->matcher, source, &in->envelope, &t, &body, err);
    if (status) return status;
    if (bytes) memcpy(body, in->data, bytes);
    tern__match_complete(&mailbox->matcher, source, &in->envelope, t);
    return TERN_OK;
}

/* Waits up to a second for the rank's goodbye. It is sent before this connection closes, but over another. */
static bool has_left(const struct tern__hosts_mailbox *mailbox, int rank)
{
    const tern_group *group = mailbox->hosts->group;
    int64_t deadline = tern__deadline(1.0);
    while (!tern__group_has_left(group, rank) && tern__control_is_healthy(group->control) &&
           tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__now_ns() + 1000000);
    return tern__group_has_left(group, rank);
}

/* A receive is posted whether or not an envelope will come, and fails in some transports when the sender
 * closes its group. Returns TERN_PENDING for a sender that has left, else the error. */
static int forgive_left(struct tern__hosts_mailbox *mailbox, int source, const tern_error *why,
                        tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    in->gone = has_left(mailbox, source);
    return in->gone ? TERN_PENDING : tern__error_set(err, why->func, why->code, "%s", why->text);
}

static int ask_envelope(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    bool has_room = tern__match_has_room(&mailbox->matcher, source);
    if (in->envelopes.busy || in->shorts.busy || in->gone || !has_room) return TERN_OK;
    if (!tern__match_wants(&mailbox->matcher, source)) return TERN_OK;
    tern_error why = {0};
    int status =
        begin_recv(mailbox, source, ENVELOPES, &in->envelope, sizeof(in->envelope), &in->envelopes, &why);
    return status ? forgive_left(mailbox, source, &why, err) : TERN_OK;
}

/* Returns TERN_PENDING until an envelope and its short body have arrived. */
static int await_envelope(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    if (!in->envelopes.busy && !in->shorts.busy) return TERN_PENDING;
    bool is_new = in->envelopes.busy;
    tern_error why = {0};
    int status = slot_test(mailbox, &in->envelopes, &why);
    if (status < 0) return forgive_left(mailbox, source, &why, err);
    if (status) return status;
    size_t bytes = tern__match_short_bytes(&mailbox->matcher, &in->envelope);
    if (is_new && bytes) status = begin_recv(mailbox, source, ENVELOPES, in->data, bytes, &in->shorts, err);
    return status ? status : slot_test(mailbox, &in->shorts, err);
}

static int pull_envelopes(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    int status = TERN_OK;
    while (!status) {
        status = ask_envelope(mailbox, source, err);
        if (!status) status = await_envelope(mailbox, source, err);
        if (!status) status = accept_envelope(mailbox, source, err);
    }
    return status;
}

static int ask_body(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    if (in->asked) return TERN_OK;
    int status = slot_test(mailbox, &in->grants, err);
    if (status) return status;
    in->grant = tern__grant_of(peer_of(mailbox, source)->granted.first);
    in->asked = true;
    return begin_send(mailbox, source, GRANTS, &in->grant, sizeof(in->grant), &in->grants, err);
}

static int recv_bodies(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    tern__queue *granted = &peer_of(mailbox, source)->granted;
    for (tern__transfer *t; (t = granted->first);) {
        int status = ask_body(mailbox, source, err);
        if (!status) status = slot_test(mailbox, &in->bodies, err);
        if (status) return status;
        size_t piece = next_piece(t);
        if (piece)
            status = begin_recv(mailbox, source, BODIES, tern__body(t) + t->moved, piece, &in->bodies, err);
        if (status) return status;
        t->moved += piece;
        if (piece) continue;
        tern__queue_pop(granted);
        tern__match_finish(&mailbox->matcher, t);
        in->asked = false;
    }
    return slot_test(mailbox, &in->grants, err);
}

int tern__mail_progress(tern__progress_hook *hook, tern_error *err)
{
    struct tern__hosts_mailbox *mailbox = (struct tern__hosts_mailbox *)hook;
    const tern_group *group = mailbox->hosts->group;
    int status = TERN_OK;
    for (int i = 1; i < group->boot.world && status >= 0; i++) {
        int rank = (group->boot.rank + i) % group->boot.world;
        status = send_to_rank(mailbox, rank, err);
        if (status >= 0) status = pull_envelopes(mailbox, rank, err);
        if (status >= 0) status = recv_bodies(mailbox, rank, err);
    }
    return TERN__MIN(status, 0);
}
