/* progress.h - the text of a progress bar. */
#ifndef TERN_SRC_PROGRESS_H
#define TERN_SRC_PROGRESS_H

#include "base/base.h"

#define TERN__PROGRESS_POSTFIXES 8
#define TERN__PROGRESS_LINE      1400 /* bytes in a line, at most */

typedef struct tern__progress_postfix {
    char name[16];
    double value;
} tern__progress_postfix;

typedef struct tern__progress_state {
    const char *title, *unit;
    bool unit_scale;
    int64_t done, total; /* of all ranks; total 0: unknown */
    double seconds;      /* since the start                */
    double rate;         /* units per second; NaN: unknown */
    int postfix_count;
    tern__progress_postfix postfix[TERN__PROGRESS_POSTFIXES];
} tern__progress_state;

typedef enum tern__progress_bar {
    TERN__PROGRESS_NONE,
    TERN__PROGRESS_ASCII,
    TERN__PROGRESS_BLOCKS, /* Unicode's block elements, in eighths */
} tern__progress_bar;

/* Writes the line. The bar fills the `columns` that the text leaves, and the line is cut to `columns`. With
 * `columns` 0 the bar has 10 cells and the line is not cut. */
void tern__progress_line(char line[TERN__PROGRESS_LINE], const tern__progress_state *state,
                         tern__progress_bar bar, int columns);

#endif
