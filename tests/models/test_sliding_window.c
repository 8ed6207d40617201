#include "check.h"
#include "ledger.h"

#include <math.h>
#include <string.h>

static tern_device *device;
static tern_scope *scope;

static int setup(void **state)
{
    (void)state;
    tern_error err = {0};
    device = tern_device_open("cpu", &err);
    scope = tern_scope_new(device, NULL, &err);
    return err.code;
}

static int teardown(void **state)
{
    (void)state;
    tern_scope_free(scope);
    tern_device_close(device);
    return 0;
}

/* ---- networks that are functions of one voxel ---- */

static tern_tensor *constant(tern_scope *s, double value)
{
    return tern_full(s, TERN_F32, 0, NULL, value);
}

/* x x - 1: of any number of channels. */
static tern_tensor *square(tern_module *module, tern_scope *s, tern_tensor *x)
{
    assert_false(module->training);
    return tern_sub(s, tern_mul(s, x, x), constant(s, 1));
}

/* (x, -x, 2 x) of the one channel. */
static tern_tensor *three(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)module;
    tern_tensor *parts[] = {x, tern_mul(s, x, constant(s, -1)), tern_mul(s, x, constant(s, 2))};
    return tern_cat(s, 3, parts, 1);
}

static tern_tensor *flat(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)module;
    return tern_sum(s, x);
}

static tern_volume *random_volume(const int64_t shape[4], uint64_t seed)
{
    tern_error err = {0};
    tern_volume *volume = tern_volume_new(shape, &err);
    tern_rng *rng = tern_rng_new(seed, &err);
    assert_ok(err);
    tern_rng_normal(rng, volume->values, (size_t)(shape[0] * shape[1] * shape[2] * shape[3]), 0, 1);
    tern_rng_free(rng);
    return volume;
}

static tern_window_opts small(void)
{
    tern_window_opts opts = tern_window_defaults();
    memcpy(opts.patch, ((int64_t[]){4, 6, 8}), sizeof(opts.patch));
    opts.output = TERN_WINDOW_RAW;
    opts.std = 1; /* values as they are */
    return opts;
}

static tern_volume *slide(tern_forward_fn forward, const tern_volume *volume, int classes,
                          const tern_window_opts *opts, tern_error *err)
{
    tern_module net;
    tern_module_init(&net, "net", forward, err);
    tern_train(&net);
    tern_volume *result = tern_sliding_window(&net, scope, volume, classes, opts, err);
    assert_true(net.training);
    tern_module_release(&net);
    return result;
}

/* Sizes below, at and above the patch's, and ones that the steps do not divide. */
static const int64_t shapes[][4] = {{1, 4, 6, 8},   {1, 3, 2, 5},  {2, 11, 6, 8}, {1, 4, 13, 30},
                                    {2, 9, 17, 21}, {1, 2, 20, 8}, {1, 1, 1, 1}};

static void a_function_of_voxels_comes_out_exactly(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int blend = 0; blend <= TERN_BLEND_CONSTANT; blend++)
            for (int64_t batch = 1; batch <= 4; batch += 3)
                for (double overlap = 0; overlap < 0.9; overlap += 0.28) {
                    tern_error err = {0};
                    tern_window_opts opts = small();
                    opts.blend = (tern_blend)blend;
                    opts.batch = batch;
                    opts.overlap = overlap;
                    tern_volume *volume = random_volume(shapes[i], i);
                    tern_volume *result = slide(square, volume, (int)shapes[i][0], &opts, &err);
                    assert_ok(err);
                    assert_memory_equal(result->shape, shapes[i], sizeof(result->shape));
                    int64_t count = shapes[i][0] * shapes[i][1] * shapes[i][2] * shapes[i][3];
                    for (int64_t v = 0; v < count; v++) {
                        float x = volume->values[v], squared = x * x;
                        assert_true(result->values[v] == squared - 1);
                    }
                    tern_volume_free(result);
                    tern_volume_free(volume);
                }
}

/* Adds to each voxel how many patches have come before: what is blended differs from patch to patch. */
static int64_t calls;
static tern_tensor *number_of_call(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)module;
    return tern_add(s, tern_mul(s, x, constant(s, 0)), constant(s, (double)calls++));
}

/* Two patches of 8 over 12 voxels: 0 before the overlap, 1 behind it, and in it the second one's share of the
 * two bells (or of two ones). */
static void patches_are_blended_by_their_weights(void **state)
{
    (void)state;
    for (int blend = 0; blend <= TERN_BLEND_CONSTANT; blend++) {
        tern_error err = {0};
        tern_window_opts opts = small();
        memcpy(opts.patch, ((int64_t[]){1, 1, 8}), sizeof(opts.patch));
        opts.blend = (tern_blend)blend;
        tern_volume *volume = random_volume((int64_t[]){1, 1, 1, 12}, 1);
        calls = 0;
        tern_volume *result = slide(number_of_call, volume, 1, &opts, &err);
        assert_ok(err);
        assert_int_equal(calls, 2);
        for (int v = 0; v < 12; v++) {
            double a = exp(-pow(v + 0.5 - 4, 2) / 2), b = exp(-pow(v - 4 + 0.5 - 4, 2) / 2);
            double share = blend == TERN_BLEND_CONSTANT ? 0.5 : b / (a + b);
            double expected = v < 4 ? 0 : v >= 8 ? 1 : share;
            assert_true(fabs((double)result->values[v] - expected) < 1e-7);
        }
        tern_volume_free(result);
        tern_volume_free(volume);
    }
}

static void one_class_is_a_sigmoid(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_window_opts opts = small();
    tern_volume *volume = random_volume((int64_t[]){1, 5, 9, 11}, 3);
    opts.output = TERN_WINDOW_PROBABILITIES;
    tern_volume *p = slide(square, volume, 1, &opts, &err);
    opts.output = TERN_WINDOW_CLASSES;
    tern_volume *c = slide(square, volume, 1, &opts, &err);
    assert_ok(err);
    for (int v = 0; v < 5 * 9 * 11; v++) {
        double x = volume->values[v], logit = x * x - 1;
        assert_true(fabs((double)p->values[v] - 1 / (1 + exp(-logit))) < 1e-6);
        assert_true(c->values[v] == (fabs(x) > 1));
    }
    tern_volume_free(p);
    tern_volume_free(c);
    tern_volume_free(volume);
}

static void several_classes_are_a_softmax(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_window_opts opts = small();
    enum { VOXELS = 5 * 9 * 11 };
    tern_volume *volume = random_volume((int64_t[]){1, 5, 9, 11}, 4);
    opts.output = TERN_WINDOW_PROBABILITIES;
    opts.batch = 3;
    tern_volume *p = slide(three, volume, 3, &opts, &err);
    opts.output = TERN_WINDOW_CLASSES;
    tern_volume *c = slide(three, volume, 3, &opts, &err);
    assert_ok(err);
    assert_memory_equal(p->shape, ((int64_t[]){3, 5, 9, 11}), sizeof(p->shape));
    assert_memory_equal(c->shape, ((int64_t[]){1, 5, 9, 11}), sizeof(c->shape));
    for (int v = 0; v < VOXELS; v++) {
        double x = volume->values[v], e[3] = {exp(x), exp(-x), exp(2 * x)}, sum = e[0] + e[1] + e[2];
        for (int k = 0; k < 3; k++) assert_true(fabs((double)p->values[k * VOXELS + v] - e[k] / sum) < 1e-6);
        assert_true(c->values[v] == (x > 0 ? 2 : 1));
    }
    tern_volume_free(p);
    tern_volume_free(c);
    tern_volume_free(volume);
}

/* The volume's own mean and deviation by default; what lies beyond a small volume counts as its mean. */
static tern_tensor *as_it_is(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)module;
    float values[24];
    tern_tensor_read(x, values, sizeof(values), NULL);
    for (int i = 12; i < 24; i++) assert_true(values[i] == 0);
    return tern_mul(s, x, constant(s, 1));
}

static void values_are_normalised_and_padded(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_window_opts opts = small();
    memcpy(opts.patch, ((int64_t[]){2, 3, 4}), sizeof(opts.patch));
    opts.std = 0;
    tern_volume *volume = tern_volume_new((int64_t[]){1, 1, 3, 4}, &err);
    for (int i = 0; i < 12; i++) volume->values[i] = i % 2 ? 7.0f : 3.0f;
    tern_volume *result = slide(as_it_is, volume, 1, &opts, &err);
    assert_ok(err);
    for (int i = 0; i < 12; i++) assert_true(result->values[i] == (i % 2 ? 1 : -1));
    tern_volume_free(result);
    tern_volume_free(volume);
}

static void the_result_is_where_the_source_is(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_window_opts opts = small();
    tern_volume *volume = random_volume((int64_t[]){1, 2, 2, 2}, 1);
    volume->affine[1][3] = -4.5;
    volume->spacing[2] = 0.5;
    volume->header[40] = 7;
    tern_volume *result = slide(square, volume, 1, &opts, &err);
    assert_ok(err);
    assert_memory_equal(result->affine, volume->affine, sizeof(volume->affine));
    assert_memory_equal(result->spacing, volume->spacing, sizeof(volume->spacing));
    assert_memory_equal(result->header, volume->header, sizeof(volume->header));
    tern_volume_free(result);
    tern_volume_free(volume);
}

static void expect_error(tern_forward_fn forward, int classes, const tern_window_opts *opts, int code,
                         const char *text)
{
    tern_error err = {0};
    tern_volume *volume = random_volume((int64_t[]){1, 5, 5, 5}, 1);
    assert_null(slide(forward, volume, classes, opts, &err));
    assert_string_equal(tern_status_name(err.code), tern_status_name(code));
    if (!strstr(err.text, text)) fail_msg("expected \"%s\" in: %s", text, err.text);
    tern_volume_free(volume);
}

#define WITH(change, code, text)                                                                             \
    do {                                                                                                     \
        tern_window_opts opts = small();                                                                     \
        change;                                                                                              \
        expect_error(square, 1, &opts, code, text);                                                          \
    } while (0)

static void impossible_options_are_refused(void **state)
{
    (void)state;
    WITH(opts.patch[2] = 0, TERN_E_RANGE, "patch[2] is 0");
    WITH(opts.overlap = 1, TERN_E_RANGE, "overlap is 1");
    WITH(opts.std = -1, TERN_E_RANGE, "std -1");
    WITH(opts.batch = 0, TERN_E_RANGE, "batch is 0");
    WITH(opts.blend = (tern_blend)2, TERN_E_RANGE, "blend is 2");
    WITH(opts.output = (tern_window_output)3, TERN_E_RANGE, "output 3");
    tern_window_opts opts = small();
    expect_error(square, 0, &opts, TERN_E_RANGE, "classes 0");
}

static tern_tensor *failing(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)module;
    return tern_matmul(s, x, tern_full(s, TERN_F32, 2, (int64_t[]){3, 5}, 1));
}

static void what_the_network_returns_is_checked(void **state)
{
    (void)state;
    tern_window_opts opts = small();
    expect_error(square, 2, &opts, TERN_E_SHAPE, "expected (1, 2, 4, 6, 8)");
    expect_error(flat, 1, &opts, TERN_E_SHAPE, "0 dimensions");
    expect_error(failing, 1, &opts, TERN_E_SHAPE, "matmul");
    tern_error err = {0};
    tern_volume *volume = random_volume(shapes[0], 1);
    tern_volume_free(slide(square, volume, 1, &opts, &err)); /* the scope works on */
    assert_ok(err);
    tern_volume_free(volume);
}

static void every_refused_allocation_is_an_error(void **state)
{
    (void)state;
    tern_window_opts opts = small();
    tern_volume *volume = random_volume(shapes[0], 1);
    tern_module net;
    tern_error none = {0};
    tern_module_init(&net, "net", square, &none);
    tern_volume_free(tern_sliding_window(&net, scope, volume, 1, &opts, &none)); /* the scope is warm */
    assert_ok(none);
    for (int n = 1; n <= 11; n++) {
        tern_error err = {0};
        ledger books = {.refuse_at = n};
        ledger_open(&books);
        assert_null(tern_sliding_window(&net, scope, volume, 1, &opts, &err));
        assert_int_equal(err.code, TERN_E_MEMORY);
        ledger_close(&books);
    }
    tern_module_release(&net);
    tern_volume_free(volume);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_function_of_voxels_comes_out_exactly),
        cmocka_unit_test(patches_are_blended_by_their_weights),
        cmocka_unit_test(one_class_is_a_sigmoid),
        cmocka_unit_test(several_classes_are_a_softmax),
        cmocka_unit_test(values_are_normalised_and_padded),
        cmocka_unit_test(the_result_is_where_the_source_is),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(what_the_network_returns_is_checked),
        cmocka_unit_test(every_refused_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
