/* backend.c - the back end of a group that spans hosts: failures, blocking, opening and closing, windows. */
#include "comm/hosts/hosts.h"

#include "base/text.h"
#include "comm/native/native.h"
#include "comm/sys.h"
#include "comm/transport.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char func[] = "tern_group_open";

/* ---- failures ---- */

static tern__native *lobby_of(const tern__hosts *hosts)
{
    return hosts->group->root->native;
}

/* All ranks of a host share a lobby, so they report the same first failure with the same text. */
int tern__hosts_check(const tern__hosts *hosts, tern_error *err)
{
    const tern_group *root = hosts->group->root;
    if (lobby_of(hosts)) return tern__native_check(lobby_of(hosts), err);
    if (tern__control_is_healthy(root->control)) return TERN_OK;
    if (root->error.code)
        return tern__error_set(err, root->error.func, root->error.code, "%s", root->error.text);
    return tern__control_check(root->control, "tern_group", err);
}

static int fail(const tern__hosts *hosts, int code, const char *text, tern_error *err)
{
    if (lobby_of(hosts)) {
        tern__native_abort(lobby_of(hosts), code, text);
        return tern__native_check(lobby_of(hosts), err);
    }
    int status = tern__hosts_check(hosts, err);
    return status ? status : tern__error_set(err, "tern_group", code, "%s", text);
}

int tern__hosts_fail(const tern__hosts *hosts, int code, const char *text, tern_error *err)
{
    char full[TERN_ERROR_TEXT], where[TERN__GROUP_TEXT];
    tern__group_text(hosts->group, where, sizeof(where));
    snprintf(full, sizeof(full), "%.*s%s", (int)(sizeof(full) - 1 - strlen(where)), text, where);
    return fail(hosts, code, full, err);
}

/* ---- waiting ---- */

typedef struct wait {
    const tern__hosts_goal *goal;
    int64_t late; /* from here on the rank reports its wait and looks for a deadlock */
    int64_t deadline, gone_deadline;
    int turns;
} wait;

/* Sleeps until a message may have arrived. With no message in flight, only a rank of this host can bring
 * progress, so this rank sleeps until one rings the lobby's bell, or for 5 ms. A transport that cannot block
 * is polled, at first all the time and then less and less often. */
static void doze(const tern__hosts *hosts, int turns, unsigned bell)
{
    const int eager = 200, longest_us = 200, quiet_us = 5000;
    bool is_quiet = lobby_of(hosts) && tern__link_is_quiet(hosts->link);
    int us = TERN__MIN((turns - eager) / 4 + 20, longest_us);
    if (tern__link_doze(hosts->link)) return;
    if (!is_quiet && turns < eager)
        sched_yield();
    else if (lobby_of(hosts))
        tern__native_sleep(lobby_of(hosts), bell, 1000L * (is_quiet ? quiet_us : us));
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
    const tern__native *lobby = lobby_of(hosts);
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
    int status = lobby_of(hosts) ? tern__native_progress(lobby_of(hosts), err) : TERN_OK;
    return status ? status : tern__group_progress(hosts->group, err);
}

static int find_gone(const tern__hosts *hosts, const tern__hosts_goal *goal)
{
    const tern_group *group = hosts->group;
    if (goal->find_gone) return goal->find_gone(hosts, goal->arg);
    for (int rank = 0; rank < group->boot.world; rank++)
        if (rank != group->boot.rank && tern__group_has_left(group, rank)) return rank;
    return -1;
}

static int fail_gone(const tern__hosts *hosts, int rank, const char *what, tern_error *err)
{
    char who[128], text[TERN_ERROR_TEXT];
    tern__group_describe(hosts->group, rank, who, sizeof(who));
    snprintf(text, sizeof(text), "%s has closed its group while rank %d waits in %.300s", who,
             tern_group_world_rank(hosts->group, hosts->group->boot.rank), what);
    return fail(hosts, TERN_E_PEER, text, err);
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
    return fail(hosts, TERN_E_TIMEOUT, text, err);
}

static int look(const tern__hosts *hosts, const wait *w, bool *met, tern_error *err)
{
    int status = tern__hosts_check(hosts, err);
    hosts->link->awaited = NULL;
    if (!status) status = tern__hosts_progress(hosts, err);
    *met = !status && w->goal->is_met(w->goal->arg);
    return status;
}

/* A rank that has closed its group sends nothing more. Its last messages get a second to arrive. */
static int check_late(const tern__hosts *hosts, wait *w, tern_error *err)
{
    char what[TERN__LAST_TEXT];
    int64_t now = tern__now_ns();
    int gone = find_gone(hosts, w->goal);
    if (gone >= 0 && w->gone_deadline == INT64_MAX) w->gone_deadline = tern__deadline(1.0);
    if (now < w->deadline && now < w->gone_deadline) return TERN_OK;
    describe(hosts, w->goal, what, sizeof(what));
    return now >= w->gone_deadline ? fail_gone(hosts, gone, what, err) : fail_late(hosts, w->goal, what, err);
}

static int look_and_rest(const tern__hosts *hosts, wait *w, bool *met, tern_error *err)
{
    const tern__native *lobby = lobby_of(hosts);
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

/* ---- life ---- */

static const char *after_plus(const char *name)
{
    const char *plus = strchr(name, '+');
    return plus ? plus + 1 : name;
}

/* Makes the group of this host's ranks, which only the local back end sees. */
static int open_here(tern__hosts *hosts, tern_error *err)
{
    const tern_group *group = hosts->group;
    const tern__host_map *map = &hosts->map;
    int size = tern__host_size(map, map->own);
    hosts->here = (tern_group){.boot = group->boot,
                               .opts = group->opts,
                               .root = group->root,
                               .control = group->control,
                               .trace = group->trace,
                               .whole = group,
                               .id = group->id | UINT32_C(1) << 31};
    tern_group *here = &hosts->here;
    here->boot.rank = map->place;
    here->boot.world = size;
    here->ranks = tern__alloc((size_t)size * sizeof(*here->ranks), func, err);
    hosts->in_place = tern__alloc((size_t)size * sizeof(*hosts->in_place), func, err);
    if (!here->ranks || !hosts->in_place) return TERN_E_MEMORY;
    for (int place = 0; place < size; place++)
        here->ranks[place] = tern_group_world_rank(group, tern__host_rank(map, map->own, place));
    here->backend = size == 1 ? &tern__comm_self : &tern__comm_native;
    here->state = here->backend->open(here, err);
    return here->state ? TERN_OK : err->code;
}

static int open_link(tern__hosts *hosts, tern_error *err)
{
    tern_group *root = hosts->group->root;
    if (!root->link) {
        const tern_transport *transport = tern__transport_find(after_plus(hosts->group->backend_name), err);
        if (!transport) return err->code;
        root->link = tern__link_open(root, transport, err);
    }
    hosts->link = root->link;
    if (!hosts->link) return err->code;
    const tern_transport *transport = hosts->link->transport;
    bool says = transport->size > offsetof(tern_transport, short_bytes);
    hosts->small_bytes = tern__heads_room(hosts, says ? transport->short_bytes : 0);
    return TERN_OK;
}

static void hosts_close(void *state)
{
    tern__hosts *hosts = state;
    tern_group *root = hosts->group->root;
    if (root == hosts->group) {
        tern__link_close(root->link);
        root->link = NULL;
    }
    if (hosts->here.state) hosts->here.backend->close(hosts->here.state);
    tern__free(hosts->here.ranks);
    tern__free(hosts->in_place);
    tern__free(hosts->missing);
    tern__host_map_release(&hosts->map);
    tern__free(hosts);
}

static void *hosts_open(tern_group *group, tern_error *err)
{
    tern__hosts *hosts = tern__alloc(sizeof(*hosts), func, err);
    if (!hosts) return NULL;
    hosts->group = group;
    tern__group_in_text(group, hosts->where, sizeof(hosts->where));
    bool flat = !strchr(group->backend_name, '+');
    int status = tern__host_map_make(&hosts->map, group, flat, err);
    hosts->missing = tern__alloc((size_t)group->boot.world * sizeof(*hosts->missing), func, err);
    if (!status && !hosts->missing) status = TERN_E_MEMORY;
    if (!status) status = open_here(hosts, err);
    if (!status) status = open_link(hosts, err);
    if (!status) status = tern__hosts_tags(hosts, 3, &hosts->mail_tag, err);
    if (!status) return hosts;
    hosts_close(hosts);
    return NULL;
}

/* ---- windows of this host ---- */

static int fail_size(const tern__hosts *hosts, int rank, size_t own, uint64_t theirs, tern_error *err)
{
    char text[TERN_ERROR_TEXT];
    snprintf(text, sizeof(text), "rank %d opens a window of %zu bytes, rank %d one of %llu",
             tern_group_world_rank(hosts->group, hosts->group->boot.rank), own,
             tern_group_world_rank(hosts->group, rank), (unsigned long long)theirs);
    return tern__hosts_fail(hosts, TERN_E_MISMATCH, text, err);
}

/* Compares the size between all ranks. The local back end compares it only between the ranks of a host. */
static int agree_on_size(tern__hosts *hosts, size_t bytes, tern_error *err)
{
    int world = hosts->group->boot.world;
    uint64_t *sizes = tern__alloc((size_t)world * sizeof(*sizes), "tern_group_mem_alloc", err);
    if (!sizes) return TERN_E_MEMORY;
    int status = tern__hosts_vote(hosts, "the opening of a window", bytes, sizes, err);
    for (int rank = 0; rank < world && !status; rank++)
        if (sizes[rank] != bytes) status = fail_size(hosts, rank, bytes, sizes[rank], err);
    tern__free(sizes);
    return status;
}

static int hosts_window_open(void *state, void *base, size_t bytes, uint32_t *window, tern_error *err)
{
    tern__hosts *hosts = state;
    const tern_group *here = &hosts->here;
    int status = agree_on_size(hosts, bytes, err);
    return status ? status : here->backend->window_open(here->state, base, bytes, window, err);
}

static void *hosts_window_base(void *state, uint32_t window)
{
    const tern_group *here = &((tern__hosts *)state)->here;
    return here->backend->window_base(here->state, window);
}

static char *hosts_window_peer(void *state, uint32_t window, int rank)
{
    const tern_group *here = &((tern__hosts *)state)->here;
    return here->backend->window_peer(here->state, window, rank);
}

static void hosts_window_close(void *state, uint32_t window)
{
    const tern_group *here = &((tern__hosts *)state)->here;
    here->backend->window_close(here->state, window);
}

/* True if every host has one rank, so that no other rank reads this rank's memory directly. */
static bool hosts_reach_own(void *state)
{
    return ((const tern__hosts *)state)->map.most == 1;
}

const tern__comm_backend tern__comm_hosts = {
    .name = "hosts",
    .lands_in_windows = true,
    .open = hosts_open,
    .close = hosts_close,
    .window_open = hosts_window_open,
    .window_base = hosts_window_base,
    .window_close = hosts_window_close,
    .window_peer = hosts_window_peer,
    .reach_own = hosts_reach_own,
    .channel_open = tern__hosts_channel_open,
    .channel_close = tern__hosts_channel_close,
    .post = tern__hosts_channel_post,
    .progress = tern__hosts_channel_progress,
    .test = tern__hosts_channel_test,
    .wait = tern__hosts_channel_wait,
    .mark = tern__hosts_channel_mark,
    .tally = tern__hosts_channel_tally,
    .mailbox_open = tern__hosts_mailbox_open,
    .mailbox_close = tern__hosts_mailbox_close,
    .start = tern__hosts_mailbox_start,
    .carry = tern__hosts_mailbox_carry,
    .await = tern__hosts_mailbox_await,
    .drop = tern__hosts_mailbox_drop,
};
