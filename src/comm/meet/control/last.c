/* last.c - tells peers what this rank is waiting in, or did last. The control thread answers, so there is an
 * answer even while the group's thread computes.
 *
 * What a rank is waiting in is a text. The group's thread writes it under the lock once a wait has taken
 * long, and withdraws it only when the wait has succeeded. If two ranks give up at the same moment, each
 * still learns that the other was waiting.
 *
 * The last collective is kept as numbers, which the control thread formats when it is asked; posting a work
 * formats nothing. The numbers are protected by a sequence lock with one writer. The writer makes the
 * sequence odd and then stores each number with release. The reader loads each number with acquire and then
 * reads the sequence again. A reader that has got a number of a later write therefore sees at least that
 * write's odd sequence, and tries again. */
#include "comm/meet/control/inner.h"

#include "base/text.h"

#include <errno.h>
#include <linux/sockios.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

/* ---- the record ---- */

void tern__control_last_set(tern__control *control, tern__last_format *format, const uint64_t *words,
                            int count)
{
    tern__last *last = &control->last;
    uint64_t turn = atomic_load_explicit(&last->turn, memory_order_relaxed);
    atomic_store_explicit(&last->turn, turn + 1, memory_order_relaxed);
    atomic_store_explicit(&last->words[0], (uint64_t)(uintptr_t)format, memory_order_release);
    for (int i = 0; i < count; i++)
        atomic_store_explicit(&last->words[1 + i], words[i], memory_order_release);
    atomic_store_explicit(&last->turn, turn + 2, memory_order_release);
}

void tern__control_wait_set(tern__control *control, const char *text, int awaited)
{
    tern__own_wait *own = &control->wait;
    if (own->until == INT64_MAX && own->awaited == awaited && !strcmp(own->text, text)) return;
    pthread_mutex_lock(&control->lock);
    snprintf(own->text, sizeof(own->text), "%s", text);
    own->awaited = awaited;
    own->until = INT64_MAX;
    pthread_mutex_unlock(&control->lock);
}

void tern__control_wait_end(tern__control *control, int64_t end)
{
    if (control->wait.until <= end) return;
    pthread_mutex_lock(&control->lock);
    control->wait.until = end;
    pthread_mutex_unlock(&control->lock);
}

/* Tries once; false while the writer changes the words. */
static bool read_words(tern__last *last, uint64_t words[1 + TERN__LAST_WORDS])
{
    uint64_t turn = atomic_load_explicit(&last->turn, memory_order_acquire);
    for (int i = 0; i < 1 + TERN__LAST_WORDS; i++)
        words[i] = atomic_load_explicit(&last->words[i], memory_order_acquire);
    return turn % 2 == 0 && atomic_load_explicit(&last->turn, memory_order_relaxed) == turn;
}

/* "all_reduce of 100 f32, sum (work 5)"; "" if there was none. */
static void last_text(tern__control *control, char *text, size_t size)
{
    uint64_t words[1 + TERN__LAST_WORDS];
    int tries = 0;
    while (!read_words(&control->last, words) && ++tries < 1000) sched_yield();
    tern__last_format *format = (tern__last_format *)(uintptr_t)words[0];
    *text = '\0';
    if (tries == 1000)
        snprintf(text, size, "a work that it is just posting");
    else if (format)
        format(words + 1, text, size);
}

/* Puts into `text` what this rank waits in, or else its last collective. Returns the answer's code: 0 if it
 * does not wait, 1 if it waits for no rank in particular, 2 + the rank that it waits for. */
static int own_wait_text(tern__control *control, char *text, size_t size)
{
    pthread_mutex_lock(&control->lock);
    snprintf(text, size, "%s", control->wait.text);
    int code = tern__now_ns() < control->wait.until ? 2 + control->wait.awaited : 0;
    pthread_mutex_unlock(&control->lock);
    if (!code) last_text(control, text, size);
    return code;
}

/* ---- asking ---- */

void tern__control_last_answer(tern__control *control, tern__peer *peer, uint64_t question)
{
    tern__message answer = {.kind = TERN__MESSAGE_ANSWER, .tag = question};
    answer.code = own_wait_text(control, answer.text, TERN__LAST_TEXT);
    answer.bytes = (uint32_t)strlen(answer.text) + 1;
    tern__line_send(control, peer, &answer);
}

void tern__control_last_keep(tern__control *control, tern__peer *peer, const tern__message *answer)
{
    pthread_mutex_lock(&control->lock);
    snprintf(peer->last, sizeof(peer->last), "%.*s", (int)sizeof(peer->last) - 1, answer->text);
    peer->code = answer->code;
    peer->answered = answer->tag;
    pthread_cond_broadcast(&control->changed);
    pthread_mutex_unlock(&control->lock);
}

/* A rank that has left answers nothing more, although its thread may still hear the question. */
void tern__control_last_ask(tern__control *control, int rank)
{
    tern__peer *peer = &control->peers[rank];
    tern__message question = {.kind = TERN__MESSAGE_ASK, .tag = ++peer->asked, .bytes = 1};
    if (peer->fd >= 0 && !atomic_load(&peer->left)) tern__line_send(control, peer, &question);
}

/* The caller holds the lock. */
static bool await_answer(tern__control *control, const tern__peer *peer, int64_t deadline)
{
    struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    int status = 0;
    while (peer->answered < peer->asked && !status && !atomic_load(&peer->left))
        status = pthread_cond_timedwait(&control->changed, &control->lock, &until);
    return peer->answered >= peer->asked;
}

/* ---- who is stopped, and whose host is silent ---- */

/* Returns the process's state, which /proc has behind its name; the name may have brackets of its own. */
static char state_of(int pid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return '\0';
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] ? name_end[2] : '\0';
}

/* A pid names a process only within its name space and on its host. */
static bool is_visible(const tern__control *control, const tern__peer *peer)
{
    return peer->pidfd >= 0 && peer->info.pid_space == control->peers[control->rank].info.pid_space;
}

bool tern__control_is_stopped(const tern__control *control, int rank)
{
    const tern__peer *peer = &control->peers[rank];
    char state = is_visible(control, peer) ? state_of(peer->info.pid) : '\0';
    return state == 'T' || state == 't';
}

/* The kernel of a host acknowledges what comes for a process that is stopped, so bytes that nobody has
 * acknowledged have not arrived. */
static bool is_cut_off(tern__control *control, const tern__peer *peer)
{
    int unacknowledged = 0;
    if (!peer->stream) return false;
    return tern__line_is_waiting(control, peer) ||
           (!ioctl(peer->fd, SIOCOUTQ, &unacknowledged) && unacknowledged > 0);
}

/* Asks `peer`, unless the last question is still open. Returns the rank that it waits for, as it has said
 * lately; -1: for none, or it has not said so. */
static int look_at_peer(tern__control *control, tern__peer *peer, double fresh_s)
{
    int64_t now = tern__now_ns(), fresh_ns = (int64_t)(fresh_s * 1e9);
    bool is_fresh = peer->looked_at && now - peer->looked_at <= fresh_ns;
    pthread_mutex_lock(&control->lock);
    bool is_open = peer->answered < peer->asked;
    int next = peer->code - 2;
    pthread_mutex_unlock(&control->lock);
    if (is_open) return -1;
    tern__control_last_ask(control, peer->rank);
    peer->collected = peer->asked; /* no error text waits for this answer */
    peer->looked_at = now;
    return is_fresh && next >= 0 && next < control->world ? next : -1;
}

/* A process of another host that is stopped cannot answer, but its kernel acknowledges the question. */
static bool is_silent(tern__control *control, const tern__peer *peer, double silent_s)
{
    pthread_mutex_lock(&control->lock);
    bool is_open = peer->answered < peer->asked;
    pthread_mutex_unlock(&control->lock);
    bool is_late = peer->looked_at && tern__now_ns() - peer->looked_at >= (int64_t)(silent_s * 1e9);
    return is_open && is_late && !is_visible(control, peer) && !is_cut_off(control, peer);
}

int tern__control_find_stopped(tern__control *control, int rank, double silent_s, bool *is_seen)
{
    for (int steps = 0; steps < control->world && rank >= 0; steps++) {
        tern__peer *peer = &control->peers[rank];
        if (rank == control->rank || atomic_load(&peer->left)) return -1;
        *is_seen = tern__control_is_stopped(control, rank);
        if (*is_seen || is_silent(control, peer, silent_s)) return rank;
        rank = look_at_peer(control, peer, 2 * silent_s);
    }
    return -1;
}

/* ---- what a peer does ---- */

static tern__doing read_answer(tern__control *control, tern__peer *peer, int64_t deadline)
{
    pthread_mutex_lock(&control->lock);
    bool answered = await_answer(control, peer, deadline), has_left = atomic_load(&peer->left);
    pthread_mutex_unlock(&control->lock);
    if (answered) return peer->code > 0 ? TERN__DOING_WAIT : TERN__DOING_OTHER;
    if (has_left) return TERN__DOING_LEFT;
    return is_cut_off(control, peer) ? TERN__DOING_CUT_OFF : TERN__DOING_SILENT;
}

static tern__doing learn_answer(tern__control *control, int rank, int64_t deadline)
{
    tern__peer *peer = &control->peers[rank];
    peer->collected = peer->asked;
    if (!atomic_load(&peer->left) && tern__control_is_stopped(control, rank)) return TERN__DOING_STOP;
    return read_answer(control, peer, deadline);
}

/* Returns what follows `what` in the text if both name the same work in the same group, else NULL. */
static const char *after_same(const char *text, const char *what)
{
    size_t bytes = strlen(what);
    const char *rest = bytes && !strncmp(text, what, bytes) ? text + bytes : NULL;
    return rest && (!*rest || *rest == ',') ? rest : NULL;
}

bool tern__control_waits(tern__control *control, int rank)
{
    const tern__peer *peer = &control->peers[rank];
    pthread_mutex_lock(&control->lock);
    bool waits = peer->answered && peer->code > 0;
    pthread_mutex_unlock(&control->lock);
    return waits;
}

/* A rank that has not answered yet may do so now: its `last` is read only if it has. */
static void doing_text(const tern__peer *peer, const char *what, char *text, size_t size)
{
    const char *last = peer->last, *rest = peer->doing == TERN__DOING_WAIT ? after_same(last, what) : NULL;
    switch (peer->doing) {
    case TERN__DOING_STOP: snprintf(text, size, " is stopped (by SIGSTOP or a debugger)"); return;
    case TERN__DOING_CUT_OFF: snprintf(text, size, ": its host does not answer"); return;
    case TERN__DOING_SILENT: snprintf(text, size, " does not answer: is it stopped?"); return;
    case TERN__DOING_LEFT: snprintf(text, size, " has left"); return;
    case TERN__DOING_OTHER:
        snprintf(text, size, " does not wait%s%s",
                 *last ? ", its last collective was " : " and has called no collective yet", last);
        return;
    case TERN__DOING_WAIT:
        snprintf(text, size, " waits in %s%s", rest ? "it, too" : last, rest ? rest : "");
        return;
    }
}

/* ---- which ranks hold this one up ---- */

/* Asks the rank that `peer` waits for, unless it was asked before. True if it was not. */
static bool follow_rank(tern__control *control, const tern__peer *peer)
{
    int next = peer->doing == TERN__DOING_WAIT ? peer->code - 2 : -1;
    if (next < 0 || next >= control->world || next == control->rank) return false;
    if (control->peers[next].is_suspect) return false;
    control->peers[next].is_suspect = true;
    tern__control_last_ask(control, next);
    return true;
}

static bool is_pending(const tern__peer *peer)
{
    return peer->is_suspect && peer->asked > peer->collected;
}

/* Collects the answers of the ranks that were asked, and of the ranks that those wait for. A rank that is
 * asked later gets as much time to answer. */
static void collect_answers(tern__control *control, double timeout_s)
{
    bool finds = true;
    for (int rank = 0; rank < control->world; rank++) {
        tern__peer *peer = &control->peers[rank];
        peer->is_suspect = rank != control->rank && peer->asked > peer->collected;
    }
    while (finds) {
        int64_t deadline = tern__deadline(timeout_s);
        finds = false;
        for (int rank = 0; rank < control->world; rank++)
            if (is_pending(&control->peers[rank]))
                control->peers[rank].doing = learn_answer(control, rank, deadline);
        for (int rank = 0; rank < control->world; rank++)
            if (control->peers[rank].is_suspect) finds |= follow_rank(control, &control->peers[rank]);
    }
}

/* Appends a whole clause, or nothing; the first one may be cut. */
static bool append_clause(const tern__control *control, const tern__peer *peer, const char *what, char *text,
                          size_t size, bool is_first)
{
    char who[128], does[TERN__LAST_TEXT + 64], clause[TERN_ERROR_TEXT];
    const size_t more = sizeof("; and 99999 more");
    tern__control_describe(control, peer->rank, who, sizeof(who));
    doing_text(peer, what, does, sizeof(does));
    snprintf(clause, sizeof(clause), "; %s%s", who, does);
    bool fits = strlen(text) + strlen(clause) + more <= size;
    if (fits || is_first) tern__text_append(text, size, "%s", clause);
    return fits || is_first;
}

void tern__control_others_text(tern__control *control, const char *what, double timeout_s, char *text,
                               size_t size)
{
    int said = 0, left = 0;
    collect_answers(control, timeout_s);
    for (int turn = TERN__DOING_STOP; turn <= TERN__DOING_WAIT; turn++)
        for (int rank = 0; rank < control->world; rank++) {
            const tern__peer *peer = &control->peers[rank];
            if (!peer->is_suspect || (int)peer->doing != turn) continue;
            bool is_told = !left && append_clause(control, peer, what, text, size, !said);
            said += is_told;
            left += !is_told;
        }
    if (left) tern__text_append(text, size, "; and %d more", left);
}
