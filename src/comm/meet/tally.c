/* tally.c - compares what the ranks say about a work: whether they all mean the same one, which of them are
 * shadows, and how much each rank's data weighs. All ranks read the same descriptors, so each comes to the
 * same result, with the same error text, before any data is touched. */
#include "comm/meet/failure.h"
#include "comm/meet/meeting.h"

#include <string.h>

/* ---- the slowest rank ---- */

/* Returns min(words). While the slowest rank's word is unchanged, the other words need not be read. */
static uint64_t words_least(const tern__word *words, int world, int *last, uint64_t known)
{
    uint64_t low = atomic_load(&words[*last].value);
    if (low == known) return known;
    for (int rank = 0; rank < world; rank++) {
        uint64_t value = atomic_load(&words[rank].value);
        if (value >= low) continue;
        low = value;
        *last = rank;
    }
    return low;
}

uint64_t tern__meeting_all_posted(tern__meeting *m)
{
    m->all_posted = words_least(m->posted, m->of->world, &m->posted_last, m->all_posted);
    return m->all_posted;
}

uint64_t tern__meeting_all_retired(tern__meeting *m)
{
    m->all_retired = words_least(m->retired, m->of->world, &m->retired_last, m->all_retired);
    return m->all_retired;
}

/* ---- saying ---- */

/* Prepares the tally for a work without weights and shadows, so that for most works nothing is left to do. */
void tern__tally_say(tern__meeting *m, uint64_t seq, const tern__post *post, const tern__desc *desc)
{
    int rank = m->of->rank, world = m->of->world;
    tern__met *work = tern__meeting_work(m, seq);
    const bool *nobody = m->shadows + m->slots * (size_t)world;
    work->tally = (tern__tally){.shadow = nobody, .shares = world};
    work->is_weighted = work->is_moot = false;
    work->source = post->root;
    tern__desc *own = &tern__meeting_desc(m, seq)[rank];
    memcpy(own, desc, offsetof(tern__desc, posted)); /* the peers are looking at `posted` */
    own->place = desc->place;
    if (!post->terms.weighted) return;
    tern__mean_part *part = &tern__meeting_part(m, seq)[rank];
    part->weight = post->terms.weight;
    part->share = post->terms.share;
}

/* ---- comparing ---- */

static int fail_different(const tern__meeting *m, uint64_t seq, int one, int other, tern_error *err)
{
    char text[TERN_ERROR_TEXT];
    const tern__desc *desc = tern__meeting_desc(m, seq);
    const tern_group *group = m->of->group;
    tern__desc_differ(&desc[one], &desc[other], tern_group_world_rank(group, one),
                      tern_group_world_rank(group, other), seq, text, sizeof(text));
    return tern__failure_set_in(group, TERN_E_MISMATCH, text, err);
}

static bool is_shadow(const tern__desc *desc)
{
    return desc->flags & TERN__SHADOW;
}

/* Compares all ranks with the first one that is not a shadow, or else with the last rank. */
static int tally_compare(const tern__meeting *m, uint64_t seq, tern_error *err)
{
    const tern__desc *desc = tern__meeting_desc(m, seq);
    int world = m->of->world, like = 0;
    while (like < world - 1 && is_shadow(&desc[like])) like++;
    for (int rank = 0; rank < world; rank++)
        if (!tern__desc_is_same(&desc[rank], &desc[like])) return fail_different(m, seq, like, rank, err);
    return TERN_OK;
}

/* True if all descriptors are equal and have no flags, except that the work may be placed. */
static bool tally_agree(const tern__meeting *m, uint64_t seq)
{
    const tern__desc *desc = tern__meeting_desc(m, seq);
    for (int rank = 1; rank < m->of->world; rank++)
        if (!tern__desc_is_equal(&desc[rank], desc)) return false;
    return !(desc->flags & ~(uint32_t)TERN__PLACED);
}

/* ---- counting ---- */

/* Counts the flags. If no rank wants a result (all are idle or shadows), the work is moot, whatever the
 * weights are. */
static void tally_count_flags(const tern__meeting *m, uint64_t seq, tern__met *work)
{
    const tern__desc *desc = tern__meeting_desc(m, seq);
    int world = m->of->world, idle = 0;
    bool *shadow = m->shadows + (seq & (m->slots - 1)) * (size_t)world;
    work->tally.shadow = shadow;
    for (int rank = 0; rank < world; rank++) {
        work->tally.shadows += shadow[rank] = is_shadow(&desc[rank]);
        work->is_weighted |= desc[rank].flags & TERN__WEIGHTED;
        idle += (desc[rank].flags & (TERN__IDLE | TERN__SHADOW)) != 0;
    }
    work->tally.idle = idle == world && work->tally.shadows < world;
    if (!shadow[work->source]) return;
    for (work->source = world - 1; work->source >= 0 && shadow[work->source];) work->source--;
}

/* If every weight is 1 and the shares add up to the number of ranks, the work is a plain mean. If all weights
 * are 0, there is no mean and the work is moot. A premultiplied sum is not a mean: it is computed whatever
 * its factors are. */
static void tally_weigh(const tern__meeting *m, uint64_t seq, tern__met *work)
{
    const tern__desc *desc = tern__meeting_desc(m, seq);
    const tern__mean_part *part = tern__meeting_part(m, seq);
    int world = m->of->world;
    double *weight = m->weights + (seq & (m->slots - 1)) * (size_t)world;
    bool is_plain = true, weighs = false;
    work->tally.shares = 0;
    work->tally.weight = weight;
    for (int rank = 0; rank < world; rank++) {
        bool says = desc[rank].flags & TERN__WEIGHTED;
        weight[rank] = says ? part[rank].weight : 1;
        work->tally.shares += says ? part[rank].share : 1;
        is_plain &= weight[rank] == 1;
        weighs |= weight[rank] != 0;
    }
    work->is_moot = !weighs || work->tally.shares == 0;
    work->is_weighted = !is_plain || work->tally.shares != world;
    if (work->post.op != TERN_PREMUL_SUM) return;
    work->tally.shares = 1;
    work->is_moot = false;
    work->is_weighted = true;
}

int tern__tally_take(tern__meeting *m, uint64_t seq, tern_error *err)
{
    tern__met *work = tern__meeting_work(m, seq);
    if (tally_agree(m, seq)) return TERN_OK;
    int status = tally_compare(m, seq, err);
    if (status) return status;
    tally_count_flags(m, seq, work);
    if (work->is_weighted) tally_weigh(m, seq, work);
    if (work->tally.idle) work->is_weighted = work->is_moot = true;
    return TERN_OK;
}
