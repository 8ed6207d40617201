/* guest.c - the stages of one of the server's connections: the first bytes, tern's hello and proof, queries.
 */
#include "comm/store/guest.h"

#include "comm/sys.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

enum {
    read_bytes = 64 << 10,    /* read from one guest per round, so that all get their turn */
    answers_bytes = 64 << 10, /* answers are gathered up to this size, then sent           */
};

void tern__guest_refuse(tern__store_host *host, tern__store_guest *g, const char *why)
{
    char who[96];
    struct sockaddr_storage at = {0};
    socklen_t bytes = sizeof(at);
    getpeername(g->fd, (struct sockaddr *)&at, &bytes);
    tern__address_text(&at, who, sizeof(who));
    host->refused++;
    tern__log(host->refused == 1 ? TERN_LOG_WARN : TERN_LOG_INFO, "store: refused %s (%d so far): %s", who,
              host->refused, why);
    g->is_closed = true;
}

void tern__guest_free(tern__store_host *host, tern__store_guest *g)
{
    tern__table_leave(host->table, &g->waiter);
    tern__close(&g->fd);
    tern__buffer_release(&g->in);
    tern__buffer_release(&g->out);
    tern__free(g);
}

void tern__guest_flush(tern__store_guest *g)
{
    if (!g->out.bytes || g->is_closed) return;
    ssize_t sent = send(g->fd, g->out.data, g->out.bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) tern__buffer_consume(&g->out, (size_t)sent);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) g->is_closed = true;
}

/* ---- tern's hello ---- */

static void take_hello(tern__store_host *host, tern__store_guest *g)
{
    if (g->in.bytes < sizeof(g->hello)) return;
    memcpy(&g->hello, g->in.data, sizeof(g->hello));
    tern__buffer_consume(&g->in, sizeof(g->hello));
    if (!tern__hello_is_for(&g->hello, TERN__PURPOSE_STORE, 0, 0)) {
        tern__guest_refuse(host, g, "malformed hello, or another version of tern");
        return;
    }
    tern__hello_challenge(&g->hello, host->secret, &g->challenge);
    g->is_closed = !tern__buffer_append(&g->out, &g->challenge, sizeof(g->challenge));
    g->stage = TERN__STAGE_PROOF;
}

static void take_proof(tern__store_host *host, tern__store_guest *g)
{
    tern__proof proof;
    tern__welcome welcome;
    if (g->in.bytes < sizeof(proof)) return;
    memcpy(&proof, g->in.data, sizeof(proof));
    tern__buffer_consume(&g->in, sizeof(proof));
    if (!tern__hello_is_proved(&g->hello, &g->challenge, host->secret, &proof)) {
        tern__guest_refuse(host, g, "it does not know this job's secret");
        return;
    }
    tern__hello_welcome(&welcome);
    g->is_closed = !tern__buffer_append(&g->out, &welcome, sizeof(welcome));
    g->stage = TERN__STAGE_QUERIES;
    g->standing = TERN__KNOWN;
}

/* The first byte tells which client this is. If it is 0, the next four bytes tell. */
static void take_first(tern__store_host *host, tern__store_guest *g)
{
    uint32_t magic = 0;
    if (!g->in.bytes) return;
    uint8_t first = g->in.data[0];
    bool is_torch = host->is_public && tern__code_from(TERN__DIALECT_TORCH1, first) != TERN__NO_CODE;
    if (first == 'T') {
        g->stage = TERN__STAGE_HELLO;
    } else if (!is_torch) {
        tern__guest_refuse(host, g,
                           host->is_public ? "not a hello of a store's client" : "not a hello of tern");
    } else if (first != TERN__VALIDATE || g->in.bytes >= 1 + sizeof(magic)) {
        if (first == TERN__VALIDATE) memcpy(&magic, g->in.data + 1, sizeof(magic));
        g->dialect = magic == TERN__MAGIC ? TERN__DIALECT_TORCH2 : TERN__DIALECT_TORCH1;
        if (magic == TERN__MAGIC) tern__buffer_consume(&g->in, 1 + sizeof(magic));
        g->stage = TERN__STAGE_QUERIES;
    }
}

/* ---- queries ---- */

static tern__store_guest *guest_of(tern__key_waiter *waiter)
{
    return (tern__store_guest *)(void *)((char *)waiter - offsetof(tern__store_guest, waiter));
}

static void finish_query(tern__store_guest *g)
{
    g->at += g->frame.at;
    g->frame = (tern__frame){0};
    g->standing = TERN__KNOWN;
}

/* Scans the bytes so far of the query at `at`, and translates its code to PyTorch 2's. */
static tern__frame_state guest_scan(tern__store_guest *g)
{
    tern__bytes in = {g->in.data + g->at, g->in.bytes - g->at};
    if (!in.bytes) return TERN__FRAME_MORE;
    if (!g->frame.field) {
        uint8_t *code = g->in.data + g->at;
        if (tern__frame_query(&g->frame, g->dialect, *code) == TERN__FRAME_BAD) return TERN__FRAME_BAD;
        *code = tern__code_from(g->dialect, *code);
    }
    return tern__frame_scan(&g->frame, in);
}

/* Runs the query at `at`, whose bytes are complete. False: it must wait, or the guest was refused. */
static bool run_query(tern__store_host *host, tern__store_guest *g)
{
    const uint8_t *query = g->in.data + g->at;
    switch (tern__query_run(host->table, query, &g->waiter, &g->out)) {
    case TERN__QUERY_DONE: finish_query(g); return true;
    case TERN__QUERY_BLOCKS: g->standing = TERN__KNOWN; return false;
    default:
        tern__guest_refuse(host, g,
                           "a query over a limit, or one that counts a value that is not an integer");
        return false;
    }
}

/* Ends a query that waits, if another one has arrived: only a cancel may follow. PyTorch 1 has no cancel, and
 * simply sends its next query. False: the query still waits, or the guest was refused. */
static bool end_wait(tern__store_host *host, tern__store_guest *g)
{
    size_t next = g->at + g->frame.at;
    if (g->in.bytes == next) return false;
    if (g->dialect == TERN__DIALECT_TORCH1) {
        tern__table_leave(host->table, &g->waiter);
    } else if (g->in.data[next] == TERN__QUERY_CANCEL_WAIT) {
        g->is_closed |= tern__query_cancel(host->table, &g->waiter, &g->out) != TERN__QUERY_DONE;
        g->at++;
    } else {
        tern__guest_refuse(host, g, "a query after one that still waits");
        return false;
    }
    finish_query(g);
    return true;
}

static void make_ready(tern__store_host *host, tern__store_guest *g)
{
    if (g->is_ready) return;
    g->is_ready = true;
    g->next_ready = host->ready;
    host->ready = g;
}

/* Answers the guests whose key exists now. Their queries change no key, so they wake nobody else. */
static void answer_woken(tern__store_host *host)
{
    for (tern__key_waiter *waiter; (waiter = tern__table_woken(host->table)) != NULL;) {
        tern__store_guest *g = guest_of(waiter);
        if (g->is_closed) continue;
        if (run_query(host, g) || g->is_closed) make_ready(host, g);
    }
}

/* Returns true if it stopped only because the answers must be sent first. */
static bool run_queries(tern__store_host *host, tern__store_guest *g)
{
    if (g->waiter.at && !end_wait(host, g)) return false;
    while (!g->is_closed && g->out.bytes < answers_bytes) {
        tern__frame_state state = guest_scan(g);
        if (state == TERN__FRAME_BAD) tern__guest_refuse(host, g, "malformed query, or one over a limit");
        if (state != TERN__FRAME_DONE) break;
        bool is_done = run_query(host, g);
        answer_woken(host);
        if (!is_done && !(g->waiter.at && end_wait(host, g))) break;
    }
    if (g->at) tern__buffer_consume(&g->in, g->at);
    g->at = 0;
    return g->out.bytes >= answers_bytes;
}

/* Returns true if the next stage or query can run at once. */
static bool run_stage(tern__store_host *host, tern__store_guest *g)
{
    tern__guest_stage before = g->stage;
    switch (g->stage) {
    case TERN__STAGE_FIRST: take_first(host, g); break;
    case TERN__STAGE_HELLO: take_hello(host, g); break;
    case TERN__STAGE_PROOF: take_proof(host, g); break;
    case TERN__STAGE_QUERIES: return run_queries(host, g);
    }
    return g->stage != before;
}

void tern__guest_run(tern__store_host *host, tern__store_guest *g)
{
    bool has_more;
    do {
        has_more = run_stage(host, g);
        tern__guest_flush(g);
    } while (has_more && !g->is_closed && !g->out.bytes);
}

/* ---- bytes ---- */

/* Returns how much to read. Until the first bytes tell which client this is, that is a hello at most. */
static size_t room_of(const tern__store_guest *g)
{
    size_t limit = g->stage == TERN__STAGE_PROOF     ? sizeof(tern__proof)
                   : g->stage == TERN__STAGE_QUERIES ? TERN__QUERY_BYTES_MAX + read_bytes
                                                     : sizeof(tern__hello);
    return TERN__MIN(limit - TERN__MIN(limit, g->in.bytes), (size_t)read_bytes);
}

void tern__guest_receive(tern__store_host *host, tern__store_guest *g)
{
    size_t room = room_of(g);
    size_t step = TERN__MIN(room, TERN__MAX((size_t)4096, g->in.cap - g->in.bytes));
    if (!tern__buffer_reserve(&g->in, step)) {
        tern__guest_refuse(host, g, "out of memory");
        return;
    }
    ssize_t got =
        recv(g->fd, g->in.data + g->in.bytes, TERN__MIN(room, g->in.cap - g->in.bytes), MSG_DONTWAIT);
    if (got > 0) g->in.bytes += (size_t)got;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) g->is_closed = true;
}
