/* test_backward.c - backward: errors, accumulation, and a net with a shortcut compared with finite
 * differences. */
#include "autograd/autograd.h"
#include "nn/nn.h"
#include "ops/world.h"

#include <math.h>
#include <string.h>

/* Two parameters of two elements. */
typedef struct pair {
    world w;
    tern_module base;
    tern_tensor *a, *b;
} pair;

static tern_tensor *new_parameter(pair *p, const char *name, const double *values)
{
    tern_tensor *tensor = tern_parameter_add(&p->base, name, TERN_F64, 1, (int64_t[]){2}, &p->w.err);
    tern_tensor_write(tensor, values, 2 * sizeof(*values), &p->w.err);
    return tensor;
}

static void open_pair(pair *p)
{
    p->w = open_world();
    tern_module_init(&p->base, "pair", NULL, &p->w.err);
    p->a = new_parameter(p, "a", (double[]){2, 3});
    p->b = new_parameter(p, "b", (double[]){5, 7});
    assert_ok(p->w.err);
}

static void close_pair(pair *p)
{
    tern_module_release(&p->base);
    close_world(&p->w);
}

static void expect_grad(const tern_tensor *parameter, double first, double second)
{
    double got[2];
    assert_int_equal(tern_tensor_read(tern_grad_get(parameter), got, sizeof(got), NULL), TERN_OK);
    assert_true(got[0] == first && got[1] == second);
}

static void expect_failure(pair *p, int code, const char *text)
{
    const tern_error *err = tern_scope_error(p->w.scope);
    assert_string_equal(err->text, text);
    assert_int_equal(err->code, code);
    assert_string_equal(err->func, "tern_backward");
    assert_int_equal(tern_scope_end(p->w.scope, NULL), code);
}

static void end_well(pair *p)
{
    tern_scope_end(p->w.scope, &p->w.err);
    assert_ok(p->w.err);
}

/* ---- errors ---- */

static void a_loss_of_several_elements(void **state)
{
    (void)state;
    pair p;
    open_pair(&p);
    assert_int_equal(tern_backward(p.w.scope, tern_mul(p.w.scope, p.a, p.b)), TERN_E_SHAPE);
    expect_failure(&p, TERN_E_SHAPE, "the loss has shape (2), but backward starts from one element");
    assert_null(tern_grad_get(p.a));
    close_pair(&p);
}

static void a_loss_without_parameters(void **state)
{
    (void)state;
    pair p;
    open_pair(&p);
    tern_scope *s = p.w.scope;
    tern_tensor *x = tern_tensor_from(s, NULL, TERN_F64, 1, (int64_t[]){2});
    assert_int_equal(tern_backward(s, tern_sum(s, x)), TERN_E_STATE);
    expect_failure(&p, TERN_E_STATE,
                   "the loss depends on nothing that wants a gradient, or gradients were off");
    tern_grad_enabled_set(s, false);
    assert_int_equal(tern_backward(s, tern_sum(s, p.a)), TERN_E_STATE);
    expect_failure(&p, TERN_E_STATE,
                   "the loss depends on nothing that wants a gradient, or gradients were off");
    assert_false(tern_grad_enabled_set(s, true)); /* the end of a step does not enable them again */
    close_pair(&p);
}

static void the_same_graph_twice(void **state)
{
    (void)state;
    pair p;
    open_pair(&p);
    tern_scope *s = p.w.scope;
    tern_tensor *product = tern_mul(s, p.a, p.b), *loss = tern_sum(s, product);
    assert_int_equal(tern_backward(s, loss), TERN_OK);
    assert_int_equal(tern_backward(s, loss), TERN_E_STATE);
    expect_failure(&p, TERN_E_STATE,
                   "backward has already gone through this sum: its data is recycled; compute it again or "
                   "add the losses and call backward once");
    tern_zero_grad(&p.base);
    product = tern_mul(s, p.a, p.b);
    tern_tensor *first = tern_sum(s, product), *second = tern_mean(s, product);
    assert_int_equal(tern_backward(s, first), TERN_OK);
    assert_int_equal(tern_backward(s, second), TERN_E_STATE);
    expect_failure(&p, TERN_E_STATE,
                   "backward has already gone through this mul: its data is recycled; compute it again or "
                   "add the losses and call backward once");
    expect_grad(p.a, 5, 7); /* from the first one; the second added nothing */
    assert_int_equal(p.a->leaf->pending, 0);
    tern_zero_grad(&p.base);
    assert_int_equal(tern_backward(s, tern_sum(s, tern_mul(s, p.a, p.b))), TERN_OK);
    expect_grad(p.a, 5, 7);
    end_well(&p);
    close_pair(&p);
}

/* ---- accumulation ---- */

static void two_losses_with_graphs_of_their_own(void **state)
{
    (void)state;
    pair p;
    open_pair(&p);
    tern_scope *s = p.w.scope;
    tern_tensor *first = tern_sum(s, tern_mul(s, p.a, p.b)), *second = tern_mean(s, p.a);
    assert_int_equal(tern_backward(s, second), TERN_OK); /* the older part of the tape comes later */
    expect_grad(p.a, 0.5, 0.5);
    assert_null(tern_grad_get(p.b));
    assert_int_equal(tern_backward(s, first), TERN_OK);
    expect_grad(p.a, 5.5, 7.5);
    expect_grad(p.b, 2, 3);
    end_well(&p);
    close_pair(&p);
}

static void a_parameter_used_twice(void **state)
{
    (void)state;
    pair p;
    open_pair(&p);
    tern_scope *s = p.w.scope;
    tern_tensor *cube = tern_mul(s, tern_mul(s, p.a, p.a), p.a);
    assert_int_equal(tern_backward(s, tern_sum(s, tern_add(s, cube, p.a))), TERN_OK);
    expect_grad(p.a, 3 * 4 + 1, 3 * 9 + 1);
    assert_int_equal(p.a->leaf->pending, 0);
    end_well(&p);
    close_pair(&p);
}

static void gradients_add_up_until_they_are_zeroed(void **state)
{
    (void)state;
    pair p;
    open_pair(&p);
    tern_scope *s = p.w.scope;
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(tern_backward(s, tern_sum(s, tern_mul(s, p.a, p.b))), TERN_OK);
        expect_grad(p.a, 5 * i, 7 * i);
        end_well(&p);
    }
    const tern_tensor *before = tern_grad_get(p.a);
    tern_zero_grad(&p.base);
    assert_null(tern_grad_get(p.a));
    assert_null(tern_grad_get(p.b));
    assert_int_equal(tern_backward(s, tern_mean(s, p.a)), TERN_OK);
    expect_grad(p.a, 0.5, 0.5);
    assert_ptr_equal(tern_grad_get(p.a), before);
    assert_null(tern_grad_get(p.b)); /* unused in this step */
    assert_null(tern_grad_get(NULL));
    end_well(&p);
    close_pair(&p);
}

/* Branches that the loss does not depend on are not computed, and ops without a parameter are not recorded.
 */
static void a_branch_that_the_loss_does_not_use(void **state)
{
    (void)state;
    pair p;
    open_pair(&p);
    tern_scope *s = p.w.scope;
    tern_tensor *unused = tern_sum(s, tern_mul(s, p.b, p.b)), *loss = tern_sum(s, p.a);
    tern_tensor *constant = tern_tensor_from(s, NULL, TERN_F64, 1, (int64_t[]){2});
    assert_null(tern_mul(s, constant, constant)->node);
    assert_int_equal(tern_backward(s, loss), TERN_OK);
    assert_null(tern_grad_get(p.b));
    assert_int_equal(tern_backward(s, unused), TERN_OK);
    expect_grad(p.b, 10, 14);
    expect_grad(p.a, 1, 1);
    end_well(&p);
    close_pair(&p);
}

/* ---- a net with a shortcut ---- */

enum { N = 3, D = 4 };

typedef struct residual {
    tern_module base;
    tern_tensor *x, *w1, *w2, *w3;
} residual;

static tern_tensor *fill(residual *net, const char *name, int rows, tern_rng *rng, tern_error *err)
{
    double values[D * D];
    tern_tensor *tensor = tern_parameter_add(&net->base, name, TERN_F64, 2, (int64_t[]){rows, D}, err);
    for (int i = 0; i < rows * D; i++) values[i] = (double)tern_rng_u32(rng) * 0x1p-31 - 1;
    tern_tensor_write(tensor, values, sizeof(*values) * (size_t)(rows * D), err);
    return tensor;
}

/* x goes into two branches; their sum goes into a third one, beside x. */
static tern_tensor *residual_loss(residual *net, tern_scope *s)
{
    tern_tensor *branch = tern_linear(s, tern_relu(s, tern_linear(s, net->x, net->w1, NULL)), net->w2, NULL);
    tern_tensor *y = tern_add(s, tern_relu(s, tern_add(s, branch, net->x)), tern_mul(s, branch, net->x));
    tern_tensor *z = tern_add(s, y, tern_linear(s, y, net->w3, NULL));
    return tern_mean(s, tern_mul(s, z, z));
}

static double loss_at(residual *net, tern_scope *s, tern_tensor *moved, int i, double by)
{
    double values[D * D];
    size_t bytes = sizeof(*values) * (size_t)tern_tensor_count(moved);
    tern_tensor_read(moved, values, bytes, NULL);
    double was = values[i];
    values[i] += by;
    tern_tensor_write(moved, values, bytes, NULL);
    double loss = tern_item(residual_loss(net, s));
    values[i] = was;
    tern_tensor_write(moved, values, bytes, NULL);
    tern_scope_end(s, NULL);
    return loss;
}

static void a_shortcut_against_finite_differences(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu:reference", &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    tern_rng *rng = tern_rng_new(11, &err);
    residual net;
    tern_module_init(&net.base, "residual", NULL, &err);
    net.x = fill(&net, "x", N, rng, &err);
    net.w1 = fill(&net, "w1", D, rng, &err);
    net.w2 = fill(&net, "w2", D, rng, &err);
    net.w3 = fill(&net, "w3", D, rng, &err);
    tern_backward(s, residual_loss(&net, s));
    tern_scope_end(s, &err);
    assert_ok(err);
    tern_tensor *const all[] = {net.x, net.w1, net.w2, net.w3};
    const double h = 1e-6;
    double grad[D * D], steepest = 0;
    for (int t = 0; t < 4; t++) {
        int count = (int)tern_tensor_count(all[t]);
        tern_tensor_read(tern_grad_get(all[t]), grad, sizeof(*grad) * (size_t)count, &err);
        assert_ok(err);
        for (int i = 0; i < count; i++) {
            double slope = (loss_at(&net, s, all[t], i, h) - loss_at(&net, s, all[t], i, -h)) / (2 * h);
            assert_true(fabs(slope - grad[i]) < 1e-8 * fmax(1, fabs(slope)));
            steepest = fmax(steepest, fabs(slope));
        }
    }
    assert_true(steepest > 0.1);
    tern_module_release(&net.base);
    tern_rng_free(rng);
    tern_scope_free(s);
    tern_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loss_of_several_elements),
        cmocka_unit_test(a_loss_without_parameters),
        cmocka_unit_test(the_same_graph_twice),
        cmocka_unit_test(two_losses_with_graphs_of_their_own),
        cmocka_unit_test(a_parameter_used_twice),
        cmocka_unit_test(gradients_add_up_until_they_are_zeroed),
        cmocka_unit_test(a_branch_that_the_loss_does_not_use),
        cmocka_unit_test(a_shortcut_against_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
