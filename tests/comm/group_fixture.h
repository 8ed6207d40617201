/* group_fixture.h - one rank's group with ordinary memory, a buffer for the expected result, and a window of
 * the same size once a test wants one: then the group has an arena, and places its works in it. */
#ifndef TERN_TESTS_COMM_GROUP_FIXTURE_H
#define TERN_TESTS_COMM_GROUP_FIXTURE_H

#include "ranks.h"

#include "comm/move/backend.h"

#ifdef __SANITIZE_THREAD__
#define THOUSANDS(n) ((n)*100)
static const int worlds[] = {1, 2, 3};
#else
#define THOUSANDS(n) ((n)*1000)
static const int worlds[] = {1, 2, 3, 4, 7, 8};
#endif

/* Over hosts a collective takes the time of several messages, and on a delayed back end that of many sleeps.
 * There the tests of all cases run a part of them, another part in each world. */
static inline bool takes_turns(void)
{
    return getenv("TERN_TEST_HOSTS") || getenv("TERN_TEST_DELAYED");
}

/* Over hosts 8 ranks have nothing that 4 and 7 do not have: hosts of equal and of unequal size, several ranks
 * on each. */
static inline bool has_world(int world)
{
    return ranks_fill_hosts(world) && (world < 8 || !getenv("TERN_TEST_HOSTS"));
}

typedef struct fixture {
    tern_group *group, *parent;      /* NULL if `group` is the world */
    int rank, world;                 /* in `group`                    */
    char *window, *plain, *expected; /* window: NULL before fixture_map */
    size_t bytes;
    tern_error err;
} fixture;

/* A rank whose check fails leaves silently. If ranks are threads, the others notice it only by this timeout.
 */
static inline tern_group *open_group(const tern__bootstrap *boot, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = RANKS_TIMEOUT_S;
    return tern__group_open_boot(boot, &opts, err);
}

static inline int fixture_fill(fixture *f, int rank, size_t bytes)
{
    RANK_CHECK_OK(rank, f->err);
    f->rank = tern_group_rank(f->group);
    f->world = tern_group_size(f->group);
    f->bytes = bytes;
    f->plain = malloc(bytes);
    f->expected = malloc(bytes);
    return 0;
}

/* Allocates the window. Collective. */
static inline int fixture_map(fixture *f)
{
    f->window = tern_group_mem_alloc(f->group, f->bytes, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    return 0;
}

/* Opens a group with `bytes` of ordinary memory. */
static inline int fixture_open(fixture *f, int rank, const tern__bootstrap *boot, size_t bytes)
{
    *f = (fixture){0};
    f->group = open_group(boot, &f->err);
    return fixture_fill(f, rank, bytes);
}

/* Splits the world into even and odd ranks; in each group the highest is rank 0. */
static inline int fixture_split(fixture *f, int rank, const tern__bootstrap *boot, size_t bytes)
{
    *f = (fixture){0};
    f->parent = open_group(boot, &f->err);
    f->group = tern_group_split(f->parent, rank % 2, -rank, NULL, &f->err);
    return fixture_fill(f, rank, bytes);
}

static inline int fixture_close(fixture *f)
{
    tern_group_close(f->group);
    tern_group_close(f->parent);
    free(f->plain);
    free(f->expected);
    return 0;
}

#endif
