/* test_to.c - devices that are groups of cores: a model in two parts on two of them, activations and
 * gradients that pass between them, and the errors for tensors on two devices. */
#include "check.h"

#include <tern.h>

#include <string.h>

enum { rows = 20, width = 10, classes = 5 };

typedef struct two_parts {
    tern_module base;
    tern_module *first, *second;
    tern_device *where[2]; /* NULL: one device */
} two_parts;

static tern_tensor *two_parts_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const two_parts *net = (two_parts *)module;
    if (net->where[0]) x = tern_to(scope, x, net->where[0]);
    x = tern_relu(scope, tern_forward(net->first, scope, x));
    if (net->where[1]) x = tern_to(scope, x, net->where[1]);
    return tern_forward(net->second, scope, x);
}

static void make_net(two_parts *net, tern_device *first, tern_device *second)
{
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(3, &err);
    *net = (two_parts){.where = {first, second}};
    tern_module_init(&net->base, "two_parts", two_parts_forward, &err);
    net->first = tern_module_add(&net->base, "first", tern_linear_new(width, width, NULL, rng, &err), &err);
    net->second =
        tern_module_add(&net->base, "second", tern_linear_new(width, classes, NULL, rng, &err), &err);
    if (first) tern_module_to(net->first, first, &err);
    if (second) tern_module_to(net->second, second, &err);
    tern_rng_free(rng);
    assert_ok(err);
}

/* Trains `steps` steps and writes the parameters to `out`. */
static void train(two_parts *net, tern_device *home, int steps, float *out)
{
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(4, &err);
    tern_optim *sgd = tern_sgd_new(&net->base, NULL, &err);
    tern_scope *scope = tern_scope_new(home, NULL, &err);
    for (int step = 0; step < steps; step++) {
        tern_tensor *x = tern_randn(scope, rng, 2, (int64_t[]){rows, width});
        tern_tensor *label = tern_randn(scope, rng, 2, (int64_t[]){rows, classes});
        tern_tensor *y = tern_forward(&net->base, scope, x);
        if (net->where[1]) label = tern_to(scope, label, net->where[1]);
        tern_backward(scope, tern_mse_loss(scope, y, label, TERN_LOSS_MEAN));
        tern_optim_step(sgd, scope);
        assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    }
    for (int i = 0; i < tern_state_count(&net->base); i++) {
        tern_tensor *p = tern_state_get(&net->base, i).tensor;
        tern_tensor_read(p, out, (size_t)tern_tensor_count(p) * sizeof(float), &err);
        out += tern_tensor_count(p);
    }
    tern_scope_free(scope);
    tern_optim_free(sgd);
    tern_rng_free(rng);
    assert_ok(err);
}

/* Two parts on two groups of cores train like the whole model on one: the same kernels, the same bits. */
static void parts_train_as_the_whole(void **state)
{
    (void)state;
    enum { count = width * width + width + classes * width + classes };
    float whole[count], parts[count];
    tern_device *one = check_device("cpu:0"), *two = check_device("cpu:0");
    two_parts net;
    make_net(&net, NULL, NULL);
    train(&net, one, 5, whole);
    tern_module_release(&net.base);
    make_net(&net, one, two);
    train(&net, one, 5, parts);
    tern_module_release(&net.base);
    assert_memory_equal(whole, parts, sizeof(whole));
    tern_device_close(two);
    tern_device_close(one);
}

static void expect_failure(tern_scope *scope, int code, const char *text)
{
    tern_error err = {0};
    assert_int_equal(tern_scope_end(scope, &err), code);
    assert_non_null(strstr(err.text, text));
}

static void two_devices_are_refused(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *one = check_device("cpu:0"), *two = check_device("cpu:0-0");
    tern_scope *scope = tern_scope_new(one, NULL, &err);
    tern_tensor *a = tern_full(scope, TERN_F32, 1, (int64_t[]){3}, 1);
    tern_tensor *b = tern_to(scope, a, two);
    assert_ptr_equal(tern_tensor_device(a), one);
    assert_ptr_equal(tern_tensor_device(b), two);
    assert_ptr_equal(tern_to(scope, b, two), b);
    assert_null(tern_add(scope, a, b));
    expect_failure(scope, TERN_E_INVALID,
                   "input 0 is on cpu:0, but input 1 on cpu:0-0; tern_to brings tensors together");
    assert_null(tern_to(scope, tern_full(scope, TERN_F32, 0, NULL, 1), NULL));
    expect_failure(scope, TERN_E_INVALID, "to: the device is NULL");
    /* A kept tensor belongs to no device. */
    tern_tensor *kept = tern_keep(tern_full(scope, TERN_F32, 0, NULL, 2), &err);
    tern_tensor *sum = tern_add(scope, tern_to(scope, tern_full(scope, TERN_F32, 0, NULL, 1), two), kept);
    assert_ptr_equal(tern_tensor_device(sum), two);
    assert_true(tern_item(sum) == 3);
    assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    tern_tensor_free(kept);
    tern_scope_free(scope);
    tern_device_close(two);
    tern_device_close(one);
}

static void placing_comes_first(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *one = check_device("cpu:0");
    two_parts net;
    make_net(&net, one, one);
    assert_int_equal(tern_module_to(&net.base, NULL, &err), TERN_E_INVALID);
    err = (tern_error){0};
    tern_optim *sgd = tern_sgd_new(&net.base, NULL, &err);
    assert_int_equal(tern_module_to(net.first, one, &err), TERN_E_STATE);
    assert_non_null(strstr(err.text, "place the parts of a model first"));
    assert_int_equal(tern_module_to(net.first, one, &err), TERN_E_STATE);
    tern_optim_free(sgd);
    tern_module_release(&net.base);
    tern_device_close(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_train_as_the_whole),
        cmocka_unit_test(two_devices_are_refused),
        cmocka_unit_test(placing_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
