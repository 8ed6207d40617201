/* call.c - what every call of the user's shares: how it fails, and the parts of its data. */
#include "comm/call/request.h"

/* ---- failing ---- */

int tern__call_fail(tern_group *group, const char *func, tern_error *why, tern_error *err)
{
    why->func = func;
    tern__group_fail(group, why);
    if (err && !err->code) *err = *why;
    return why->code;
}

int tern__call_given(tern_group *group, const char *func, tern_error *err)
{
    if (!group) return tern__error_set(err, func, TERN_E_INVALID, "group is NULL");
    return tern__is_set(err) ? tern__group_fail(group, err) : TERN_OK;
}

int tern__call_fail_null(const char *func, size_t count, tern_dtype dtype, tern_error *err)
{
    return tern__error_set(
        err, func, TERN_E_INVALID,
        "buffer is NULL, expected %zu %s (tern_tensor_data is NULL for a view whose elements "
        "are not in order: tern_contiguous)",
        count, tern_dtype_name(dtype));
}

/* ---- parts ---- */

size_t tern__staging_parts(const tern_group *group, tern__kind kind)
{
    switch (kind) {
    case TERN__ALL_GATHER:
    case TERN__REDUCE_SCATTER:
    case TERN__SCATTER:
    case TERN__ALL_TO_ALL:
    case TERN__ALL_TO_ALL_V: return (size_t)group->boot.world;
    default: return 1;
    }
}

tern__parts tern__request_parts(const tern_group *group, tern__kind kind, int root)
{
    size_t world = (size_t)group->boot.world;
    bool is_root = group->boot.rank == root;
    switch (kind) {
    case TERN__ALL_GATHER: return (tern__parts){1, world};
    case TERN__REDUCE_SCATTER: return (tern__parts){world, 1};
    case TERN__GATHER: return (tern__parts){1, is_root ? world : 0};
    case TERN__SCATTER: return (tern__parts){is_root ? world : 0, 1};
    case TERN__ALL_TO_ALL: return (tern__parts){world, world};
    default: return (tern__parts){1, 1};
    }
}
