/* round.h - one call of every kind with few elements: for lines and systems on which each of them takes
 * long. */
#ifndef TERN_TESTS_COMM_ROUND_H
#define TERN_TESTS_COMM_ROUND_H

#include "comm/group_fixture.h"

#include <tern/store.h>

enum { ROUND_MOST = 1000, ROUND_RANKS = 4 };

static inline int32_t round_value(int rank, size_t i)
{
    return (int32_t)(rank * 7919 + (int)i * 31 + 5);
}

/* A rank's elements [0, count). */
static inline void round_fill(int32_t *x, int rank, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] = round_value(rank, i);
}

static inline bool round_is_sum(const int32_t *x, int world, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int32_t sum = 0;
        for (int rank = 0; rank < world; rank++) sum += round_value(rank, first + i);
        if (x[i] != sum) return false;
    }
    return true;
}

static inline bool round_is_of(const int32_t *x, int rank, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (x[i] != round_value(rank, first + i)) return false;
    return true;
}

static inline int round_reductions(fixture *f, size_t count)
{
    static int32_t x[ROUND_MOST], in[ROUND_MOST * ROUND_RANKS];
    size_t first = (size_t)f->rank * count;
    round_fill(x, f->rank, count);
    round_fill(in, f->rank, count * (size_t)f->world);
    tern_all_reduce(f->group, x, count, TERN_I32, TERN_SUM, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, round_is_sum(x, f->world, 0, count));
    tern_reduce_scatter(f->group, in, x, count, TERN_I32, TERN_SUM, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, round_is_sum(x, f->world, first, count));
    round_fill(x, f->rank, count);
    tern_reduce(f->group, x, count, TERN_I32, TERN_SUM, f->world - 1, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, f->rank == f->world - 1 ? round_is_sum(x, f->world, 0, count)
                                                : round_is_of(x, f->rank, 0, count));
    return 0;
}

/* The first one makes the group one with a window; the calls after it use the memory of that, too. */
static inline int round_window(fixture *f, size_t count)
{
    if (!f->window && fixture_map(f)) return 1;
    int32_t *window = (int32_t *)f->window;
    round_fill(window, f->rank, count);
    tern_all_reduce(f->group, window, count, TERN_I32, TERN_SUM, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, round_is_sum(window, f->world, 0, count));
    return 0;
}

static inline int round_moves(fixture *f, size_t count)
{
    static int32_t own[ROUND_MOST * ROUND_RANKS], all[ROUND_MOST * ROUND_RANKS];
    round_fill(own, f->rank, count * (size_t)f->world);
    tern_all_gather(f->group, own, all, count, TERN_I32, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    for (int rank = 0; rank < f->world; rank++)
        RANK_CHECK(f->rank, round_is_of(all + (size_t)rank * count, rank, 0, count));
    tern_all_to_all(f->group, own, all, count, TERN_I32, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    for (int rank = 0; rank < f->world; rank++)
        RANK_CHECK(f->rank, round_is_of(all + (size_t)rank * count, rank, (size_t)f->rank * count, count));
    tern_gather(f->group, own, all, count, TERN_I32, 0, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    for (int rank = 0; rank < f->world && f->rank == 0; rank++)
        RANK_CHECK(f->rank, round_is_of(all + (size_t)rank * count, rank, 0, count));
    tern_scatter(f->group, own, all, count, TERN_I32, 0, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, round_is_of(all, 0, (size_t)f->rank * count, count));
    tern_broadcast(f->group, own, count, TERN_I32, f->world - 1, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, round_is_of(own, f->world - 1, 0, count));
    return 0;
}

/* A message to the next rank: short ones follow their envelopes, long ones wait for their receives. */
static inline int round_messages(fixture *f, size_t count)
{
    static int32_t out[ROUND_MOST], in[ROUND_MOST];
    int to = (f->rank + 1) % f->world, from = (f->rank + f->world - 1) % f->world;
    round_fill(out, f->rank, count);
    tern_work *works[] = {tern_isend(f->group, out, count, TERN_I32, to, 3, &f->err),
                          tern_irecv(f->group, in, count, TERN_I32, from, 3, &f->err)};
    for (size_t w = 0; w < TERN__COUNT(works); w++) tern_work_wait(works[w], &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, round_is_of(in, from, 0, count));
    return 0;
}

static inline int round_groups(fixture *f)
{
    int64_t sum = 1;
    tern_group *half = tern_group_split(f->group, f->rank % 2, f->rank, NULL, &f->err);
    tern_all_reduce(half, &sum, 1, TERN_I64, TERN_SUM, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, sum == tern_group_size(half));
    tern_group_close(half);
    tern_monitored_barrier(f->group, RANKS_TIMEOUT_S, true, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    return 0;
}

/* On a fixture with room for ROUND_MOST elements, the most that `count` may be. */
static inline int round_run(fixture *f, size_t count)
{
    return round_reductions(f, count) || round_moves(f, count) || round_messages(f, count) ||
           round_window(f, count) || round_groups(f);
}

#endif
