/* snapshot_choices.c - which algorithms the run computes with (kernels/choices.h): clocks have chosen them on
 * rank 0, and clocks might choose others when the run is taken up, or the other ranks hear of it a step later
 * than they did. So rank 0's lines are in the file, and whenever the run is saved or taken up the other ranks
 * are told them all. */
#include "checkpoint/agree.h"
#include "checkpoint/snapshot.h"

#include <tern/collectives.h>

#include <string.h>

#define ROOM ((size_t)1 << 20) /* bytes of lines: more than two thousand cases */

static tern__choosers choosers_of(const tern_snapshot *s)
{
    tern__choosers list = {0};
    for (int i = 0; i < s->count; i++)
        if (s->items[i].add_devices) s->items[i].add_devices(s->items[i].ctx, &list);
    return list;
}

/* Rank 0's lines to all; `text` has room for them. */
static int tell(const tern_snapshot *s, char *text, tern_error *err)
{
    const tern__choosers list = choosers_of(s);
    int64_t bytes = s->rank == 0 ? (int64_t)tern__choosers_write(&list, text, ROOM) : 0;
    if (s->world == 1) return TERN_OK;
    int status = tern_broadcast(s->group, &bytes, 1, TERN_I64, 0, err);
    if (!status && bytes) status = tern_broadcast(s->group, text, (size_t)bytes, TERN_U8, 0, err);
    for (int i = 0; i < list.count && s->rank > 0 && !status; i++)
        tern__choices_read(list.device[i], text, (size_t)bytes);
    return status;
}

static char *share(const tern_snapshot *s, const char *func, tern_error *err)
{
    char *text = tern__alloc(ROOM, func, err);
    if (!tern__agree(s->group, func, err) && !tell(s, text, err)) return text;
    tern__free(text);
    return NULL;
}

tern_object *tern__snapshot_choices_save(const tern_snapshot *s, tern_error *err)
{
    char *text = share(s, "tern_snapshot_save", err);
    tern_object *lines = text && *text && s->rank == 0 ? tern_object_string(text, err) : NULL;
    tern__free(text);
    return lines;
}

int tern__snapshot_choices_load(const tern_snapshot *s, const tern_object *lines, tern_error *err)
{
    const tern__choosers list = choosers_of(s);
    const char *text = s->rank == 0 ? tern_object_to_string(lines) : NULL;
    for (int i = 0; text && i < list.count; i++) tern__choices_restore(list.device[i], text, strlen(text));
    tern__free(share(s, "tern_snapshot_load", err));
    return err->code;
}
