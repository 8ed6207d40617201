/* test_conv_cases.c - a device learns a limited number of cases of convolutions. The fixed table decides
 * further ones. */
#include "kernels/conv_choice.h"

/* Gives the device so many choices of other ranks, for cases that differ in the number of threads. */
static void learn_others(tern_device *device, int cases)
{
    char line[TERN__CHOICE_LINE];
    for (int i = 0; i < cases; i++) {
        device->threads = 2 + i;
        tern__choices_read(device, line, line_of(device, 32, 0, line));
    }
    device->threads = 1;
}

static void note_full(tern_log_level level, const char *text, void *ctx)
{
    *(int *)ctx += level == TERN_LOG_INFO && strstr(text, "cases of convolutions");
}

static void a_full_device_measures_no_more(void **state)
{
    (void)state;
    folder f;
    int other = find_alternative(), said = 0;
    folder_open(&f);
    tern_log_set(note_full, &said);
    tern_device *device = open_device(false, false);
    learn_others(device, TERN__CHOICE_CASES - 1);
    assert_int_equal(tern__choices_serial(device), TERN__CHOICE_CASES - 1);
    assert_int_equal(said, 0);
    run(device, TERN__CONV, 16);
    assert_int_equal(lines_in(&f), 1);
    assert_int_equal(said, 1);
    for (int i = 0; i < 2; i++)
        for (int64_t size = 16; size < 20; size++)
            assert_string_equal(run_of(device, TERN__CONV, TERN_F32, 32, size),
                                tern__conv_algorithms[other]->name);
    assert_int_equal(lines_in(&f), 1);
    assert_int_equal(tern__choices_serial(device), TERN__CHOICE_CASES);
    assert_int_equal(said, 1);
    tern_log_set(NULL, NULL);
    tern_device_close(device);
    folder_close(&f);
}

/* Reading the file takes no measuring, but it would give another choice in every step, too. */
static void a_full_device_hears_others_only(void **state)
{
    (void)state;
    folder f;
    int other = find_alternative();
    char line[TERN__CHOICE_LINE];
    folder_open(&f);
    store_choice(&f, 0);
    tern_device *device = open_device(false, false);
    learn_others(device, TERN__CHOICE_CASES - 1);
    run(device, TERN__CONV, 16); /* this reads the file */
    assert_string_equal(run(device, TERN__CONV, 32), tern__conv_algorithms[other]->name);
    tern__choices_read(device, line, line_of(device, 32, 0, line));
    assert_string_equal(run(device, TERN__CONV, 32), "direct");
    tern_device_close(device);
    folder_close(&f);
}

/* A device that follows ignores what it has measured itself until another rank tells it the same. */
static void who_follows_forgets_its_own_clock(void **state)
{
    (void)state;
    folder f;
    int other = find_alternative();
    char line[TERN__CHOICE_LINE];
    folder_open(&f);
    store_choice(&f, 0);
    tern_device *device = open_device(false, false);
    assert_string_equal(run(device, TERN__CONV, 32), "direct");
    device->follows = true;
    assert_string_equal(run(device, TERN__CONV, 32), tern__conv_algorithms[other]->name);
    tern__choices_read(device, line, line_of(device, 32, 0, line));
    assert_string_equal(run(device, TERN__CONV, 32), "direct");
    assert_int_equal(tern__choices_serial(device), 1);
    tern_device_close(device);
    folder_close(&f);
}

/* A case of the fixed table takes one block for its primitive and nothing else. */
static void cases_of_the_fixed_table_are_not_kept(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    tern_device *device = open_device(false, true);
    for (int64_t size = 40; size > 38; size--) run_of(device, TERN__CONV, TERN_F32, 16, size);
    int others = atomic_load(&books.live) - tern__prims_count(device);
    for (int64_t size = 38; size > 8; size--) run_of(device, TERN__CONV, TERN_F32, 16, size);
    assert_int_equal(atomic_load(&books.live) - tern__prims_count(device), others);
    tern_device_close(device);
    ledger_close(&books);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_device_measures_no_more),
        cmocka_unit_test(a_full_device_hears_others_only),
        cmocka_unit_test(who_follows_forgets_its_own_clock),
        cmocka_unit_test(cases_of_the_fixed_table_are_not_kept),
    };
    setenv("TERN_CONV_CACHE", "off", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
