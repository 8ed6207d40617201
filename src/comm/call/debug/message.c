/* message.c - messages through the debug back end. The back end behind gets a copy of the transfer, so that
 * the caller's is done only after it has been checked. */
#include "comm/call/debug/debug.h"
#include "comm/move/match.h"

typedef struct tern__debug_message {
    tern__flight flight;
    struct tern__debug_message *next;
    tern__transfer own;
    tern__transfer *of; /* the caller's */
} message;

static void message_free(tern__debug *debug, message *m)
{
    message **link = &debug->messages;
    tern__flight_drop(&debug->flights, &m->flight);
    while (*link && *link != m) link = &(*link)->next;
    if (*link) *link = m->next;
    m->next = debug->spare_messages;
    debug->spare_messages = m;
}

static int message_begin(tern__debug *debug, message *m, tern__transfer *t, tern_error *err)
{
    tern__debug_range range = {.at = t->buf,
                               .bytes = t->count * tern_dtype_bytes(t->dtype),
                               .is_written = t->is_recv,
                               .is_kept = !t->is_recv,
                               .window = TERN__NO_WINDOW};
    m->own = *t;
    m->of = t;
    m->flight.count = 0;
    tern__transfer_text(debug->group, t, m->flight.text, sizeof(m->flight.text));
    int status = range.bytes ? tern__flight_add(&m->flight, &range, err) : TERN_OK;
    return status ? status : tern__flight_begin(&debug->flights, &m->flight, err);
}

int tern__debug_progress(tern__progress_hook *hook, tern_error *err)
{
    tern__debug *debug = (tern__debug *)hook;
    int first = TERN_OK;
    for (message *m = debug->messages, *next; m; m = next) {
        next = m->next;
        if (m->own.status == TERN_PENDING) continue;
        int status = tern__flight_check(&m->flight, err);
        if (!first) first = status;
        tern__debug_say(debug, "%s: done", m->flight.text);
        m->of->source = m->own.source;
        m->of->status = m->own.status;
        message_free(debug, m);
    }
    return tern__debug_tell(debug, first, err);
}

int tern__debug_transfer_start(void *state, tern__transfer *transfer, tern_error *err)
{
    tern__debug *debug = state;
    message *m = debug->spare_messages;
    if (m)
        debug->spare_messages = m->next;
    else if (!(m = tern__alloc(sizeof(*m), "tern_send", err)))
        return TERN_E_MEMORY;
    m->next = debug->messages;
    debug->messages = m;
    int status = message_begin(debug, m, transfer, err);
    if (status) {
        message_free(debug, m);
        return tern__debug_tell(debug, status, err);
    }
    tern__debug_say(debug, "%s", m->flight.text);
    status = debug->behind->transfer_start(debug->state, &m->own, err);
    return status ? tern__debug_tell(debug, status, err) : tern__debug_progress(&debug->hook, err);
}

static message *find_message(const tern__debug *debug, const tern__transfer *transfer)
{
    message *m = debug->messages;
    while (m && m->of != transfer) m = m->next;
    return m;
}

int tern__debug_transfer_wait(void *state, const tern__transfer *transfer, tern_error *err)
{
    tern__debug *debug = state;
    const message *m = find_message(debug, transfer);
    int status = m ? debug->behind->transfer_wait(debug->state, &m->own, err) : TERN_OK;
    return status ? tern__debug_tell(debug, status, err) : tern__debug_progress(&debug->hook, err);
}

bool tern__debug_transfer_drop(void *state, tern__transfer *transfer, bool if_unmet)
{
    tern__debug *debug = state;
    message *m = find_message(debug, transfer);
    bool dropped = m && debug->behind->transfer_drop(debug->state, &m->own, if_unmet);
    if (!m || (if_unmet && !dropped)) return false;
    if (transfer->status == TERN_E_STATE)
        tern__debug_say(debug, "%s: E_STATE: it was not done when its group was closed", m->flight.text);
    else if (if_unmet)
        tern__debug_say(debug, "%s: cancelled", m->flight.text);
    message_free(debug, m);
    return dropped;
}

void tern__debug_messages_free(tern__debug *debug)
{
    for (message *m; (m = debug->spare_messages);) {
        debug->spare_messages = m->next;
        tern__free(m->flight.ranges);
        tern__free(m);
    }
}
