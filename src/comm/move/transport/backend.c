/* backend.c - the back end of a group that spans hosts: opening and closing, windows. */
#include "comm/move/transport/mailbox.h"

#include "comm/move/window/window.h"
#include "comm/move/transport/transport.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char func[] = "tern_group_open";

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
    here->awaited = tern__alloc((size_t)size * sizeof(*here->awaited), func, err);
    if (!here->awaited) return TERN_E_MEMORY;
    here->backend = size == 1 ? &tern__comm_self : &tern__comm_native;
    here->state = here->backend->open(here, err);
    if (!here->state) return err->code;
    hosts->ranks = size == 1 ? &hosts->alone : tern__windows_ranks(here->state);
    return size == 1 ? tern__shm_open(&hosts->alone, here, err) : TERN_OK;
}

static int open_link(tern__hosts *hosts, tern_error *err)
{
    tern_group *root = hosts->group->root;
    if (!root->incoming) {
        const tern_transport *transport = tern__transport_find(after_plus(hosts->group->backend_name), err);
        tern__link *link = transport ? tern__link_open(root, transport, err) : NULL;
        if (!link) return err->code;
        root->incoming = &link->incoming;
    }
    hosts->link = (tern__link *)root->incoming;
    const tern_transport *transport = hosts->link->transport;
    bool says = transport->size > offsetof(tern_transport, short_bytes);
    hosts->small_bytes = tern__headers_room(hosts, says ? transport->short_bytes : 0);
    return TERN_OK;
}

static void close_link(tern__link *link)
{
    if (!link) return;
    bool failed = link->root->error.code || !tern__control_is_healthy(link->root->control);
    tern__link_stop(link, failed || link->asking);
    for (struct tern__hosts_mailbox *mailbox; (mailbox = link->asking);) {
        link->asking = mailbox->next;
        tern__mail_free(mailbox);
    }
    tern__free(link);
}

static void hosts_close(void *state)
{
    tern__hosts *hosts = state;
    tern_group *root = hosts->group->root;
    tern__hosts_mailbox_close(hosts->mailbox);
    if (root == hosts->group) {
        close_link((tern__link *)root->incoming);
        root->incoming = NULL;
    }
    tern__shm_close(&hosts->alone);
    if (hosts->here.state) hosts->here.backend->close(hosts->here.state);
    tern__free(hosts->here.ranks);
    tern__free(hosts->here.awaited);
    tern__free(hosts->in_place);
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
    if (!status) status = open_here(hosts, err);
    if (!status) status = open_link(hosts, err);
    if (!status) status = tern__hosts_tags(hosts, 3, &hosts->mail_tag, err);
    /* With one rank on every host no other rank reads this rank's memory directly. */
    group->reaches_own = !status && hosts->map.most == 1;
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
    return tern__failure_set_in(hosts->group, TERN_E_MISMATCH, text, err);
}

/* Compares the size between all ranks. The local back end compares it only between the ranks of a host. All
 * ranks find the same difference. A rank that left at once would reset its connections while others still
 * read its number, so they wait for each other; whether that succeeds changes nothing. */
static int agree_on_size(tern__hosts *hosts, size_t bytes, tern_error *err)
{
    int world = hosts->group->boot.world;
    uint64_t *sizes = tern__alloc((size_t)world * sizeof(*sizes), "tern_group_mem_alloc", err);
    if (!sizes) return TERN_E_MEMORY;
    const char *what = "the opening of a window";
    int status = tern__hosts_vote(hosts, what, bytes, sizes, err), other = 0;
    while (!status && other < world && sizes[other] == bytes) other++;
    if (!status && other < world) {
        tern_error ignored = {0};
        uint64_t theirs = sizes[other];
        tern__hosts_vote(hosts, what, bytes, sizes, &ignored);
        status = fail_size(hosts, other, bytes, theirs, err);
    }
    tern__free(sizes);
    return status;
}

/* The hosts may have different amounts of memory, and so sparse windows of different sizes where none is
 * given. */
static int hosts_window_open(void *state, tern__window_opts *opts, uint32_t *window, tern_error *err)
{
    tern__hosts *hosts = state;
    const tern_group *here = &hosts->here;
    int status = agree_on_size(hosts, opts->bytes, err);
    return status ? status : here->backend->window_open(here->state, opts, window, err);
}

static int hosts_window_commit(void *state, uint32_t window, size_t offset, size_t bytes, bool has_pages,
                               tern_error *err)
{
    const tern_group *here = &((tern__hosts *)state)->here;
    return here->backend->window_commit(here->state, window, offset, bytes, has_pages, err);
}

static char *hosts_window_at(void *state, uint32_t window, int rank)
{
    const tern__hosts *hosts = state;
    const tern__host_map *map = &hosts->map;
    int place = 0;
    if (map->host[rank] != map->own) return NULL;
    while (tern__host_rank(map, map->own, place) != rank) place++;
    return hosts->here.backend->window_at(hosts->here.state, window, place);
}

static void hosts_window_close(void *state, uint32_t window)
{
    const tern_group *here = &((tern__hosts *)state)->here;
    here->backend->window_close(here->state, window);
}

const tern__comm_backend tern__comm_hosts = {
    .name = "hosts",
    .lands_in_windows = true,
    .open = hosts_open,
    .close = hosts_close,
    .window_open = hosts_window_open,
    .window_at = hosts_window_at,
    .window_close = hosts_window_close,
    .window_commit = hosts_window_commit,
    .channel_open = tern__hosts_channel_open,
    .channel_close = tern__hosts_channel_close,
    .post = tern__hosts_channel_post,
    .test = tern__hosts_channel_test,
    .wait = tern__hosts_channel_wait,
    .tally = tern__hosts_channel_tally,
    .note = tern__hosts_channel_note,
    .transfer_start = tern__hosts_mailbox_start,
    .transfer_wait = tern__hosts_mailbox_wait,
    .transfer_drop = tern__hosts_mailbox_drop,
};
