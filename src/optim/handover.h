/* handover.h - pieces of panes go from the ranks that have made them to all others: a sharded optimizer's
 * slices, and LAMB's sums.
 *
 * In the host's memory a rank's pieces are one broadcast, and its line, a few bytes that it says with them,
 * rides behind them. In a device's memory that the back end reaches, the pieces of all ranks are one work,
 * and what the host waits for is that the other hosts have posted theirs; the lines go over beside it. Pieces
 * of other devices are copied to the host first, and from it afterwards (pane.h). */
#ifndef TERN_SRC_OPTIM_HANDOVER_H
#define TERN_SRC_OPTIM_HANDOVER_H

#include "optim/optim.h"
#include "optim/pane.h"

typedef struct tern__handover {
    tern_group *group;
    void *channel;
    tern__pane lines;      /* one a rank                          */
    tern__extent *extents; /* of the works of one round           */
    int *roots;            /* of each, whose it is                */
    int extent_count;      /* so far                              */
    tern__post says;       /* what all works of the round have in common */
    uint64_t last;         /* work of it                          */
} tern__handover;

/* What of some panes goes from each rank to all others. */
typedef struct tern__lot {
    const tern__pane *panes;
    int count;
    /* Extents of rank `rank`'s in the panes that are at home there; returns how many. */
    int (*fill)(const tern_optim *optim, int rank, const tern_device *home, tern__extent *extents);
    bool has_lines; /* all are there afterwards */
} tern__lot;

/* For lots that fill in at most so many extents, all ranks' together, in so many panes. Collective. After a
 * failure it is to be closed, too. */
int tern__handover_open(tern__handover *x, tern_group *group, size_t extents, size_t panes, tern_error *err);
void tern__handover_close(tern__handover *x);

/* TERN__LINE bytes. */
static inline char *tern__handover_line(const tern__handover *x, int rank)
{
    return x->lines.block + (size_t)rank * TERN__LINE;
}

/* When it returns, what the step is asked finds all pieces where they belong. They are sharded optimizer
 * `number`'s, of its `step`. */
int tern__handover_run(tern__handover *x, const tern_optim *optim, const tern__lot *what, uint32_t number,
                       uint64_t step, tern_error *err);

#endif
