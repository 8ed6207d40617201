/* rows.h - a table of text with a heading for each column, fitted to the terminal's width. */
#ifndef TERN_CLI_INSPECT_ROWS_H
#define TERN_CLI_INSPECT_ROWS_H

#include "base/base.h"

#define TERN__ROWS_COLUMNS 16 /* at most */

typedef struct tern__rows {
    int columns;
    const char *const *heads; /* '<' at the front of a heading aligns its column to the left */
    char **cells;             /* row by row, UTF-8 without control characters */
    int64_t count;
    size_t room;
} tern__rows;

/* Appends a cell. E_MEMORY. */
int tern__rows_add(tern__rows *table, tern_error *err, const char *format, ...) TERN__PRINTF(3, 4);
/* Prints to stdout, at most `width` characters wide (0: no limit). If the table is too wide, it drops columns
 * from the right, then shortens the middle of long texts in the first column. */
void tern__rows_print(const tern__rows *table, int width);
void tern__rows_free(tern__rows *table);

/* Returns the width of the terminal at stdout, 0 if stdout is not a terminal. */
int tern__terminal_width(void);

#endif
