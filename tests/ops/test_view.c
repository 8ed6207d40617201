/* test_view.c - views, joins, casts, reductions and pointwise ops together: no allocation in a warm step,
 * and allocations that fail at every point. tests/torch compares the values. */
#include "world.h"

/* Reduces (4, 6) of any dtype to one number, with every kind of gradient in between. */
static tern_tensor *number_of(tern_scope *s, tern_tensor *x)
{
    tern_tensor *turned = tern_transpose(s, x, 0, 1), *parts[3];
    tern_split(s, turned, 2, 0, parts, 3);
    tern_tensor *joined = tern_cat(s, 3, (tern_tensor *[]){parts[2], parts[0], parts[0]}, 0);
    tern_tensor *padded = tern_pad(s, joined, 2, (int64_t[]){1, 0}, 0.5);
    tern_tensor *both = tern_stack(s, 2, (tern_tensor *[]){padded, tern_clone(s, padded)}, 1);
    tern_tensor *top = tern_amax(s, both, 1, (int[]){0}, true), *low = tern_amin(s, both, 0, NULL, false);
    tern_tensor *y = tern_mul(s, tern_sub(s, both, top), tern_div(s, top, tern_gelu(s, both, false)));
    y = tern_where(s, tern_gt(s, y, low), tern_pow(s, tern_abs(s, y), top), tern_maximum(s, y, low));
    y = tern_select(s, tern_slice(s, y, 2, 1, 5, 2), 1, 0);
    return tern_mean(s, tern_add(s, y, tern_sum_dims(s, y, 1, (int[]){1}, true)));
}

static int run_step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    tern_tensor *x = tern_reshape(s, tern_state_find(net, "weight"), 2, (int64_t[]){4, 6});
    tern_tensor *half = tern_cast(s, number_of(s, tern_cast(s, x, TERN_BF16)), TERN_F32);
    tern_tensor *real = tern_cast(s, number_of(s, tern_cast(s, x, TERN_F64)), TERN_F32);
    tern_tensor *rest = tern_smooth_l1_loss(s, x, tern_detach(s, x), 0.5, TERN_LOSS_SUM);
    tern_tensor *logits = tern_bce_with_logits_loss(s, x, tern_detach(s, x), NULL, TERN_LOSS_MEAN);
    tern_tensor *loss = tern_add(s, tern_add(s, number_of(s, x), half), tern_add(s, real, rest));
    loss = tern_add(s, loss, logits);
    return backward_and_end(w, loss);
}

static tern_module *make(world *w)
{
    return named_batch_norm(w, 24);
}

static whole_step whole = {make, run_step, 30};

int main(void)
{
    return run_whole_step(&whole);
}
