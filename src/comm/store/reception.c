/* reception.c - the strangers at a listening socket: they come, prove themselves, and are let in or sent
 * away. */
#include "comm/store/reception.h"

#include "comm/sys.h"

#include <errno.h>
#include <stdio.h>

/* ---- one stranger ---- */

/* Sends what the stranger waits for before its next part, or the rest of it. False: it cannot be sent. */
static bool reception_answer(tern__stranger *s)
{
    tern__welcome welcome;
    tern__hello_welcome(&welcome);
    const void *const parts[] = {[TERN__PART_PROOF] = &s->challenge, [TERN__PART_MESSAGE] = &welcome};
    const size_t bytes[] = {
        [TERN__PART_PROOF] = sizeof(s->challenge), [TERN__PART_MESSAGE] = sizeof(welcome)};
    int took = tern__send_part(s->fd, parts[s->stage], bytes[s->stage], &s->sent);
    s->is_owed = took == 0;
    return took >= 0;
}

static bool reception_challenge(const tern__reception *r, tern__stranger *s)
{
    if (!r->expects(r->host, s)) return false;
    tern__hello_challenge(&s->hello, r->secret, &s->challenge);
    s->sent = 0;
    return reception_answer(s);
}

static bool check_proof(const tern__reception *r, tern__stranger *s)
{
    if (!tern__hello_is_proved(&s->hello, &s->challenge, r->secret, &s->proof)) return false;
    if (!r->message_bytes) return r->admits(r->host, s);
    s->message = tern__alloc(r->message_bytes, __func__, NULL);
    s->sent = 0;
    return s->message && reception_answer(s);
}

static size_t part_bytes(const tern__reception *r, const tern__stranger *s)
{
    const size_t bytes[] = {sizeof(s->hello), sizeof(s->proof), r->message_bytes};
    return bytes[s->stage];
}

/* Reads the stranger's next part, and handles it if it is complete. False: the stranger has to go. */
static bool reception_read(const tern__reception *r, tern__stranger *s)
{
    if (s->is_owed) return reception_answer(s);
    void *const parts[] = {&s->hello, &s->proof, s->message};
    int took = tern__recv_part(s->fd, s->is_stream, parts[s->stage], part_bytes(r, s), &s->got);
    s->has_hung_up = took < 0;
    if (took <= 0) return took == 0;
    s->got = 0;
    switch (s->stage++) {
    case TERN__PART_HELLO: return reception_challenge(r, s);
    case TERN__PART_PROOF: return check_proof(r, s);
    default: return r->admits(r->host, s);
    }
}

/* Many programs only look whether a port answers, so one that hangs up without a byte is no loss. */
static void reception_lose(const tern__reception *r, const tern__stranger *s)
{
    static const char *const names[] = {
        [TERN__PART_HELLO] = "hello", [TERN__PART_PROOF] = "proof", [TERN__PART_MESSAGE] = "message"};
    char who[96], came[32] = "none", end[48] = "before it hung up", text[256];
    if (s->has_hung_up && s->stage == TERN__PART_HELLO && !s->got) return;
    tern__address_text(&s->at, who, sizeof(who));
    if (s->got) snprintf(came, sizeof(came), "only %zu", s->got);
    if (!s->has_hung_up) snprintf(end, sizeof(end), "within %g s", TERN__HELLO_DEADLINE_S);
    snprintf(text, sizeof(text), "%s has connected, but of its %s of %zu bytes %s came %s", who,
             names[s->stage], part_bytes(r, s), came, end);
    r->loses(r->host, s, text);
}

/* ---- the doors ---- */

/* A place that has become free opens the doors. */
static void remove_gone(tern__reception *r)
{
    int kept = 0;
    for (int i = 0; i < r->count; i++)
        if (r->strangers[i].fd >= 0)
            r->strangers[kept++] = r->strangers[i];
        else
            tern__free(r->strangers[i].message);
    if (kept < r->count) r->closed_until = 0;
    r->count = kept;
}

static void send_first_away(tern__reception *r)
{
    tern__close(&r->strangers[0].fd);
    remove_gone(r);
}

static int64_t first_grace(const tern__reception *r)
{
    return r->strangers[0].came + TERN__HELLO_GRACE_NS;
}

/* Returns the time from which the next caller may come in. */
static int64_t opening_time(const tern__reception *r)
{
    return r->count < TERN__STRANGERS_MAX ? r->closed_until : first_grace(r);
}

/* Gives the first stranger's descriptor to the next caller, or closes the doors until that stranger has had
 * its grace. False: there is no stranger. */
static bool find_descriptor(tern__reception *r)
{
    bool has_stranger = r->count > 0;
    if (has_stranger && tern__now_ns() >= first_grace(r))
        send_first_away(r);
    else
        r->closed_until = has_stranger ? first_grace(r) : tern__now_ns() + TERN__HELLO_GRACE_NS;
    return has_stranger;
}

static bool let_in(tern__reception *r, int door)
{
    if (tern__now_ns() < opening_time(r)) return true;
    if (r->count == TERN__STRANGERS_MAX) send_first_away(r);
    tern__stranger *s = &r->strangers[r->count];
    *s = (tern__stranger){.is_stream = door == TERN__DOOR_NETWORK,
                          .came = tern__now_ns(),
                          .deadline = tern__deadline(TERN__HELLO_DEADLINE_S)};
    socklen_t bytes = sizeof(s->at);
    s->fd = accept4(r->doors[door], (struct sockaddr *)&s->at, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s->fd < 0) return !tern__is_shortage(errno) || find_descriptor(r);
    if (r->greets(r->host, s))
        r->count++;
    else
        tern__close(&s->fd);
    return true;
}

/* ---- all ---- */

int tern__reception_prepare(const tern__reception *r, struct pollfd *polls, int64_t *until)
{
    int64_t opens = opening_time(r);
    bool is_open = tern__now_ns() >= opens;
    if (!is_open) *until = TERN__MIN(*until, opens);
    for (int door = 0; door < TERN__DOORS; door++)
        polls[door] = (struct pollfd){.fd = is_open ? r->doors[door] : -1, .events = POLLIN};
    for (int i = 0; i < r->count; i++) {
        polls[TERN__DOORS + i] =
            (struct pollfd){.fd = r->strangers[i].fd, .events = r->strangers[i].is_owed ? POLLOUT : POLLIN};
        *until = TERN__MIN(*until, r->strangers[i].deadline);
    }
    return TERN__DOORS + r->count;
}

bool tern__reception_serve(tern__reception *r, const struct pollfd *polls)
{
    bool fine = true;
    int64_t extra = r->count ? tern__hello_extra(r->strangers[0].deadline) : 0;
    for (int i = 0; i < r->count; i++) {
        tern__stranger *s = &r->strangers[i];
        s->deadline += extra;
        bool stays = !polls[TERN__DOORS + i].revents || reception_read(r, s);
        if (s->fd < 0 || (stays && tern__now_ns() < s->deadline)) continue;
        if (stays || s->has_hung_up) reception_lose(r, s);
        tern__close(&s->fd);
    }
    remove_gone(r);
    for (int door = 0; door < TERN__DOORS && fine; door++)
        if (polls[door].revents) fine = let_in(r, door);
    return fine;
}

void tern__reception_close(tern__reception *r)
{
    for (int i = 0; i < r->count; i++) tern__close(&r->strangers[i].fd);
    remove_gone(r);
}
