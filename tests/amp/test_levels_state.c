/* Opt levels and checkpoints: apex's state, state dicts in f32, and a run that is taken up again bit for bit.
 */
#include "amp/levels.h"

/* ---- state ---- */

static void save_all(fixture *f, const tern_amp *amp, tern_object *saved, tern_error *err)
{
    tern_object_set(saved, "model", tern_module_state_dict(f->net, err), err);
    tern_object_set(saved, "optimizer", tern_optim_state_dict(f->opt, 0, err), err);
    tern_object_set(saved, "amp", tern_amp_state_dict(amp, err), err);
}

/* Interrupted after 6 of 12 steps; in either order of loading, masters have all their bits again. */
static void goes_on_bit_for_bit(void **state)
{
    (void)state;
    for (int order = 0; order < 4; order++) {
        tern_error err = {0};
        fixture a, b;
        tern_amp_opts opts = opts_of(order / 2 ? TERN_O1 : TERN_O2, TERN_BF16);
        tern_amp *of_a = open_under(&a, NULL, NULL, &opts, NULL, &err);
        for (int step = 0; step < 6; step++) step_under(&a, of_a, step);
        tern_object *saved = tern_object_dict(&err);
        save_all(&a, of_a, saved, &err);
        tern_amp *of_b = open_under(&b, NULL, NULL, &opts, NULL, &err);
        step_under(&b, of_b, 11);
        for (int part = 0; part < 2; part++)
            if (part == order % 2)
                tern_module_state_dict_load(b.net, tern_object_get(saved, "model"), NULL, NULL, &err);
            else
                tern_optim_state_dict_load(b.opt, tern_object_get(saved, "optimizer"), &err);
        tern_amp_state_dict_load(of_b, tern_object_get(saved, "amp"), &err);
        assert_ok(err);
        tern_object_free(saved);
        for (int step = 6; step < 12; step++) {
            step_under(&a, of_a, step);
            step_under(&b, of_b, step);
            assert_true(tern_amp_loss_scale_get(of_a, 0) == tern_amp_loss_scale_get(of_b, 0));
        }
        assert_true(fixture_hash(a.net) == fixture_hash(b.net));
        tern_amp_free(of_a);
        tern_amp_free(of_b);
        fixture_close(&a);
        fixture_close(&b);
    }
}

/* The other way round a master is made from its parameter. */
static void the_other_level_is_named(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture a, b;
    tern_amp_opts opts = opts_of(TERN_O2, TERN_BF16), others = opts_of(TERN_O1, TERN_BF16);
    tern_amp *of_a = open_under(&a, NULL, NULL, &opts, NULL, &err);
    tern_amp *of_b = open_under(&b, NULL, NULL, &others, NULL, &err);
    step_under(&a, of_a, 0);
    tern_object *saved = tern_object_dict(&err);
    save_all(&a, of_a, saved, &err);
    assert_ok(err);
    assert_int_equal(tern_optim_state_dict_load(b.opt, tern_object_get(saved, "optimizer"), &err),
                     TERN_E_INVALID);
    assert_non_null(strstr(err.text, "has no state \"master\" in this sgd: it was saved under opt level O2"));
    tern_object_free(saved);
    tern_amp_free(of_a);
    tern_amp_free(of_b);
    fixture_close(&a);
    fixture_close(&b);
}

static void expect_state(tern_amp *amp, tern_object *state, int code, const char *text)
{
    tern_error err = {0};
    assert_int_equal(tern_amp_state_dict_load(amp, state, &err), code);
    assert_string_equal(err.text, text);
    assert_true(tern_amp_loss_scale_get(amp, 0) == 65536);
    tern_object_free(state);
}

static tern_object *state_of(const char *key, const char *field, double value)
{
    tern_object *state = tern_object_dict(NULL), *scaler = tern_object_dict(NULL);
    tern_object_set(scaler, field, tern_object_float(value, NULL), NULL);
    tern_object_set(state, key, scaler, NULL);
    return state;
}

static void count_warnings(tern_log_level level, const char *text, void *ctx)
{
    if (level == TERN_LOG_WARN && strstr(text, "loss scalers")) ++*(int *)ctx;
}

static void states_that_cannot_be(void **state)
{
    (void)state;
    tern_error err = {0};
    one o;
    int warnings = 0;
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    opts.num_losses = 2;
    open_one(&o, &opts, 1, &err);
    tern_log_set(count_warnings, &warnings);
    expect_state(o.amp, NULL, TERN_E_INVALID, "the state is no dict");
    expect_state(o.amp, state_of("scale", "loss_scale", 8), TERN_E_INVALID,
                 "Error(s) in loading state_dict. Unexpected key(s) in state_dict: \"scale\"");
    expect_state(o.amp, state_of("loss_scaler0", "loss_scale", 8), TERN_E_INVALID,
                 "state[\"loss_scaler0\"][\"unskipped\"] is missing");
    expect_state(o.amp, state_of("loss_scaler0", "loss_scale", -8), TERN_E_RANGE,
                 "state[\"loss_scaler0\"][\"loss_scale\"] is -8, expected [2.22507e-308, 1.79769e+308]");
    assert_int_equal(warnings, 0);
    tern_object *one_loss = state_of("loss_scaler0", "loss_scale", 8);
    tern_object_set((tern_object *)tern_object_get(one_loss, "loss_scaler0"), "unskipped",
                    tern_object_int(5, &err), &err);
    assert_int_equal(tern_amp_state_dict_load(o.amp, one_loss, &err), TERN_OK);
    assert_true(tern_amp_loss_scale_get(o.amp, 0) == 8 && tern_amp_loss_scale_get(o.amp, 1) == 65536);
    assert_true(o.amp->scalers[0].scale->unskipped == 5);
    assert_int_equal(warnings, 1);
    tern_object_free(one_loss);
    tern_log_set(NULL, NULL);
    assert_int_equal(tern_amp_state_dict_load(NULL, NULL, NULL), TERN_E_INVALID);
    assert_null(tern_amp_state_dict(NULL, NULL));
    close_one(&o);
}

/* ---- checkpoints of any level ---- */

static void state_dicts_are_f32(void **state)
{
    (void)state;
    for (tern_opt_level level = TERN_O2; level <= TERN_O3; level++) {
        tern_error err = {0};
        fixture a, b;
        tern_amp_opts opts = tern_amp_defaults(level);
        tern_amp *amp = open_under(&a, NULL, NULL, &opts, NULL, &err);
        fixture_open_alone(&b, &err);
        tern_object *saved = tern_module_state_dict(a.net, &err);
        for (int i = 0; i < tern_state_count(a.net); i++) {
            const tern_tensor *t = tern_object_to_tensor(tern_object_at(saved, i));
            assert_int_equal(t->view.dtype, TERN_F32);
        }
        assert_int_equal(tern_module_state_dict_load(b.net, saved, NULL, NULL, &err), TERN_OK);
        assert_true(fixture_difference(a.net, b.net) == 0);
        tern_object_free(saved);
        tern_amp_free(amp);
        fixture_close(&a);
        fixture_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on_bit_for_bit),
        cmocka_unit_test(the_other_level_is_named),
        cmocka_unit_test(states_that_cannot_be),
        cmocka_unit_test(state_dicts_are_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
