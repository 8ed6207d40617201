/* test_conv.c - errors of convolutions, the layer names in them, and memory. */
#include "world.h"

#include "kernels/kernel.h"

static void shapes_that_do_not_fit(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    expect_error(&w, tern_conv2d(s, zeros4(&w, 64, 1, 28, 28), zeros4(&w, 16, 3, 3, 3), NULL, NULL),
                 "tern_conv2d", TERN_E_SHAPE, "conv2d: weight is (16, 3, 3, 3) but input is (64, 1, 28, 28)");
    expect_error(&w, tern_conv2d(s, zeros1(&w, TERN_F32, 5), zeros4(&w, 16, 3, 3, 3), NULL, NULL),
                 "tern_conv2d", TERN_E_SHAPE, "conv2d: weight is (16, 3, 3, 3) but input is (5)");
    expect_error(&w, tern_conv2d(s, zeros4(&w, 2, 3, 5, 5), zeros1(&w, TERN_F32, 3), NULL, NULL),
                 "tern_conv2d", TERN_E_SHAPE, "conv2d: weight is (3) but input is (2, 3, 5, 5)");
    expect_error(
        &w, tern_conv2d(s, zeros4(&w, 2, 3, 5, 5), zeros4(&w, 4, 3, 3, 3), zeros1(&w, TERN_F32, 3), NULL),
        "tern_conv2d", TERN_E_SHAPE, "conv2d: weight is (4, 3, 3, 3) but bias is (3)");
    tern_conv2d_opts opts = tern_conv2d_defaults();
    opts.groups = 2;
    expect_error(&w, tern_conv2d(s, zeros4(&w, 2, 6, 5, 5), zeros4(&w, 5, 3, 3, 3), NULL, &opts),
                 "tern_conv2d", TERN_E_SHAPE,
                 "conv2d: weight is (5, 3, 3, 3) but input is (2, 6, 5, 5), in 2 groups");
    close_world(&w);
}

static void nothing_to_compute(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    tern_conv2d_opts opts = tern_conv2d_defaults();
    opts.dilation[1] = 3;
    opts.padding[0] = 1;
    expect_error(&w, tern_conv2d(s, zeros4(&w, 1, 1, 2, 6), zeros4(&w, 1, 1, 3, 3), NULL, &opts),
                 "tern_conv2d", TERN_E_SHAPE,
                 "conv2d: nothing to compute: weight is (1, 1, 3, 3), input (1, 1, 2, 6), padding (1, 0), "
                 "dilation (1, 3)");
    tern_tensor *none = tern_conv2d(s, zeros4(&w, 0, 1, 5, 5), zeros4(&w, 1, 1, 3, 3), NULL, NULL);
    assert_int_equal(tern_tensor_shape(none)[0], 0); /* the result of an empty batch */
    close_world(&w);
}

static void options_and_dtypes(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    tern_conv2d_opts opts = tern_conv2d_defaults();
    opts.stride[1] = 0;
    expect_error(&w, tern_conv2d(s, zeros4(&w, 1, 1, 3, 3), zeros4(&w, 1, 1, 3, 3), NULL, &opts),
                 "tern_conv2d", TERN_E_RANGE,
                 "conv2d: expected stride, dilation and groups of at least 1 and padding of at least 0, got "
                 "stride (1, 0), dilation (1, 1), groups 1, padding (0, 0)");
    opts = (tern_conv2d_opts){0};
    expect_error(&w, tern_conv2d(s, zeros4(&w, 1, 1, 3, 3), zeros4(&w, 1, 1, 3, 3), NULL, &opts),
                 "tern_conv2d", TERN_E_INVALID,
                 "options: size is 0; start from what the _defaults function returns");
    expect_error(
        &w, tern_conv2d(s, zeros4(&w, 1, 1, 3, 3), zeros4(&w, 1, 1, 3, 3), zeros1(&w, TERN_F64, 1), NULL),
        "tern_conv2d", TERN_E_DTYPE,
        "conv2d: expected one floating-point dtype, got weight f32, input f32, bias f64");
    expect_error(&w, tern_conv2d(s, zeros4(&w, 1, 1, 3, 3), NULL, NULL, NULL), "tern_conv2d", TERN_E_INVALID,
                 "conv2d: input 1 is NULL, and no earlier op has failed");
    close_world(&w);
}

static void channels_that_groups_do_not_divide(void **state)
{
    (void)state;
    world w = open_world();
    tern_conv2d_opts opts = tern_conv2d_defaults();
    opts.groups = 4;
    assert_null(tern_conv2d_new(16, 18, 3, 5, &opts, w.rng, &w.err));
    assert_int_equal(w.err.code, TERN_E_RANGE);
    assert_string_equal(w.err.text, "conv2d: expected at least 1 channel in and out, both divisible by the "
                                    "groups, and a kernel of at least 1; got 16 in, 18 out, 4 groups, "
                                    "kernel (3, 5)");
    w.err = (tern_error){0};
    assert_null(tern_conv2d_new(18, 16, 3, 3, &opts, w.rng, &w.err));
    assert_int_equal(w.err.code, TERN_E_RANGE);
    w.err = (tern_error){0};
    assert_null(tern_conv2d_new(16, 16, 0, 5, NULL, w.rng, &w.err));
    assert_int_equal(w.err.code, TERN_E_RANGE);
    close_world(&w);
}

/* net.layer1.0: a convolution; net.fc: a linear layer. */
static tern_module *nested(world *w, tern_module *net)
{
    tern_module_init(net, "net", NULL, &w->err);
    tern_module *layer = tern_module_add(net, "layer1", tern_sequential_new(&w->err), &w->err);
    tern_sequential_add(layer, tern_conv2d_new(3, 16, 3, 3, NULL, w->rng, &w->err), &w->err);
    tern_module *fc = tern_module_add(net, "fc", tern_linear_new(4, 2, NULL, w->rng, &w->err), &w->err);
    assert_ok(w->err);
    return fc;
}

static void errors_name_the_layer(void **state)
{
    (void)state;
    for (int sealed = 0; sealed < 2; sealed++) {
        world w = open_world();
        tern_module net;
        tern_module *fc = nested(&w, &net);
        tern_sgd_opts opts = tern_sgd_defaults();
        tern_optim *sgd = sealed ? tern_sgd_new(&net, &opts, &w.err) : NULL; /* seals the tree */
        assert_ok(w.err);
        tern_tensor *weight = tern_state_find(&net, "layer1.0.weight");
        expect_error(&w, tern_conv2d(w.scope, zeros4(&w, 8, 1, 28, 28), weight, NULL, NULL), "tern_conv2d",
                     TERN_E_SHAPE,
                     "conv2d \"layer1.0\": weight is (16, 3, 3, 3) but input is (8, 1, 28, 28)");
        assert_null(tern_forward(fc, w.scope, zeros1(&w, TERN_F32, 5)));
        assert_string_equal(tern_scope_error(w.scope)->text,
                            "linear \"fc\": weight is (2, 4) but input is (5)");
        tern_optim_free(sgd);
        tern_module_release(&net);
        close_world(&w);
    }
}

/* ---- memory ---- */

/* Blocked, plain and mixed layers, and a weight that is not a parameter. */
static int step(world *w, tern_module *net, tern_tensor *x, tern_tensor *label)
{
    tern_tensor *y = tern_conv2d(w->scope, tern_forward(net, w->scope, x), zeros4(w, 4, 7, 1, 1), NULL, NULL);
    tern_tensor *loss = tern_cross_entropy(w->scope, tern_global_avg_pool(w->scope, y), label, NULL);
    return loss ? tern_backward(w->scope, loss) : tern_scope_error(w->scope)->code;
}

/* Volumes: one layer down, one up, and its result next to the original. */
typedef struct unet {
    tern_module base;
    tern_module *first, *norm, *drop, *pool, *down, *up, *last;
} unet;

static tern_tensor *unet_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    unet *u = (unet *)module;
    tern_tensor *left = tern_forward(u->norm, scope, tern_forward(u->first, scope, x));
    left = tern_forward(u->drop, scope, tern_relu(scope, left));
    tern_tensor *y = tern_forward(u->down, scope, tern_forward(u->pool, scope, left));
    y = tern_forward(u->up, scope, tern_sigmoid(scope, y));
    y = tern_cat(scope, 2, (tern_tensor *[]){left, tern_add(scope, y, left)}, 1);
    return tern_forward(u->last, scope, y);
}

static tern_module *new_unet(world *w)
{
    tern_conv3d_opts same = tern_conv3d_defaults();
    tern_conv_transpose3d_opts twice = tern_conv_transpose3d_defaults();
    for (int d = 0; d < 3; d++) {
        same.padding[d] = 1;
        twice.stride[d] = 2;
    }
    unet *u = calloc(1, sizeof(*u));
    assert_non_null(u);
    tern_module *m = &u->base;
    tern_module_init(m, "unet", unet_forward, &w->err);
    u->first = tern_module_add(m, "first", tern_conv3d_new(1, 16, 3, 3, 3, &same, w->rng, &w->err), &w->err);
    u->norm = tern_module_add(m, "norm", tern_batch_norm3d_new(16, NULL, &w->err), &w->err);
    u->drop = tern_module_add(m, "drop", tern_dropout3d_new(0.5, &w->err), &w->err);
    u->pool = tern_module_add(m, "pool", tern_max_pool3d_new(2, 2, 2, NULL, &w->err), &w->err);
    u->down = tern_module_add(m, "down", tern_conv3d_new(16, 32, 3, 3, 3, &same, w->rng, &w->err), &w->err);
    u->up = tern_module_add(m, "up", tern_conv_transpose3d_new(32, 16, 2, 2, 2, &twice, w->rng, &w->err),
                            &w->err);
    u->last = tern_module_add(m, "last", tern_conv3d_new(32, 16, 1, 1, 1, NULL, w->rng, &w->err), &w->err);
    assert_ok(w->err);
    return m;
}

static int unet_step(world *w, tern_module *net)
{
    tern_tensor *x = tern_tensor_from(w->scope, NULL, TERN_F32, 5, (int64_t[]){2, 1, 4, 6, 4});
    tern_tensor *y = tern_forward(net, w->scope, x);
    tern_tensor *loss =
        tern_cross_entropy(w->scope, tern_global_avg_pool(w->scope, y), zeros1(w, TERN_I64, 2), NULL);
    return backward_and_end(w, loss);
}

static int plain_volumes, volumes;

/* Counts volumes, except those of convolutions, whose weights are plain, and biases viewed as volumes. */
static void count_volumes(tern__kernel_observer *self, const tern__call *call)
{
    (void)self;
    if (call->kernel >= TERN__CONV && call->kernel <= TERN__CONV_WEIGHT_GRAD) return;
    for (int i = 0; i < TERN__KERNEL_INS + TERN__KERNEL_OUTS; i++) {
        const tern__view *view = i < TERN__KERNEL_INS ? call->in[i] : call->out[i - TERN__KERNEL_INS];
        if (!view || view->ndim != 5 || view->stride[4] == 0) continue;
        volumes++;
        plain_volumes += view->layout == TERN__PLAIN;
    }
}

static void volumes_in_blocks_stay_so(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = new_unet(&w);
    tern__kernel_observer observer = {.ran = count_volumes};
    w.device->observer = &observer;
    assert_int_equal(unet_step(&w, net), TERN_OK);
    assert_true(volumes > 20);
    assert_int_equal(plain_volumes, 0);
    w.device->observer = NULL;
    tern_module_release(net);
    free(net);
    close_world(&w);
}

/* In the third step, blocks of its size are still in use by the step before the last. */
static void a_warm_step_over_volumes_allocates_nothing(void **state)
{
    (void)state;
    counter count = {0};
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &count});
    world w = open_world();
    tern_module *net = new_unet(&w);
    for (int i = 0; i < 3; i++) assert_int_equal(unet_step(&w, net), TERN_OK);
    int warm = count.calls;
    for (int i = 0; i < 3; i++) assert_int_equal(unet_step(&w, net), TERN_OK);
    assert_int_equal(count.calls, warm);
    tern_module_release(net);
    free(net);
    close_world(&w);
    tern__allocator_replace(NULL);
}

static tern_module *new_net(world *w)
{
    static const int64_t channels[] = {3, 16, 32, 16, 7};
    tern_module *net = tern_sequential_new(&w->err);
    tern_sequential_add(net, tern_conv_transpose2d_new(3, 3, 1, 1, NULL, w->rng, &w->err), &w->err);
    for (int i = 0; i < 4; i++)
        tern_sequential_add(net, tern_conv2d_new(channels[i], channels[i + 1], 3, 3, NULL, w->rng, &w->err),
                            &w->err);
    return net;
}

static int run_step(world *w, tern_module *net)
{
    tern_tensor *x = zeros4(w, 2, 3, 12, 12);
    int code = step(w, net, x, zeros1(w, TERN_I64, 2));
    tern_error ended = {0};
    tern_scope_end(w->scope, &ended);
    return code;
}

static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    counter count = {0};
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &count});
    world w = open_world();
    tern_module *net = new_net(&w);
    assert_ok(w.err);
    /* A scope has two arenas, and copies of weights are kept from their second use on. */
    for (int i = 0; i < 3; i++) assert_int_equal(run_step(&w, net), TERN_OK);
    int warm = count.calls;
    assert_true(warm > 0);
    tern_tensor *weight = tern_state_find(net, "1.weight");
    float fresh[16 * 3 * 3 * 3] = {0};
    assert_int_equal(tern_tensor_write(weight, fresh, sizeof(fresh), &w.err), TERN_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(run_step(&w, net), TERN_OK);
    assert_int_equal(count.calls, warm);
    tern_module_free(net);
    close_world(&w);
    tern__allocator_replace(NULL);
}

/* Each allocation of the first step fails once: always E_MEMORY, and the next step succeeds. */
static void out_of_memory_anywhere(void **state)
{
    (void)state;
    counter count = {0};
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &count});
    int failures = 0;
    for (int at = 1;; at++) {
        world w = open_world();
        tern_module *net = new_net(&w);
        assert_ok(w.err);
        count = (counter){.fail_only = at};
        int code = run_step(&w, net);
        bool reached = count.calls >= at;
        count.fail_only = 0;
        if (reached && code != TERN_OK) assert_int_equal(code, TERN_E_MEMORY);
        failures += code != TERN_OK;
        assert_int_equal(run_step(&w, net), TERN_OK);
        tern_module_free(net);
        close_world(&w);
        if (!reached) break;
    }
    assert_true(failures > 20);
    tern__allocator_replace(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_that_do_not_fit),
        cmocka_unit_test(nothing_to_compute),
        cmocka_unit_test(options_and_dtypes),
        cmocka_unit_test(channels_that_groups_do_not_divide),
        cmocka_unit_test(errors_name_the_layer),
        cmocka_unit_test(a_warm_step_allocates_nothing),
        cmocka_unit_test(out_of_memory_anywhere),
        cmocka_unit_test(volumes_in_blocks_stay_so),
        cmocka_unit_test(a_warm_step_over_volumes_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
