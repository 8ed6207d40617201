/* plan.h - iterates over several views of one shape at once, some of them broadcast (stride 0).
 *
 * Neighbouring dimensions are merged if every operand steps through them uniformly. So equal shapes become
 * one long run, and so does a scalar. A view in the layout of blocks of 16 channels is seen as (N, C / 16,
 * spatial.., 16), and so is every plain operand beside it: layouts may be mixed. Beside a view with
 * channels last all are seen as (N, spatial.., C). */
#ifndef TERN_SRC_KERNELS_PLAN_H
#define TERN_SRC_KERNELS_PLAN_H

#include "tensor/view.h"

#define TERN__PLAN_OPERANDS 5
#define TERN__PLAN_DIMS     (TERN_NDIM_MAX + 1)

/* The merged dimensions, innermost first. Strides in elements. */
typedef struct tern__plan {
    int operands, ndim;
    int64_t shape[TERN__PLAN_DIMS], stride[TERN__PLAN_OPERANDS][TERN__PLAN_DIMS];
    int64_t count;
} tern__plan;

/* All views have the same shape; NULL ones get strides 0. */
tern__plan tern__plan_of(const tern__view *const *views, int operands);

/* A position: the element, and its offset in every operand. */
typedef struct tern__cursor {
    int64_t index[TERN__PLAN_DIMS], at[TERN__PLAN_OPERANDS];
} tern__cursor;

tern__cursor tern__cursor_at(const tern__plan *plan, int64_t element);

/* Elements left in the innermost row. */
static inline int64_t tern__cursor_room(const tern__plan *plan, const tern__cursor *cursor)
{
    return plan->shape[0] - cursor->index[0];
}

/* Advances by `count` elements, at most to the end of the row. */
void tern__cursor_move(const tern__plan *plan, tern__cursor *cursor, int64_t count);

#endif
