/* test_dropout.c - dropout of elements and channels, an embedding and the maximum of its features in a whole
 * step: no allocation once warm, and allocations that fail at every point. tests/torch compares the values.
 */
#include "world.h"

static tern_module *make(world *w)
{
    tern_module *net = tern_sequential_new(&w->err);
    tern_sequential_add(net, tern_embedding_new(6, 4, NULL, w->rng, &w->err), &w->err);
    return tern_sequential_add(net, tern_dropout_new(0.5, &w->err), &w->err) ? net : NULL;
}

static int step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    tern_tensor *places, *y = tern_forward(net, s, zeros1(w, TERN_I64, 3));
    tern_tensor *half = tern_dropout(s, tern_cast(s, y, TERN_BF16), 0.25);
    tern_tensor *top = tern_max_dim(s, half, 1, false, &places);
    tern_tensor *low = tern_min_dim(s, tern_add(s, y, y), -1, true, NULL);
    tern_argmin(s, y, 0, false);
    tern_tensor *all = tern_add(s, tern_sum(s, tern_cast(s, top, TERN_F32)), tern_sum(s, low));
    tern_tensor *maps = tern_reshape(s, y, 4, (int64_t[]){1, 3, 2, 2});
    all = tern_add(s, all, tern_sum(s, tern_dropout2d(s, maps, 0.5)));
    tern_backward(s, tern_add(s, all, tern_sum(s, tern_dropout(s, y, 1))));
    return tern_scope_end(s, NULL);
}

static whole_step whole = {make, step, 10};

int main(void)
{
    return run_whole_step(&whole);
}
