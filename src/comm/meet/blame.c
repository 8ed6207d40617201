/* blame.c - what a rank tells its peers during a long wait, and what it learns of them. Ranks of this host
 * read it in their shared memory; ranks of other hosts ask the control thread. */
#include "comm/meet/wait.h"

#include "base/text.h"
#include "comm/sys.h"

#include <stdio.h>
#include <string.h>

/* ---- telling the peers ---- */

/* Appends ", for ranks 1, 3". Returns the first one's rank in the root group, or -1. */
static int append_missing(const tern_group *group, const bool *ranks, bool is_named, char *text, size_t size)
{
    int count = 0, first = -1;
    for (int rank = 0; rank < group->boot.world; rank++) count += ranks[rank];
    const char *before = count == 1 ? ", for rank " : ", for ranks ";
    for (int rank = 0; rank < group->boot.world; rank++) {
        if (!ranks[rank]) continue;
        int name = tern_group_world_rank(group, rank);
        if (first < 0) first = name;
        if (is_named) tern__text_append(text, size, "%s%d", before, name);
        before = ", ";
    }
    return first;
}

/* ---- who is stopped ---- */

/* True if nobody has said yet that `rank`, one of the root's, is stopped: neither this rank nor another one
 * of its host. They leave a bit for each other in shared memory. While the group opens, some have none yet,
 * so they claim the rank, too. */
static bool stopped_claim(const tern_group *group, int rank)
{
    tern_group *root = group->root;
    uint64_t bit = UINT64_C(1) << rank % 64;
    if (root->stopped & bit) return false;
    if (tern__group_is_opening(group) && !tern__control_claim(group->control, &root->boot, rank))
        return false;
    if (root->shm && atomic_fetch_or(&root->shm->state->stopped, bit) & bit) return false;
    root->stopped |= bit;
    return true;
}

static void forget_stopped(tern_group *root)
{
    if (root->shm) atomic_fetch_and(&root->shm->state->stopped, ~root->stopped);
    root->stopped = 0;
    root->stop_look_at = 0;
}

/* Ranks may take as long as they like to call a collective, but they open a group together. So a wait of 30
 * s in there warns of the ranks that have not come to it, and do not wait for others either. */
static void warn_of_absent(const tern_group *group, const char *what, const bool *ranks)
{
    tern_group *root = group->root;
    bool finds = false, *absent = tern__alloc((size_t)root->boot.world, "tern_group_open", NULL);
    for (int rank = 0; absent && rank < group->boot.world; rank++) {
        int peer = tern_group_world_rank(group, rank);
        absent[peer] = ranks[rank] && !tern__control_waits(group->control, peer) &&
                       tern__control_claim(group->control, &root->boot, peer);
        finds |= absent[peer];
    }
    if (finds) tern__control_warn_absent(group->control, absent, what);
    root->absent_warn_at = finds ? INT64_MAX : tern__deadline(1);
    tern__free(absent);
}

/* Looks for the stopped ranks that hold up `ranks`, and warns of them once it is time to. Only some ranks
 * of other hosts are asked: if another one is stopped, those wait for it, too. */
static void warn_of_all(const tern_group *group, const char *what, const bool *ranks, double silent_s)
{
    const int asks_max = 16;
    int asks = 0;
    tern_group *root = group->root;
    bool is_time = tern__now_ns() >= root->stop_warn_at;
    for (int rank = 0; rank < group->boot.world; rank++) {
        bool is_seen = false;
        int root_rank = tern_group_world_rank(group, rank);
        if (!ranks[rank]) continue;
        if (!tern__control_is_same_host(group->control, root_rank) && ++asks > asks_max) continue;
        int stopped = tern__control_find_stopped(group->control, root_rank, silent_s, &is_seen);
        if (stopped < 0 || !is_time) continue;
        root->stop_look_at = INT64_MAX;
        if (stopped_claim(group, stopped))
            tern__control_warn_stopped(group->control, stopped, what, is_seen, group->opts.timeout_s);
    }
}

/* A stopped rank would be an error only after the group's time-out, half an hour. The wait warns of it
 * once, after 10 s or half of a shorter time-out. It looks once a second, and from half of that time on,
 * since ranks of other hosts have to be asked first.
 *
 * A rank that has not come by here for a second was stopped itself. Meanwhile it has waited for nobody, so
 * it warns of those that have not come later by that time. */
static void look_for_late(const tern_group *group, const char *what, const bool *ranks)
{
    const int64_t stopped_ns = 1000000000;
    int64_t now = tern__now_ns(), *at = &group->root->stop_look_at;
    double warn_s = TERN__MIN(10, group->opts.timeout_s / 2), look_s = warn_s / 10;
    if (!*at) {
        *at = tern__deadline(warn_s / 2);
        group->root->stop_warn_at = tern__deadline(warn_s);
        group->root->absent_warn_at = tern__deadline(TERN__MIN(30, 0.75 * group->opts.timeout_s));
        group->root->late_looked_at = now;
    }
    int64_t gone = now - group->root->late_looked_at, *absent_at = &group->root->absent_warn_at;
    group->root->late_looked_at = now;
    if (gone >= stopped_ns && *absent_at != INT64_MAX) *absent_at += gone;
    if (now >= *at) {
        *at = tern__deadline(look_s);
        warn_of_all(group, what, ranks, 3 * look_s);
    }
    if (tern__group_is_opening(group) && now >= *absent_at) warn_of_absent(group, what, ranks);
}

/* ---- telling the peers ---- */

enum { pause_ns = 200 * 1000000 }; /* a limited wait is gone on with within this time */

void tern__wait_say(const tern_group *group, const char *what, const bool *ranks, bool is_named)
{
    char text[TERN__LAST_TEXT];
    tern_group *root = group->root;
    if (root->wait_ends_at && tern__now_ns() >= root->wait_ends_at) forget_stopped(root);
    root->wait_ends_at = 0;
    snprintf(text, sizeof(text), "%s", what);
    int first = append_missing(group, ranks, is_named, text, sizeof(text));
    tern__control_wait_set(group->control, text, first);
    if (root->shm) tern__deadlock_say(root->shm, what);
    look_for_late(group, what, ranks);
}

void tern__wait_forget(const tern_group *group)
{
    tern__control_wait_end(group->control, 0);
    if (group->root->stop_look_at) forget_stopped(group->root);
    if (group->root->shm) tern__deadlock_forget(group->root->shm, 0);
}

void tern__wait_pause(const tern_group *group)
{
    int64_t end = group->root->wait_ends_at = tern__now_ns() + pause_ns;
    tern__control_wait_end(group->control, end);
    if (group->root->shm) tern__deadlock_forget(group->root->shm, end);
}

/* ---- asking them ---- */

static void append_here(const tern_group *group, int rank, char *text, size_t size)
{
    char who[128], what[TERN__WORK_TEXT];
    bool is_stopped = tern__group_is_stopped(group, rank);
    tern__group_describe(group, rank, who, sizeof(who));
    tern__text_append(text, size, "; %s", who);
    if (is_stopped)
        tern__text_append(text, size, " is stopped (by SIGSTOP or a debugger)");
    else if (tern__deadlock_text(group->root->shm, group, rank, what))
        tern__text_append(text, size, " waits in %s", what);
    else
        tern__text_append(text, size, " does not wait");
}

void tern__wait_blame(const tern_group *group, const char *what, const bool *ranks, char *text, size_t size)
{
    bool is_here = group->root->shm && tern__control_hosts(group->control) == 1;
    for (int rank = 0; rank < group->boot.world; rank++) {
        if (!ranks[rank]) continue;
        if (is_here)
            append_here(group, rank, text, size);
        else
            tern__control_last_ask(group->control, tern_group_world_rank(group, rank));
    }
    if (!is_here) tern__control_others_text(group->control, what, 0.5, text, size);
}
