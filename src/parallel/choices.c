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

/* ---- life ---- */

int tern__ddp_choices_open(tern_ddp *ddp, tern_error *err)
{
    tern__ddp_choices *self = &ddp->choices;
    if (tern_group_size(ddp->group) == 1) return TERN_OK;
    int status = tern__ddp_window_open(ddp, NULL, ROOM, &self->window, err);
    self->extent = (tern__extent){self->window, 0, ROOM};
    return status;
}

/* ---- a backward ---- */

static char *lines_of(const tern_ddp *ddp)
{
    return tern__ddp_window_base(ddp, ddp->choices.window);
}

/* Returns the devices that the running backward computes on: its scope's and the parameters'. */
static tern__choosers choosers_of(const tern_ddp *ddp)
{
    tern__choosers list = {0};
    tern__choosers_add(&list, ddp->stats.scope->device);
    for (int i = 0; i < ddp->leaf_count; i++)
        tern__choosers_add(&list, ddp->seal->leaves[ddp->order[i]]->parameter->device);
    return list;
}

bool tern__ddp_choices_has_news(const tern_ddp *ddp)
{
    if (!ddp->choices.extent.count || ddp->shadow || tern_group_rank(ddp->group) != 0) return false;
    tern__choosers list = choosers_of(ddp);
    return tern__choosers_serial(&list) != ddp->choices.serial;
}

void tern__ddp_choices_put(tern_ddp *ddp)
{
    if (ddp->shadow || tern_group_rank(ddp->group) != 0) return;
    tern__choosers list = choosers_of(ddp);
    tern__choosers_write(&list, lines_of(ddp), ROOM);
    ddp->choices.serial = tern__choosers_serial(&list);
}

void tern__ddp_choices_take(const tern_ddp *ddp)
{
    if (ddp->shadow || tern_group_rank(ddp->group) == 0) return;
    const tern__choosers list = choosers_of(ddp);
    const char *text = lines_of(ddp);
    size_t bytes = strnlen(text, ROOM);
    for (int i = 0; i < list.count; i++) tern__choices_read(list.device[i], text, bytes);
}
