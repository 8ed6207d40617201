/* test_pad.c - padding in a whole step, alone and in convolutions, of batches and of single samples: no
 * allocation once warm, allocations that fail at every point, and layouts that are kept. tests/torch
 * compares the values. */
#include "world.h"

#include "tensor/tensor.h"

#include <tern/conv.h>

static tern_module *conv_with(world *w, int64_t in, int64_t kernel, int64_t padding, tern_padding_mode mode)
{
    tern_conv2d_opts opts = tern_conv2d_defaults();
    opts.padding[0] = opts.padding[1] = padding;
    opts.padding_mode = mode;
    return tern_conv2d_new(in, 16, kernel, kernel, &opts, w->rng, &w->err);
}

static tern_module *make(world *w)
{
    tern_module *net = tern_sequential_new(&w->err);
    tern_sequential_add(net, conv_with(w, 3, 2, TERN_PADDING_SAME, TERN_PADDING_MODE_ZEROS), &w->err);
    tern_sequential_add(net, conv_with(w, 16, 3, 1, TERN_PADDING_MODE_REFLECT), &w->err);
    tern_sequential_add(net, conv_with(w, 16, 3, 2, TERN_PADDING_MODE_REPLICATE), &w->err);
    tern_sequential_add(net, tern_max_pool2d_new(2, 2, NULL, &w->err), &w->err);
    return tern_sequential_add(net, conv_with(w, 16, 2, 1, TERN_PADDING_MODE_CIRCULAR), &w->err) ? net : NULL;
}

static int step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    const int64_t one[] = {3, 8, 9}, around[] = {1, 2, 0, 3};
    tern_tensor *batch = tern_forward(net, s, zeros4(w, 2, 3, 8, 9));
    tern_tensor *sample = tern_forward(net, s, tern_reshape(s, zeros4(w, 1, 3, 8, 9), 3, one));
    tern_tensor *low = tern_cast(s, sample, TERN_BF16);
    low = tern_cast(s, tern_pad_mode(s, low, 4, around, TERN_PADDING_MODE_REFLECT), TERN_F32);
    tern_tensor *constant = tern_pad(s, batch, 4, around, 0.5);
    return backward_and_end(
        w, tern_add(s, tern_add(s, tern_sum(s, batch), tern_sum(s, low)), tern_sum(s, constant)));
}

static whole_step whole = {make, step, 20};

/* The blocked layout is kept unless channels or samples are padded. */
static void layouts_stay(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    const int64_t planes[] = {1, 0, 2, 3}, channels[] = {0, 0, 0, 0, 1, 0},
                  samples[] = {0, 0, 0, 0, 0, 0, 0, 1};
    tern_tensor *x = tern_conv2d(s, zeros4(&w, 2, 3, 5, 6), zeros4(&w, 32, 3, 1, 1), NULL, NULL);
    assert_int_equal(x->view.layout, TERN__BLOCKED16);
    for (int mode = TERN_PADDING_MODE_ZEROS; mode <= TERN_PADDING_MODE_CIRCULAR; mode++) {
        tern_tensor *y = tern_pad_mode(s, x, 4, planes, (tern_padding_mode)mode);
        assert_int_equal(y->view.layout, TERN__BLOCKED16);
        assert_int_equal(tern_pad_mode(s, x, 6, channels, (tern_padding_mode)mode)->view.layout, TERN__PLAIN);
        assert_int_equal(tern_pad_mode(s, x, 8, samples, (tern_padding_mode)mode)->view.layout, TERN__PLAIN);
    }
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &whole),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &whole),
        cmocka_unit_test(layouts_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
