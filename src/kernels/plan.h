/* plan.h - how to walk through several views of one shape at once, some of them broadcast (stride 0).
 *
 * Neighbouring dimensions that all operands walk through alike are merged into one, so that equal shapes
 * become one long run, and so does a scalar. In the layout of blocks of 16 channels a view is one of (N, C /
 * 16, spatial.., 16), and every plain operand beside it is seen that way too: layouts may be mixed. Beside
 * one with channels last all are seen as (N, spatial.., C). */
#ifndef TERN_SRC_KERNELS_PLAN_H
#define TERN_SRC_KERNELS_PLAN_H

#include "tensor/view.h"

#define TERN__PLAN_OPERANDS 5
#define TERN__PLAN_DIMS     (TERN_NDIM_MAX + 1)

/* What is left of the dimensions, the innermost first. Strides in elements. */
typedef struct tern__plan {
    int operands, ndim;
    int64_t shape[TERN__PLAN_DIMS], stride[TERN__PLAN_OPERANDS][TERN__PLAN_DIMS];
    int64_t count;
} tern__plan;

/* All views have the same shape; NULL ones get strides 0. */
tern__plan tern__plan_of(const tern__view *const *views, int operands);

/* A place in the walk: which element it is, and its offset in every operand. */
typedef struct tern__cursor {
    int64_t index[TERN__PLAN_DIMS], at[TERN__PLAN_OPERANDS];
} tern__cursor;

tern__cursor tern__cursor_at(const tern__plan *plan, int64_t element);

/* Elements to the end of the innermost row. */
static inline int64_t tern__cursor_room(const tern__plan *plan, const tern__cursor *cursor)
{
    return plan->shape[0] - cursor->index[0];
}

/* Moves on by `count` elements, at most to the end of the row. */
void tern__cursor_move(const tern__plan *plan, tern__cursor *cursor, int64_t count);

#endif
