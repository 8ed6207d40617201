/* wait.c - blocking. A rank that waits does any work that there is, also for other ranks. With nothing to
 * do it spins for a short time if every rank of its host has a CPU of its own, then yields, then sleeps
 * until another rank wakes it or a message may have arrived. */
#include "comm/meet/wait.h"

#include "base/text.h"
#include "comm/meet/failure.h"
#include "comm/sys.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum {
    spins_min = 8,
    yields_max = 100,
    sleep_ns = 50 * 1000000, /* at most this long, then look again */
};

typedef struct wait {
    tern_group *group;
    const tern__goal *goal;
    int64_t began;
    int64_t late; /* from here on the rank reports its wait and looks for a deadlock */
    int64_t deadline, gone_deadline;
    uint64_t arrived;              /* the messages so far, while a rank that has left is awaited */
    const tern__wait_limit *limit; /* NULL: none */
    int turns;
} wait;

/* ---- spinning, yielding, sleeping ---- */

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Between hosts: sleeps until a message may have arrived. With no message in flight, only a rank of this
 * host can bring progress, so this rank sleeps until one wakes it, or for 5 ms. A transport that cannot
 * block is polled, at first all the time and then less and less often; so is one whose sleep nobody can
 * end. */
static void sleep_for_message(const tern__shm *shm, tern__incoming *incoming, bool is_limited, int turns,
                              unsigned wakes)
{
    const int eager = 200, longest_us = 200, quiet_us = 5000;
    bool is_quiet = shm && incoming->is_quiet(incoming);
    int us = TERN__MIN((turns - eager) / 4 + 20, longest_us);
    if (is_limited ? false : incoming->sleep(incoming)) return;
    if (!is_quiet && turns < eager)
        sched_yield();
    else if (shm)
        tern__shm_sleep(shm, wakes, 1000L * (is_quiet ? quiet_us : us));
    else
        tern__poll(NULL, 0, tern__now_ns() + INT64_C(1000) * us);
}

/* What is polled mostly comes within 50 us, less than a thread takes to sleep and wake up. Later it is
 * looked at less and less often. */
static void sleep_and_poll(const wait *w)
{
    const int64_t eager_ns = 200000, shortest_ns = 20000, longest_ns = 1000000;
    int64_t now = tern__now_ns(), waited = now - w->began;
    if (waited < eager_ns)
        sched_yield();
    else
        tern__poll(NULL, 0, now + TERN__MIN(TERN__MAX(waited / 64, shortest_ns), longest_ns));
}

static long longest_sleep(const wait *w)
{
    int64_t left = w->limit ? w->limit->until - tern__now_ns() : sleep_ns;
    return (long)TERN__MIN(TERN__MAX(left, 0), sleep_ns);
}

static void wait_sleep(const wait *w, unsigned wakes, bool is_late)
{
    const tern_group *root = w->group->root;
    if (w->goal->is_polled)
        sleep_and_poll(w);
    else if (root->incoming)
        sleep_for_message(root->shm, root->incoming, w->limit, w->turns, wakes);
    else if (root->shm && (w->turns >= yields_max || is_late))
        tern__shm_sleep(root->shm, wakes, longest_sleep(w));
    else
        sched_yield();
}

/* ---- a wait that takes long ---- */

/* Writes the name of the wait and its group, and sets group->awaited to the ranks that it waits for. */
static void wait_describe(const wait *w, char *what, size_t size)
{
    tern_group *group = w->group;
    char where[TERN__GROUP_TEXT];
    memset(group->awaited, 0, (size_t)group->boot.world * sizeof(*group->awaited));
    w->goal->describe(w->goal, group->awaited, what, size);
    tern__group_in_text(group, where, sizeof(where));
    tern__text_append(what, size, "%s", where);
}

static void wait_publish(const wait *w)
{
    char what[TERN__LAST_TEXT];
    if (!w->group->control) return;
    wait_describe(w, what, sizeof(what));
    tern__wait_say(w->group, what, w->group->awaited, !w->goal->is_message);
}

/* Asks the ranks that it waits for what they are doing, and adds their answers to the error. */
static int wait_fail_late(const wait *w, tern_error *err)
{
    const tern_group *group = w->group;
    const tern__goal *goal = w->goal;
    char what[TERN__LAST_TEXT], text[TERN_ERROR_TEXT], hint[TERN__WORK_TEXT] = "";
    if (goal->fail_late) return goal->fail_late(goal, err);
    wait_describe(w, what, sizeof(what));
    if (goal->hint) goal->hint(goal, hint, sizeof(hint));
    snprintf(text, sizeof(text), "rank %d waited %g s %s %s%s",
             tern_group_world_rank(group, group->boot.rank), group->opts.timeout_s,
             goal->verb ? goal->verb : "in", what, hint);
    if (group->control) tern__wait_blame(group, what, group->awaited, text, sizeof(text));
    return tern__failure_set(group, TERN_E_TIMEOUT, text, err);
}

static int wait_fail_gone(const wait *w, int rank, tern_error *err)
{
    char what[TERN__LAST_TEXT], who[128], text[TERN_ERROR_TEXT];
    wait_describe(w, what, sizeof(what));
    tern__group_describe(w->group, rank, who, sizeof(who));
    snprintf(text, sizeof(text), "%s has closed its group while rank %d waits in %.300s", who,
             tern_group_world_rank(w->group, w->group->boot.rank), what);
    return tern__failure_set(w->group, TERN_E_PEER, text, err);
}

/* A rank that has closed its group sends nothing more. Its last messages may still be under way on a slow
 * line, so it is missed only when none has come for a while. */
static int wait_check_gone(wait *w, tern_error *err)
{
    const double a_while_s = 5;
    const tern__incoming *incoming = w->group->root->incoming;
    int gone = w->goal->find_gone ? w->goal->find_gone(w->goal) : -1;
    uint64_t arrived = incoming ? incoming->arrived : 0;
    bool starts = w->gone_deadline == INT64_MAX || w->arrived != arrived;
    w->arrived = arrived;
    if (gone < 0)
        w->gone_deadline = INT64_MAX;
    else if (starts)
        w->gone_deadline = tern__deadline(a_while_s);
    return tern__now_ns() < w->gone_deadline ? TERN_OK : wait_fail_gone(w, gone, err);
}

/* A rank that fails says so before it leaves. If that came after this rank last looked, it is the cause. */
static int wait_check_slow(wait *w, tern_error *err)
{
    int status = w->goal->check ? w->goal->check(w->goal, err) : wait_check_gone(w, err);
    if (status && tern__failure_check(w->group, NULL)) {
        tern__failure_forget(err);
        return tern__failure_check(w->group, err);
    }
    if (status || tern__now_ns() < w->deadline || w->goal->is_met(w->goal)) return status;
    return wait_fail_late(w, err);
}

/* ---- waiting ---- */

/* True if there is nothing more to wait for: the goal is met, or what else may end the wait is done. */
static bool wait_is_met(const wait *w)
{
    if (w->goal->is_met(w->goal)) return true;
    return w->limit && w->limit->is_reached && w->limit->is_reached(w->limit);
}

/* Progresses once. An error of this rank alone is not known to the family yet, and is returned whatever is
 * met. */
static int wait_look(const wait *w, bool *met, tern_error *err)
{
    tern_group *group = w->group;
    int status = group->root->progress(group, err);
    *met = wait_is_met(w);
    bool is_pardoned = status && *met && w->goal->stays_met && tern__failure_check(group, NULL);
    return is_pardoned ? tern__failure_forget(err) : status;
}

/* Sleeps. A rank that has waited for long first publishes that it waits, and checks for a deadlock, unless
 * the caller may end the wait and start something else, for which a peer waits. */
static int wait_rest(const wait *w, bool is_late, unsigned wakes, tern_error *err)
{
    tern__shm *shm = w->group->root->shm;
    if (is_late) wait_publish(w);
    bool is_bound = !w->limit || w->limit->goes_on;
    bool is_said = is_late && is_bound && shm && w->goal->miss && tern__deadlock_begin(shm, w->goal);
    int status = is_said ? tern__deadlock_check(shm, err) : TERN_OK;
    if (!status) wait_sleep(w, wakes, is_late);
    if (is_said) tern__deadlock_end(shm);
    return status;
}

/* A rank that only yields is not counted as a sleeper: waking it would cost the others a system call. */
static int wait_turn(wait *w, bool *met, tern_error *err)
{
    const tern_group *root = w->group->root;
    bool is_late = tern__now_ns() >= w->late, sleeps = root->incoming || is_late || w->turns >= yields_max;
    const tern__shm *shm = sleeps && !w->goal->is_polled ? root->shm : NULL;
    unsigned wakes = tern__shm_listen(shm);
    int status = wait_look(w, met, err);
    if (!status && !*met) status = wait_check_slow(w, err);
    if (!status && !*met) status = wait_rest(w, is_late, wakes, err);
    tern__shm_listened(shm);
    return status;
}

static int wait_spin(const wait *w, int *spins, bool *met, tern_error *err)
{
    int status = wait_look(w, met, err);
    for (int i = 0; i < *spins && !status && !*met; i++) {
        pause_cpu();
        status = wait_look(w, met, err);
    }
    if (*spins) *spins = *met ? TERN__MIN(2 * *spins, TERN__SPINS_MAX) : TERN__MAX(*spins / 2, spins_min);
    return status;
}

/* A wake that came before the wait, or between two of its turns, ends it too. */
static bool wait_is_over(const wait *w)
{
    if (!w->limit) return false;
    return atomic_exchange(&w->group->root->is_woken, false) || tern__now_ns() >= w->limit->until;
}

static int wait_result(const wait *w, int status)
{
    bool is_cut = !status && w->limit && w->limit->is_reached && !w->goal->is_met(w->goal);
    return is_cut ? TERN_PENDING : status;
}

int tern__wait(tern_group *group, const tern__goal *goal, tern_error *err)
{
    bool met = false, is_over = false;
    wait w = {.group = group, .goal = goal, .limit = group->root->limit};
    int status = group->spins ? wait_spin(&w, group->spins, &met, err) : TERN_OK;
    if (status || met) return wait_result(&w, status);
    w.began = w.limit ? w.limit->began : tern__now_ns();
    w.late = w.began + (int64_t)((group->root->shm ? group->root->shm->late_s : 0.05) * 1e9);
    w.deadline = tern__deadline(group->opts.timeout_s - (double)(tern__now_ns() - w.began) * 1e-9);
    w.gone_deadline = INT64_MAX;
    for (; !status && !met && !(is_over = wait_is_over(&w)); w.turns++) status = wait_turn(&w, &met, err);
    status = is_over ? TERN_PENDING : wait_result(&w, status);
    if (status == TERN_PENDING && group->control) tern__wait_pause(group);
    if (!status && group->control) tern__wait_forget(group);
    return status;
}
