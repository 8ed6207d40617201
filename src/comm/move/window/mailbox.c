/* mailbox.c - sends and receives the messages of a group.
 *
 * A send puts its letter into the ring to its receiver. A short message follows its letter in the ring, and
 * its send is done. A long message's body stays where it is until the letter has met its receive. Then the
 * receiver grants the body, one at a time from each source, and it streams through the other ring. So a long
 * message that is not received yet holds up no other message and takes no room.
 *
 * A rank looks at letters only while one of its receives waits for one. Letters that do not match it are
 * kept, together with their short messages. Beyond a cap they stay in the ring, and their sender waits. */
#include "comm/move/window/mailbox.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void finish(tern__mailbox *mailbox, tern__transfer *transfer)
{
    transfer->status = TERN_OK;
    transfer->ended = ++mailbox->ended;
    mailbox->pending--;
}

/* Stores a word that the other side may be waiting for. */
static void tell(const tern__mailbox *mailbox, tern__word *word, uint64_t value)
{
    atomic_store(&word->value, value);
    tern__shm_act(mailbox->ranks->shm);
    tern__shm_wake(mailbox->ranks->shm);
}

/* ---- sending ---- */

static void post_letters(tern__mailbox *mailbox, tern__outbox *out)
{
    uint64_t before = out->written;
    for (tern__transfer *t; (t = out->waiting.first);) {
        tern__letter letter = tern__letter_of(t, t->serial);
        if (!tern__outbox_has_room(out, tern__pair_record(&letter))) break;
        tern__queue_pop(&out->waiting);
        tern__outbox_put(out, &letter, t->buf);
        if (tern__pair_is_short(&letter))
            finish(mailbox, t);
        else
            tern__queue_push(&out->posted, t);
    }
    if (out->written != before) tell(mailbox, &out->pair->written, out->written);
}

static tern__transfer *find_granted(const tern__outbox *out)
{
    uint64_t serial = atomic_load(&out->pair->granted.value) & ~TERN__GRANT_APART;
    tern__transfer *t = out->posted.first;
    while (t && t->serial != serial) t = t->next;
    return t;
}

static void send_bodies(tern__mailbox *mailbox, tern__outbox *out)
{
    for (tern__transfer *t; (t = find_granted(out));) {
        if (!t->moved) tern__grant_take(t, atomic_load(&out->pair->granted.value));
        mailbox->ranks->shm->acts += tern__outbox_fill(out, t, mailbox->ranks->shm);
        if (t->moved < tern__body_bytes(t)) return;
        tern__queue_remove(&out->posted, t);
        finish(mailbox, t);
    }
}

static void push(tern__mailbox *mailbox, int rank)
{
    tern__outbox *out = &mailbox->out[rank];
    if (out->waiting.first) post_letters(mailbox, out);
    if (out->posted.first) send_bodies(mailbox, out);
}

/* ---- receiving ---- */

static int fail_mismatch(const tern__mailbox *mailbox, int source, const tern__letter *letter,
                         const tern__transfer *receive, tern_error *err)
{
    char text[TERN_ERROR_TEXT];
    tern__letter_mismatch(mailbox->ranks->group, source, letter, receive, text, sizeof(text));
    return tern__failure_set_in(mailbox->ranks->group, TERN_E_MISMATCH, text, err);
}

static void grant(const tern__mailbox *mailbox, const tern__inbox *in)
{
    if (in->granted.first) tell(mailbox, &in->pair->granted, tern__grant_of(in->granted.first));
}

static void receive_body_of(tern__mailbox *mailbox, int source, const tern__letter *letter,
                            tern__transfer *receive)
{
    tern__inbox *in = &mailbox->in[source];
    bool is_first = !in->granted.first;
    receive->serial = letter->serial;
    receive->is_apart = tern__letter_is_apart(letter, receive);
    tern__queue_push(&in->granted, receive);
    if (is_first) grant(mailbox, in);
}

static void receive_bodies(tern__mailbox *mailbox, tern__inbox *in)
{
    for (tern__transfer *t; (t = in->granted.first);) {
        mailbox->ranks->shm->acts += tern__inbox_empty(in, t, mailbox->ranks->shm);
        if (t->moved < tern__body_bytes(t)) return;
        tern__queue_pop(&in->granted);
        finish(mailbox, t);
        grant(mailbox, in);
    }
}

static bool has_kept_room(const tern__inbox *in, const tern__letter *letter)
{
    size_t bytes = tern__pair_is_short(letter) ? tern__letter_bytes(letter) : 0;
    return in->kept + sizeof(tern__kept) + bytes <= TERN__KEPT_BYTES;
}

/* Keeps the letter, and a short message, for a later receive. Returns TERN_PENDING if there is no room. */
static int keep(tern__mailbox *mailbox, int source, const tern__letter *letter, tern_error *err)
{
    tern__inbox *in = &mailbox->in[source];
    size_t bytes = tern__pair_is_short(letter) ? tern__letter_bytes(letter) : 0;
    if (!has_kept_room(in, letter)) return TERN_PENDING;
    tern__kept *kept = tern__match_keep(&mailbox->match, source, letter, bytes, err);
    if (!kept) return TERN_E_MEMORY;
    in->kept += sizeof(*kept) + bytes;
    tern__inbox_get(in, letter, kept->data);
    return TERN_OK;
}

/* Takes the next letter from the ring. */
static int take_letter(tern__mailbox *mailbox, int source, tern_error *err)
{
    tern__inbox *in = &mailbox->in[source];
    tern__letter letter = tern__inbox_peek(in);
    tern__transfer *t = tern__match_letter(&mailbox->match, source, &letter);
    if (!t) return keep(mailbox, source, &letter, err);
    if (!tern__letter_fits(&letter, t)) return fail_mismatch(mailbox, source, &letter, t, err);
    t->source = source;
    if (t->peer == TERN_ANY_SOURCE) mailbox->turn = (source + 1) % mailbox->ranks->world;
    tern__inbox_get(in, &letter, t->buf);
    if (tern__pair_is_short(&letter))
        finish(mailbox, t);
    else
        receive_body_of(mailbox, source, &letter, t);
    return TERN_OK;
}

static int take_letters(tern__mailbox *mailbox, int source, tern_error *err)
{
    tern__inbox *in = &mailbox->in[source];
    int status = in->pair ? TERN_OK : tern__pair_attach(mailbox, source, err);
    uint64_t before = in->read;
    while (!status && tern__inbox_has_letter(in) && tern__match_wants(&mailbox->match, source))
        status = take_letter(mailbox, source, err);
    if (in->read != before) tell(mailbox, &in->pair->read, in->read);
    return status == TERN_PENDING ? TERN_OK : status;
}

static int pull(tern__mailbox *mailbox, int rank, tern_error *err)
{
    tern__inbox *in = &mailbox->in[rank];
    if (in->granted.first) receive_bodies(mailbox, in);
    return tern__match_wants(&mailbox->match, rank) ? take_letters(mailbox, rank, err) : TERN_OK;
}

int tern__mailbox_progress(tern__party *party, tern_error *err)
{
    tern__mailbox *mailbox = (tern__mailbox *)party;
    const tern__shm_group *ranks = mailbox->ranks;
    int status = TERN_OK, turn = mailbox->turn;
    for (int i = 0; i < ranks->world && mailbox->pending && !status; i++) {
        int rank = (turn + i) % ranks->world;
        if (rank == ranks->rank) continue;
        push(mailbox, rank);
        status = pull(mailbox, rank, err);
    }
    return status;
}

static bool can_push(tern__outbox *out)
{
    if (out->waiting.first) {
        tern__letter letter = tern__letter_of(out->waiting.first, 0);
        if (tern__outbox_has_room(out, tern__pair_record(&letter))) return true;
    }
    return out->posted.first && find_granted(out) && tern__outbox_has_body_room(out);
}

/* A letter that matches no receive stays in the ring if there is no room to keep it. */
static bool can_pull(const tern__mailbox *mailbox, int rank)
{
    const tern__inbox *in = &mailbox->in[rank];
    if (in->granted.first && tern__inbox_has_body(in)) return true;
    if (!tern__match_wants(&mailbox->match, rank) || !tern__inbox_has_letter(in)) return false;
    tern__letter letter = tern__inbox_peek(in);
    return has_kept_room(in, &letter) || tern__match_has(&mailbox->match, rank, &letter);
}

bool tern__mailbox_can_move(tern__mailbox *mailbox, int rank)
{
    return can_push(&mailbox->out[rank]) || can_pull(mailbox, rank);
}

bool tern__mailbox_has_met(const tern__mailbox *mailbox, const tern__transfer *receive)
{
    for (int rank = 0; rank < mailbox->ranks->world; rank++)
        for (const tern__transfer *t = mailbox->in[rank].granted.first; t; t = t->next)
            if (t == receive) return true;
    return false;
}

/* ---- starting ---- */

static int fail_gone(const tern__mailbox *mailbox, const tern__transfer *t, tern_error *err)
{
    return tern__shm_has_left(mailbox->ranks, t->peer) ? tern__mailbox_fail_left(mailbox, t, err) : TERN_OK;
}

static int start_send(tern__mailbox *mailbox, tern__transfer *t, tern_error *err)
{
    tern__outbox *out = &mailbox->out[t->peer];
    int status = fail_gone(mailbox, t, err);
    if (!status && !out->pair) status = tern__pair_create(mailbox, t->peer, err);
    if (status) return status;
    t->serial = ++out->serial;
    tern__queue_push(&out->waiting, t);
    mailbox->pending++;
    push(mailbox, t->peer);
    return TERN_OK;
}

static int take_kept(tern__mailbox *mailbox, tern__kept *kept, tern__transfer *t, tern_error *err)
{
    int status = TERN_OK, source = kept->source;
    mailbox->in[source].kept -= sizeof(*kept) + kept->bytes;
    t->source = source;
    if (!tern__letter_fits(&kept->letter, t))
        status = fail_mismatch(mailbox, source, &kept->letter, t, err);
    else if (!tern__pair_is_short(&kept->letter))
        receive_body_of(mailbox, source, &kept->letter, t);
    else {
        if (kept->bytes) memcpy(t->buf, kept->data, kept->bytes);
        finish(mailbox, t);
    }
    tern__free(kept);
    return status;
}

static int start_recv(tern__mailbox *mailbox, tern__transfer *t, tern_error *err)
{
    tern__kept *kept = tern__match_receive(&mailbox->match, t);
    mailbox->pending++;
    if (kept) return take_kept(mailbox, kept, t, err);
    return t->peer == TERN_ANY_SOURCE ? tern__mailbox_progress(&mailbox->party, err)
                                      : pull(mailbox, t->peer, err);
}

int tern__mailbox_start(void *self, tern__transfer *transfer, tern_error *err)
{
    tern__mailbox *mailbox = self;
    int status = tern__failure_check(mailbox->ranks->group, err);
    if (status) return status;
    return transfer->is_recv ? start_recv(mailbox, transfer, err) : start_send(mailbox, transfer, err);
}

int tern__mailbox_carry(void *self, tern_error *err)
{
    return tern__shm_progress(((tern__mailbox *)self)->ranks->shm, err);
}

static bool take_out(tern__mailbox *mailbox, tern__transfer *t)
{
    bool found = tern__queue_remove(&mailbox->match.receives, t);
    for (int rank = 0; rank < mailbox->ranks->world && !found; rank++)
        found = tern__queue_remove(&mailbox->in[rank].granted, t) ||
                tern__queue_remove(&mailbox->out[rank].waiting, t) ||
                tern__queue_remove(&mailbox->out[rank].posted, t);
    return found;
}

void tern__mailbox_drop(void *self, tern__transfer *transfer)
{
    tern__mailbox *mailbox = self;
    if (take_out(mailbox, transfer)) mailbox->pending--;
}

/* ---- life ---- */

static void release(tern__mailbox *mailbox)
{
    for (int rank = 0; rank < mailbox->ranks->world && mailbox->in && mailbox->out; rank++)
        if (rank != mailbox->ranks->rank) tern__pair_release(mailbox, rank);
    tern__match_close(&mailbox->match);
    tern__free(mailbox->out);
    tern__free(mailbox->in);
    tern__free(mailbox);
}

void *tern__mailbox_open(void *state, tern_error *err)
{
    tern__shm_group *ranks = &((tern__window_state *)state)->ranks;
    size_t world = (size_t)ranks->world;
    tern__mailbox *mailbox = tern__alloc(sizeof(*mailbox), "tern_send", err);
    if (!mailbox) return NULL;
    mailbox->party = (tern__party){.progress = tern__mailbox_progress, .miss = tern__mailbox_miss};
    mailbox->ranks = ranks;
    mailbox->out = tern__alloc(world * sizeof(*mailbox->out), "tern_send", err);
    mailbox->in = tern__alloc(world * sizeof(*mailbox->in), "tern_send", err);
    if (!mailbox->out || !mailbox->in) {
        release(mailbox);
        return NULL;
    }
    tern__party_join(&ranks->shm->parties, &mailbox->party);
    return mailbox;
}

/* Removes and returns any transfer that is left, or NULL. */
static tern__transfer *pop_any(tern__mailbox *mailbox)
{
    tern__transfer *t = tern__queue_pop(&mailbox->match.receives);
    for (int rank = 0; rank < mailbox->ranks->world && !t; rank++) {
        t = tern__queue_pop(&mailbox->in[rank].granted);
        if (!t) t = tern__queue_pop(&mailbox->out[rank].waiting);
        if (!t) t = tern__queue_pop(&mailbox->out[rank].posted);
    }
    return t;
}

static void fail_unfinished(const tern__mailbox *mailbox, const tern__transfer *t)
{
    const tern__shm_group *ranks = mailbox->ranks;
    char what[TERN__WORK_TEXT], text[TERN_ERROR_TEXT];
    tern__transfer_text(ranks->group, t, what, sizeof(what));
    snprintf(text, sizeof(text), "rank %d has closed its group before its %s was done",
             tern_group_world_rank(ranks->group, ranks->rank), what);
    tern__failure_set_in(ranks->group, TERN_E_PEER, text, NULL);
}

void tern__mailbox_close(void *self)
{
    tern__mailbox *mailbox = self;
    const tern__shm_group *ranks = mailbox->ranks;
    tern__party_leave(&ranks->shm->parties, &mailbox->party);
    bool tells = ranks->group->root->pid == getpid() &&
                 !ranks->group->root->error.code; /* after a failure, the control plane tells */
    for (tern__transfer *t; (t = pop_any(mailbox)); t->status = TERN_E_STATE)
        if (tells) fail_unfinished(mailbox, t);
    release(mailbox);
}
