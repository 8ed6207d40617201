/* test_safetensors.c - safetensors: an independent parser (cJSON and offsets) reads what is written, and
 * loading gives everything back. */
#include "checkpoint/safetensors_file.h"
#include "ledger.h"

#include <cjson/cJSON.h>
#include <stdio.h>

static int save_to(int fd, const tern_object *object, tern_error *err)
{
    static char buffer[1 << 16];
    tern__output out = {.path = "a.safetensors", .temp = "a.safetensors.tmp", .fd = fd, .buffer = buffer};
    int status = tern__safetensors_save(&out, object, err);
    return status ? status : tern__output_flush(&out, err);
}

static int save(const tern_object *object, tern_error *err)
{
    int fd = make_file("", 0);
    save_to(fd, object, err);
    return fd;
}

/* ---- states to save ---- */

static tern_object *tensor_of(tern_dtype dtype, int ndim, const int64_t *shape, tern_error *err)
{
    tern_tensor *tensor = tern__tensor_new(dtype, ndim, shape, err);
    size_t bytes = tern__view_bytes(&tensor->view);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)tensor->view.data)[i] =
            (uint8_t)(dtype == TERN_BOOL ? i % 3 == 0 : i * 37 + (size_t)dtype);
    tern_object *object = tern_object_tensor(tensor, err);
    tern_tensor_free(tensor);
    return object;
}

/* Every dtype, in the least convenient order; odd sizes, so that tensors are aligned only after sorting; a
 * scalar, empty tensors, every number of dimensions. */
static tern_object *every_kind(tern_error *err)
{
    static const int64_t shape[TERN_NDIM_MAX] = {3, 1, 5, 1, 2, 1};
    char name[32];
    tern_object *state = tern_object_dict(err);
    for (int dtype = TERN_DTYPE_COUNT - 1; dtype >= 0; dtype--)
        for (int ndim = 0; ndim <= TERN_NDIM_MAX; ndim++) {
            snprintf(name, sizeof(name), "%s.%d", tern_dtype_name((tern_dtype)dtype), ndim);
            tern_object_set(state, name, tensor_of((tern_dtype)dtype, ndim, shape, err), err);
        }
    tern_object_set(state, "empty", tensor_of(TERN_F32, 2, (int64_t[]){0, 3}, err), err);
    tern_object_set(state, "", tensor_of(TERN_F16, 1, (int64_t[]){0}, err), err);
    tern_object_set(state, "\xc3\xa4 \"quoted\"\\\n\x1b[31m\x7f", tensor_of(TERN_U8, 1, (int64_t[]){1}, err),
                    err);
    return state;
}

static bool is_equal(const tern_object *a, const tern_object *b)
{
    const tern_tensor *x = tern_object_to_tensor(a), *y = tern_object_to_tensor(b);
    if (!x || !y || x->view.dtype != y->view.dtype || !tern__view_same_shape(&x->view, &y->view))
        return false;
    return memcmp(x->view.data, y->view.data, tern__view_bytes(&x->view)) == 0;
}

static void what_is_saved_comes_back(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    tern_error err = {0};
    tern_object *saved = every_kind(&err);
    tern_object *loaded = load(save(saved, &err), true, &err);
    assert_ok(err);
    assert_int_equal(tern_object_count(loaded), tern_object_count(saved));
    for (int64_t i = 0; i < tern_object_count(saved); i++) {
        const char *name = tern_object_to_string(tern_object_key(saved, i));
        if (!is_equal(tern_object_at(saved, i), tern_object_get(loaded, name))) fail_msg("%s", name);
        const tern_tensor *tensor = tern_object_to_tensor(tern_object_get(loaded, name));
        assert_int_equal((uintptr_t)tensor->view.data % TERN__LINE, 0);
    }
    tern_object_free(loaded);
    tern_object_free(saved);
    ledger_close(&books);
}

/* ---- an independent parser ---- */

/* Checks the file with cJSON: each entry, and that its bytes are the tensor's. */
static void check_by_cjson(const uint8_t *file, size_t size, const tern_object *saved)
{
    size_t bytes = 0, end = 0;
    for (int i = 7; i >= 0; i--) bytes = bytes << 8 | file[i];
    assert_int_equal(bytes % 8, 0);
    cJSON *root = cJSON_ParseWithLength((const char *)file + 8, bytes), *entry;
    assert_int_equal(cJSON_GetArraySize(root), tern_object_count(saved));
    cJSON_ArrayForEach(entry, root)
    {
        const tern_tensor *tensor = tern_object_to_tensor(tern_object_get(saved, entry->string));
        assert_non_null(tensor);
        cJSON *shape = cJSON_GetObjectItem(entry, "shape"),
              *place = cJSON_GetObjectItem(entry, "data_offsets");
        assert_int_equal(cJSON_GetArraySize(shape), tensor->view.ndim);
        for (int d = 0; d < tensor->view.ndim; d++)
            assert_int_equal(cJSON_GetArrayItem(shape, d)->valuedouble, tensor->view.shape[d]);
        assert_int_equal(cJSON_GetArrayItem(place, 0)->valuedouble, end);
        assert_int_equal(end % tern_dtype_bytes(tensor->view.dtype), 0);
        const uint8_t *data = file + 8 + bytes + end;
        end += tern__view_bytes(&tensor->view);
        assert_int_equal(cJSON_GetArrayItem(place, 1)->valuedouble, end);
        assert_memory_equal(data, tensor->view.data, tern__view_bytes(&tensor->view));
    }
    assert_int_equal(8 + bytes + end, size);
    cJSON_Delete(root);
}

static void what_is_saved_is_safetensors(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *saved = every_kind(&err);
    int fd = save(saved, &err);
    assert_ok(err);
    size_t size = size_of(fd);
    uint8_t *file = malloc(size);
    assert_int_equal(pread(fd, file, size, 0), size);
    check_by_cjson(file, size, saved);
    free(file);
    close(fd);
    tern_object_free(saved);
}

/* The exact bytes that the Python package 0.8.0 writes. */
static void the_header_is_written_as_safetensors_writes_it(void **state)
{
    (void)state;
    static const char expected[] =
        "{\"__metadata__\":{\"x\":\"\xc3\xa9\\n\"},\"i\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,"
        "8]},"
        "\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[8,16]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,32]},"
        "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[32,32]},"
        "\"\xc3\xbc\\\"\\n\\u0001\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[32,36]},"
        "\"i32\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[36,44]},"
        "\"bf\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[44,50]},"
        "\"h\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[50,56]},"
        "\"s\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[56,60]},"
        "\"c\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[60,63]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[63,66]},"
        "\"bo\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[66,68]}}";
    tern_error err = {0};
    tern_object *saved = tern_object_dict(&err), *metadata = tern_object_dict(&err);
    tern_object_set(saved, "b", tensor_of(TERN_U8, 1, (int64_t[]){3}, &err), &err);
    tern_object_set(saved, "c", tensor_of(TERN_I8, 1, (int64_t[]){3}, &err), &err);
    tern_object_set(saved, "s", tensor_of(TERN_I16, 1, (int64_t[]){2}, &err), &err);
    tern_object_set(saved, "a", tensor_of(TERN_F32, 2, (int64_t[]){2, 2}, &err), &err);
    tern_object_set(saved, "h", tensor_of(TERN_F16, 1, (int64_t[]){3}, &err), &err);
    tern_object_set(saved, "bf", tensor_of(TERN_BF16, 1, (int64_t[]){3}, &err), &err);
    tern_object_set(saved, "d", tensor_of(TERN_F64, 1, (int64_t[]){1}, &err), &err);
    tern_object_set(saved, "i", tensor_of(TERN_I64, 0, NULL, &err), &err);
    tern_object_set(metadata, "x", tern_object_string("\xc3\xa9\n", &err), &err);
    tern_object_set(saved, "__metadata__", metadata, &err);
    tern_object_set(saved, "i32", tensor_of(TERN_I32, 1, (int64_t[]){2}, &err), &err);
    tern_object_set(saved, "bo", tensor_of(TERN_BOOL, 1, (int64_t[]){2}, &err), &err);
    tern_object_set(saved, "e", tensor_of(TERN_F32, 2, (int64_t[]){0, 3}, &err), &err);
    tern_object_set(saved, "\xc3\xbc\"\n\x01", tensor_of(TERN_F32, 1, (int64_t[]){1}, &err), &err);
    int fd = save(saved, &err);
    assert_ok(err);
    char header[sizeof(expected)] = {0};
    assert_int_equal(pread(fd, header, sizeof(expected) - 1, 8), sizeof(expected) - 1);
    assert_string_equal(header, expected);
    tern_object *loaded = load(fd, true, &err);
    const tern_object *read = tern_object_get(loaded, "__metadata__");
    assert_string_equal(tern_object_to_string(tern_object_get(read, "x")), "\xc3\xa9\n");
    tern_object_free(loaded);
    tern_object_free(saved);
}

/* ---- objects that cannot be saved ---- */

static void expect_unsupported(tern_object *object, const char *text)
{
    tern_error err = {0};
    close(save(object, &err));
    assert_string_equal(tern_status_name(err.code), "E_UNSUPPORTED");
    if (!strstr(err.text, text)) fail_msg("expected \"%s\" in: %s", text, err.text);
    assert_string_equal(err.func, "tern_save");
    tern_object_free(object);
}

static void what_is_no_dict_of_tensors_is_named(void **state)
{
    (void)state;
    expect_unsupported(tern_object_list(NULL), "state: expected a dict, got list");
    tern_object *nested = tern_object_dict(NULL);
    tern_object_set(nested, "model", tern_object_dict(NULL), NULL);
    expect_unsupported(nested, "state[\"model\"]: expected a tensor, got dict");
    tern_object *epoch = tern_object_dict(NULL);
    tern_object_set(epoch, "epoch\n", tern_object_int(3, NULL), NULL);
    expect_unsupported(epoch, "state[\"epoch\\n\"]: expected a tensor, got int");
    tern_object *number = tern_object_dict(NULL);
    tern_object_set_at(number, tern_object_int(7, NULL), tensor_of(TERN_F32, 0, NULL, NULL), NULL);
    expect_unsupported(number, "state[7]: expected a name, got int");
    tern_object *list = tern_object_dict(NULL);
    tern_object_set(list, "__metadata__", tern_object_list(NULL), NULL);
    expect_unsupported(list, "state[\"__metadata__\"]: expected a dict, got list");
    tern_object *metadata = tern_object_dict(NULL), *inner = tern_object_dict(NULL);
    tern_object_set(inner, "epoch", tern_object_int(1, NULL), NULL);
    tern_object_set(metadata, "__metadata__", inner, NULL);
    expect_unsupported(metadata, "state[\"__metadata__\"][\"epoch\"]: expected a string, got int");
    metadata = tern_object_dict(NULL), inner = tern_object_dict(NULL);
    tern_object_set_at(inner, tern_object_int(1, NULL), tern_object_string("x", NULL), NULL);
    tern_object_set(metadata, "__metadata__", inner, NULL);
    expect_unsupported(metadata, "state[\"__metadata__\"][1]: expected a name, got int");
}

static void a_disk_that_is_full_is_an_error(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *saved = every_kind(&err);
    FILE *full = fopen("/dev/full", "w");
    if (!full) skip_test("this machine has no /dev/full");
    assert_int_equal(save_to(fileno(full), saved, &err), TERN_E_IO);
    assert_non_null(strstr(err.text, "cannot write a.safetensors.tmp: No space left"));
    fclose(full);
    tern_object_free(saved);
}

/* Lets the n-th allocation fail, for every n until none does. */
static void no_memory_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *saved = every_kind(&err), *metadata = tern_object_dict(&err);
    tern_object_set(metadata, "x", tern_object_string("y", &err), &err);
    tern_object_set(saved, "__metadata__", metadata, &err);
    tern_tensor *plain = tern__tensor_new(TERN_F32, 2, (int64_t[]){2, 3}, &err),
                *strided = tern_keep(plain, &err);
    strided->view.stride[0] = 1; /* transposed */
    strided->view.stride[1] = 2;
    tern_object_set(saved, "strided", tern_object_tensor(strided, &err), &err);
    assert_ok(err);
    int failures[2] = {0};
    for (int loads = 0; loads < 2; loads++)
        for (bool done = false; !done; failures[loads]++) {
            int fd = loads ? save(saved, NULL) : make_file("", 0);
            ledger books = {.refuse_at = failures[loads] + 1};
            tern_error e = {0};
            ledger_open(&books);
            tern_object *dict = NULL;
            if (loads)
                dict = load(dup(fd), true, &e);
            else
                save_to(fd, saved, &e);
            done = e.code == TERN_OK;
            if (!done) assert_int_equal(e.code, TERN_E_MEMORY);
            tern_object_free(dict);
            ledger_close(&books);
            close(fd);
        }
    assert_true(failures[0] >= 4 && failures[1] > 100);
    tern_tensor_free(plain);
    tern_tensor_free(strided);
    tern_object_free(saved);
}

/* A transposed tensor is written row-major, and a tensor that occurs twice is written twice. */
static void strides_and_sharing_are_resolved(void **state)
{
    (void)state;
    tern_error err = {0};
    float values[6] = {0, 1, 2, 3, 4, 5};
    tern_tensor *plain = tern_tensor_wrap(values, TERN_F32, 2, (int64_t[]){2, 3}, NULL, NULL, &err);
    tern_tensor *turned = tern_tensor_wrap(values, TERN_F32, 2, (int64_t[]){3, 2}, NULL, NULL, &err);
    turned->view.stride[0] = 1;
    turned->view.stride[1] = 3;
    tern_object *saved = tern_object_dict(&err);
    tern_object_set(saved, "plain", tern_object_tensor(plain, &err), &err);
    tern_object_set(saved, "tied", tern_object_tensor(plain, &err), &err);
    tern_object_set(saved, "turned", tern_object_tensor(turned, &err), &err);
    tern_object *loaded = load(save(saved, &err), false, &err);
    assert_ok(err);
    static const float expected[] = {0, 3, 1, 4, 2, 5};
    assert_memory_equal(tern_object_to_tensor(tern_object_get(loaded, "turned"))->view.data, expected,
                        sizeof(expected));
    assert_memory_equal(tern_object_to_tensor(tern_object_get(loaded, "plain"))->view.data, values,
                        sizeof(values));
    assert_memory_equal(tern_object_to_tensor(tern_object_get(loaded, "tied"))->view.data, values,
                        sizeof(values));
    tern_object_free(loaded);
    tern_object_free(saved);
    tern_tensor_free(plain);
    tern_tensor_free(turned);
}

/* ---- the public functions ---- */

static void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* The suffix decides the format to save; the suffix or the content the format to load. Metadata only if asked
 * for. */
static void tern_save_and_tern_load_know_it(void **state)
{
    (void)state;
    char folder[] = "/tmp/tern-safetensors-XXXXXX", path[64], other[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/a.safetensors", folder);
    snprintf(other, sizeof(other), "%s/a", folder);
    tern_error err = {0};
    tern_object *saved = every_kind(&err), *metadata = tern_object_dict(&err);
    tern_object_set(metadata, "x", tern_object_string("y", &err), &err);
    tern_object_set(saved, "__metadata__", metadata, &err);
    assert_int_equal(tern_save(path, saved, &err), TERN_OK);
    assert_int_equal(rename(path, other), 0);
    tern_load_opts opts = tern_load_defaults();
    for (int asked = 0; asked < 2; asked++) {
        opts.metadata = asked;
        tern_object *loaded = tern_load(other, &opts, &err);
        assert_ok(err);
        assert_int_equal(tern_object_count(loaded), tern_object_count(saved) - !asked);
        assert_int_equal(tern_object_get(loaded, "__metadata__") != NULL, asked);
        assert_true(is_equal(tern_object_get(loaded, "f32.6"), tern_object_get(saved, "f32.6")));
        tern_object_free(loaded);
    }
    opts.memory = 4096;
    assert_null(tern_load(other, &opts, &err));
    assert_int_equal(err.code, TERN_E_MEMORY);
    assert_non_null(strstr(err.text, "tern_load_opts.memory"));
    err = (tern_error){0};
    write_file(path, "\2\0\0\0\0\0\0\0[]", 10); /* torch.save's by content, but safetensors by suffix */
    assert_null(tern_load(path, NULL, &err));
    assert_int_equal(err.code, TERN_E_FORMAT);
    assert_non_null(strstr(err.text, "a.safetensors: header: at byte 0 expected '{'"));
    unlink(path);
    unlink(other);
    assert_int_equal(rmdir(folder), 0);
    tern_object_free(saved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_comes_back),
        cmocka_unit_test(what_is_saved_is_safetensors),
        cmocka_unit_test(the_header_is_written_as_safetensors_writes_it),
        cmocka_unit_test(what_is_no_dict_of_tensors_is_named),
        cmocka_unit_test(a_disk_that_is_full_is_an_error),
        cmocka_unit_test(no_memory_is_an_error_and_leaks_nothing),
        cmocka_unit_test(strides_and_sharing_are_resolved),
        cmocka_unit_test(tern_save_and_tern_load_know_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
