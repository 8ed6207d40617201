/* test_values.c - numbers that control a step and are not read by the host: scales, norms, and whether a
 * step is made. On a device with memory of its own training matches the CPU, step by step, without
 * waiting. */
#include "nets.h"

#include "optim/optim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- optimizers ---- */

static tern_optim *make_adamw(tern_module *module, tern_error *err)
{
    return tern_adamw_new(module, NULL, err);
}

static tern_optim *make_amsgrad(tern_module *module, tern_error *err)
{
    tern_adam_opts opts = tern_adam_defaults();
    opts.amsgrad = opts.maximize = true;
    return tern_adam_new(module, &opts, err);
}

static tern_optim *make_rmsprop(tern_module *module, tern_error *err)
{
    tern_rmsprop_opts opts = tern_rmsprop_defaults();
    opts.momentum = 0.5;
    opts.lr = 1e-3;
    opts.eps = 1e-2; /* otherwise gradients that are mostly rounding error make full-size steps */
    return tern_rmsprop_new(module, &opts, err);
}

static tern_optim *make_adagrad(tern_module *module, tern_error *err)
{
    tern_adagrad_opts opts = tern_adagrad_defaults();
    opts.lr_decay = 0.1;
    opts.initial_accumulator_value = 0.5;
    return tern_adagrad_new(module, &opts, err);
}

static tern_optim *make_lamb(tern_module *module, tern_error *err)
{
    tern_lamb_opts opts = tern_lamb_defaults();
    opts.max_grad_norm = 0.05;
    return tern_lamb_new(module, &opts, err);
}

static tern_optim *make_larc(tern_module *module, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 0.05;
    opts.momentum = 0.9;
    opts.weight_decay = 0.01;
    tern_optim *optim = tern_sgd_new(module, &opts, err);
    tern_optim_larc(optim, NULL, err);
    return optim;
}

static const optim_fn kinds[] = {make_sgd,     make_adam,    make_adamw, make_amsgrad,
                                 make_rmsprop, make_adagrad, make_lamb,  make_larc};

/* ---- a training ---- */

typedef enum way { SCALER, AUTOCAST, LEVEL_1, LEVEL_2, SCALINGS } way;

typedef struct training {
    tern_device *device;
    tern_rng *rng;
    tern_module *net;
    tern_optim *optim;
    tern_scaler *scaler;
    tern_amp *amp;
    tern_scope *scope;
    batch batch;
    tern_dtype autocast;
    tern_error err;
} training;

static void open_amp(training *t, tern_opt_level level)
{
    tern_amp_opts opts = tern_amp_defaults(level);
    opts.half_type = TERN_F16;
    t->amp = tern_amp_new(t->net, &opts, &t->err);
}

static void open_training(training *t, const char *device, optim_fn optim, way scaling)
{
    *t = (training){.autocast = scaling == AUTOCAST ? TERN_F16 : TERN_F32};
    draw_batch(&t->batch, 5, 2, (int64_t[]){8, 24});
    t->device = tern_device_open(device, &t->err);
    t->rng = tern_rng_new(3, &t->err);
    t->net = make_mlp(t->rng, &t->err);
    tern_module_to(t->net, t->device, &t->err);
    tern_scaler_opts opts = tern_scaler_defaults();
    opts.growth_interval = 3;
    opts.init_scale = 1024;
    if (scaling == LEVEL_1) open_amp(t, TERN_O1);
    if (scaling == LEVEL_2) open_amp(t, TERN_O2);
    if (!t->amp) t->scaler = tern_scaler_new(&opts, &t->err);
    t->optim = optim(t->net, &t->err);
    t->scope = tern_scope_new(t->device, NULL, &t->err);
    assert_ok(t->err);
}

static void close_training(training *t)
{
    tern_scope_free(t->scope);
    tern_optim_free(t->optim);
    tern_scaler_free(t->scaler);
    tern_amp_free(t->amp);
    tern_module_free(t->net);
    tern_rng_free(t->rng);
    tern_device_close(t->device);
}

/* The gradients of a loss times `boost` are infinite for 1e38. */
static tern_tensor *loss_of(training *t, tern_module *net, double boost)
{
    tern_scope *s = t->scope;
    tern_tensor *x = tern_tensor_from(s, t->batch.x, TERN_F32, t->batch.ndim, t->batch.shape);
    tern_tensor *y = tern_tensor_from(s, t->batch.y, TERN_I64, 1, t->batch.shape);
    tern_dtype was = tern_autocast_set(s, t->autocast);
    tern_tensor *loss = tern_cross_entropy(s, tern_forward(net, s, x), y, NULL);
    tern_autocast_set(s, was);
    return tern_mul(s, loss, tern_full(s, TERN_F32, 0, NULL, boost));
}

static void step_scaled(training *t, tern_tensor *loss)
{
    tern_backward(t->scope, tern_scaler_scale(t->scaler, t->scope, loss));
    tern_scaler_unscale(t->scaler, t->scope, t->optim);
    tern_clip_grad_norm(t->scope, t->net, 0.5, 2);
    tern_clip_grad_value(t->scope, t->net, 0.1);
    tern_scaler_step(t->scaler, t->scope, t->optim);
    tern_scaler_update(t->scaler, t->scope);
}

static void step_of(training *t, tern_tensor *loss)
{
    if (t->scaler) {
        step_scaled(t, loss);
    } else {
        tern_amp_backward(t->amp, t->scope, loss, NULL);
        tern_clip_grad_norm(t->scope, t->net, 0.5, 2);
        tern_optim_step(t->optim, t->scope);
    }
    tern_scope_end(t->scope, &t->err);
    assert_ok(t->err);
}

static double scale_of(training *t)
{
    return t->scaler ? tern_scaler_scale_get(t->scaler) : tern_amp_loss_scale_get(t->amp, 0);
}

/* ---- as on the CPU ---- */

static bool overflows(int step)
{
    return step == 0 || step == 7 || step == 8 || step == 20;
}

static void expect_alike(const tern_tensor *a, const tern_tensor *b, double tolerance, const char *what)
{
    static float one[1 << 12], other[1 << 12];
    tern_error err = {0};
    size_t bytes = tern__view_bytes(&a->view), each = tern_dtype_bytes(a->view.dtype);
    assert_true(a->view.dtype == b->view.dtype && bytes <= sizeof(one));
    tern_tensor_read(a, one, bytes, &err);
    tern_tensor_read(b, other, bytes, &err);
    assert_ok(err);
    tern__view x = a->view, y = b->view;
    x.data = one, y.data = other;
    for (size_t i = 0; i < bytes / each; i++) {
        double got = tern__view_get(&x, (int64_t)i), want = tern__view_get(&y, (int64_t)i);
        if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
            fail_msg("%s, element %d: %.9g, expected %.9g", what, (int)i, got, want);
    }
}

static void expect_same_parameters(const training *a, const training *b, double tolerance)
{
    for (int i = 0; i < tern_state_count(a->net); i++)
        expect_alike(tern_state_get(a->net, i).tensor, tern_state_get(b->net, i).tensor, tolerance,
                     tern_state_get(a->net, i).name);
}

/* Skipped steps do not count. */
static void expect_same_state(training *a, training *b, double tolerance)
{
    tern_optim_state *one = tern_optim_state_gather(a->optim, -1, &a->err);
    tern_optim_state *other = tern_optim_state_gather(b->optim, -1, &b->err);
    assert_ok(a->err);
    assert_int_equal(tern_optim_state_count(one), tern_optim_state_count(other));
    for (int i = 0; i < tern_optim_state_count(one); i++) {
        const tern_optim_entry *x = &tern_optim_state_entries(one)[i],
                               *y = &tern_optim_state_entries(other)[i];
        assert_string_equal(x->name, y->name);
        expect_alike(x->tensor, y->tensor, strcmp(x->name, "step") ? tolerance : 0, x->name);
    }
    tern_optim_state_free(one);
    tern_optim_state_free(other);
}

static void compare(optim_fn optim, way scaling, int steps, double tolerance)
{
    training cuda, cpu;
    open_training(&cuda, "cuda:0", optim, scaling);
    open_training(&cpu, "cpu:reference", optim, scaling); /* the reference kernels round least */
    for (int step = 0; step < steps; step++) {
        step_of(&cuda, loss_of(&cuda, cuda.net, overflows(step) ? 1e38 : 1));
        step_of(&cpu, loss_of(&cpu, cpu.net, overflows(step) ? 1e38 : 1));
        if (scale_of(&cuda) != scale_of(&cpu))
            fail_msg("step %d: a scale of %g, expected %g", step, scale_of(&cuda), scale_of(&cpu));
    }
    expect_same_parameters(&cuda, &cpu, tolerance);
    expect_same_state(&cuda, &cpu, tolerance);
    close_training(&cuda);
    close_training(&cpu);
}

static void every_optimizer_skips_the_same_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(kinds); i++) compare(kinds[i], SCALER, 30, 4e-6);
}

/* f16 rounds differently if sums have another order. */
static void in_16_bits(void **state)
{
    (void)state;
    for (way s = AUTOCAST; s < SCALINGS; s++) compare(make_sgd, s, 12, 4e-3);
}

/* ---- parameters with different step counts ---- */

/* Two nets under one optimizer; one of them, or both, get a gradient in a step, and some overflow. */
static void steps_are_counted_by_parameter(void **state)
{
    (void)state;
    static const struct {
        int nets; /* bits */
        double boost;
    } steps[] = {{1, 1e38}, {2, 1}, {3, 1}, {2, 1e38}, {1, 1}, {3, 1e38}, {3, 1}, {3, 1}};
    training t[2];
    for (int side = 0; side < 2; side++) {
        open_training(&t[side], side ? "cpu" : "cuda:0", make_adam, SCALER);
        tern_error *err = &t[side].err;
        tern_module *nets[] = {t[side].net, make_mlp(t[side].rng, err)}, *both = tern_sequential_new(err);
        tern_optim_free(t[side].optim);
        nets[0] = make_mlp(t[side].rng, err);
        for (int i = 0; i < 2; i++) tern_sequential_add(both, nets[i], err);
        tern_module_to(both, t[side].device, err);
        tern_module_free(t[side].net);
        t[side].net = both;
        t[side].optim = make_adam(both, err);
        for (size_t i = 0; i < TERN__COUNT(steps); i++) {
            tern_tensor *loss = NULL;
            for (int n = 0; n < 2; n++) {
                if (!(steps[i].nets >> n & 1)) continue;
                tern_tensor *more = loss_of(&t[side], nets[n], steps[i].boost);
                loss = loss ? tern_add(t[side].scope, loss, more) : more;
            }
            step_of(&t[side], loss);
        }
    }
    assert_true(scale_of(&t[0]) == scale_of(&t[1]));
    expect_same_parameters(&t[0], &t[1], 2e-5);
    expect_same_state(&t[0], &t[1], 2e-5);
    close_training(&t[0]);
    close_training(&t[1]);
}

static double first_step(tern_optim *optim)
{
    tern_optim_state *own = tern_optim_state_gather(optim, -1, NULL);
    double step = tern_optim_state_count(own) ? tern_item(tern_optim_state_entries(own)[0].tensor) : 0;
    tern_optim_state_free(own);
    return step;
}

/* Each optimizer has its own skip; the scale is shared. */
static void each_optimizer_skips_for_itself(void **state)
{
    (void)state;
    training t;
    float before[24 * 40], after[24 * 40];
    open_training(&t, "cuda:0", make_adam, SCALER);
    tern_module *net = make_mlp(t.rng, &t.err);
    tern_module_to(net, t.device, &t.err);
    tern_optim *optim = make_adam(net, &t.err);
    const tern_tensor *weight = tern_state_get(net, 0).tensor;
    tern_tensor_read(weight, before, sizeof(before), &t.err);
    for (int step = 0; step < 2; step++) {
        tern_tensor *loss = tern_add(t.scope, loss_of(&t, t.net, 1), loss_of(&t, net, step ? 1 : 1e38));
        tern_backward(t.scope, tern_scaler_scale(t.scaler, t.scope, loss));
        assert_true(tern_scaler_step(t.scaler, t.scope, t.optim));
        assert_true(tern_scaler_step(t.scaler, t.scope, optim)); /* unknown so far */
        tern_scaler_update(t.scaler, t.scope);
        tern_scope_end(t.scope, &t.err);
        tern_tensor_read(weight, after, sizeof(after), &t.err);
        assert_ok(t.err);
        assert_true(!memcmp(before, after, sizeof(before)) == !step);
        assert_true(scale_of(&t) == 512);
        assert_true(first_step(t.optim) == 1 + step && first_step(optim) == step);
    }
    tern_optim_free(optim);
    tern_module_free(net);
    close_training(&t);
}

/* ---- two losses, and gradients that stay scaled ---- */

static void losses_have_scales_of_their_own(void **state)
{
    (void)state;
    training t[2];
    for (int side = 0; side < 2; side++) {
        open_training(&t[side], side ? "cpu" : "cuda:0", make_sgd, SCALER);
        tern_amp_opts opts = tern_amp_defaults(TERN_O1);
        tern_optim_free(t[side].optim);
        tern_module_free(t[side].net);
        opts.num_losses = 2;
        tern_rng_seed(t[side].rng, 5);
        t[side].net = make_mlp(t[side].rng, &t[side].err);
        tern_module_to(t[side].net, t[side].device, &t[side].err);
        t[side].amp = tern_amp_new(t[side].net, &opts, &t[side].err);
        t[side].optim = make_sgd(t[side].net, &t[side].err);
        tern_amp_backward_opts first = tern_amp_backward_defaults(), second = first, later = first;
        second.loss_id = later.loss_id = 1;
        later.delay_unscale = true;
        const tern_amp_backward_opts *const orders[][2] = {
            {&first, &second}, {&later, &second}, {&later, &first}, {&second, &first}};
        for (int step = 0; step < 4; step++) {
            for (int i = 0; i < 2; i++) {
                tern_tensor *loss = loss_of(&t[side], t[side].net, step == 2 - i ? 1e38 : 1);
                tern_amp_backward(t[side].amp, t[side].scope, loss, orders[step][i]);
            }
            tern_optim_step(t[side].optim, t[side].scope);
            tern_scope_end(t[side].scope, &t[side].err);
            assert_ok(t[side].err);
        }
    }
    for (int i = 0; i < 2; i++)
        assert_true(tern_amp_loss_scale_get(t[0].amp, i) == tern_amp_loss_scale_get(t[1].amp, i));
    expect_same_parameters(&t[0], &t[1], 0x1p-7); /* bf16 */
    close_training(&t[0]);
    close_training(&t[1]);
}

/* ---- clipping ---- */

static void norms_of_every_kind(void **state)
{
    (void)state;
    static const double types[] = {2, 1, 3, INFINITY};
    training t[2];
    for (size_t i = 0; i < TERN__COUNT(types); i++)
        for (int boost = 0; boost < 2; boost++) {
            double norms[2];
            for (int side = 0; side < 2; side++) {
                open_training(&t[side], side ? "cpu" : "cuda:0", make_sgd, SCALER);
                tern_backward(t[side].scope, loss_of(&t[side], t[side].net, boost ? 1e3 : 1));
                norms[side] = tern_item(tern_clip_grad_norm(t[side].scope, t[side].net, 5, types[i]));
                tern_optim_step(t[side].optim, t[side].scope);
                tern_scope_end(t[side].scope, &t[side].err);
                assert_ok(t[side].err);
            }
            assert_true(norms[1] > 0 && fabs(norms[0] - norms[1]) <= 1e-5 * norms[1]);
            expect_same_parameters(&t[0], &t[1], 1e-5);
            close_training(&t[0]);
            close_training(&t[1]);
        }
}

/* ---- state ---- */

static void states_come_back(void **state)
{
    (void)state;
    for (int amp = 0; amp < 2; amp++) {
        training t, again;
        open_training(&t, "cuda:0", make_adam, amp ? LEVEL_1 : SCALER);
        open_training(&again, "cuda:0", make_adam, amp ? LEVEL_1 : SCALER);
        for (int step = 0; step < 5; step++) step_of(&t, loss_of(&t, t.net, step == 1 ? 1e38 : 1));
        step_of(&again, loss_of(&again, again.net, 1e38)); /* creates its numbers */
        tern_object *saved =
            amp ? tern_amp_state_dict(t.amp, &t.err) : tern_scaler_state_dict(t.scaler, &t.err);
        int64_t unskipped = -1;
        const tern_object *own = amp ? tern_object_get(saved, "loss_scaler0") : saved;
        tern_object_to_int(tern_object_get(own, amp ? "unskipped" : "_growth_tracker"), &unskipped, NULL);
        assert_int_equal(unskipped, amp ? 3 : 0);
        int status = amp ? tern_amp_state_dict_load(again.amp, saved, &t.err)
                         : tern_scaler_state_dict_load(again.scaler, saved, &t.err);
        assert_int_equal(status, TERN_OK);
        assert_true(scale_of(&again) == scale_of(&t) && scale_of(&t) == (amp ? 32768 : 1024));
        tern_object_free(saved);
        saved = tern_optim_state_dict(t.optim, -1, &t.err);
        assert_int_equal(tern_optim_state_dict_load(again.optim, saved, &t.err), TERN_OK);
        tern_object_free(saved);
        tern_object *weights = tern_module_state_dict(t.net, &t.err);
        tern_module_state_dict_load(again.net, weights, NULL, NULL, &t.err);
        tern_object_free(weights);
        for (int step = 0; step < 3; step++) {
            step_of(&t, loss_of(&t, t.net, step ? 1 : 1e38));
            step_of(&again, loss_of(&again, again.net, step ? 1 : 1e38));
        }
        expect_same_parameters(&again, &t, 0);
        expect_same_state(&again, &t, 0);
        close_training(&t);
        close_training(&again);
    }
}

/* ---- waits ---- */

static void expect_no_waits(optim_fn optim, way scaling)
{
    training t;
    if (!is_emulated()) skip_test("needs the emulation");
    open_training(&t, "cuda:0", optim, scaling);
    const long *count = emulated_symbol("emulated_waits");
    for (int step = 0; step < 2; step++) step_of(&t, loss_of(&t, t.net, step ? 1 : 1e38));
    long before = *count;
    assert_true(before > 0 || scaling != LEVEL_2); /* the host creates masters */
    for (int step = 0; step < 3; step++) step_of(&t, loss_of(&t, t.net, step == 1 ? 1e38 : 1));
    if (*count != before)
        fail_msg("scaling %d: the host has waited %ld times in three steps", (int)scaling, *count - before);
    before = *count;
    scale_of(&t);
    assert_true(*count > before);
    close_training(&t);
}

static void a_warm_step_waits_for_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(kinds); i++) expect_no_waits(kinds[i], SCALER);
    for (way s = AUTOCAST; s < SCALINGS; s++)
        for (size_t i = 0; i < TERN__COUNT(kinds); i += 3) expect_no_waits(kinds[i], s);
}

/* ---- messages ---- */

static void keep_text(tern_log_level level, const char *text, void *ctx)
{
    (void)level;
    snprintf(ctx, 256, "%s", text);
}

static void overflows_are_said_when_the_scale_is_read(void **state)
{
    (void)state;
    training t;
    char text[256] = "";
    open_training(&t, "cuda:0", make_sgd, LEVEL_1);
    tern_log_set(keep_text, text);
    for (int step = 0; step < 4; step++) step_of(&t, loss_of(&t, t.net, step < 2 ? 1e38 : 1));
    assert_string_equal(text, "");
    assert_true(scale_of(&t) == 16384);
    tern_log_set(NULL, NULL);
    assert_string_equal(
        text, "Gradient overflow.  Skipping step (2 times), loss scaler 0 reducing loss scale to 16384");
    close_training(&t);
}

/* ---- number of kernels ---- */

/* The kernels of a step with so many linear layers, each with a gradient. */
static int64_t kernels_of(optim_fn optim, int layers)
{
    tern_error err = {0};
    const emulated_counts *counted = emulated_symbol("emulated_counted");
    const int64_t widths[] = {24, 400, 5, 3, 1, 19, 80, 64, 5};
    tern_device *device = tern_device_open("cuda:0", &err);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = tern_mlp_new(widths, layers + 1, rng, &err);
    tern_module_to(net, device, &err);
    tern_optim *o = optim(net, &err);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    assert_ok(err);
    for (int k = 0; k < o->seal->leaf_count; k++) o->seal->leaves[k]->fresh = true;
    int64_t before = counted->kernels;
    tern_optim_step(o, scope);
    assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    int64_t kernels = counted->kernels - before;
    tern_scope_free(scope);
    tern_optim_free(o);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
    return kernels;
}

static void many_parameters_take_no_more_kernels(void **state)
{
    (void)state;
    if (!is_emulated()) skip_test("needs the emulation");
    for (size_t i = 0; i < TERN__COUNT(kinds); i++) {
        int64_t few = kernels_of(kinds[i], 2), many = kernels_of(kinds[i], 8);
        assert_true(few > 0);
        assert_int_equal(few, many);
    }
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_optimizer_skips_the_same_steps),
        cmocka_unit_test(in_16_bits),
        cmocka_unit_test(steps_are_counted_by_parameter),
        cmocka_unit_test(each_optimizer_skips_for_itself),
        cmocka_unit_test(losses_have_scales_of_their_own),
        cmocka_unit_test(norms_of_every_kind),
        cmocka_unit_test(states_come_back),
        cmocka_unit_test(a_warm_step_waits_for_nothing),
        cmocka_unit_test(overflows_are_said_when_the_scale_is_read),
        cmocka_unit_test(many_parameters_take_no_more_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
