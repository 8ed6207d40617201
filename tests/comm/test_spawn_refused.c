/* test_spawn_refused.c - what tern_spawn refuses: wrong arguments, and processes whose forked ranks could not
 * work. */
#include "ranks.h"

#include <tern/spawn.h>

/* Checks that no child is left. */
static void assert_no_child(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static int do_nothing(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    return 0;
}

static void assert_refused(int (*fn)(int, void *), int n, const tern_spawn_opts *opts, int code,
                           const char *part)
{
    tern_error err = {0};
    assert_int_equal(tern_spawn(fn, n, NULL, opts, &err), code);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, part)) fail_msg("expected \"%s\" in \"%s\"", part, err.text);
    assert_no_child();
}

static void test_arguments(void **state)
{
    (void)state;
    tern_spawn_opts opts = tern_spawn_defaults();
    assert_refused(NULL, 1, NULL, TERN_E_INVALID, "got NULL");
    assert_refused(do_nothing, 0, NULL, TERN_E_RANGE, "got 0");
    assert_refused(do_nothing, -2, NULL, TERN_E_RANGE, "got -2");
    assert_refused(do_nothing, 4097, NULL, TERN_E_RANGE, "expected 1 to 4096 ranks");
    opts.grace_s = -1;
    assert_refused(do_nothing, 1, &opts, TERN_E_RANGE, "grace_s");
    opts.size = 0;
    assert_refused(do_nothing, 1, &opts, TERN_E_INVALID, "_defaults");
    tern_error set = {.code = TERN_E_SHAPE};
    assert_int_equal(tern_spawn(do_nothing, 1, NULL, NULL, &set), TERN_E_SHAPE);
}

/* Returns the error's code to the parent. */
static int spawn_again(int rank, void *arg)
{
    (void)rank;
    tern_error err = {0};
    int status = tern_spawn(do_nothing, 2, NULL, NULL, &err);
    return strstr(err.text, "RANK=\"0\": this process is a rank already") ? -status : (int)(arg == NULL);
}

static void test_a_rank_spawns_no_ranks(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_int_equal(tern_spawn(spawn_again, 1, NULL, NULL, &err), TERN_E_PEER);
    assert_int_equal(err.native, -TERN_E_STATE);
    setenv("WORLD_SIZE", "2", 1);
    assert_refused(do_nothing, 1, NULL, TERN_E_STATE, "WORLD_SIZE=\"2\"");
    unsetenv("WORLD_SIZE");
}

static void *wait_at(void *barrier)
{
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t thread;
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, wait_at, &barrier), 0);
    pthread_setname_np(thread, "a worker");
    pthread_barrier_wait(&barrier);
#ifdef __SANITIZE_THREAD__
    const char *name =
        ""; /* readdir's order is unknown; the sanitizer may have another thread from here on */
#else
    const char *name = "a worker";
#endif
    char text[64];
    snprintf(text, sizeof(text), "this process has another thread (\"%s", name);
    assert_refused(do_nothing, 1, NULL, TERN_E_STATE, text);
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&barrier);
}

static void test_ignored_sigchld(void **state)
{
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    assert_refused(do_nothing, 1, NULL, TERN_E_STATE, "ignores SIGCHLD");
    signal(SIGCHLD, SIG_DFL);
}

/* OpenMP's pool lives as long as the process. */
static void test_openmp(void **state)
{
    (void)state;
#ifdef _OPENMP
    int threads = 0;
#pragma omp parallel num_threads(2) reduction(+ : threads)
    threads++;
    assert_int_equal(threads, 2);
    assert_refused(do_nothing, 1, NULL, TERN_E_STATE, "this process has another thread");
#else
    skip_test("this build has no OpenMP");
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),       cmocka_unit_test(test_a_rank_spawns_no_ranks),
        cmocka_unit_test(test_ignored_sigchld), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_openmp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
