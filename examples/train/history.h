/* history.h - the numbers of a training's epochs, by name: what curves are drawn of, and a part of every
 * checkpoint, so that a run that is taken up again has the whole curves. */
#ifndef TERN_EXAMPLES_HISTORY_H
#define TERN_EXAMPLES_HISTORY_H

#include <tern.h>

#define HISTORY_NAMES 32

typedef struct history {
    struct {
        char name[48];
        double *values; /* [epochs], NaN where the epoch has none */
    } series[HISTORY_NAMES];
    int count;
    int64_t epochs;              /* that are done                              */
    double loss_sum, loss_count; /* of the steps of the epoch under way        */
} history;

/* Sets the number `name` of epoch `epochs`, the one under way. Numbers beyond HISTORY_NAMES are left out. */
void history_set(history *h, const char *name, double value);
/* Of an epoch, from 0; NaN if there is none. */
double history_get(const history *h, const char *name, int64_t epoch);
/* Whether the last epoch has a larger one than all before it. */
bool history_is_best(const history *h, const char *name);
/* Without a slash, or a loss ("loss/test"): what a person looks at first. */
bool history_is_main(const char *name);
void history_free(history *h);

/* For tern_snapshot_add; `self` is a history. */
tern_object *history_save(void *self, tern_error *err);
int history_load(void *self, const tern_object *state, tern_error *err);

#endif
