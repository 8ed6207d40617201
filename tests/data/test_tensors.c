/* test_tensors.c - a dataset of two tensors: its samples, also through a loader, and refused tensors. */
#include "check.h"
#include "ledger.h"

#include "tensor/tensor.h"

#include <tern/data.h>
#include <tern/nn.h>

enum { LENGTH = 5 };

static tern_tensor *wrap(void *data, tern_dtype dtype, int ndim, const int64_t *shape)
{
    tern_error err = {0};
    tern_tensor *tensor = tern_tensor_wrap(data, dtype, ndim, shape, NULL, NULL, &err);
    assert_ok(err);
    return tensor;
}

static void samples_and_labels(void **state)
{
    (void)state;
    float x[LENGTH][2][3], sample[2][3];
    int64_t y[LENGTH], label;
    tern_error err = {0};
    for (int i = 0; i < LENGTH * 6; i++) (&x[0][0][0])[i] = (float)i;
    for (int i = 0; i < LENGTH; i++) y[i] = 10 * i;
    tern_tensor *tx = wrap(x, TERN_F32, 3, (int64_t[]){LENGTH, 2, 3});
    tern_tensor *ty = wrap(y, TERN_I64, 1, (int64_t[]){LENGTH});
    tern_dataset *set = tern_tensor_dataset_new(tx, ty, &err);
    assert_ok(err);
    tern_tensor_free(tx); /* the dataset holds a reference to the memory */
    tern_tensor_free(ty);
    assert_true(set->length == LENGTH && set->ndim == 2 && set->shape[0] == 2 && set->shape[1] == 3);
    assert_true(set->target_ndim == 0 && set->classes == 0);
    for (int i = 0; i < LENGTH; i++) {
        assert_int_equal(set->get(set, 0, i, &sample[0][0], &label, &err), TERN_OK);
        assert_memory_equal(sample, x[i], sizeof(sample));
        assert_int_equal(label, 10 * i);
    }
    tern_dataset_free(set);
}

static void maps_through_a_loader(void **state)
{
    (void)state;
    float x[LENGTH], got[LENGTH];
    uint8_t y[LENGTH][2], maps[LENGTH][2];
    tern_error err = {0};
    for (int i = 0; i < LENGTH; i++) x[i] = (float)i, y[i][0] = (uint8_t)i, y[i][1] = 255;
    tern_tensor *tx = wrap(x, TERN_F32, 1, (int64_t[]){LENGTH});
    tern_tensor *ty = wrap(y, TERN_U8, 2, (int64_t[]){LENGTH, 2});
    tern_dataset *set = tern_tensor_dataset_new(tx, ty, &err);
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = LENGTH;
    tern_loader *loader = tern_loader_new(set, &opts, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    assert_ok(err);
    tern_batch b;
    assert_true(tern_loader_next(loader, s, &b));
    assert_int_equal(tern_tensor_ndim(b.x), 2);
    assert_int_equal(tern_tensor_shape(b.x)[1], 1);
    assert_int_equal(tern_tensor_read(b.x, got, sizeof(got), &err), TERN_OK);
    assert_int_equal(tern_tensor_read(b.y, maps, sizeof(maps), &err), TERN_OK);
    assert_memory_equal(got, x, sizeof(x));
    assert_memory_equal(maps, y, sizeof(y));
    tern_scope_free(s);
    tern_device_close(device);
    tern_loader_free(loader);
    tern_dataset_free(set);
    tern_tensor_free(ty);
    tern_tensor_free(tx);
}

/* Samples of other dtypes than f32 come as they are: integers that f32 does not hold, bytes, halves. */
static void samples_of_any_dtype(void **state)
{
    (void)state;
    static const tern_dtype dtypes[] = {TERN_I64, TERN_I32, TERN_U8, TERN_F64, TERN_BF16, TERN_BOOL};
    for (size_t d = 0; d < TERN__COUNT(dtypes); d++) {
        unsigned char x[LENGTH * 3 * 8], got[2 * 3 * 8];
        int64_t y[LENGTH] = {0}, chosen[] = {4, 1};
        size_t bytes = tern_dtype_bytes(dtypes[d]);
        tern_error err = {0};
        for (size_t i = 0; i < sizeof(x); i++)
            x[i] = (unsigned char)(dtypes[d] == TERN_BOOL ? i % 2 : 37 * i);
        tern_tensor *tx = wrap(x, dtypes[d], 2, (int64_t[]){LENGTH, 3});
        tern_tensor *ty = wrap(y, TERN_I64, 1, (int64_t[]){LENGTH});
        tern_dataset *set = tern_tensor_dataset_new(tx, ty, &err);
        tern_dataset *all = tern_readable_new(set, NULL, &err), *part = tern_subset_new(all, chosen, 2, &err);
        tern_loader_opts opts = tern_loader_defaults();
        opts.batch_size = 2;
        tern_loader *loader = tern_loader_new(part, &opts, &err);
        tern_device *device = tern_device_open("cpu", &err);
        tern_scope *s = tern_scope_new(device, NULL, &err);
        assert_ok(err);
        tern_batch b;
        assert_true(tern_loader_next(loader, s, &b));
        assert_int_equal(tern_tensor_dtype(b.x), dtypes[d]);
        assert_int_equal(tern_tensor_read(b.x, got, 2 * 3 * bytes, &err), TERN_OK);
        assert_memory_equal(got, x + 4 * 3 * bytes, 3 * bytes);
        assert_memory_equal(got + 3 * bytes, x + 3 * bytes, 3 * bytes);
        tern_scope_free(s);
        tern_device_close(device);
        tern_loader_free(loader);
        tern_dataset_free(part);
        tern_dataset_free(all);
        tern_dataset_free(set);
        tern_tensor_free(ty);
        tern_tensor_free(tx);
    }
}

static void expect(const tern_tensor *x, const tern_tensor *y, int code, const char *text)
{
    tern_error err = {0};
    assert_null(tern_tensor_dataset_new(x, y, &err));
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_tensor_dataset_new");
    if (text) assert_string_equal(err.text, text);
}

static void what_is_refused(void **state)
{
    (void)state;
    static float data[2 * 2 * 2 * 2 * 2 * 2];
    static int64_t labels[4];
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    tern_rng *rng = tern_rng_new(0, &err);
    tern_module *linear = tern_linear_new(2, 2, NULL, rng, &err);
    tern_tensor *x = wrap(data, TERN_F32, 2, (int64_t[]){4, 2});
    tern_tensor *y = wrap(labels, TERN_I64, 1, (int64_t[]){4});
    tern_tensor *few = wrap(labels, TERN_I64, 1, (int64_t[]){3});
    tern_tensor *deep = wrap(data, TERN_F32, 6, (int64_t[]){2, 2, 2, 2, 2, 2});
    assert_ok(err);
    expect(NULL, y, TERN_E_INVALID, NULL);
    expect(x, NULL, TERN_E_INVALID, NULL);
    expect(x, few, TERN_E_SHAPE, "x has 4 samples but y has 3");
    expect(deep, y, TERN_E_SHAPE, "x has 6 dimensions, expected 1 to 5");
    tern_tensor *values = wrap(data, TERN_F32, 1, (int64_t[]){4});
    expect(x, values, TERN_E_DTYPE, "y is f32, expected labels of i64");
    expect(tern_full(s, TERN_F32, 2, (int64_t[]){4, 2}, 0), y, TERN_E_LIFETIME,
           "x belongs to a scope, which may end before the dataset: tern_keep it first");
    expect(tern_state_find(linear, "weight"), y, TERN_E_LIFETIME,
           "x belongs to a module, which may end before the dataset: tern_keep it first");
    tern_tensor *gaps =
        tern__tensor_over(x->storage, data, TERN_F32, 2, (int64_t[]){4, 2}, (int64_t[]){4, 1}, "test", &err);
    assert_ok(err);
    expect(gaps, y, TERN_E_UNSUPPORTED, "x is not row-major without gaps: tern_keep it");
    tern_tensor_free(gaps);
    tern_tensor_free(values);
    tern_tensor_free(deep);
    tern_tensor_free(few);
    tern_tensor_free(y);
    tern_tensor_free(x);
    tern_module_free(linear);
    tern_rng_free(rng);
    tern_scope_free(s);
    tern_device_close(device);
}

static void out_of_memory(void **state)
{
    (void)state;
    static float x[4];
    static int64_t y[4];
    tern_error err = {0};
    ledger books = {0};
    ledger_open(&books);
    tern_tensor *tx = wrap(x, TERN_F32, 1, (int64_t[]){4}), *ty = wrap(y, TERN_I64, 1, (int64_t[]){4});
    books.refuse_at = books.requests + 1;
    assert_null(tern_tensor_dataset_new(tx, ty, &err));
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_null(tern_tensor_dataset_new(tx, ty, &err)); /* an error that is set is kept */
    assert_int_equal(books.requests, books.refuse_at);
    tern_tensor_free(ty);
    tern_tensor_free(tx);
    ledger_close(&books);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_and_labels),   cmocka_unit_test(maps_through_a_loader),
        cmocka_unit_test(samples_of_any_dtype), cmocka_unit_test(what_is_refused),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
