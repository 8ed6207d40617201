/* What a rank last did, told to those who wait for it. The group's thread writes down each work's numbers,
 * and the control thread, which sleeps but for such questions, puts them into words when a peer asks: so
 * there is an answer while the group's thread computes, and nothing is formatted where works are posted.
 *
 * The numbers are a sequence lock with one writer. Each is stored with release after the sequence has become
 * odd, and loaded with acquire before the sequence is looked at again: who has read a number of a later
 * writing then sees at least its odd sequence, and tries anew. */
#include "comm/control/inner.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

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

void tern__control_wait_set(tern__control *control, bool waits)
{
    int64_t since = waits ? tern__now_ns() : 0;
    atomic_store_explicit(&control->last.waits_since, since, memory_order_relaxed);
}

/* One try. */
static bool read_words(tern__last *last, uint64_t words[1 + TERN__LAST_WORDS])
{
    uint64_t turn = atomic_load_explicit(&last->turn, memory_order_acquire);
    for (int i = 0; i < 1 + TERN__LAST_WORDS; i++)
        words[i] = atomic_load_explicit(&last->words[i], memory_order_acquire);
    return turn % 2 == 0 && atomic_load_explicit(&last->turn, memory_order_relaxed) == turn;
}

static const char waited[] = "; it has waited for";

/* "all_reduce of 100 f32, sum (work 5); it has waited for 3.2 s". True if it waits. */
static bool last_text(tern__control *control, char *text, size_t size)
{
    uint64_t words[1 + TERN__LAST_WORDS];
    int tries = 0, used;
    char what[TERN__LAST_TEXT];
    while (!read_words(&control->last, words) && ++tries < 1000) sched_yield();
    tern__last_format *format = (tern__last_format *)(uintptr_t)words[0];
    int64_t since = atomic_load_explicit(&control->last.waits_since, memory_order_relaxed);
    if (tries == 1000)
        snprintf(what, sizeof(what), "a work that it is just posting");
    else if (format)
        format(words + 1, what, sizeof(what));
    else
        snprintf(what, sizeof(what), "nothing");
    used = snprintf(text, size, "%s", what);
    if (since && used < (int)size)
        snprintf(text + used, size - (size_t)used, "%s %.3g s", waited,
                 (double)(tern__now_ns() - since) * 1e-9);
    return since != 0;
}

/* ---- asking ---- */

void tern__control_last_answer(tern__control *control, tern__peer *peer, uint64_t question)
{
    tern__message answer = {.kind = TERN__MESSAGE_ANSWER, .tag = question};
    answer.code = last_text(control, answer.text, TERN__LAST_TEXT);
    answer.bytes = (uint32_t)strlen(answer.text) + 1;
    tern__line_send(control, peer, &answer);
}

void tern__control_last_keep(tern__control *control, tern__peer *peer, const tern__message *answer)
{
    pthread_mutex_lock(&control->lock);
    snprintf(peer->last, sizeof(peer->last), "%.*s", (int)sizeof(peer->last) - 1, answer->text);
    peer->waits = answer->code;
    peer->answered = answer->tag;
    pthread_cond_broadcast(&control->changed);
    pthread_mutex_unlock(&control->lock);
}

/* Whoever has left says nothing more, although its thread may still be there to hear the question; whoever is
 * lost cannot. */
void tern__control_last_ask(tern__control *control, int rank)
{
    tern__peer *peer = &control->peers[rank];
    tern__message question = {.kind = TERN__MESSAGE_ASK, .tag = ++peer->asked, .bytes = 1};
    if (peer->fd >= 0 && !atomic_load(&peer->left)) tern__line_send(control, peer, &question);
}

static bool await_answer(tern__control *control, const tern__peer *peer, int64_t deadline)
{
    struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    int status = 0;
    while (peer->answered < peer->asked && !status && !atomic_load(&peer->left))
        status = pthread_cond_timedwait(&control->changed, &control->lock, &until);
    return peer->answered >= peer->asked;
}

int tern__control_last_get(tern__control *control, int rank, double timeout_s, char *text, size_t size)
{
    tern__peer *peer = &control->peers[rank];
    if (rank == control->rank) {
        last_text(control, text, size);
        return TERN_OK;
    }
    if (peer->asked == peer->collected) tern__control_last_ask(control, rank);
    peer->collected = peer->asked;
    pthread_mutex_lock(&control->lock);
    bool answered = await_answer(control, peer, tern__deadline(timeout_s));
    bool has_left = atomic_load(&peer->left);
    if (answered) snprintf(text, size, "%s", peer->last);
    pthread_mutex_unlock(&control->lock);
    if (answered) return TERN_OK;
    snprintf(text, size, has_left ? "to leave" : "not told: it does not answer, is it stopped?");
    return has_left ? TERN_E_PEER : TERN_E_TIMEOUT;
}

/* ---- who is stopped ---- */

/* The state stands behind the name, which may have brackets of its own. */
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

/* A pid is a process only in its name space, and on its host. */
bool tern__control_is_stopped(const tern__control *control, int rank)
{
    const tern__peer *peer = &control->peers[rank];
    bool is_seen = peer->pidfd >= 0 && peer->card.pid_space == control->peers[control->rank].card.pid_space;
    char state = is_seen ? state_of(peer->card.pid) : '\0';
    return state == 'T' || state == 't';
}

/* ---- who holds all up ---- */

static void say_other(const tern__control *control, int rank, const char *does, const char *last, char *text,
                      size_t size)
{
    char who[128];
    size_t used = strlen(text);
    tern__control_describe(control, rank, who, sizeof(who));
    snprintf(text + used, size - used, "; %s %s%.100s", who, does, last);
}

/* Without for how long it has waited. */
static void cut_wait(char *last)
{
    char *wait = strstr(last, waited);
    if (wait) *wait = '\0';
}

void tern__control_others_text(tern__control *control, double timeout_s, char *text, size_t size)
{
    int64_t deadline = tern__deadline(timeout_s);
    char own[TERN__LAST_TEXT], last[TERN__LAST_TEXT];
    *text = '\0';
    last_text(control, own, sizeof(own));
    cut_wait(own);
    for (int rank = 0; rank < control->world; rank++)
        if (rank != control->rank) tern__control_last_ask(control, rank);
    for (int rank = 0; rank < control->world; rank++) {
        if (rank == control->rank) continue;
        double left = tern__deadline_ms(deadline) * 1e-3;
        int status = tern__control_last_get(control, rank, left, last, sizeof(last));
        cut_wait(last);
        if (status == TERN_E_TIMEOUT)
            say_other(control, rank, "does not answer: is it stopped?", "", text, size);
        else if (!status && !control->peers[rank].waits)
            say_other(control, rank, "does not wait, its last was ", last, text, size);
        else if (!status && strcmp(last, own))
            say_other(control, rank, "waits, too, but its last was ", last, text, size);
    }
}
