/* test_grad.c - freezing parameters, and the moving average of a model. */
#include "nn/nn.h"
#include "ops/world.h"

#include <math.h>
#include <string.h>

static tern_module *net_new(world *w)
{
    tern_module *net = tern_sequential_new(&w->err);
    tern_sequential_add(net, tern_linear_new(3, 4, NULL, w->rng, &w->err), &w->err);
    tern_sequential_add(net, tern_batch_norm1d_new(4, NULL, &w->err), &w->err);
    tern_sequential_add(net, tern_linear_new(4, 2, NULL, w->rng, &w->err), &w->err);
    assert_ok(w->err);
    return net;
}

static void backward(world *w, tern_module *net)
{
    tern_tensor *x = tern_full(w->scope, TERN_F32, 2, (int64_t[]){5, 3}, 0.5);
    tern_backward(w->scope, tern_sum(w->scope, tern_forward(net, w->scope, x)));
    assert_int_equal(tern_scope_end(w->scope, &w->err), TERN_OK);
}

static void frozen_parameters_get_no_gradient(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = net_new(&w);
    tern_tensor *first = tern_state_find(net, "0.weight"), *last = tern_state_find(net, "2.weight");
    assert_int_equal(tern_requires_grad_set(first, false, &w.err), TERN_OK);
    assert_false(tern_requires_grad_get(first));
    backward(&w, net);
    assert_null(tern_grad_get(first));
    assert_non_null(tern_grad_get(last));
    tern_module_requires_grad_set(net, true);
    assert_false(tern_requires_grad_get(tern_state_find(net, "1.running_mean")));
    backward(&w, net);
    assert_non_null(tern_grad_get(first));
    tern_zero_grad(net);
    assert_null(tern_grad_get(last));
    tern_module_free(net);
    close_world(&w);
}

static void a_wholly_frozen_model_has_no_backward(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = net_new(&w);
    tern_module_requires_grad_set(net, false);
    tern_tensor *x = tern_full(w.scope, TERN_F32, 2, (int64_t[]){5, 3}, 0.5);
    tern_tensor *loss = tern_sum(w.scope, tern_forward(net, w.scope, x));
    assert_int_equal(tern_backward(w.scope, loss), TERN_E_STATE);
    expect_error(&w, NULL, "tern_backward", TERN_E_STATE,
                 "the loss depends on nothing that wants a gradient, or gradients were off");
    tern_module_free(net);
    close_world(&w);
}

static void inputs_take_gradients_and_results_do_not(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = net_new(&w);
    tern_tensor *x = tern_full(w.scope, TERN_F32, 2, (int64_t[]){5, 3}, 0.5);
    tern_tensor *index = tern_full(w.scope, TERN_I64, 0, NULL, 0), *y = tern_forward(net, w.scope, x);
    assert_int_equal(tern_requires_grad_set(x, true, &w.err), TERN_OK);
    assert_true(tern_requires_grad_get(x));
    assert_int_equal(tern_requires_grad_set(y, false, &w.err), TERN_E_INVALID);
    assert_string_equal(w.err.text,
                        "tensor (5, 2) is the result of linear, which sends its gradient on: tern_detach it");
    w.err = (tern_error){0};
    assert_int_equal(tern_requires_grad_set(tern_detach(w.scope, y), true, &w.err), TERN_OK);
    assert_int_equal(tern_requires_grad_set(index, true, &w.err), TERN_E_DTYPE);
    assert_string_equal(w.err.text, "tensor () is of i64, which has no gradients");
    w.err = (tern_error){0};
    assert_int_equal(tern_requires_grad_set(NULL, true, NULL), TERN_E_INVALID);
    assert_false(tern_requires_grad_get(NULL));
    tern_module_free(net);
    close_world(&w);
}

static float element(const tern_module *net, const char *name)
{
    float all[16];
    tern_tensor *tensor = tern_state_find(net, name);
    assert_int_equal(tern_tensor_read(tensor, all, 4 * (size_t)tern_tensor_count(tensor), NULL), TERN_OK);
    return all[1];
}

/* Parameters move by a quarter of the difference, buffers are copied; kernels' copies become stale. */
static void the_average_follows(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = net_new(&w), *average = net_new(&w);
    float before = element(average, "0.weight"), target = element(model, "0.weight");
    backward(&w, model); /* updates the running mean */
    const tern__packs *packs = tern_state_find(average, "0.weight")->view.packs;
    uint64_t version = packs->version;
    tern_ema_update(w.scope, average, model, 0.75);
    assert_true(packs->version > version);
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    float expected = before + 0.25f * (target - before);
    assert_true(fabsf(element(average, "0.weight") - expected) <= 1e-7f);
    assert_true(element(average, "1.running_mean") == element(model, "1.running_mean"));
    assert_true(element(model, "1.running_mean") != 0);
    tern_ema_update(w.scope, average, model, 0);
    assert_true(element(average, "2.weight") == element(model, "2.weight"));
    tern_module_free(average);
    tern_module_free(model);
    close_world(&w);
}

static void averages_that_cannot_follow(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = net_new(&w);
    tern_module *other = tern_linear_new(3, 4, NULL, w.rng, &w.err);
    tern_module *wide = tern_sequential_new(&w.err);
    tern_sequential_add(wide, tern_linear_new(3, 5, NULL, w.rng, &w.err), &w.err);
    tern_ema_update(w.scope, other, model, 0.5);
    expect_error(&w, NULL, "tern_ema_update", TERN_E_INVALID,
                 "the average has \"weight\" where the model has \"0.weight\"");
    tern_ema_update(w.scope, wide, model, 0.5);
    expect_error(&w, NULL, "tern_ema_update", TERN_E_SHAPE,
                 "\"0.weight\" is (5, 3) of f32, but in the model (4, 3) of f32");
    tern_ema_update(w.scope, model, model, 1.5);
    expect_error(&w, NULL, "tern_ema_update", TERN_E_RANGE,
                 "expected two modules and a decay in [0, 1], got both and 1.5");
    tern_ema_update(w.scope, NULL, model, 0.5);
    expect_error(&w, NULL, "tern_ema_update", TERN_E_INVALID,
                 "expected two modules and a decay in [0, 1], got NULL and 0.5");
    tern_module_free(wide);
    tern_module_free(other);
    tern_module_free(model);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_parameters_get_no_gradient),
        cmocka_unit_test(a_wholly_frozen_model_has_no_backward),
        cmocka_unit_test(inputs_take_gradients_and_results_do_not),
        cmocka_unit_test(the_average_follows),
        cmocka_unit_test(averages_that_cannot_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
