/* test_choice.c - opening a group compares the ranks' back ends. Ranks with different ones would misread
 * each other's data, or wait forever. */
#include "group_fixture.h"

/* The back ends that ranks 0 and 1 ask for, and the error of both; NULL: they are the same. */
typedef struct pair {
    const char *wishes[2];
    const char *texts[2];
    bool apart; /* on two hosts */
} pair;

static const pair pairs[] = {
    {{"native", "debug"}, {"\"native\"", "\"debug+native\""}, false},
    {{NULL, "debug"}, {"\"native\"", "\"debug+native\""}, false},
    {{"debug", NULL}, {"\"debug+native\"", "\"native\""}, false},
    {{NULL, "nccl"}, {"\"native\"", "\"nccl+native\""}, false},
    {{NULL, "gloo"}, {"\"native\"", "\"gloo\""}, false},
    {{"native", "mpi"}, {"\"native\"", "\"mpi\""}, false},
    {{"debug+gloo", "gloo"}, {"\"debug+gloo\"", "\"gloo\""}, false},
    {{NULL, "native"}, {NULL}, false},
    {{"native+gloo", "native+mpi"}, {NULL}, false},
    {{"debug", "debug+native"}, {NULL}, false},
    {{NULL, "native+mpi"}, {"\"native+gloo\"", "\"native+mpi\""}, true},
    {{"native", NULL}, {"\"native\"", "\"native+gloo\""}, true},
    {{"gloo", "native+gloo"}, {"\"gloo\"", "\"native+gloo\""}, true},
};

static tern_group_opts opts_of(const pair *p, int rank)
{
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = opts.connect_timeout_s = RANKS_TIMEOUT_S;
    opts.backend = p->wishes[rank == 1];
    return opts;
}

static int check_told(int rank, const pair *p, const tern_error *err)
{
    if (!strstr(err->text, "tern_group_opts.backend")) fprintf(stderr, "rank %d: %s\n", rank, err->text);
    RANK_CHECK(rank, err->code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(err->text, "rank 0 (") && strstr(err->text, "rank 1 ("));
    for (int i = 0; i < 2; i++) RANK_CHECK(rank, strstr(err->text, p->texts[i]));
    RANK_CHECK(rank, strstr(err->text, "TERN_BACKEND") && strstr(err->text, "tern_group_opts.backend"));
    return 0;
}

/* Sums ordinary memory that is too large for one work. */
static int check_sum(int rank, tern_group *group)
{
    enum { count = 1000000 };
    tern_error err = {0};
    float *x = malloc(count * sizeof(*x));
    for (int i = 0; i < count; i++) x[i] = 1;
    tern_all_reduce(group, x, count, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < count; i++) RANK_CHECK(rank, x[i] == (float)tern_group_size(group));
    free(x);
    return 0;
}

static int open_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const pair *p = arg;
    tern_error err = {0};
    tern__bootstrap own = *boot;
    tern_group_opts opts = opts_of(p, rank);
    if (p->apart) own.host_id = rank ? "attic" : "barn";
    int64_t start = tern__now_ns();
    tern_group *group = tern__group_open_boot(&own, &opts, &err);
    RANK_CHECK(rank, tern__now_ns() - start < RANKS_SOON_S * INT64_C(1000000000));
    int status = p->texts[0] ? check_told(rank, p, &err) : check_sum(rank, group);
    tern_group_close(group);
    return status;
}

static void all_ranks_are_told_of_two_back_ends(void **state)
{
    (void)state;
    setenv("TERN_DEBUG_FILE", "/dev/null", 1);
    for (int world = 2; world <= 8; world += 3)
        for (size_t i = 0; i < TERN__COUNT(pairs); i++) {
            print_message("%d ranks, pair %zu\n", world, i);
            assert_ranks_ok(ranks_run(world, open_body, (void *)&pairs[i]));
        }
}

/* A subgroup takes its parent's back end, whatever a rank asks for, so its ranks cannot disagree. */
static int split_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const pair *p = arg;
    tern_error err = {0};
    char name[16] = "debug";
    tern_group_opts opts = tern_group_defaults();
    opts.backend = name;
    tern_group *world = tern__group_open_boot(boot, &opts, &err);
    memset(name, 'x', sizeof(name)); /* the caller may change its string */
    opts = opts_of(p, rank);
    tern_group *group = tern_group_split(world, 0, rank, &opts, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !strcmp(tern_group_backend(group), "debug+native"));
    int status = check_sum(rank, group);
    tern_group_close(group);
    tern_group_close(world);
    return status;
}

static void a_group_made_from_another_has_its_back_end(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, split_body, (void *)&pairs[0]));
    assert_ranks_ok(ranks_run(2, split_body, (void *)&pairs[3]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_are_told_of_two_back_ends),
        cmocka_unit_test(a_group_made_from_another_has_its_back_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
