/* post.c - posts a ddp's works on its channel, says what they are, and waits for conditions while works go
 * on. */
#include "parallel/ddp.h"

#include <sched.h>
#include <stdio.h>

/* ---- what a ddp says of its works ---- */

/* A label's part is the bucket; its number the backward, its detail how many microbatches are folded into
 * it. */
static void label_text(const tern__label *label, char *text, size_t size)
{
    snprintf(text, size, "(ddp %u, backward %llu, bucket %u, %u folded)", label->user,
             (unsigned long long)label->number, label->part, label->detail);
}

static const char *label_differ(const tern__label *one, const tern__label *other)
{
    if (one->user != other->user || one->detail == other->detail) return "";
    return "; one was in no_sync (tern_ddp_sync_set) where the other was not";
}

/* Says nothing of a rank that has done as many backwards. */
static void label_hint(const tern__label *label, int rank, const tern__label *noted, tern__elsewhere where,
                       char *text, size_t size)
{
    static const char *const questions[] = {
        [TERN__ELSEWHERE_UNKNOWN] = "",
        [TERN__ELSEWHERE_LEFT] = ": has it run out of inputs (tern_ddp_join)?",
        [TERN__ELSEWHERE_WAITS] =
            ": has it run out of inputs (tern_ddp_join), or do some ranks skip that call?",
    };
    bool is_behind = noted->number < label->number;
    char unsynchronised[64] = "";
    if (!is_behind && !noted->detail) return;
    if (noted->detail)
        snprintf(unsynchronised, sizeof(unsynchronised), ", the last %u in no_sync (tern_ddp_sync_set)",
                 noted->detail);
    snprintf(text, size, ": rank %d has done %llu backwards%s%s", rank, (unsigned long long)noted->number,
             unsynchronised, is_behind ? questions[where] : "");
}

const tern__label_kind tern__ddp_label = {.id = 1,
                                          .has_shadows = true,
                                          .left = "freed its ddp",
                                          .part = "bucket",
                                          .number = "backward",
                                          .text = label_text,
                                          .differ = label_differ,
                                          .hint = label_hint};

static tern__label label_now(const tern_ddp *ddp, uint32_t bucket, uint32_t folded)
{
    return (tern__label){&tern__ddp_label, ddp->number, bucket, folded, ddp->round.backward};
}

void tern__ddp_note(const tern_ddp *ddp)
{
    tern__label label = label_now(ddp, 0, ddp->round.active ? 0 : ddp->round.folded);
    ddp->group->backend->note(ddp->channel, &label);
}

/* ---- posting and waiting ---- */

int tern__ddp_post(tern_ddp *ddp, tern__post *work, int bucket, tern_error *err)
{
    work->label = label_now(ddp, (uint32_t)bucket, ddp->round.folded);
    work->terms.shadow = ddp->shadow;
    return ddp->group->backend->post(ddp->channel, work, &ddp->round.last_seq, err);
}

int tern__ddp_post_all(tern_ddp *ddp, tern__kind kind, tern_dtype dtype, const tern__extent *extents,
                       int count, tern_error *err)
{
    tern__post work = {.kind = kind, .dtype = dtype, .extents = extents, .extent_count = count};
    return tern__ddp_post(ddp, &work, ddp->bucket_count, err);
}

int tern__ddp_wait(const tern_ddp *ddp, tern_error *err)
{
    return ddp->group->backend->wait(ddp->channel, ddp->round.last_seq, err);
}

const tern__tally *tern__ddp_tally(const tern_ddp *ddp, uint64_t seq)
{
    return ddp->group->backend->tally(ddp->channel, seq);
}

/* Yields between tries, as ranks may share a core. */
int tern__ddp_await(tern_ddp *ddp, tern__ddp_hook test, tern_error *err)
{
    int status = test(ddp, err);
    while (status == TERN_PENDING) {
        status = ddp->group->root->progress(ddp->group, err);
        sched_yield();
        if (!status) status = test(ddp, err);
    }
    return status;
}
