/* shard.c - every rank updates its slice of the parameters, then the ranks exchange their slices (ZeRO-1).
 *
 * The parameters' pages become a window, so an exchange is one broadcast per rank, over the parts of its
 * slice that the step has updated. A work is carried out only when all ranks have posted it, and a rank that
 * has posted it does not read its parameters until it is done. So one post says both "my slice is ready" and
 * "my parameters may be overwritten", and a slow rank can never compute with half of a step. To say the
 * second earlier would not help: the peers that would overwrite the parameters have to make the same updates
 * first.
 *
 * Ranks with different rates or options would still have equal parameters, as each element is computed by one
 * rank only. So a digest of the attributes of all updates is sent with each slice, and compared. */
#include "optim/slice_exchange.h"

#include "base/hash.h"

#include <inttypes.h>
#include <string.h>

/* A tree's parameters, one block per range, shared by all its sharded optimizers. */
typedef struct tern__shard_blocks {
    int users;
    tern__sharded_block blocks[TERN__RANGES];
    int count;
} shard_blocks;

typedef struct run {
    int range;
    tern__slice bytes;
} run;

struct tern__shard {
    tern_group *group;
    uint32_t number; /* its owner number, as a ddp's */
    tern__slice_exchange exchange;
    tern__sharded_block sums; /* of a first pass */
    uint64_t step;
    uint64_t digest; /* of this step's attributes; sent as the rank's line */
    run *runs;       /* [leaf_count] updated in this step */
    int run_count;
};

/* ---- slices ---- */

/* Returns the slice that rank `rank` updates; slices differ by a section at most. */
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

/* ---- blocks ---- */

static void drop_blocks(tern__seal *seal, const tern_group *group)
{
    shard_blocks *of = seal->blocks;
    if (!of || --of->users > 0) return;
    while (of->count > 0) tern__sharded_block_close(&of->blocks[--of->count], group);
    tern__free(of);
    seal->blocks = NULL;
}

static int open_blocks(const tern__seal *seal, const tern_group *group, tern_error *err)
{
    shard_blocks *of = seal->blocks;
    int status = TERN_OK;
    while (of->count < seal->range_count && !status) {
        const tern__range *range = &seal->ranges[of->count];
        status = tern__sharded_block_open(&of->blocks[of->count++], group, range->params, range->bytes, err);
    }
    return status;
}

/* The first sharded optimizer of a tree opens its blocks. */
static int take_blocks(tern__seal *seal, tern_group *group, tern_error *err)
{
    if (seal->blocks) {
        seal->blocks->users++;
        return TERN_OK;
    }
    shard_blocks *of = tern__alloc(sizeof(*of), "tern_optim_shard", err);
    if (!of) return TERN_E_MEMORY;
    of->users = 1;
    seal->blocks = of;
    int status = open_blocks(seal, group, err);
    if (status) drop_blocks(seal, group);
    return status;
}

/* ---- making ---- */

/* Parameters that the ddp ignores differ from rank to rank, and must not be exchanged. */
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

static int shard_check(const tern_optim *optim, tern_group *group, tern_error *err)
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

/* Makes a first pass's sums a sharded block; on the host they move into its window. */
static int open_sums(tern_optim *optim, tern_error *err)
{
    tern__shard *shard = optim->shard;
    tern__norms *norms = &optim->norms;
    size_t bytes = (size_t)norms->sections * 2 * sizeof(*norms->own);
    double *data = tern__memory_device(norms->own) ? norms->own : NULL;
    int status = tern__sharded_block_open(&shard->sums, shard->group, data, bytes, err);
    if (!status) norms->sums = (double *)shard->sums.data;
    return status;
}

/* A run may be cut where slices end, hence so many extents. */
static int shard_build(tern_optim *optim, tern_error *err)
{
    tern__shard *shard = optim->shard;
    size_t leaves = (size_t)optim->seal->leaf_count, ranges = (size_t)optim->seal->range_count,
           extents = leaves + ranges * (size_t)tern_group_size(shard->group);
    shard->runs = tern__alloc(leaves * sizeof(run), "tern_optim_shard", err);
    int status = shard->runs ? TERN_OK : TERN_E_MEMORY;
    const shard_blocks *of = optim->seal->blocks;
    if (!status)
        status =
            tern__slice_exchange_open(&shard->exchange, shard->group, extents, of->blocks, of->count, err);
    return status || !optim->rule->first_pass ? status : open_sums(optim, err);
}

static int open_shard(tern_optim *optim, tern_group *group, tern_error *err)
{
    int status = take_blocks(optim->seal, group, err);
    if (status) return status;
    optim->shard = tern__alloc(sizeof(*optim->shard), "tern_optim_shard", err);
    if (!optim->shard) {
        drop_blocks(optim->seal, group);
        return TERN_E_MEMORY;
    }
    *optim->shard = (tern__shard){.group = group, .number = ++group->next_owner};
    status = shard_build(optim, err);
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
    int status = tern__is_set(e) ? e->code : shard_check(optim, group, e);
    if (!status) status = open_shard(optim, group, e);
    return status ? tern__group_fail(group, e) : TERN_OK;
}

void tern__shard_free(tern_optim *optim)
{
    tern__shard *shard = optim->shard;
    if (!shard) return;
    tern__slice_exchange_close(&shard->exchange);
    tern__sharded_block_close(&shard->sums, shard->group);
    optim->norms.sums = optim->norms.own;
    drop_blocks(optim->seal, shard->group);
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

/* ---- the sums of a first pass ---- */

/* Appends an extent, or extends the last one by it; returns how many there are. */
static int add_extent(tern__extent *extents, int count, tern__extent more)
{
    tern__extent *last = count ? &extents[count - 1] : NULL;
    bool is_next = last && last->offset + last->count == more.offset;
    if (is_next) last->count += more.count;
    if (!is_next && more.count) extents[count++] = more;
    return count;
}

/* Writes the extents of rank `rank`'s sections of due parameters; neighbours in a range have neighbouring
 * sections. */
static int fill_sums(const tern_optim *optim, int rank, const tern_device *home, tern__extent *extents)
{
    const tern__sharded_block *sums = &optim->shard->sums;
    const uint64_t each = 2 * sizeof(double);
    int count = 0, section = 0;
    if (tern__sharded_block_home(sums) != home) return 0;
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
    const tern__slice_set set = {.blocks = &shard->sums, .count = 1, .fill = fill_sums};
    return tern__slice_exchange_run(&shard->exchange, optim, &set, shard->number, shard->step, err);
}

/* ---- the slices ---- */

/* Writes the extents of rank `rank`'s slice that this step has updated. */
static int fill_slices(const tern_optim *optim, int rank, const tern_device *home, tern__extent *extents)
{
    const tern__shard *shard = optim->shard;
    const shard_blocks *of = optim->seal->blocks;
    int count = 0;
    for (int i = 0; i < shard->run_count; i++) {
        int r = shard->runs[i].range;
        if (tern__sharded_block_home(&of->blocks[r]) != home) continue;
        tern__slice piece = tern__slice_cut(shard->runs[i].bytes, tern__shard_slice(optim, r, rank));
        size_t bytes = tern__slice_bytes(piece);
        if (bytes) extents[count++] = (tern__extent){of->blocks[r].window, piece.begin, bytes};
    }
    return count;
}

static char *shard_line_of(const tern__shard *shard, int rank)
{
    return tern__slice_exchange_line(&shard->exchange, rank);
}

static int compare_digests(const tern__shard *shard, tern_error *err)
{
    for (int rank = 1; rank < tern_group_size(shard->group); rank++)
        if (memcmp(shard_line_of(shard, rank), shard_line_of(shard, 0), sizeof(shard->digest)) != 0)
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
    const shard_blocks *of = optim->seal->blocks;
    const tern__slice_set set = {
        .blocks = of->blocks, .count = of->count, .fill = fill_slices, .has_lines = true};
    int64_t began = tern__trace_now(shard->group->trace);
    memcpy(shard_line_of(shard, tern_group_rank(shard->group)), &shard->digest, sizeof(shard->digest));
    int status = tern__slice_exchange_run(&shard->exchange, optim, &set, shard->number, shard->step, err);
    tern__trace_span(shard->group->trace, TERN__TRACK_WAIT, "parameters", began);
    return status ? status : compare_digests(shard, err);
}
