/* slice_exchange.h - sends each rank's slices of sharded blocks to all other ranks: a sharded optimizer's
 * parameters, and LAMB's sums.
 *
 * In the host's memory a rank's slices are one broadcast; behind them goes the rank's line, a few bytes of
 * its choice. In a device's memory that the back end reaches, the slices of all ranks are one work, and the
 * host only waits until the other hosts have posted it; the lines are a work of their own. Slices in other
 * devices' memory are copied to the host before, and back afterwards (sharded_block.h). */
#ifndef TERN_SRC_OPTIM_SLICE_EXCHANGE_H
#define TERN_SRC_OPTIM_SLICE_EXCHANGE_H

#include "optim/optim.h"
#include "optim/sharded_block.h"

typedef struct tern__slice_exchange {
    tern_group *group;
    void *channel;
    tern__sharded_block lines; /* one per rank                        */
    tern__extent *extents;     /* of the works of one round           */
    int *roots;                /* the rank that each extent is from   */
    int extent_count;          /* filled in so far                    */
    tern__post says;           /* the fields that all works of the round share */
    uint64_t last;             /* the round's last work               */
} tern__slice_exchange;

/* The slices that each rank sends to all others. */
typedef struct tern__slice_set {
    const tern__sharded_block *blocks;
    int count;
    /* Writes the extents of rank `rank` in the blocks whose home is `home`; returns how many there are. */
    int (*fill)(const tern_optim *optim, int rank, const tern_device *home, tern__extent *extents);
    bool has_lines; /* the lines are sent, too */
} tern__slice_set;

/* Opens an exchange for sets of at most `extents` extents of all ranks together, in these blocks, at most
 * TERN__RANGES. Collective. Must be closed after a failure, too. */
int tern__slice_exchange_open(tern__slice_exchange *exchange, tern_group *group, size_t extents,
                              const tern__sharded_block *blocks, int count, tern_error *err);
void tern__slice_exchange_close(tern__slice_exchange *exchange);

/* A rank's line, TERN__LINE bytes. */
static inline char *tern__slice_exchange_line(const tern__slice_exchange *exchange, int rank)
{
    return exchange->lines.data + (size_t)rank * TERN__LINE;
}

/* Exchanges the slices of step `step` of sharded optimizer `number`. Whatever the step is asked after it
 * returns finds all slices in place. */
int tern__slice_exchange_run(tern__slice_exchange *exchange, const tern_optim *optim,
                             const tern__slice_set *set, uint32_t number, uint64_t step, tern_error *err);

#endif
