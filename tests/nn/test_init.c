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
    assert_null(tern_linear_new(2, 3, NULL, NULL, &w.err));
    assert_int_equal(w.err.code, TERN_E_INVALID);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
