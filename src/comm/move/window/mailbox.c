/* mailbox.c - the messages between ranks of one host: what match.c decides, carried through the rings of
 * pair.c. A send puts its envelope into the ring to its receiver, with a short body behind it. A long body
 * streams through the other ring once its receive has granted it. Envelopes that the matcher has no room for
 * stay in the ring, and their sender waits. */
#include "comm/move/window/mailbox.h"

#include <stdio.h>

static tern__match_peer *peer_of(const tern__mailbox *mailbox, int rank)
{
    return &mailbox->matcher.peers[rank];
}

/* Stores a word that the other side may be waiting for. */
static void store_word(const tern__mailbox *mailbox, tern__word *word, uint64_t value)
{
    atomic_store(&word->value, value);
    tern__shm_act(mailbox->ranks->shm);
    tern__shm_wake(mailbox->ranks->shm);
}

/* ---- sending ---- */

static void post_envelopes(tern__mailbox *mailbox, int rank)
{
    tern__match_peer *peer = peer_of(mailbox, rank);
    tern__outbox *out = &mailbox->out[rank];
    uint64_t before = out->written;
    for (tern__transfer *t; (t = peer->waiting.first);) {
        tern__envelope envelope = tern__envelope_of(t);
        size_t bytes = tern__match_short_bytes(&mailbox->matcher, &envelope);
        if (!tern__outbox_has_room(out, tern__pair_record(bytes))) break;
        tern__queue_pop(&peer->waiting);
        tern__outbox_put(out, &envelope, t->buf, bytes);
        if (tern__match_is_short(&mailbox->matcher, &envelope))
            tern__match_finish(&mailbox->matcher, t);
        else
            tern__queue_push(&peer->posted, t);
    }
    if (out->written != before) store_word(mailbox, &out->pair->written, out->written);
}

static tern__transfer *find_granted(const tern__mailbox *mailbox, int rank)
{
    uint64_t grant = atomic_load(&mailbox->out[rank].pair->granted.value);
    return tern__match_posted(&mailbox->matcher, rank, grant);
}

static void send_bodies(tern__mailbox *mailbox, int rank)
{
    tern__outbox *out = &mailbox->out[rank];
    tern__shm *shm = mailbox->ranks->shm;
    for (tern__transfer *t; (t = find_granted(mailbox, rank));) {
        if (!t->moved) tern__grant_take(t, atomic_load(&out->pair->granted.value));
        shm->acts += tern__outbox_fill(out, t, shm);
        if (t->moved < tern__body_bytes(t)) return;
        tern__queue_remove(&peer_of(mailbox, rank)->posted, t);
        tern__match_finish(&mailbox->matcher, t);
    }
}

static void send_through(tern__mailbox *mailbox, int rank)
{
    const tern__match_peer *peer = peer_of(mailbox, rank);
    if (peer->waiting.first) post_envelopes(mailbox, rank);
    if (peer->posted.first) send_bodies(mailbox, rank);
}

/* ---- receiving ---- */

static void receive_bodies(tern__mailbox *mailbox, int source)
{
    tern__inbox *in = &mailbox->in[source];
    tern__queue *granted = &peer_of(mailbox, source)->granted;
    tern__shm *shm = mailbox->ranks->shm;
    for (tern__transfer *t; (t = granted->first);) {
        if (in->granted != t) store_word(mailbox, &in->pair->granted, tern__grant_of(t));
        in->granted = t;
        shm->acts += tern__inbox_empty(in, t, shm);
        if (t->moved < tern__body_bytes(t)) return;
        in->granted = NULL;
        tern__queue_pop(granted);
        tern__match_finish(&mailbox->matcher, t);
    }
}

/* Takes the next envelope from the ring. Returns TERN_PENDING if there is no room to keep it. */
static int accept_envelope(tern__mailbox *mailbox, int source, tern_error *err)
{
    tern__inbox *in = &mailbox->in[source];
    tern__matcher *matcher = &mailbox->matcher;
    tern__envelope envelope = tern__inbox_peek(in);
    tern__transfer *t;
    char *body;
    int status = tern__match_accept(matcher, source, &envelope, &t, &body, err);
    if (status) return status;
    if (t && t->peer == TERN_ANY_SOURCE) mailbox->turn = (source + 1) % mailbox->ranks->world;
    tern__inbox_get(in, &envelope, body, tern__match_short_bytes(matcher, &envelope));
    tern__match_complete(matcher, source, &envelope, t);
    return TERN_OK;
}

static int accept_envelopes(tern__mailbox *mailbox, int source, tern_error *err)
{
    tern__inbox *in = &mailbox->in[source];
    int status = in->pair ? TERN_OK : tern__pair_attach(mailbox, source, err);
    uint64_t before = in->read;
    while (!status && tern__inbox_has_envelope(in) && tern__match_wants(&mailbox->matcher, source))
        status = accept_envelope(mailbox, source, err);
    if (in->read != before) store_word(mailbox, &in->pair->read, in->read);
    return status == TERN_PENDING ? TERN_OK : status;
}

static int receive_all(tern__mailbox *mailbox, int source, tern_error *err)
{
    bool wants = tern__match_wants(&mailbox->matcher, source);
    int status = wants ? accept_envelopes(mailbox, source, err) : TERN_OK;
    if (peer_of(mailbox, source)->granted.first) receive_bodies(mailbox, source);
    return status;
}

int tern__mailbox_progress(tern__progress_hook *hook, tern_error *err)
{
    tern__mailbox *mailbox = (tern__mailbox *)hook;
    const tern__shm_group *ranks = mailbox->ranks;
    int status = TERN_OK, turn = mailbox->turn;
    for (int i = 0; i < ranks->world && mailbox->matcher.pending && !status; i++) {
        int rank = (turn + i) % ranks->world;
        if (rank == ranks->rank) continue;
        send_through(mailbox, rank);
        status = receive_all(mailbox, rank, err);
    }
    return status;
}

static bool can_send(tern__mailbox *mailbox, int rank)
{
    const tern__match_peer *peer = peer_of(mailbox, rank);
    tern__outbox *out = &mailbox->out[rank];
    if (peer->waiting.first) {
        tern__envelope envelope = tern__envelope_of(peer->waiting.first);
        size_t bytes = tern__match_short_bytes(&mailbox->matcher, &envelope);
        if (tern__outbox_has_room(out, tern__pair_record(bytes))) return true;
    }
    return peer->posted.first && find_granted(mailbox, rank) && tern__outbox_has_body_room(out);
}

/* An envelope that fits no receive stays in the ring if there is no room to keep it. */
static bool can_receive(const tern__mailbox *mailbox, int rank)
{
    const tern__inbox *in = &mailbox->in[rank];
    if (peer_of(mailbox, rank)->granted.first && tern__inbox_has_body(in)) return true;
    if (!tern__match_wants(&mailbox->matcher, rank) || !tern__inbox_has_envelope(in)) return false;
    tern__envelope envelope = tern__inbox_peek(in);
    return tern__match_can_accept(&mailbox->matcher, rank, &envelope);
}

bool tern__mailbox_can_move(tern__mailbox *mailbox, int rank)
{
    return can_send(mailbox, rank) || can_receive(mailbox, rank);
}

/* ---- life ---- */

void tern__mailbox_close(tern__mailbox *mailbox)
{
    if (!mailbox) return;
    tern__progress_hook_remove(&mailbox->ranks->shm->hooks, &mailbox->hook);
    for (int rank = 0; rank < mailbox->ranks->world && mailbox->in && mailbox->out; rank++)
        if (rank != mailbox->ranks->rank) tern__pair_release(mailbox, rank);
    tern__matcher_close(&mailbox->matcher);
    tern__free(mailbox->out);
    tern__free(mailbox->in);
    tern__free(mailbox);
}

static tern__mailbox *window_mailbox_open(tern__shm_group *ranks, tern_error *err)
{
    size_t world = (size_t)ranks->world;
    tern__mailbox *mailbox = tern__alloc(sizeof(*mailbox), "tern_send", err);
    if (!mailbox) return NULL;
    mailbox->hook = (tern__progress_hook){.progress = tern__mailbox_progress, .miss = tern__mailbox_miss};
    mailbox->ranks = ranks;
    mailbox->matcher = (tern__matcher){.short_bytes = TERN__PAIR_SHORT, .kept_most = TERN__KEPT_BYTES};
    tern__progress_hook_add(&ranks->shm->hooks, &mailbox->hook);
    mailbox->out = tern__alloc(world * sizeof(*mailbox->out), "tern_send", err);
    mailbox->in = tern__alloc(world * sizeof(*mailbox->in), "tern_send", err);
    bool is_made = mailbox->out && mailbox->in;
    if (is_made && !tern__matcher_open(&mailbox->matcher, ranks->group, err)) return mailbox;
    tern__mailbox_close(mailbox);
    return NULL;
}

int tern__mailbox_start(void *state, tern__transfer *t, tern_error *err)
{
    tern__window_state *windows = state;
    int status = tern__failure_check(windows->ranks.group, err);
    if (status) return status;
    tern__mailbox *mailbox = windows->mailbox;
    if (!mailbox && !(mailbox = windows->mailbox = window_mailbox_open(&windows->ranks, err)))
        return err->code;
    if (!t->is_recv) {
        if (tern__shm_has_left(&windows->ranks, t->peer)) return tern__mailbox_fail_left(mailbox, t, err);
        if (!mailbox->out[t->peer].pair) status = tern__pair_create(mailbox, t->peer, err);
    }
    if (!status) status = tern__match_start(&mailbox->matcher, t, err);
    if (status) return status;
    if (!t->is_recv)
        send_through(mailbox, t->peer);
    else if (t->status == TERN_PENDING)
        return t->peer == TERN_ANY_SOURCE ? tern__mailbox_progress(&mailbox->hook, err)
                                          : receive_all(mailbox, t->peer, err);
    return TERN_OK;
}

bool tern__mailbox_drop(void *state, tern__transfer *transfer, bool if_unmet)
{
    tern__mailbox *mailbox = ((tern__window_state *)state)->mailbox;
    return mailbox && tern__match_drop(&mailbox->matcher, transfer, if_unmet);
}
