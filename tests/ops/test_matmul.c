/* test_matmul.c - matrix products in a whole step: no allocation once warm, and allocations that fail at
 * every point. tests/torch compares the values. */
#include "world.h"

static tern_module *make(world *w)
{
    return tern_linear_new(6, 5, NULL, w->rng, &w->err);
}

/* A layer on batched rows, and its result times its own transpose, in f32 and in the dtypes that are copied.
 */
static int step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    tern_tensor *x = tern_tensor_from(s, NULL, TERN_F32, 3, (int64_t[]){2, 3, 6});
    tern_tensor *y = tern_forward(net, s, x), *turned = tern_transpose(s, y, 1, 2);
    tern_tensor *sum = tern_sum(s, tern_linear_act_forward(net, s, x, true));
    for (int i = 0; i < 3; i++) {
        tern_dtype dtype = (tern_dtype[]){TERN_F32, TERN_BF16, TERN_F16}[i];
        tern_tensor *product = tern_matmul(s, tern_cast(s, y, dtype), tern_cast(s, turned, dtype));
        tern_tensor *shared = tern_matmul(s, tern_cast(s, tern_select(s, y, 0, 0), dtype),
                                          tern_cast(s, turned, dtype)); /* a gradient that is summed */
        product = tern_cast(s, tern_add(s, product, shared), TERN_F32);
        sum = tern_add(s, sum, product);
    }
    tern_tensor *row = tern_select(s, tern_select(s, y, 0, 1), 0, 2);
    tern_backward(s, tern_add(s, tern_sum(s, sum), tern_matmul(s, row, row)));
    return tern_scope_end(s, NULL);
}

static whole_step whole = {make, step, 30};

int main(void)
{
    return run_whole_step(&whole);
}
