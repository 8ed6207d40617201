/* slice_exchange.c - posts the works of an exchange, and copies slices that go through the host. */
#include "optim/slice_exchange.h"

#include "base/hash.h"

#include <stdio.h>

/* ---- what it says of its works ---- */

/* A label's number is the optimizer's step, its detail a digest of the extents. */
static void exchange_label_text(const tern__label *label, char *text, size_t size)
{
    snprintf(text, size, "(sharded optimizer %u, step %llu)", label->user, (unsigned long long)label->number);
}

static const char *label_differ(const tern__label *one, const tern__label *other)
{
    if (one->number != other->number) return "";
    return "; they updated different parameters: their gradients or groups differ";
}

static const tern__label_kind slice_label = {
    .id = 2, .left = "freed its optimizer", .text = exchange_label_text, .differ = label_differ};

/* ---- life ---- */

/* Each rank's line is an extent, too, and each device has an empty one. */
int tern__slice_exchange_open(tern__slice_exchange *exchange, tern_group *group, size_t extents,
                              const tern__sharded_block *blocks, int count, tern_error *err)
{
    static const char func[] = "tern_optim_shard";
    uint32_t windows[TERN__RANGES];
    int world = tern_group_size(group);
    size_t most = extents + (size_t)(world + count);
    tern__channel_opts opts = {.slots = world + count + 1, .windows = windows, .window_count = count};
    *exchange = (tern__slice_exchange){.group = group};
    exchange->extents = tern__alloc(most * sizeof(*exchange->extents), func, err);
    exchange->roots = tern__alloc(most * sizeof(*exchange->roots), func, err);
    if (!exchange->extents || !exchange->roots) return TERN_E_MEMORY;
    int status = tern__sharded_block_open(&exchange->lines, group, NULL, (size_t)world * TERN__LINE, err);
    if (status) return status;
    tern__label_kind_add(&slice_label);
    for (int b = 0; b < count; b++) windows[b] = blocks[b].window;
    exchange->channel = group->backend->channel_open(group->state, &opts, err);
    return exchange->channel ? TERN_OK : err->code;
}

void tern__slice_exchange_close(tern__slice_exchange *exchange)
{
    if (exchange->channel) exchange->group->backend->channel_close(exchange->channel);
    tern__sharded_block_close(&exchange->lines, exchange->group);
    tern__free(exchange->extents);
    tern__free(exchange->roots);
}

/* ---- works ---- */

static bool has_home(const tern__sharded_block *blocks, int count, const tern_device *home)
{
    bool has = false;
    for (int i = 0; i < count; i++) has |= tern__sharded_block_home(&blocks[i]) == home;
    return has;
}

static tern__extent *next_extents(const tern__slice_exchange *exchange)
{
    return exchange->extents + exchange->extent_count;
}

/* Posts a work on the next `count` extents. */
static int slice_extents_post(tern__slice_exchange *exchange, tern__post work, int count, tern_error *err)
{
    work.extents = next_extents(exchange);
    work.extent_count = count;
    exchange->extent_count += count;
    return exchange->group->backend->post(exchange->channel, &work, &exchange->last, err);
}

/* A rank without slices still sends its line, so no work is empty. */
static int post_on_host(tern__slice_exchange *exchange, const tern_optim *optim, const tern__slice_set *set,
                        tern_error *err)
{
    tern__post work = exchange->says;
    int status = TERN_OK;
    for (work.root = 0; work.root < tern_group_size(exchange->group) && !status; work.root++) {
        int count = set->fill(optim, work.root, NULL, next_extents(exchange));
        next_extents(exchange)[count++] =
            (tern__extent){exchange->lines.window, (uint64_t)work.root * TERN__LINE, TERN__LINE};
        status = slice_extents_post(exchange, work, count, err);
    }
    return status;
}

static uint32_t exchange_digest(const tern__extent *extents, int count)
{
    uint64_t hash = TERN__FNV;
    for (int i = 0; i < count; i++)
        hash = tern__fnv_word(tern__fnv_word(hash, extents[i].offset), extents[i].count);
    return tern__fnv_fold(hash);
}

/* Ranks do not compare extents in devices' memory, so they compare a digest of them. The empty extent in
 * front names the device even if there are no others. */
static int post_on_device(tern__slice_exchange *exchange, const tern_optim *optim, const tern__slice_set *set,
                          const tern__sharded_block *block, tern_error *err)
{
    tern__post work = exchange->says;
    tern__extent *extents = next_extents(exchange);
    int *roots = exchange->roots + exchange->extent_count, count = 1;
    extents[0] = (tern__extent){.window = block->window};
    roots[0] = 0;
    for (int rank = 0; rank < tern_group_size(exchange->group); rank++)
        for (int more = set->fill(optim, rank, block->device, extents + count); more > 0; more--)
            roots[count++] = rank;
    work.roots = roots;
    work.label.detail = exchange_digest(extents, count);
    return slice_extents_post(exchange, work, count, err);
}

static int post_lines(tern__slice_exchange *exchange, tern_error *err)
{
    tern__post work = exchange->says;
    work.kind = TERN__ALL_GATHER;
    *next_extents(exchange) =
        (tern__extent){exchange->lines.window, 0, (uint64_t)tern_group_size(exchange->group) * TERN__LINE};
    return slice_extents_post(exchange, work, 1, err);
}

static int post_all(tern__slice_exchange *exchange, const tern_optim *optim, const tern__slice_set *set,
                    tern_error *err)
{
    int status = TERN_OK;
    exchange->extent_count = 0;
    for (int i = 0; i < set->count && !status; i++) {
        const tern_device *home = tern__sharded_block_home(&set->blocks[i]);
        if (home && !has_home(set->blocks, i, home))
            status = post_on_device(exchange, optim, set, &set->blocks[i], err);
    }
    if (status) return status;
    if (has_home(set->blocks, set->count, NULL)) return post_on_host(exchange, optim, set, err);
    return set->has_lines ? post_lines(exchange, err) : TERN_OK;
}

/* ---- by way of the host ---- */

typedef int (*cross_fn)(const tern__sharded_block *block, uint64_t offset, uint64_t bytes, tern_error *err);

/* Copies rank `rank`'s slices to or from the host. */
static int cross(tern__slice_exchange *exchange, const tern_optim *optim, const tern__slice_set *set,
                 int rank, cross_fn go, tern_error *err)
{
    int count = set->fill(optim, rank, NULL, exchange->extents), status = TERN_OK;
    for (int i = 0; i < count; i++)
        for (int p = 0; p < set->count && !status; p++)
            if (set->blocks[p].window == exchange->extents[i].window)
                status = go(&set->blocks[p], exchange->extents[i].offset, exchange->extents[i].count, err);
    return status;
}

static bool has_stage(const tern__slice_exchange *exchange, const tern__slice_set *set)
{
    bool has = false;
    for (int p = 0; p < set->count; p++) has |= set->blocks[p].stage != NULL;
    return has && tern_group_size(exchange->group) > 1;
}

static int exchange_put(tern__slice_exchange *exchange, const tern_optim *optim, const tern__slice_set *set,
                        tern_error *err)
{
    int status = TERN_OK;
    if (!has_stage(exchange, set)) return TERN_OK;
    for (int p = 0; p < set->count && !status; p++) status = tern__sharded_block_depart(&set->blocks[p], err);
    if (!status)
        status = cross(exchange, optim, set, tern_group_rank(exchange->group), tern__sharded_block_put, err);
    for (int p = 0; p < set->count && !status; p++) status = tern__sharded_block_settle(&set->blocks[p], err);
    return status;
}

static int exchange_take(tern__slice_exchange *exchange, const tern_optim *optim, const tern__slice_set *set,
                         tern_error *err)
{
    int status = TERN_OK, own = tern_group_rank(exchange->group);
    if (!has_stage(exchange, set)) return TERN_OK;
    for (int rank = 0; rank < tern_group_size(exchange->group) && !status; rank++)
        if (rank != own) status = cross(exchange, optim, set, rank, tern__sharded_block_take, err);
    for (int p = 0; p < set->count && !status; p++) status = tern__sharded_block_return(&set->blocks[p], err);
    return status;
}

int tern__slice_exchange_run(tern__slice_exchange *exchange, const tern_optim *optim,
                             const tern__slice_set *set, uint32_t number, uint64_t step, tern_error *err)
{
    exchange->says = (tern__post){.kind = TERN__BROADCAST,
                                  .dtype = TERN_U8,
                                  .label = {.kind = &slice_label, .user = number, .number = step}};
    int status = exchange_put(exchange, optim, set, err);
    if (!status) status = post_all(exchange, optim, set, err);
    if (!status) status = exchange->group->backend->wait(exchange->channel, exchange->last, err);
    return status ? status : exchange_take(exchange, optim, set, err);
}
