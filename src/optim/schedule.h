/* schedule.h - the inside of a schedule: a function from a group's learning rate and the time t to a new
 * rate.
 *
 * Nearly all schedules are closed formulas of t, so the rate at a time does not depend on the past, and the
 * rates of a resumed run are the same bits. The exception, the plateau, counts how often it has lowered the
 * rate, and its rate is a formula of that count. */
#ifndef TERN_SRC_SCHEDULE_H
#define TERN_SRC_SCHEDULE_H

#include "optim/optim.h"

#include <tern/schedule.h>

typedef struct tern__schedule_kind {
    /* Returns a group's new rate at time t. */
    double (*rate)(const tern_schedule *s, int64_t t, int group, double rate);
    /* Returns the momentum, or beta1, of all groups at time t; NAN: their own. NULL: always their own. */
    double (*momentum)(const tern_schedule *s, int64_t t);
    /* Puts the options, and torch's other items, into a state dict. NULL: there are none. */
    void (*describe)(const tern_schedule *s, tern_object *dict, tern_error *err);
} tern__schedule_kind;

/* The state of a plateau. */
typedef struct tern__plateau {
    double best;
    int64_t bad, cooldown; /* metrics that were not better; metrics that will be ignored */
    int64_t reductions;    /* how often the rate was lowered                             */
} tern__plateau;

struct tern_schedule {
    const tern__schedule_kind *kind;
    tern_optim *optim;       /* borrowed                                                  */
    tern_schedule *next;     /* of the same optimizer                                     */
    tern_schedule *sequence; /* the sequence that it is a part of, or NULL                */
    tern_unit unit;
    int64_t t;
    int64_t done; /* the last t at which a rate falls; 0 for a schedule that has none */
    bool asked;   /* it has been checked whether the unit can be right                */

    double gamma, start, end, min, power;
    int64_t every, warm_up, total, times;
    int64_t *milestones; /* [count] owned */
    int count;
    tern_schedule_fn fn;
    void *ctx;
    tern_one_cycle_opts cycle;
    tern_plateau_opts plateau;
    tern__plateau state;
    tern_schedule **parts; /* [count + 1] owned, of a sequence */
};

/* The kinds that other files use. */
extern const tern__schedule_kind tern__one_cycle_kind, tern__plateau_kind, tern__sequence_kind;

/* TERN_OK if a schedule of this unit may be made, or a negative status. */
int tern__schedule_check(const char *func, const tern_optim *optim, tern_unit unit, tern_error *err);
/* Appends a copy of `like` to its optimizer's schedules; NULL sets *err. */
tern_schedule *tern__schedule_new(const char *func, const tern_schedule *like, tern_error *err);
/* Removes it from its optimizer, which then computes rates without it. */
void tern__schedule_unlink(tern_schedule *schedule);
/* Makes the groups' own rates those that the optimizer's plateaus have reduced so far. */
void tern__plateaus_restart(tern_optim *optim);
/* Returns the option that a one-cycle changes, "momentum" or the first of "betas"; NULL: there is none. */
const tern__option *tern__schedule_momentum(const tern_optim *optim);
/* Checks that the milestones rise from `least` on, and copies them into *copy, which the caller owns. */
int tern__milestones_copy(const char *func, int count, const int64_t *milestones, int64_t least,
                          int64_t **copy, tern_error *err);

#endif
