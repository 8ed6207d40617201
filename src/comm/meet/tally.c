/* tally.c - compares what the ranks say about a work: whether they all mean the same one, which of them are
 * shadows, and how much each rank's data weighs. All ranks read the same descriptors, so each comes to the
 * same result, with the same error text, before any data is touched. */
#include "comm/move/window/native.h"

#include <string.h>

/* ---- saying ---- */

/* Prepares the tally for a work without weights and shadows, so that for most works nothing is left to do. */
void tern__tally_say(tern__channel *channel, uint64_t seq, const tern__post *post, const tern__desc *desc)
{
    int rank = channel->native->rank, world = channel->native->world;
    tern__task *task = &channel->tasks[seq & (channel->slots - 1)];
    const bool *nobody = channel->shadows + channel->slots * (size_t)world;
    task->tally = (tern__tally){.shadow = nobody, .shares = world};
    task->source = post->root;
    tern__slot_desc(channel, seq)[rank] = *desc;
    if (!post->weighted) return;
    tern__mean_part *part = &tern__slot_part(channel, seq)[rank];
    part->weight = post->weight;
    part->share = post->share;
}

/* ---- comparing ---- */

static int fail_mismatch(const tern__channel *channel, uint64_t seq, int one, int other, tern_error *err)
{
    char text[TERN_ERROR_TEXT];
    tern__desc_mismatch(channel, seq, one, other, text, sizeof(text));
    return tern__native_fail(channel->native, TERN_E_MISMATCH, text, err);
}

static bool is_shadow(const tern__desc *desc)
{
    return desc->flags & TERN__SHADOW;
}

/* Compares all ranks with the first one that is not a shadow, or else with the last rank. */
static int compare(const tern__channel *channel, uint64_t seq, tern_error *err)
{
    const tern__desc *desc = tern__slot_desc(channel, seq);
    int world = channel->native->world, like = 0;
    while (like < world - 1 && is_shadow(&desc[like])) like++;
    for (int rank = 0; rank < world; rank++)
        if (!tern__desc_is_same(&desc[rank], &desc[like]))
            return fail_mismatch(channel, seq, like, rank, err);
    return TERN_OK;
}

/* True if all descriptors are equal and have no flags. */
static bool agree(const tern__channel *channel, uint64_t seq)
{
    const tern__desc *desc = tern__slot_desc(channel, seq);
    for (int rank = 1; rank < channel->native->world; rank++)
        if (memcmp(&desc[rank], &desc[0], sizeof(*desc))) return false;
    return desc->flags == 0;
}

/* ---- counting ---- */

/* Counts the flags. If no rank wants a result (all are idle or shadows), the work is moot, whatever the
 * weights are. */
static void count_flags(const tern__channel *channel, uint64_t seq, tern__task *task)
{
    const tern__desc *desc = tern__slot_desc(channel, seq);
    int world = channel->native->world, idle = 0;
    bool *shadow = channel->shadows + (seq & (channel->slots - 1)) * (size_t)world;
    task->tally.shadow = shadow;
    for (int rank = 0; rank < world; rank++) {
        task->tally.shadows += shadow[rank] = is_shadow(&desc[rank]);
        task->is_weighted |= desc[rank].flags & TERN__WEIGHTED;
        idle += (desc[rank].flags & (TERN__IDLE | TERN__SHADOW)) != 0;
    }
    task->tally.idle = idle == world && task->tally.shadows < world;
    if (!shadow[task->source]) return;
    for (task->source = world - 1; task->source >= 0 && shadow[task->source];) task->source--;
}

/* If every weight is 1 and the shares add up to the number of ranks, the work is a plain mean. If all weights
 * are 0, there is no mean and the work is moot. A premultiplied sum is not a mean: it is computed whatever
 * its factors are. */
static void weigh(const tern__channel *channel, uint64_t seq, tern__task *task)
{
    const tern__desc *desc = tern__slot_desc(channel, seq);
    const tern__mean_part *part = tern__slot_part(channel, seq);
    int world = channel->native->world;
    double *weight = channel->weights + (seq & (channel->slots - 1)) * (size_t)world;
    bool is_plain = true, weighs = false;
    task->tally.shares = 0;
    task->tally.weight = weight;
    for (int rank = 0; rank < world; rank++) {
        bool says = desc[rank].flags & TERN__WEIGHTED;
        weight[rank] = says ? part[rank].weight : 1;
        task->tally.shares += says ? part[rank].share : 1;
        is_plain &= weight[rank] == 1;
        weighs |= weight[rank] != 0;
    }
    task->is_moot = !weighs || task->tally.shares == 0;
    task->is_weighted = !is_plain || task->tally.shares != world;
    if (task->post.op != TERN_PREMUL_SUM) return;
    task->tally.shares = 1;
    task->is_moot = false;
    task->is_weighted = true;
}

int tern__tally_take(tern__channel *channel, uint64_t seq, tern_error *err)
{
    tern__task *task = &channel->tasks[seq & (channel->slots - 1)];
    if (agree(channel, seq)) return TERN_OK;
    int status = compare(channel, seq, err);
    if (status) return status;
    count_flags(channel, seq, task);
    if (task->is_weighted) weigh(channel, seq, task);
    if (task->tally.idle) task->is_weighted = task->is_moot = true;
    return TERN_OK;
}

const tern__tally *tern__channel_tally(void *self, uint64_t seq)
{
    const tern__channel *channel = self;
    return &channel->tasks[seq & (channel->slots - 1)].tally;
}
