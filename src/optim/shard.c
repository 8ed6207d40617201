/* shard.c - every rank updates its slice of the parameters, then the slices change hands.
 *
 * The parameters' pages become a window, so that an exchange is one broadcast a rank, over the pieces of its
 * slice that the step has updated. A work is carried out only when all ranks have posted it, and posting is
 * the promise not to read one's parameters until it is done: "mine is ready" and "mine are free" are one
 * word, and there is no order of events in which a slow rank computes with half of a step. It would not help
 * to say "free" earlier: what it frees is filled by peers that have to go through the same updates first.
 *
 * Ranks with other rates or options would stay equal all the same, each element being computed by one of them
 * only. So a digest of the attributes of every update goes with each slice and is compared. */
#include "optim/handover.h"

#include "base/hash.h"

#include <inttypes.h>
#include <string.h>

/* The parameters of a tree, range by range, for all its sharded optimizers. */
typedef struct tern__shard_panes {
    int users;
    tern__pane panes[TERN__RANGES];
    int count;
} shard_panes;

typedef struct run {
    int range;
    tern__slice bytes;
} run;

struct tern__shard {
    tern_group *group;
    uint32_t number; /* as ddps have one */
    tern__handover handover;
    tern__pane sums; /* LAMB's */
    uint64_t step;
    uint64_t digest; /* of this step's attributes: a rank's line */
    run *runs;       /* [leaf_count] updated in this step */
    int run_count;
};

/* ---- slices ---- */

/* What rank `rank` updates: slices differ by a section at most. */
static tern__slice slice_of(tern__slice all, int world, int rank)
{
    size_t units = tern__align_up(tern__slice_bytes(all), TERN__SECTION) / TERN__SECTION;
    size_t first = units * (size_t)rank / (size_t)world, next = units * (size_t)(rank + 1) / (size_t)world;
    return (tern__slice){all.begin + first * TERN__SECTION,
                         TERN__MIN(all.begin + next * TERN__SECTION, all.end)};
}

tern_group *tern__shard_group(const tern_optim *optim)
{
    return optim->shard->group;
}

tern__slice tern__shard_slice(const tern_optim *optim, int r, int rank)
{
    if (!optim->shard) return optim->all[r];
    return slice_of(optim->all[r], tern_group_size(optim->shard->group), rank);
}

static void take_slices(tern_optim *optim)
{
    int rank = tern_group_rank(optim->shard->group);
    for (int r = 0; r < optim->seal->range_count; r++) optim->own[r] = tern__shard_slice(optim, r, rank);
}

/* ---- panes ---- */

static void drop_panes(tern__seal *seal, const tern_group *group)
{
    shard_panes *of = seal->panes;
    if (!of || --of->users > 0) return;
    while (of->count > 0) tern__pane_close(&of->panes[--of->count], group);
    tern__free(of);
    seal->panes = NULL;
}

static int open_panes(const tern__seal *seal, const tern_group *group, tern_error *err)
{
    shard_panes *of = seal->panes;
    int status = TERN_OK;
    while (of->count < seal->range_count && !status) {
        const tern__range *range = &seal->ranges[of->count];
        status = tern__pane_open(&of->panes[of->count++], group, range->params, range->bytes, err);
    }
    return status;
}

/* The first to share a tree opens its panes. */
static int take_panes(tern__seal *seal, tern_group *group, tern_error *err)
{
    if (seal->panes) {
        seal->panes->users++;
        return TERN_OK;
    }
    shard_panes *of = tern__alloc(sizeof(*of), "tern_optim_shard", err);
    if (!of) return TERN_E_MEMORY;
    of->users = 1;
    seal->panes = of;
    int status = open_panes(seal, group, err);
    if (status) drop_panes(seal, group);
    return status;
}

/* ---- making ---- */

/* Parameters that the ddp ignores are each rank's own. */
static int check_ignored(const tern_optim *optim, tern_error *err)
{
    const tern__seal *seal = optim->seal;
    for (int k = 0; k < seal->leaf_count; k++)
        if (optim->group_of[k] >= 0 && seal->leaves[k]->listener != seal->attached)
            return tern__error_set(
                err, "tern_optim_shard", TERN_E_INVALID,
                "\"%s\" is ignored by the ddp and would become the same on all ranks: give "
                "it an optimizer of its own",
                seal->leaves[k]->name);
    return TERN_OK;
}

static int check(const tern_optim *optim, tern_group *group, tern_error *err)
{
    static const char func[] = "tern_optim_shard";
    if (!optim) return tern__error_set(err, func, TERN_E_INVALID, "the optimizer is NULL");
    if (optim->shard) return tern__error_set(err, func, TERN_E_STATE, "the optimizer is sharded already");
    if (optim->begun)
        return tern__error_set(err, func, TERN_E_STATE,
                               "the optimizer has made a step; shard it before the first");
    if (!optim->seal->attached || optim->seal->group != group)
        return tern__error_set(err, func, TERN_E_STATE,
                               "%s has no ddp on this group: first tern_ddp_new, then tern_optim_shard",
                               optim->seal->root->kind);
    int status = check_ignored(optim, err);
    return status ? status : tern__group_check(group, func, err);
}

/* On the host they are where the peers see them. */
static int open_sums(tern_optim *optim, tern_error *err)
{
    tern__shard *shard = optim->shard;
    tern__norms *norms = &optim->norms;
    size_t bytes = (size_t)norms->sections * 2 * sizeof(*norms->own);
    double *block = tern__memory_device(norms->own) ? norms->own : NULL;
    int status = tern__pane_open(&shard->sums, shard->group, block, bytes, err);
    if (!status) norms->sums = (double *)shard->sums.block;
    return status;
}

/* What slices go over in; once, if several optimizers share the tree. */
static int attach_panes(const tern__shard *shard, const tern__seal *seal, tern_error *err)
{
    const shard_panes *of = seal->panes;
    const tern__comm_backend *backend = shard->group->backend;
    int status = TERN_OK;
    for (int r = 0; backend->channel_attach && r < of->count && !status; r++)
        status = backend->channel_attach(shard->handover.channel, of->panes[r].window, err);
    return status;
}

/* A run is cut by slices. */
static int build(tern_optim *optim, tern_error *err)
{
    tern__shard *shard = optim->shard;
    size_t leaves = (size_t)optim->seal->leaf_count, ranges = (size_t)optim->seal->range_count,
           extents = leaves + ranges * (size_t)tern_group_size(shard->group);
    shard->runs = tern__alloc(leaves * sizeof(run), "tern_optim_shard", err);
    int status = shard->runs ? TERN_OK : TERN_E_MEMORY;
    if (!status) status = tern__handover_open(&shard->handover, shard->group, extents, ranges, err);
    if (!status) status = attach_panes(shard, optim->seal, err);
    return status || !tern__optim_is_lamb(optim) ? status : open_sums(optim, err);
}

static int open_shard(tern_optim *optim, tern_group *group, tern_error *err)
{
    int status = take_panes(optim->seal, group, err);
    if (status) return status;
    optim->shard = tern__alloc(sizeof(*optim->shard), "tern_optim_shard", err);
    if (!optim->shard) {
        drop_panes(optim->seal, group);
        return TERN_E_MEMORY;
    }
    *optim->shard = (tern__shard){.group = group, .number = ++group->next_owner};
    status = build(optim, err);
    if (status)
        tern__shard_free(optim);
    else
        take_slices(optim);
    return status;
}

int tern_optim_shard(tern_optim *optim, tern_group *group, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (!group) return tern__error_set(e, __func__, TERN_E_INVALID, "the group is NULL");
    int status = tern__is_set(e) ? e->code : check(optim, group, e);
    if (!status) status = open_shard(optim, group, e);
    return status ? tern__group_fail(group, e) : TERN_OK;
}

void tern__shard_free(tern_optim *optim)
{
    tern__shard *shard = optim->shard;
    if (!shard) return;
    tern__handover_close(&shard->handover);
    tern__pane_close(&shard->sums, shard->group);
    optim->norms.sums = optim->norms.own;
    drop_panes(optim->seal, shard->group);
    tern__free(shard->runs);
    tern__free(shard);
    optim->shard = NULL;
}

void tern__shard_fail(tern_optim *optim, const tern_error *err)
{
    tern__group_fail(optim->shard->group, err);
}

/* ---- a step ---- */

int tern__shard_begin(tern_optim *optim, tern_error *err)
{
    optim->shard->run_count = 0;
    optim->shard->step++;
    optim->shard->digest = TERN__FNV;
    return tern__group_check(optim->shard->group, "tern_optim_step", err);
}

void tern__shard_digest(tern_optim *optim, const void *data, size_t bytes)
{
    optim->shard->digest = tern__fnv(optim->shard->digest, data, bytes);
}

void tern__shard_note(tern_optim *optim, int r, tern__slice bytes, const tern__optim_attr *attr)
{
    tern__shard *shard = optim->shard;
    tern__shard_digest(optim, attr, optim->rule->attr_bytes);
    run *last = NULL;
    for (int i = shard->run_count - 1; i >= 0 && !last; i--)
        if (shard->runs[i].range == r) last = &shard->runs[i];
    if (last && tern__align_up(last->bytes.end, TERN__LINE) == bytes.begin)
        last->bytes.end = bytes.end;
    else
        shard->runs[shard->run_count++] = (run){r, bytes};
}

/* ---- LAMB's sums ---- */

/* Behind the others, or as a part of the last one. */
static int add_extent(tern__extent *extents, int count, tern__extent more)
{
    tern__extent *last = count ? &extents[count - 1] : NULL;
    bool is_next = last && last->offset + last->count == more.offset;
    if (is_next) last->count += more.count;
    if (!is_next && more.count) extents[count++] = more;
    return count;
}

/* The sections of what is due that are rank `rank`'s; those of neighbours in a range are neighbours. */
static int fill_sums(const tern_optim *optim, int rank, const tern_device *home, tern__extent *extents)
{
    const tern__pane *sums = &optim->shard->sums;
    const uint64_t each = 2 * sizeof(double);
    int count = 0, section = 0;
    if (tern__pane_home(sums) != home) return 0;
    for (int r = 0; r < optim->seal->range_count; r++)
        for (int k = 0; k < optim->seal->leaf_count; k++) {
            if (optim->seal->range_of[k] != r || !tern__optim_is_due(optim, k)) continue;
            int sections = tern__norm_sections(optim, k, k, tern__shard_slice(optim, r, rank), &section);
            const tern__extent more = {sums->window, each * (uint64_t)section, each * (uint64_t)sections};
            count = add_extent(extents, count, more);
        }
    return count;
}

int tern__shard_sums(tern_optim *optim, tern_error *err)
{
    tern__shard *shard = optim->shard;
    const tern__lot what = {.panes = &shard->sums, .count = 1, .fill = fill_sums};
    return tern__handover_run(&shard->handover, optim, &what, shard->number, shard->step, err);
}

/* ---- the slices ---- */

/* What was updated of rank `rank`'s. */
static int fill_slices(const tern_optim *optim, int rank, const tern_device *home, tern__extent *extents)
{
    const tern__shard *shard = optim->shard;
    const shard_panes *of = optim->seal->panes;
    int count = 0;
    for (int i = 0; i < shard->run_count; i++) {
        int r = shard->runs[i].range;
        if (tern__pane_home(&of->panes[r]) != home) continue;
        tern__slice piece = tern__slice_cut(shard->runs[i].bytes, tern__shard_slice(optim, r, rank));
        size_t bytes = tern__slice_bytes(piece);
        if (bytes) extents[count++] = (tern__extent){of->panes[r].window, piece.begin, bytes};
    }
    return count;
}

static char *line_of(const tern__shard *shard, int rank)
{
    return tern__handover_line(&shard->handover, rank);
}

static int compare_digests(const tern__shard *shard, tern_error *err)
{
    for (int rank = 1; rank < tern_group_size(shard->group); rank++)
        if (memcmp(line_of(shard, rank), line_of(shard, 0), sizeof(shard->digest)) != 0)
            return tern__error_set(err, "tern_optim_step", TERN_E_MISMATCH,
                                   "step %" PRIu64 " of a sharded optimizer: rank %d updated its slice with "
                                   "other options or learning rates than rank %d",
                                   shard->step, tern_group_world_rank(shard->group, rank),
                                   tern_group_world_rank(shard->group, 0));
    return TERN_OK;
}

int tern__shard_exchange(tern_optim *optim, tern_error *err)
{
    tern__shard *shard = optim->shard;
    const shard_panes *of = optim->seal->panes;
    const tern__lot what = {.panes = of->panes, .count = of->count, .fill = fill_slices, .has_lines = true};
    int64_t began = tern__trace_now(shard->group->trace);
    memcpy(line_of(shard, tern_group_rank(shard->group)), &shard->digest, sizeof(shard->digest));
    int status = tern__handover_run(&shard->handover, optim, &what, shard->number, shard->step, err);
    tern__trace_span(shard->group->trace, TERN__TRACK_WAIT, "parameters", began);
    return status ? status : compare_digests(shard, err);
}
