/* test_init.c - initialisers, beyond the values that tests/torch/test_init.py compares: errors and the
 * function they name, failing allocations, missing LAPACK, and outdated copies in kernels. */
#include "ledger.h"
#include "nn/nn.h"
#include "ops/world.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

/* ---- the library's dlopen is redirected here ---- */

static const char *instead_of_lapack; /* NULL: LAPACK itself */

void *dlopen(const char *file, int mode)
{
    void *(*next)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");
    bool is_lapack = file && strcmp(file, "liblapack.so.3") == 0;
    return next(is_lapack && instead_of_lapack ? instead_of_lapack : file, mode);
}

/* ---- every initialiser, with valid arguments ---- */

static int constant(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    (void)rng;
    return tern_init_constant(tensor, 0.5, err);
}

static int eye(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    (void)rng;
    return tern_init_eye(tensor, err);
}

static int dirac(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    (void)rng;
    return tern_init_dirac(tensor, 2, err);
}

static int uniform(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    return tern_init_uniform(tensor, -1, 1, rng, err);
}

static int normal(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    return tern_init_normal(tensor, 0, 1, rng, err);
}

static int trunc_normal(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    return tern_init_trunc_normal(tensor, 0, 1, -2, 2, rng, err);
}

static int xavier_uniform(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    return tern_init_xavier_uniform(tensor, 1, rng, err);
}

static int xavier_normal(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    return tern_init_xavier_normal(tensor, 1, rng, err);
}

static int kaiming_uniform(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    return tern_init_kaiming_uniform(tensor, 0, TERN_FAN_IN, TERN_GAIN_RELU, rng, err);
}

static int kaiming_normal(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    return tern_init_kaiming_normal(tensor, 0, TERN_FAN_IN, TERN_GAIN_RELU, rng, err);
}

static int orthogonal(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    return tern_init_orthogonal(tensor, 1, rng, err);
}

static int sparse(tern_tensor *tensor, tern_rng *rng, tern_error *err)
{
    return tern_init_sparse(tensor, 0.5, 1, rng, err);
}

typedef struct initialiser {
    const char *name;
    int (*call)(tern_tensor *tensor, tern_rng *rng, tern_error *err);
    int ndim;
    bool draws;
} initialiser;

static const initialiser all[] = {
    {"tern_init_constant", constant, 4, false},
    {"tern_init_eye", eye, 2, false},
    {"tern_init_dirac", dirac, 4, false},
    {"tern_init_uniform", uniform, 4, true},
    {"tern_init_normal", normal, 4, true},
    {"tern_init_trunc_normal", trunc_normal, 4, true},
    {"tern_init_xavier_uniform", xavier_uniform, 4, true},
    {"tern_init_xavier_normal", xavier_normal, 4, true},
    {"tern_init_kaiming_uniform", kaiming_uniform, 4, true},
    {"tern_init_kaiming_normal", kaiming_normal, 4, true},
    {"tern_init_orthogonal", orthogonal, 4, true},
    {"tern_init_sparse", sparse, 2, true},
};
enum { ALL = sizeof(all) / sizeof(all[0]) };

static const int64_t shape[4] = {16, 16, 3, 3};

static void expect_refused(const initialiser *init, tern_tensor *tensor, tern_rng *rng, int code,
                           const char *text)
{
    tern_error err = {0};
    assert_int_equal(init->call(tensor, rng, &err), code);
    assert_string_equal(err.text, text);
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, init->name);
    assert_int_equal(init->call(tensor, rng, NULL), code);
}

/* ---- errors ---- */

static void a_tensor_that_is_null_or_no_f32(void **state)
{
    (void)state;
    world w = open_world();
    for (int i = 0; i < ALL; i++) {
        const initialiser *init = &all[i];
        expect_refused(init, NULL, w.rng, TERN_E_INVALID, "the tensor is NULL");
        tern_tensor *doubles = tern_tensor_from(w.scope, NULL, TERN_F64, init->ndim, shape);
        expect_refused(init, doubles, w.rng, TERN_E_DTYPE,
                       init->ndim == 2 ? "tensor (16, 16) is f64, expected f32"
                                       : "tensor (16, 16, 3, 3) is f64, expected f32");
    }
    close_world(&w);
}

static void a_tensor_that_is_not_row_major(void **state)
{
    (void)state;
    world w = open_world();
    for (int i = 0; i < ALL; i++) {
        const initialiser *init = &all[i];
        tern_tensor *turned =
            tern_transpose(w.scope, tern_tensor_from(w.scope, NULL, TERN_F32, init->ndim, shape), 0, 1);
        expect_refused(init, turned, w.rng, TERN_E_INVALID,
                       init->ndim == 2 ? "tensor (16, 16) is not row-major without gaps"
                                       : "tensor (16, 16, 3, 3) is not row-major without gaps");
    }
    close_world(&w);
}

static void a_tensor_whose_scope_has_ended(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *gone = tern_tensor_from(w.scope, NULL, TERN_F32, 2, shape);
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    for (int i = 0; i < ALL; i++)
        expect_refused(
            &all[i], gone, w.rng, TERN_E_LIFETIME,
            "tensor (16, 16) is used after its scope has ended; tern_keep gives a copy that lasts");
    close_world(&w);
}

static void no_generator(void **state)
{
    (void)state;
    world w = open_world();
    for (int i = 0; i < ALL; i++) {
        tern_tensor *tensor = tern_tensor_from(w.scope, NULL, TERN_F32, all[i].ndim, shape);
        if (all[i].draws) expect_refused(&all[i], tensor, NULL, TERN_E_INVALID, "the rng is NULL");
    }
    close_world(&w);
}

static void after_an_error_nothing_is_done(void **state)
{
    (void)state;
    world w = open_world();
    for (int i = 0; i < ALL; i++) {
        tern_error err = {.code = TERN_E_IO, .text = "earlier"};
        tern_tensor *tensor = tern_tensor_from(w.scope, NULL, TERN_F32, all[i].ndim, shape);
        assert_int_equal(all[i].call(tensor, w.rng, &err), TERN_E_IO);
        assert_string_equal(err.text, "earlier");
        float *values = tern_tensor_data(tensor);
        for (int64_t k = 0; k < tern_tensor_count(tensor); k++) assert_true(values[k] == 0.0f);
    }
    close_world(&w);
}

static void no_memory(void **state)
{
    (void)state;
    static const int64_t high[2] = {16, 4};
    for (int i = 0; i < 2; i++) {
        const initialiser *init = i ? &all[ALL - 1] : &all[ALL - 2];
        world w = open_world();
        tern_tensor *tensor = tern_tensor_from(w.scope, NULL, TERN_F32, 2, high);
        ledger books = {.refuse_at = 1};
        ledger_open(&books);
        tern_error err = {0};
        assert_int_equal(init->call(tensor, w.rng, &err), TERN_E_MEMORY);
        assert_string_equal(err.func, init->name);
        assert_true(((float *)tern_tensor_data(tensor))[0] == 0.0f);
        assert_int_equal(init->call(tensor, w.rng, &w.err), TERN_OK); /* the second request succeeds */
        ledger_close(&books);
        close_world(&w);
    }
}

/* ---- LAPACK ---- */

static void without_lapack(void **state)
{
    (void)state;
    world w = open_world();
    tern_tensor *tensor = tern_tensor_from(w.scope, NULL, TERN_F32, 2, shape);
    static const char *const libraries[] = {"lib-that-is-not-there.so",
                                            "libm.so.6"}; /* a missing file, and a library without LAPACK */
    static const char *const why[] = {"cannot open shared object file", "undefined symbol: sgeqrf_"};
    for (int i = 0; i < 2; i++) {
        tern_error err = {0};
        instead_of_lapack = libraries[i];
        assert_int_equal(orthogonal(tensor, w.rng, &err), TERN_E_UNSUPPORTED);
        instead_of_lapack = NULL;
        assert_string_equal(err.func, "tern_init_orthogonal");
        assert_non_null(strstr(err.text, why[i]));
        assert_non_null(strstr(err.text, "install liblapack3"));
        assert_true(((float *)tern_tensor_data(tensor))[0] == 0.0f);
    }
    assert_int_equal(orthogonal(tensor, w.rng, &w.err), TERN_OK);
    close_world(&w);
}

/* The memory behind the pointer is not accessed: the sizes are checked first. */
static void more_rows_than_lapack_counts(void **state)
{
    (void)state;
    world w = open_world();
    static float none;
    const int64_t rows = (int64_t)INT_MAX + 1;
    for (int turned = 0; turned < 2; turned++) {
        int64_t sizes[2] = {turned ? 1 : rows, turned ? rows : 1};
        tern_tensor *tensor = tern_tensor_wrap(&none, TERN_F32, 2, sizes, NULL, NULL, &w.err);
        assert_ok(w.err);
        expect_refused(&all[ALL - 2], tensor, w.rng, TERN_E_RANGE,
                       "2147483648 rows or columns, LAPACK takes at most 2147483647");
        tern_tensor_free(tensor);
    }
    close_world(&w);
}

/* ---- copies in kernels ---- */

static void every_initialiser_makes_copies_stale(void **state)
{
    (void)state;
    world w = open_world();
    tern_module module;
    tern_module_init(&module, "weights", NULL, &w.err);
    tern_tensor *weights[5] = {[2] = tern_parameter_add(&module, "two", TERN_F32, 2, shape, &w.err),
                               [4] = tern_parameter_add(&module, "four", TERN_F32, 4, shape, &w.err)};
    assert_ok(w.err);
    for (int i = 0; i < ALL; i++) {
        tern_tensor *weight = weights[all[i].ndim];
        uint64_t version = weight->view.packs->version;
        assert_int_equal(all[i].call(weight, w.rng, &w.err), TERN_OK);
        assert_true(weight->view.packs->version > version);
    }
    tern_module_release(&module);
    close_world(&w);
}

/* Compares a convolution with the module's weight, whose copies are kept, with one on a plain copy of it. */
static void expect_fresh(world *w, tern_module *conv, const float *pixels)
{
    tern_tensor *x = tern_tensor_from(w->scope, pixels, TERN_F32, 4, (int64_t[]){2, 16, 5, 5});
    tern_tensor *weight = tern_keep(tern_state_find(conv, "weight"), &w->err);
    tern_tensor *got = tern_keep(tern_forward(conv, w->scope, x), &w->err);
    tern_tensor *want = tern_keep(tern_conv2d(w->scope, x, weight, NULL, NULL), &w->err);
    assert_ok(w->err);
    assert_memory_equal(tern_tensor_data(got), tern_tensor_data(want), 2 * 16 * 3 * 3 * sizeof(float));
    tern_tensor_free(got);
    tern_tensor_free(want);
    tern_tensor_free(weight);
    assert_int_equal(tern_scope_end(w->scope, &w->err), TERN_OK);
}

static void a_sealed_layer_uses_its_new_weight(void **state)
{
    (void)state;
    world w = open_world();
    tern_conv2d_opts opts = tern_conv2d_defaults();
    opts.bias = false;
    tern_module *conv = tern_conv2d_new(16, 16, 3, 3, &opts, w.rng, &w.err);
    static float pixels[2 * 16 * 5 * 5];
    tern_rng_normal(w.rng, pixels, sizeof(pixels) / sizeof(float), 0, 1);
    tern_tensor *x = tern_tensor_from(w.scope, pixels, TERN_F32, 4, (int64_t[]){2, 16, 5, 5});
    assert_int_equal(tern_backward(w.scope, tern_sum(w.scope, tern_forward(conv, w.scope, x))), TERN_OK);
    assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    for (int i = 0; i < 4; i++) expect_fresh(&w, conv, pixels); /* until a copy is kept */
    assert_int_equal(orthogonal(tern_state_find(conv, "weight"), w.rng, &w.err), TERN_OK);
    expect_fresh(&w, conv, pixels);
    tern_module_free(conv);
    close_world(&w);
}

/* ---- constructors ---- */

static tern_module *new_of_layers(tern_rng *rng, tern_error *err)
{
    tern_multihead_attention_opts keys = tern_multihead_attention_defaults();
    keys.kdim = 5;
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_linear_new(3, 4, NULL, rng, err), err);
    tern_sequential_add(net, tern_conv2d_new(3, 4, 2, 2, NULL, rng, err), err);
    tern_sequential_add(net, tern_conv_transpose3d_new(3, 4, 2, 2, 2, NULL, rng, err), err);
    tern_sequential_add(net, tern_embedding_new(5, 3, NULL, rng, err), err);
    tern_sequential_add(net, tern_multihead_attention_new(4, 2, &keys, rng, err), err);
    tern_sequential_add(net, tern_transformer_decoder_new(2, 4, 2, NULL, NULL, rng, err), err);
    tern_sequential_add(net, tern_mlp_new((int64_t[]){3, 4, 2}, 3, rng, err), err);
    return net;
}

static tern_module *new_of_convolutions(tern_rng *rng, tern_error *err)
{
    tern_resnet_opts resnet = tern_resnet_defaults();
    resnet.stages = 2;
    resnet.channels[0] = resnet.channels[1] = 4;
    tern_unet3d_opts unet = tern_unet3d_defaults();
    unet.width = 2;
    unet.levels = 2;
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_resnet_new(&resnet, rng, err), err);
    tern_sequential_add(net, tern_unet3d_new(&unet, rng, err), err);
    return net;
}

static tern_module *new_of_transformers(tern_rng *rng, tern_error *err)
{
    tern_vit_opts vit = tern_vit_defaults();
    vit.image_size = 32;
    vit.layers = 1;
    vit.heads = 2;
    vit.hidden_dim = vit.mlp_dim = vit.representation_size = 8;
    tern_bert_opts bert = tern_bert_defaults();
    bert.vocab_size = 9;
    bert.num_hidden_layers = 1;
    bert.num_attention_heads = 2;
    bert.hidden_size = bert.intermediate_size = 8;
    tern_gpt2_opts gpt2 = tern_gpt2_defaults();
    gpt2.vocab_size = 9;
    gpt2.n_embd = gpt2.n_positions = 8;
    gpt2.n_layer = 1;
    gpt2.n_head = 2;
    tern_llama_opts llama = tern_llama_defaults();
    llama.vocab_size = 9;
    llama.hidden_size = llama.intermediate_size = 8;
    llama.num_hidden_layers = 1;
    llama.num_attention_heads = 2;
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_vit_new(&vit, rng, err), err);
    tern_sequential_add(net, tern_bert_new(&bert, rng, err), err);
    tern_sequential_add(net, tern_gpt2_new(&gpt2, rng, err), err);
    tern_sequential_add(net, tern_llama_new(&llama, rng, err), err);
    return net;
}

/* The weights of norms are those that a drawn twin has as ones. */
static void without_a_generator_weights_are_zeros(void **state)
{
    (void)state;
    tern_module *(*const makes[])(tern_rng *, tern_error *) = {new_of_layers, new_of_convolutions,
                                                               new_of_transformers};
    for (size_t m = 0; m < TERN__COUNT(makes); m++) {
        world w = open_world();
        tern_module *net = makes[m](NULL, &w.err), *twin = makes[m](w.rng, &w.err);
        assert_ok(w.err);
        assert_int_equal(tern_state_count(net), tern_state_count(twin));
        int ones = 0;
        for (int i = 0; i < tern_state_count(net); i++) {
            tern_state_entry entry = tern_state_get(net, i), other = tern_state_get(twin, i);
            assert_string_equal(entry.name, other.name);
            double want = tern_item(tern_mean(w.scope, tern_cast(w.scope, other.tensor, TERN_F32)));
            want = want == 1 && strstr(entry.name, ".num_batches") == NULL;
            ones += want == 1;
            for (int64_t k = 0; k < tern_tensor_count(entry.tensor); k++)
                if (tern__view_get(&entry.tensor->view, k) != want)
                    fail_msg("%s is not %g", entry.name, want);
        }
        assert_true(ones > 0);
        tern_scope_end(w.scope, NULL);
        tern_module_free(net);
        tern_module_free(twin);
        close_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_that_is_null_or_no_f32),
        cmocka_unit_test(a_tensor_that_is_not_row_major),
        cmocka_unit_test(a_tensor_whose_scope_has_ended),
        cmocka_unit_test(no_generator),
        cmocka_unit_test(after_an_error_nothing_is_done),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(without_lapack),
        cmocka_unit_test(more_rows_than_lapack_counts),
        cmocka_unit_test(every_initialiser_makes_copies_stale),
        cmocka_unit_test(a_sealed_layer_uses_its_new_weight),
        cmocka_unit_test(without_a_generator_weights_are_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
