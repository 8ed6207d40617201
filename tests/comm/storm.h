/* storm.h - a test for every transport: many messages between all ranks at once, of many sizes and tags.
 * Each must arrive whole, and in order for its sender, receiver and tag. */
#ifndef TERN_TESTS_COMM_STORM_H
#define TERN_TESTS_COMM_STORM_H

#include "ranks.h"

#include "base/base.h"

#include <tern/backend/transport.h>

#include <sched.h>

enum { STORM_TAGS = 3, STORM_EACH = 25, STORM_FLIGHT = 24, STORM_BYTES = (1 << 20) + 3 };

/* Returns the size of the n-th message of a tag, out of sizes that an implementation may treat differently.
 */
static inline size_t storm_bytes(int from, int to, int tag, int n)
{
    static const size_t sizes[] = {0, 1, 4, 63, 64, 4096, 4097, 65535, 65536, 300001, STORM_BYTES};
    unsigned int hash =
        (unsigned int)(from * 7919 + to * 104729 + tag * 1299709 + n * 15485863) * 2654435761u;
    size_t place = (hash >> 8) % (n % 5 ? 8 : 11);
    return sizes[place];
}

static inline unsigned char storm_byte(int from, int to, int tag, int n, size_t at)
{
    return (unsigned char)(from * 31 + to * 17 + tag * 5 + n * 3 + (int)(at % 251));
}

typedef struct storm_message {
    tern_transport_message message;
    unsigned char *data;
    size_t bytes;
    bool busy, sends;
    int peer, tag, n;
} storm_message;

typedef struct storm {
    const tern_transport *transport;
    void *state;
    int rank, world, next; /* `next`: the next message, in the order of their start */
    storm_message flight[STORM_FLIGHT];
} storm;

/* Chooses the next message. The steps are the same on all ranks, so the oldest messages are in flight on
 * both sides. Within a step the ranks start with different peers, so some sends come before their receives
 * and some after. */
static inline bool storm_next(storm *s, storm_message *m)
{
    int all = STORM_EACH * STORM_TAGS * (s->world - 1) * 2, i = s->next++;
    if (i >= all) return false;
    m->sends = i % 2;
    i /= 2;
    m->peer = (s->rank + 1 + i % (s->world - 1)) % s->world;
    i /= s->world - 1;
    m->tag = i % STORM_TAGS;
    m->n = i / STORM_TAGS;
    int from = m->sends ? s->rank : m->peer, to = m->sends ? m->peer : s->rank;
    m->bytes = storm_bytes(from, to, m->tag, m->n);
    for (size_t at = 0; at < m->bytes; at++)
        m->data[at] = m->sends ? storm_byte(from, to, m->tag, m->n, at) : 0xee;
    m->data[m->bytes] = 0xee;
    return true;
}

static inline int storm_begin(storm *s, storm_message *m)
{
    static const int tags[STORM_TAGS] = {0, 7, TERN_TRANSPORT_TAGS - 1};
    char why[256] = "";
    const tern_transport *t = s->transport;
    int status =
        m->sends ? t->send(s->state, m->peer, tags[m->tag], m->data, m->bytes, &m->message, why, sizeof(why))
                 : t->recv(s->state, m->peer, tags[m->tag], m->data, m->bytes, &m->message, why, sizeof(why));
    if (status) fprintf(stderr, "rank %d: %s\n", s->rank, why);
    return status;
}

static inline bool storm_is_right(const storm *s, const storm_message *m)
{
    bool right = m->data[m->bytes] == 0xee;
    for (size_t at = 0; right && !m->sends && at < m->bytes; at++)
        right = m->data[at] == storm_byte(m->peer, s->rank, m->tag, m->n, at);
    return right;
}

/* Starts the next message, if there is one, in the slot of a finished one. */
static inline int storm_refill(storm *s, storm_message *m)
{
    m->busy = storm_next(s, m);
    return m->busy ? storm_begin(s, m) : TERN_OK;
}

static inline int storm_visit(storm *s, storm_message *m)
{
    char why[256] = "";
    int status = s->transport->test(s->state, &m->message, why, sizeof(why));
    if (status == TERN_PENDING) return 0;
    if (status) fprintf(stderr, "rank %d: %s\n", s->rank, why);
    RANK_CHECK(s->rank, status == TERN_OK && storm_is_right(s, m));
    RANK_CHECK(s->rank, storm_refill(s, m) == TERN_OK);
    return 0;
}

/* With no message done in a turn the core goes to a peer, or to the transport's own thread. */
static inline int storm_blow(storm *s)
{
    int64_t deadline = tern__now_ns() + RANKS_DEADLINE_S * INT64_C(1000000000);
    bool busy = true;
    for (int i = 0; i < STORM_FLIGHT; i++) RANK_CHECK(s->rank, !storm_refill(s, &s->flight[i]));
    while (busy) {
        int next = s->next;
        busy = false;
        for (int i = 0; i < STORM_FLIGHT; i++) {
            if (s->flight[i].busy) RANK_CHECK(s->rank, !storm_visit(s, &s->flight[i]));
            busy |= s->flight[i].busy;
        }
        if (s->next == next) sched_yield();
        RANK_CHECK(s->rank, tern__now_ns() < deadline);
    }
    return 0;
}

/* Returns 0 if all messages arrived correctly, on a transport that is open. */
static inline int storm_run(const tern_transport *transport, void *state, int rank, int world)
{
    storm *s = calloc(1, sizeof(*s));
    *s = (storm){.transport = transport, .state = state, .rank = rank, .world = world};
    for (int i = 0; i < STORM_FLIGHT; i++) s->flight[i].data = malloc(STORM_BYTES + 1);
    int status = storm_blow(s);
    for (int i = 0; i < STORM_FLIGHT; i++) free(s->flight[i].data);
    free(s);
    return status;
}

#endif
