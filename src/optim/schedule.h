/* schedule.h - a schedule from inside: a map from a group's learning rate to another, which depends on t.
 *
 * Nearly all are closed formulas of t, so that what a schedule is at a time does not depend on how it came
 * there; the rates of a resumed run are the same bits. The one that is not, the plateau, keeps how often it
 * has lowered the rate, and its map is a formula of that. */
#ifndef TERN_SRC_SCHEDULE_H
#define TERN_SRC_SCHEDULE_H

#include "optim/optim.h"

#include <tern/schedule.h>

typedef struct tern__schedule_kind {
    /* What it makes of a group's rate at time t. */
    double (*rate)(const tern_schedule *s, int64_t t, int group, double rate);
    /* The momentum, or beta1, that every group has at time t; NAN: its own. NULL: never another. */
    double (*momentum)(const tern_schedule *s, int64_t t);
    /* Puts its options, and what else torch has there, into a state dict. NULL: nothing. */
    void (*describe)(const tern_schedule *s, tern_object *dict, tern_error *err);
} tern__schedule_kind;

/* What a plateau remembers. */
typedef struct tern__plateau {
    double best;
    int64_t bad, cooldown; /* metrics that were not better; that do not count any more */
    int64_t reductions;    /* of the rate                                              */
} tern__plateau;

struct tern_schedule {
    const tern__schedule_kind *kind;
    tern_optim *optim;       /* borrowed                                                  */
    tern_schedule *next;     /* on this optimizer                                         */
    tern_schedule *sequence; /* that it belongs to, or NULL                               */
    tern_unit unit;
    int64_t t;
    int64_t done; /* the last t at which a rate falls; 0 for a schedule that has none */
    bool asked;   /* whether the unit can be right                                    */

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

/* Those that others have to know. */
extern const tern__schedule_kind tern__one_cycle_kind, tern__plateau_kind, tern__sequence_kind;

/* TERN_OK if a schedule of this unit may be made, or a negative status. */
int tern__schedule_check(const char *func, const tern_optim *optim, tern_unit unit, tern_error *err);
/* A schedule like that one on its optimizer, of which it is the last now; NULL sets *err. */
tern_schedule *tern__schedule_new(const char *func, const tern_schedule *like, tern_error *err);
/* Takes it off its optimizer, which then computes rates without it. */
void tern__schedule_unlink(tern_schedule *schedule);
/* The option that a one-cycle changes, "momentum" or the first of "betas"; NULL: there is none. */
const tern__option *tern__schedule_momentum(const tern_optim *optim);
/* Copies milestones that rise, from `least` on: into *copy, which is then the caller's. */
int tern__milestones_copy(const char *func, int count, const int64_t *milestones, int64_t least,
                          int64_t **copy, tern_error *err);

#endif
