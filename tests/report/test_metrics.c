/* test_metrics.c - metrics over ranks: exact numbers, ranks with other names or none, errors of one rank. */
#include "comm/group_fixture.h"
#include "ledger.h"

#include <math.h>
#include <stdio.h>

/* Rank r has r + 1 batches of r + 2 samples, each with loss 10 r + batch. */
static int numbers_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = open_group(boot, &err);
    tern_metrics *m = tern_metrics_new(world, &err);
    RANK_CHECK_OK(rank, err);
    int count = tern_group_size(world);
    for (int epoch = 0; epoch < 3; epoch++) { /* each epoch starts from zero */
        double sum = 0, weight = 0, right = 0;
        for (int batch = 0; batch <= rank; batch++) {
            tern_metrics_mean(m, "loss", 10 * rank + batch, rank + 2);
            tern_metrics_sum(m, "right", rank + epoch);
            tern_metrics_max(m, "slowest", rank + 0.5);
            tern_metrics_min(m, "fastest", rank - 0.5);
        }
        if (rank == count - 1) tern_metrics_sum(m, "only the last", 7);
        RANK_CHECK(rank, tern_metrics_reduce(m, &err) == TERN_OK);
        for (int r = 0; r < count; r++)
            for (int batch = 0; batch <= r; batch++) {
                sum += (10 * r + batch) * (r + 2);
                weight += r + 2;
                right += r + epoch;
            }
        RANK_CHECK(rank, tern_metrics_get(m, "loss") == sum / weight);
        RANK_CHECK(rank, tern_metrics_weight(m, "loss") == weight);
        RANK_CHECK(rank, tern_metrics_get(m, "right") == right);
        RANK_CHECK(rank, tern_metrics_weight(m, "right") == count * (count + 1) / 2);
        RANK_CHECK(rank, tern_metrics_get(m, "slowest") == count - 0.5);
        RANK_CHECK(rank, tern_metrics_get(m, "fastest") == -0.5);
        RANK_CHECK(rank, tern_metrics_get(m, "only the last") == 7);
        RANK_CHECK(rank, !strcmp(tern_metrics_name(m, 0), "loss"));
        RANK_CHECK(rank, !strcmp(tern_metrics_name(m, 4), "only the last"));
        RANK_CHECK(rank, !tern_metrics_name(m, 5) && !tern_metrics_name(m, -1));
        RANK_CHECK(rank,
                   isnan(tern_metrics_get(m, "unheard of")) && tern_metrics_weight(m, "unheard of") == 0);
    }
    tern_metrics_free(m);
    tern_group_close(world);
    return 0;
}

static void numbers_are_those_of_all_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++)
        assert_ranks_ok(ranks_run(worlds[i], numbers_body, NULL));
}

/* Sums depend on the order of the ranks, which is the same everywhere: all ranks have the same bits. */
static int bits_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = open_group(boot, &err);
    tern_metrics *m = tern_metrics_new(world, &err);
    double all[3], mine;
    tern_metrics_mean(m, "x", 1.0 / (3 + rank), 1e16 / (1 + 7 * rank));
    tern_metrics_reduce(m, &err);
    mine = tern_metrics_get(m, "x");
    tern_all_gather(world, &mine, all, 1, TERN_F64, &err);
    RANK_CHECK_OK(rank, err);
    for (int r = 0; r < 3; r++) RANK_CHECK(rank, !memcmp(&all[r], &mine, sizeof(mine)));
    tern_metrics_free(m);
    tern_group_close(world);
    return 0;
}

static void all_ranks_have_the_same_bits(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, bits_body, NULL));
}

typedef struct expected {
    void (*tell)(tern_metrics *metrics, int rank);
    int code;
    const char *text;
} expected;

static void long_name(tern_metrics *m, int rank)
{
    tern_metrics_sum(m, rank == 1 ? "a name of thirty-two characters." : "short", 1);
}
static void two_kinds(tern_metrics *m, int rank)
{
    tern_metrics_sum(m, "loss", 1);
    if (rank == 1) tern_metrics_mean(m, "loss", 1, 1);
}
static void kinds_of_ranks(tern_metrics *m, int rank)
{
    if (rank == 1)
        tern_metrics_max(m, "loss", 1);
    else
        tern_metrics_mean(m, "loss", 1, 1);
}
static void bad_weight(tern_metrics *m, int rank)
{
    tern_metrics_mean(m, "loss", 1, rank == 1 ? -1 : 1);
}
static void many_names(tern_metrics *m, int rank)
{
    for (int i = 0; i < (rank == 1 ? 33 : 1); i++) {
        char name[32];
        snprintf(name, sizeof(name), "name %d", i);
        tern_metrics_sum(m, name, 1);
    }
}
static void many_names_together(tern_metrics *m, int rank)
{
    for (int i = 0; i < 17; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%d of rank %d", i, rank);
        tern_metrics_sum(m, name, 1);
    }
}

static const expected mistakes[] = {
    {long_name, TERN_E_RANGE, "rank 1: \"a name of thirty-two characters.\": a name has 1 to 31 characters"},
    {two_kinds, TERN_E_INVALID, "rank 1: \"loss\": used as two kinds of metric"},
    {kinds_of_ranks, TERN_E_MISMATCH, "\"loss\" is a max on rank 1 and a mean on a lower rank"},
    {bad_weight, TERN_E_RANGE, "rank 1: \"loss\": the weight is below 0"},
    {many_names, TERN_E_RANGE, "rank 1: \"name 32\": more than 32 names"},
    {many_names_together, TERN_E_RANGE,
     "rank 1: \"15 of rank 1\": all ranks together use more than 32 names"},
};

static int mistakes_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = open_group(boot, &err);
    tern_metrics *m = tern_metrics_new(world, &err);
    RANK_CHECK_OK(rank, err);
    for (size_t i = 0; i < TERN__COUNT(mistakes); i++) {
        err = (tern_error){0};
        mistakes[i].tell(m, rank);
        RANK_CHECK(rank, tern_metrics_reduce(m, &err) == mistakes[i].code);
        if (strcmp(err.text, mistakes[i].text)) fprintf(stderr, "%s\n", err.text);
        RANK_CHECK(rank, !strcmp(err.text, mistakes[i].text) && !strcmp(err.func, "tern_metrics_reduce"));
        RANK_CHECK(rank, !tern_metrics_name(m, 0));
        err = (tern_error){0}; /* the group still works */
        tern_metrics_sum(m, "loss", 1);
        RANK_CHECK(rank, tern_metrics_reduce(m, &err) == TERN_OK && tern_metrics_get(m, "loss") == 2);
    }
    tern_metrics_free(m);
    tern_group_close(world);
    return 0;
}

static void a_mistake_of_one_is_told_to_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, mistakes_body, NULL));
}

static int peer_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = open_group(boot, &err);
    RANK_CHECK_OK(rank, err);
    tern_metrics *m = tern_metrics_new(world, &err);
    if (rank == 1) _exit(0);
    RANK_CHECK(rank, tern_metrics_reduce(m, &err) == TERN_E_PEER);
    tern_metrics_free(m);
    tern_group_close(world);
    return 0;
}

static void a_peer_that_dies_is_an_error(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, peer_body, NULL));
}

static void alone_and_not_numbers(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_metrics *m = tern_metrics_new(NULL, &err);
    tern_metrics_mean(m, "none", NAN, 0);
    tern_metrics_min(m, "min", 3);
    tern_metrics_min(m, "min", NAN);
    tern_metrics_min(m, "min", 2);
    tern_metrics_mean(m, "mean", INFINITY, 2);
    assert_int_equal(tern_metrics_reduce(m, &err), TERN_OK);
    assert_true(isnan(tern_metrics_get(m, "none")) && isnan(tern_metrics_get(m, "min")));
    assert_true(isinf(tern_metrics_get(m, "mean")));
    assert_true(isnan(tern_metrics_get(NULL, "none")) && tern_metrics_weight(NULL, "none") == 0);
    tern_metrics_free(m);
    tern_metrics_free(NULL);
    tern_metrics_sum(NULL, "none", 1);
    assert_int_equal(tern_metrics_reduce(NULL, &err), TERN_E_INVALID);
}

static void out_of_memory(void **state)
{
    (void)state;
    for (int64_t refuse = 1; refuse <= 2; refuse++) {
        ledger books = {.refuse_at = refuse};
        ledger_open(&books);
        tern_error err = {0};
        assert_null(tern_metrics_new(NULL, &err));
        assert_int_equal(err.code, TERN_E_MEMORY);
        ledger_close(&books);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_all_ranks),  cmocka_unit_test(all_ranks_have_the_same_bits),
        cmocka_unit_test(a_mistake_of_one_is_told_to_all), cmocka_unit_test(a_peer_that_dies_is_an_error),
        cmocka_unit_test(alone_and_not_numbers),           cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
