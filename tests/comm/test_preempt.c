/* test_preempt.c - a signal to any rank, or to all, makes all ranks stop in the same step. The program's own
 * signal handlers are restored. */
#include "comm/group.h"
#include "ledger.h"
#include "ranks.h"

#include <tern/preempt.h>

#include <poll.h>

enum { STEPS = 40 };

typedef struct plan {
    int rank;   /* the rank that is asked; -1: all */
    int step;   /* the step before which it is asked */
    int number; /* the signal; 0: tern_preempt_ask */
    int every;
} plan;

static void ask(const plan *p, tern_preempt *preempt)
{
    if (p->number)
        raise(p->number);
    else
        tern_preempt_ask(preempt);
}

/* Returns the step in which the rank learns of it; -1: never. */
static int run_until_asked(tern_preempt *preempt, const plan *p, int rank, tern_error *err)
{
    for (int step = 0; step < STEPS; step++) {
        if (step == p->step && (p->rank < 0 || p->rank == rank)) ask(p, preempt);
        int pending = tern_preempt_pending(preempt, err);
        if (pending < 0) return -1;
        if (pending) return step;
    }
    return -1;
}

/* A single rank learns of it in the first call after the request that checks, counting calls from 1; several
 * ranks in the check after that one. */
static int expected_step(const plan *p, int world)
{
    return (p->step / p->every + 1 + (world > 1)) * p->every - 1;
}

static int asked_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const plan *p = arg;
    tern_error err = {0};
    tern_preempt_opts opts = tern_preempt_defaults();
    opts.every = p->every;
    if (!p->number) opts.signal = opts.warning = 0;
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    tern_preempt *preempt = tern_preempt_new(group, &opts, &err);
    RANK_CHECK_OK(rank, err);
    struct pollfd asked = {.fd = tern_preempt_fd(preempt), .events = POLLIN};
    RANK_CHECK(rank, poll(&asked, 1, 0) == 0);
    RANK_CHECK(rank, run_until_asked(preempt, p, rank, &err) == expected_step(p, boot->world));
    RANK_CHECK(rank, poll(&asked, 1, 0) == (p->rank < 0 || p->rank == rank));
    RANK_CHECK(rank, tern_preempt_pending(preempt, &err) == 1);
    RANK_CHECK_OK(rank, err);
    tern_preempt_free(preempt);
    tern_group_close(group);
    return 0;
}

static void all_ranks_hear_in_the_same_step(void **state)
{
    (void)state;
    static const int numbers[] = {SIGTERM, SIGUSR1, 0};
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < TERN__COUNT(numbers); i++)
            for (int rank = -1; rank<world; rank += world> 1 ? world - 1 : 1) {
                plan p = {.rank = rank, .step = 3 + rank, .number = numbers[i], .every = 1 + (int)i * 3};
                assert_ranks_ok(ranks_run(world, asked_body, &p));
            }
    plan p = {.rank = 1, .step = 5, .every = 1};
    assert_ranks_ok(ranks_run_threads(3, asked_body, &p));
}

/* A signal that arrives while the rank waits in a collective is not lost and breaks nothing. Each rank keeps
 * sending signals to its neighbour. */
static int stormy_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    tern_preempt_opts opts = tern_preempt_defaults();
    opts.every = 1000000;
    tern_preempt *preempt = tern_preempt_new(group, &opts, &err);
    int32_t pids[8], pid = getpid();
    tern_all_gather(group, &pid, pids, 1, TERN_I32, &err);
    for (int i = 0; i < 300 && !err.code; i++) {
        int64_t sum = rank;
        kill(pids[(rank + 1) % boot->world], SIGUSR1);
        tern_all_reduce(group, &sum, 1, TERN_I64, TERN_SUM, &err);
        RANK_CHECK(rank, sum == boot->world * (boot->world - 1) / 2);
        RANK_CHECK(rank, tern_preempt_pending(preempt, &err) == 0);
    }
    tern_barrier(group, &err);
    RANK_CHECK_OK(rank, err);
    tern_preempt_free(preempt);
    tern_group_close(group);
    return 0;
}

static void signals_do_not_disturb_collectives(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, stormy_body, NULL));
}

static int lost_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    tern_preempt *preempt = tern_preempt_new(group, NULL, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1) _exit(0);
    RANK_CHECK(rank, tern_preempt_pending(preempt, &err) == 0 || err.code == TERN_E_PEER);
    RANK_CHECK(rank, tern_preempt_pending(preempt, NULL) == TERN_E_PEER);
    tern_preempt_pending(preempt, &err);
    RANK_CHECK(rank, strstr(err.text, "rank 1"));
    tern_preempt_free(preempt);
    tern_group_close(group);
    return 0;
}

static void a_lost_peer_is_an_error(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, lost_body, NULL));
}

/* ---- a single process ---- */

static volatile sig_atomic_t handled;

static void handle(int number)
{
    handled = number;
}

static void handlers_come_back(void **state)
{
    (void)state;
    tern_error err = {0};
    signal(SIGTERM, handle);
    tern_preempt *preempt = tern_preempt_new(NULL, NULL, &err);
    assert_int_equal(tern_preempt_pending(preempt, &err), 0);
    raise(SIGTERM);
    assert_int_equal(handled, 0);
    assert_int_equal(tern_preempt_pending(preempt, &err), 1);
    tern_preempt_free(preempt);
    raise(SIGTERM);
    assert_int_equal(handled, SIGTERM);
    signal(SIGTERM, SIG_DFL);
    assert_ok(err);
}

static tern_error refusal(int number, int warning, int every)
{
    tern_error err = {0};
    tern_preempt_opts opts = tern_preempt_defaults();
    opts.signal = number;
    opts.warning = warning;
    opts.every = every;
    assert_null(tern_preempt_new(NULL, &opts, &err));
    return err;
}

static void what_cannot_be(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_int_equal(refusal(SIGTERM, 0, 0).code, TERN_E_RANGE);
    assert_int_equal(refusal(SIGKILL, 0, 1).code, TERN_E_INVALID);
    assert_int_equal(refusal(-3, 0, 1).code, TERN_E_INVALID);
    assert_int_equal(refusal(SIGTERM, 10000, 1).code, TERN_E_INVALID);
    assert_int_equal(refusal(SIGTERM, SIGTERM, 1).code, TERN_E_STATE);
    tern_preempt *first = tern_preempt_new(NULL, NULL, &err);
    assert_non_null(strstr(refusal(SIGTERM, SIGUSR2, 1).text, "another preempt already handles signal"));
    assert_int_equal(refusal(SIGUSR2, SIGUSR1, 1).code, TERN_E_STATE);
    tern_preempt_free(first);
    first = tern_preempt_new(NULL, NULL, &err); /* the failed calls have left nothing behind */
    assert_ok(err);
    tern_preempt_free(first);
    assert_int_equal(tern_preempt_pending(NULL, &err), TERN_E_INVALID);
    ledger books = {.refuse_at = 1};
    ledger_open(&books);
    assert_int_equal(refusal(SIGTERM, 0, 1).code, TERN_E_MEMORY);
    ledger_close(&books);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_hear_in_the_same_step),
        cmocka_unit_test(signals_do_not_disturb_collectives),
        cmocka_unit_test(a_lost_peer_is_an_error),
        cmocka_unit_test(handlers_come_back),
        cmocka_unit_test(what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
