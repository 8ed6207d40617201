/* State dicts of schedules: what is no state, memory, and that a refused one changes nothing. tests/torch/
 * test_schedule.py resumes from them and compares them with PyTorch's. */
#include "ledger.h"
#include "ops/world.h"
#include "optim/schedule.h"

#include <math.h>
#include <string.h>

/* An optimizer of two groups, and a plateau. */
typedef struct bench {
    world w;
    tern_module *net;
    tern_optim *optim;
    tern_schedule *step, *plateau, *sequence;
} bench;

static bool is_bias(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)parameter;
    (void)ctx;
    return strstr(name, "bias") != NULL;
}

static bench open_bench(void)
{
    bench b = {.w = open_world()};
    tern_error *err = &b.w.err;
    b.net = tern_linear_new(3, 2, NULL, b.w.rng, err);
    b.optim = tern_sgd_new(b.net, NULL, err);
    tern_sgd_group_add(b.optim, is_bias, NULL, NULL, err);
    b.step = tern_step_schedule_new(b.optim, TERN_UNIT_STEPS, 2, 0.5, err);
    b.plateau = tern_plateau_schedule_new(b.optim, NULL, err);
    tern_schedule *parts[] = {tern_constant_schedule_new(b.optim, TERN_UNIT_STEPS, 0.5, 1, err),
                              tern_exponential_schedule_new(b.optim, TERN_UNIT_STEPS, 0.5, err)};
    b.sequence = tern_sequential_schedule_new(b.optim, TERN_UNIT_STEPS, 2, parts, (int64_t[]){3}, err);
    assert_ok(b.w.err);
    return b;
}

static void close_bench(bench *b)
{
    assert_ok(b->w.err);
    tern_schedule_free(b->step);
    tern_schedule_free(b->plateau);
    tern_schedule_free(b->sequence);
    tern_optim_free(b->optim);
    tern_module_free(b->net);
    close_world(&b->w);
}

/* The schedule's own state with `value` for the key; NULL: the key is missing. */
static tern_object *changed(const tern_schedule *schedule, const char *key, tern_object *value)
{
    tern_object *own = tern_schedule_state_dict(schedule, NULL), *dict = tern_object_dict(NULL);
    static const char *const whole[] = {"last_epoch", "num_bad_epochs", "cooldown_counter", "num_reductions"};
    for (size_t i = 0; i < TERN__COUNT(whole); i++) {
        int64_t number;
        if (!tern_object_to_int(tern_object_get(own, whole[i]), &number, NULL) && strcmp(key, whole[i]))
            tern_object_set(dict, whole[i], tern_object_int(number, NULL), NULL);
    }
    if (strcmp(key, "best")) tern_object_set(dict, "best", tern_object_float(1, NULL), NULL);
    if (value) tern_object_set(dict, key, value, NULL);
    tern_object_free(own);
    return dict;
}

static void refuse(tern_schedule *schedule, const char *key, tern_object *value, int code, const char *text)
{
    tern_object *state = changed(schedule, key, value);
    tern_error err = {0};
    int64_t t = schedule->t;
    double rate = tern_optim_lr_get(schedule->optim, 0);
    assert_int_equal(tern_schedule_state_dict_load(schedule, state, &err), code);
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_schedule_state_dict_load");
    assert_string_equal(err.text, text);
    assert_true(schedule->t == t && tern_optim_lr_get(schedule->optim, 0) == rate);
    tern_object_free(state);
}

static tern_object *list_of(int count, double value)
{
    tern_object *list = tern_object_list(NULL);
    for (int i = 0; i < count; i++) tern_object_append(list, tern_object_float(value, NULL), NULL);
    return list;
}

static void what_is_no_state(void **state)
{
    (void)state;
    bench b = open_bench();
    tern_schedule_step(b.step);
    const int invalid = TERN_E_INVALID, range = TERN_E_RANGE, dtype = TERN_E_DTYPE;
    refuse(b.step, "last_epoch", NULL, invalid, "\"last_epoch\" is missing");
    refuse(b.step, "last_epoch", tern_object_float(3, NULL), dtype,
           "\"last_epoch\" is a float, expected an int");
    refuse(b.step, "last_epoch", tern_object_int(-1, NULL), range,
           "\"last_epoch\" is -1, expected [0, 9007199254740992]");
    refuse(b.step, "last_epoch", tern_object_int(INT64_MAX, NULL), range,
           "\"last_epoch\" is 9223372036854775807, expected [0, 9007199254740992]");
    refuse(b.step, "base_lrs", list_of(3, 1), invalid,
           "\"base_lrs\" has 3 rates, but the optimizer 2 groups");
    refuse(b.step, "base_lrs", list_of(2, -1), range, "\"base_lrs\"[0] is -1, expected a rate >= 0");
    refuse(b.step, "base_lrs", list_of(2, NAN), range, "\"base_lrs\"[0] is nan, expected a rate >= 0");
    refuse(b.step, "base_lrs", tern_object_int(1, NULL), dtype, "\"base_lrs\" is a int, expected a list");
    tern_object *mixed = list_of(1, 1);
    tern_object_append(mixed, tern_object_string("1", NULL), NULL);
    refuse(b.step, "base_lrs", mixed, dtype, "\"base_lrs\"[1] is a string, expected a number");
    refuse(b.plateau, "best", NULL, invalid, "\"best\" is missing");
    refuse(b.plateau, "best", tern_object_string("1", NULL), dtype,
           "\"best\" is a string, expected a number");
    refuse(b.plateau, "num_bad_epochs", NULL, invalid, "\"num_bad_epochs\" is missing");
    refuse(b.plateau, "cooldown_counter", tern_object_int(-3, NULL), range,
           "\"cooldown_counter\" is -3, expected [0, 9007199254740992]");
    refuse(b.plateau, "num_reductions", tern_object_none(NULL), dtype,
           "\"num_reductions\" is a none, expected an int");
    refuse(b.sequence, "_schedulers", NULL, invalid, "there is no \"_schedulers\"");
    refuse(b.sequence, "_schedulers", list_of(3, 1), invalid, "\"_schedulers\" has 3 parts, expected 2");
    close_bench(&b);
}

static void nothing_to_load(void **state)
{
    (void)state;
    bench b = open_bench();
    tern_object *dict = tern_schedule_state_dict(b.step, &b.w.err);
    tern_error err = {0};
    assert_int_equal(tern_schedule_state_dict_load(NULL, dict, &err), TERN_E_INVALID);
    assert_string_equal(err.text, "the schedule or the state is NULL");
    assert_int_equal(tern_schedule_state_dict_load(b.step, NULL, NULL), TERN_E_INVALID);
    err = (tern_error){0};
    assert_int_equal(tern_schedule_state_dict_load(b.sequence->parts[0], dict, &err), TERN_E_INVALID);
    assert_string_equal(err.text, "the schedule is a part: load its sequence");
    err = (tern_error){.code = TERN_E_IO};
    assert_int_equal(tern_schedule_state_dict_load(b.step, dict, &err), TERN_E_IO);
    assert_null(tern_schedule_state_dict(b.step, &err));
    err = (tern_error){0};
    assert_null(tern_schedule_state_dict(NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    tern_object_free(dict);
    close_bench(&b);
}

/* A reduced rate that somebody's file says was reduced more often than the rate can be. */
static void reductions_end(void **state)
{
    (void)state;
    bench b = open_bench();
    tern_object *dict = changed(b.plateau, "num_reductions", tern_object_int(INT64_C(1) << 53, NULL));
    assert_int_equal(tern_schedule_state_dict_load(b.plateau, dict, &b.w.err), TERN_OK);
    double rate = tern_optim_lr_get(b.optim, 0);
    assert_true(rate > 0 && rate < 1e-7); /* less is no change any more */
    tern_object_free(dict);
    close_bench(&b);
}

static void out_of_memory(void **state)
{
    (void)state;
    bench b = open_bench();
    const tern_schedule *all[] = {b.step, b.plateau, b.sequence};
    for (size_t i = 0; i < TERN__COUNT(all); i++) {
        int refused = 0;
        for (int at = 1;; at++, refused++) {
            ledger books = {.refuse_at = at};
            tern_error err = {0};
            ledger_open(&books);
            tern_object *dict = tern_schedule_state_dict(all[i], &err);
            bool done = atomic_load(&books.requests) < at;
            assert_int_equal(err.code, done ? TERN_OK : TERN_E_MEMORY);
            assert_true(done == (dict != NULL));
            tern_object_free(dict);
            assert_int_equal(atomic_load(&books.live), 0);
            ledger_close(&books);
            if (done) break;
        }
        assert_true(refused > 10);
    }
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_state),
        cmocka_unit_test(nothing_to_load),
        cmocka_unit_test(reductions_end),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
