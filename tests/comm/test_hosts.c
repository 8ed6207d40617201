/* What is peculiar to a group that spans hosts: its name, windows of other sizes, forked children. That its
 * results are right is shown by the tests of the collectives, which run over hosts, too. */
#include "board.h"
#include "group_fixture.h"

#include "comm/hosts/hosts.h"

#include <stdatomic.h>
#include <sys/wait.h>

/* Two hosts in turn. */
static tern_group *open_over_hosts(int rank, const tern__bootstrap *boot, const char *backend,
                                   tern_error *err)
{
    tern__bootstrap own = *boot;
    tern_group_opts opts = tern_group_defaults();
    own.host_id = rank % 2 ? "attic" : "barn";
    opts.timeout_s = 10;
    opts.backend = backend;
    return tern__group_open_boot(&own, &opts, err);
}

static int name_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    tern_group *world = open_over_hosts(rank, boot, arg, &err);
    tern_group *here = tern_group_split(world, rank % 2, rank, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !strcmp(tern_group_backend(world), arg ? "gloo" : "native+gloo"));
    RANK_CHECK(rank, !strcmp(tern_group_backend(here), arg ? "gloo" : "native"));
    tern_group_close(here);
    tern_group_close(world);
    return 0;
}

static void a_group_within_a_host_needs_no_transport(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, name_body, NULL));
    assert_ranks_ok(ranks_run(4, name_body, "gloo"));
}

static int window_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = open_over_hosts(rank, boot, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !tern_group_mem_alloc(group, rank == 1 ? 4096 : 8192, &err));
    RANK_CHECK(rank, err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(err.text, "8192") && strstr(err.text, "4096") && strstr(err.text, "rank 1"));
    tern_group_close(group);
    return 0;
}

static void windows_of_other_sizes_are_told_to_all(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, window_body, NULL));
}

static atomic_int *opened; /* the ranks share it */

/* A peer's message may come later, and whoever was told has freed the memory that it was for. */
static int failure_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    int64_t in[4] = {0}, out[4];
    tern_group *group = open_over_hosts(rank, boot, arg, &err);
    RANK_CHECK_OK(rank, err);
    const tern__link *link = group->root->link;
    RANK_CHECK(rank, link->state);
    atomic_fetch_add(opened, 1);
    while (rank == 1 && atomic_load(opened) < boot->world) usleep(100);
    if (rank == 1) tern_group_abort(group, TERN_E_IO, "enough");
    RANK_CHECK(rank, tern_all_to_all(group, in, out, 1, TERN_I64, &err) < 0);
    RANK_CHECK(rank, strstr(err.text, "enough") && !link->state);
    tern_group_close(group);
    return 0;
}

static void after_a_failure_no_message_comes(void **state)
{
    (void)state;
    opened = mmap(NULL, sizeof(*opened), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(opened, MAP_FAILED);
    for (int world = 2; world <= 4; world++) {
        assert_ranks_ok(ranks_run(world, failure_body, world == 3 ? "gloo" : NULL));
        atomic_store(opened, 0);
    }
    munmap(opened, sizeof(*opened));
}

static int fork_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    float x = 1;
    int status = 0;
    tern_group *group = open_over_hosts(rank, boot, NULL, &err);
    RANK_CHECK_OK(rank, err);
    pid_t child = fork();
    if (!child) {
        tern_error own = {0};
        int code = tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &own);
        tern_group_close(group);
        _exit(code == TERN_E_FORKED ? 0 : 1);
    }
    RANK_CHECK(rank, waitpid(child, &status, 0) == child && status == 0);
    tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, x == (float)boot->world);
    tern_group_close(group);
    return 0;
}

static void a_forked_child_closes_nothing_but_its_own(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, fork_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_within_a_host_needs_no_transport),
        cmocka_unit_test(windows_of_other_sizes_are_told_to_all),
        cmocka_unit_test(after_a_failure_no_message_comes),
        cmocka_unit_test(a_forked_child_closes_nothing_but_its_own),
    };
#ifdef __SANITIZE_THREAD__
    return puts("skipped: ThreadSanitizer sees nothing of what libgloo locks"), 77;
#endif
    if (!board_plugin("tern_gloo.so")) return puts("skipped: the gloo plug-in was not built"), 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
