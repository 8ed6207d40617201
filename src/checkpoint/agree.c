/* agree.c - shares the first rank's error with all ranks. */
#include "checkpoint/agree.h"

#include "base/base.h"

#include <tern/collectives.h>

#include <string.h>

/* The parts of an error that are valid in another process. */
typedef struct told {
    int code, native;
    char text[TERN_ERROR_TEXT];
} told;

/* The group itself failed: `why` is reported unless the rank has an error already. */
static int end_with(tern_error *err, const tern_error *why)
{
    if (!tern__is_set(err)) *err = *why;
    return err->code;
}

static int agree_take(tern_group *group, const char *func, int rank, const told *t, tern_error *err)
{
    *err = (tern_error){0};
    tern__error_set(err, func, t->code, "rank %d: %s", tern_group_world_rank(group, rank), t->text);
    err->native = t->native;
    return err->code;
}

int tern__agree(tern_group *group, const char *func, tern_error *err)
{
    int world = group ? tern_group_size(group) : 1;
    if (world == 1) return err->code;
    tern_error why = {0};
    int64_t first = tern__is_set(err) ? tern_group_rank(group) : world;
    if (tern_all_reduce(group, &first, 1, TERN_I64, TERN_MIN, &why)) return end_with(err, &why);
    if (first == world) return TERN_OK;
    told t = {.code = err->code, .native = err->native};
    memcpy(t.text, err->text, sizeof(t.text));
    if (tern_broadcast(group, &t, sizeof(t), TERN_U8, (int)first, &why)) return end_with(err, &why);
    return agree_take(group, func, (int)first, &t, err);
}
