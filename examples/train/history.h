/* history.h - the numbers of every evaluation, by name, a row for each. Curves are drawn from them. The
 * history is part of every checkpoint, so a resumed run has complete curves. */
#ifndef TERN_EXAMPLES_HISTORY_H
#define TERN_EXAMPLES_HISTORY_H

#include <tern.h>

#define HISTORY_NAMES      128
#define HISTORY_PRINTED    6             /* numbers of more classes are not printed, only drawn  */
#define HISTORY_EVALUATION "Evaluation/" /* the group of the curves of all numbers but losses */

typedef struct history {
    struct {
        char name[48];
        double *values; /* [rows], NaN if a row has none */
        bool is_set;    /* in the current row            */
    } series[HISTORY_NAMES];
    int count;
    const char *class_group;             /* "iou/": its numbers are those of classes; or NULL  */
    int64_t rows;                        /* completed                                          */
    double *epochs;                      /* [rows] passed when the row was made: 2, or 1.25    */
    double loss_sum, loss_count;         /* over the steps of the current epoch                */
    double row_loss_sum, row_loss_count; /* over the steps since the last row                  */
} history;

/* Sets a number of the current row, whose index is `rows`. Ignores names beyond HISTORY_NAMES. */
void history_set(history *h, const char *name, double value);
/* Returns the number of a row, counted from 0; NaN if there is none. */
double history_get(const history *h, const char *name, int64_t row);
/* Counts the loss of a step. */
void history_loss_add(history *h, double loss);
/* Ends the current row, after so many epochs. */
void history_row_end(history *h, double epochs);
/* Adds the numbers of the current row to the curves. Called when there are all: an evaluation that is
 * stopped is made again by the resumed run. */
void history_log(const history *h, tern_board *board, int64_t step);
/* Is the number of the current row larger, or with `least` smaller, than all before it? */
bool history_is_best(const history *h, const char *name, bool least);
/* Is it a number of a class: "iou/lake"? */
bool history_is_of_class(const history *h, const char *name);
/* Returns how many numbers of classes there are. */
int history_classes(const history *h);
/* Returns the name without its group: "lake" of "iou/lake". */
const char *history_short_name(const char *name);
/* Empties it; the group of classes stays. */
void history_free(history *h);

/* For tern_snapshot_add; `self` is a history. */
tern_object *history_save(void *self, tern_error *err);
int history_load(const tern_object *state, void *self, tern_error *err);

#endif
