/* test_reopen.c - groups that are closed and reopened at the same address by ranks that do not wait for each
 * other: after a group that succeeded, one that failed, one that could not be opened, and beside one that is
 * still open. */
#include "ranks.h"

#include "comm/move/backend.h"
#include "comm/store/listen.h"
#include "comm/sys.h"

#include <tern/spawn.h>

#include <dirent.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { ROUNDS = 50 };

/* Shared by the test and its ranks. */
typedef struct board {
    tern__bootstrap
        by_hand; /* where rank 0 listens itself each time; without a port: it uses the inherited socket */
    bool fails;  /* every tenth group fails */
    atomic_int failed;
} board;

/* Reserves a port, which the kernel assigns to nobody else while the board exists. */
static void leave_inheritance(board *b)
{
    tern_error err = {0};
    b->by_hand = (tern__bootstrap){.addr = "127.0.0.1"};
    b->by_hand.listen_fd = tern__reserve(&b->by_hand, &err);
    assert_ok(err);
    b->by_hand.port = tern__port_of(b->by_hand.listen_fd);
}

static void board_free(board *b)
{
    if (b->by_hand.port) close(b->by_hand.listen_fd);
    munmap(b, sizeof(*b));
}

static tern__bootstrap boot_of(const board *b, const tern__bootstrap *boot)
{
    tern__bootstrap own = *boot;
    if (!b->by_hand.port) return own;
    own.port = b->by_hand.port;
    own.listen_fd = -1;
    return own;
}

static int count_fds(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir)) count++;
    closedir(dir);
    return count;
}

static tern_group *open_group(const tern__bootstrap *boot, double connect_timeout_s, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = RANKS_TIMEOUT_S;
    opts.connect_timeout_s = connect_timeout_s;
    tern__bootstrap own = *boot;
    if (own.listen_fd >= 0) own.listen_fd = dup(own.listen_fd);
    return tern__group_open_boot(&own, &opts, err);
}

/* Sums the ranks' numbers. */
static int use(tern_group *group, int rank, int world)
{
    tern_error err = {0};
    float x = 1;
    tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, x == (float)world);
    return 0;
}

/* Rank 1 fails. The others learn of it in the next call, or while they still open the group. */
static int fail_together(tern_group *group, int rank)
{
    tern_error err = {0};
    if (rank == 1) tern_group_abort(group, TERN_E_IO, "on purpose");
    RANK_CHECK(rank, tern_barrier(group, &err));
    RANK_CHECK(rank, strstr(err.text, "on purpose"));
    return 0;
}

static int open_and_use(int rank, const tern__bootstrap *boot, bool fails)
{
    tern_error err = {0};
    tern_group *group = open_group(boot, RANKS_TIMEOUT_S, &err);
    RANK_CHECK_OK(rank, err);
    int status = use(group, rank, boot->world);
    if (!status && fails) status = fail_together(group, rank);
    tern_group_close(group);
    return status;
}

static int reopen_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const board *b = arg;
    int fds = 0;
    const tern__bootstrap own = boot_of(b, boot);
    for (int i = 0; i < ROUNDS; i++) {
        int status = open_and_use(rank, &own, b->fails && i % 10 == 9);
        if (status) return status;
        if (i == 0) fds = count_fds();
    }
    RANK_CHECK(rank, count_fds() == fds);
    return 0;
}

static void test_fifty_groups_leave_no_descriptors(void **state)
{
    (void)state;
    board *b = share_memory(sizeof(board));
    for (int variant = 0; variant < 4; variant++) {
        if (variant == 2) leave_inheritance(b);
        b->fails = variant % 2;
        assert_ranks_ok(ranks_run(3, reopen_body, b));
    }
    board_free(b);
}

/* ---- beside an open group ---- */

static int beside_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { GROUPS = 5 };
    const board *b = arg;
    tern_error err = {0};
    tern_group *groups[GROUPS];
    const tern__bootstrap own = boot_of(b, boot);
    for (int i = 0; i < GROUPS; i++) groups[i] = open_group(&own, RANKS_TIMEOUT_S, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < GROUPS; i++)
        if (use(groups[i], rank, boot->world)) return 1;
    for (int i = 0; i < GROUPS; i++) tern_group_close(groups[i]);
    return 0;
}

static void test_a_group_beside_another(void **state)
{
    (void)state;
    board *b = share_memory(sizeof(board));
    assert_ranks_ok(ranks_run(3, beside_body, b));
    leave_inheritance(b);
    assert_ranks_ok(ranks_run(3, beside_body, b));
    board_free(b);
}

/* ---- a duplicate rank ---- */

/* It might be a fast rank that already opens the next group, so it waits for that. Then its error lists the
 * other possibilities. */
static int second_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const board *b = arg;
    tern_error err = {0}, why = {0};
    const tern__bootstrap own = boot_of(b, boot);
    tern_group *group = open_group(&own, RANKS_TIMEOUT_S, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1) RANK_CHECK(rank, !open_group(&own, 0.3, &why));
    if (rank == 1)
        RANK_CHECK(rank, why.code == TERN_E_TIMEOUT && strstr(why.text, "does this rank run already?"));
    int status = use(group, rank, boot->world);
    tern_group_close(group);
    return status;
}

static void test_a_second_one_of_a_rank_is_told_what_it_may_be(void **state)
{
    (void)state;
    board *b = share_memory(sizeof(board));
    assert_ranks_ok(ranks_run(3, second_body, b));
    leave_inheritance(b);
    assert_ranks_ok(ranks_run(3, second_body, b));
    board_free(b);
}

/* ---- after a failed meeting ---- */

/* Rank 2 comes only after rank 0 has given up; rank 1 has given up long before and comes again. */
static int give_up_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static const double patience_s[] = {3, 0.6};
    board *b = arg;
    const tern__bootstrap own = boot_of(b, boot);
    if (rank == 2) {
        RANK_CHECK(rank, await_count(&b->failed, 2));
    } else {
        tern_error err = {0};
        RANK_CHECK(rank, !open_group(&own, patience_s[rank], &err));
        RANK_CHECK(rank, strstr(err.text, "missing: rank"));
        atomic_fetch_add(&b->failed, 1);
    }
    return open_and_use(rank, &own, false);
}

static void test_a_rank_comes_again_before_rank_0_has_given_up(void **state)
{
    (void)state;
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        board *b = share_memory(sizeof(board));
        if (by_hand) leave_inheritance(b);
        assert_ranks_ok(ranks_run(3, give_up_body, b));
        board_free(b);
    }
}

/* ---- started by a launcher ---- */

/* Rank 0 finds its inherited socket by a variable that is gone after the first group. */
static int launched_body(int rank, void *arg)
{
    (void)arg;
    int fds = 0;
    for (int i = 0; i < ROUNDS; i++) {
        tern_error err = {0};
        tern_group *world = tern_group_open(NULL, &err);
        RANK_CHECK_OK(rank, err);
        if (use(world, rank, 3)) return 1;
        tern_group_close(world);
        if (i == 0) fds = count_fds();
    }
    RANK_CHECK(rank, count_fds() == fds);
    return 0;
}

static void test_launched_ranks_open_again(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_spawn(launched_body, 3, NULL, NULL, &err);
    assert_ok(err);
}

/* ---- meetings over a file ---- */

static int file_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_group_opts opts = tern_group_defaults();
    opts.init_method = arg;
    opts.rank = rank;
    opts.world = boot->world;
    for (int i = 0; i < ROUNDS; i++) {
        tern_error err = {0};
        tern_group *world = tern_group_open(&opts, &err);
        RANK_CHECK_OK(rank, err);
        if (use(world, rank, boot->world)) return 1;
        tern_group_close(world);
    }
    return 0;
}

static void test_ranks_meet_in_a_file_again(void **state)
{
    (void)state;
    char folder[] = "/tmp/tern_reopen_XXXXXX", method[64];
    assert_non_null(mkdtemp(folder));
    snprintf(method, sizeof(method), "file://%s/meet", folder);
    assert_ranks_ok(ranks_run(3, file_body, method));
    unlink(method + strlen("file://"));
    assert_return_code(rmdir(folder), errno);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fifty_groups_leave_no_descriptors),
        cmocka_unit_test(test_a_group_beside_another),
        cmocka_unit_test(test_a_second_one_of_a_rank_is_told_what_it_may_be),
        cmocka_unit_test(test_a_rank_comes_again_before_rank_0_has_given_up),
        cmocka_unit_test(test_launched_ranks_open_again),
        cmocka_unit_test(test_ranks_meet_in_a_file_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
