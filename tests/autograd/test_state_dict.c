/* A scope that is taken up again draws what the first would have drawn next. */
#include "check.h"

#include "autograd/autograd.h"
#include "tensor/field.h"

#include <tern/state_dict.h>

#include <string.h>

typedef struct world {
    tern_device *device;
    tern_scope *scope;
    tern_error err;
} world;

static world open_world(void)
{
    world w = {0};
    w.device = tern_device_open("cpu", &w.err);
    w.scope = tern_scope_new(w.device, NULL, &w.err);
    assert_ok(w.err);
    return w;
}

static void close_world(world *w)
{
    assert_ok(w->err);
    tern_scope_free(w->scope);
    tern_device_close(w->device);
}

enum { COUNT = 257 };

static void draw(world *w, float out[COUNT])
{
    int64_t count = COUNT;
    for (int i = 0; i < COUNT; i++) out[i] = 1;
    tern_tensor *x = tern_tensor_from(w->scope, out, TERN_F32, 1, &count);
    tern_tensor_read(tern_dropout(w->scope, x, 0.5), out, sizeof(float) * COUNT, &w->err);
}

static void hand_over(const world *from, world *to)
{
    tern_object *state = tern_scope_state_dict(from->scope, &to->err);
    tern_scope_state_dict_load(to->scope, state, &to->err);
    tern_object_free(state);
}

/* Saved at the end of a step before tern_scope_end, or after it. */
static void expect_same_draws(bool in_step)
{
    float x[COUNT], y[COUNT];
    world a = open_world(), b = open_world();
    tern_scope_seed(a.scope, UINT64_MAX - 3, 7);
    for (int step = 0; step < 3; step++) {
        draw(&a, x);
        if (in_step && step == 2) hand_over(&a, &b);
        tern_scope_end(a.scope, &a.err);
    }
    if (!in_step) hand_over(&a, &b);
    for (int step = 0; step < 3; step++) {
        draw(&a, x);
        draw(&b, y);
        assert_memory_equal(x, y, sizeof(x));
        tern_scope_end(a.scope, &a.err);
        tern_scope_end(b.scope, &b.err);
    }
    close_world(&a);
    close_world(&b);
}

static void the_next_step_draws_the_same(void **state)
{
    (void)state;
    expect_same_draws(false);
    expect_same_draws(true);
}

static void what_is_no_state(void **state)
{
    (void)state;
    world w = open_world();
    tern_error err = {0};
    tern_object *half = tern_object_dict(NULL);
    tern_object_set(half, "seed", tern_object_int(3, NULL), NULL);
    assert_int_equal(tern_scope_state_dict_load(w.scope, half, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.text, "\"step\" is missing"));
    tern_object_set(half, "step", tern_object_string("x", NULL), NULL);
    assert_int_equal(tern_scope_state_dict_load(w.scope, half, NULL), TERN_E_DTYPE);
    assert_int_equal(w.scope->seed, 0);
    assert_int_equal(tern_scope_state_dict_load(NULL, half, NULL), TERN_E_INVALID);
    assert_null(tern_scope_state_dict(NULL, NULL));
    tern_object_free(half);
    close_world(&w);
}

/* ---- the fields of a dict ---- */

static void fields_are_what_they_should_be(void **state)
{
    (void)state;
    tern_error err = {0};
    int64_t i = 0;
    double r = 0;
    bool b = false;
    tern_object *dict = tern_object_dict(&err);
    tern_object_set(dict, "i", tern_object_int(5, &err), &err);
    tern_object_set(dict, "r", tern_object_float(2.5, &err), &err);
    tern_object_set(dict, "b", tern_object_bool(true, &err), &err);
    float value = 4;
    tern_tensor *t = tern_tensor_wrap(&value, TERN_F32, 0, NULL, NULL, NULL, &err);
    tern_object_set(dict, "t", tern_object_tensor(t, &err), &err);
    assert_int_equal(tern__field_int("f", dict, "i", 5, 5, &i, &err), TERN_OK);
    assert_int_equal(tern__field_real("f", dict, NULL, "r", -9, 9, &r, &err), TERN_OK);
    assert_int_equal(tern__field_bool("f", dict, "b", &b, &err), TERN_OK);
    assert_true(i == 5 && r == 2.5 && b);
    assert_int_equal(tern__field_real("f", dict, NULL, "t", -9, 9, &r, &err), TERN_OK);
    assert_true(r == 4);
    assert_ok(err);
    assert_int_equal(tern__field_int("f", dict, "i", 6, 9, &i, NULL), TERN_E_RANGE);
    assert_int_equal(tern__field_int("f", dict, "t", 0, 9, &i, NULL), TERN_E_DTYPE);
    assert_int_equal(tern__field_real("f", dict, NULL, "r", 3, 9, &r, NULL), TERN_E_RANGE);
    assert_int_equal(tern__field_bool("f", dict, "r", &b, NULL), TERN_E_DTYPE);
    assert_int_equal(tern__field_real("f", dict, NULL, "none", -9, 9, &r, NULL), TERN_E_INVALID);
    assert_int_equal(tern__field_real("f", NULL, NULL, "none", -9, 9, &r, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.text, "expected a dict"));
    tern_object_free(dict);
    tern_tensor_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_step_draws_the_same),
        cmocka_unit_test(what_is_no_state),
        cmocka_unit_test(fields_are_what_they_should_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
