/* pair.c - the memory through which one rank sends to another: one writer, one reader, two rings.
 *
 * Each side owns the words that it moves and remembers the other side's words as last seen, so a cache line
 * moves between cores only when its word has changed. An envelope is written before `written` is moved past
 * it, and read before `read` is moved past it. The writer is never more than the ring's length ahead, so
 * the two never touch the same bytes. The same holds for bodies.
 *
 * The sender creates the pair and passes its descriptor. The receiver looks for the descriptor when it
 * first receives. */
#include "comm/move/window/mailbox.h"

#include "comm/sys.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { piece_bytes = 32 << 10 }; /* of a body: one side fills the ring while the other empties it */

/* ---- life ---- */

/* Ranks of one process share the creator's mapping; the last one to leave unmaps it. */
int tern__pair_create(tern__mailbox *mailbox, int rank, tern_error *err)
{
    tern__shm_group *ranks = mailbox->ranks;
    void *base = NULL;
    int fd;
    int status = tern__segment_create(&base, sizeof(tern__pair), &fd, err);
    if (status) return status;
    tern__pair *pair = mailbox->out[rank].pair = base;
    atomic_store(&pair->head.sharers, tern__group_is_same_process(ranks->group, rank) ? 2 : 1);
    status = tern__segment_send(ranks, rank, TERN__SERIAL_OTHER, fd, err);
    tern__close(&fd);
    return status;
}

int tern__pair_attach(tern__mailbox *mailbox, int rank, tern_error *err)
{
    const tern__shm_group *ranks = mailbox->ranks;
    int fd;
    bool borrowed;
    char *base;
    if (tern__group_lacks_fd(ranks->group, rank, TERN__SERIAL_OTHER, 0)) return TERN_PENDING;
    int status = tern__group_recv_fd(ranks->group, rank, TERN__SERIAL_OTHER, 0, &fd, err);
    if (status) return status;
    status = tern__segment_attach(ranks, rank, fd, sizeof(tern__pair), false, &base, &borrowed, err);
    tern__close(&fd);
    if (!status) mailbox->in[rank].pair = (tern__pair *)base;
    return status;
}

static void pair_unmap(tern__pair *pair, bool is_shared)
{
    if (!pair || (is_shared && atomic_fetch_sub(&pair->head.sharers, 1) > 1)) return;
    munmap(pair, tern__segment_mapped(sizeof(*pair)));
}

/* A pair that this rank has never attached counts as shared, too, so attach it now to give it back. */
void tern__pair_release(tern__mailbox *mailbox, int rank)
{
    const tern__shm_group *ranks = mailbox->ranks;
    bool is_shared = ranks->group->root->pid == getpid() && tern__group_is_same_process(ranks->group, rank);
    tern__inbox *in = &mailbox->in[rank];
    if (is_shared && !in->pair) tern__pair_attach(mailbox, rank, NULL);
    pair_unmap(in->pair, is_shared);
    pair_unmap(mailbox->out[rank].pair, is_shared);
}

/* ---- a ring ---- */

static void copy_into(char *ring, size_t size, uint64_t at, const void *data, size_t bytes)
{
    size_t place = at & (size - 1), head = TERN__MIN(bytes, size - place);
    if (head) memcpy(ring + place, data, head);
    if (bytes > head) memcpy(ring, (const char *)data + head, bytes - head);
}

static void copy_from(const char *ring, size_t size, uint64_t at, void *data, size_t bytes)
{
    size_t place = at & (size - 1), head = TERN__MIN(bytes, size - place);
    if (head) memcpy(data, ring + place, head);
    if (bytes > head) memcpy((char *)data + head, ring, bytes - head);
}

/* ---- envelopes ---- */

bool tern__outbox_has_room(tern__outbox *out, size_t record)
{
    if (out->written + record - out->read <= TERN__PAIR_ENVELOPES) return true;
    out->read = atomic_load(&out->pair->read.value);
    return out->written + record - out->read <= TERN__PAIR_ENVELOPES;
}

void tern__outbox_put(tern__outbox *out, const tern__envelope *envelope, const char *body, size_t bytes)
{
    char *ring = out->pair->envelopes;
    copy_into(ring, TERN__PAIR_ENVELOPES, out->written, envelope, sizeof(*envelope));
    copy_into(ring, TERN__PAIR_ENVELOPES, out->written + sizeof(*envelope), body, bytes);
    out->written += tern__pair_record(bytes);
}

bool tern__inbox_has_envelope(const tern__inbox *in)
{
    return in->pair && atomic_load(&in->pair->written.value) != in->read;
}

tern__envelope tern__inbox_peek(const tern__inbox *in)
{
    tern__envelope envelope;
    copy_from(in->pair->envelopes, TERN__PAIR_ENVELOPES, in->read, &envelope, sizeof(envelope));
    return envelope;
}

void tern__inbox_get(tern__inbox *in, const tern__envelope *envelope, char *body, size_t bytes)
{
    copy_from(in->pair->envelopes, TERN__PAIR_ENVELOPES, in->read + sizeof(*envelope), body, bytes);
    in->read += tern__pair_record(bytes);
    in->last = *envelope;
}

/* ---- bodies: each starts on a cache line ---- */

static size_t piece_of(const tern__transfer *transfer, uint64_t room)
{
    size_t left = tern__body_bytes(transfer) - transfer->moved;
    return TERN__MIN(TERN__MIN(left, room), piece_bytes);
}

static uint64_t ring_step(const tern__transfer *transfer, uint64_t at)
{
    return transfer->moved == tern__body_bytes(transfer) ? tern__align_up(at, TERN__LINE) : at;
}

bool tern__outbox_has_body_room(const tern__outbox *out)
{
    return out->filled - atomic_load(&out->pair->emptied.value) < TERN__PAIR_BODY;
}

bool tern__inbox_has_body(const tern__inbox *in)
{
    return atomic_load(&in->pair->filled.value) != in->emptied;
}

bool tern__outbox_fill(tern__outbox *out, tern__transfer *send, const tern__shm *shm)
{
    size_t before = send->moved, piece;
    for (;;) {
        out->emptied = atomic_load(&out->pair->emptied.value);
        piece = piece_of(send, TERN__PAIR_BODY - (out->filled - out->emptied));
        if (!piece) return send->moved != before;
        copy_into(out->pair->body, TERN__PAIR_BODY, out->filled, tern__body(send) + send->moved, piece);
        send->moved += piece;
        out->filled = ring_step(send, out->filled + piece);
        atomic_store(&out->pair->filled.value, out->filled);
        tern__shm_wake(shm);
    }
}

bool tern__inbox_empty(tern__inbox *in, tern__transfer *receive, const tern__shm *shm)
{
    size_t before = receive->moved, piece;
    for (;;) {
        piece = piece_of(receive, atomic_load(&in->pair->filled.value) - in->emptied);
        if (!piece) return receive->moved != before;
        copy_from(in->pair->body, TERN__PAIR_BODY, in->emptied, tern__body(receive) + receive->moved, piece);
        receive->moved += piece;
        in->emptied = ring_step(receive, in->emptied + piece);
        atomic_store(&in->pair->emptied.value, in->emptied);
        tern__shm_wake(shm);
    }
}
