/* One schedule after another: when its parts count, whose they are, and what cannot be. tests/torch/
 * test_schedule.py compares sequences with PyTorch's. */
#include "ledger.h"
#include "ops/world.h"
#include "optim/schedule.h"

#include <stdio.h>
#include <string.h>

typedef struct bench {
    world w;
    tern_module *net;
    tern_optim *optim, *other;
} bench;

static bench open_bench(void)
{
    bench b = {.w = open_world()};
    b.net = tern_linear_new(3, 2, NULL, b.w.rng, &b.w.err);
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 8;
    b.optim = tern_sgd_new(b.net, &opts, &b.w.err);
    b.other = tern_sgd_new(b.net, &opts, &b.w.err);
    assert_ok(b.w.err);
    return b;
}

static void close_bench(bench *b)
{
    assert_ok(b->w.err);
    tern_optim_free(b->optim);
    tern_optim_free(b->other);
    tern_module_free(b->net);
    close_world(&b->w);
}

static double rate(const bench *b)
{
    return tern_optim_lr_get(b->optim, 0);
}

static tern_schedule *constant(bench *b, double factor)
{
    return tern_constant_schedule_new(b->optim, TERN_UNIT_EPOCHS, factor, 100, &b->w.err);
}

static void parts_count_from_their_own_begin(void **state)
{
    (void)state;
    bench b = open_bench();
    tern_schedule *parts[] = {
        constant(&b, 0.5), tern_exponential_schedule_new(b.optim, TERN_UNIT_EPOCHS, 0.5, &b.w.err),
        tern_multi_step_schedule_new(b.optim, TERN_UNIT_EPOCHS, 1, (int64_t[]){1}, 0.25, &b.w.err)};
    tern_schedule *sequence =
        tern_sequential_schedule_new(b.optim, TERN_UNIT_EPOCHS, 3, parts, (int64_t[]){2, 5}, &b.w.err);
    static const double want[] = {4, 4, 8, 4, 2, 8, 2, 2};
    for (size_t t = 0; t < TERN__COUNT(want); t++) {
        assert_true(rate(&b) == want[t]);
        tern_schedule_step(sequence);
        tern_schedule_epoch(parts[0]); /* is nothing by itself any more */
        tern_schedule_epoch(parts[1]);
        assert_true(rate(&b) == want[t]);
        tern_schedule_epoch(sequence);
    }
    tern_schedule_free(sequence);
    assert_true(rate(&b) == 8);
    close_bench(&b);
}

static void keep_warning(tern_log_level level, const char *text, void *ctx)
{
    if (level == TERN_LOG_WARN) snprintf(ctx, TERN_ERROR_TEXT, "%s", text);
}

/* It ends where its last part does, counted from the last milestone. */
static void its_end_is_that_of_the_last_part(void **state)
{
    (void)state;
    char text[TERN_ERROR_TEXT] = "";
    bench b = open_bench();
    tern_schedule *parts[] = {tern_constant_schedule_new(b.optim, TERN_UNIT_STEPS, 0.5, 100, &b.w.err),
                              tern_polynomial_schedule_new(b.optim, TERN_UNIT_STEPS, 4, 1, &b.w.err)};
    tern_schedule *sequence =
        tern_sequential_schedule_new(b.optim, TERN_UNIT_STEPS, 2, parts, (int64_t[]){3}, &b.w.err);
    for (int step = 0; step < 8; step++) tern_schedule_step(sequence);
    assert_true(rate(&b) == 0);
    tern_log_set(keep_warning, text);
    tern_schedule_epoch(sequence);
    tern_log_set(NULL, NULL);
    assert_string_equal(text,
                        "a schedule in steps ended at 7 of the first epoch's 8; was it meant in epochs?");
    tern_schedule_free(sequence);
    close_bench(&b);
}

static void sequences_nest(void **state)
{
    (void)state;
    bench b = open_bench();
    tern_schedule *inner[] = {constant(&b, 0.5), constant(&b, 0.25)};
    tern_schedule *outer[] = {
        tern_sequential_schedule_new(b.optim, TERN_UNIT_EPOCHS, 2, inner, (int64_t[]){1}, &b.w.err),
        constant(&b, 0.125)};
    tern_schedule *sequence =
        tern_sequential_schedule_new(b.optim, TERN_UNIT_EPOCHS, 2, outer, (int64_t[]){3}, &b.w.err);
    static const double want[] = {4, 2, 2, 1, 1};
    for (size_t t = 0; t < TERN__COUNT(want); t++) {
        assert_true(rate(&b) == want[t]);
        tern_schedule_epoch(sequence);
    }
    tern_object *dict = tern_schedule_state_dict(sequence, &b.w.err);
    const tern_object *part = tern_object_at(tern_object_get(dict, "_schedulers"), 0);
    assert_int_equal(tern_object_count(tern_object_get(part, "_schedulers")), 2);
    tern_object_free(dict);
    tern_schedule_free(sequence);
    close_bench(&b);
}

/* A one-cycle changes the momentum while it counts. */
static void momentum_of_a_part(void **state)
{
    (void)state;
    bench b = open_bench();
    tern_optim *adam = tern_adam_new(b.net, NULL, &b.w.err);
    const double *beta1 = &adam->groups[0].opts.adam.beta1;
    tern_schedule *parts[] = {tern_constant_schedule_new(adam, TERN_UNIT_STEPS, 0.5, 2, &b.w.err),
                              tern_one_cycle_schedule_new(adam, TERN_UNIT_STEPS, 9, NULL, &b.w.err)};
    tern_schedule *sequence =
        tern_sequential_schedule_new(adam, TERN_UNIT_STEPS, 2, parts, (int64_t[]){1}, &b.w.err);
    assert_true(*beta1 == 0.9);
    tern_schedule_step(sequence);
    assert_true(*beta1 == 0.95);
    tern_schedule_free(sequence);
    assert_true(*beta1 == 0.9);
    tern_optim_free(adam);
    close_bench(&b);
}

static void refuse(bench *b, tern_unit unit, int count, tern_schedule **parts, const int64_t *milestones,
                   int code, const char *text)
{
    tern_error err = {0};
    double before = rate(b);
    assert_null(tern_sequential_schedule_new(b->optim, unit, count, parts, milestones, &err));
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_sequential_schedule_new");
    assert_string_equal(err.text, text);
    assert_true(rate(b) == before);
}

static void what_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench();
    const tern_unit epochs = TERN_UNIT_EPOCHS;
    const int invalid = TERN_E_INVALID;
    tern_schedule *own = constant(&b, 0.5), *plateau = tern_plateau_schedule_new(b.optim, NULL, &b.w.err);
    tern_schedule *other = tern_constant_schedule_new(b.other, epochs, 0.5, 1, &b.w.err);
    tern_schedule *steps = tern_constant_schedule_new(b.optim, TERN_UNIT_STEPS, 0.5, 1, &b.w.err);
    tern_schedule *begun = constant(&b, 0.5), *taken = constant(&b, 0.5);
    tern_schedule_epoch(begun);
    tern_schedule *sequence = tern_sequential_schedule_new(b.optim, epochs, 1, &taken, NULL, &b.w.err);
    const struct {
        tern_schedule *part;
        int code;
        const char *text;
    } cases[] = {
        {NULL, invalid, "part 1 is NULL"},
        {other, invalid, "part 1 is of another optimizer"},
        {steps, invalid, "part 1 counts in the other unit"},
        {begun, invalid, "part 1 has begun"},
        {taken, invalid, "part 1 is a part of a sequence already"},
        {own, invalid, "part 1 is there twice"},
        {plateau, TERN_E_UNSUPPORTED,
         "part 1 is a plateau, which counts metrics: let it stand beside the sequence"},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++)
        refuse(&b, epochs, 2, (tern_schedule *[]){own, cases[i].part}, (int64_t[]){1}, cases[i].code,
               cases[i].text);
    tern_schedule *parts[] = {own, constant(&b, 1), constant(&b, 1)};
    refuse(&b, epochs, 3, parts, (int64_t[]){0, 1}, TERN_E_RANGE,
           "milestone 0 is 0: expected numbers from 1 on that rise");
    refuse(&b, epochs, 3, parts, (int64_t[]){2, 2}, TERN_E_RANGE,
           "milestone 1 is 2: expected numbers from 1 on that rise");
    const char *none = "expected at least one part and one milestone fewer, got 0 parts";
    refuse(&b, epochs, 0, parts, NULL, invalid, none);
    refuse(&b, epochs, 2, NULL, (int64_t[]){1}, invalid, none);
    refuse(&b, epochs, 2, parts, NULL, invalid,
           "expected at least one part and one milestone fewer, got 2 parts");
    tern_schedule *all[] = {own, plateau, other, steps, begun, sequence, parts[1], parts[2]};
    for (size_t i = 0; i < TERN__COUNT(all); i++) tern_schedule_free(all[i]);
    close_bench(&b);
}

static void out_of_memory(void **state)
{
    (void)state;
    bench b = open_bench();
    tern_schedule *parts[] = {constant(&b, 0.5), constant(&b, 0.25)};
    for (int at = 1; at <= 3; at++) {
        ledger books = {.refuse_at = at};
        tern_error err = {0};
        ledger_open(&books);
        assert_null(tern_sequential_schedule_new(b.optim, TERN_UNIT_EPOCHS, 2, parts, (int64_t[]){1}, &err));
        assert_int_equal(err.code, TERN_E_MEMORY);
        assert_int_equal(atomic_load(&books.live), 0);
        assert_true(rate(&b) == 1); /* the parts are as they were */
        ledger_close(&books);
    }
    tern_schedule_free(parts[0]);
    tern_schedule_free(parts[1]);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_count_from_their_own_begin),
        cmocka_unit_test(its_end_is_that_of_the_last_part),
        cmocka_unit_test(sequences_nest),
        cmocka_unit_test(momentum_of_a_part),
        cmocka_unit_test(what_cannot_be),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
