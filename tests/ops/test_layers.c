/* test_layers.c - batch norm, pooling, arithmetic, reshape and losses together: errors, no allocation in a
 * warm step, and allocations that fail at every point. tests/torch compares the values. */
#include "world.h"

/* Two branches of a residual block, with every op that is not a convolution. */
static tern_tensor *forward(world *w, tern_module *bn, tern_tensor *weight, tern_tensor *x)
{
    tern_scope *s = w->scope;
    tern_pool2d_opts opts = tern_pool2d_defaults();
    opts.stride[0] = opts.stride[1] = 2;
    opts.padding[0] = opts.padding[1] = 1;
    tern_tensor *wide = tern_conv2d(s, x, weight, NULL, NULL); /* blocked */
    tern_tensor *y = tern_batch_norm_act_forward(bn, s, wide, NULL, true);
    y = tern_batch_norm_act_forward(bn, s, y, wide, true);
    tern_tensor *max = tern_max_pool2d(s, y, 3, 3, &opts), *avg = tern_avg_pool2d(s, y, 3, 3, &opts);
    y = tern_mul(s, tern_add(s, max, avg), tern_mean(s, wide));
    y = tern_group_norm(s, y, 4, tern_state_find(bn, "weight"), tern_state_find(bn, "bias"), 1e-5);
    y = tern_cast(s, tern_layer_norm(s, tern_cast(s, y, TERN_BF16), NULL, NULL, NULL), TERN_F32);
    opts.stride[0] = opts.stride[1] = 1; /* of a plain layout */
    y = tern_add(s, tern_max_pool2d(s, y, 3, 3, &opts), tern_avg_pool2d(s, y, 3, 3, &opts));
    tern_tensor *means = tern_global_avg_pool(s, y);
    return tern_add(s, tern_flatten(s, y, 1), tern_reshape(s, tern_sum(s, means), 1, (int64_t[]){-1}));
}

static int run_step(world *w, tern_module *net)
{
    tern_tensor *weight = tern_state_find(net, "weight");
    tern_tensor *kernel = tern_reshape(w->scope, weight, 4, (int64_t[]){16, 1, 1, 1});
    tern_tensor *y = forward(w, net, kernel, zeros4(w, 3, 1, 6, 6));
    tern_tensor *entropy = tern_cross_entropy(w->scope, y, zeros1(w, TERN_I64, 3), NULL);
    tern_tensor *target = tern_tensor_from(w->scope, NULL, TERN_F32, 2, (int64_t[]){3, 16 * 9});
    tern_tensor *loss = tern_add(w->scope, entropy, tern_mse_loss(w->scope, y, target, TERN_LOSS_MEAN));
    int code = loss ? tern_backward(w->scope, loss) : tern_scope_error(w->scope)->code;
    tern_argmax(w->scope, y, 1, false);
    tern_error ended = {0};
    tern_scope_end(w->scope, &ended);
    return code;
}

/* Makes the net and its list of names, which a step does not use. */
static tern_module *make(world *w)
{
    tern_module *net = tern_batch_norm2d_new(16, NULL, &w->err);
    assert_non_null(tern_state_find(net, "weight"));
    return net;
}

static whole_step whole = {make, run_step, 30};

/* A module whose constructor fails leaks nothing. */
static void out_of_memory_in_constructors(void **state)
{
    (void)state;
    counter count = {0};
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &count});
    for (int at = 1;; at++) {
        tern_error err = {0};
        count = (counter){.fail_from = at};
        tern_module *both = tern_sequential_new(&err);
        tern_sequential_add(both, tern_batch_norm2d_new(4, NULL, &err), &err);
        tern_sequential_add(both, tern_group_norm_new(2, 4, NULL, &err), &err);
        tern_sequential_add(both, tern_layer_norm_new(1, (int64_t[]){8}, NULL, &err), &err);
        tern_sequential_add(both, tern_max_pool2d_new(2, 2, NULL, &err), &err);
        tern_sequential_add(both, tern_flatten_new(&err), &err);
        tern_sequential_add(both, tern_gelu_new(true, &err), &err);
        tern_sequential_add(both, tern_leaky_relu_new(0.1, &err), &err);
        bool reached = count.calls >= at;
        if (reached) assert_int_equal(err.code, TERN_E_MEMORY);
        tern_module_free(both);
        if (!reached) break;
    }
    tern__allocator_replace(NULL);
}

static void operands_that_do_not_fit(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    expect_error(&w, tern_add(s, zeros4(&w, 2, 3, 4, 5), zeros1(&w, TERN_F32, 4)), "tern_add", TERN_E_SHAPE,
                 "add: (2, 3, 4, 5) and (4) cannot be broadcast together");
    expect_error(&w, tern_mul(s, zeros1(&w, TERN_F32, 4), zeros1(&w, TERN_F64, 4)), "tern_mul", TERN_E_DTYPE,
                 "mul: expected one dtype, got f32 and f64");
    expect_error(&w, tern_mse_loss(s, zeros1(&w, TERN_F32, 4), zeros1(&w, TERN_F32, 1), TERN_LOSS_MEAN),
                 "tern_mse_loss", TERN_E_SHAPE,
                 "mse_loss: expected input and target of one shape, got (4) and (1)");
    expect_error(&w, tern_mse_loss(s, zeros1(&w, TERN_F32, 4), zeros1(&w, TERN_F64, 4), TERN_LOSS_MEAN),
                 "tern_mse_loss", TERN_E_DTYPE, "mse_loss: expected one dtype, got f32 and f64");
    expect_error(&w, tern_add(s, NULL, zeros1(&w, TERN_F32, 4)), "tern_add", TERN_E_INVALID,
                 "add: input 0 is NULL, and no earlier op has failed");
    close_world(&w);
}

static void shapes_that_cannot_be(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    expect_error(&w, tern_reshape(s, zeros1(&w, TERN_F32, 6), 2, (int64_t[]){4, -1}), "tern_reshape",
                 TERN_E_SHAPE, "reshape: (6) cannot be seen as (4, -1)");
    expect_error(&w, tern_reshape(s, zeros1(&w, TERN_F32, 6), 2, (int64_t[]){-1, -1}), "tern_reshape",
                 TERN_E_SHAPE, "reshape: (6) cannot be seen as (-1, -1)");
    expect_error(&w, tern_reshape(s, zeros1(&w, TERN_F32, 6), 7, (int64_t[]){6, 1, 1, 1, 1, 1, 1}),
                 "tern_reshape", TERN_E_RANGE, "reshape: ndim 7 is not in [0, 6]");
    expect_error(&w, tern_flatten(s, zeros1(&w, TERN_F32, 6), 1), "tern_flatten", TERN_E_RANGE,
                 "flatten: dimension 1 of 1 does not exist");
    expect_error(&w, tern_global_avg_pool(s, zeros1(&w, TERN_F32, 6)), "tern_global_avg_pool", TERN_E_SHAPE,
                 "global_avg_pool: expected (N, C, H, W) with at least one position, got (6)");
    close_world(&w);
}

static void counts_that_cannot_be(void **state)
{
    (void)state;
    world w = open_world();
    static const int dims[] = {0};
    const struct {
        tern_tensor *(*reduce)(tern_scope *scope, tern_tensor *x, int count, const int *dims, bool keep);
        const char *name;
    } ops[] = {{tern_sum_dims, "tern_sum_dims"},
               {tern_mean_dims, "tern_mean_dims"},
               {tern_amax, "tern_amax"},
               {tern_amin, "tern_amin"}};
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
        expect_error(&w, ops[i].reduce(w.scope, zeros4(&w, 2, 3, 4, 5), -1, dims, false), ops[i].name,
                     TERN_E_RANGE, "expected at least 0 dimensions, got -1");
    expect_error(&w, tern_sum_dims(w.scope, zeros4(&w, 2, 3, 4, 5), 1, NULL, false), "tern_sum_dims",
                 TERN_E_INVALID, "the array of dimensions is NULL");
    assert_null(tern_value_list(w.scope, -1));
    expect_error(&w, NULL, "tern_value_list", TERN_E_RANGE, "expected at least 0 values, got -1");
    close_world(&w);
}

static void options_that_cannot_be(void **state)
{
    (void)state;
    world w = open_world();
    tern_batch_norm_act_opts none = {0};
    expect_error(&w,
                 tern_batch_norm_act(w.scope, zeros4(&w, 2, 3, 4, 5), NULL, NULL, NULL, NULL, NULL, &none),
                 "tern_batch_norm_act", TERN_E_INVALID,
                 "options: size is 0; start from what the _defaults function returns");
    tern_pool2d_opts newer = tern_pool2d_defaults();
    newer.size += 8;
    expect_error(&w, tern_max_pool2d(w.scope, zeros4(&w, 2, 3, 4, 5), 2, 2, &newer), "tern_max_pool2d",
                 TERN_E_UNSUPPORTED, "options: size is 80, this version of the library knows 72 bytes");
    assert_null(tern_batch_norm2d_new(0, NULL, &w.err));
    assert_int_equal(w.err.code, TERN_E_RANGE);
    assert_string_equal(w.err.text, "batch_norm2d: expected at least 1 channel, got 0");
    close_world(&w);
}

static void batch_norm_names_its_layer(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = tern_sequential_new(&w.err);
    tern_module *bn = tern_sequential_add(net, tern_batch_norm2d_new(4, NULL, &w.err), &w.err);
    assert_ok(w.err);
    expect_error(
        &w, tern_forward(net, w.scope, zeros4(&w, 1, 4, 1, 1)), "tern_batch_norm_act", TERN_E_SHAPE,
        "batch_norm \"0\": expected more than 1 value per channel when training, got input size (1, 4, "
        "1, 1)");
    expect_error(&w, tern_forward(net, w.scope, zeros4(&w, 2, 5, 3, 3)), "tern_batch_norm_act", TERN_E_SHAPE,
                 "batch_norm \"0\": weight is (4) but input is (2, 5, 3, 3)");
    tern_tensor *gone = zeros4(&w, 2, 4, 3, 3);
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    expect_error(&w, tern_batch_norm_act_forward(bn, w.scope, zeros4(&w, 2, 4, 3, 3), gone, true),
                 "tern_batch_norm_act", TERN_E_LIFETIME,
                 "tensor (2, 4, 3, 3) is used after its scope has ended; tern_keep gives a copy that lasts");
    tern_module_free(net);
    close_world(&w);
}

static void norms_name_their_layer(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = tern_sequential_new(&w.err);
    tern_sequential_add(net, tern_layer_norm_new(1, (int64_t[]){5}, NULL, &w.err), &w.err);
    tern_module *group = tern_sequential_add(net, tern_group_norm_new(2, 4, NULL, &w.err), &w.err);
    assert_ok(w.err);
    expect_error(&w, tern_forward(group, w.scope, zeros4(&w, 2, 6, 1, 1)), "tern_group_norm", TERN_E_SHAPE,
                 "group_norm \"1\": expected a weight of (6), got (4)");
    tern_tensor *weight = tern_state_find(net, "0.weight");
    expect_error(&w, tern_layer_norm(w.scope, zeros4(&w, 1, 1, 2, 6), weight, NULL, NULL), "tern_layer_norm",
                 TERN_E_SHAPE, "layer_norm \"0\": expected a weight of (6), got (5)");
    tern_tensor *gone = zeros1(&w, TERN_F32, 6);
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    expect_error(&w, tern_layer_norm(w.scope, zeros4(&w, 1, 1, 2, 6), NULL, gone, NULL), "tern_layer_norm",
                 TERN_E_LIFETIME,
                 "tensor (6) is used after its scope has ended; tern_keep gives a copy that lasts");
    tern_module_free(net);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &whole),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &whole),
        cmocka_unit_test(out_of_memory_in_constructors),
        cmocka_unit_test(operands_that_do_not_fit),
        cmocka_unit_test(shapes_that_cannot_be),
        cmocka_unit_test(counts_that_cannot_be),
        cmocka_unit_test(options_that_cannot_be),
        cmocka_unit_test(batch_norm_names_its_layer),
        cmocka_unit_test(norms_name_their_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
