/* lines.h - a contiguous tensor seen as lines along one of its dimensions. */
#ifndef TERN_SRC_KERNELS_LINES_H
#define TERN_SRC_KERNELS_LINES_H

#include "tensor/view.h"

typedef struct tern__dim_attr {
    int64_t dim;
} tern__dim_attr;

/* Line (o, i) of (outer, size, inner) begins at element o size inner + i and has stride inner. */
typedef struct tern__lines {
    int64_t outer, size, inner;
} tern__lines;

/* A scalar has one line of one element, along dimension 0. */
static inline tern__lines tern__lines_of(const tern__view *x, int64_t dim)
{
    tern__lines lines = {1, x->ndim ? x->shape[dim] : 1, 1};
    for (int d = 0; d < dim; d++) lines.outer *= x->shape[d];
    for (int64_t d = dim + 1; d < x->ndim; d++) lines.inner *= x->shape[d];
    return lines;
}

/* Returns the first element of a line, given the line's index. */
static inline int64_t tern__line_start(const tern__lines *lines, int64_t line)
{
    return line / lines->inner * lines->size * lines->inner + line % lines->inner;
}

/* The lines of what was chosen from each line: one index, whose dimension may be gone, or several. */
static inline tern__lines tern__chosen_lines(const tern__lines *lines, const tern__view *index)
{
    int64_t count = lines->outer * lines->inner;
    return (tern__lines){lines->outer, count ? tern__view_count(index) / count : 1, lines->inner};
}

#endif
