/* test_state_dict.c - loading into shared, sealed and packed tensors, from views with any strides; errors
 * that list many names. tests/torch/test_state_dict.py compares with PyTorch. */
#include "check.h"

#include "nn/nn.h"

#include <tern/state_dict.h>

#include <stdio.h>
#include <string.h>

typedef struct world {
    tern_device *device;
    tern_scope *scope;
    tern_rng *rng;
    tern_error err;
} world;

static world open_world(void)
{
    world w = {0};
    w.device = tern_device_open("cpu", &w.err);
    w.scope = tern_scope_new(w.device, NULL, &w.err);
    w.rng = tern_rng_new(3, &w.err);
    assert_ok(w.err);
    return w;
}

static void close_world(world *w)
{
    assert_ok(w->err);
    tern_rng_free(w->rng);
    tern_scope_free(w->scope);
    tern_device_close(w->device);
}

/* ---- two names ---- */

static tern_module *tied_net(world *w)
{
    tern_module *net = tern_sequential_new(&w->err);
    tern_module *first = tern_module_add(net, "0", tern_linear_new(3, 3, NULL, w->rng, &w->err), &w->err);
    tern_module *second = tern_module_add(net, "1", tern_linear_new(3, 3, NULL, w->rng, &w->err), &w->err);
    tern_parameter_share(second, "weight", tern_state_find(first, "weight"), &w->err);
    return net;
}

static void a_shared_parameter_has_both_names(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *a = tied_net(&w), *b = tied_net(&w);
    tern_object *saved = tern_module_state_dict(a, &w.err);
    assert_int_equal(tern_object_count(saved), 4);
    assert_ptr_equal(tern_tensor_data(tern_object_to_tensor(tern_object_get(saved, "0.weight"))),
                     tern_tensor_data(tern_object_to_tensor(tern_object_get(saved, "1.weight"))));
    tern_module_state_dict_load(b, saved, NULL, NULL, &w.err);
    assert_memory_equal(tern_tensor_data(tern_state_find(a, "1.weight")),
                        tern_tensor_data(tern_state_find(b, "0.weight")), 9 * sizeof(float));
    /* The object follows the seal, which moves the tensors it refers to. Loading a tensor into itself does
     * nothing. */
    tern_optim *optim = tern_sgd_new(a, NULL, &w.err);
    assert_ptr_equal(tern_tensor_data(tern_object_to_tensor(tern_object_get(saved, "0.weight"))),
                     tern_tensor_data(tern_state_find(a, "0.weight")));
    tern_module_state_dict_load(a, saved, NULL, NULL, &w.err);
    tern_object_free(saved);
    tern_optim_free(optim);
    tern_module_free(a);
    tern_module_free(b);
    close_world(&w);
}

/* ---- sealed, with the kernels' packed copies ---- */

static void forward_of(world *w, tern_module *net, float out[16])
{
    float x[3 * 4 * 4];
    for (int i = 0; i < 48; i++) x[i] = (float)i / 48;
    tern_tensor *image = tern_tensor_from(w->scope, x, TERN_F32, 4, (int64_t[]){1, 3, 4, 4});
    tern_tensor *y = tern_forward(net, w->scope, image);
    tern_tensor_read(tern_mean_dims(w->scope, y, 2, (int[]){2, 3}, false), out, 16 * sizeof(float), &w->err);
    tern_scope_end(w->scope, &w->err);
}

static void packed_copies_are_made_anew(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *a = tern_conv2d_new(3, 16, 3, 3, NULL, w.rng, &w.err);
    tern_module *b = tern_conv2d_new(3, 16, 3, 3, NULL, w.rng, &w.err);
    float want[16], before[16], got[16];
    forward_of(&w, a, want);
    for (int i = 0; i < 3; i++) forward_of(&w, b, before);
    assert_memory_not_equal(want, before, sizeof(want));
    tern_object *saved = tern_module_state_dict(a, &w.err);
    tern_module_state_dict_load(b, saved, NULL, NULL, &w.err);
    forward_of(&w, b, got);
    assert_memory_equal(want, got, sizeof(want));
    tern_object_free(saved);
    tern_module_free(a);
    tern_module_free(b);
    close_world(&w);
}

/* ---- views ---- */

/* The same values with other strides and in another dtype. */
static void strides_and_dtypes_do_not_matter(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = tern_sequential_new(&w.err);
    tern_tensor *own = tern_parameter_add(net, "w", TERN_F32, 2, (int64_t[]){2, 3}, &w.err);
    tern_tensor *scalar = tern_buffer_add(net, "n", TERN_I64, 0, NULL, &w.err);
    double columns[6] = {1, 4, 2, 5, 3, 6};
    int32_t old = 7;
    tern_tensor *turned = tern_tensor_wrap(columns, TERN_F64, 2, (int64_t[]){2, 3}, NULL, NULL, &w.err);
    tern_tensor *one = tern_tensor_wrap(&old, TERN_I32, 1, (int64_t[]){1}, NULL, NULL, &w.err);
    turned->view.stride[0] = 1;
    turned->view.stride[1] = 2;
    tern_object *given = tern_object_dict(&w.err);
    tern_object_set(given, "w", tern_object_tensor(turned, &w.err), &w.err);
    tern_object_set(given, "n", tern_object_tensor(one, &w.err), &w.err);
    tern_module_state_dict_load(net, given, NULL, NULL, &w.err);
    assert_memory_equal(tern_tensor_data(own), ((float[]){1, 2, 3, 4, 5, 6}), 6 * sizeof(float));
    assert_true(tern_item(scalar) == 7);
    tern_object_free(given);
    tern_tensor_free(turned);
    tern_tensor_free(one);
    tern_module_free(net);
    close_world(&w);
}

/* Integers wrap around, as in PyTorch. */
static void integers_of_other_sizes(void **state)
{
    (void)state;
    world w = open_world();
    const int64_t three = 3;
    tern_module *net = tern_sequential_new(&w.err);
    tern_tensor *bytes = tern_buffer_add(net, "bytes", TERN_I8, 1, &three, &w.err);
    tern_tensor *shorts = tern_buffer_add(net, "shorts", TERN_I16, 1, &three, &w.err);
    int64_t given[3] = {-129, 200, 65535};
    tern_tensor *wide = tern_tensor_wrap(given, TERN_I64, 1, &three, NULL, NULL, &w.err);
    tern_object *loaded = tern_object_dict(&w.err);
    tern_object_set(loaded, "bytes", tern_object_tensor(wide, &w.err), &w.err);
    tern_object_set(loaded, "shorts", tern_object_tensor(wide, &w.err), &w.err);
    tern_module_state_dict_load(net, loaded, NULL, NULL, &w.err);
    assert_ok(w.err);
    assert_memory_equal(tern_tensor_data(bytes), ((int8_t[]){127, -56, -1}), 3);
    assert_memory_equal(tern_tensor_data(shorts), ((int16_t[]){-129, 200, -1}), 6);
    tern_object *saved = tern_module_state_dict(net, &w.err);
    assert_int_equal(tern_tensor_dtype(tern_object_to_tensor(tern_object_get(saved, "bytes"))), TERN_I8);
    assert_int_equal(tern_tensor_dtype(tern_object_to_tensor(tern_object_get(saved, "shorts"))), TERN_I16);
    tern_object_free(saved);
    tern_object_free(loaded);
    tern_tensor_free(wide);
    tern_module_free(net);
    close_world(&w);
}

/* ---- many names ---- */

static void long_lists_are_cut(void **state)
{
    (void)state;
    world w = open_world();
    tern_error err = {0};
    tern_module *net = tern_sequential_new(&w.err);
    for (int i = 0; i < 300; i++)
        tern_sequential_add(net, tern_linear_new(1, 1, NULL, w.rng, &w.err), &w.err);
    tern_object *empty = tern_object_dict(&w.err), *report = NULL;
    assert_int_equal(tern_module_state_dict_load(net, empty, NULL, &report, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.text, "Missing key(s) in state_dict: \"0.weight\", \"0.bias\", "));
    assert_non_null(strstr(err.text, " more."));
    assert_int_equal(tern_object_count(tern_object_get(report, "missing_keys")), 600);
    tern_object_free(report);
    /* Both lists in the error have at least one name. */
    tern_object *other = tern_object_dict(&w.err);
    for (int i = 0; i < 60; i++) {
        char name[32];
        snprintf(name, sizeof(name), "blocks.%d.weight", i);
        tern_object_set(other, name, tern_object_int(i, &w.err), &w.err);
    }
    err = (tern_error){0};
    assert_int_equal(tern_module_state_dict_load(net, other, NULL, NULL, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.text, "Missing key(s) in state_dict: \"0.weight\", \"0.bias\", "));
    assert_non_null(
        strstr(err.text, "Unexpected key(s) in state_dict: \"blocks.0.weight\", \"blocks.1.weight\""));
    tern_object_free(other);
    tern_object_free(empty);
    tern_module_free(net);
    close_world(&w);
}

/* A model whose own names begin with "module." keeps them. */
static void a_child_named_module(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = tern_sequential_new(&w.err);
    tern_module_add(net, "module", tern_linear_new(2, 2, NULL, w.rng, &w.err), &w.err);
    tern_object *saved = tern_module_state_dict(net, &w.err);
    assert_int_equal(tern_module_state_dict_load(net, saved, NULL, NULL, &w.err), TERN_OK);
    tern_object_free(saved);
    tern_module_free(net);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_parameter_has_both_names),
        cmocka_unit_test(packed_copies_are_made_anew),
        cmocka_unit_test(strides_and_dtypes_do_not_matter),
        cmocka_unit_test(integers_of_other_sizes),
        cmocka_unit_test(long_lists_are_cut),
        cmocka_unit_test(a_child_named_module),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
