/* test_interpolate.c - interpolation in a whole step, up and down and in both layouts: no allocation once
 * warm, and allocations that fail at every point. tests/torch compares the values. */
#include "world.h"

#include <tern/conv.h>

static tern_module *make(world *w)
{
    tern_module *net = tern_sequential_new(&w->err);
    tern_sequential_add(net, tern_batch_norm2d_new(6, NULL, &w->err), &w->err);
    return tern_sequential_add(net, tern_upsample_new(NULL, &w->err), &w->err) ? net : NULL;
}

static int step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    tern_interpolate_opts opts = tern_interpolate_defaults();
    opts.mode = TERN_INTERPOLATE_LINEAR;
    opts.shape[0] = 9;
    opts.shape[1] = 33;
    tern_tensor *x = tern_forward(net, s, zeros4(w, 2, 6, 7, 10));
    tern_tensor *y = tern_conv2d(s, x, zeros4(w, 16, 6, 1, 1), NULL, NULL); /* blocked */
    tern_tensor *blocked = tern_interpolate(s, y, &opts);
    tern_tensor *plain = tern_interpolate(s, tern_slice(s, blocked, 1, 0, 3, 1), NULL);
    tern_tensor *means = tern_adaptive_avg_pool2d(s, plain, 4, 7);
    return backward_and_end(w, tern_add(s, tern_sum(s, blocked), tern_sum(s, means)));
}

static whole_step whole = {make, step, 10};

int main(void)
{
    return run_whole_step(&whole);
}
