/* rows.c - collects the cells of a table and prints them aligned. */
#include "inspect/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { GAP = 2, NAME_LEAST = 24 };

int tern__terminal_width(void)
{
    struct winsize size;
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int tern__rows_add(tern__rows *table, tern_error *err, const char *format, ...)
{
    char *cell;
    if (tern__array_reserve(&table->cells, &table->room, table->count + 1, sizeof(char *), "tern inspect",
                            err))
        return TERN_E_MEMORY;
    va_list args;
    va_start(args, format);
    int bytes = vasprintf(&cell, format, args);
    va_end(args);
    if (bytes < 0) return tern__error_set(err, "tern inspect", TERN_E_MEMORY, "out of memory");
    table->cells[table->count++] = cell;
    return TERN_OK;
}

void tern__rows_free(tern__rows *table)
{
    for (int64_t i = 0; i < table->count; i++) free(table->cells[i]);
    tern__free(table->cells);
    table->cells = NULL;
    table->count = table->room = 0;
}

/* ---- printing ---- */

static bool is_left(const tern__rows *table, int column)
{
    return table->heads[column][0] == '<';
}

static const char *head_of(const tern__rows *table, int column)
{
    return table->heads[column] + is_left(table, column);
}

/* Returns the number of UTF-8 characters. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++) width += ((uint8_t)*text & 0xc0) != 0x80;
    return width;
}

/* Returns the byte offset of character `at`. */
static int byte_of(const char *text, int at)
{
    int byte = 0;
    for (int seen = -1; text[byte]; byte++) {
        seen += ((uint8_t)text[byte] & 0xc0) != 0x80;
        if (seen == at) break;
    }
    return byte;
}

/* Leaves out the middle of a long text: both ends tell more. */
static void print_cut(const char *text, int width)
{
    int have = width_of(text), head = (width - 3) * 2 / 5, tail = width - 3 - head;
    printf("%.*s...%s", byte_of(text, head), text, text + byte_of(text, have - tail));
}

static void print_cell(const char *text, int width, bool left, bool last)
{
    int pad = width - width_of(text);
    if (pad < 0) {
        print_cut(text, width);
        pad = 0;
    } else if (left)
        printf("%s", text);
    else
        printf("%*s%s", pad, "", text);
    if (left && !last) printf("%*s", pad, "");
    fputs(last ? "\n" : "  ", stdout);
}

/* Returns how many columns fit beside a first column of at least NAME_LEAST. A column without text takes no
 * space. */
static int fit_columns(const tern__rows *table, int *widths, int width)
{
    int shown = 1, rest = 0, least = TERN__MIN(widths[0], NAME_LEAST);
    for (; shown < table->columns; shown++) {
        int more = widths[shown] ? GAP + widths[shown] : 0;
        if (width && rest + more + least > width) break;
        rest += more;
    }
    if (width) widths[0] = TERN__MAX(TERN__MIN(widths[0], width - rest), 8);
    while (shown > 1 && !widths[shown - 1]) shown--;
    return shown;
}

static void table_print_row(const tern__rows *table, const char *const *cells, const int *widths, int shown)
{
    for (int c = 0; c < shown; c++) {
        bool is_head = cells == table->heads;
        const char *text = is_head ? head_of(table, c) : cells[c];
        if (widths[c]) print_cell(text, widths[c], is_left(table, c), c + 1 == shown);
    }
}

void tern__rows_print(const tern__rows *table, int width)
{
    int widths[TERN__ROWS_COLUMNS] = {0};
    for (int c = 0; c < table->columns; c++) widths[c] = width_of(head_of(table, c));
    for (int64_t i = 0; i < table->count; i++) {
        int *at = &widths[i % table->columns];
        *at = TERN__MAX(*at, width_of(table->cells[i]));
    }
    int shown = fit_columns(table, widths, width);
    table_print_row(table, table->heads, widths, shown);
    for (int64_t i = 0; i < table->count; i += table->columns)
        table_print_row(table, (const char *const *)table->cells + i, widths, shown);
}
