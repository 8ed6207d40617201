/* straggler.h - finds the rank that the others wait for. */
#ifndef TERN_SRC_PARALLEL_STRAGGLER_H
#define TERN_SRC_PARALLEL_STRAGGLER_H

#include "comm/meet/work.h"

#define TERN__STRAGGLER_STEPS  50         /* synchronised backwards between two exchanges */
#define TERN__STRAGGLER_WINDOW 1000000000 /* ns: shorter windows show the scheduler's noise */
#define TERN__STRAGGLER_SHARE  0.20       /* of the window's time; above it, a rank is slow */
#define TERN__STRAGGLER_CALM   0.10       /* below it, a new warning about a rank is allowed */

/* One rank's numbers, gathered from all ranks; each is an int64_t. */
typedef struct tern__waits {
    int64_t window;  /* ns: the length of the window */
    int64_t waited;  /* ns: from its last bucket until all works were done, summed over the steps */
    int64_t steps;   /* steps in which it waited more than TERN__STRAGGLER_SHARE of the step */
    int64_t shadows; /* steps in which it had no inputs left (tern_ddp_join) */
} tern__waits;

typedef struct tern__straggler {
    tern__waits own;       /* since the last exchange */
    int count;             /* steps since then */
    int64_t before;        /* ns: when the last step ended */
    bool is_posted;        /* the exchange is in the running backward */
    tern__extent gathered; /* [world] tern__waits */

    tern__waits *sums; /* [world] of the running window */
    bool *named;       /* [world] the warning about this rank has been given */
    int steps;         /* of the running window */
    int rank;          /* the rank that the others waited for in the last window; -1: none yet */
    double share;      /* the share of that window's time that they waited */
} tern__straggler;

/* Ends a window: computes `rank` and `share` from the sums. True if a warning is due. */
bool tern__straggler_judge(tern__straggler *self, int world);

#endif
