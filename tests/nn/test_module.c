/* test_module.c - the module tree: names and order, ownership, errors, and where the seal puts the tensors.
 */
#include "ledger.h"
#include "nn/nn.h"
#include "ops/world.h"

#include <string.h>

typedef struct two_layers {
    tern_module base;
    tern_module *nn1, *nn2;
    tern_tensor *scale;
    int released;
} two_layers;

static tern_tensor *two_layers_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    two_layers *self = (two_layers *)module;
    tern_tensor *hidden = tern_relu(s, tern_forward(self->nn1, s, x));
    return tern_mul(s, tern_forward(self->nn2, s, hidden), self->scale);
}

static void two_layers_release(tern_module *module)
{
    ((two_layers *)module)->released++;
}

/* Registered in an order that is not the state dict's: child, buffer, parameter, child. */
static void two_layers_init(two_layers *self, world *w)
{
    self->released = 0;
    tern_module_init(&self->base, "two_layers", two_layers_forward, &w->err);
    self->base.release = two_layers_release;
    self->nn1 = tern_module_add(&self->base, "nn1", tern_linear_new(3, 5, NULL, w->rng, &w->err), &w->err);
    tern_buffer_add(&self->base, "seen", TERN_I64, 0, NULL, &w->err);
    self->scale = tern_parameter_add(&self->base, "scale", TERN_F32, 1, (int64_t[]){2}, &w->err);
    self->nn2 = tern_module_add(&self->base, "nn2", tern_linear_new(5, 2, NULL, w->rng, &w->err), &w->err);
    assert_ok(w->err);
}

static void expect_names(const tern_module *module, const char *const *names, int count)
{
    assert_int_equal(tern_state_count(module), count);
    for (int i = 0; i < count; i++) {
        assert_string_equal(tern_state_get(module, i).name, names[i]);
        assert_ptr_equal(tern_state_find(module, names[i]), tern_state_get(module, i).tensor);
    }
    assert_null(tern_state_get(module, count).name);
    assert_null(tern_state_get(module, -1).tensor);
    assert_null(tern_state_find(module, "nothing"));
}

/* ---- names ---- */

static void a_module_on_the_stack(void **state)
{
    (void)state;
    static const char *const names[] = {"scale", "seen", "nn1.weight", "nn1.bias", "nn2.weight", "nn2.bias"};
    ledger books = {0};
    ledger_open(&books);
    world w = open_world();
    two_layers net;
    two_layers_init(&net, &w);
    expect_names(&net.base, names, 6);
    for (int i = 0; i < 6; i++) assert_int_equal(tern_state_get(&net.base, i).is_buffer, i == 1);
    assert_int_equal(tern_module_parameter_count(&net.base), 5);
    assert_int_equal(tern_module_element_count(&net.base), 2 + 15 + 5 + 10 + 2);
    tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){4, 3});
    tern_tensor *loss = tern_sum(w.scope, tern_forward(&net.base, w.scope, x));
    assert_int_equal(tern_backward(w.scope, loss), TERN_OK);
    assert_non_null(tern_grad_get(net.scale));
    tern_module_release(&net.base);
    assert_int_equal(net.released, 1);
    tern_module_release(&net.base); /* nothing left to release */
    assert_int_equal(net.released, 1);
    close_world(&w);
    ledger_close(&books);
}

static void the_list_follows_the_tree_as_it_grows(void **state)
{
    (void)state;
    static const char *const names[] = {"0.weight", "2.weight", "2.bias", "3.0.weight"};
    world w = open_world();
    tern_linear_opts plain = tern_linear_defaults();
    plain.bias = false;
    tern_module *net = tern_sequential_new(&w.err), *inner = tern_sequential_new(&w.err);
    tern_sequential_add(net, tern_linear_new(2, 2, &plain, w.rng, &w.err), &w.err);
    expect_names(net, names, 1);
    tern_sequential_add(net, tern_relu_new(&w.err), &w.err);
    tern_sequential_add(net, tern_linear_new(2, 2, NULL, w.rng, &w.err), &w.err);
    expect_names(net, names, 3);
    tern_sequential_add(net, inner, &w.err);
    tern_sequential_add(inner, tern_linear_new(2, 2, &plain, w.rng, &w.err), &w.err);
    assert_ok(w.err);
    expect_names(net, names, 4);
    tern_module_free(net);
    tern_module_free(NULL);
    close_world(&w);
}

static void train_and_eval_reach_the_whole_tree(void **state)
{
    (void)state;
    world w = open_world();
    two_layers net;
    two_layers_init(&net, &w);
    assert_true(net.base.training && net.nn1->training && net.nn2->training);
    tern_eval(&net.base);
    assert_false(net.base.training || net.nn1->training || net.nn2->training);
    tern_train(net.nn2);
    assert_true(net.nn2->training && !net.nn1->training);
    tern_train(&net.base);
    assert_true(net.base.training && net.nn1->training && net.nn2->training);
    tern_module_release(&net.base);
    close_world(&w);
}

/* ---- errors ---- */

static void expect(tern_error *err, const void *result, const char *func, int code, const char *text)
{
    assert_null(result);
    assert_string_equal(err->text, text);
    assert_int_equal(err->code, code);
    assert_string_equal(err->func, func);
    *err = (tern_error){0};
}

static void names_that_cannot_be(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    world w = open_world();
    two_layers net;
    two_layers_init(&net, &w);
    tern_module *m = &net.base;
    tern_error *err = &w.err;
    int64_t one = 1;
    expect(err, tern_module_add(m, "nn1", tern_relu_new(err), err), "tern_module_add", TERN_E_INVALID,
           "two_layers already has a \"nn1\"");
    expect(err, tern_module_add(m, "scale", tern_relu_new(err), err), "tern_module_add", TERN_E_INVALID,
           "two_layers already has a \"scale\"");
    expect(err, tern_parameter_add(m, "seen", TERN_F32, 1, &one, err), "tern_parameter_add", TERN_E_INVALID,
           "two_layers already has a \"seen\"");
    expect(err, tern_buffer_add(m, "nn2", TERN_F32, 1, &one, err), "tern_buffer_add", TERN_E_INVALID,
           "two_layers already has a \"nn2\"");
    expect(err, tern_parameter_add(m, "a.b", TERN_F32, 1, &one, err), "tern_parameter_add", TERN_E_INVALID,
           "\"a.b\" is no name: expected at least one character, no dot");
    expect(err, tern_module_add(m, "", tern_relu_new(err), err), "tern_module_add", TERN_E_INVALID,
           "\"\" is no name: expected at least one character, no dot");
    expect(err, tern_parameter_add(m, "w\xff", TERN_F32, 1, &one, err), "tern_parameter_add", TERN_E_INVALID,
           "the name \"w\\xff\" is not UTF-8");
    expect(err, tern_module_add(m, "w\xff", tern_relu_new(err), err), "tern_module_add", TERN_E_INVALID,
           "the name \"w\\xff\" is not UTF-8");
    assert_int_equal(tern_state_count(m), 6);
    tern_module_release(m);
    close_world(&w);
    ledger_close(&books);
}

static void shapes_that_cannot_be(void **state)
{
    (void)state;
    world w = open_world();
    two_layers net;
    two_layers_init(&net, &w);
    tern_module *m = &net.base;
    tern_error *err = &w.err;
    const int64_t shape[7] = {1, 1, 1, 1, 1, 1, 1}, huge[2] = {(int64_t)1 << 31, (int64_t)1 << 31};
    expect(err, tern_parameter_add(m, "p", TERN_F32, 7, shape, err), "tern_parameter_add", TERN_E_RANGE,
           "ndim 7 is not in [0, 6]");
    expect(err, tern_buffer_add(m, "p", TERN_F32, 1, (int64_t[]){-3}, err), "tern_buffer_add", TERN_E_SHAPE,
           "dimension 0 is -3");
    expect(err, tern_parameter_add(m, "p", TERN_F32, 2, huge, err), "tern_parameter_add", TERN_E_SHAPE,
           "(2147483648, 2147483648) has too many elements");
    expect(err, tern_linear_new(0, 3, NULL, w.rng, err), "tern_linear_new", TERN_E_RANGE,
           "linear: expected at least 1 feature in and out, got 0 and 3");
    assert_null(tern_linear_new(3, 0, NULL, w.rng, NULL));
    assert_int_equal(tern_state_count(m), 6);
    tern_module_release(m);
    close_world(&w);
}

static void nothing_is_added_after_the_seal(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    world w = open_world();
    two_layers net;
    two_layers_init(&net, &w);
    tern_error *err = &w.err;
    int64_t one = 1;
    assert_non_null(tern__module_seal(net.nn1, err)); /* any module of the tree seals all of it */
    expect(err, tern_module_add(&net.base, "late", tern_relu_new(err), err), "tern_module_add", TERN_E_STATE,
           "\"late\" cannot be added to two_layers after its first backward, ddp or optimizer: "
           "build the whole model first");
    expect(err, tern_parameter_add(net.nn2, "late", TERN_F32, 1, &one, err), "tern_parameter_add",
           TERN_E_STATE,
           "\"late\" cannot be added to linear after its first backward, ddp or optimizer: "
           "build the whole model first");
    expect(err, tern_buffer_add(&net.base, "late", TERN_F32, 1, &one, err), "tern_buffer_add", TERN_E_STATE,
           "\"late\" cannot be added to two_layers after its first backward, ddp or optimizer: "
           "build the whole model first");
    tern_module *parent = tern_sequential_new(err);
    expect(err, tern_module_add(parent, "sealed", &net.base, err), "tern_module_add", TERN_E_STATE,
           "two_layers \"sealed\" has had a backward, ddp or optimizer already: build the whole model first");
    assert_int_equal(net.released, 1); /* handed over and refused, so it is released */
    tern_module_free(parent);
    close_world(&w);
    ledger_close(&books);
}

static void a_child_that_is_null(void **state)
{
    (void)state;
    world w = open_world();
    two_layers net;
    two_layers_init(&net, &w);
    tern_error *err = &w.err;
    expect(err, tern_module_add(&net.base, "x", NULL, err), "tern_module_add", TERN_E_INVALID,
           "child \"x\" is NULL");
    expect(err, tern_module_add(NULL, "x", tern_relu_new(err), err), "tern_module_add", TERN_E_INVALID,
           "the module that \"x\" is added to was never made");
    tern_error earlier = {.code = TERN_E_IO, .text = "earlier"};
    assert_null(tern_module_add(&net.base, "x", NULL, &earlier));
    assert_null(tern_module_add(&net.base, "x", tern_relu_new(err), &earlier)); /* which frees it */
    assert_null(tern_parameter_add(&net.base, "x", TERN_F32, 0, NULL, &earlier));
    assert_string_equal(earlier.text, "earlier");
    tern_module failed;
    tern_module_init(&failed, "failed", two_layers_forward, &earlier);
    assert_null(tern_module_add(&net.base, "x", &failed, NULL));
    expect(err, tern_parameter_add(&failed, "p", TERN_F32, 0, NULL, err), "tern_parameter_add",
           TERN_E_INVALID, "the module that \"p\" is added to was never made");
    tern_module_release(&failed);
    tern_module_release(&net.base);
    close_world(&w);
}

static void a_child_has_one_owner(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    world w = open_world();
    tern_error *err = &w.err;
    two_layers net;
    two_layers_init(&net, &w);
    tern_module *other = tern_sequential_new(err);
    expect(err, tern_module_add(other, "again", net.nn1, err), "tern_module_add", TERN_E_STATE,
           "linear \"again\" already belongs to a module");
    expect(err, tern_module_add(&net.base, "twice", net.nn1, err), "tern_module_add", TERN_E_STATE,
           "linear \"twice\" already belongs to a module");
    expect(err, tern_module_add(net.nn1, "up", &net.base, err), "tern_module_add", TERN_E_STATE,
           "two_layers \"up\" already belongs to a module");
    expect(err, tern_module_add(other, "self", other, err), "tern_module_add", TERN_E_STATE,
           "sequential \"self\" already belongs to a module");
    assert_int_equal(tern_state_count(&net.base), 6); /* the owner keeps it */
    tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){4, 3});
    assert_non_null(tern_forward(&net.base, w.scope, x));
    tern_module_free(other);
    tern_module_release(&net.base);
    close_world(&w);
    ledger_close(&books);
}

static void a_child_on_the_stack_is_released_with_its_parent(void **state)
{
    (void)state;
    world w = open_world();
    two_layers net;
    two_layers_init(&net, &w);
    tern_module *parent = tern_sequential_new(&w.err);
    assert_ptr_equal(tern_sequential_add(parent, &net.base, &w.err), &net.base);
    assert_string_equal(tern_state_get(parent, 0).name, "0.scale");
    tern_module_free(parent);
    assert_int_equal(net.released, 1);
    close_world(&w);
}

/* ---- the seal ---- */

static void the_seal_lines_everything_up(void **state)
{
    (void)state;
    world w = open_world();
    two_layers net;
    two_layers_init(&net, &w);
    tern_tensor *wide = tern_parameter_add(&net.base, "wide", TERN_F64, 1, (int64_t[]){3}, &w.err);
    const double thirds[3] = {1.0 / 3, 2.0 / 3, 1};
    tern_tensor_write(wide, thirds, sizeof(thirds), &w.err);
    tern_tensor_write(tern_state_find(&net.base, "seen"), (int64_t[]){77}, 8, &w.err);
    float before[5][15], after[15];
    static const char *const reverse[] = {"nn2.bias", "nn2.weight", "nn1.bias", "nn1.weight", "scale"};
    tern_tensor *tensor[5];
    for (int i = 0; i < 5; i++) {
        tensor[i] = tern_state_find(&net.base, reverse[i]);
        tern_tensor_read(tensor[i], before[i], 4 * (size_t)tern_tensor_count(tensor[i]), &w.err);
    }
    tern__seal *seal = tern__module_seal(&net.base, &w.err);
    assert_ok(w.err);
    assert_ptr_equal(tern__module_seal(net.nn2, &w.err), seal);
    assert_int_equal(seal->leaf_count, 6);
    assert_int_equal(seal->range_count, 2);
    const char *at = tensor[0]->view.data;
    for (int i = 0; i < 5; i++) {
        size_t bytes = 4 * (size_t)tern_tensor_count(tensor[i]);
        assert_ptr_equal(tensor[i]->view.data, at);
        assert_int_equal((uintptr_t)at % 64, 0);
        assert_int_equal(tern_tensor_read(tensor[i], after, bytes, &w.err), TERN_OK);
        assert_memory_equal(after, before[i], bytes);
        assert_string_equal(tensor[i]->leaf->name, reverse[i]);
        assert_int_equal((char *)tensor[i]->leaf->grad->view.data - seal->ranges[0].grads,
                         at - seal->ranges[0].params);
        assert_null(tern_grad_get(tensor[i]));
        at += tern__align_up(bytes, 64);
    }
    assert_int_equal(seal->ranges[1].dtype, TERN_F64);
    assert_memory_equal(wide->view.data, thirds, sizeof(thirds));
    assert_true(tern_item(tern_state_find(&net.base, "seen")) == 77);
    tern_module_release(&net.base);
    close_world(&w);
}

/* ---- errors name the layer ---- */

static void a_shape_error_names_layer_and_shapes(void **state)
{
    (void)state;
    world w = open_world();
    two_layers net;
    two_layers_init(&net, &w);
    tern_module *parent = tern_sequential_new(&w.err);
    tern_sequential_add(parent, &net.base, &w.err);
    for (int sealed = 0; sealed < 2; sealed++) {
        tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 2, (int64_t[]){64, 785});
        expect_error(&w, tern_forward(parent, w.scope, x), "tern_linear", TERN_E_SHAPE,
                     "linear \"0.nn1\": weight is (5, 3) but input is (64, 785)");
        x = tern_tensor_from(w.scope, NULL, TERN_F64, 2, (int64_t[]){64, 3});
        expect_error(&w, tern_forward(parent, w.scope, x), "tern_linear", TERN_E_DTYPE,
                     "linear \"0.nn1\": weight is f32 but input is f64");
        assert_non_null(tern__module_seal(parent, &w.err));
    }
    tern_module_free(parent);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_on_the_stack),
        cmocka_unit_test(the_list_follows_the_tree_as_it_grows),
        cmocka_unit_test(train_and_eval_reach_the_whole_tree),
        cmocka_unit_test(names_that_cannot_be),
        cmocka_unit_test(shapes_that_cannot_be),
        cmocka_unit_test(nothing_is_added_after_the_seal),
        cmocka_unit_test(a_child_that_is_null),
        cmocka_unit_test(a_child_has_one_owner),
        cmocka_unit_test(a_child_on_the_stack_is_released_with_its_parent),
        cmocka_unit_test(the_seal_lines_everything_up),
        cmocka_unit_test(a_shape_error_names_layer_and_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
