/* rows.h - rows of text under heads, as wide as the terminal. */
#ifndef TERN_CLI_INSPECT_ROWS_H
#define TERN_CLI_INSPECT_ROWS_H

#include "base/base.h"

#define TERN__ROWS_COLUMNS 16 /* at most */

typedef struct tern__rows {
    int columns;
    const char *const *heads; /* one that begins with '<' is over a column that begins at the left */
    char **cells;             /* row by row, UTF-8 without control characters */
    int64_t count, room;
} tern__rows;

/* The next cell. E_MEMORY. */
int tern__rows_add(tern__rows *table, tern_error *err, const char *format, ...) TERN__PRINTF(3, 4);
/* On stdout, at most `width` columns of text wide (0: whatever it takes): the last columns go first, then the
 * middle of what is long in the first. */
void tern__rows_print(const tern__rows *table, int width);
void tern__rows_free(tern__rows *table);

/* Of stdout, 0 if it is no terminal. */
int tern__terminal_width(void);

#endif
