/* board_table.c - writes scalars as CSV (RFC 4180) and as JSON lines. cJSON formats the numbers: with all
 * digits that a double needs, and with a point in any locale. */
#include "report/board.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_ROOM 64
#define TEXT_ROOM   (12 * TERN__TAG_ROOM + 16) /* JSON escapes a byte to at most six */
#define LINE_ROOM   (TEXT_ROOM + 3 * NUMBER_ROOM + 64)

static const struct {
    const char *file, *heading;
} formats[TERN__TABLE_COUNT] = {
    [TERN__TABLE_CSV] = {"scalars.csv", "wall_time,step,tag,value\n"},
    [TERN__TABLE_JSONL] = {"scalars.jsonl", ""},
};

static int open_table(tern_board *board, tern__board_table table, const char *func, tern_error *err)
{
    char path[1024];
    tern__journal *journal = &board->tables[table];
    snprintf(path, sizeof(path), "%s/%s", board->dir, formats[table].file);
    if (tern__journal_open(journal, path, false, func, err)) return err->code;
    size_t bytes = strlen(formats[table].heading);
    if (journal->whole || !bytes) return TERN_OK;
    char *room = tern__journal_room(journal, bytes, func, err);
    if (!room) return TERN_E_MEMORY;
    memcpy(room, formats[table].heading, bytes);
    tern__journal_add(journal, bytes);
    return tern__journal_write(journal, func, err);
}

int tern__tables_open(tern_board *board, const char *func, tern_error *err)
{
    int status = TERN_OK;
    if (board->opts.csv) status = open_table(board, TERN__TABLE_CSV, func, err);
    if (board->opts.jsonl && !status) status = open_table(board, TERN__TABLE_JSONL, func, err);
    return status;
}

/* ---- lines ---- */

/* Returns NULL for a number that JSON can write, or the name to write instead. */
static const char *name_of(double value)
{
    if (isnan(value)) return "NaN";
    return isinf(value) ? value > 0 ? "Infinity" : "-Infinity" : NULL;
}

static const char *number_text(double value, char text[NUMBER_ROOM])
{
    cJSON number = {.type = cJSON_Number, .valuedouble = value};
    if (name_of(value)) return name_of(value);
    return cJSON_PrintPreallocated(&number, text, NUMBER_ROOM, false) ? text : "NaN";
}

/* Quotes the tag if it contains a comma, a quote or a line break. */
static const char *csv_text(const char *tag, char text[TEXT_ROOM])
{
    if (!tag[strcspn(tag, ",\"\r\n")]) return tag;
    char *end = text;
    *end++ = '"';
    for (; *tag; tag++) {
        if (*tag == '"') *end++ = '"';
        *end++ = *tag;
    }
    strcpy(end, "\"");
    return text;
}

static const char *json_text(const char *tag, char text[TEXT_ROOM])
{
    cJSON string = {.type = cJSON_String, .valuestring = (char *)tag};
    return cJSON_PrintPreallocated(&string, text, TEXT_ROOM, false) ? text : "\"\"";
}

/* One line of the tables, as text. */
typedef struct row {
    char time[NUMBER_ROOM], number[NUMBER_ROOM], tag[2 * TERN__TAG_ROOM];
    const char *value, *quote; /* around a value that JSON has no number for */
    int64_t step;
} row;

static void make_row(row *r, const char *tag, const char *curve, double value, int64_t step)
{
    number_text(tern__wall_time(), r->time);
    r->value = number_text(value, r->number);
    r->quote = name_of(value) ? "\"" : "";
    r->step = step;
    snprintf(r->tag, sizeof(r->tag), curve ? "%s/%s" : "%s%s", tag, curve ? curve : "");
}

static int line_text(char *line, tern__board_table table, const row *r)
{
    char tag[TEXT_ROOM];
    if (table == TERN__TABLE_CSV)
        return snprintf(line, LINE_ROOM, "%s,%lld,%s,%s\n", r->time, (long long)r->step,
                        csv_text(r->tag, tag), r->value);
    return snprintf(line, LINE_ROOM, "{\"wall_time\":%s,\"step\":%lld,\"tag\":%s,\"value\":%s%s%s}\n",
                    r->time, (long long)r->step, json_text(r->tag, tag), r->quote, r->value, r->quote);
}

int tern__tables_put(tern_board *board, const char *tag, const char *curve, double value, int64_t step,
                     const char *func, tern_error *err)
{
    row r;
    if (!board->opts.csv && !board->opts.jsonl) return TERN_OK;
    make_row(&r, tag, curve, value, step);
    for (int i = 0; i < TERN__TABLE_COUNT; i++) {
        tern__journal *journal = &board->tables[i];
        char *line = journal->path ? tern__journal_room(journal, LINE_ROOM, func, err) : NULL;
        if (!line) continue;
        tern__journal_add(journal, (size_t)line_text(line, (tern__board_table)i, &r));
        tern__board_settle(board, journal, func, err);
    }
    return err->code;
}
