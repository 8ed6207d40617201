/* post.c - checks a post's weights. */
#include "comm/backend.h"

#include <math.h>

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
