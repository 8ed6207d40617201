/* test_frozen.c - parameters that require no gradient when the tree is sealed have no state in an optimizer.
 * Once they require one, they are updated as parameters are that were never frozen and had no gradient. */
#include "optim/layers.h"

enum { FROZEN_LAYERS = 2 };

typedef tern_optim *(*make_optim)(tern_module *module, tern_error *err);

static tern_optim *make_adamw(tern_module *module, tern_error *err)
{
    return tern_adamw_new(module, NULL, err);
}

static tern_optim *make_sgd(tern_module *module, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.momentum = 0.5;
    return tern_sgd_new(module, &opts, err);
}

static tern_optim *make_lamb(tern_module *module, tern_error *err)
{
    return tern_lamb_new(module, NULL, err);
}

static void fill(bench *b)
{
    for (int i = 0; i < LAYERS; i++) {
        tern_tensor *both[] = {b->weight[i], b->bias[i]};
        for (int m = 0; m < 2; m++)
            for (int64_t k = 0; k < tern_tensor_count(both[m]); k++)
                tern__view_set(&both[m]->view, k, 0.25 * (double)(i + m + k % 4) - 0.5);
    }
}

static bench open_part(bool frozen)
{
    bench b = open_bench(true);
    fill(&b);
    for (int i = 0; i < FROZEN_LAYERS && frozen; i++) tern_module_requires_grad_set(b.layers[i], false);
    return b;
}

/* Gradients for the layers from `from` on. */
static void make_step(bench *b, tern_optim *optim, int from)
{
    for (int i = from; i < LAYERS; i++) {
        use(b, b->weight[i]);
        use(b, b->bias[i]);
    }
    step(b, optim);
}

static void expect_same_bits(const bench *a, const bench *b)
{
    for (int i = 0; i < tern_state_count(a->net); i++) {
        const tern__view *x = &tern_state_get(a->net, i).tensor->view,
                         *y = &tern_state_get(b->net, i).tensor->view;
        assert_memory_equal(x->data, y->data, tern__view_bytes(x));
    }
}

static void expect_same_state(tern_optim *a, tern_optim *b)
{
    tern_optim_state *one = tern_optim_state_gather(a, -1, NULL),
                     *other = tern_optim_state_gather(b, -1, NULL);
    assert_int_equal(tern_optim_state_count(one), tern_optim_state_count(other));
    for (int i = 0; i < tern_optim_state_count(one); i++) {
        const tern_optim_entry *x = &tern_optim_state_entries(one)[i],
                               *y = &tern_optim_state_entries(other)[i];
        assert_string_equal(x->parameter, y->parameter);
        assert_string_equal(x->name, y->name);
        assert_memory_equal(x->tensor->view.data, y->tensor->view.data, tern__view_bytes(&x->tensor->view));
    }
    tern_optim_state_free(one);
    tern_optim_state_free(other);
}

/* Returns how many of the seal's frozen ranges have state, of `*ranges`. */
static int frozen_blocks(const tern_optim *optim, int *ranges)
{
    int blocks = 0;
    *ranges = 0;
    for (int r = 0; r < optim->seal->range_count; r++) {
        *ranges += optim->seal->ranges[r].is_frozen;
        blocks += optim->seal->ranges[r].is_frozen && optim->state[0][r];
    }
    return blocks;
}

static void state_comes_with_the_first_gradient(void **state)
{
    make_optim make = (make_optim)*state;
    int ranges;
    bench a = open_part(true), b = open_part(false);
    tern_optim *of_a = make(a.net, &a.w.err), *of_b = make(b.net, &b.w.err);
    for (int i = 0; i < 3; i++) {
        make_step(&a, of_a, FROZEN_LAYERS);
        make_step(&b, of_b, FROZEN_LAYERS);
        assert_int_equal(frozen_blocks(of_a, &ranges), 0);
        assert_int_equal(ranges, 2); /* f32 and f64 */
        assert_true(tern_optim_state_bytes(of_a) < tern_optim_state_bytes(of_b));
        expect_same_bits(&a, &b);
        expect_same_state(of_a, of_b);
    }
    tern_module_requires_grad_set(a.layers[1], true);
    for (int i = 0; i < 3; i++) {
        make_step(&a, of_a, 1);
        make_step(&b, of_b, 1);
        assert_int_equal(frozen_blocks(of_a, &ranges), 1);
        expect_same_bits(&a, &b);
        expect_same_state(of_a, of_b);
    }
    tern_optim_free(of_a);
    tern_optim_free(of_b);
    close_bench(&a);
    close_bench(&b);
}

/* A state of parameters that are frozen where it is loaded. */
static void a_state_is_loaded_for_frozen_parameters(void **state)
{
    make_optim make = (make_optim)*state;
    bench a = open_part(false), b = open_part(true);
    tern_optim *of_a = make(a.net, &a.w.err), *of_b = make(b.net, &b.w.err);
    make_step(&a, of_a, 0);
    make_step(&a, of_a, 1);
    tern_object *dict = tern_optim_state_dict(of_a, -1, &a.w.err),
                *model = tern_module_state_dict(a.net, &a.w.err);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(tern_optim_state_dict_load(of_b, dict, &b.w.err), TERN_OK);
        assert_int_equal(tern_module_state_dict_load(b.net, model, NULL, NULL, &b.w.err), TERN_OK);
        expect_same_state(of_a, of_b);
        if (!again) make_step(&b, of_b, FROZEN_LAYERS);
    }
    tern_module_requires_grad_set(b.net, true);
    make_step(&a, of_a, 0);
    make_step(&b, of_b, 0);
    expect_same_bits(&a, &b);
    expect_same_state(of_a, of_b);
    tern_object_free(dict);
    tern_object_free(model);
    tern_optim_free(of_a);
    tern_optim_free(of_b);
    close_bench(&a);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(state_comes_with_the_first_gradient, (void *)make_adamw),
        cmocka_unit_test_prestate(state_comes_with_the_first_gradient, (void *)make_sgd),
        cmocka_unit_test_prestate(state_comes_with_the_first_gradient, (void *)make_lamb),
        cmocka_unit_test_prestate(a_state_is_loaded_for_frozen_parameters, (void *)make_adamw),
        cmocka_unit_test_prestate(a_state_is_loaded_for_frozen_parameters, (void *)make_lamb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
