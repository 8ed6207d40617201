/* straggler.h - which rank the others wait for. */
#ifndef TERN_SRC_PARALLEL_STRAGGLER_H
#define TERN_SRC_PARALLEL_STRAGGLER_H

#include "autograd/autograd.h"
#include "comm/backend.h"

#include <tern/parallel.h>

#define TERN__STRAGGLER_STEPS  50         /* after so many synchronised backwards the ranks tell each other */
#define TERN__STRAGGLER_WINDOW 1000000000 /* ns: shorter windows show the scheduler's moods */
#define TERN__STRAGGLER_SHARE  0.20       /* of the window's time, from which on a rank is slow             */
#define TERN__STRAGGLER_CALM   0.10       /* and below which it is so no more                               */

/* What a rank has to say; int64_t, as they are gathered. */
typedef struct tern__waits {
    int64_t window;  /* ns: how long it was                                           */
    int64_t waited;  /* ns: after its last bucket, until all works were done           */
    int64_t steps;   /* in which it waited more than TERN__STRAGGLER_SHARE of the step */
    int64_t shadows; /* steps in which it had no inputs left (tern_ddp_join)          */
} tern__waits;

typedef struct tern__straggler {
    tern__waits own; /* since the ranks last told each other */
    int count;       /* its steps                            */
    int64_t before;  /* ns: the end of the step before */
    bool is_posted;  /* in the running backward              */
    uint32_t gather_window;
    bool has_window;
    tern__extent extent; /* of what is gathered */

    tern__waits *sums; /* [world] of the running window                     */
    bool *named;       /* [world] ranks that have been warned of            */
    int steps;         /* of the running window                             */
    int rank;          /* that the others waited for in the last window; -1: there was none yet */
    double share;      /* of its time                                       */
} tern__straggler;

/* A window's end: finds `rank` and `share` from the sums. True if a warning is due. */
bool tern__straggler_judge(tern__straggler *self, int world);

int tern__straggler_open(tern_ddp *ddp, tern_error *err);
void tern__straggler_close(tern_ddp *ddp);
/* Before a backward's works are awaited: after so many steps the ranks tell each other. */
int tern__straggler_post(tern_ddp *ddp, tern_error *err);
/* After they are done. */
void tern__straggler_done(tern_ddp *ddp);

#endif
