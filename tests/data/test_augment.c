/* test_augment.c - augmentation: samples that do not depend on workers or ranks but on the epoch, refused
 * options, and memory. tests/torch/test_augment.py compares the numbers. */
#include "base/base.h"
#include "data/loader/loader.h"
#include "ledger.h"

#include <string.h>

enum {
    LENGTH = 37,
    CHANNELS = 2,
    HEIGHT = 5,
    WIDTH = 6,
    PIXELS = HEIGHT * WIDTH,
    VALUES = CHANNELS * PIXELS
};

/* Sample i is (2, 5, 6) values 100 i .. 100 i + 59, plus the epoch / 16, and label i. */
typedef struct source {
    tern_dataset base;
    int64_t fails_at; /* index of a sample that fails; -1: none */
} source;

static int source_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                      tern_error *err)
{
    if (index == ((const source *)base)->fails_at)
        return tern__error_set(err, "source", TERN_E_IO, "it is torn");
    for (int i = 0; i < VALUES; i++) x[i] = (float)(100 * index + i) + (float)epoch / 16;
    *(int64_t *)y = index;
    return TERN_OK;
}

static source source_make(void)
{
    return (source){.base = {.length = LENGTH,
                             .ndim = 3,
                             .shape = {CHANNELS, HEIGHT, WIDTH},
                             .classes = LENGTH,
                             .get = source_get},
                    .fails_at = -1};
}

static tern_augment_opts opts_make(void)
{
    tern_augment_opts opts = tern_augment_defaults();
    opts.padding[0] = opts.padding[1] = 2;
    opts.flip = 0.5;
    opts.seed = 6;
    return opts;
}

static tern_dataset *augment_new(const source *s, const tern_augment_opts *opts)
{
    tern_error err = {0};
    tern_dataset *dataset = tern_augment_new(&s->base, opts, &err);
    assert_ok(err);
    return dataset;
}

/* Gets every sample of every epoch, one by one. */
enum { EPOCHS = 3 };
typedef float epochs[EPOCHS][LENGTH][VALUES];

static void fetch_all(const tern_dataset *dataset, epochs all)
{
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; i < LENGTH; i++) {
            int64_t label = -1;
            assert_int_equal(dataset->get(dataset, e, i, all[e][i], &label, NULL), TERN_OK);
            assert_int_equal(label, i);
        }
}

/* ---- the epoch that the loader passes ---- */

/* Setting the sampler's epoch within a pass affects the next pass. */
static void samples_are_of_the_epoch_in_which_their_pass_began(void **state)
{
    (void)state;
    static const int want[] = {0, 1, 2, 41, 42};
    for (int workers = 0; workers < 3; workers++) {
        source s = source_make();
        tern_loader_opts opts = tern_loader_defaults();
        opts.workers = workers;
        opts.sampler = tern_random_sampler_new(LENGTH, 0, NULL);
        tern_loader *loader = tern_loader_new(&s.base, &opts, NULL);
        for (size_t pass = 0; pass < TERN__COUNT(want); pass++) {
            tern__batch batch;
            for (int seen = 0; tern__loader_next(loader, &batch, NULL) == 1; seen++) {
                assert_true(batch.x[0] == (float)(100 * ((int64_t *)batch.y)[0]) + (float)want[pass] / 16);
                tern__loader_slot_release(loader, batch.slot);
                if (pass == 2 && seen == 20) tern_sampler_epoch_set(opts.sampler, 40);
            }
        }
        tern_loader_free(loader);
        tern_sampler_free(opts.sampler);
    }
}

/* ---- the same samples on all ranks ---- */

/* Runs one rank through the epochs and compares each sample with `want`. Returns their number. */
static int expect_epochs(tern_dataset *dataset, int ranks, int rank, int workers, epochs want)
{
    tern_error err = {0};
    tern_distributed_opts sampling = tern_distributed_defaults();
    sampling.pad = false;
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 4;
    opts.workers = workers;
    opts.sampler = tern_distributed_sampler_new(LENGTH, ranks, rank, &sampling, &err);
    tern_loader *loader = tern_loader_new(dataset, &opts, &err);
    assert_ok(err);
    int seen = 0;
    for (int e = 0; e < EPOCHS; e++) {
        tern__batch batch;
        while (tern__loader_next(loader, &batch, &err) == 1) {
            for (int64_t i = 0; i < batch.count; i++, seen++)
                assert_memory_equal(batch.x + i * VALUES, want[e][((int64_t *)batch.y)[i]],
                                    sizeof(want[0][0]));
            tern__loader_slot_release(loader, batch.slot);
        }
        assert_ok(err);
    }
    tern_loader_free(loader);
    tern_sampler_free(opts.sampler);
    return seen;
}

static void expect_the_same(const tern_augment_opts *opts)
{
    static const int all_workers[] = {0, 1, 2, 4}, all_ranks[] = {1, 2, 3, 8};
    static epochs want;
    source s = source_make();
    tern_dataset *dataset = augment_new(&s, opts);
    fetch_all(dataset, want);
    for (size_t w = 0; w < TERN__COUNT(all_workers); w++)
        for (size_t r = 0; r < TERN__COUNT(all_ranks); r++) {
            int seen = 0;
            for (int rank = 0; rank < all_ranks[r]; rank++)
                seen += expect_epochs(dataset, all_ranks[r], rank, all_workers[w], want);
            assert_int_equal(seen, EPOCHS * LENGTH);
        }
    tern_dataset_free(dataset);
}

static void the_same_for_any_workers_and_ranks(void **state)
{
    (void)state;
    tern_augment_opts opts = opts_make();
    expect_the_same(&opts);
    opts.scale[0] = 0.4;
    opts.scale[1] = 2;
    opts.flip_vertical = 0.5;
    opts.intensity_scale = 0.5;
    expect_the_same(&opts);
}

/* A resume makes a new dataset and starts with a later epoch. */
static void the_same_after_a_resume(void **state)
{
    (void)state;
    static epochs want;
    float got[VALUES];
    int64_t label;
    source s = source_make();
    tern_augment_opts opts = opts_make();
    tern_dataset *dataset = augment_new(&s, &opts);
    fetch_all(dataset, want);
    tern_dataset_free(dataset);
    dataset = augment_new(&s, &opts);
    for (int e = EPOCHS - 1; e >= 0; e--)
        for (int i = LENGTH - 1; i >= 0; i--) {
            assert_int_equal(dataset->get(dataset, e, i, got, &label, NULL), TERN_OK);
            assert_memory_equal(got, want[e][i], sizeof(got));
        }
    tern_dataset_free(dataset);
}

/* The fractions show the source's epoch: without them, as many crops differ as chance predicts. */
static void other_epochs_samples_and_seeds_differ(void **state)
{
    (void)state;
    static epochs one, other;
    source s = source_make();
    tern_augment_opts opts = opts_make();
    tern_dataset *dataset = augment_new(&s, &opts);
    fetch_all(dataset, one);
    tern_dataset_free(dataset);
    opts.seed++;
    dataset = augment_new(&s, &opts);
    fetch_all(dataset, other);
    tern_dataset_free(dataset);
    int by_epoch = 0, by_seed = 0;
    for (int i = 0; i < LENGTH; i++) {
        for (int k = 0; k < VALUES; k++) /* the padding is 0 in every epoch */
            if (one[1][i][k] != 0.0f) one[1][i][k] -= 1.0f / 16;
        by_epoch += memcmp(one[0][i], one[1][i], sizeof(one[0][i])) != 0;
        by_seed += memcmp(one[0][i], other[0][i], sizeof(one[0][i])) != 0;
    }
    assert_true(by_epoch > LENGTH - 5); /* 25 positions, mirrored or not: 1 in 50 is equal */
    assert_true(by_seed > LENGTH - 5);
}

/* ---- as a dataset ---- */

static void an_augmented_dataset_can_be_augmented(void **state)
{
    (void)state;
    source s = source_make();
    tern_augment_opts cut = tern_augment_defaults(), mirror = tern_augment_defaults();
    cut.random_crop = false;
    cut.crop[0] = 3;
    cut.crop[1] = 4;
    mirror.flip = 1;
    tern_dataset *inner = augment_new(&s, &cut);
    tern_dataset *outer = tern_augment_new(inner, &mirror, NULL);
    assert_non_null(outer);
    assert_int_equal(outer->length, LENGTH);
    assert_int_equal(outer->classes, LENGTH);
    assert_int_equal(outer->ndim, 3);
    float x[CHANNELS][3][4];
    int64_t label;
    assert_int_equal(outer->get(outer, 0, 2, x[0][0], &label, NULL), TERN_OK);
    for (int c = 0; c < CHANNELS; c++)
        for (int row = 0; row < 3; row++)
            for (int column = 0; column < 4; column++) {
                int at = c * PIXELS + (row + 1) * WIDTH + 1 + (3 - column);
                assert_true(x[c][row][column] == (float)(200 + at));
            }
    tern_dataset_free(outer);
    tern_dataset_free(inner);
}

static void an_error_of_the_source_comes_through(void **state)
{
    (void)state;
    source s = source_make();
    s.fails_at = 3;
    tern_dataset *dataset = augment_new(&s, NULL);
    float x[VALUES] = {7};
    int64_t label;
    tern_error err = {0};
    assert_int_equal(dataset->get(dataset, 0, 3, x, &label, &err), TERN_E_IO);
    assert_string_equal(err.text, "it is torn");
    assert_true(x[0] == 7);
    assert_int_equal(dataset->get(dataset, 0, 4, x, &label, NULL), TERN_OK);
    tern_dataset_free(dataset);
}

/* ---- memory ---- */

static void one_buffer_serves_all_calls_of_one_thread(void **state)
{
    (void)state;
    static epochs all;
    ledger books = {0};
    ledger_open(&books);
    source s = source_make();
    tern_augment_opts opts = opts_make();
    tern_dataset *dataset = augment_new(&s, &opts);
    fetch_all(dataset, all);
    assert_int_equal(atomic_load(&books.requests), 2); /* the dataset, the buffer */
    tern_dataset_free(dataset);
    ledger_close(&books);
}

static void no_memory(void **state)
{
    (void)state;
    source s = source_make();
    ledger books = {.refuse_at = 1};
    ledger_open(&books);
    tern_error err = {0};
    assert_null(tern_augment_new(&s.base, NULL, &err));
    assert_int_equal(err.code, TERN_E_MEMORY);
    books.refuse_at = 3;
    tern_dataset *dataset = augment_new(&s, NULL);
    float x[VALUES];
    int64_t label;
    err = (tern_error){0};
    assert_int_equal(dataset->get(dataset, 0, 0, x, &label, &err), TERN_E_MEMORY);
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_int_equal(dataset->get(dataset, 0, 0, x, &label, NULL), TERN_OK);
    tern_dataset_free(dataset);
    ledger_close(&books);
}

/* ---- refused options ---- */

static void expect_refused(const tern_dataset *dataset, const tern_augment_opts *opts, int code,
                           const char *text)
{
    tern_error err = {0};
    assert_null(tern_augment_new(dataset, opts, &err));
    assert_string_equal(err.text, text);
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_augment_new");
    assert_null(tern_augment_new(dataset, opts, NULL));
}

#define REFUSED(field, value, code, text)                                                                    \
    do {                                                                                                     \
        tern_augment_opts opts = tern_augment_defaults();                                                    \
        opts.field = (value);                                                                                \
        expect_refused(&s.base, &opts, code, text);                                                          \
    } while (0)

static void options_out_of_range(void **state)
{
    (void)state;
    source s = source_make();
    REFUSED(crop[0], -1, TERN_E_RANGE,
            "crop[0] is -1, expected at least 0; padding[0] is 0, expected [0, 2147483647]");
    REFUSED(padding[1], -2, TERN_E_RANGE,
            "crop[1] is 0, expected at least 0; padding[1] is -2, expected [0, 2147483647]");
    REFUSED(padding[0], INT64_C(1) << 31, TERN_E_RANGE,
            "crop[0] is 0, expected at least 0; padding[0] is 2147483648, expected [0, 2147483647]");
    REFUSED(flip, -0.25, TERN_E_RANGE, "flip is -0.25, expected [0, 1]");
    REFUSED(flip, 1.5, TERN_E_RANGE, "flip is 1.5, expected [0, 1]");
    REFUSED(flip, __builtin_nan(""), TERN_E_RANGE, "flip is nan, expected [0, 1]");
    REFUSED(channels, -1, TERN_E_RANGE, "channels is -1, expected [0, 4]");
    REFUSED(channels, 5, TERN_E_RANGE, "channels is 5, expected [0, 4]");
    REFUSED(channels, 1, TERN_E_RANGE, "std[0] is 0, expected more than 0");
    REFUSED(size, 0, TERN_E_INVALID, "options: size is 0; start from what the _defaults function returns");
}

static void options_that_do_not_fit_the_samples(void **state)
{
    (void)state;
    source s = source_make();
    REFUSED(crop[0], HEIGHT + 1, TERN_E_SHAPE, "the crop's height is 6, the samples have 5 with padding");
    REFUSED(crop[1], WIDTH + 1, TERN_E_SHAPE, "the crop's width is 7, the samples have 6 with padding");
    tern_augment_opts opts = opts_make();
    opts.crop[1] = WIDTH + 5;
    expect_refused(&s.base, &opts, TERN_E_SHAPE, "the crop's width is 11, the samples have 10 with padding");
    opts = opts_make();
    opts.channels = 3;
    for (int c = 0; c < 3; c++) opts.std[c] = 1;
    expect_refused(&s.base, &opts, TERN_E_SHAPE, "mean and std have 3 channels, the samples have 2");
}

static void samples_that_are_no_images(void **state)
{
    (void)state;
    source s = source_make();
    expect_refused(NULL, NULL, TERN_E_INVALID, "expected a dataset with get");
    s.base.get = NULL;
    expect_refused(&s.base, NULL, TERN_E_INVALID, "expected a dataset with get");
    s = source_make();
    s.base.ndim = 2;
    expect_refused(&s.base, NULL, TERN_E_SHAPE,
                   "expected samples (C, H, W) or (C, D, H, W), got 2 dimensions");
    s = source_make();
    s.base.shape[1] = 0;
    expect_refused(&s.base, NULL, TERN_E_SHAPE, "expected samples (C, H, W) or (C, D, H, W), got (2, 0, 6)");
    s.base.shape[1] = INT64_MAX / 2;
    expect_refused(&s.base, NULL, TERN_E_SHAPE,
                   "expected samples (C, H, W) or (C, D, H, W), got (2, 4611686018427387903, 6)");
}

static void after_an_error_nothing_is_made(void **state)
{
    (void)state;
    source s = source_make();
    tern_error err = {.code = TERN_E_IO, .text = "earlier"};
    assert_null(tern_augment_new(&s.base, NULL, &err));
    assert_string_equal(err.text, "earlier");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_of_the_epoch_in_which_their_pass_began),
        cmocka_unit_test(the_same_for_any_workers_and_ranks),
        cmocka_unit_test(the_same_after_a_resume),
        cmocka_unit_test(other_epochs_samples_and_seeds_differ),
        cmocka_unit_test(an_augmented_dataset_can_be_augmented),
        cmocka_unit_test(an_error_of_the_source_comes_through),
        cmocka_unit_test(one_buffer_serves_all_calls_of_one_thread),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(options_out_of_range),
        cmocka_unit_test(options_that_do_not_fit_the_samples),
        cmocka_unit_test(samples_that_are_no_images),
        cmocka_unit_test(after_an_error_nothing_is_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
