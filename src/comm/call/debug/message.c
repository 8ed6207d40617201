/* message.c - messages through the debug back end. The back end behind gets a copy of the transfer, so that
 * the caller's is done only after it has been checked. */
#include "comm/call/debug/debug.h"
#include "comm/move/match.h"

typedef struct message {
    tern__flight flight;
    struct message *next;
    tern__transfer own;
    tern__transfer *of; /* the caller's */
} message;

typedef struct mailbox {
    tern__debug *debug;
    void *behind;
    message *pending, *spare;
} mailbox;

void *tern__debug_mailbox_open(void *state, tern_error *err)
{
    tern__debug *debug = state;
    mailbox *box = tern__alloc(sizeof(*box), "tern_send", err);
    if (!box) return NULL;
    *box = (mailbox){.debug = debug, .behind = debug->behind->mailbox_open(debug->state, err)};
    if (box->behind) return box;
    tern__free(box);
    return NULL;
}

static message *take(mailbox *box, tern_error *err)
{
    message *m = box->spare;
    if (m) box->spare = m->next;
    return m ? m : tern__alloc(sizeof(*m), "tern_send", err);
}

static void give_back(mailbox *box, message *m)
{
    message **link = &box->pending;
    while (*link && *link != m) link = &(*link)->next;
    if (*link) *link = m->next;
    m->next = box->spare;
    box->spare = m;
}

static int begin(mailbox *box, message *m, tern__transfer *t, tern_error *err)
{
    tern__debug_range range = {.at = t->buf,
                               .bytes = t->count * tern_dtype_bytes(t->dtype),
                               .is_written = t->is_recv,
                               .is_kept = !t->is_recv,
                               .window = TERN__NO_WINDOW};
    m->own = *t;
    m->of = t;
    m->flight.count = 0;
    tern__transfer_text(box->debug->group, t, m->flight.text, sizeof(m->flight.text));
    int status = range.bytes ? tern__flight_add(&m->flight, &range, err) : TERN_OK;
    return status ? status : tern__flight_begin(&box->debug->flights, &m->flight, err);
}

/* Checks the transfers that the back end behind has finished, and hands their results to the caller's. */
static int settle(mailbox *box, tern_error *err)
{
    int first = TERN_OK;
    for (message *m = box->pending, *next; m; m = next) {
        next = m->next;
        if (m->own.status == TERN_PENDING) continue;
        int status = tern__flight_check(&m->flight, err);
        tern__flight_drop(&box->debug->flights, &m->flight);
        if (!first) first = status;
        tern__debug_say(box->debug, "%s: done", m->flight.text);
        m->of->source = m->own.source;
        m->of->status = m->own.status;
        give_back(box, m);
    }
    return tern__debug_tell(box->debug, first, err);
}

int tern__debug_start(void *of, tern__transfer *transfer, tern_error *err)
{
    mailbox *box = of;
    message *m = take(box, err);
    if (!m) return TERN_E_MEMORY;
    m->next = box->pending;
    box->pending = m;
    int status = begin(box, m, transfer, err);
    if (status) {
        give_back(box, m);
        return tern__debug_tell(box->debug, status, err);
    }
    tern__debug_say(box->debug, "%s", m->flight.text);
    status = box->debug->behind->start(box->behind, &m->own, err);
    return status ? tern__debug_tell(box->debug, status, err) : settle(box, err);
}

int tern__debug_carry(void *of, tern_error *err)
{
    mailbox *box = of;
    int status = box->debug->behind->carry(box->behind, err);
    return status < 0 ? tern__debug_tell(box->debug, status, err) : settle(box, err);
}

static message *find(const mailbox *box, const tern__transfer *transfer)
{
    message *m = box->pending;
    while (m && m->of != transfer) m = m->next;
    return m;
}

int tern__debug_await(void *of, const tern__transfer *transfer, tern_error *err)
{
    mailbox *box = of;
    message *m = find(box, transfer);
    int status = m ? box->debug->behind->await(box->behind, &m->own, err) : TERN_OK;
    return status ? tern__debug_tell(box->debug, status, err) : settle(box, err);
}

void tern__debug_drop(void *of, tern__transfer *transfer)
{
    mailbox *box = of;
    message *m = find(box, transfer);
    if (!m) return;
    box->debug->behind->drop(box->behind, &m->own);
    tern__flight_drop(&box->debug->flights, &m->flight);
    give_back(box, m);
}

void tern__debug_mailbox_close(void *of)
{
    mailbox *box = of;
    box->debug->behind->mailbox_close(box->behind);
    while (box->pending) {
        message *m = box->pending;
        tern__debug_say(box->debug, "%s: E_STATE: it was not done when its group was closed", m->flight.text);
        m->of->status = m->own.status == TERN_PENDING ? TERN_E_STATE : m->own.status;
        tern__flight_drop(&box->debug->flights, &m->flight);
        give_back(box, m);
    }
    for (message *m; (m = box->spare);) {
        box->spare = m->next;
        tern__free(m->flight.ranges);
        tern__free(m);
    }
    tern__free(box);
}
