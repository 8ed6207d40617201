/* test_sequential.c - a Sequential computes a layer and the ReLU after it as one operation: the kernels that
 * run, that the bits are those of two separate calls, and when the calls stay separate. */
#include "kernels/batch_norm.h"
#include "kernels/matmul.h"
#include "nn/nn.h"
#include "ops/world.h"

#include <math.h>
#include <string.h>

#define ROWS  7
#define WIDTH 33

typedef struct tally {
    tern__kernel_observer kernels; /* first: the observer is cast to the counter */
    tern__observer calls;
    int relus, fused, called;
} tally;

static void ran(tern__kernel_observer *observer, const tern__call *call)
{
    tally *t = (tally *)observer;
    bool product = call->kernel == TERN__MATMUL && tern__matmul_has_relu(call);
    const tern__batch_norm_attr *norm = call->attr;
    t->relus += call->kernel == TERN__RELU;
    t->fused += product || (call->kernel == TERN__BATCH_NORM && norm->relu);
}

static void called(tern__observer *observer, const tern_module *module, const tern_tensor *y)
{
    (void)module, (void)y;
    ((tally *)((char *)observer - offsetof(tally, calls)))->called++;
}

/* A linear layer or a batch norm, a ReLU, and a linear layer. */
static tern_module *make(world *w, bool norm)
{
    tern_module *net = tern_sequential_new(&w->err);
    tern_module *first = norm ? tern_batch_norm1d_new(WIDTH, NULL, &w->err)
                              : tern_linear_new(WIDTH, WIDTH, NULL, w->rng, &w->err);
    tern_sequential_add(net, first, &w->err);
    tern_sequential_add(net, tern_relu_new(&w->err), &w->err);
    tern_sequential_add(net, tern_linear_new(WIDTH, 5, NULL, w->rng, &w->err), &w->err);
    assert_ok(w->err);
    return net;
}

/* The values and gradients of a step, including NaN. */
typedef struct results {
    float y[ROWS * 5], grad[WIDTH * WIDTH], last[5 * WIDTH];
} results;

static void read_grad(world *w, const tern_module *net, const char *name, float *to)
{
    tern_tensor *grad = tern_grad_get(tern_state_find(net, name));
    assert_int_equal(tern_tensor_read(grad, to, 4 * (size_t)tern_tensor_count(grad), &w->err), TERN_OK);
}

static results step(world *w, tern_module *net, float special)
{
    results r = {{0}, {0}, {0}};
    float x[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)(i * 37 % 101 - 50) / 25;
    x[2 * WIDTH + 3] = special;
    tern_tensor *in = tern_tensor_from(w->scope, x, TERN_F32, 2, (int64_t[]){ROWS, WIDTH});
    tern_tensor *y = tern_forward(net, w->scope, in);
    tern_tensor_read(y, r.y, sizeof(r.y), &w->err);
    tern_backward(w->scope, tern_sum(w->scope, tern_mul(w->scope, y, y)));
    read_grad(w, net, "0.weight", r.grad);
    read_grad(w, net, "2.weight", r.last);
    assert_int_equal(tern_scope_end(w->scope, &w->err), TERN_OK);
    tern_zero_grad(net);
    return r;
}

static tally counted(world *w, tern_module *net, float special, bool observed, results *r)
{
    tally t = {.kernels = {.ran = ran}, .calls = {called}};
    w->device->observer = &t.kernels;
    w->scope->observer = observed ? &t.calls : NULL;
    *r = step(w, net, special);
    w->device->observer = NULL;
    w->scope->observer = NULL;
    return t;
}

static void one_operation_with_the_same_bits(void **state)
{
    (void)state;
    static const float specials[] = {1, 0, -3e4f, INFINITY, NAN};
    for (int norm = 0; norm < 2; norm++) {
        world w = open_world();
        tern_module *net = make(&w, norm);
        for (size_t i = 0; i < TERN__COUNT(specials); i++) {
            results together, apart;
            tally t = counted(&w, net, specials[i], false, &together);
            assert_int_equal(t.relus, 0);
            assert_int_equal(t.fused, 1);
            assert_int_equal(t.called, 0);
            t = counted(&w, net, specials[i], true, &apart);
            assert_int_equal(t.relus, 1);
            assert_int_equal(t.fused, 0);
            assert_int_equal(t.called, 4);
            assert_memory_equal(&together, &apart, sizeof(apart));
            assert_true(!isnan(specials[i]) || isnan(apart.y[2 * 5]));
        }
        tern_module_free(net);
        close_world(&w);
    }
}

/* The forward of a layer or a ReLU may have been replaced by another one, or amp may have wrapped either
 * before it was added. */
static tern_tensor *twice(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)module;
    return tern_add(s, tern_relu(s, x), tern_relu(s, x));
}

static void what_has_been_changed_is_called_apart(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        bool child = round % 2, by_amp = round / 2;
        world w = open_world();
        tern_module *net = make(&w, false);
        tern__module_tree *tree = child ? net->tree->children->next : net->tree->children;
        if (by_amp)
            tree->precision.set = true;
        else
            tree->module->forward = twice;
        tern_tensor *x = tern_full(w.scope, TERN_F32, 2, (int64_t[]){ROWS, WIDTH}, 1);
        tally t = {.kernels = {.ran = ran}};
        w.device->observer = &t.kernels;
        assert_non_null(tern_forward(net, w.scope, x));
        w.device->observer = NULL;
        assert_int_equal(t.fused, 0);
        assert_int_equal(t.relus, by_amp ? 1 : child ? 2 : 3);
        assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
        tern_module_free(net);
        close_world(&w);
    }
}

static void a_linear_with_its_relu_by_name(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *linear = tern_linear_new(3, 2, NULL, w.rng, &w.err), *relu = tern_relu_new(&w.err);
    float want[8], got[8];
    for (int is_relu = 0; is_relu < 2; is_relu++) {
        tern_tensor *x = tern_full(w.scope, TERN_F32, 2, (int64_t[]){4, 3}, -1.5);
        tern_tensor *y = tern_forward(linear, w.scope, x);
        tern_tensor_read(is_relu ? tern_relu(w.scope, y) : y, want, sizeof(want), &w.err);
        y = tern_linear_act_forward(linear, w.scope, x, is_relu);
        tern_tensor_read(y, got, sizeof(got), &w.err);
        assert_memory_equal(got, want, sizeof(want));
    }
    expect_error(&w, tern_linear_act_forward(relu, w.scope, zeros1(&w, TERN_F32, 3), true),
                 "tern_linear_act_forward", TERN_E_INVALID,
                 "expected a linear with its own forward, got relu");
    expect_error(&w, tern_linear_act_forward(linear, w.scope, zeros1(&w, TERN_F32, 4), true), "tern_linear",
                 TERN_E_SHAPE, "linear: weight is (2, 3) but input is (4)");
    expect_error(&w,
                 tern_linear_act(w.scope, zeros1(&w, TERN_I64, 3),
                                 tern_full(w.scope, TERN_I64, 2, (int64_t[]){2, 3}, 1), NULL, true),
                 "tern_linear", TERN_E_DTYPE, "linear: expected floating point before a relu, got i64");
    tern_module_free(linear);
    tern_module_free(relu);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_operation_with_the_same_bits),
        cmocka_unit_test(what_has_been_changed_is_called_apart),
        cmocka_unit_test(a_linear_with_its_relu_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
