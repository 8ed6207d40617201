/* test_subset.c - subsets, and datasets without the samples that cannot be read: the same on all ranks. */
#include "comm/group_fixture.h"
#include "data/dataset_call.h"

#include <errno.h>
#include <semaphore.h>
#include <string.h>

#include <tern/data.h>

enum { LENGTH = 23, CLASSES = 7 };

/* Sample i has value 10 i and label i % 7; every third one cannot be read, and 11's label is wrong. */
static int torn_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                    tern_error *err)
{
    (void)base, (void)epoch;
    if (index % 3 == 1) return tern__error_set(err, "torn", TERN_E_IO, "\"%d.png\" is torn", (int)index);
    *x = (float)(10 * index);
    *(int64_t *)y = index == 11 ? CLASSES : index % CLASSES;
    return TERN_OK;
}

static const tern_dataset torn = {
    .length = LENGTH, .ndim = 1, .shape = {1}, .classes = CLASSES, .get = torn_get};

static sem_t named; /* posted when the sample that hangs has been named */

static bool is_bad(int64_t index)
{
    return index % 3 == 1 || index == 11;
}

typedef struct heard {
    int count;
    char first[128];
} heard;

static void listen_to(tern_log_level level, const char *text, void *ctx)
{
    heard *h = ctx;
    if (level != TERN_LOG_WARN) return;
    if (h->count++ == 0) snprintf(h->first, sizeof(h->first), "%s", text);
}

static int readable_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    heard warnings = {0};
    tern_group *world = open_group(boot, &err);
    tern_log_set(listen_to, &warnings);
    tern_dataset *readable = tern_readable_new(&torn, world, &err);
    tern_log_set(NULL, NULL);
    RANK_CHECK_OK(rank, err);
    int64_t place = 0, expected_warnings = 0;
    for (int64_t i = 0; i < LENGTH; i++) {
        float x;
        int64_t y;
        expected_warnings += is_bad(i) && i % tern_group_size(world) == rank;
        if (is_bad(i)) continue;
        RANK_CHECK(rank, readable->get(readable, 0, place++, &x, &y, &err) == TERN_OK);
        RANK_CHECK(rank, x == (float)(10 * i) && y == i % CLASSES);
    }
    RANK_CHECK(rank, readable->length == place);
    RANK_CHECK(rank, warnings.count == expected_warnings);
    if (rank == 1) RANK_CHECK(rank, !strcmp(warnings.first, "leaving out sample 1: \"1.png\" is torn"));
    tern_dataset_free(readable);
    tern_group_close(world);
    return 0;
}

static void what_cannot_be_read_is_left_out_on_all_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++)
        assert_ranks_ok(ranks_run(worlds[i], readable_body, NULL));
}

static void quiet(tern_log_level level, const char *text, void *ctx)
{
    (void)level, (void)text, (void)ctx;
}

static void nothing_readable_is_an_error(void **state)
{
    (void)state;
    int64_t bad[] = {1, 4, 7};
    tern_error err = {0};
    tern_dataset *few = tern_subset_new(&torn, bad, 3, &err);
    tern_log_set(quiet, NULL);
    assert_null(tern_readable_new(few, NULL, &err));
    tern_log_set(NULL, NULL);
    assert_int_equal(err.code, TERN_E_IO);
    assert_string_equal(err.text, "none of 3 samples can be read");
    tern_dataset_free(few);
}

static int shortage; /* the errno that sample 5 gets; 0: E_MEMORY */

static int short_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                     tern_error *err)
{
    errno = shortage;
    if (index == 5 && shortage) return tern__error_errno(err, "short", TERN_E_IO, "cannot open 5.png");
    if (index == 5) return tern__error_set(err, "short", TERN_E_MEMORY, "no memory for 5.png");
    return torn_get(base, epoch, index, x, y, err);
}

/* Rank 2 of 3 tries sample 5. */
static int shortage_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = open_group(boot, &err);
    tern_dataset lacking = torn;
    lacking.get = short_get;
    tern_log_set(quiet, NULL);
    RANK_CHECK(rank, !tern_readable_new(&lacking, world, &err));
    RANK_CHECK(rank, strstr(err.text, "sample 5: "));
    if (rank == 2) RANK_CHECK(rank, err.code == (shortage ? TERN_E_IO : TERN_E_MEMORY));
    tern_group_close(world);
    return 0;
}

static void a_shortage_leaves_nothing_out(void **state)
{
    (void)state;
    for (shortage = 0; shortage <= EMFILE; shortage += EMFILE)
        assert_ranks_ok(ranks_run(3, shortage_body, NULL));
}

static void a_subset_has_its_samples_in_its_order(void **state)
{
    (void)state;
    int64_t chosen[] = {21, 0, 3, 0}, y;
    float x;
    tern_error err = {0};
    tern_dataset *some = tern_subset_new(&torn, chosen, 4, &err);
    assert_ok(err);
    assert_int_equal(some->length, 4);
    assert_int_equal(some->classes, CLASSES);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(some->get(some, 0, i, &x, &y, &err), TERN_OK);
        assert_true(x == (float)(10 * chosen[i]));
    }
    tern_dataset_free(some);
}

static int hanging_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                       tern_error *err)
{
    if (index == 5) sem_wait(&named);
    return torn_get(base, epoch, 3 * index, x, y, err);
}

static void note_and_free(tern_log_level level, const char *text, void *ctx)
{
    if (level == TERN_LOG_WARN) listen_to(level, text, ctx);
    sem_post(&named);
}

static void a_get_that_hangs_is_named(void **state)
{
    (void)state;
    tern_error err = {0};
    heard warnings = {0};
    tern_dataset hanging = torn;
    hanging.get = hanging_get;
    sem_init(&named, 0, 0);
    tern__readable_patience_s = 0.05;
    tern_log_set(note_and_free, &warnings);
    tern_dataset *readable = tern_readable_new(&hanging, NULL, &err);
    tern_log_set(NULL, NULL);
    tern__readable_patience_s = TERN__PATIENCE_S;
    assert_ok(err);
    assert_int_equal(warnings.count, 1);
    assert_string_equal(warnings.first,
                        "no batch came for 0.05 s: the dataset's get has not returned sample 5");
    tern_dataset_free(readable);
}

static void bad_arguments_are_named(void **state)
{
    (void)state;
    int64_t beyond[] = {0, LENGTH};
    tern_error err = {0};
    assert_null(tern_subset_new(&torn, beyond, 2, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    assert_string_equal(err.text, "indices[1] is 23, expected [0, 22]");
    assert_null(tern_subset_new(&torn, beyond, 1, &err)); /* an error that is set is kept */
    err = (tern_error){0};
    assert_null(tern_subset_new(NULL, beyond, 1, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    err = (tern_error){0};
    assert_null(tern_subset_new(&torn, beyond, -1, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    assert_non_null(strstr(err.text, "at least 0 indices, got -1"));
    err = (tern_error){0};
    assert_null(tern_subset_new(&torn, NULL, 1, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_string_equal(err.text, "the array of indices is NULL");
    err = (tern_error){0};
    assert_null(tern_readable_new(NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_read_is_left_out_on_all_ranks),
        cmocka_unit_test(nothing_readable_is_an_error),
        cmocka_unit_test(a_shortage_leaves_nothing_out),
        cmocka_unit_test(a_get_that_hangs_is_named),
        cmocka_unit_test(a_subset_has_its_samples_in_its_order),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
