/* wait.c - blocking, and what a rank that waits moves on. */
#include "comm/move/transport/mailbox.h"

#include "base/text.h"
#include "comm/move/window/native.h"
#include "comm/sys.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

int tern__link_progress(tern__link *link, tern_error *err)
{
    int status = TERN_OK;
    for (tern__hosts_channel *channel = link->channels; channel && !status; channel = channel->next)
        status = tern__hosts_channel_progress(channel, err);
    for (struct tern__hosts_mailbox *mailbox = link->mailboxes; mailbox && !status; mailbox = mailbox->next)
        status = tern__mail_progress(mailbox, err);
    return status;
}

typedef struct wait {
    const tern__hosts_goal *goal;
    int64_t late; /* from here on the rank reports its wait and looks for a deadlock */
    int64_t deadline, gone_deadline;
    uint64_t came; /* the link's messages so far, while a rank that has left is awaited */
    int turns;
} wait;

/* Sleeps until a message may have arrived. With no message in flight, only a rank of this host can bring
 * progress, so this rank sleeps until one rings the lobby's bell, or for 5 ms. A transport that cannot block
 * is polled, at first all the time and then less and less often. */
static void doze(const tern__hosts *hosts, int turns, unsigned bell)
{
    const int eager = 200, longest_us = 200, quiet_us = 5000;
    bool is_quiet = tern__hosts_lobby(hosts) && tern__link_is_quiet(hosts->link);
    int us = TERN__MIN((turns - eager) / 4 + 20, longest_us);
    if (tern__link_doze(hosts->link)) return;
    if (!is_quiet && turns < eager)
        sched_yield();
    else if (tern__hosts_lobby(hosts))
        tern__native_sleep(tern__hosts_lobby(hosts), bell, 1000L * (is_quiet ? quiet_us : us));
    else
        tern__poll(NULL, 0, tern__now_ns() + INT64_C(1000) * us);
}

/* Writes the name of the wait and its group, and sets hosts->missing to the ranks that it waits for. */
static void describe(const tern__hosts *hosts, const tern__hosts_goal *goal, char *what, size_t size)
{
    memset(hosts->missing, 0, (size_t)hosts->group->boot.world * sizeof(*hosts->missing));
    goal->missing(goal->arg, hosts->missing, what, size);
    tern__text_append(what, size, "%s", hosts->where);
}

static void say(const tern__hosts *hosts, const tern__hosts_goal *goal)
{
    char what[TERN__LAST_TEXT];
    describe(hosts, goal, what, sizeof(what));
    tern__wait_say(hosts->group, what, hosts->missing, !goal->is_message);
}

/* A rank that has waited long reports it. If it waits only for ranks of this host, it looks for a deadlock.
 */
static int rest(const tern__hosts *hosts, const wait *w, unsigned bell, tern_error *err)
{
    const tern__native *lobby = tern__hosts_lobby(hosts);
    tern__goal meeting = {0};
    bool is_late = tern__now_ns() >= w->late;
    if (is_late) say(hosts, w->goal);
    bool meets = lobby && is_late && w->goal->find_meeting && w->goal->find_meeting(w->goal->arg, &meeting);
    bool is_said = meets && tern__deadlock_begin(meeting.channel->native, &meeting);
    int status = is_said ? tern__deadlock_check(lobby, err) : TERN_OK;
    if (!status) doze(hosts, w->turns, bell);
    if (is_said) tern__deadlock_end(lobby);
    return status;
}

int tern__hosts_progress(const tern__hosts *hosts, tern_error *err)
{
    int status = tern__hosts_lobby(hosts) ? tern__native_progress(tern__hosts_lobby(hosts), err) : TERN_OK;
    return status ? status : tern__group_progress(hosts->group, err);
}

/* A rank may leave as soon as its own part is done, while others still wait for each other. */
static int find_gone(const tern__hosts *hosts, const tern__hosts_goal *goal)
{
    const tern_group *group = hosts->group;
    if (goal->find_gone) return goal->find_gone(hosts, goal->arg);
    for (int rank = 0; rank < group->boot.world; rank++)
        if (rank != group->boot.rank && tern__group_has_left(group, rank) && goal->awaits(goal->arg, rank))
            return rank;
    return -1;
}

static int fail_gone(const tern__hosts *hosts, int rank, const char *what, tern_error *err)
{
    char who[128], text[TERN_ERROR_TEXT];
    tern__group_describe(hosts->group, rank, who, sizeof(who));
    snprintf(text, sizeof(text), "%s has closed its group while rank %d waits in %.300s", who,
             tern_group_world_rank(hosts->group, hosts->group->boot.rank), what);
    return tern__hosts_abort(hosts, TERN_E_PEER, text, err);
}

/* Asks the missing ranks what they are doing, and adds their answers to the error. */
static int fail_late(const tern__hosts *hosts, const tern__hosts_goal *goal, const char *what,
                     tern_error *err)
{
    const tern_group *group = hosts->group;
    char text[TERN_ERROR_TEXT], hint[TERN__WORK_TEXT] = "";
    tern__goal meeting = {0};
    if (goal->find_meeting && goal->find_meeting(goal->arg, &meeting))
        tern__channel_hint(meeting.channel, hint, sizeof(hint));
    snprintf(text, sizeof(text), "rank %d waited %g s in %s%s",
             tern_group_world_rank(group, group->boot.rank), group->opts.timeout_s, what, hint);
    tern__wait_blame(group, what, hosts->missing, text, sizeof(text));
    return tern__hosts_abort(hosts, TERN_E_TIMEOUT, text, err);
}

static int look(const tern__hosts *hosts, const wait *w, bool *met, tern_error *err)
{
    int status = tern__hosts_check(hosts, err);
    hosts->link->awaited = NULL;
    if (!status) status = tern__hosts_progress(hosts, err);
    *met = !status && w->goal->is_met(w->goal->arg);
    return status;
}

/* A rank that has closed its group sends nothing more. Its last messages may still be under way on a slow
 * line, so it is missed only when none has come for a while. */
static void look_for_gone(const tern__hosts *hosts, wait *w, int gone)
{
    const double a_while_s = 5;
    bool starts = w->gone_deadline == INT64_MAX || w->came != hosts->link->came;
    if (gone < 0)
        w->gone_deadline = INT64_MAX;
    else if (starts)
        w->gone_deadline = tern__deadline(a_while_s);
    w->came = hosts->link->came;
}

static int check_late(const tern__hosts *hosts, wait *w, tern_error *err)
{
    char what[TERN__LAST_TEXT];
    int64_t now = tern__now_ns();
    int gone = find_gone(hosts, w->goal);
    look_for_gone(hosts, w, gone);
    if (now < w->deadline && now < w->gone_deadline) return TERN_OK;
    describe(hosts, w->goal, what, sizeof(what));
    return now >= w->gone_deadline ? fail_gone(hosts, gone, what, err) : fail_late(hosts, w->goal, what, err);
}

static int look_and_rest(const tern__hosts *hosts, wait *w, bool *met, tern_error *err)
{
    const tern__native *lobby = tern__hosts_lobby(hosts);
    unsigned bell = lobby ? tern__native_listen(lobby) : 0;
    int status = look(hosts, w, met, err);
    if (!status && !*met) status = check_late(hosts, w, err);
    if (!status && !*met) status = rest(hosts, w, bell, err);
    if (lobby) tern__native_listened(lobby);
    return status;
}

int tern__hosts_await(tern__hosts *hosts, const tern__hosts_goal *goal, tern_error *err)
{
    wait w = {.goal = goal,
              .late = tern__deadline(tern__wait_late_s(hosts->group)),
              .deadline = tern__deadline(hosts->group->opts.timeout_s),
              .gone_deadline = INT64_MAX};
    bool met = false;
    int status = TERN_OK;
    for (; !status && !met; w.turns++) status = look_and_rest(hosts, &w, &met, err);
    if (!status) tern__wait_forget(hosts->group);
    return status;
}
