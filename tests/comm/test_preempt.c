/* test_preempt.c - a signal to any rank, or to all, makes all ranks stop in the same step. The program's own
 * signal handlers are restored. */
#include "comm/move/backend.h"
#include "ledger.h"
#include "ranks.h"

#include <tern/preempt.h>

#include <poll.h>
#include <pty.h>
#include <sys/wait.h>

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
    opts.interrupt = SIGINT;
    if (!p->number) opts.signal = opts.warning = opts.interrupt = 0;
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
    static const int numbers[] = {SIGTERM, SIGUSR1, SIGINT, 0};
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

/* ---- Ctrl-C ---- */

static tern_preempt *interruptible_preempt(tern_error *err)
{
    tern_preempt_opts opts = tern_preempt_defaults();
    opts.interrupt = SIGINT;
    return tern_preempt_new(NULL, &opts, err);
}

/* Returns how a process ends that is asked by `first` and then gets SIGINT `times` times. */
static int end_of_interrupted(int first, int times)
{
    pid_t pid = fork();
    if (pid == 0) {
        tern_error err = {0};
        signal(SIGINT, SIG_DFL);
        tern_preempt *preempt = interruptible_preempt(&err);
        if (first) raise(first);
        for (int i = 0; i < times; i++) {
            raise(SIGINT);
            if (tern_preempt_pending(preempt, &err) != 1) _exit(1);
        }
        tern_preempt_free(preempt);
        _exit(err.code);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void the_second_interrupt_ends_the_process(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        int first = k ? SIGTERM : 0;
        assert_int_equal(end_of_interrupted(first, 1), 0);
        int status = end_of_interrupted(first, 2);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    }
}

static void an_ignored_interrupt_stays_ignored(void **state)
{
    (void)state;
    tern_error err = {0};
    signal(SIGINT, SIG_IGN);
    tern_preempt *preempt = interruptible_preempt(&err);
    for (int i = 0; i < 3; i++) raise(SIGINT);
    assert_int_equal(tern_preempt_pending(preempt, &err), 0);
    tern_preempt_free(preempt);
    signal(SIGINT, handle);
    preempt = interruptible_preempt(&err);
    raise(SIGINT);
    assert_int_equal(tern_preempt_pending(preempt, &err), 1);
    tern_preempt_free(preempt);
    assert_int_not_equal(handled, SIGINT);
    raise(SIGINT);
    assert_int_equal(handled, SIGINT);
    signal(SIGINT, SIG_DFL);
    assert_ok(err);
}

static volatile pid_t ranked;

static void repeat_to_rank(int number)
{
    int before = errno;
    kill(ranked, number); /* the rank may have ended */
    errno = before;
}

/* The launcher of one rank, both in the terminal's foreground group. It repeats each Ctrl-C to the rank, and
 * exits with 100 + the signal that ended the rank. */
static void launch_at_terminal(void)
{
    sigset_t held;
    tern_error err = {0};
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigprocmask(SIG_BLOCK, &held, NULL);
    ranked = fork();
    if (ranked == 0) {
        tern_preempt *preempt = interruptible_preempt(&err);
        sigprocmask(SIG_UNBLOCK, &held, NULL);
        if (write(1, "!", 1) != 1) _exit(2);
        while (!tern_preempt_pending(preempt, &err)) poll(NULL, 0, 1);
        poll(NULL, 0, 300); /* the copy comes */
        if (write(1, "?", 1) != 1) _exit(2);
        poll(NULL, 0, 60000);
        _exit(3);
    }
    signal(SIGINT, repeat_to_rank);
    sigprocmask(SIG_UNBLOCK, &held, NULL);
    int status = -1;
    while (waitpid(ranked, &status, 0) < 0 && errno == EINTR) continue;
    _exit(WIFSIGNALED(status) ? 100 + WTERMSIG(status) : 4);
}

/* Waits until the terminal shows the character. */
static bool terminal_shows(int fd, char wanted)
{
    char seen = 0;
    while (seen != wanted)
        if (read(fd, &seen, 1) != 1) return false;
    return true;
}

/* As under torchrun, whose ranks get each Ctrl-C twice. */
static void a_launchers_copy_is_no_second_interrupt(void **state)
{
    (void)state;
    int terminal, status = -1;
    signal(SIGINT, SIG_DFL);
    pid_t launcher = forkpty(&terminal, NULL, NULL, NULL);
    assert_true(launcher >= 0);
    if (launcher == 0) launch_at_terminal();
    for (int i = 0; i < 2; i++) {
        assert_true(terminal_shows(terminal, "!?"[i]));
        assert_int_equal(write(terminal, "\x03", 1), 1);
    }
    assert_int_equal(waitpid(launcher, &status, 0), launcher);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 100 + SIGINT);
    close(terminal);
}

static tern_error interrupt_refusal(int number)
{
    tern_error err = {0};
    tern_preempt_opts opts = tern_preempt_defaults();
    opts.interrupt = number;
    assert_null(tern_preempt_new(NULL, &opts, &err));
    return err;
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
    assert_int_equal(interrupt_refusal(SIGTERM).code, TERN_E_STATE);
    assert_int_equal(interrupt_refusal(SIGKILL).code, TERN_E_INVALID);
    assert_int_equal(interrupt_refusal(-3).code, TERN_E_INVALID);
    assert_int_equal(interrupt_refusal(10000).code, TERN_E_INVALID);
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
        cmocka_unit_test(the_second_interrupt_ends_the_process),
        cmocka_unit_test(an_ignored_interrupt_stays_ignored),
        cmocka_unit_test(a_launchers_copy_is_no_second_interrupt),
        cmocka_unit_test(what_cannot_be),
    };
    signal(SIGINT, SIG_DFL); /* a shell without job control starts its background jobs with it ignored */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
