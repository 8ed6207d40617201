/* test_attention.c - attention in a whole step: no allocation once warm, and allocations that fail at every
 * point; memory that grows with the queries and keys, not with their product; views that are not copied;
 * tern_checkpoint. tests/torch compares the values. */
#include "world.h"

#include "kernels/kernel.h"

enum { HEADS = 2, DEPTH = 8 };

/* q, k and v in one tensor (B, T, 3, H, D), as one linear layer makes them: attention of its views. */
static tern_tensor *attend_to_parts(tern_scope *s, tern_tensor *x, double dropout)
{
    tern_attention_opts opts = tern_attention_defaults();
    opts.is_causal = true;
    opts.dropout = dropout;
    tern_tensor *parts = tern_permute(s, x, 5, (int[]){2, 0, 3, 1, 4});
    return tern_scaled_dot_product_attention(s, tern_select(s, parts, 0, 0), tern_select(s, parts, 0, 1),
                                             tern_select(s, parts, 0, 2), NULL, &opts);
}

static tern_tensor *attend_with_dropout(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)module;
    return attend_to_parts(s, x, 0.5);
}

static tern_module *make(world *w)
{
    return tern_linear_new(4, 3 * HEADS * DEPTH, NULL, w->rng, &w->err);
}

/* Attention of 70 positions in f32 and in bf16, the latter with a mask that is learnt. */
static int step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    tern_tensor *x = tern_tensor_from(s, NULL, TERN_F32, 2, (int64_t[]){70, 4});
    tern_tensor *h = tern_reshape(s, tern_forward(net, s, x), 5, (int64_t[]){1, 70, 3, HEADS, DEPTH});
    tern_tensor *parts = tern_permute(s, tern_cast(s, h, TERN_BF16), 5, (int[]){2, 0, 3, 1, 4});
    tern_tensor *v = tern_select(s, parts, 0, 2), *mask = tern_slice(s, v, 3, 0, 1, 1);
    tern_tensor *half = tern_scaled_dot_product_attention(s, v, tern_select(s, parts, 0, 1), v, mask, NULL);
    tern_tensor *y = tern_add(s, attend_to_parts(s, h, 0.5), tern_cast(s, half, TERN_F32));
    tern_backward(s, tern_sum(s, y));
    return tern_scope_end(s, NULL);
}

static whole_step whole = {make, step, 10};

/* ---- memory ---- */

static size_t total;

static void *add_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    total += bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void add_free(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

/* Everything that forward and backward allocate, for one head of `positions`. */
static size_t bytes_for(int64_t positions)
{
    world w = open_world();
    tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 5, (int64_t[]){1, positions, 3, 1, DEPTH});
    tern_requires_grad_set(x, true, &w.err);
    total = 0;
    tern_backward(w.scope, tern_sum(w.scope, attend_to_parts(w.scope, x, 0)));
    size_t bytes = total;
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    close_world(&w);
    return bytes;
}

static void memory_grows_with_positions_not_with_pairs(void **state)
{
    (void)state;
    tern__allocator_replace(&(tern_allocator){add_alloc, add_free, NULL});
    size_t few = bytes_for(1024), many = bytes_for(4096);
    tern__allocator_replace(NULL);
    assert_true(few > 0);
    assert_true(many < 5 * few);
    assert_true(many < 4096u * 4096u * sizeof(float) / 8);
}

/* ---- views ---- */

typedef struct witness {
    tern__kernel_observer observer; /* first: cast back to the witness */
    int calls;
    tern__kernel kernel;
} witness;

static void ran(tern__kernel_observer *observer, const tern__call *call)
{
    witness *self = (witness *)observer;
    self->calls++;
    self->kernel = call->kernel;
}

static void views_are_not_copied(void **state)
{
    (void)state;
    world w = open_world();
    witness seen = {.observer = {ran, NULL}};
    tern_tensor *x = tern_tensor_from(w.scope, NULL, TERN_F32, 5, (int64_t[]){2, 100, 3, HEADS, DEPTH});
    w.device->observer = &seen.observer;
    assert_non_null(attend_to_parts(w.scope, x, 0));
    w.device->observer = NULL;
    assert_int_equal(seen.calls, 1);
    assert_int_equal(seen.kernel, TERN__ATTENTION);
    close_world(&w);
}

/* ---- tern_checkpoint ---- */

/* The gradient of the same input, with the same draw. */
static void gradient_of(world *w, tern_module *module, bool again, float *to, size_t bytes)
{
    tern_scope *s = w->scope;
    tern_scope_seed(s, 3, 0);
    tern_tensor *x = tern_tensor_from(s, NULL, TERN_F32, 5, (int64_t[]){1, 120, 3, HEADS, DEPTH});
    float *numbers = tern_tensor_data(x);
    for (int64_t i = 0; i < tern_tensor_count(x); i++) numbers[i] = (float)(i * 37 % 101) / 50 - 1;
    tern_requires_grad_set(x, true, &w->err);
    tern_tensor *y = again ? tern_checkpoint(module, s, x) : tern_forward(module, s, x);
    tern_backward(s, tern_sum(s, tern_mul(s, y, y)));
    tern_tensor_read(tern_grad_get(x), to, bytes, &w->err);
    assert_int_equal(tern_scope_end(s, &w->err), TERN_OK);
    assert_ok(w->err);
}

static void a_checkpoint_draws_the_same_weights(void **state)
{
    (void)state;
    static float once[120 * 3 * HEADS * DEPTH], again[120 * 3 * HEADS * DEPTH];
    world w = open_world();
    tern_module module;
    tern_module_init(&module, "attention", attend_with_dropout, &w.err);
    gradient_of(&w, &module, false, once, sizeof(once));
    gradient_of(&w, &module, true, again, sizeof(again));
    assert_memory_equal(once, again, sizeof(once));
    tern_module_release(&module);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &whole),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &whole),
        cmocka_unit_test(memory_grows_with_positions_not_with_pairs),
        cmocka_unit_test(views_are_not_copied),
        cmocka_unit_test(a_checkpoint_draws_the_same_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
