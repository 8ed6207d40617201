/* snapshot_choices.c - saves which algorithms the run computes with (device/choices.h). Rank 0 has chosen
 * them by measuring time. After a resume, measuring might choose others, or the choices might reach the other
 * ranks a step later. So the file has rank 0's choices, and each save and load broadcasts them to all ranks.
 */
#include "checkpoint/snapshot.h"

#include <tern/collectives.h>

#include <string.h>

static tern__choosers choosers_of(const tern_snapshot *s)
{
    tern__choosers list = {0};
    for (int i = 0; i < s->count; i++)
        if (s->items[i].add_devices) s->items[i].add_devices(s->items[i].ctx, &list);
    return list;
}

/* Broadcasts rank 0's lines. */
static int snapshot_tell(const tern_snapshot *s, const tern__choosers *list, tern_error *err)
{
    int64_t bytes = s->rank == 0 ? (int64_t)tern__choosers_write(list, s->lines, TERN__SNAPSHOT_LINES) : 0;
    if (s->world == 1) return TERN_OK;
    int status = tern_broadcast(s->group, &bytes, 1, TERN_I64, 0, err);
    if (!status && bytes) status = tern_broadcast(s->group, s->lines, (size_t)bytes, TERN_U8, 0, err);
    for (int i = 0; i < list->count && s->rank > 0 && !status; i++)
        tern__choices_read(list->device[i], s->lines, (size_t)bytes);
    return status;
}

tern_object *tern__snapshot_choices_save(const tern_snapshot *s, tern_error *err)
{
    const tern__choosers list = choosers_of(s);
    bool has_lines = !snapshot_tell(s, &list, err) && s->rank == 0 && *s->lines;
    return has_lines ? tern_object_string(s->lines, err) : NULL;
}

int tern__snapshot_choices_load(const tern_snapshot *s, const tern_object *lines, tern_error *err)
{
    const tern__choosers list = choosers_of(s);
    const char *text = s->rank == 0 ? tern_object_to_string(lines) : NULL;
    for (int i = 0; text && i < list.count; i++) tern__choices_restore(list.device[i], text, strlen(text));
    return snapshot_tell(s, &list, err);
}
