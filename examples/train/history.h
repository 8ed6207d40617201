/* history.h - the numbers of every epoch, by name. Curves are drawn from them. The history is part of every
 * checkpoint, so a resumed run has complete curves. */
#ifndef TERN_EXAMPLES_HISTORY_H
#define TERN_EXAMPLES_HISTORY_H

#include <tern.h>

#define HISTORY_NAMES 32

typedef struct history {
    struct {
        char name[48];
        double *values; /* [epochs], NaN if an epoch has none */
    } series[HISTORY_NAMES];
    int count;
    const char *main_group;      /* "iou/": its numbers are main ones; NULL: none */
    int64_t epochs;              /* completed                                  */
    double loss_sum, loss_count; /* over the steps of the current epoch        */
} history;

/* Sets a number of the current epoch, whose index is `epochs`. Ignores names beyond HISTORY_NAMES. */
void history_set(history *h, const char *name, double value);
/* Returns the number of an epoch, counted from 0; NaN if there is none. */
double history_get(const history *h, const char *name, int64_t epoch);
/* Is the number of the current epoch larger than all before it? */
bool history_is_best(const history *h, const char *name);
/* Is it a main number, to be printed? Its name has no slash, or is in the main group or that of a loss
 * ("loss/test"). */
bool history_is_main(const history *h, const char *name);
/* Returns the name without its group: "lake" of "iou/lake". */
const char *history_short_name(const char *name);
/* Empties it; the main group stays. */
void history_free(history *h);

/* For tern_snapshot_add; `self` is a history. */
tern_object *history_save(void *self, tern_error *err);
int history_load(const tern_object *state, void *self, tern_error *err);

#endif
