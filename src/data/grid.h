/* grid.h - patches that cover a line: as few as overlap by what is asked for, evenly spread, from border to
 * border. */
#ifndef TERN_SRC_DATA_GRID_H
#define TERN_SRC_DATA_GRID_H

#include <stdint.h>

/* `step`: the most that one patch may begin behind the other; size >= patch. */
static inline int64_t tern__grid_count(int64_t size, int64_t patch, int64_t step)
{
    return (size - patch + step - 1) / step + 1;
}

static inline int64_t tern__grid_start(int64_t size, int64_t patch, int64_t count, int64_t i)
{
    return count > 1 ? (size - patch) * i / (count - 1) : 0;
}

#endif
