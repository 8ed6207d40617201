/* test_transformer.c - the ops of transformers together: no allocation in a warm step, and allocations that
 * fail at every point; an embedding's gradient makes no copy of the vocabulary. tests/torch compares the
 * values. */
#include "world.h"

#include <tern/amp.h>

enum { WORDS = 16, WIDTH = 8, LENGTH = 6 };

static tern_module *make(world *w)
{
    tern_module *net = tern_embedding_new(WORDS, WIDTH, NULL, w->rng, &w->err);
    assert_non_null(tern_state_find(net, "weight"));
    return net;
}

static tern_tensor *table(world *w)
{
    return tern_full(w->scope, TERN_F32, 2, (int64_t[]){LENGTH, WIDTH / 2}, 0.5);
}

static int run_step(world *w, tern_module *net)
{
    tern_scope *s = w->scope;
    tern_tensor *weight = tern_state_find(net, "weight"), *each;
    tern_tensor *words = tern_tensor_from(s, NULL, TERN_I64, 2, (int64_t[]){2, LENGTH});
    tern_tensor *x = tern_rms_norm(s, tern_embedding(s, words, weight, NULL), NULL, NULL);
    tern_tensor *half = tern_rms_norm(s, tern_cast(s, x, TERN_BF16), NULL, NULL);
    x = tern_rotary_embedding(s, tern_add(s, x, tern_cast(s, half, TERN_F32)), table(w), table(w), false);
    x = tern_add(s, tern_swiglu(s, x, tern_geglu(s, x, x, true)), tern_geglu(s, x, x, false));
    x = tern_add(s, tern_cumsum(s, x, 1), tern_tril(s, tern_triu(s, x, -1), 2));
    tern_tensor *index, *top = tern_topk(s, x, 3, -1, true, &index);
    tern_tensor *shares = tern_softmax(s, tern_reshape(s, x, 2, (int64_t[]){-1, WIDTH}), 1);
    tern_multinomial(s, shares, 4, false);
    tern_multinomial(s, shares, 9, true);
    tern_tensor *loss = tern_linear_cross_entropy(s, x, weight, NULL, words, NULL);
    tern_cross_entropy_opts opts = tern_cross_entropy_defaults();
    opts.reduction = TERN_LOSS_NONE;
    half = tern_cast(s, x, TERN_F16);
    each = tern_linear_cross_entropy(s, half, tern_cast(s, weight, TERN_F16), NULL, words, &opts);
    loss = tern_add(s, tern_add(s, loss, tern_sum(s, top)), tern_sum(s, each));
    return backward_and_end(w, loss);
}

static whole_step whole = {make, run_step, 20};

/* ---- an embedding's gradient ---- */

typedef struct largest {
    size_t bytes;
} largest;

static void *largest_alloc(size_t bytes, size_t align, void *ctx)
{
    largest *l = ctx;
    l->bytes = TERN__MAX(l->bytes, bytes);
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

/* A few words of a large vocabulary: what backward allocates does not depend on the vocabulary. */
static void gradient_of_few_words(void **state)
{
    (void)state;
    static const tern_dtype dtypes[] = {TERN_F32, TERN_F64, TERN_BF16, TERN_F16};
    enum { VOCABULARY = 1 << 15, SIZE = 32 };
    for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
        largest l = {0};
        tern__allocator_replace(&(tern_allocator){largest_alloc, count_free, &l});
        world w = open_world();
        tern_module *net = tern_embedding_new(VOCABULARY, SIZE, NULL, w.rng, &w.err);
        tern_module_cast(net, dtypes[d], &w.err);
        for (int step = 0; step < 2; step++) { /* the second gradient is added to the first */
            int64_t words[] = {7, VOCABULARY - 1, 7};
            tern_tensor *index = tern_tensor_from(w.scope, words, TERN_I64, 1, (int64_t[]){3});
            tern_tensor *y = tern_forward(net, w.scope, index);
            tern_tensor *loss = tern_sum(w.scope, tern_mul(w.scope, y, y));
            l.bytes = 0;
            assert_int_equal(tern_backward(w.scope, loss), TERN_OK);
            tern_scope_end(w.scope, &w.err);
            assert_ok(w.err);
            assert_in_range(l.bytes, 0, VOCABULARY);
        }
        tern_module_free(net);
        close_world(&w);
        tern__allocator_replace(NULL);
    }
}

/* Of an embedding in bf16 whose gradients are f32, as at opt level O2. A width that is no whole number of
 * vectors; numbers that bf16 holds. */
static void gradient_in_f32_of_16_bits(void **state)
{
    (void)state;
    enum { COUNT = 4, SIZE = 35, ROWS = 40 };
    const int64_t words[COUNT] = {3, ROWS - 1, 3, 0};
    float dy[COUNT * SIZE], want[ROWS * SIZE] = {0}, got[ROWS * SIZE];
    world w = open_world();
    tern_module *net = tern_embedding_new(ROWS, SIZE, NULL, w.rng, &w.err);
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    tern_amp *amp = tern_amp_new(net, &opts, &w.err);
    assert_ok(w.err);
    for (int i = 0; i < COUNT * SIZE; i++) dy[i] = (float)i;
    for (int i = 0; i < COUNT; i++)
        for (int d = 0; d < SIZE; d++) want[words[i] * SIZE + d] += dy[i * SIZE + d];
    for (int step = 1; step <= 2; step++) {
        tern_tensor *index = tern_tensor_from(w.scope, words, TERN_I64, 1, (int64_t[]){COUNT});
        tern_tensor *y = tern_forward(net, w.scope, index);
        tern_tensor *sent = tern_tensor_from(w.scope, dy, TERN_F32, 2, (int64_t[]){COUNT, SIZE});
        assert_int_equal(backward_and_end(&w, tern_sum(w.scope, tern_mul(w.scope, y, sent))), TERN_OK);
        tern_tensor *grad = tern_grad_get(tern_state_find(net, "weight"));
        assert_int_equal(tern_tensor_dtype(grad), TERN_F32);
        assert_int_equal(tern_tensor_read(grad, got, sizeof(got), &w.err), TERN_OK);
        for (int i = 0; i < ROWS * SIZE; i++) assert_true(got[i] == (float)step * want[i]);
    }
    tern_amp_free(amp);
    tern_module_free(net);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &whole),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &whole),
        cmocka_unit_test(gradient_of_few_words),
        cmocka_unit_test(gradient_in_f32_of_16_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
