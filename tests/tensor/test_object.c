/* test_object.c - nested objects: values, ownership, and no leaks when memory runs out. */
#include "check.h"
#include "ledger.h"
#include "printing.h"
#include "tensor/object.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the printed text, which the caller frees. */
static char *text_of(const tern_object *object)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    tern__object_print(file, object);
    fclose(file);
    return text;
}

static void assert_prints(const tern_object *object, const char *expected)
{
    char *text = text_of(object);
    assert_string_equal(text, expected);
    free(text);
}

static tern_object *example(tern_error *err)
{
    static float values[6] = {1, 2, 3, 4, 5, 6};
    tern_tensor *tensor = tern_tensor_wrap(values, TERN_F32, 2, (int64_t[]){2, 3}, NULL, NULL, err);
    tern_object *state = tern_object_dict(err), *list = tern_object_list(err),
                *tuple = tern_object_tuple(err);
    tern_object_set(state, "none", tern_object_none(err), err);
    tern_object_set(state, "list", list, err);
    tern_object_append(list, tern_object_bool(true, err), err);
    tern_object_append(list, tern_object_int(-7, err), err);
    tern_object_append(list, tern_object_float(0.1, err), err);
    tern_object_append(tuple, tern_object_string("caf\303\251", err), err);
    tern_object_set_at(state, tern_object_int(3, err), tuple, err);
    tern_object_set(state, "weight", tern_object_tensor(tensor, err), err);
    tern_object_set(state, "raw", tern_object_bytes("a\0\xff", 3, err), err);
    tern_object_set(state, "net",
                    tern_object_record("my.Net", tern_object_tuple(err), tern_object_dict(err), err), err);
    tern_tensor_free(tensor);
    return state;
}

static void what_goes_in_comes_out(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *object = example(&err);
    assert_ok(err);
    assert_prints(object, "{'none': None, 'list': [True, -7, 0.1], 3: ('caf\303\251',), "
                          "'weight': tensor(f32 (2, 3)), 'raw': b'a\\x00\\xff', 'net': <my.Net() {}>}");
    assert_int_equal(tern_object_count(object), 6);
    assert_string_equal(tern_object_to_string(tern_object_key(object, 1)), "list");
    const tern_object *list = tern_object_get(object, "list");
    assert_ptr_equal(list, tern_object_at(object, 1));
    bool b = false;
    int64_t i = 0;
    double f = 0;
    assert_int_equal(tern_object_to_bool(tern_object_at(list, 0), &b, &err), TERN_OK);
    assert_int_equal(tern_object_to_int(tern_object_at(list, 1), &i, &err), TERN_OK);
    assert_int_equal(tern_object_to_float(tern_object_at(list, 2), &f, &err), TERN_OK);
    assert_true(b && i == -7 && f == 0.1);
    assert_int_equal(tern_object_to_int(tern_object_at(list, 0), &i, &err), TERN_OK);
    assert_int_equal(tern_object_to_float(tern_object_at(list, 1), &f, &err), TERN_OK);
    assert_true(i == 1 && f == -7);
    const tern_object *tuple = tern_object_get_at(object, 3), *raw = tern_object_get(object, "raw");
    assert_int_equal(tern_object_kind_get(tuple), TERN_OBJECT_TUPLE);
    assert_int_equal(tern_object_count(tern_object_at(tuple, 0)), 5);
    assert_int_equal(tern_object_count(raw), 3);
    assert_memory_equal(tern_object_to_bytes(raw), "a\0\xff", 3);
    assert_int_equal(tern_tensor_count(tern_object_to_tensor(tern_object_get(object, "weight"))), 6);
    const tern_object *record = tern_object_get(object, "net");
    assert_string_equal(tern_object_record_name(record), "my.Net");
    assert_int_equal(tern_object_kind_get(tern_object_record_args(record)), TERN_OBJECT_TUPLE);
    assert_int_equal(tern_object_kind_get(tern_object_record_state(record)), TERN_OBJECT_DICT);
    tern_object_free(object);
}

static void a_printed_object_is_a_line(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *object = example(&err);
    char text[64];
    printing p = printing_begin();
    tern_object_print(tern_object_get(object, "list"));
    tern_object_print(NULL);
    assert_string_equal(printing_end(p, text, sizeof(text)), "[True, -7, 0.1]\nNone\n");
    tern_object_free(object);
}

static void what_is_not_there(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *object = example(&err);
    const tern_object *list = tern_object_get(object, "list");
    assert_null(tern_object_get(object, "weigh"));
    assert_null(tern_object_get(object, NULL));
    assert_null(tern_object_get_at(object, 4));
    assert_null(tern_object_get(list, "a"));
    assert_null(tern_object_at(object, 6));
    assert_null(tern_object_at(object, -1));
    assert_null(tern_object_at(NULL, 0));
    assert_null(tern_object_key(list, 0));
    assert_null(tern_object_to_string(list));
    assert_null(tern_object_to_bytes(tern_object_at(tern_object_get_at(object, 3), 0)));
    assert_null(tern_object_to_tensor(list));
    assert_null(tern_object_record_name(list));
    assert_null(tern_object_record_args(NULL));
    assert_null(tern_object_record_state(object));
    assert_int_equal(tern_object_count(tern_object_get(object, "net")), 0);
    assert_null(tern_object_at(tern_object_get(object, "net"), 0));
    assert_int_equal(tern_object_count(NULL), 0);
    assert_int_equal(tern_object_kind_get(NULL), TERN_OBJECT_NONE);
    assert_string_equal(tern_object_kind_name(TERN_OBJECT_RECORD), "record");
    assert_string_equal(tern_object_kind_name((tern_object_kind)99), "?");
    tern_object_free(object);
    tern_object_free(NULL);
}

static void values_of_another_kind(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *text = tern_object_string("1", &err), *f = tern_object_float(1, &err);
    int64_t i = 5;
    bool b;
    double d;
    assert_int_equal(tern_object_to_int(f, &i, &err), TERN_E_DTYPE);
    assert_string_equal(err.text, "expected int, got float");
    assert_int_equal(tern_object_to_float(text, &d, NULL), TERN_E_DTYPE);
    assert_int_equal(tern_object_to_bool(f, &b, NULL), TERN_E_DTYPE);
    assert_int_equal(tern_object_to_int(NULL, &i, NULL), TERN_E_INVALID);
    tern_object *none = tern_object_none(NULL);
    assert_int_equal(tern_object_to_bool(none, &b, NULL), TERN_E_DTYPE);
    assert_int_equal(i, 5);
    tern_object_free(none);
    tern_object_free(text);
    tern_object_free(f);
}

static void strings_are_utf8(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "\x80", "\xc3",     "\xc0\x80",      "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xff", "\xe2\x82", "a\xf0\x9f\x98", "\xe0\x80\x80"};
    static const char *const right[] = {
        "", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\xee\x80\x80"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        tern_error err = {0};
        assert_null(tern_object_string(wrong[i], &err));
        assert_int_equal(err.code, TERN_E_FORMAT);
        err.code = 0;
        assert_null(tern_object_record(wrong[i], NULL, NULL, &err));
        assert_int_equal(err.code, TERN_E_FORMAT);
    }
    for (size_t i = 0; i < sizeof(right) / sizeof(*right); i++) {
        tern_error err = {0};
        tern_object_free(tern_object_string(right[i], &err));
        assert_ok(err);
    }
    tern_error err = {0};
    assert_null(tern_object_string(NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_null(tern_object_bytes(NULL, 1, NULL));
    tern_object_free(tern_object_bytes(NULL, 0, NULL));
}

static void equal_numbers_are_one_key(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *dict = tern_object_dict(&err);
    tern_object_set_at(dict, tern_object_int(1, &err), tern_object_int(10, &err), &err);
    tern_object_set(dict, "1", tern_object_int(11, &err), &err);
    tern_object_set_at(dict, tern_object_bytes("1", 1, &err), tern_object_int(12, &err), &err);
    tern_object_set_at(dict, tern_object_bool(true, &err), tern_object_int(13, &err), &err);
    tern_object_set_at(dict, tern_object_float(1, &err), tern_object_int(14, &err), &err);
    tern_object_set_at(dict, tern_object_float(1.5, &err), tern_object_int(15, &err), &err);
    tern_object_set_at(dict, tern_object_none(&err), tern_object_int(16, &err), &err);
    tern_object_set_at(dict, tern_object_float(INFINITY, &err), tern_object_int(17, &err), &err);
    assert_ok(err);
    assert_prints(dict, "{1: 14, '1': 11, b'1': 12, 1.5: 15, None: 16, inf: 17}");
    tern_object_free(dict);
}

/* Every key is found, in the order of insertion, and a second value replaces the first. */
static void a_large_dict(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    tern_error err = {0};
    tern_object *dict = tern_object_dict(&err);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < COUNT; i++) {
            char key[16];
            snprintf(key, sizeof(key), "key%d", i * 7 % COUNT);
            tern_object_set(dict, key, tern_object_int(i + round, &err), &err);
        }
    assert_ok(err);
    assert_int_equal(tern_object_count(dict), COUNT);
    for (int i = 0; i < COUNT; i++) {
        char key[16];
        int64_t value = 0;
        snprintf(key, sizeof(key), "key%d", i * 7 % COUNT);
        assert_string_equal(tern_object_to_string(tern_object_key(dict, i)), key);
        assert_ptr_equal(tern_object_get(dict, key), tern_object_at(dict, i));
        tern_object_to_int(tern_object_at(dict, i), &value, &err);
        assert_int_equal(value, i + 1);
    }
    assert_null(tern_object_get(dict, "key20000"));
    tern_object_free(dict);
}

static void one_owner(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *list = tern_object_list(&err), *inner = tern_object_list(&err),
                *dict = tern_object_dict(&err);
    assert_int_equal(tern_object_append(list, inner, &err), TERN_OK);
    assert_int_equal(tern_object_append(dict, tern_object_none(&err), &err), TERN_E_INVALID);
    assert_string_equal(err.text, "expected a list or tuple, got a dict");
    assert_int_equal(tern_object_append(list, inner, NULL), TERN_E_INVALID);
    assert_int_equal(tern_object_set(dict, "a", inner, NULL), TERN_E_INVALID);
    assert_int_equal(tern_object_append(inner, list, NULL), TERN_E_INVALID); /* a cycle */
    assert_int_equal(tern_object_append(list, list, NULL), TERN_E_INVALID);
    assert_int_equal(tern_object_append(list, NULL, NULL), TERN_E_INVALID);
    assert_int_equal(tern_object_append(NULL, tern_object_none(NULL), NULL), TERN_E_INVALID);
    assert_int_equal(tern_object_set(list, "a", tern_object_none(NULL), NULL), TERN_E_INVALID);
    assert_int_equal(tern_object_set(dict, NULL, tern_object_none(NULL), NULL), TERN_E_INVALID);
    assert_int_equal(tern_object_set_at(dict, tern_object_list(NULL), tern_object_none(NULL), NULL),
                     TERN_E_INVALID);
    tern_object *both = tern_object_none(NULL);
    assert_int_equal(tern_object_set_at(dict, both, both, NULL), TERN_E_INVALID);
    assert_null(tern_object_record(NULL, tern_object_tuple(NULL), tern_object_dict(NULL), NULL));
    assert_null(tern_object_record("a", tern_object_list(NULL), NULL, NULL));
    assert_null(tern_object_record("a", NULL, inner, NULL));
    tern_object_free(inner); /* the list owns it */
    assert_prints(list, "[[]]");
    assert_int_equal(tern_object_count(dict), 0);
    tern_object_free(list);
    tern_object_free(dict);
}

static void after_a_failure_nothing_is_done(void **state)
{
    (void)state;
    tern_error err = {.code = TERN_E_IO};
    tern_object *list = tern_object_list(NULL);
    assert_null(tern_object_none(&err));
    assert_null(tern_object_string("a", &err));
    assert_null(tern_object_record("a", tern_object_tuple(NULL), NULL, &err));
    assert_null(tern_object_tensor(NULL, &err));
    assert_int_equal(tern_object_append(list, NULL, &err), TERN_E_IO);
    assert_int_equal(tern_object_append(list, tern_object_none(NULL), &err), TERN_E_IO);
    assert_int_equal(tern_object_count(list), 0);
    tern_object_free(list);
}

/* Whichever allocation fails, all memory is freed. */
static void out_of_memory(void **state)
{
    (void)state;
    int made = 0;
    for (int at = 1; made == 0; at++) {
        ledger books = {.refuse_at = at};
        ledger_open(&books);
        tern_error err = {0};
        tern_object *object = example(&err);
        for (int i = 0; i < 40; i++)
            tern_object_set_at(object, tern_object_int(i, &err), tern_object_int(i, &err), &err);
        if (err.code)
            assert_int_equal(err.code, TERN_E_MEMORY);
        else
            made = at;
        tern_object_free(object);
        ledger_close(&books);
    }
    assert_in_range(made, 60, 300);
}

/* A million containers inside each other: freeing does not recurse, and printing ends. */
static void very_deep(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_object *root = tern_object_list(&err);
    for (int i = 0; i < 1000000; i++) {
        tern_object *outer = tern_object_list(&err);
        tern_object_append(outer, root, &err);
        root = outer;
    }
    assert_ok(err);
    char *text = text_of(root);
    assert_int_equal(strlen(text), 2 * 101 + 3);
    free(text);
    tern_object_free(root);
}

/* ---- tensors ---- */

static void a_kept_tensor_may_go_before(void **state)
{
    (void)state;
    float *values = calloc(2, sizeof(*values));
    tern_error err = {0};
    tern_tensor *tensor = tern_tensor_wrap(values, TERN_F32, 1, (int64_t[]){2}, free, values, &err);
    tern_object *object = tern_object_tensor(tensor, &err);
    tern_tensor_free(tensor);
    assert_ptr_equal(tern_tensor_data(tern_object_to_tensor(object)), values);
    tern_object_free(object);
}

/* The seal moves a parameter; the object reads it at its new address. */
static void a_parameter_is_read_where_it_is(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(0, &err);
    tern_module *net = tern_linear_new(2, 2, NULL, rng, &err);
    tern_tensor *weight = tern_state_find(net, "weight");
    tern_object *object = tern_object_tensor(weight, &err);
    tern_optim *optim = tern_sgd_new(net, NULL, &err);
    assert_ok(err);
    ((float *)tern_tensor_data(weight))[0] = 42;
    assert_true(((float *)tern_tensor_data(tern_object_to_tensor(object)))[0] == 42);
    tern_object_free(object);
    tern_optim_free(optim);
    tern_module_free(net);
    tern_rng_free(rng);
}

static void a_scope_s_tensor_is_refused(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu:reference", &err);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    assert_ok(err);
    assert_null(tern_object_tensor(tern_tensor_from(scope, NULL, TERN_F32, 1, (int64_t[]){3}), &err));
    assert_int_equal(err.code, TERN_E_LIFETIME);
    assert_string_equal(err.text,
                        "tensor (3) belongs to a scope, which the object may outlive: tern_keep it first");
    assert_null(tern_object_tensor(NULL, NULL));
    tern_scope_free(scope);
    tern_device_close(device);
}

/* ---- printing ---- */

static void printed_floats_and_escapes(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } floats[] = {{1, "1.0"},     {0.1, "0.1"},      {1e22, "1e+22"},     {1.0 / 3, "0.3333333333333333"},
                  {-0.0, "-0.0"}, {INFINITY, "inf"}, {2.5e-7, "2.5e-07"}, {0.1 + 0.2, "0.30000000000000004"}};
    for (size_t i = 0; i < sizeof(floats) / sizeof(*floats); i++) {
        tern_object *object = tern_object_float(floats[i].value, NULL);
        assert_prints(object, floats[i].text);
        tern_object_free(object);
    }
    tern_object *text = tern_object_string("a'\\\n\x1b[2J\x7f\xc2\x9b\xc2\xa0", NULL);
    assert_prints(text, "'a\\'\\\\\\n\\x1b[2J\\x7f\\x9b\xc2\xa0'");
    tern_object_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_in_comes_out),
        cmocka_unit_test(a_printed_object_is_a_line),
        cmocka_unit_test(what_is_not_there),
        cmocka_unit_test(values_of_another_kind),
        cmocka_unit_test(strings_are_utf8),
        cmocka_unit_test(equal_numbers_are_one_key),
        cmocka_unit_test(a_large_dict),
        cmocka_unit_test(one_owner),
        cmocka_unit_test(after_a_failure_nothing_is_done),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(very_deep),
        cmocka_unit_test(a_kept_tensor_may_go_before),
        cmocka_unit_test(a_parameter_is_read_where_it_is),
        cmocka_unit_test(a_scope_s_tensor_is_refused),
        cmocka_unit_test(printed_floats_and_escapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
