/* match.c - matches messages with receives (match.h), and describes both for errors. */
#include "comm/move/match.h"

#include "device/memory.h"

#include <stdio.h>

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

/* ---- matching ---- */

static bool is_from(const tern__transfer *receive, int source)
{
    return receive->peer == source || receive->peer == TERN_ANY_SOURCE;
}

static bool is_for(const tern__letter *letter, int source, const tern__transfer *receive)
{
    return is_from(receive, source) && letter->tag == (uint32_t)receive->tag;
}

bool tern__match_wants(const tern__match *match, int source)
{
    for (const tern__transfer *t = match->receives.first; t; t = t->next)
        if (is_from(t, source)) return true;
    return false;
}

static tern__transfer *find_receive(const tern__match *match, int source, const tern__letter *letter)
{
    tern__transfer *t = match->receives.first;
    while (t && !is_for(letter, source, t)) t = t->next;
    return t;
}

bool tern__match_has(const tern__match *match, int source, const tern__letter *letter)
{
    return find_receive(match, source, letter) != NULL;
}

tern__transfer *tern__match_letter(tern__match *match, int source, const tern__letter *letter)
{
    tern__transfer *t = find_receive(match, source, letter);
    if (t && tern__letter_fits(letter, t)) tern__queue_remove(&match->receives, t);
    return t;
}

tern__kept *tern__match_receive(tern__match *match, tern__transfer *receive)
{
    tern__kept *before = NULL;
    for (tern__kept *kept = match->first; kept; before = kept, kept = kept->next) {
        if (!is_for(&kept->letter, kept->source, receive)) continue;
        if (before)
            before->next = kept->next;
        else
            match->first = kept->next;
        if (match->last == kept) match->last = before;
        if (!tern__letter_fits(&kept->letter, receive)) tern__queue_push(&match->receives, receive);
        return kept;
    }
    tern__queue_push(&match->receives, receive);
    return NULL;
}

tern__kept *tern__match_keep(tern__match *match, int source, const tern__letter *letter, size_t bytes,
                             tern_error *err)
{
    tern__kept *kept = tern__alloc(sizeof(*kept) + bytes, "tern_recv", err);
    if (!kept) return NULL;
    kept->source = source;
    kept->letter = *letter;
    kept->bytes = bytes;
    if (match->first)
        match->last->next = kept;
    else
        match->first = kept;
    match->last = kept;
    return kept;
}

void tern__match_close(tern__match *match)
{
    for (tern__kept *kept; (kept = match->first);) {
        match->first = kept->next;
        tern__free(kept);
    }
}

/* ---- letters ---- */

tern__letter tern__letter_of(const tern__transfer *send, uint64_t serial)
{
    return (tern__letter){.serial = serial,
                          .count = send->count,
                          .tag = (uint32_t)send->tag,
                          .dtype = send->dtype,
                          .form = send->form,
                          .place = send->place};
}

size_t tern__letter_bytes(const tern__letter *letter)
{
    return letter->count * tern_dtype_bytes((tern_dtype)letter->dtype);
}

bool tern__letter_fits(const tern__letter *letter, const tern__transfer *receive)
{
    return letter->count == receive->count && letter->dtype == (uint32_t)receive->dtype &&
           letter->form == (uint32_t)receive->form;
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

void tern__letter_text(const tern_group *group, int source, const tern__letter *letter, char *text,
                       size_t size)
{
    char what[64], who[32];
    what_text((tern__form)letter->form, letter->count, (tern_dtype)letter->dtype, what, sizeof(what));
    rank_text(group, source, who, sizeof(who));
    snprintf(text, size, "%s from %s, tag %u", what, who, letter->tag);
}

void tern__transfer_text(const tern_group *group, const tern__transfer *t, char *text, size_t size)
{
    char what[64], who[32];
    what_text(t->form, t->count, t->dtype, what, sizeof(what));
    rank_text(group, t->peer, who, sizeof(who));
    snprintf(text, size, "%s of %s %s %s, tag %d", t->is_recv ? "recv" : "send", what,
             t->is_recv ? "from" : "to", who, t->tag);
}

void tern__letter_mismatch(const tern_group *group, int source, const tern__letter *letter,
                           const tern__transfer *receive, char *text, size_t size)
{
    char sent[64], received[128];
    what_text((tern__form)letter->form, letter->count, (tern_dtype)letter->dtype, sent, sizeof(sent));
    tern__transfer_text(group, receive, received, sizeof(received));
    int self = tern_group_world_rank(group, tern_group_rank(group));
    snprintf(text, size, "rank %d: send of %s to rank %d, tag %u; rank %d: %s",
             tern_group_world_rank(group, source), sent, self, letter->tag, self, received);
}
