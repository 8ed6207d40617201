/* choices.c - rank 0 measures convolution algorithms and sends its choices to the other ranks.
 *
 * Timings differ, so ranks that measured for themselves would choose differently: they would take different
 * times for the same work and wait for each other, and the bits of a run's results would depend on several
 * ranks' timings. So only rank 0 measures; in the first step all ranks wait for it anyway. The other ranks
 * use the fixed table until they get its choices (nn/module.c makes their devices follow).
 *
 * Rank 0 sends its choices at the end of the synchronised backward in which it has made new ones: a side
 * value announces them, and its lines (device/choices.h) are broadcast. So between two steps all ranks have
 * the same choices, and a run that is resumed there can have them, too (checkpoint/snapshot_choices.c). Rank
 * 0 sends all of its choices, so a rank that has missed a round because it had no inputs (tern_ddp_join) is
 * complete again after the next one. If there are more cases than fit, the newest are sent. */
#include "parallel/ddp.h"

#include "device/choices.h"

#include <string.h>

#define ROOM ((size_t)512 << 10) /* bytes of lines: all that a CPU learns, or about 1000 cases of a GPU */

struct tern__ddp_choices {
    tern__extent lines; /* rank 0's, ended by a 0 */
    uint64_t serial;    /* the sum of its devices' serials when it last wrote them */
};

static bool choices_are_on(const tern_ddp *ddp)
{
    return tern_group_size(ddp->group) > 1;
}

static int choices_open(tern_ddp *ddp, tern_error *err)
{
    return tern__ddp_extent_open(ddp, TERN_U8, ROOM, &ddp->choices->lines, err);
}

/* Returns the devices that the running backward computes on: its scope's and the parameters'. */
static tern__choosers choosers_of(const tern_ddp *ddp)
{
    tern__choosers list = {0};
    tern__choosers_add(&list, ddp->round.scope->device);
    for (int i = 0; i < ddp->leaf_count; i++)
        tern__choosers_add(&list, ddp->seal->leaves[ddp->order[i]]->parameter->device);
    return list;
}

/* Announces choices of rank 0 that it has not sent yet. */
static int choices_announce(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    bool has_news = false;
    if (!ddp->shadow && tern_group_rank(ddp->group) == 0) {
        tern__choosers list = choosers_of(ddp);
        has_news = tern__choosers_serial(&list) != ddp->choices->serial;
    }
    tern__side_set(ddp, TERN__SIDE_NEWS, has_news);
    return TERN_OK;
}

static void read_lines(const tern_ddp *ddp, const char *lines)
{
    const tern__choosers list = choosers_of(ddp);
    size_t bytes = strnlen(lines, ROOM);
    for (int i = 0; i < list.count; i++) tern__choices_read(list.device[i], lines, bytes);
}

/* Broadcasts rank 0's lines if it has announced some. */
static int choices_take(tern_ddp *ddp, tern_error *err)
{
    struct tern__ddp_choices *self = ddp->choices;
    bool is_first = tern_group_rank(ddp->group) == 0;
    if (ddp->round.is_idle || !(tern__side_get(ddp, TERN__SIDE_COUNTS) > 0) ||
        !(tern__side_get(ddp, TERN__SIDE_NEWS) > 0))
        return TERN_OK;
    char *lines = tern__ddp_window_base(ddp, self->lines.window);
    if (is_first && !ddp->shadow) {
        tern__choosers list = choosers_of(ddp);
        tern__choosers_write(&list, lines, ROOM);
        self->serial = tern__choosers_serial(&list);
    }
    int status = tern__ddp_post_all(ddp, TERN__BROADCAST, TERN_U8, &self->lines, 1, err);
    if (!status) status = tern__ddp_wait(ddp, err);
    if (!status && !is_first && !ddp->shadow) read_lines(ddp, lines);
    return status;
}

void tern__ddp_choices_resend(tern_ddp *ddp)
{
    if (ddp->choices) ddp->choices->serial = 0;
}

const tern__ddp_part tern__choices_part = {TERN__DDP_STATE(choices), .is_on = choices_are_on,
                                           .at = {[TERN__DDP_OPEN] = choices_open,
                                                  [TERN__DDP_ARRIVE] = choices_announce,
                                                  [TERN__DDP_TAKE] = choices_take}};
