/* post.c - what follows from a work's kind: the parts of its data, and whether it may have weights. */
#include "comm/call/request.h"
#include "comm/call/staging.h"

#include <math.h>

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

int tern__post_check(const tern__post *post, tern_error *err)
{
    bool weighs = post->op == TERN_AVG || post->op == TERN_PREMUL_SUM;
    if (!post->weighted) return TERN_OK;
    if (!tern__kind_reduces(post->kind) || !weighs)
        return tern__error_set(err, "tern_backward", TERN_E_INVALID,
                               "a weight is set, but only an avg or a premul_sum takes one");
    if (!isfinite(post->weight) || !isfinite(post->share) || post->share < 0)
        return tern__error_set(err, "tern_backward", TERN_E_RANGE,
                               "weight %g, share %g: expected finite numbers, and a share of at least 0",
                               post->weight, post->share);
    return TERN_OK;
}
