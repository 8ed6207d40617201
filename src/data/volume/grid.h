/* grid.h - covers a line with patches, evenly spread from border to border: as few as overlap by the amount
 * asked for. */
#ifndef TERN_SRC_DATA_GRID_H
#define TERN_SRC_DATA_GRID_H

#include <stdint.h>

/* Returns the number of patches whose starts are at most `step` apart. Needs size >= patch. */
static inline int64_t tern__grid_count(int64_t size, int64_t patch, int64_t step)
{
    return (size - patch + step - 1) / step + 1;
}

static inline int64_t tern__grid_start(int64_t size, int64_t patch, int64_t count, int64_t i)
{
    return count > 1 ? (size - patch) * i / (count - 1) : 0;
}

#endif
