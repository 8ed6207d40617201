/* group.c - opens and closes groups, and allocates their shared memory. */
#include "comm/move/backend.h"

#include "base/opts.h"
#include "base/pages.h"
#include "comm/bootstrap/mpi.h"
#include "comm/call/arena.h"
#include "comm/launch/presence.h"
#include "comm/call/p2p.h"
#include "comm/call/staging.h"
#include "comm/sys.h"
#include "device/device.h"

#include <sodium.h>
#include <sys/mman.h>
#include <unistd.h>

tern_group_opts tern_group_defaults(void)
{
    return (tern_group_opts){.size = sizeof(tern_group_opts),
                             .connect_timeout_s = 300,
                             .timeout_s = 1800,
                             .trace = tern__env("TERN_TRACE"),
                             .backend = tern__env("TERN_BACKEND"),
                             .rank = -1,
                             .world = -1,
                             .local_rank = -1,
                             .local_world = -1,
                             .host_timeout_s = 15};
}

/* ---- open ---- */

/* Returns a page that the kernel zeroes in a forked child. Reading it is cheaper than getpid(). */
static const int *make_mark(tern_error *err)
{
    size_t page = tern__page_bytes();
    int *mark = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mark == MAP_FAILED) {
        tern__error_errno(err, "tern_group_open", TERN_E_MEMORY, "cannot map a page");
        return NULL;
    }
    if (madvise(mark, page, MADV_WIPEONFORK)) {
        tern__error_errno(err, "tern_group_open", TERN_E_SYSTEM, "cannot mark a page to be wiped on fork");
        munmap(mark, page);
        return NULL;
    }
    *mark = 1;
    return mark;
}

static int check_seconds(const char *name, double value, const char *func, tern_error *err)
{
    if (value > 0) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "%s is %g, expected more than 0", name, value);
}

int tern__group_opts_check(const tern_group_opts *opts, const char *func, tern_error *err)
{
    int status = check_seconds("connect_timeout_s", opts->connect_timeout_s, func, err);
    if (!status) status = check_seconds("timeout_s", opts->timeout_s, func, err);
    if (!status) status = check_seconds("host_timeout_s", opts->host_timeout_s, func, err);
    return status ? status : tern__comm_check(opts->backend, func, err);
}

int tern__group_opts_read(tern_group_opts *opts, const tern_group_opts *user, tern_error *err)
{
    *opts = tern_group_defaults();
    int status = tern__opts_read(opts, sizeof(*opts), user, "tern_group_open", err);
    return status ? status : tern__group_opts_check(opts, "tern_group_open", err);
}

static tern_group *group_new(const tern__bootstrap *boot, const tern_group_opts *user, tern_error *err)
{
    tern_group_opts opts;
    if (tern__group_opts_read(&opts, user, err)) return NULL;
    tern_group *group = tern__alloc(sizeof(*group), "tern_group_open", err);
    if (!group) return NULL;
    *group = (tern_group){.boot = *boot,
                          .opts = opts,
                          .root = group,
                          .users = 1,
                          .next_id = 1,
                          .pid = getpid(),
                          .progress = tern__family_progress,
                          .mark = make_mark(err)};
    group->boot.choice = tern__comm_choose(opts.backend, boot->mpi != NULL);
    if (group->mark) return group;
    tern__free(group);
    return NULL;
}

/* Sets the rank's place among the ranks of its host. */
static void place_ranks(tern__bootstrap *boot, const tern__control *control)
{
    int own = tern__control_host(control, boot->rank);
    boot->local_rank = boot->local_world = 0;
    for (int rank = 0; rank < boot->world; rank++) {
        bool is_here = tern__control_host(control, rank) == own;
        boot->local_world += is_here;
        boot->local_rank += is_here && rank < boot->rank;
    }
}

/* Gives this rank its share of the cores, for devices opened from now on. */
static void share_cores(const tern_group *group)
{
    int before = 0, sharers = 0;
    for (int rank = 0; rank < group->boot.world; rank++) {
        bool shares = tern__control_shares_cores(group->control, rank);
        sharers += shares;
        before += shares && rank < group->boot.rank;
    }
    tern__device_share_among(before, sharers, group->boot.local_world);
}

/* Checks the descriptors that meeting needs at least: one connection to the store, and a control socket and
 * a pidfd for every rank; rank 0's store also has a connection to every rank. Without this check a rank with
 * too few would close its peers' connections, which they would report, or retry until its timeout. */
static int check_descriptors(const tern__bootstrap *boot, tern_error *err)
{
    int least = boot->rank == 0 ? 3 * boot->world + 3 : 2 * boot->world;
    int found = tern__descriptors_free(least);
    if (found == least) return TERN_OK;
    return tern__error_set(
        err, "tern_group_open", TERN_E_SYSTEM,
        "rank %d of %d needs at least %d more descriptors, but may open only %d: raise the "
        "limit (ulimit -n)",
        boot->rank, boot->world, least, found);
}

/* All ranks open the back end together, so no rank returns from tern_group_open before rank 0 has stopped
 * listening. A rank that then opens the next group at the same address cannot reach this group's store. */
static int group_meet(tern_group *group, tern_error *err)
{
    if (group->boot.world == 1) return TERN_OK;
    if (check_descriptors(&group->boot, err)) return err->code;
    group->store = tern__store_open(&group->boot, group->opts.connect_timeout_s, err);
    if (!group->store) return err->code;
    group->control = tern__control_open(&group->boot, group->store, group->opts.connect_timeout_s,
                                        group->opts.host_timeout_s, err);
    if (!group->control) return err->code;
    tern__store_stop_listening(group->store);
    if (!group->boot.is_placed) place_ranks(&group->boot, group->control);
    share_cores(group);
    return TERN_OK;
}

/* Rank 0 creates the timeline before the other ranks can have met it. It cannot close it before they have
 * opened it, since all ranks open the back end together. */
static int meet_traced(tern_group *group, tern_error *err)
{
    const char *path = group->opts.trace;
    int rank = group->boot.rank;
    if (path && rank == 0) group->trace = tern__trace_open(path, rank);
    int status = group_meet(group, err);
    if (path && rank != 0 && !status) group->trace = tern__trace_open(path, rank);
    /* The caller's strings are no longer needed. */
    group->opts.trace = group->opts.init_method = group->opts.backend = NULL;
    return status;
}

static int open_backend(tern_group *group, tern_error *err)
{
    if (tern__comm_pick(group, err)) return err->code;
    group->awaited = tern__alloc((size_t)group->boot.world * sizeof(*group->awaited), "tern_group_open", err);
    if (!group->awaited) return TERN_E_MEMORY;
    group->state = group->backend->open(group, err);
    if (!group->state) return err->code;
    const tern__channel_opts opts = {.slots = TERN__FLIGHT_SLOTS};
    group->channel = group->backend->channel_open(group->state, &opts, err);
    if (!group->channel) return err->code;
    if (group->boot.world == 1) return TERN_OK;
    group->staging = tern__staging_open(group, err);
    return group->staging ? TERN_OK : err->code;
}

int tern__group_build(tern_group *group, tern_error *err)
{
    int status = open_backend(group, err);
    if (group->control) tern__control_unclaim(group->control);
    return status;
}

tern_group *tern__group_open_boot(const tern__bootstrap *boot, const tern_group_opts *opts, tern_error *err)
{
    tern_error why = {0};
    if (tern__is_set(err)) return NULL;
    tern_group *group = group_new(boot, opts, &why);
    if (group && !meet_traced(group, &why) && !tern__group_build(group, &why)) return group;
    if (group) {
        tern__group_fail(group, &why);
        tern_group_close(group);
    }
    tern__presence_fail(why.code);
    why.func = "tern_group_open";
    if (err) *err = why;
    return NULL;
}

tern_group *tern_group_open(const tern_group_opts *user, tern_error *err)
{
    tern__bootstrap boot;
    tern_group_opts opts;
    if (tern__is_set(err) || tern__group_opts_read(&opts, user, err) ||
        tern__bootstrap_read(&boot, &opts, err))
        return NULL;
    tern__presence_row *row = boot.by_launcher ? tern__presence_own(boot.local_rank) : NULL;
    tern__presence_begin(row);
    tern_group *group = tern__group_open_boot(&boot, &opts, err);
    tern__presence_end(row, group != NULL);
    if (group) group->presence = row;
    sodium_memzero(&boot, sizeof(boot));
    return group;
}

/* ---- close ---- */

static void leave_family(tern_group *group)
{
    tern_group **link = &group->root->subgroups;
    while (*link && *link != group) link = &(*link)->next;
    if (*link) *link = group->next;
    if (group->state) group->backend->close(group->state);
    tern__free(group->ranks);
    tern__free(group->awaited);
    tern__free(group);
}

static void close_family(tern_group *root)
{
    bool failed = root->error.code || (root->control && !tern__control_is_healthy(root->control));
    tern__control_goodbye(root->control);
    if (root->state) root->backend->close(root->state);
    tern__control_close(root->control);
    tern_store_close(root->store);
    tern__mpi_finish(&root->boot, failed);
    tern__trace_close(root->trace);
    tern__presence_leave(root->presence);
    munmap((void *)root->mark, tern__page_bytes());
    tern__free(root->awaited);
    sodium_memzero(root, sizeof(*root));
    tern__free(root);
}

void tern_group_close(tern_group *group)
{
    if (!group) return;
    tern_group *root = group->root;
    void *channel = group->channel;
    struct tern__staging *staging = group->staging;
    tern__p2p_close(group);
    group->channel = NULL; /* NULL, so that no other group of the family uses them */
    group->staging = NULL;
    if (channel) group->backend->channel_close(channel);
    tern__staging_close(staging);
    tern__arena_close(group->arena);
    if (group != root) leave_family(group);
    if (--root->users == 0) close_family(root);
}

/* ---- memory ---- */

/* Opens the arena at the first call: then all ranks are here. */
static char *alloc_mem(tern_group *group, size_t bytes, tern_error *err)
{
    if (!bytes) {
        tern__error_set(err, "tern_group_mem_alloc", TERN_E_INVALID,
                        "0 bytes requested, expected at least 1");
        return NULL;
    }
    if (!group->arena) group->arena = tern__arena_open(group, err);
    return group->arena ? tern__arena_alloc(group->arena, bytes, err) : NULL;
}

/* The lack of memory for a block is this rank's own business, so it is no failure of the group. */
void *tern_group_mem_alloc(tern_group *group, size_t bytes, tern_error *err)
{
    tern_error why = {0};
    if (!group) {
        tern__error_set(err, __func__, TERN_E_INVALID, "group is NULL");
        return NULL;
    }
    if (tern__is_set(err)) {
        tern__group_fail(group, err);
        return NULL;
    }
    char *at = tern__group_check(group, __func__, &why) ? NULL : alloc_mem(group, bytes, &why);
    if (at) return at;
    why.func = __func__;
    if (why.code != TERN_E_MEMORY || !group->arena) tern__group_fail(group, &why);
    if (err) *err = why;
    return NULL;
}

void tern_group_mem_free(tern_group *group, void *ptr)
{
    if (group && group->arena && ptr) tern__arena_free(group->arena, ptr);
}
