/* test_pool2d.c - memory of pooling in plain layouts: copies, spans, and the plain kernel's sums. */
#include "world.h"

static tern_module *make(world *w)
{
    return tern_batch_norm2d_new(6, NULL, &w->err);
}

static int step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    tern_pool2d_opts opts = tern_pool2d_defaults(), wide = tern_pool2d_defaults();
    opts.padding[0] = opts.padding[1] = 1;
    wide.padding[0] = wide.padding[1] = 8;
    tern_tensor *x = tern_forward(net, s, zeros4(w, 2, 6, 40, 40));
    tern_tensor *max = tern_max_pool2d(s, x, 3, 3, &opts), *avg = tern_avg_pool2d(s, x, 3, 3, &opts);
    tern_tensor *places = tern_max_pool2d(s, x, 17, 17, &wide); /* more places than a byte has */
    tern_tensor *volume = tern_reshape(s, x, 5, (int64_t[]){2, 6, 10, 10, 16});
    tern_tensor *deep = tern_sum(s, tern_max_pool3d(s, volume, 2, 2, 2, NULL));
    deep = tern_add(s, deep, tern_sum(s, tern_avg_pool3d(s, volume, 3, 3, 3, NULL)));
    tern_tensor *flat = tern_add(s, tern_sum(s, tern_add(s, max, avg)), tern_sum(s, places));
    tern_tensor *loss = tern_add(s, flat, deep);
    int code = loss ? tern_backward(s, loss) : tern_scope_error(s)->code;
    tern_error ended = {0};
    tern_scope_end(s, &ended);
    return code;
}

static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    expect_warm_steps_to_allocate_nothing(make, step);
}

static void out_of_memory_anywhere(void **state)
{
    (void)state;
    assert_true(expect_out_of_memory_to_be_told(make, step) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_step_allocates_nothing),
        cmocka_unit_test(out_of_memory_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
