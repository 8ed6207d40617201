/* board.h - the board's internals: its runs, each with an event file, and its tables.
 *
 * Everything that a board shows is a Value of event.proto. A function that makes one keeps it on the stack,
 * with pointers to the caller's data, and passes it to tern__board_put. */
#ifndef TERN_SRC_REPORT_BOARD_H
#define TERN_SRC_REPORT_BOARD_H

#include "report/journal.h"
#include "tensor/tensor.h"

#include "event.pb-c.h"

#include <tern/board.h>

/* A run is a folder with an event file. The board's own run is the first; one for each curve of
 * tern_board_scalars follows. */
typedef struct tern__event_file {
    char *name; /* of the folder inside the board's; "" for the board's own */
    tern__journal events;
    struct tern__event_file *next;
} tern__event_file;

typedef enum tern__board_table { TERN__TABLE_CSV, TERN__TABLE_JSONL, TERN__TABLE_COUNT } tern__board_table;

/* Scratch memory, kept from call to call. */
typedef enum tern__room {
    TERN__ROOM_PLAIN, /* a tensor's elements without gaps */
    TERN__ROOM_PIXELS,
    TERN__ROOM_PNG,
    TERN__ROOM_COUNT
} tern__room;

struct tern_board {
    char *dir; /* NULL: this rank writes nothing */
    tern_board_opts opts;
    tern__event_file *runs;
    tern__journal tables[TERN__TABLE_COUNT]; /* no path: not enabled */
    struct {
        void *data;
        size_t bytes;
    } spaces[TERN__ROOM_COUNT];
};

/* ---- public calls: they collect errors in `why` and hand them to the caller at the end ---- */

static inline bool tern__board_is_off(const tern_board *board, const tern_error *err)
{
    return tern__is_set(err) || !board || !board->dir;
}
/* The status of a call that had nothing to do. */
static inline int tern__board_skip(const tern_error *err)
{
    return err ? err->code : TERN_OK;
}
/* Copies `why` to the caller's error, or logs it as a warning if err is NULL. */
int tern__board_end(const tern_error *why, tern_error *err);

#define TERN__TAG_ROOM 1024

/* Refuse with E_INVALID or E_FORMAT; a tag also with E_RANGE. */
int tern__text_check(const char *what, const char *text, const char *func, tern_error *err);
int tern__tag_check(const char *tag, const char *func, tern_error *err);

/* ---- runs ---- */

/* Returns the event file of run `name`, and opens it on first use. */
tern__event_file *tern__board_run(tern_board *board, const char *name, const char *func, tern_error *err);
void tern__event_files_free(tern__event_file *runs);

/* Adds an event with the value to the run's journal, and writes that if it is due. */
int tern__board_put(const tern_board *board, tern__event_file *run, Tern__Pb__Value *value, int64_t step,
                    const char *func, tern_error *err);
/* Writes the journal if it is due. Returns an error only for the first of several failures in a row. */
int tern__board_settle(const tern_board *board, tern__journal *journal, const char *func, tern_error *err);

double tern__wall_time(void); /* seconds since 1970 */

/* Adds a point to the chart `tag`. A NULL run returns the error that is already set. */
int tern__board_put_scalar(const tern_board *board, tern__event_file *run, const char *tag, double value,
                           int64_t step, const char *func, tern_error *err);

/* ---- tensors ---- */

/* Returns at least that many bytes, not initialised. */
void *tern__board_room(tern_board *board, tern__room which, size_t bytes, const char *func, tern_error *err);
/* Returns the tensor's view, or a view of a copy: if the tensor is on a device, its layout is blocked, or
 * `dense` is set and it has gaps. */
int tern__board_view(tern_board *board, const tern_tensor *tensor, bool dense, tern__view *view,
                     const char *func, tern_error *err);

/* ---- tables ---- */

int tern__tables_open(tern_board *board, const char *func, tern_error *err);
/* Adds a line to each table. `curve` is NULL or the name that follows the tag. */
int tern__tables_put(tern_board *board, const char *tag, const char *curve, double value, int64_t step,
                     const char *func, tern_error *err);

#endif
