/* test_share.c - one parameter under several names: state dict, seal, gradients, optimizers, clipping,
 * averages, and errors. tests/torch/test_share.py compares its training with PyTorch. */
#include "ledger.h"
#include "nn/nn.h"
#include "ops/world.h"

#include <math.h>
#include <string.h>

#define WORDS 7
#define SIZE  4

/* encoder -> inner -> decoder, a small language model; `tied`: decoder.weight = encoder.weight. */
static tern_module *new_model(world *w, bool tied)
{
    static const char *const names[] = {"encoder", "inner", "decoder"};
    tern_module *model = tern_sequential_new(&w->err);
    tern_module *parts[] = {tern_embedding_new(WORDS, SIZE, NULL, w->rng, &w->err),
                            tern_linear_new(SIZE, SIZE, NULL, w->rng, &w->err),
                            tern_linear_new(SIZE, WORDS, NULL, w->rng, &w->err)};
    for (int i = 0; i < 3; i++) tern_module_add(model, names[i], parts[i], &w->err);
    tern_tensor *weight = tern_state_find(model, "encoder.weight");
    if (tied) assert_ptr_equal(tern_parameter_share(parts[2], "weight", weight, &w->err), weight);
    assert_ok(w->err);
    return model;
}

static tern_module *part(tern_module *model, const char *name)
{
    const tern__module_tree *tree = model->tree->children;
    while (strcmp(tree->name, name) != 0) tree = tree->next;
    return tree->module;
}

static tern_tensor *backward(world *w, tern_module *model)
{
    static const int64_t words[] = {1, 3, 3, 0}, next[] = {3, 3, 0, 6};
    tern_tensor *x = tern_tensor_from(w->scope, words, TERN_I64, 1, (int64_t[]){4});
    tern_tensor *y = tern_tensor_from(w->scope, next, TERN_I64, 1, (int64_t[]){4});
    tern_tensor *loss = tern_cross_entropy(w->scope, tern_forward(model, w->scope, x), y, NULL);
    assert_int_equal(tern_backward(w->scope, loss), TERN_OK);
    return loss;
}

/* ---- one parameter ---- */

static void both_names_are_there_and_it_counts_once(void **state)
{
    (void)state;
    static const char *const names[] = {"encoder.weight", "inner.weight", "inner.bias", "decoder.weight",
                                        "decoder.bias"};
    world w = open_world();
    tern_module *model = new_model(&w, true);
    assert_int_equal(tern_state_count(model), 5);
    for (int i = 0; i < 5; i++) assert_string_equal(tern_state_get(model, i).name, names[i]);
    assert_ptr_equal(tern_state_get(model, 3).tensor, tern_state_get(model, 0).tensor);
    assert_int_equal(tern_module_parameter_count(model), 4);
    assert_int_equal(tern_module_element_count(model), WORDS * SIZE + SIZE * SIZE + SIZE + WORDS);
    assert_int_equal(tern_module_element_count(part(model, "decoder")), WORDS * SIZE + WORDS);
    tern__seal *seal = tern__module_seal(model, &w.err);
    assert_int_equal(seal->leaf_count, 4);
    assert_string_equal(seal->leaves[3]->name, "encoder.weight");
    assert_ptr_equal(seal->leaves[3], tern_state_find(model, "decoder.weight")->leaf);
    tern_module_free(model);
    close_world(&w);
}

/* Regardless of which of the two was the original. */
static void the_first_name_in_the_tree_counts(void **state)
{
    (void)state;
    char name[64];
    world w = open_world();
    tern_module *model = new_model(&w, false);
    tern_tensor *late = tern_state_find(model, "decoder.weight");
    tern_parameter_share(part(model, "encoder"), "weight", late, &w.err);
    assert_ok(w.err);
    late->leaf->describe(late->leaf, name, sizeof(name));
    assert_string_equal(name, "encoder.weight");
    tern__seal *seal = tern__module_seal(model, &w.err);
    assert_string_equal(seal->leaves[3]->name, "encoder.weight");
    assert_ptr_equal(seal->leaves[3], late->leaf);
    assert_non_null(backward(&w, model));
    tern_module_free(model);
    close_world(&w);
}

/* Both layers see values that are written, before and after the seal, and values from training. */
static void expect_values_in_both(bool has_third_name)
{
    float ones[WORDS * SIZE];
    for (int i = 0; i < WORDS * SIZE; i++) ones[i] = 1;
    world w = open_world();
    tern_module *model = new_model(&w, true);
    if (has_third_name)
        tern_parameter_share(part(model, "inner"), "third", tern_state_find(model, "encoder.weight"), &w.err);
    assert_ok(w.err);
    tern_tensor *weight = tern_state_find(model, "decoder.weight");
    for (int sealed = 0; sealed < 2; sealed++) {
        for (int i = 0; i < WORDS * SIZE; i++) ones[i] *= 2;
        tern_tensor_write(weight, ones, sizeof(ones), &w.err);
        tern_tensor *in = tern_tensor_from(w.scope, (int64_t[]){5}, TERN_I64, 1, (int64_t[]){1});
        tern_tensor *row = tern_forward(part(model, "encoder"), w.scope, in);
        assert_true(tern__view_get(&row->view, 0) == ones[0]);
        tern_tensor *bias = tern_state_find(model, "decoder.bias");
        tern_tensor *y = tern_forward(part(model, "decoder"), w.scope, row);
        double want = SIZE * (double)ones[0] * ones[0] + tern__view_get(&bias->view, 2);
        assert_true(fabs(tern__view_get(&y->view, 2) - want) < 1e-5);
        assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
        assert_non_null(tern__module_seal(model, &w.err));
    }
    tern_module_free(model);
    close_world(&w);
}

static void both_uses_see_its_values(void **state)
{
    (void)state;
    expect_values_in_both(false);
    expect_values_in_both(true);
}

static void gradients_add_up(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *tied = new_model(&w, true), *twin = new_model(&w, false);
    for (int i = 0; i < 5; i++)
        tern__view_copy(&tern_state_get(twin, i).tensor->view, &tern_state_get(tied, i).tensor->view, NULL);
    double loss = tern_item(backward(&w, tied));
    assert_true(loss == tern_item(backward(&w, twin)));
    const tern_tensor *sum = tern_grad_get(tern_state_find(tied, "decoder.weight"));
    const tern_tensor *in = tern_grad_get(tern_state_find(twin, "encoder.weight"));
    const tern_tensor *out = tern_grad_get(tern_state_find(twin, "decoder.weight"));
    for (int i = 0; i < WORDS * SIZE; i++) {
        double want = tern__view_get(&in->view, i) + tern__view_get(&out->view, i);
        assert_true(fabs(tern__view_get(&sum->view, i) - want) < 1e-6);
    }
    tern_module_free(tied);
    tern_module_free(twin);
    close_world(&w);
}

/* Through either layer, and through the tensor. */
static void freezing_reaches_both_uses(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = new_model(&w, true);
    tern_tensor *weight = tern_state_find(model, "encoder.weight");
    tern_module_requires_grad_set(part(model, "decoder"), false);
    assert_false(tern_requires_grad_get(weight));
    backward(&w, model);
    assert_null(tern_grad_get(weight));
    assert_int_equal(tern_requires_grad_set(weight, true, &w.err), TERN_OK);
    backward(&w, model);
    assert_non_null(tern_grad_get(weight));
    tern_zero_grad(part(model, "decoder"));
    assert_null(tern_grad_get(weight));
    tern_module_free(model);
    close_world(&w);
}

/* ---- functions that walk the tree ---- */

/* The norm counts it once, also from the layer that has it second. */
static void clipping_counts_it_once(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = new_model(&w, true);
    backward(&w, model);
    const char *const names[] = {"encoder.weight", "decoder.bias", "inner.weight", "inner.bias"};
    double squares[4] = {0};
    for (int i = 0; i < 4; i++) {
        const tern_tensor *grad = tern_grad_get(tern_state_find(model, names[i]));
        for (int64_t k = 0; k < tern_tensor_count(grad); k++)
            squares[i] += pow(tern__view_get(&grad->view, k), 2);
    }
    tern_tensor *whole = tern_clip_grad_norm(w.scope, model, 1e9, 2);
    tern_tensor *decoder = tern_clip_grad_norm(w.scope, part(model, "decoder"), 1e9, 2);
    assert_true(fabs(tern_item(whole) - sqrt(squares[0] + squares[1] + squares[2] + squares[3])) < 1e-6);
    assert_true(fabs(tern_item(decoder) - sqrt(squares[0] + squares[1])) < 1e-6);
    tern_module_free(model);
    close_world(&w);
}

static void an_average_moves_it_once(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = new_model(&w, true), *average = new_model(&w, true);
    tern_tensor *to = tern_state_find(average, "decoder.weight");
    double before = tern__view_get(&to->view, 9);
    double other = tern__view_get(&tern_state_find(model, "decoder.weight")->view, 9);
    tern_ema_update(w.scope, average, model, 0.5);
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    assert_true(fabs(tern__view_get(&to->view, 9) - (before + other) / 2) < 1e-6);
    tern_module_free(model);
    tern_module_free(average);
    close_world(&w);
}

/* An optimizer for a part of the model gets all of that part's parameters, whatever their names. */
static void an_optimizer_of_the_second_layer_moves_it(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *model = new_model(&w, true);
    tern_tensor *weight = tern_state_find(model, "encoder.weight"),
                *inner = tern_state_find(model, "inner.bias");
    tern_optim *opt = tern_sgd_new(part(model, "decoder"), NULL, &w.err);
    tern_optim_lr_set(opt, 0, 1);
    double before = tern__view_get(&weight->view, 12), kept = tern__view_get(&inner->view, 1);
    backward(&w, model);
    double grad = tern__view_get(&tern_grad_get(weight)->view, 12);
    tern_optim_step(opt, w.scope);
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    assert_true(grad != 0 && tern__view_get(&weight->view, 12) == (float)(before - grad));
    assert_true(tern__view_get(&inner->view, 1) == kept);
    tern_optim_free(opt);
    tern_module_free(model);
    close_world(&w);
}

/* ---- a new name ---- */

typedef struct scaled {
    tern_module base;
    tern_tensor *scale;
} scaled;

static tern_tensor *scaled_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern_mul(scope, x, ((scaled *)module)->scale);
}

/* Three names; the modules on the stack are released in order. */
static void a_module_of_ones_own_takes_a_new_name(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    world w = open_world();
    scaled nets[3];
    for (int i = 0; i < 3; i++) tern_module_init(&nets[i].base, "scaled", scaled_forward, &w.err);
    tern_module_add(&nets[0].base, "a", &nets[1].base, &w.err);
    tern_module_add(&nets[0].base, "b", &nets[2].base, &w.err);
    nets[1].scale = tern_parameter_add(&nets[1].base, "scale", TERN_F32, 1, (int64_t[]){1}, &w.err);
    nets[2].scale = tern_parameter_share(&nets[2].base, "factor", nets[1].scale, &w.err);
    nets[0].scale = tern_parameter_share(&nets[0].base, "whole", nets[2].scale, &w.err);
    assert_ok(w.err);
    assert_ptr_equal(nets[0].scale, nets[1].scale);
    assert_ptr_equal(tern_parameter_share(&nets[0].base, "whole", nets[1].scale, &w.err), nets[1].scale);
    assert_string_equal(tern_state_get(&nets[0].base, 0).name, "whole");
    assert_string_equal(tern_state_get(&nets[0].base, 2).name, "b.factor");
    assert_int_equal(tern_module_parameter_count(&nets[0].base), 1);
    *(float *)tern_tensor_data(nets[0].scale) = 3;
    tern_tensor *x = tern_tensor_from(w.scope, (float[]){2}, TERN_F32, 1, (int64_t[]){1});
    for (int i = 0; i < 3; i++) x = tern_forward(&nets[i].base, w.scope, x);
    assert_int_equal(tern_backward(w.scope, tern_sum(w.scope, x)), TERN_OK);
    assert_true(tern_item(x) == 54 && tern_item(tern_grad_get(nets[2].scale)) == 54); /* 2 s^3, 6 s^2 */
    tern_module_release(&nets[0].base);
    close_world(&w);
    ledger_close(&books);
}

/* ---- errors ---- */

static void expect(tern_error *err, const void *result, int code, const char *text)
{
    assert_null(result);
    assert_string_equal(err->text, text);
    assert_int_equal(err->code, code);
    *err = (tern_error){0};
}

static void what_is_refused(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    world w = open_world();
    tern_error *err = &w.err;
    tern_module *model = new_model(&w, true), *other = new_model(&w, false);
    tern_module *decoder = part(model, "decoder"), *inner = part(model, "inner");
    tern_tensor *weight = tern_state_find(model, "encoder.weight"),
                *bias = tern_state_find(model, "inner.bias");
    tern_tensor *seen = tern_buffer_add(inner, "seen", TERN_F32, 1, (int64_t[]){SIZE}, err);
    expect(err, tern_parameter_share(inner, "weight", weight, err), TERN_E_SHAPE,
           "\"weight\" of linear is (4, 4) of f32, the parameter is (7, 4) of f32");
    expect(err, tern_parameter_share(inner, "seen", bias, err), TERN_E_INVALID,
           "\"seen\" of linear is a buffer");
    expect(err, tern_parameter_share(inner, "more", seen, err), TERN_E_INVALID,
           "\"more\": expected a module and a parameter");
    expect(err, tern_parameter_share(NULL, "weight", weight, err), TERN_E_INVALID,
           "\"weight\": expected a module and a parameter");
    expect(err, tern_parameter_share(inner, "a.b", bias, err), TERN_E_INVALID,
           "\"a.b\" is no name: expected at least one character, no dot");
    expect(err, tern_parameter_share(model, "inner", bias, err), TERN_E_INVALID,
           "sequential already has a \"inner\"");
    expect(err, tern_parameter_share(decoder, "weight", bias, err), TERN_E_STATE,
           "\"weight\" of linear is a shared parameter already");
    expect(
        err, tern_parameter_share(decoder, "weight", tern_state_find(other, "encoder.weight"), err),
        TERN_E_INVALID,
        "\"weight\" of linear would share a parameter of another tree: add both modules to the model first");
    assert_non_null(tern__module_seal(model, err));
    expect(err, tern_parameter_share(inner, "again", bias, err), TERN_E_STATE,
           "\"again\" cannot be added to linear after its first backward, ddp or optimizer: "
           "build the whole model first");
    books.refuse_at = atomic_load(&books.requests) + 1;
    assert_null(
        tern_parameter_share(part(other, "inner"), "again", tern_state_find(other, "inner.bias"), err));
    assert_int_equal(err->code, TERN_E_MEMORY);
    tern_module_free(model);
    tern_module_free(other);
    close_world(&w);
    ledger_close(&books);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_names_are_there_and_it_counts_once),
        cmocka_unit_test(the_first_name_in_the_tree_counts),
        cmocka_unit_test(both_uses_see_its_values),
        cmocka_unit_test(gradients_add_up),
        cmocka_unit_test(freezing_reaches_both_uses),
        cmocka_unit_test(clipping_counts_it_once),
        cmocka_unit_test(an_average_moves_it_once),
        cmocka_unit_test(an_optimizer_of_the_second_layer_moves_it),
        cmocka_unit_test(a_module_of_ones_own_takes_a_new_name),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
