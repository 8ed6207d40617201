/* channel.c - the stages of a work that spans hosts.
 *
 *   arrive   The ranks of a host meet: they compare their descriptors, and from here on their windows do not
 *            change.
 *   cross    The ranks that talk to other hosts exchange their shares, each for all ranks of the host.
 *   leave    The ranks of the host meet again. A rank that sees the end of this meeting knows that the
 *            results are in its window.
 *   part     Only for a move, which has transferred nothing yet: after `leave` each rank fetches its own
 *            elements, and this third meeting ends when all have done so. Only then may a window change.
 *
 * The meetings are works without data in channels of the local back end. So late ranks are named and dead
 * ones are noticed in the same way as in a group on one host.
 *
 * Every rank takes works through the stages in the same order, several at a time. A rank posts a work only
 * when the previous work of its slot is done, so the local channels always have room. */
#include "comm/move/transport/hosts.h"

#include <stdio.h>
#include <string.h>

static const char func[] = "tern_group_open";

/* A work's tally, written by a rank that talks to other hosts for the ranks that do not. */
typedef struct notice {
    double shares;
    int32_t shadows;
    bool idle;
    bool shadow[]; /* [world] */
} notice;

static tern__hosts_work *channel_work_at(const tern__hosts_channel *channel, uint64_t seq)
{
    return &channel->works[seq % channel->slots];
}

static bool talks_to_hosts(const tern__hosts_channel *channel)
{
    return channel->hosts->map.place < channel->hosts->map.flows;
}

/* ---- notices ---- */

static notice *notice_at(const tern__hosts_channel *channel, uint64_t seq, int place)
{
    const tern_group *here = &channel->hosts->here;
    char *board = here->backend->window_at(here->state, channel->board, place);
    return (notice *)(board + (seq % channel->slots) * channel->notice_bytes);
}

static void board_write(const tern__hosts_channel *channel, uint64_t seq)
{
    const tern__hosts *hosts = channel->hosts;
    const tern__tally *tally = &channel_work_at(channel, seq)->tally;
    if (hosts->map.place != 0) return;
    for (int place = hosts->map.flows; place < hosts->here.boot.world; place++) {
        notice *to = notice_at(channel, seq, place);
        to->shares = tally->shares;
        to->shadows = tally->shadows;
        to->idle = tally->idle;
        memcpy(to->shadow, tally->shadow, (size_t)hosts->group->boot.world * sizeof(bool));
    }
}

static void board_read(const tern__hosts_channel *channel, uint64_t seq)
{
    const tern__hosts *hosts = channel->hosts;
    tern__hosts_work *work = channel_work_at(channel, seq);
    if (talks_to_hosts(channel)) return;
    const notice *from = notice_at(channel, seq, hosts->map.place);
    work->tally.shares = from->shares;
    work->tally.shadows = from->shadows;
    work->tally.idle = from->idle;
    memcpy(tern__hosts_work_shadows(channel, work), from->shadow,
           (size_t)hosts->group->boot.world * sizeof(bool));
}

/* ---- progress ---- */

static int meet_locally(tern__meeting *where, const tern__hosts_work *work, uint64_t *seq, tern_error *err)
{
    tern__post post = work->post;
    post.only_meets = true;
    post.out = NULL;
    return tern__meeting_post(where, &post, seq, err);
}

/* Counts the works in which all ranks of the host have met, and sends their headers. */
static int arrive_all(tern__hosts_channel *channel, tern_error *err)
{
    int status = TERN_OK;
    while (!status && channel->arrived < channel->posted) {
        if (talks_to_hosts(channel) && !tern__exchange_has_room(&channel->exchange)) break;
        status =
            tern__meeting_test(channel->arrive, channel_work_at(channel, channel->arrived + 1)->arrive, err);
        channel->arrived += !status;
        if (!status && talks_to_hosts(channel)) status = tern__exchange_send_header(&channel->exchange, err);
    }
    return status == TERN_PENDING ? TERN_OK : status;
}

static bool channel_is_over(const tern__hosts_channel *channel, uint64_t seq)
{
    return channel->arrived >= seq &&
           (!talks_to_hosts(channel) || tern__exchange_is_over(&channel->exchange, seq));
}

static int cross_work(tern__hosts_channel *channel, tern_error *err)
{
    tern__hosts_work *work = channel_work_at(channel, channel->crossed + 1);
    board_write(channel, channel->crossed + 1);
    int status = meet_locally(channel->leave, work, &work->leave, err);
    channel->crossed += !status;
    return status;
}

/* Repeats while works cross, since each makes room for the headers of another. */
static int cross_all(tern__hosts_channel *channel, tern_error *err)
{
    uint64_t before;
    int status;
    do {
        before = channel->crossed;
        status = arrive_all(channel, err);
        if (!status && talks_to_hosts(channel)) status = tern__exchange_step(&channel->exchange, err);
        while (!status && channel_is_over(channel, channel->crossed + 1)) status = cross_work(channel, err);
    } while (!status && channel->crossed != before);
    return status;
}

/* Begins a move's messages once all ranks of the host know that all hosts posted the same work. */
static int begin_moves(tern__hosts_channel *channel, tern__hosts_work *work, tern_error *err)
{
    int status = tern__meeting_test(channel->leave, work->leave, err);
    if (status) return status;
    work->moves = true;
    return tern__moves_begin(&channel->moves, channel->tag + TERN__CHANNEL_TAGS - 1, work, err);
}

static int end_moves(tern__hosts_channel *channel, tern__hosts_work *work, tern_error *err)
{
    int status = tern__messages_test(&channel->moves, err);
    if (status) return status;
    work->moved = true;
    return meet_locally(channel->part, work, &work->part, err);
}

static int end_work(tern__hosts_channel *channel, tern__hosts_work *work, tern_error *err)
{
    if (!tern__kind_is_move(work->post.kind)) return tern__meeting_test(channel->leave, work->leave, err);
    int status = work->moves ? TERN_OK : begin_moves(channel, work, err);
    if (!status && !work->moved) status = end_moves(channel, work, err);
    return status ? status : tern__meeting_test(channel->part, work->part, err);
}

static int end_all(tern__hosts_channel *channel, tern_error *err)
{
    while (channel->done < channel->crossed) {
        int status = end_work(channel, channel_work_at(channel, channel->done + 1), err);
        if (status) return status == TERN_PENDING ? TERN_OK : status;
        board_read(channel, ++channel->done);
    }
    return TERN_OK;
}

static int channel_progress(tern__progress_hook *hook, tern_error *err)
{
    tern__hosts_channel *channel = (tern__hosts_channel *)hook;
    int status = tern__failure_check(channel->hosts->group, err);
    if (!status) status = cross_all(channel, err);
    return status ? status : end_all(channel, err);
}

/* ---- posting and finishing ---- */

typedef struct goal {
    tern__goal goal;
    const tern__hosts_channel *channel;
    uint64_t seq;
} goal;

static bool channel_has_room(const tern__goal *until)
{
    const goal *g = (const goal *)until;
    return g->seq - g->channel->done <= g->channel->slots;
}

static bool channel_is_done(const tern__goal *until)
{
    const goal *g = (const goal *)until;
    return g->channel->done >= g->seq;
}

/* Returns the meeting that the first unfinished work waits in; NULL if it waits for messages. */
static tern__meeting *find_meeting(const tern__hosts_channel *channel, uint64_t *seq)
{
    const tern__hosts_work *work = channel_work_at(channel, channel->done + 1);
    bool has_crossed = channel->crossed > channel->done, has_arrived = channel->arrived > channel->done;
    *seq = work->moved ? work->part : has_crossed ? work->leave : work->arrive;
    if (!work->moved && !(has_crossed && !work->moves) && has_arrived) return NULL;
    return work->moved ? channel->part : has_crossed ? channel->leave : channel->arrive;
}

/* `here` is scratch for this host's ranks. With one rank on the host there is nobody to wait for. */
static void find_missing_here(const tern__hosts *hosts, tern__meeting *meeting, uint64_t seq, bool *ranks)
{
    bool *here = hosts->here.awaited;
    tern__meeting_missing(meeting, seq, here);
    for (int place = 0; place < hosts->here.boot.world; place++)
        ranks[tern__host_rank(&hosts->map, hosts->map.own, place)] = here[place];
}

static void work_goal_describe(const tern__goal *until, bool *ranks, char *what, size_t size)
{
    const tern__hosts_channel *channel = ((const goal *)until)->channel;
    uint64_t seq = channel->done + 1, met;
    const tern__hosts_work *work = channel_work_at(channel, seq);
    tern__meeting *meeting = find_meeting(channel, &met);
    tern__desc_text(&work->desc, seq, what, size);
    if (meeting)
        find_missing_here(channel->hosts, meeting, met, ranks);
    else if (!work->moves)
        tern__exchange_missing(&channel->exchange, seq, ranks);
    else
        for (int rank = 0; rank < channel->hosts->group->boot.world; rank++)
            ranks[rank] = tern__messages_awaits(&channel->moves, rank);
}

static bool awaits_here(const tern__hosts *hosts, tern__meeting *meeting, uint64_t seq, int rank)
{
    const tern__host_map *map = &hosts->map;
    bool *here = hosts->here.awaited;
    tern__meeting_missing(meeting, seq, here);
    for (int place = 0; place < hosts->here.boot.world; place++)
        if (tern__host_rank(map, map->own, place) == rank) return here[place];
    return false;
}

static bool channel_awaits(const tern__goal *until, int rank)
{
    const tern__hosts_channel *channel = ((const goal *)until)->channel;
    uint64_t seq = channel->done + 1, met;
    tern__meeting *meeting = find_meeting(channel, &met);
    if (meeting) return awaits_here(channel->hosts, meeting, met, rank);
    return channel_work_at(channel, seq)->moves ? tern__messages_awaits(&channel->moves, rank)
                                                : tern__exchange_awaits(&channel->exchange, seq, rank);
}

static int work_goal_find_gone(const tern__goal *until)
{
    return tern__hosts_find_gone(((const goal *)until)->channel->hosts, until, channel_awaits);
}

/* Only ranks of this host can be known to wait for each other. */
static bool work_goal_miss(const tern__goal *until)
{
    uint64_t seq;
    tern__meeting *meeting = find_meeting(((const goal *)until)->channel, &seq);
    return meeting && meeting->of->world > 1 && tern__meeting_miss(meeting, seq);
}

static void work_goal_hint(const tern__goal *until, char *text, size_t size)
{
    uint64_t seq;
    const tern__meeting *meeting = find_meeting(((const goal *)until)->channel, &seq);
    if (meeting) tern__meeting_hint(meeting, text, size);
}

/* Waits for work `seq` until is_met: until it is done, or until there is room for it. */
static int channel_await(const tern__hosts_channel *channel, uint64_t seq,
                         bool (*is_met)(const tern__goal *until), tern_error *err)
{
    goal until = {.goal = {.is_met = is_met,
                           .describe = work_goal_describe,
                           .find_gone = work_goal_find_gone,
                           .miss = work_goal_miss,
                           .hint = work_goal_hint},
                  .channel = channel,
                  .seq = seq};
    return tern__wait(channel->hosts->group, &until.goal, err);
}

static int check_post(const tern__hosts *hosts, const tern__post *post, uint64_t count, tern_error *err)
{
    bool has_parts = post->kind == TERN__ALL_GATHER || post->kind == TERN__REDUCE_SCATTER;
    int status = tern__post_check(post, err);
    if (status || !has_parts || count % (uint64_t)hosts->group->boot.world == 0) return status;
    return tern__error_set(err, "tern_backward", TERN_E_SHAPE, "cannot cut %llu elements into %d equal parts",
                           (unsigned long long)count, hosts->group->boot.world);
}

/* True if the sums fit behind the headers. Sums of 16-bit elements are sent in f32. */
static bool is_small(const tern__hosts *hosts, const tern__hosts_work *work)
{
    size_t most = hosts->small_bytes / TERN__MAX(tern_dtype_bytes(work->post.dtype), sizeof(float));
    return work->post.kind == TERN__ALL_REDUCE && work->count && work->count <= most;
}

int tern__hosts_channel_post(void *self, const tern__post *post, uint64_t *seq, tern_error *err)
{
    tern__hosts_channel *channel = self;
    const tern__hosts *hosts = channel->hosts;
    tern__hosts_work next = {.post = *post, .source = post->root};
    tern__desc_write(&next.desc, post);
    next.count = next.desc.count;
    next.is_small = is_small(hosts, &next);
    int status = check_post(hosts, post, next.count, err);
    bool is_full = channel->posted + 1 - channel->done > channel->slots;
    if (!status && is_full) status = channel_await(channel, channel->posted + 1, channel_has_room, err);
    if (status) return status;
    tern__hosts_work *work = channel_work_at(channel, channel->posted + 1);
    next.tally = (tern__tally){.shadow = tern__hosts_work_shadows(channel, work)};
    *work = next;
    if (post->has_table)
        tern__table_write(
            post, hosts->here.backend->window_at(hosts->here.state, post->table_window, hosts->map.place));
    status = meet_locally(channel->arrive, work, &work->arrive, err);
    if (status) return status;
    work->said = tern__meeting_desc(channel->arrive, work->arrive);
    *seq = ++channel->posted;
    tern__desc_say(hosts->group->control, &work->desc, *seq, hosts->where);
    return TERN_OK;
}

int tern__hosts_channel_test(void *self, uint64_t seq, tern_error *err)
{
    tern__hosts_channel *channel = self;
    int status = channel->done >= seq ? TERN_OK : channel_progress(&channel->hook, err);
    if (status) return status;
    return channel->done >= seq ? TERN_OK : TERN_PENDING;
}

int tern__hosts_channel_wait(void *self, uint64_t seq, tern_error *err)
{
    int status = tern__hosts_channel_test(self, seq, err);
    return status == TERN_PENDING ? channel_await(self, seq, channel_is_done, err) : status;
}

void tern__hosts_channel_note(void *self, const tern__label *label)
{
    const tern__hosts_channel *channel = self;
    tern__meeting_note(channel->arrive, label);
    tern__meeting_note(channel->leave, label);
    tern__meeting_note(channel->part, label);
}

const tern__tally *tern__hosts_channel_tally(void *self, uint64_t seq)
{
    return &channel_work_at(self, seq)->tally;
}

/* ---- life ---- */

void tern__hosts_channel_close(void *self)
{
    tern__hosts_channel *channel = self;
    const tern_group *here = &channel->hosts->here;
    tern__progress_hook_remove(&channel->hosts->link->hooks, &channel->hook);
    tern__exchange_close(&channel->exchange);
    tern__messages_close(&channel->moves);
    tern__meeting_close(channel->arrive);
    tern__meeting_close(channel->leave);
    tern__meeting_close(channel->part);
    if (channel->has_board) here->backend->window_close(here->state, channel->board);
    tern__free(channel->works);
    tern__free(channel->shadows);
    tern__free(channel);
}

static int open_board(tern__hosts_channel *channel, tern_error *err)
{
    const tern_group *here = &channel->hosts->here;
    size_t world = (size_t)channel->hosts->group->boot.world;
    channel->notice_bytes = tern__align_up(sizeof(notice) + world * sizeof(bool), TERN__LINE);
    tern__window_opts opts = {.bytes = channel->slots * channel->notice_bytes};
    int status = here->backend->window_open(here->state, &opts, &channel->board, err);
    channel->has_board = !status;
    return status;
}

static int channel_open_parts(tern__hosts_channel *channel, tern_error *err)
{
    tern__shm_group *ranks = channel->hosts->ranks;
    size_t world = (size_t)channel->hosts->group->boot.world;
    channel->works = tern__alloc(channel->slots * sizeof(*channel->works), func, err);
    channel->shadows = tern__alloc(channel->slots * world * sizeof(*channel->shadows), func, err);
    if (!channel->works || !channel->shadows) return TERN_E_MEMORY;
    channel->arrive = tern__meeting_open(ranks, (int)channel->slots, NULL, NULL, 0, err);
    if (!channel->arrive) return err->code;
    channel->leave = tern__meeting_open(ranks, (int)channel->slots, NULL, NULL, 0, err);
    if (!channel->leave) return err->code;
    channel->part = tern__meeting_open(ranks, (int)channel->slots, NULL, NULL, 0, err);
    if (!channel->part) return err->code;
    int status = open_board(channel, err);
    if (!status) status = tern__messages_open(&channel->moves, channel->hosts, err);
    if (!status) status = tern__exchange_open(&channel->exchange, channel, err);
    return status ? status : tern__hosts_tags(channel->hosts, TERN__CHANNEL_TAGS, &channel->tag, err);
}

void *tern__hosts_channel_open(void *state, const tern__channel_opts *opts, tern_error *err)
{
    tern__hosts *hosts = state;
    tern__hosts_channel *channel = tern__alloc(sizeof(*channel), func, err);
    if (!channel) return NULL;
    *channel = (tern__hosts_channel){
        .hook.progress = channel_progress, .hosts = hosts, .slots = (uint64_t)TERN__MAX(opts->slots, 2)};
    if (channel_open_parts(channel, err)) {
        tern__hosts_channel_close(channel);
        return NULL;
    }
    tern__progress_hook_add(&hosts->link->hooks, &channel->hook);
    return channel;
}
