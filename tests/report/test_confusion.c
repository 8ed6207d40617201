/* test_confusion.c - confusion matrices and top-k: refused arguments, ranks that differ, memory.
 * tests/torch/test_confusion.py compares the numbers with numpy's and torch's. */
#include "comm/group_fixture.h"
#include "ledger.h"
#include "ops/world.h"

static tern_tensor *zeros(world *w, tern_dtype dtype, int ndim, const int64_t *shape)
{
    return tern_tensor_from(w->scope, NULL, dtype, ndim, shape);
}
#define ZEROS(w, dtype, ...)                                                                                 \
    zeros(w, dtype, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

/* Expects that a call has failed like this, and the scope with it. */
static void expect(world *w, int code, int wanted, const char *func, const char *text)
{
    assert_int_equal(code, wanted);
    expect_error(w, NULL, func, wanted, text);
}

static void operands_that_do_not_fit(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    const char *func = "tern_confusion_update";
    tern_confusion *c = tern_confusion_new(NULL, 3, 255, &w.err);
    expect(&w, tern_confusion_update(c, s, ZEROS(&w, TERN_F32, 2, 3, 4), ZEROS(&w, TERN_U8, 2, 5)),
           TERN_E_SHAPE, func,
           "confusion: expected scores (N, C, ..) and labels (N, ..), or (C) and (); got (2, 3, 4) and (2, "
           "5)");
    expect(&w, tern_confusion_update(c, s, ZEROS(&w, TERN_F32, 2, 4), ZEROS(&w, TERN_U8, 2)), TERN_E_SHAPE,
           func, "confusion: expected scores of 3 classes, got 4");
    expect(&w, tern_confusion_update(c, s, ZEROS(&w, TERN_F32, 2, 3), ZEROS(&w, TERN_F32, 2)), TERN_E_DTYPE,
           func, "confusion: expected labels of i64, i32 or u8, got f32");
    expect(&w, tern_confusion_update(c, s, ZEROS(&w, TERN_U8, 2, 3), ZEROS(&w, TERN_U8, 2)), TERN_E_SHAPE,
           func,
           "confusion: expected two maps of the same shape, or floating-point scores; got (2, 3) and (2)");
    expect(&w, tern_confusion_update(c, s, ZEROS(&w, TERN_BOOL, 2), ZEROS(&w, TERN_U8, 2)), TERN_E_DTYPE,
           func, "confusion: expected predictions of i64, i32 or u8, got bool");
    expect(&w, tern_confusion_update(c, s, ZEROS(&w, TERN_U8, 2), NULL), TERN_E_INVALID, func,
           "confusion_update: input 1 is NULL, and no earlier op has failed");
    expect(&w, tern_confusion_update(NULL, s, ZEROS(&w, TERN_U8, 2), ZEROS(&w, TERN_U8, 2)), TERN_E_INVALID,
           func, "the confusion is NULL");
    assert_int_equal(tern_confusion_update(c, NULL, NULL, NULL), TERN_E_INVALID);
    tern_confusion_free(c);
    close_world(&w);
}

static void masks_that_do_not_fit(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    const char *func = "tern_confusion_update_mask";
    tern_confusion *three = tern_confusion_new(NULL, 3, 255, &w.err);
    tern_confusion *c = tern_confusion_new(NULL, 2, 255, &w.err);
    tern_tensor *x = ZEROS(&w, TERN_F32, 2, 2, 4);
    expect(&w, tern_confusion_update_mask(three, s, x, ZEROS(&w, TERN_U8, 2, 2, 4), 0), TERN_E_INVALID, func,
           "a mask has 2 classes, the confusion has 3");
    x = ZEROS(&w, TERN_F32, 2, 2, 4);
    expect(&w, tern_confusion_update_mask(c, s, x, ZEROS(&w, TERN_U8, 2, 4), 0), TERN_E_SHAPE, func,
           "confusion: expected a mask of the scores' shape, or (N, ..) of (N, 1, ..); got (2, 2, 4) and (2, "
           "4)");
    expect(&w, tern_confusion_update_mask(c, s, ZEROS(&w, TERN_U8, 2), ZEROS(&w, TERN_U8, 2), 0),
           TERN_E_DTYPE, func, "confusion: expected floating-point scores, got u8");
    expect(&w, tern_confusion_update_mask(c, s, zeros1(&w, TERN_F32, 2), zeros1(&w, TERN_F32, 2), 0),
           TERN_E_DTYPE, func, "confusion: expected a mask of i64, i32 or u8, got f32");
    tern_tensor *mask = tern_full(s, TERN_U8, 1, (int64_t[]){2}, 2);
    expect(&w, tern_confusion_update_mask(c, s, zeros1(&w, TERN_F32, 2), mask, 0), TERN_E_RANGE, func,
           "confusion: label 2 of sample 0 is not in [0, 2)");
    tern_confusion_free(three);
    tern_confusion_free(c);
    close_world(&w);
}

static void scores_that_topk_does_not_take(void **state)
{
    (void)state;
    world w = open_world();
    int64_t correct[1], one = 1;
    expect(
        &w,
        tern_topk_correct(w.scope, ZEROS(&w, TERN_I64, 2, 3), ZEROS(&w, TERN_I64, 2), -100, 1, &one, correct),
        TERN_E_DTYPE, "tern_topk_correct", "topk_correct: expected floating-point scores, got i64");
    expect(
        &w,
        tern_topk_correct(w.scope, ZEROS(&w, TERN_F32, 2, 0), ZEROS(&w, TERN_I64, 2), -100, 1, &one, correct),
        TERN_E_SHAPE, "tern_topk_correct", "topk_correct: expected scores of 1 classes, got 0");
    tern_confusion *c = tern_confusion_new(NULL, 3, 255, &w.err);
    assert_int_equal(
        tern_topk_correct(w.scope, ZEROS(&w, TERN_F32, 0, 3), ZEROS(&w, TERN_I64, 0), -100, 1, &one, correct),
        TERN_OK); /* an empty batch */
    assert_int_equal(correct[0], 0);
    assert_int_equal(tern_confusion_update(c, w.scope, ZEROS(&w, TERN_F32, 0, 3), ZEROS(&w, TERN_U8, 0)),
                     TERN_OK);
    tern_confusion_free(c);
    close_world(&w);
}

static void classes_that_cannot_be(void **state)
{
    (void)state;
    for (int64_t classes = 1; classes < 5000; classes += 4096) {
        tern_error err = {0};
        char text[64];
        snprintf(text, sizeof(text), "expected 2 to 4096 classes, got %lld", (long long)classes);
        assert_null(tern_confusion_new(NULL, classes, 255, &err));
        assert_int_equal(err.code, TERN_E_RANGE);
        assert_string_equal(err.text, text);
    }
    tern_error err = {0};
    assert_int_equal(tern_confusion_reduce(NULL, &err), TERN_E_INVALID);
    tern_confusion_free(NULL);
    assert_int_equal(tern_confusion_total(NULL), 0);
    assert_int_equal(tern_confusion_count(NULL, 0, 0), 0);
}

/* Ranks with 3 and 4 classes: an error on all, and no numbers. */
static int unlike_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *all = open_group(boot, &err);
    tern_confusion *c = tern_confusion_new(all, 3 + rank, 255, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, tern_confusion_reduce(c, &err) == TERN_E_MISMATCH);
    RANK_CHECK(rank, tern_confusion_total(c) == 0);
    tern_confusion_free(c);
    tern_group_close(all);
    return 0;
}

static void ranks_of_unlike_classes(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, unlike_body, NULL));
}

static void out_of_memory(void **state)
{
    (void)state;
    for (int64_t refuse = 1; refuse <= 2; refuse++) {
        ledger books = {.refuse_at = refuse};
        ledger_open(&books);
        tern_error err = {0};
        assert_null(tern_confusion_new(NULL, 3, 255, &err));
        assert_int_equal(err.code, TERN_E_MEMORY);
        ledger_close(&books);
    }
}

/* ---- batches, warm and without memory ---- */

static tern_confusion *counted;

static tern_module *make(world *w)
{
    (void)w;
    return NULL;
}

static int run_step(world *w, tern_module *none)
{
    (void)none;
    int64_t correct[1], one = 1;
    tern_tensor *x = ZEROS(w, TERN_F32, 2, 3, 40), *label = ZEROS(w, TERN_U8, 2, 40);
    int code = tern_confusion_update(counted, w->scope, x, label);
    if (!code) code = tern_confusion_update(counted, w->scope, tern_cast(w->scope, x, TERN_BF16), label);
    if (!code) code = tern_topk_correct(w->scope, x, label, -100, 1, &one, correct);
    tern_error ended = {0};
    tern_scope_end(w->scope, &ended);
    return code;
}

static void batches_warm_and_without_memory(void **state)
{
    (void)state;
    tern_error err = {0};
    counted = tern_confusion_new(NULL, 3, 255, &err);
    expect_warm_steps_to_allocate_nothing(make, run_step);
    assert_true(expect_out_of_memory_to_be_told(make, run_step) > 5);
    tern_confusion_free(counted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_that_do_not_fit),        cmocka_unit_test(masks_that_do_not_fit),
        cmocka_unit_test(scores_that_topk_does_not_take),  cmocka_unit_test(classes_that_cannot_be),
        cmocka_unit_test(ranks_of_unlike_classes),         cmocka_unit_test(out_of_memory),
        cmocka_unit_test(batches_warm_and_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
