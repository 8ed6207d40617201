/* match.c - matches messages with receives (match.h), and describes both for errors. */
#include "comm/move/match.h"

#include "comm/meet/failure.h"
#include "device/memory.h"

#include <stdio.h>
#include <string.h>

int tern__transfer_fetch(const tern__transfer *t, tern_error *err)
{
    bool copies = t->home && !t->is_recv;
    return copies ? tern__memory_copy(t->buf, t->home, tern__transfer_bytes(t), err) : TERN_OK;
}

/* ---- queues ---- */

void tern__queue_push(tern__queue *queue, tern__transfer *transfer)
{
    transfer->next = NULL;
    if (queue->first)
        queue->last->next = transfer;
    else
        queue->first = transfer;
    queue->last = transfer;
}

tern__transfer *tern__queue_pop(tern__queue *queue)
{
    tern__transfer *first = queue->first;
    if (first) queue->first = first->next;
    return first;
}

bool tern__queue_remove(tern__queue *queue, tern__transfer *transfer)
{
    tern__transfer *before = NULL;
    for (tern__transfer *t = queue->first; t; before = t, t = t->next) {
        if (t != transfer) continue;
        if (before)
            before->next = t->next;
        else
            queue->first = t->next;
        if (queue->last == t) queue->last = before;
        return true;
    }
    return false;
}

/* ---- envelopes ---- */

tern__envelope tern__envelope_of(const tern__transfer *send)
{
    return (tern__envelope){.serial = send->serial,
                            .count = send->count,
                            .tag = (uint32_t)send->tag,
                            .dtype = send->dtype,
                            .form = send->form,
                            .place = send->place};
}

size_t tern__envelope_bytes(const tern__envelope *envelope)
{
    return envelope->count * tern_dtype_bytes((tern_dtype)envelope->dtype);
}

/* True if the message has the form, dtype and count of the receive. */
static bool envelope_fits(const tern__envelope *envelope, const tern__transfer *receive)
{
    return envelope->count == receive->count && envelope->dtype == (uint32_t)receive->dtype &&
           envelope->form == (uint32_t)receive->form;
}

/* ---- texts for errors ---- */

/* Writes "5 f32", "a byte string of 5" or "a byte string". */
static void what_text(tern__form form, uint64_t count, tern_dtype dtype, char *text, size_t size)
{
    if (form == TERN__FORM_DATA)
        snprintf(text, size, "%llu %s", (unsigned long long)count, tern_dtype_name(dtype));
    else if (form == TERN__FORM_BYTES)
        snprintf(text, size, "a byte string of %llu", (unsigned long long)count);
    else
        snprintf(text, size, "a byte string");
}

static void rank_text(const tern_group *group, int rank, char *text, size_t size)
{
    if (rank == TERN_ANY_SOURCE)
        snprintf(text, size, "any rank");
    else
        snprintf(text, size, "rank %d", tern_group_world_rank(group, rank));
}

void tern__envelope_text(const tern_group *group, int source, const tern__envelope *envelope, char *text,
                         size_t size)
{
    char what[64], who[32];
    what_text((tern__form)envelope->form, envelope->count, (tern_dtype)envelope->dtype, what, sizeof(what));
    rank_text(group, source, who, sizeof(who));
    snprintf(text, size, "%s from %s, tag %u", what, who, envelope->tag);
}

void tern__transfer_text(const tern_group *group, const tern__transfer *t, char *text, size_t size)
{
    char what[64], who[32];
    what_text(t->form, t->count, t->dtype, what, sizeof(what));
    rank_text(group, t->peer, who, sizeof(who));
    snprintf(text, size, "%s of %s %s %s, tag %d", t->is_recv ? "recv" : "send", what,
             t->is_recv ? "from" : "to", who, t->tag);
}

/* Fails for all ranks: "rank 1: send of ..; rank 0: recv of ..". */
static int fail_mismatch(const tern_group *group, int source, const tern__envelope *envelope,
                         const tern__transfer *receive, tern_error *err)
{
    char sent[64], received[128], text[TERN_ERROR_TEXT];
    what_text((tern__form)envelope->form, envelope->count, (tern_dtype)envelope->dtype, sent, sizeof(sent));
    tern__transfer_text(group, receive, received, sizeof(received));
    int self = tern_group_world_rank(group, tern_group_rank(group));
    snprintf(text, sizeof(text), "rank %d: send of %s to rank %d, tag %u; rank %d: %s",
             tern_group_world_rank(group, source), sent, self, envelope->tag, self, received);
    return tern__failure_set_in(group, TERN_E_MISMATCH, text, err);
}

/* ---- matching ---- */

/* An envelope that came before its receive, with its short body. */
typedef struct tern__kept {
    struct tern__kept *next;
    int source;
    tern__envelope envelope;
    size_t bytes;
    char body[];
} kept_message;

static bool is_from(const tern__transfer *receive, int source)
{
    return receive->peer == source || receive->peer == TERN_ANY_SOURCE;
}

static bool is_for(const tern__envelope *envelope, int source, const tern__transfer *receive)
{
    return is_from(receive, source) && envelope->tag == (uint32_t)receive->tag;
}

bool tern__match_wants(const tern__matcher *m, int source)
{
    for (const tern__transfer *t = m->receives.first; t; t = t->next)
        if (is_from(t, source)) return true;
    return false;
}

static tern__transfer *find_receive(const tern__matcher *m, int source, const tern__envelope *envelope)
{
    tern__transfer *t = m->receives.first;
    while (t && !is_for(envelope, source, t)) t = t->next;
    return t;
}

static bool has_kept_room(const tern__matcher *m, int source, size_t bytes)
{
    return m->peers[source].kept + sizeof(kept_message) + bytes <= m->kept_most;
}

bool tern__match_has_room(const tern__matcher *m, int source)
{
    return has_kept_room(m, source, m->short_bytes);
}

bool tern__match_can_accept(const tern__matcher *m, int source, const tern__envelope *envelope)
{
    size_t bytes = tern__match_short_bytes(m, envelope);
    return has_kept_room(m, source, bytes) || find_receive(m, source, envelope);
}

static kept_message *keep_message(tern__matcher *m, int source, const tern__envelope *envelope,
                                  tern_error *err)
{
    size_t bytes = tern__match_short_bytes(m, envelope);
    kept_message *kept = tern__alloc(sizeof(*kept) + bytes, "tern_recv", err);
    if (!kept) return NULL;
    kept->source = source;
    kept->envelope = *envelope;
    kept->bytes = bytes;
    if (m->first)
        m->last->next = kept;
    else
        m->first = kept;
    m->last = kept;
    m->peers[source].kept += sizeof(*kept) + bytes;
    return kept;
}

int tern__match_accept(tern__matcher *m, int source, const tern__envelope *envelope, tern__transfer **receive,
                       char **body, tern_error *err)
{
    tern__transfer *t = *receive = find_receive(m, source, envelope);
    if (!t) {
        if (!has_kept_room(m, source, tern__match_short_bytes(m, envelope))) return TERN_PENDING;
        kept_message *kept = keep_message(m, source, envelope, err);
        *body = kept ? kept->body : NULL;
        return kept ? TERN_OK : TERN_E_MEMORY;
    }
    if (!envelope_fits(envelope, t)) return fail_mismatch(m->group, source, envelope, t, err);
    tern__queue_remove(&m->receives, t);
    t->source = source;
    *body = t->buf;
    return TERN_OK;
}

void tern__match_complete(tern__matcher *m, int source, const tern__envelope *envelope, tern__transfer *t)
{
    if (!t) return;
    if (tern__match_is_short(m, envelope)) {
        tern__match_finish(m, t);
        return;
    }
    t->serial = envelope->serial;
    t->moved = 0;
    /* If both sides have the data elsewhere, and not in the same place, tokens are sent instead. */
    t->is_apart = envelope->place && t->place && envelope->place != t->place;
    tern__queue_push(&m->peers[source].granted, t);
}

/* Removes and returns the oldest kept message for a receive, or NULL. */
static kept_message *pop_kept(tern__matcher *m, const tern__transfer *receive)
{
    kept_message *before = NULL, *kept = m->first;
    while (kept && !is_for(&kept->envelope, kept->source, receive)) {
        before = kept;
        kept = kept->next;
    }
    if (!kept) return NULL;
    if (before)
        before->next = kept->next;
    else
        m->first = kept->next;
    if (m->last == kept) m->last = before;
    m->peers[kept->source].kept -= sizeof(*kept) + kept->bytes;
    return kept;
}

static int start_receive(tern__matcher *m, tern__transfer *t, tern_error *err)
{
    kept_message *kept = pop_kept(m, t);
    int status = TERN_OK;
    if (!kept || !envelope_fits(&kept->envelope, t)) {
        tern__queue_push(&m->receives, t);
        if (kept) status = fail_mismatch(m->group, kept->source, &kept->envelope, t, err);
    } else {
        t->source = kept->source;
        if (kept->bytes) memcpy(t->buf, kept->body, kept->bytes);
        tern__match_complete(m, kept->source, &kept->envelope, t);
    }
    tern__free(kept);
    return status;
}

static void count_pending(tern__matcher *m, int more)
{
    m->pending += more;
    if (m->family_pending) *m->family_pending += more;
}

int tern__match_start(tern__matcher *m, tern__transfer *t, tern_error *err)
{
    count_pending(m, 1);
    if (t->is_recv) return start_receive(m, t, err);
    tern__match_peer *peer = &m->peers[t->peer];
    t->serial = ++peer->serial;
    t->moved = 0;
    tern__queue_push(&peer->waiting, t);
    return TERN_OK;
}

bool tern__match_drop(tern__matcher *m, tern__transfer *t, bool if_unmet)
{
    bool found = tern__queue_remove(&m->receives, t);
    for (int rank = 0; rank < m->group->boot.world && !found && !if_unmet; rank++) {
        tern__match_peer *peer = &m->peers[rank];
        found = tern__queue_remove(&peer->granted, t) || tern__queue_remove(&peer->waiting, t) ||
                tern__queue_remove(&peer->posted, t);
    }
    count_pending(m, -(int)found);
    return found;
}

void tern__match_finish(tern__matcher *m, tern__transfer *t)
{
    t->status = TERN_OK;
    t->ended = ++m->ended;
    count_pending(m, -1);
}

tern__transfer *tern__match_posted(const tern__matcher *m, int rank, uint64_t grant)
{
    tern__transfer *t = m->peers[rank].posted.first;
    while (t && t->serial != (grant & ~TERN__GRANT_APART)) t = t->next;
    return t;
}

/* ---- life ---- */

int tern__matcher_open(tern__matcher *m, tern_group *group, tern_error *err)
{
    m->group = group;
    m->peers = tern__alloc((size_t)group->boot.world * sizeof(*m->peers), "tern_send", err);
    return m->peers ? TERN_OK : TERN_E_MEMORY;
}

void tern__matcher_close(tern__matcher *m)
{
    for (kept_message *kept; (kept = m->first);) {
        m->first = kept->next;
        tern__free(kept);
    }
    tern__free(m->peers);
}
