/* board.h - a board from inside: its runs, each an event file, and its tables.
 *
 * Whatever a board shows is a Value of event.proto. Who makes one keeps it on the stack, with pointers to
 * what the caller gave, and hands it to tern__board_put. */
#ifndef TERN_SRC_REPORT_BOARD_H
#define TERN_SRC_REPORT_BOARD_H

#include "report/journal.h"
#include "tensor/tensor.h"

#include "event.pb-c.h"

#include <tern/board.h>

/* A folder with an event file. The board's own is the first, curves of tern_board_scalars follow. */
typedef struct tern__run {
    char *name; /* of the folder below the board's; "" */
    tern__journal events;
    struct tern__run *next;
} tern__run;

typedef enum tern__table { TERN__TABLE_CSV, TERN__TABLE_JSONL, TERN__TABLE_COUNT } tern__table;

/* Memory that calls need for a while, kept from one to the next. */
typedef enum tern__room {
    TERN__ROOM_PLAIN, /* a tensor's elements without gaps */
    TERN__ROOM_PIXELS,
    TERN__ROOM_PNG,
    TERN__ROOM_COUNT
} tern__room;

struct tern_board {
    char *dir; /* NULL: this rank writes nothing */
    tern_board_opts opts;
    tern__run *runs;
    tern__journal tables[TERN__TABLE_COUNT]; /* without a path: not wanted */
    struct {
        void *data;
        size_t bytes;
    } spaces[TERN__ROOM_COUNT];
};

/* ---- a public call: nothing to do; the errors in it are `why`'s; in the end they are the caller's ---- */

static inline bool tern__board_is_off(const tern_board *board, const tern_error *err)
{
    return tern__is_set(err) || !board || !board->dir;
}
/* Of a call that had nothing to do. */
static inline int tern__board_skip(const tern_error *err)
{
    return err ? err->code : TERN_OK;
}
/* `why` becomes the caller's error or, without one, a warning. */
int tern__board_end(const tern_error *why, tern_error *err);

#define TERN__TAG_ROOM 1024

/* E_INVALID, E_FORMAT, of a tag also E_RANGE. */
int tern__text_check(const char *what, const char *text, const char *func, tern_error *err);
int tern__tag_check(const char *tag, const char *func, tern_error *err);

/* ---- runs ---- */

/* The run `name`, opened when it is first asked for. */
tern__run *tern__board_run(tern_board *board, const char *name, const char *func, tern_error *err);
void tern__runs_free(tern__run *runs);

/* Puts an event with the value into the run's file, or into memory until that is due. */
int tern__board_put(const tern_board *board, tern__run *run, Tern__Pb__Value *value, int64_t step,
                    const char *func, tern_error *err);
/* Writes the journal if that is due. It has failed only if it worked until now. */
int tern__board_settle(const tern_board *board, tern__journal *journal, const char *func, tern_error *err);

int tern__folder_make(const char *dir, const char *func, tern_error *err);
double tern__wall_time(void); /* seconds since 1970 */

/* A point of the chart `tag`; of a NULL run only the error that is set. */
int tern__board_put_scalar(const tern_board *board, tern__run *run, const char *tag, double value,
                           int64_t step, const char *func, tern_error *err);

/* ---- tensors ---- */

/* At least so many bytes, of any content. */
void *tern__board_room(tern_board *board, tern__room which, size_t bytes, const char *func, tern_error *err);
/* The tensor's view or, where its layout is blocked or `dense` asks for no gaps, that of a copy in such room.
 */
int tern__board_view(tern_board *board, const tern_tensor *tensor, bool dense, tern__view *view,
                     const char *func, tern_error *err);

/* ---- tables ---- */

int tern__tables_open(tern_board *board, const char *func, tern_error *err);
/* A line in each; `curve` is NULL, or what follows the tag. */
int tern__tables_put(tern_board *board, const char *tag, const char *curve, double value, int64_t step,
                     const char *func, tern_error *err);

#endif
