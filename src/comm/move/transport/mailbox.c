/* mailbox.c - point-to-point messages in a group that spans hosts. Each pair of ranks uses three tags in each
 * direction: letters, grants and bodies.
 *
 * A letter describes a message. The body of a short message is sent right behind its letter. The body of a
 * long one waits until the letter has matched a receive: the receiver then sends a grant, and the body
 * follows in pieces of a size that the transport takes. So bodies arrive in the order of their grants, and a
 * message that has no receive yet does not block the messages behind it. A rank takes letters only while one
 * of its receives is unmatched. It keeps the letters that do not match, up to TERN__MAIL_KEPT bytes from each
 * sender. */
#include "comm/move/transport/mailbox.h"

#include "comm/sys.h"

#include <string.h>

enum { LETTERS, GRANTS, BODIES };

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
static int test(const struct tern__hosts_mailbox *mailbox, tern__parcel_slot *slot, tern_error *err)
{
    if (!slot->busy) return TERN_OK;
    int status = tern__link_test(mailbox->hosts->link, &slot->message, err);
    slot->busy = status == TERN_PENDING;
    return status;
}

static void finish(struct tern__hosts_mailbox *mailbox, tern__transfer *t)
{
    t->status = TERN_OK;
    t->ended = ++mailbox->ended;
    tern__mail_pending_add(mailbox, -1);
}

static bool is_short(const tern__letter *letter)
{
    return tern__letter_bytes(letter) <= TERN__MAIL_SHORT;
}

static size_t next_piece(const tern__transfer *t)
{
    return TERN__MIN(tern__body_bytes(t) - t->moved, TERN_TRANSPORT_BYTES_MAX);
}

/* ---- sending ---- */

static int post_letter(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    tern__mail_out *out = &mailbox->out[rank];
    tern__transfer *t = tern__queue_pop(&out->waiting);
    size_t bytes = tern__transfer_bytes(t);
    out->letter = tern__letter_of(t, t->serial);
    if (is_short(&out->letter))
        out->current = t;
    else
        tern__queue_push(&out->posted, t);
    int status = begin_send(mailbox, rank, LETTERS, &out->letter, sizeof(out->letter), &out->letters, err);
    if (status || !out->current || !bytes) return status;
    return begin_send(mailbox, rank, LETTERS, t->buf, bytes, &out->shorts, err);
}

static int push_letters(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    tern__mail_out *out = &mailbox->out[rank];
    for (;;) {
        int status = test(mailbox, &out->letters, err);
        if (!status) status = test(mailbox, &out->shorts, err);
        if (status) return status;
        if (out->current) finish(mailbox, out->current);
        out->current = NULL;
        if (!out->waiting.first) return TERN_OK;
        status = post_letter(mailbox, rank, err);
        if (status) return status;
    }
}

static int send_body(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    tern__mail_out *out = &mailbox->out[rank];
    while (out->body) {
        tern__transfer *t = out->body;
        int status = test(mailbox, &out->bodies, err);
        if (status) return status;
        size_t piece = next_piece(t);
        if (piece)
            status = begin_send(mailbox, rank, BODIES, tern__body(t) + t->moved, piece, &out->bodies, err);
        if (status) return status;
        t->moved += piece;
        if (piece) continue;
        finish(mailbox, t);
        out->body = NULL;
    }
    return TERN_OK;
}

/* Receives a grant and makes its transfer the next body to send. */
static int take_grant(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    tern__mail_out *out = &mailbox->out[rank];
    int status = TERN_OK;
    if (out->body || !out->posted.first) return TERN_OK;
    if (!out->grants.busy)
        status = begin_recv(mailbox, rank, GRANTS, &out->granted, sizeof(out->granted), &out->grants, err);
    if (!status) status = test(mailbox, &out->grants, err);
    if (status) return status;
    tern__transfer *t = out->posted.first;
    while (t && t->serial != (out->granted & ~TERN__GRANT_APART)) t = t->next;
    if (!t)
        return tern__error_set(
            err, "tern_send", TERN_E_PEER, "rank %d granted message %llu, which does not wait for a grant",
            tern_group_world_rank(mailbox->hosts->group, rank), (unsigned long long)out->granted);
    tern__grant_take(t, out->granted);
    tern__queue_remove(&out->posted, t);
    out->body = t;
    return TERN_OK;
}

static int push(struct tern__hosts_mailbox *mailbox, int rank, tern_error *err)
{
    int status = push_letters(mailbox, rank, err);
    if (status >= 0) status = send_body(mailbox, rank, err);
    if (status >= 0) status = take_grant(mailbox, rank, err);
    if (status >= 0) status = send_body(mailbox, rank, err);
    return TERN__MIN(status, 0);
}

/* ---- receiving ---- */

static int fail_mismatch(const struct tern__hosts_mailbox *mailbox, int source, const tern__letter *letter,
                         const tern__transfer *receive, tern_error *err)
{
    char text[TERN_ERROR_TEXT];
    tern__letter_mismatch(mailbox->hosts->group, source, letter, receive, text, sizeof(text));
    return tern__failure_set_in(mailbox->hosts->group, TERN_E_MISMATCH, text, err);
}

/* Matches a letter with the receive `t`. `data` is the body of a short message. */
static int meet(struct tern__hosts_mailbox *mailbox, int source, const tern__letter *letter, const char *data,
                tern__transfer *t, tern_error *err)
{
    if (!tern__letter_fits(letter, t)) return fail_mismatch(mailbox, source, letter, t, err);
    t->source = source;
    t->serial = letter->serial;
    t->is_apart = tern__letter_is_apart(letter, t);
    if (!is_short(letter)) {
        tern__queue_push(&mailbox->in[source].granted, t);
        return TERN_OK;
    }
    if (t->count) memcpy(t->buf, data, tern__letter_bytes(letter));
    finish(mailbox, t);
    return TERN_OK;
}

static int keep(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    size_t bytes = is_short(&in->letter) ? tern__letter_bytes(&in->letter) : 0;
    tern__kept *kept = tern__match_keep(&mailbox->match, source, &in->letter, bytes, err);
    if (!kept) return TERN_E_MEMORY;
    if (bytes) memcpy(kept->data, in->data, bytes);
    in->kept += sizeof(*kept) + bytes;
    return TERN_OK;
}

int tern__mail_take_kept(struct tern__hosts_mailbox *mailbox, tern__kept *kept, tern__transfer *t,
                         tern_error *err)
{
    mailbox->in[kept->source].kept -= sizeof(*kept) + kept->bytes;
    int status = meet(mailbox, kept->source, &kept->letter, kept->data, t, err);
    tern__free(kept);
    return status;
}

/* Matches or keeps a letter that has arrived completely, with its short body. */
static int take_letter(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    tern__transfer *t = tern__match_letter(&mailbox->match, source, &in->letter);
    return t ? meet(mailbox, source, &in->letter, in->data, t, err) : keep(mailbox, source, err);
}

/* Waits up to a second: a rank's goodbye may arrive after its connection has closed. */
static bool has_left(const struct tern__hosts_mailbox *mailbox, int rank)
{
    const tern_group *group = mailbox->hosts->group;
    int64_t deadline = tern__deadline(1.0);
    while (!tern__group_has_left(group, rank) && tern__control_is_healthy(group->control) &&
           tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__now_ns() + 1000000);
    return tern__group_has_left(group, rank);
}

/* A receive is posted whether or not a letter will come, and fails in some transports when the sender closes
 * its group. Returns TERN_PENDING for a sender that has left, else the error. */
static int forgive(struct tern__hosts_mailbox *mailbox, int source, const tern_error *why, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    in->gone = has_left(mailbox, source);
    return in->gone ? TERN_PENDING : tern__error_set(err, why->func, why->code, "%s", why->text);
}

static int ask_letter(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    bool has_room = in->kept < TERN__MAIL_KEPT;
    if (in->letters.busy || in->shorts.busy || in->gone || !has_room) return TERN_OK;
    if (!tern__match_wants(&mailbox->match, source)) return TERN_OK;
    tern_error why = {0};
    int status = begin_recv(mailbox, source, LETTERS, &in->letter, sizeof(in->letter), &in->letters, &why);
    return status ? forgive(mailbox, source, &why, err) : TERN_OK;
}

/* Returns TERN_PENDING until a letter and its short body have arrived. */
static int await_letter(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    if (!in->letters.busy && !in->shorts.busy) return TERN_PENDING;
    bool is_new = in->letters.busy;
    tern_error why = {0};
    int status = test(mailbox, &in->letters, &why);
    if (status < 0) return forgive(mailbox, source, &why, err);
    if (status) return status;
    size_t bytes = tern__letter_bytes(&in->letter);
    if (is_new && bytes && is_short(&in->letter))
        status = begin_recv(mailbox, source, LETTERS, in->data, bytes, &in->shorts, err);
    return status ? status : test(mailbox, &in->shorts, err);
}

static int pull_letters(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    int status = TERN_OK;
    while (!status) {
        status = ask_letter(mailbox, source, err);
        if (!status) status = await_letter(mailbox, source, err);
        if (!status) status = take_letter(mailbox, source, err);
    }
    return status;
}

static int ask_body(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    if (in->asked) return TERN_OK;
    int status = test(mailbox, &in->grants, err);
    if (status) return status;
    in->grant = tern__grant_of(in->granted.first);
    in->asked = true;
    return begin_send(mailbox, source, GRANTS, &in->grant, sizeof(in->grant), &in->grants, err);
}

static int recv_bodies(struct tern__hosts_mailbox *mailbox, int source, tern_error *err)
{
    tern__mail_in *in = &mailbox->in[source];
    for (tern__transfer *t; (t = in->granted.first);) {
        int status = ask_body(mailbox, source, err);
        if (!status) status = test(mailbox, &in->bodies, err);
        if (status) return status;
        size_t piece = next_piece(t);
        if (piece)
            status = begin_recv(mailbox, source, BODIES, tern__body(t) + t->moved, piece, &in->bodies, err);
        if (status) return status;
        t->moved += piece;
        if (piece) continue;
        tern__queue_pop(&in->granted);
        finish(mailbox, t);
        in->asked = false;
    }
    return test(mailbox, &in->grants, err);
}

int tern__mail_progress(tern__party *party, tern_error *err)
{
    struct tern__hosts_mailbox *mailbox = (struct tern__hosts_mailbox *)party;
    const tern_group *group = mailbox->hosts->group;
    int status = TERN_OK;
    for (int i = 1; i < group->boot.world && status >= 0; i++) {
        int rank = (group->boot.rank + i) % group->boot.world;
        status = push(mailbox, rank, err);
        if (status >= 0) status = pull_letters(mailbox, rank, err);
        if (status >= 0) status = recv_bodies(mailbox, rank, err);
    }
    return TERN__MIN(status, 0);
}
