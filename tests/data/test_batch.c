/* test_batch.c - batches as tensors of a scope: their values, when their memory is given back, and how a bad
 * sample is reported. */
#include "base/base.h"
#include "ledger.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LENGTH = 10, VALUES = 6 };

/* Sample i is (2, 3) values 10 i .. 10 i + 5 and label i. */
typedef struct counting {
    tern_dataset base;
    int64_t fails_at; /* index of a sample that fails; -1: none */
    int fails_with;
    bool by_hand; /* fills in the error itself */
} counting;

static int counting_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                        tern_error *err)
{
    (void)epoch;
    const counting *dataset = (const counting *)base;
    if (index == dataset->fails_at && dataset->by_hand) {
        *err = (tern_error){.code = dataset->fails_with, .text = "it is torn"};
        return dataset->fails_with;
    }
    if (index == dataset->fails_at) return tern_error_set(err, "counting", dataset->fails_with, "it is torn");
    for (int i = 0; i < VALUES; i++) x[i] = (float)(10 * index + i);
    *(int64_t *)y = index;
    return TERN_OK;
}

typedef struct feed {
    tern_error err;
    counting dataset;
    tern_device *device;
    tern_scope *scope;
    tern_loader *loader;
} feed;

static void open_feed(feed *f, int workers, int64_t fails_at)
{
    *f = (feed){.dataset = {.base = {.length = LENGTH, .ndim = 2, .shape = {2, 3}, .get = counting_get},
                            .fails_at = fails_at,
                            .fails_with = TERN_E_IO}};
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 4;
    opts.workers = workers;
    opts.prefetch = 1;
    f->device = tern_device_open("cpu", &f->err);
    f->scope = tern_scope_new(f->device, NULL, &f->err);
    f->loader = tern_loader_new(&f->dataset.base, &opts, &f->err);
    assert_ok(f->err);
}

static void close_feed(feed *f)
{
    tern_loader_free(f->loader);
    tern_scope_free(f->scope);
    tern_device_close(f->device);
}

static void expect_batch(const tern_batch *batch, int64_t first, int64_t count)
{
    float x[4 * VALUES];
    int64_t y[4];
    assert_int_equal(batch->count, count);
    assert_int_equal(tern_tensor_ndim(batch->x), 3);
    assert_memory_equal(tern_tensor_shape(batch->x), ((int64_t[]){count, 2, 3}), 3 * sizeof(int64_t));
    assert_int_equal(tern_tensor_dtype(batch->x), TERN_F32);
    assert_int_equal(tern_tensor_ndim(batch->y), 1);
    assert_int_equal(tern_tensor_dtype(batch->y), TERN_I64);
    assert_int_equal(tern_tensor_read(batch->x, x, sizeof(float) * VALUES * (size_t)count, NULL), TERN_OK);
    assert_int_equal(tern_tensor_read(batch->y, y, sizeof(int64_t) * (size_t)count, NULL), TERN_OK);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(y[i], first + i);
        for (int j = 0; j < VALUES; j++) assert_true(x[i * VALUES + j] == (float)(10 * (first + i) + j));
    }
}

static void every_step_hands_its_batch_back(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        feed f;
        open_feed(&f, workers, -1);
        for (int epoch = 0; epoch < 5; epoch++) {
            tern_batch batch, last = {0};
            int64_t seen = 0;
            while (tern_loader_next(f.loader, f.scope, &batch)) {
                expect_batch(&batch, seen, TERN__MIN(4, LENGTH - seen));
                seen += batch.count;
                last = batch;
                assert_int_equal(tern_scope_end(f.scope, &f.err), TERN_OK);
            }
            assert_int_equal(seen, LENGTH);
            assert_null(batch.x);
            assert_int_equal(tern_tensor_read(last.x, &seen, 0, NULL), TERN_E_LIFETIME);
        }
        close_feed(&f);
    }
}

/* The loader has max(workers, 1) * prefetch + 1 slots: a step may hold that many batches, and one more is an
 * error. */
static void a_step_may_hold_several(void **state)
{
    (void)state;
    feed f;
    open_feed(&f, 0, -1);
    tern_batch batch[3];
    for (int i = 0; i < 3; i++) assert_true(tern_loader_next(f.loader, f.scope, &batch[i]));
    expect_batch(&batch[0], 0, 4);
    expect_batch(&batch[1], 4, 4);
    assert_null(batch[2].x);
    assert_null(batch[2].y);
    assert_int_equal(tern_scope_end(f.scope, &f.err), TERN_E_STATE);
    assert_string_equal(f.err.text, "all 2 batches that the loader has room for are held: end the scope "
                                    "that holds them, or "
                                    "raise prefetch from 1");
    assert_string_equal(f.err.func, "tern_loader_next");
    assert_true(tern_loader_next(f.loader, f.scope, &batch[2]));
    expect_batch(&batch[2], 8, 2);
    close_feed(&f);
}

static void a_bad_sample_is_told_by_the_scope(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        feed f;
        open_feed(&f, workers, 5);
        tern_batch batch;
        assert_true(tern_loader_next(f.loader, f.scope, &batch));
        expect_batch(&batch, 0, 4);
        assert_int_equal(tern_scope_end(f.scope, &f.err), TERN_OK);
        assert_true(tern_loader_next(f.loader, f.scope, &batch));
        assert_true(!batch.x && !batch.y && !batch.count);
        assert_null(tern_relu(f.scope, batch.x));                 /* the step goes on without checks */
        assert_true(tern_loader_next(f.loader, f.scope, &batch)); /* and gets no more */
        assert_null(batch.x);
        assert_int_equal(tern_scope_end(f.scope, &f.err), TERN_E_IO);
        assert_non_null(strstr(f.err.text, "it is torn"));
        assert_non_null(strstr(f.err.text, "5"));
        assert_true(tern_loader_next(f.loader, f.scope, &batch)); /* the pass continues after it */
        expect_batch(&batch, 8, 2);
        assert_int_equal(tern_scope_end(f.scope, NULL), TERN_OK);
        assert_false(tern_loader_next(f.loader, f.scope, &batch));
        assert_int_equal(tern_scope_end(f.scope, NULL), TERN_OK);
        close_feed(&f);
    }
}

/* A get that passes an errno on instead of a status. */
static void a_bad_sample_may_have_any_code(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        feed f;
        open_feed(&f, i / 2, 1);
        f.dataset.fails_with = EIO;
        f.dataset.by_hand = i % 2;
        tern_batch batch;
        assert_true(tern_loader_next(f.loader, f.scope, &batch));
        assert_null(batch.x);
        assert_int_equal(tern_scope_end(f.scope, &f.err), TERN_E_INVALID);
        assert_non_null(strstr(f.err.text, "batch 0, sample 1: it is torn"));
        assert_true(tern_loader_next(f.loader, f.scope, &batch));
        expect_batch(&batch, 4, 4);
        assert_int_equal(tern_scope_end(f.scope, NULL), TERN_OK);
        close_feed(&f);
    }
}

static void keep_message(tern_log_level level, const char *text, void *ctx)
{
    char *kept = ctx;
    snprintf(kept + strlen(kept), TERN_ERROR_TEXT - strlen(kept), "%d %s\n", level, text);
}

/* The loop holds batches that it never gives back, and never looks at the error. */
static void a_loop_that_never_ends_its_scope_ends(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        char said[TERN_ERROR_TEXT] = "";
        feed f;
        open_feed(&f, workers, workers == 2 ? 1 : -1);
        tern_batch batch;
        int calls = 0;
        tern_log_set(keep_message, said);
        while (calls < 100 && tern_loader_next(f.loader, f.scope, &batch)) calls++;
        assert_false(tern_loader_next(f.loader, f.scope, &batch));
        tern_log_set(NULL, NULL);
        assert_true(calls < 100);
        assert_non_null(strstr(said, workers == 2 ? "0 tern_loader_next: batch 0, sample 1: it is torn"
                                                  : "raise prefetch from 1"));
        assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
        assert_int_equal(tern_scope_end(f.scope, NULL), workers == 2 ? TERN_E_IO : TERN_E_STATE);
        assert_true(tern_loader_next(f.loader, f.scope, &batch));
        close_feed(&f);
    }
}

static void a_loader_that_is_null(void **state)
{
    (void)state;
    feed f;
    open_feed(&f, 0, -1);
    tern_batch batch;
    assert_true(tern_loader_next(NULL, f.scope, &batch));
    assert_null(batch.x);
    assert_int_equal(tern_scope_end(f.scope, &f.err), TERN_E_INVALID);
    assert_string_equal(f.err.text, "the loader is NULL");
    close_feed(&f);
}

/* The loop is left within a step: the loader is freed before the scope that holds its memory. */
static void a_loop_may_be_left_anywhere(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        ledger books = {0};
        ledger_open(&books);
        feed f;
        open_feed(&f, workers, -1);
        tern_batch batch[2];
        for (int i = 0; i < 2; i++) assert_true(tern_loader_next(f.loader, f.scope, &batch[i]));
        tern_loader_free(f.loader);
        f.loader = NULL;
        expect_batch(&batch[0], 0, 4);
        expect_batch(&batch[1], 4, 4);
        assert_int_equal(tern_scope_end(f.scope, &f.err), TERN_OK);
        close_feed(&f);
        ledger_close(&books);
    }
}

/* Sample i's target is the map (2, 2) of i, i + 1, i + 2, i + 3. */
static int map_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y, tern_error *err)
{
    (void)base, (void)epoch, (void)err;
    uint8_t *map = y;
    *x = (float)index;
    for (int i = 0; i < 4; i++) map[i] = (uint8_t)(index + i);
    return TERN_OK;
}

static void a_target_may_be_a_map(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_dataset maps = {.length = 5,
                         .ndim = 1,
                         .shape = {1},
                         .target_ndim = 2,
                         .target_shape = {2, 2},
                         .target_dtype = TERN_U8,
                         .classes = 2, /* labels in maps are not checked */
                         .get = map_get};
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 3;
    tern_device *device = tern_device_open("cpu", &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    tern_loader *loader = tern_loader_new(&maps, &opts, &err);
    tern_batch batch;
    for (int64_t seen = 0; tern_loader_next(loader, s, &batch); seen += batch.count) {
        uint8_t y[12];
        int64_t shape[] = {batch.count, 2, 2};
        assert_non_null(batch.y);
        assert_int_equal(tern_tensor_ndim(batch.y), 3);
        assert_memory_equal(tern_tensor_shape(batch.y), shape, sizeof(shape));
        assert_int_equal(tern_tensor_dtype(batch.y), TERN_U8);
        assert_int_equal(tern_tensor_read(batch.y, y, 4 * (size_t)batch.count, &err), TERN_OK);
        for (int64_t i = 0; i < 4 * batch.count; i++) assert_int_equal(y[i], seen + i / 4 + i % 4);
        assert_int_equal(tern_scope_end(s, &err), TERN_OK);
    }
    assert_ok(err);
    tern_loader_free(loader);
    tern_scope_free(s);
    tern_device_close(device);
}

static void memory_runs_out(void **state)
{
    (void)state;
    for (int at = 1, failures = 0;; at++) {
        ledger books = {0};
        ledger_open(&books);
        feed f;
        open_feed(&f, 0, -1);
        tern_batch batch;
        books.refuse_at = atomic_load(&books.requests) + at;
        assert_true(tern_loader_next(f.loader, f.scope, &batch));
        bool reached = atomic_load(&books.requests) >= books.refuse_at;
        books.refuse_at = 0;
        int code = tern_scope_end(f.scope, NULL);
        assert_int_equal(code, reached ? TERN_E_MEMORY : TERN_OK);
        failures += reached;
        for (int i = 0; i < 2; i++) assert_true(tern_loader_next(f.loader, f.scope, &batch)); /* both slots */
        assert_non_null(batch.x);
        assert_int_equal(tern_scope_end(f.scope, NULL), TERN_OK);
        close_feed(&f);
        ledger_close(&books);
        if (!reached) {
            assert_true(failures > 0);
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_step_hands_its_batch_back),
        cmocka_unit_test(a_step_may_hold_several),
        cmocka_unit_test(a_bad_sample_is_told_by_the_scope),
        cmocka_unit_test(a_bad_sample_may_have_any_code),
        cmocka_unit_test(a_loader_that_is_null),
        cmocka_unit_test(a_loop_that_never_ends_its_scope_ends),
        cmocka_unit_test(a_loop_may_be_left_anywhere),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(a_target_may_be_a_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
