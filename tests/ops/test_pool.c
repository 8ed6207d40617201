/* test_pool.c - pooling in plain layouts: copies, spans, and the sums of the plain kernel. */
#include "world.h"

#include <string.h>

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
    tern_tensor *places = tern_max_pool2d(s, x, 17, 17, &wide); /* more positions than a byte can number */
    tern_tensor *volume = tern_reshape(s, x, 5, (int64_t[]){2, 6, 10, 10, 16});
    tern_tensor *deep = tern_sum(s, tern_max_pool3d(s, volume, 2, 2, 2, NULL));
    deep = tern_add(s, deep, tern_sum(s, tern_avg_pool3d(s, volume, 3, 3, 3, NULL)));
    tern_tensor *flat = tern_add(s, tern_sum(s, tern_add(s, max, avg)), tern_sum(s, places));
    tern_tensor *loss = tern_add(s, flat, deep);
    return backward_and_end(w, loss);
}

static whole_step whole = {make, step, 20};

/* Numbers whose sizes would overflow, so that windows would seem to fit, or positions would seem to be few.
 */
static void numbers_that_are_too_large(void **state)
{
    (void)state;
    static const int64_t cases[][4] = {/* kernel_d, kernel_h, dilation[1], stride[1] */
                                       {1, INT64_MAX, 1, 1},
                                       {1, 4, (int64_t)1 << 62, 1},
                                       {1, 2, 1, INT64_MAX},
                                       {65536, 32768, 1, 1},
                                       {3, INT32_MAX, 1, 1}};
    world w = open_world();
    tern_module *net = make(&w); /* so that x needs a gradient, and positions are kept */
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tern_pool3d_opts opts = tern_pool3d_defaults();
        opts.padding[0] = cases[i][0] / 2;
        opts.padding[1] = cases[i][1] / 2;
        opts.dilation[1] = cases[i][2];
        opts.stride[1] = cases[i][3];
        tern_tensor *x = tern_forward(net, w.scope, zeros4(&w, 2, 6, 4, 4));
        x = tern_reshape(w.scope, x, 5, (int64_t[]){2, 3, 2, 4, 4});
        assert_null(tern_max_pool3d(w.scope, x, cases[i][0], cases[i][1], 1, &opts));
        assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_E_RANGE);
        assert_non_null(strstr(w.err.text, "expected a kernel of 1 to 2^31 - 1 places"));
        w.err = (tern_error){0};
    }
    tern_module_free(net);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &whole),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &whole),
        cmocka_unit_test(numbers_that_are_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
