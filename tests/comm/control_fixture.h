/* control_fixture.h - a rank's store and control plane, on one host or on simulated ones, and the board on
 * which ranks and the test write their results. */
#ifndef TERN_TESTS_COMM_CONTROL_FIXTURE_H
#define TERN_TESTS_COMM_CONTROL_FIXTURE_H

#include "comm/ranks.h"

#include "comm/meet/control/inner.h"

#include <sys/mman.h>

/* Shared by the ranks and the parent. */
typedef struct report {
    int code, native, pid;
    atomic_llong seen_at; /* when the control thread reported the first event */
    char text[TERN_ERROR_TEXT];
} report;

typedef struct board {
    int victim, mode;
    atomic_int ready, go, events;
    report reports[RANKS_MAX];
} board;

static inline board *board_new(void)
{
    return share_memory(sizeof(board));
}

static inline void board_free(board *b)
{
    assert_return_code(munmap(b, sizeof(*b)), errno);
}

/* Called in a body: waits until all ranks have called it. */
static inline bool all_are_here(board *b, int world)
{
    atomic_fetch_add(&b->ready, 1);
    return await_count(&b->ready, world);
}

/* A rank's store and control plane. */
typedef struct seat {
    tern_store *store;
    tern__control *control;
} seat;

/* The number of simulated hosts; the ranks are assigned to them in turn. */
static int hosts = 1;

static inline int one_host(void **state)
{
    (void)state;
    hosts = 1;
    return 0;
}

static inline int two_hosts(void **state)
{
    (void)state;
    hosts = 2;
    return 0;
}

static inline int many_hosts(void **state)
{
    (void)state;
    hosts = 8;
    return 0;
}

/* Runs a test on one host, on two and on many. */
#define EVERYWHERE(test)                                                                                     \
    cmocka_unit_test_setup(test, one_host), cmocka_unit_test_setup(test, two_hosts),                         \
        cmocka_unit_test_setup(test, many_hosts)

static double host_timeout_s = 15;

/* Returns `boot` with the host of its rank. */
static inline tern__bootstrap host_of(const tern__bootstrap *boot)
{
    static const char *const ids[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    tern__bootstrap own = *boot;
    if (hosts > 1) own.host_id = ids[boot->rank % hosts];
    return own;
}

static inline seat sit_down(const tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    tern__bootstrap own = host_of(boot);
    seat s = {.store = tern__store_open(&own, timeout_s, err)};
    s.control = tern__control_open(&own, s.store, timeout_s, host_timeout_s, err);
    return s;
}

static inline void get_up(seat *s)
{
    tern__control_close(s->control);
    tern_store_close(s->store);
}

static inline void on_event(void *ctx)
{
    long long never = 0;
    atomic_compare_exchange_strong((atomic_llong *)ctx, &never, tern__now_ns());
}

/* Waits for a failure and writes it to the board. */
static inline int await_failure(tern__control *control, int rank, board *b)
{
    tern_error err = {0};
    report *r = &b->reports[rank];
    int64_t deadline = tern__deadline(10);
    while (tern__control_is_healthy(control) && tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__deadline(0.001));
    r->code = tern__control_check(control, "tern_barrier", &err);
    RANK_CHECK(rank, r->code == err.code && r->code != TERN_OK);
    RANK_CHECK(rank, !strcmp(err.func, "tern_barrier"));
    r->native = err.native;
    snprintf(r->text, sizeof(r->text), "%s", err.text);
    return 0;
}

#endif
