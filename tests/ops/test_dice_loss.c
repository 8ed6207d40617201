/* test_dice_loss.c - losses for masks and maps, Dice and focal: errors, no allocation in a warm step, and
 * allocations that fail at every point. tests/torch compares the values. */
#include "world.h"

static tern_tensor *zeros(world *w, tern_dtype dtype, int ndim, const int64_t *shape)
{
    return tern_tensor_from(w->scope, NULL, dtype, ndim, shape);
}
#define ZEROS(w, dtype, ...)                                                                                 \
    zeros(w, dtype, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

/* ---- errors ---- */

static void operands_that_do_not_fit(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    const char *func = "tern_dice_loss";
    tern_dice_opts maps = tern_dice_defaults();
    maps.classes = true;
    expect_error(&w, tern_dice_loss(s, ZEROS(&w, TERN_F32, 2, 3, 4), ZEROS(&w, TERN_U8, 2, 4), NULL), func,
                 TERN_E_SHAPE,
                 "dice_loss: expected input (N, C, ..) and a mask of its shape, or (N, ..) if C is 1; "
                 "got (2, 3, 4) and (2, 4)");
    expect_error(&w, tern_dice_loss(s, zeros1(&w, TERN_F32, 4), zeros1(&w, TERN_U8, 4), NULL), func,
                 TERN_E_SHAPE,
                 "dice_loss: expected input (N, C, ..) and a mask of its shape, or (N, ..) if C is 1; "
                 "got (4) and (4)");
    expect_error(&w, tern_dice_loss(s, ZEROS(&w, TERN_F32, 0, 3, 4), ZEROS(&w, TERN_U8, 0, 4), NULL), func,
                 TERN_E_SHAPE,
                 "dice_loss: expected input (N, C, ..) and a mask of its shape, or (N, ..) if C is 1; "
                 "got (0, 3, 4) and (0, 4)");
    expect_error(&w, tern_dice_loss(s, ZEROS(&w, TERN_F32, 2, 3, 4), ZEROS(&w, TERN_U8, 2, 3, 4), &maps),
                 func, TERN_E_SHAPE,
                 "dice_loss: expected input (N, C, ..) and a map (N, ..), got (2, 3, 4) and (2, 3, 4)");
    expect_error(&w, tern_dice_loss(s, ZEROS(&w, TERN_F32, 2, 3, 4), ZEROS(&w, TERN_U8, 2, 5), &maps), func,
                 TERN_E_SHAPE,
                 "dice_loss: expected input (N, C, ..) and a map (N, ..), got (2, 3, 4) and (2, 5)");
    expect_error(&w, tern_dice_loss(s, ZEROS(&w, TERN_I64, 2, 3), ZEROS(&w, TERN_U8, 2, 3), NULL), func,
                 TERN_E_DTYPE, "dice_loss: expected input of floating point, got i64");
    expect_error(&w, tern_dice_loss(s, ZEROS(&w, TERN_F32, 2, 3), ZEROS(&w, TERN_F32, 2), &maps), func,
                 TERN_E_DTYPE, "dice_loss: expected labels of i64, i32 or u8, got f32");
    expect_error(&w, tern_dice_loss(s, ZEROS(&w, TERN_F32, 2, 3), NULL, NULL), func, TERN_E_INVALID,
                 "dice_loss: input 1 is NULL, and no earlier op has failed");
    close_world(&w);
}

static void targets_that_want_a_gradient(void **state)
{
    (void)state;
    world w = open_world();
    tern_scope *s = w.scope;
    tern_module *owner = tern_batch_norm1d_new(4, NULL, &w.err);
    tern_tensor *target = tern_reshape(s, tern_state_find(owner, "weight"), 2, (int64_t[]){4, 1});
    expect_error(&w, tern_dice_loss(s, ZEROS(&w, TERN_F32, 4, 1), target, NULL), "tern_dice_loss",
                 TERN_E_UNSUPPORTED, "dice_loss: the target wants a gradient; tern_detach it");
    target = tern_state_find(owner, "weight");
    expect_error(&w, tern_focal_loss(s, zeros1(&w, TERN_F32, 4), target, NULL), "tern_focal_loss",
                 TERN_E_UNSUPPORTED, "focal_loss: the target wants a gradient; tern_detach it");
    tern_module_free(owner);
    close_world(&w);
}

/* Calls dice_loss on (2, 3) and a mask, with these options. */
static tern_tensor *dice(world *w, tern_dice_opts opts)
{
    return tern_dice_loss(w->scope, ZEROS(w, TERN_F32, 2, 3), ZEROS(w, TERN_U8, 2, 3), &opts);
}

static tern_tensor *bce_dice(world *w, tern_dice_opts opts)
{
    return tern_bce_dice_loss(w->scope, ZEROS(w, TERN_F32, 2, 3), ZEROS(w, TERN_U8, 2, 3), 1, 1, &opts);
}

static tern_tensor *focal(world *w, tern_focal_opts opts)
{
    return tern_focal_loss(w->scope, ZEROS(w, TERN_F32, 2, 3), ZEROS(w, TERN_U8, 2, 3), &opts);
}

static void options_of_dice_that_cannot_be(void **state)
{
    (void)state;
    world w = open_world();
    tern_dice_opts opts = tern_dice_defaults();
    opts.smooth = -1;
    expect_error(&w, dice(&w, opts), "tern_dice_loss", TERN_E_RANGE,
                 "dice_loss: expected smooth >= 0, got -1");
    opts = tern_dice_defaults();
    opts.reduction = (tern_reduction)3;
    expect_error(&w, dice(&w, opts), "tern_dice_loss", TERN_E_INVALID,
                 "dice_loss: reduction 3 does not exist");
    opts.reduction = TERN_LOSS_NONE;
    expect_error(&w, bce_dice(&w, opts), "tern_bce_dice_loss", TERN_E_INVALID,
                 "bce_dice_loss: two losses have no common elements: expected a mean or a sum");
    opts = tern_dice_defaults();
    opts.probabilities = true;
    expect_error(&w, bce_dice(&w, opts), "tern_bce_dice_loss", TERN_E_UNSUPPORTED,
                 "bce_dice_loss: expected logits, got probabilities");
    close_world(&w);
}

static void options_of_focal_that_cannot_be(void **state)
{
    (void)state;
    world w = open_world();
    const char *func = "tern_focal_loss";
    tern_focal_opts opts = tern_focal_defaults();
    opts.gamma = -0.5;
    expect_error(&w, focal(&w, opts), func, TERN_E_RANGE, "focal_loss: expected gamma >= 0, got -0.5");
    opts = tern_focal_defaults();
    opts.alpha = 1.5;
    expect_error(&w, focal(&w, opts), func, TERN_E_RANGE, "focal_loss: expected alpha <= 1, got 1.5");
    opts = tern_focal_defaults();
    opts.weight = zeros1(&w, TERN_F32, 3);
    expect_error(&w, focal(&w, opts), func, TERN_E_INVALID,
                 "focal_loss: of a mask expected alpha, got weights of classes");
    opts = tern_focal_defaults();
    opts.reduction = (tern_reduction)3;
    expect_error(&w, focal(&w, opts), func, TERN_E_INVALID, "focal_loss: reduction 3 does not exist");
    opts.classes = true;
    expect_error(&w, focal(&w, opts), func, TERN_E_INVALID, "focal_loss: reduction 3 does not exist");
    opts.reduction = TERN_LOSS_MEAN;
    expect_error(&w, focal(&w, opts), func, TERN_E_SHAPE,
                 "focal_loss: expected input (N, C, ..) and label (N, ..), or (C) and (), got (2, 3) and "
                 "(2, 3)");
    expect_error(&w, tern_focal_loss(w.scope, ZEROS(&w, TERN_F32, 2, 3), ZEROS(&w, TERN_U8, 2, 4), NULL),
                 func, TERN_E_SHAPE,
                 "focal_loss: expected input and target of one shape, got (2, 3) and (2, 4)");
    close_world(&w);
}

/* ---- memory ---- */

/* The sum of the losses of 4 samples with 2 channels and 12 positions in `dtype`. */
static tern_tensor *losses_in(world *w, tern_tensor *x, tern_dtype dtype)
{
    tern_scope *s = w->scope;
    tern_tensor *y = tern_cast(s, x, dtype), *mask = ZEROS(w, TERN_U8, 4, 2, 12);
    tern_tensor *map = ZEROS(w, TERN_U8, 4, 12);
    tern_dice_opts maps = tern_dice_defaults();
    tern_focal_opts focus = tern_focal_defaults();
    maps.classes = focus.classes = true;
    tern_tensor *sum = tern_add(s, tern_dice_loss(s, y, mask, NULL), tern_dice_loss(s, y, map, &maps));
    sum = tern_add(s, sum, tern_bce_dice_loss(s, y, mask, 0.5, 1, NULL));
    sum = tern_add(s, sum, tern_bce_dice_loss(s, y, map, 0.5, 1, &maps));
    sum = tern_add(s, sum, tern_focal_loss(s, y, mask, NULL));
    return tern_cast(s, tern_add(s, sum, tern_focal_loss(s, y, map, &focus)), TERN_F32);
}

static int run_step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    tern_tensor *x = tern_reshape(s, tern_state_find(net, "weight"), 3, (int64_t[]){4, 2, 12});
    tern_tensor *loss = tern_add(s, losses_in(w, x, TERN_F32), losses_in(w, x, TERN_BF16));
    return backward_and_end(w, loss);
}

static tern_module *make(world *w)
{
    return named_batch_norm(w, 96);
}

static whole_step whole = {make, run_step, 30};

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_that_do_not_fit),
        cmocka_unit_test(targets_that_want_a_gradient),
        cmocka_unit_test(options_of_dice_that_cannot_be),
        cmocka_unit_test(options_of_focal_that_cannot_be),
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &whole),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
