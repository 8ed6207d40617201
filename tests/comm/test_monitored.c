/* test_monitored.c - the monitored barrier. It succeeds if all ranks come. If some are missing, the ranks
 * that came, and those that come later, get their names within the given time. */
#include "group_fixture.h"

#include <stdatomic.h>
#include <sys/mman.h>

enum { world = 4 };

typedef struct board {
    atomic_int told; /* ranks that have got the error */
    bool wait_all;
} board;

static bool is_missing(int rank)
{
    return rank == 1 || rank == 3;
}

static int check_text(int rank, bool wait_all, const char *text)
{
    const char *names = strstr(text, "; ranks 1, 3 failed to pass");
    const char *one = strstr(text, "not called by rank 1 ("), *other = strstr(text, "not called by rank 3 (");
    bool is_right = one && (wait_all ? names && other : !names && !other) &&
                    strstr(text, "in monitored_barrier (work 2)") &&
                    strstr(text, "whose last in this group was all_reduce of 1 i64, sum (work 1)");
    if (!is_right) fprintf(stderr, "%s\n", text);
    RANK_CHECK(rank, is_right);
    return 0;
}

static int missing_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const double limit_s = 0.9; /* the other ranks are never that late */
    board *b = arg;
    fixture f;
    int64_t one = 1;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    tern_all_reduce(f.group, &one, 1, TERN_I64, TERN_SUM, &f.err);
    RANK_CHECK_OK(rank, f.err);
    while (is_missing(rank) && atomic_load(&b->told) < world - 2) usleep(1000);
    int64_t began = tern__now_ns();
    int status = tern_monitored_barrier(f.group, limit_s, b->wait_all, &f.err);
    double took_s = (double)(tern__now_ns() - began) / 1e9;
    if (!is_missing(rank)) RANK_CHECK(rank, took_s < limit_s + 5);
    RANK_CHECK(rank, status == TERN_E_TIMEOUT && f.err.code == TERN_E_TIMEOUT);
    if (check_text(rank, b->wait_all, f.err.text)) return 1;
    atomic_fetch_add(&b->told, 1);
    tern_error again = {0};
    RANK_CHECK(rank, tern_barrier(f.group, &again) == TERN_E_TIMEOUT && !strcmp(again.text, f.err.text));
    return fixture_close(&f);
}

/* In a group of two, the error about one missing rank uses the singular. */
static int one_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    while (rank == 0 && !atomic_load(&b->told)) usleep(1000);
    RANK_CHECK(rank, tern_monitored_barrier(f.group, 0.1, true, &f.err) == TERN_E_TIMEOUT);
    RANK_CHECK(rank, strstr(f.err.text, "; rank 0 failed to pass; not called by rank 0 ("));
    RANK_CHECK(rank, strstr(f.err.text, ", which has called nothing in this group yet"));
    atomic_fetch_add(&b->told, 1);
    return fixture_close(&f);
}

static void test_missing_ranks_are_named_on_all(void **state)
{
    (void)state;
    board *b = share_memory(sizeof(*b));
    for (int wait_all = 0; wait_all < 2; wait_all++) {
        *b = (board){.wait_all = wait_all};
        assert_ranks_ok(ranks_run(world, missing_body, b));
    }
    *b = (board){.wait_all = true};
    assert_ranks_ok(ranks_run(2, one_body, b));
    munmap(b, sizeof(*b));
}

/* Ranks come at different times. The group goes on, with its own timeout. */
static int passed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    int64_t sum = 0;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    for (int i = 0; i < 20; i++) {
        tern_work *work = tern_all_reduce_post(f.group, &sum, 1, TERN_I64, TERN_SUM, &f.err);
        if (i % 4 == rank % 4) usleep(2000);
        tern_monitored_barrier(f.group, 9, i % 2, &f.err);
        RANK_CHECK_OK(rank, f.err);
        tern_work_wait(work, &f.err);
        sum = i + 1;
    }
    RANK_CHECK(rank, f.group->opts.timeout_s == RANKS_TIMEOUT_S);
    tern_all_reduce(f.group, &sum, 1, TERN_I64, TERN_SUM, &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, sum == 20 * f.world);
    return fixture_close(&f);
}

static void test_passed_by_all(void **state)
{
    (void)state;
    for (int of = 1; of <= world; of++) assert_ranks_ok(ranks_run(of, passed_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, passed_body, NULL));
}

/* A rank's death is not reported as a timeout. */
static int dead_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    tern_barrier(f.group, &f.err);
    if (rank == 2) _exit(0);
    RANK_CHECK(rank, tern_monitored_barrier(f.group, 9, true, &f.err) == TERN_E_PEER);
    RANK_CHECK(rank, strstr(f.err.text, "rank 2 ("));
    return fixture_close(&f);
}

static void test_a_dead_rank_is_named(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, dead_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_ranks_are_named_on_all),
        cmocka_unit_test(test_passed_by_all),
        cmocka_unit_test(test_a_dead_rank_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
