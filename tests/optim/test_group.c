/* Parameter groups, and which neighbours an optimizer updates in one kernel call. tests/torch compares groups
 * with PyTorch's. */
#include "optim/layers.h"

#include <math.h>
#include <stdio.h>

/* ---- how often the kernel is called ---- */

typedef struct call_counter {
    tern__kernel_observer base;
    int calls;
} call_counter;

static void count_call(tern__kernel_observer *self, const tern__call *call)
{
    (void)call;
    ((call_counter *)self)->calls++;
}

static int calls_of_step(bench *b, tern_optim *optim)
{
    call_counter seen = {.base.ran = count_call};
    b->w.device->observer = &seen.base;
    step(b, optim);
    b->w.device->observer = NULL;
    return seen.calls;
}

static bool is_first_layer(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)ctx;
    (void)parameter;
    return name[0] == '0';
}

static void neighbours_are_updated_in_one_call(void **state)
{
    (void)state;
    for (int mixed = 0; mixed < 2; mixed++) {
        bench b = open_bench(mixed);
        tern_optim *optim = tern_adam_new(b.net, NULL, &b.w.err);
        assert_ok(b.w.err);
        use_all(&b);
        assert_int_equal(calls_of_step(&b, optim), 1 + mixed);
        use_all(&b);
        assert_int_equal(calls_of_step(&b, optim), 1 + mixed);
        tern_optim_free(optim);
        close_bench(&b);
    }
}

static void a_parameter_left_out_is_behind_from_then_on(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *optim = tern_adam_new(b.net, NULL, &b.w.err);
    for (int i = 0; i < LAYERS; i++) {
        use(&b, b.weight[i]);
        if (i != 1) use(&b, b.bias[i]);
    }
    assert_int_equal(calls_of_step(&b, optim), 2);
    use_all(&b);
    assert_int_equal(calls_of_step(&b, optim), 3);
    use(&b, b.bias[1]);
    assert_int_equal(calls_of_step(&b, optim), 1);
    use_all(&b);
    assert_int_equal(calls_of_step(&b, optim), 1);
    assert_int_equal(calls_of_step(&b, optim), 0);
    tern_optim_free(optim);
    close_bench(&b);
}

static void groups_part_neighbours(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *optim = tern_sgd_new(b.net, NULL, &b.w.err);
    assert_int_equal(tern_sgd_group_add(optim, is_first_layer, NULL, NULL, &b.w.err), 1);
    use_all(&b);
    assert_int_equal(calls_of_step(&b, optim), 2);
    tern_optim_free(optim);
    optim = tern_sgd_new(b.net, NULL, &b.w.err);
    assert_int_equal(tern_sgd_group_add(optim, is_bias, NULL, NULL, &b.w.err), 1);
    use_all(&b);
    assert_int_equal(calls_of_step(&b, optim), 2 * LAYERS);
    tern_optim_free(optim);
    close_bench(&b);
}

/* ---- groups ---- */

typedef struct asked {
    int count;
    char names[2 * LAYERS][16];
    const tern_tensor *parameters[2 * LAYERS];
} asked;

static bool ask(const char *name, const tern_tensor *parameter, void *ctx)
{
    asked *a = ctx;
    snprintf(a->names[a->count], sizeof(a->names[0]), "%s", name);
    a->parameters[a->count++] = parameter;
    return false;
}

/* Under its name in the whole tree, in the order of the state dict, whatever group it is in. */
static void every_parameter_is_asked_about(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *whole = tern_sgd_new(b.net, NULL, &b.w.err),
               *part = tern_sgd_new(b.layers[2], NULL, &b.w.err);
    assert_int_equal(tern_sgd_group_add(whole, is_bias, NULL, NULL, &b.w.err), 1);
    asked all = {0}, two = {0};
    assert_int_equal(tern_sgd_group_add(whole, ask, &all, NULL, NULL), TERN_E_INVALID);
    assert_int_equal(tern_sgd_group_add(part, ask, &two, NULL, NULL), TERN_E_INVALID);
    assert_int_equal(all.count, 2 * LAYERS);
    assert_int_equal(two.count, 2);
    for (int i = 0; i < 2 * LAYERS; i++) {
        tern_state_entry entry = tern_state_get(b.net, i);
        assert_string_equal(all.names[i], entry.name);
        assert_ptr_equal(all.parameters[i], entry.tensor);
    }
    assert_string_equal(two.names[0], "2.weight");
    assert_string_equal(two.names[1], "2.bias");
    tern_optim_free(part);
    tern_optim_free(whole);
    close_bench(&b);
}

static void every_group_has_its_rate(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *optim = tern_sgd_new(b.net, NULL, &b.w.err);
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 4;
    assert_int_equal(tern_sgd_group_add(optim, is_bias, NULL, &opts, &b.w.err), 1);
    opts.lr = 8;
    assert_int_equal(tern_sgd_group_add(optim, is_first_layer, NULL, &opts, &b.w.err), 2);
    assert_int_equal(tern_optim_group_count(optim), 3);
    tern_optim_lr_set(optim, 0, 2);
    assert_true(tern_optim_lr_get(optim, 0) == 2 && tern_optim_lr_get(optim, 1) == 4);
    assert_true(tern_optim_lr_get(optim, 2) == 8);
    tern_schedule *half = tern_exponential_schedule_new(optim, TERN_UNIT_STEPS, 0.5, &b.w.err);
    tern_schedule_step(half);
    assert_true(tern_optim_lr_get(optim, 0) == 1 && tern_optim_lr_get(optim, 2) == 4);
    use_all(&b);
    step(&b, optim);
    assert_true(first(b.weight[1]) == -1 && first(b.bias[1]) == -2 && first(b.bias[0]) == -4);
    tern_optim_lr_set(optim, 3, 1);
    tern_optim_lr_set(optim, -1, 1);
    tern_optim_lr_set(NULL, 0, 1);
    assert_true(isnan(tern_optim_lr_get(optim, 3)) && isnan(tern_optim_lr_get(optim, -1)));
    assert_true(isnan(tern_optim_lr_get(NULL, 0)));
    assert_int_equal(tern_optim_group_count(NULL), 0);
    tern_schedule_free(half);
    tern_optim_free(optim);
    close_bench(&b);
}

static void expect_group_refused(int got, tern_error *err, int code, const char *func, const char *text)
{
    assert_int_equal(got, code);
    assert_int_equal(err->code, code);
    assert_string_equal(err->func, func);
    assert_string_equal(err->text, text);
    *err = (tern_error){0};
}

static void groups_that_cannot_be(void **state)
{
    (void)state;
    bench b = open_bench(false);
    tern_optim *sgd = tern_sgd_new(b.net, NULL, &b.w.err), *adam = tern_adamw_new(b.net, NULL, &b.w.err);
    tern_error err = {0};
    const char *of_sgd = "tern_sgd_group_add", *of_adam = "tern_adam_group_add";
    expect_group_refused(tern_sgd_group_add(adam, is_bias, NULL, NULL, &err), &err, TERN_E_INVALID, of_sgd,
                         "a group of sgd for an optimizer that is adamw");
    expect_group_refused(tern_adam_group_add(sgd, is_bias, NULL, NULL, &err), &err, TERN_E_INVALID, of_adam,
                         "a group of adam for an optimizer that is sgd");
    expect_group_refused(tern_sgd_group_add(NULL, is_bias, NULL, NULL, &err), &err, TERN_E_INVALID, of_sgd,
                         "the optimizer or the function `belongs` is NULL");
    expect_group_refused(tern_adam_group_add(adam, NULL, NULL, NULL, &err), &err, TERN_E_INVALID, of_adam,
                         "the optimizer or the function `belongs` is NULL");
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.momentum = -1;
    expect_group_refused(tern_sgd_group_add(sgd, is_bias, NULL, &opts, &err), &err, TERN_E_RANGE, of_sgd,
                         "sgd: expected lr, momentum and weight_decay >= 0, got 0.001, -1 and 0");
    asked all = {0};
    expect_group_refused(tern_adam_group_add(adam, ask, &all, NULL, &err), &err, TERN_E_INVALID, of_adam,
                         "no parameter belongs to the new group");
    use_all(&b);
    step(&b, sgd);
    step(&b, adam);
    expect_group_refused(tern_sgd_group_add(sgd, is_bias, NULL, NULL, &err), &err, TERN_E_STATE, of_sgd,
                         "the optimizer has made a step; add all groups before the first");
    expect_group_refused(tern_adam_group_add(adam, is_bias, NULL, NULL, &err), &err, TERN_E_STATE, of_adam,
                         "the optimizer has made a step; add all groups before the first");
    assert_int_equal(tern_optim_group_count(sgd), 1);
    assert_int_equal(tern_optim_group_count(adam), 1);
    err.code = TERN_E_IO;
    assert_int_equal(tern_sgd_group_add(sgd, is_bias, NULL, NULL, &err), TERN_E_IO);
    assert_int_equal(tern_adam_group_add(adam, is_bias, NULL, NULL, &err), TERN_E_IO);
    tern_optim_free(adam);
    tern_optim_free(sgd);
    close_bench(&b);
}

/* A group without options of its own has the defaults of its optimizer's kind. */
static void the_defaults_of_a_group(void **state)
{
    (void)state;
    bench b = open_bench(false);
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        tern_optim *optim = (decoupled ? tern_adamw_new : tern_adam_new)(b.net, NULL, &b.w.err);
        assert_int_equal(tern_adam_group_add(optim, is_bias, NULL, NULL, &b.w.err), 1);
        for (int g = 0; g < 2; g++)
            assert_true(optim->groups[g].opts.adam.weight_decay == (decoupled ? 0.01 : 0));
        tern_optim_free(optim);
    }
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_are_updated_in_one_call),
        cmocka_unit_test(a_parameter_left_out_is_behind_from_then_on),
        cmocka_unit_test(groups_part_neighbours),
        cmocka_unit_test(every_parameter_is_asked_about),
        cmocka_unit_test(every_group_has_its_rate),
        cmocka_unit_test(groups_that_cannot_be),
        cmocka_unit_test(the_defaults_of_a_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
