/* Opt levels: what becomes of a model, in which order, masters and scales in exact arithmetic, several losses
 * and optimizers, replicas. */
#include "amp/levels.h"

#include "ledger.h"

/* ---- what becomes of a model ---- */

static void expect_dtype(const tern_module *net, const char *name, tern_dtype dtype)
{
    const tern_tensor *t = tern_state_find(net, name);
    assert_non_null(t);
    if (t->view.dtype != dtype)
        fail_msg("%s is %s, expected %s", name, tern_dtype_name(t->view.dtype), tern_dtype_name(dtype));
}

static void expect_level(tern_opt_level level, tern_dtype half)
{
    tern_error err = {0};
    fixture f;
    tern_rng *rng = tern_rng_new(3, &err);
    tern_amp_opts opts = opts_of(level, half);
    bool casts = level >= TERN_O2;
    tern_amp *amp = open_under(&f, NULL, conv_net(rng, &err), &opts, NULL, &err);
    assert_ok(err);
    expect_dtype(f.net, "0.weight", casts ? half : TERN_F32);
    expect_dtype(f.net, "4.bias", casts ? half : TERN_F32);
    expect_dtype(f.net, "1.weight", level == TERN_O3 ? half : TERN_F32);
    expect_dtype(f.net, "1.running_var", TERN_F32);
    expect_dtype(f.net, "1.num_batches_tracked", TERN_I64);
    tern_tensor *y = tern_forward(f.net, f.s, image_rows(&f, 0, 0, 8));
    assert_int_equal(y->view.dtype, level == TERN_O1 ? half : TERN_F32);
    tern_tensor *loss = tern_cross_entropy(f.s, y, fixture_labels(&f, 0, 8), NULL);
    assert_int_equal(loss->view.dtype, TERN_F32); /* under O1 by the policy, which goes on behind the model */
    assert_int_equal(tern_amp_backward(amp, f.s, loss, NULL), TERN_OK);
    const tern_tensor *grad = tern_grad_get(tern_state_find(f.net, "0.weight"));
    assert_int_equal(grad->view.dtype, level == TERN_O3 ? half : TERN_F32);
    tern_optim_step(f.opt, f.s);
    assert_int_equal(tern_scope_end(f.s, &err), TERN_OK);
    /* A momentum and, where there is one, a master. */
    size_t half_elements = 4 * 9 + 4 + 4 * CLASSES + CLASSES, bytes = tern_optim_state_bytes(f.opt);
    if (level == TERN_O2) assert_true(bytes >= 8 * half_elements);
    if (level == TERN_O3) assert_true(bytes < 4 * half_elements + 1024);
    tern_rng_free(rng);
    tern_amp_free(amp);
    fixture_close(&f);
}

static void models_of_all_levels(void **state)
{
    (void)state;
    for (tern_opt_level level = TERN_O0; level <= TERN_O3; level++) {
        expect_level(level, TERN_BF16);
        expect_level(level, TERN_F16);
    }
}

/* ---- masters, and the scale over thousands of steps, exactly ---- */

/* 2^-12 is less than half a unit of p: without a master p would never move. */
static void masters_keep_what_rounding_drops(void **state)
{
    (void)state;
    tern_error err = {0};
    for (tern_opt_level level = TERN_O2; level <= TERN_O3; level++) {
        one o;
        tern_amp_opts opts = tern_amp_defaults(level);
        open_one(&o, &opts, 0x1p-12, &err);
        for (int step = 1; step <= 64; step++) {
            step_one(&o, 1, NULL);
            end_one(&o);
            double master = 1 - step * 0x1p-12;
            tern__view rounded = tern__view_make(TERN_BF16, TERN__PLAIN, 0, NULL);
            uint16_t bits;
            rounded.data = &bits;
            tern__view_set(&rounded, 0, master);
            double want = level == TERN_O2 ? tern__view_get(&rounded, 0) : 1;
            assert_true(tern__view_get(&o.p->view, 0) == want);
        }
        if (level == TERN_O2) assert_true(*(float *)o.optim->state[TERN__OPTIM_MASTER][0] == 1 - 0x1p-6);
        close_one(&o);
    }
}

/* apex's LossScaler.update_scale. */
static void model_update(double *scale, int64_t *unskipped, bool found, double low, double high)
{
    if (found) {
        *scale = fmax(low, *scale / 2);
        *unskipped = 0;
    } else {
        ++*unskipped;
    }
    if (*unskipped == 2000) {
        *scale = fmin(high, *scale * 2);
        *unskipped = 0;
    }
}

static bool overflows_at(int step)
{
    return step < 3 || step == 500 || step == 2600;
}

static void scales_as_apexs(void **state)
{
    (void)state;
    tern_error err = {0};
    for (int bounded = 0; bounded < 2; bounded++) {
        one o;
        tern_amp_opts opts = tern_amp_defaults(TERN_O2);
        if (bounded) opts.min_loss_scale = opts.max_loss_scale = 20000;
        open_one(&o, &opts, 0x1p-12, &err);
        double scale = fmin(opts.max_loss_scale, 65536);
        int64_t unskipped = 0, made = 0;
        for (int step = 0; step < 7000; step++) {
            step_one(&o, overflows_at(step) ? 1e38 : step % 2 ? 1 : -1, NULL);
            made += !overflows_at(step);
            model_update(&scale, &unskipped, overflows_at(step), opts.min_loss_scale, opts.max_loss_scale);
            assert_true(tern_amp_loss_scale_get(o.amp, 0) == scale);
            end_one(&o);
        }
        assert_true(bounded ? scale == 20000 : scale > 8192); /* it has grown again */
        assert_int_equal(o.optim->steps[0], made);
        close_one(&o);
    }
}

/* A constant scale skips nothing, as apex's. */
static void constant_scales_skip_nothing(void **state)
{
    (void)state;
    tern_error err = {0};
    one o;
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    opts.loss_scale = 128;
    open_one(&o, &opts, 0.5, &err);
    step_one(&o, 0.5, NULL);
    assert_true(tern__view_get(&tern_grad_get(o.p)->view, 0) == 0.5);
    end_one(&o);
    assert_true(tern__view_get(&o.p->view, 0) == 0.75);
    step_one(&o, 1e38, NULL);
    end_one(&o);
    assert_true(isinf(tern__view_get(&o.p->view, 0)) && tern_amp_loss_scale_get(o.amp, 0) == 128);
    close_one(&o);
}

/* ---- several losses, optimizers and microbatches ---- */

static double grad_of(const one *o)
{
    return tern__view_get(&tern_grad_get(o->p)->view, 0);
}

static void losses_add_up(void **state)
{
    (void)state;
    tern_error err = {0};
    one o;
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    opts.num_losses = 2;
    open_one(&o, &opts, 1, &err);
    tern_amp_backward_opts second = tern_amp_backward_defaults(), later = second;
    second.loss_id = 1;
    step_one(&o, 1e38, &second); /* its scale alone becomes smaller */
    end_one(&o);
    assert_true(tern__view_get(&o.p->view, 0) == 1);
    assert_true(tern_amp_loss_scale_get(o.amp, 0) == 65536 && tern_amp_loss_scale_get(o.amp, 1) == 32768);
    step_one(&o, 0.25, NULL);
    step_one(&o, 0.5, &second);
    assert_true(grad_of(&o) == 0.75);
    end_one(&o);
    assert_true(tern__view_get(&o.p->view, 0) == 0.25);
    later.delay_unscale = true;
    step_one(&o, 0.125, &later); /* still scaled */
    assert_true(grad_of(&o) == 0.125 * 65536);
    step_one(&o, 0.0625, &second);
    assert_true(grad_of(&o) == 0.1875);
    end_one(&o);
    assert_true(tern__view_get(&o.p->view, 0) == 0.0625);
    /* What the first loss has spoilt is not taken for an overflow of the second. */
    step_one(&o, 1e38, NULL);
    step_one(&o, 0.5, &second);
    end_one(&o);
    assert_true(tern__view_get(&o.p->view, 0) == 0.0625);
    assert_true(tern_amp_loss_scale_get(o.amp, 0) == 32768 && tern_amp_loss_scale_get(o.amp, 1) == 32768);
    assert_true(isnan(tern_amp_loss_scale_get(o.amp, 2)) && isnan(tern_amp_loss_scale_get(NULL, 0)));
    close_one(&o);
}

/* ---- gradients in f32 and in 16 bits ---- */

typedef tern_module *(*make_fn)(tern_rng *rng, tern_error *err);

static tern_module *wide_mlp(tern_rng *rng, tern_error *err)
{
    return tern_mlp_new((int64_t[]){FEATURES, 784, 65, CLASSES}, 4, rng, err);
}

static tern_module *wide_conv(tern_rng *rng, tern_error *err)
{
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_conv2d_new(1, 32, 1, 1, NULL, rng, err), err);
    tern_sequential_add(net, tern_relu_new(err), err);
    tern_sequential_add(net, tern_conv2d_new(32, 48, 3, 3, NULL, rng, err), err);
    tern_sequential_add(net, tern_flatten_new(err), err);
    tern_sequential_add(net, tern_linear_new(48 * 2, CLASSES, NULL, rng, err), err);
    return net;
}

/* Of two backwards that add up. */
static void fill_grads(fixture *f, tern_amp *amp, bool images)
{
    for (int part = 0; part < 2; part++) {
        tern_tensor *x = images ? image_rows(f, part, 0, 16) : fixture_rows(f, part, 0, 16);
        tern_tensor *y = tern_forward(f->net, f->s, x);
        tern_amp_backward(amp, f->s, tern_cross_entropy(f->s, y, fixture_labels(f, 0, 16), NULL), NULL);
    }
    assert_int_equal(tern_scope_error(f->s)->code, TERN_OK);
}

/* Each of the two is rounded, and once more their sum if it is of 16 bits. */
static void compare_grads(make_fn make, tern_dtype half, bool images)
{
    tern_error err = {0};
    fixture f[2];
    tern_amp *amp[2];
    for (int i = 0; i < 2; i++) {
        tern_rng *rng = tern_rng_new(3, &err);
        tern_amp_opts opts = opts_of(TERN_O3, half);
        opts.gradients_f32 = i;
        amp[i] = open_under(&f[i], NULL, make(rng, &err), &opts, NULL, &err);
        fill_grads(&f[i], amp[i], images);
        tern_rng_free(rng);
    }
    for (int k = 0; k < tern_state_count(f[0].net); k++) {
        const tern_tensor *a = tern_grad_get(tern_state_get(f[0].net, k).tensor);
        const tern_tensor *b = tern_grad_get(tern_state_get(f[1].net, k).tensor);
        double size = 0, unit = half == TERN_BF16 ? 0x1p-8 : 0x1p-11;
        assert_true(a->view.dtype == half && b->view.dtype == TERN_F32);
        for (int64_t i = 0; i < tern_tensor_count(b); i++)
            size = fmax(size, fabs(tern__view_get(&b->view, i)));
        for (int64_t i = 0; i < tern_tensor_count(b); i++) {
            double x = tern__view_get(&a->view, i), y = tern__view_get(&b->view, i);
            if (fabs(x - y) > 3 * unit * size)
                fail_msg("%s [%d]: %g, in f32 %g, of at most %g", tern_state_get(f[0].net, k).name, (int)i, x,
                         y, size);
        }
    }
    for (int i = 0; i < 2; i++) {
        tern_amp_free(amp[i]);
        fixture_close(&f[i]);
    }
}

static void gradients_in_f32(void **state)
{
    (void)state;
    const tern_dtype halves[] = {TERN_BF16, TERN_F16};
    for (int i = 0; i < 2; i++) {
        compare_grads(wide_mlp, halves[i], false);
        compare_grads(wide_conv, halves[i], true);
    }
}

/* ---- a weight that is used again before it changes ---- */

/* Of a square convolution, whose data gradient wants it turned. */
static void backward_leaves_the_weight(void **state)
{
    (void)state;
    for (tern_opt_level level = TERN_O0; level <= TERN_O3; level++) {
        tern_error err = {0};
        fixture f;
        tern_rng *rng = tern_rng_new(3, &err);
        tern_module *net = tern_sequential_new(&err);
        for (int i = 0; i < 2; i++)
            tern_sequential_add(net, tern_conv2d_new(16, 16, 3, 3, NULL, rng, &err), &err);
        tern_amp_opts opts = tern_amp_defaults(level);
        tern_amp *amp = open_under(&f, NULL, net, &opts, NULL, &err);
        tern_tensor *x = tern_randn(f.s, rng, 4, (int64_t[]){2, 16, 7, 6}), *y[3];
        for (int i = 0; i < 3; i++) {
            y[i] = tern_forward(net, f.s, x);
            tern_amp_backward(amp, f.s, tern_sum(f.s, y[i]), NULL);
        }
        assert_int_equal(tern_scope_error(f.s)->code, TERN_OK);
        for (int i = 1; i < 3; i++)
            assert_memory_equal(y[i]->view.data, y[0]->view.data, tern__view_bytes(&y[0]->view));
        tern_scope_end(f.s, &err);
        tern_rng_free(rng);
        tern_amp_free(amp);
        fixture_close(&f);
    }
}

/* A GAN's two models: each loss is for one optimizer. */
static void losses_have_optimizers(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f, g;
    tern_amp_opts opts = tern_amp_defaults(TERN_O1);
    opts.num_losses = 2;
    tern_amp *amp = open_under(&f, NULL, NULL, &opts, NULL, &err);
    g = f;
    g.net = fixture_mlp(f.rng, &err);
    assert_int_equal(tern_amp_add(amp, g.net, &err), TERN_OK);
    g.opt = fixture_sgd(g.net, &err);
    tern_amp_backward_opts of_g = tern_amp_backward_defaults();
    of_g.loss_id = 1;
    of_g.optims = &g.opt;
    of_g.optim_count = 1;
    uint64_t before[2] = {fixture_hash(f.net), fixture_hash(g.net)};
    tern_amp_backward_opts of_f = tern_amp_backward_defaults();
    of_f.optims = &f.opt;
    of_f.optim_count = 1;
    tern_amp_backward(amp, f.s, loss_of(&f, 0, 0, 1), &of_f);
    tern_amp_backward(amp, f.s, loss_of(&g, 0, 0, 1e38), &of_g);
    tern_optim_step(f.opt, f.s);
    tern_optim_step(g.opt, f.s);
    assert_int_equal(tern_scope_end(f.s, &err), TERN_OK);
    assert_true(fixture_hash(f.net) != before[0] && fixture_hash(g.net) == before[1]);
    assert_true(tern_amp_loss_scale_get(amp, 0) == 65536 && tern_amp_loss_scale_get(amp, 1) == 32768);
    /* Without a list it is for all. */
    before[0] = fixture_hash(f.net);
    tern_amp_backward(amp, f.s, loss_of(&f, 1, 0, 1), &of_f);
    tern_amp_backward(amp, f.s, loss_of(&g, 1, 0, 1e38), NULL);
    tern_optim_step(f.opt, f.s);
    tern_optim_step(g.opt, f.s);
    assert_int_equal(tern_scope_end(f.s, &err), TERN_OK);
    assert_true(fixture_hash(f.net) == before[0] && fixture_hash(g.net) == before[1]);
    tern_optim_free(g.opt);
    tern_module_free(g.net);
    tern_amp_free(amp);
    fixture_close(&f);
}

/* ---- replicas ---- */

static double parallel_loss(tern_opt_level level, int count, double *sum)
{
    tern_error err = {0};
    fixture f;
    tern_device *devices[2];
    for (int i = 0; i < 2; i++) devices[i] = tern_device_open(i ? "cpu:0" : "cpu:0-0", &err);
    tern_amp_opts opts = tern_amp_defaults(level);
    tern_amp *amp = open_under(&f, NULL, NULL, &opts, NULL, &err);
    f.s = (tern_scope_free(f.s), tern_scope_new(devices[0], NULL, &err));
    tern_data_parallel_opts parallel_opts = tern_data_parallel_defaults();
    parallel_opts.devices = devices;
    parallel_opts.device_count = count;
    tern_data_parallel *parallel = count ? tern_data_parallel_new(f.net, &parallel_opts, &err) : NULL;
    assert_ok(err);
    double last = 0;
    for (int step = 0; step < 4; step++) {
        tern_tensor *x = fixture_rows(&f, 0, 0, 16);
        tern_tensor *y =
            parallel ? tern_data_parallel_forward(parallel, f.s, x) : tern_forward(f.net, f.s, x);
        tern_tensor *loss = tern_cross_entropy(f.s, y, fixture_labels(&f, 0, 16), NULL);
        tern_amp_backward(amp, f.s, loss, NULL);
        if (!f.s->error.code) assert_int_equal(loss->view.dtype, TERN_F32);
        last = tern_item(loss);
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, &err);
        assert_ok(err);
    }
    *sum = 0;
    for (int i = 0; i < tern_state_count(f.net); i++) {
        const tern_tensor *t = tern_state_get(f.net, i).tensor;
        for (int64_t k = 0; k < tern_tensor_count(t); k++) *sum += fabs(tern__view_get(&t->view, k));
    }
    tern_data_parallel_free(parallel);
    tern_amp_free(amp);
    fixture_close(&f);
    for (int i = 0; i < 2; i++) tern_device_close(devices[i]);
    return last;
}

/* The same but for the order in which rows are added up. */
static void replicas_under_every_level(void **state)
{
    (void)state;
    for (tern_opt_level level = TERN_O0; level <= TERN_O3; level++) {
        double sums[3], alone = parallel_loss(level, 0, &sums[0]);
        double tolerance = level == TERN_O0 ? 1e-6 : 0x1p-8; /* half a unit of bf16 */
        for (int count = 1; count <= 2; count++) {
            double loss = parallel_loss(level, count, &sums[count]);
            if (fabs(loss - alone) > tolerance * alone || fabs(sums[count] - sums[0]) > tolerance * sums[0])
                fail_msg("O%d, %d replicas: %g, alone %g", level, count, loss, alone);
        }
    }
}

/* ---- recomputation ---- */

/* tern_checkpoint of the whole and of a layer: the same bits. */
static void recomputed_under_every_level(void **state)
{
    (void)state;
    for (tern_opt_level level = TERN_O0; level <= TERN_O3; level++) {
        uint64_t hashes[2];
        for (int again = 0; again < 2; again++) {
            tern_error err = {0};
            fixture f;
            tern_amp_opts opts = tern_amp_defaults(level);
            tern_amp *amp = open_under(&f, NULL, NULL, &opts, NULL, &err);
            for (int step = 0; step < 3; step++) {
                tern_tensor *x = fixture_rows(&f, step, 0, 8);
                tern_tensor *y = again ? tern_checkpoint(f.net, f.s, x) : tern_forward(f.net, f.s, x);
                tern_amp_backward(amp, f.s, tern_cross_entropy(f.s, y, fixture_labels(&f, 0, 8), NULL), NULL);
                tern_optim_step(f.opt, f.s);
                tern_scope_end(f.s, &err);
                assert_ok(err);
            }
            hashes[again] = fixture_hash(f.net);
            tern_amp_free(amp);
            fixture_close(&f);
        }
        assert_true(hashes[0] == hashes[1]);
    }
}

/* ---- what is said, and what is asked for ---- */

static void keep_text(tern_log_level level, const char *text, void *ctx)
{
    if (level == TERN_LOG_INFO) snprintf(ctx, 256, "%s", text);
}

static void overflows_are_said(void **state)
{
    (void)state;
    tern_error err = {0};
    one o;
    char text[256] = "";
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    open_one(&o, &opts, 1, &err);
    tern_log_set(keep_text, text);
    step_one(&o, 1e38, NULL);
    assert_string_equal(text,
                        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768");
    end_one(&o);
    *text = '\0';
    step_one(&o, 1, NULL); /* has none to say */
    tern_log_set(NULL, NULL);
    assert_string_equal(text, "");
    close_one(&o);
}

static void warm_steps_allocate_nothing(void **state)
{
    (void)state;
    for (tern_opt_level level = TERN_O0; level <= TERN_O3; level++) {
        tern_error err = {0};
        ledger books = {0};
        ledger_open(&books);
        fixture f;
        tern_amp_opts opts = tern_amp_defaults(level);
        opts.loss_scale = TERN_LOSS_SCALE_DYNAMIC;
        tern_amp *amp = open_under(&f, NULL, NULL, &opts, NULL, &err);
        int warm = 0;
        for (int step = 0; step < 8; step++) {
            step_under(&f, amp, step < 2 || step == 6 ? 2 : 3); /* also one that is skipped */
            if (step == 3) warm = atomic_load(&books.requests);
        }
        assert_int_equal(atomic_load(&books.requests), warm);
        tern_amp_free(amp);
        fixture_close(&f);
        ledger_close(&books);
    }
}

/* ---- a lack of memory ---- */

/* Everything that amp makes, and its model's first step; the code of what failed first. */
static int make_all(ledger *books, int refuse)
{
    tern_error err = {0};
    fixture f = {0};
    fixture_open_alone(&f, &err);
    tern_optim_free(f.opt);
    tern_scope_free(f.s);
    tern_module *net = fixture_mlp(f.rng, &err);
    tern_module_free(f.net);
    f.net = net;
    assert_ok(err);
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    opts.num_losses = 3;
    books->refuse_at = atomic_load(&books->requests) + refuse;
    tern_amp *amp = tern_amp_new(f.net, &opts, &err);
    f.opt = fixture_sgd(f.net, &err);
    f.s = tern_scope_new(f.dev, NULL, &err);
    tern_object *state = tern_amp_state_dict(amp, &err), *model = tern_module_state_dict(f.net, &err);
    if (amp) tern_amp_state_dict_load(amp, state, &err);
    if (!err.code) {
        tern_amp_backward(amp, f.s, loss_of(&f, 0, 0, 1), NULL);
        tern_optim_step(f.opt, f.s);
        tern_scope_end(f.s, &err);
    }
    if (atomic_load(&books->requests) < books->refuse_at) assert_ok(err);
    books->refuse_at = 0;
    tern_object_free(state);
    tern_object_free(model);
    tern_amp_free(amp);
    fixture_close(&f);
    return err.code;
}

static void memory_that_is_not_there(void **state)
{
    (void)state;
    ledger books = {0};
    int failures = 0, code = TERN_E_MEMORY;
    ledger_open(&books);
    for (int refuse = 1; refuse < 400; refuse++) {
        code = make_all(&books, refuse);
        if (code) assert_int_equal(code, TERN_E_MEMORY);
        failures += code != TERN_OK;
    }
    assert_true(failures > 20 && code == TERN_OK); /* the last one was refused nothing */
    ledger_close(&books);
}

/* ---- what cannot be ---- */

static void expect_no_amp(tern_module *net, const tern_amp_opts *opts, int code, const char *text)
{
    tern_error err = {0};
    assert_null(tern_amp_new(net, opts, &err));
    assert_string_equal(err.text, text);
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_amp_new");
}

static void wrong_orders(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(1, &err);
    tern_module *net = fixture_mlp(rng, &err);
    tern_optim *optim = fixture_sgd(net, &err);
    expect_no_amp(net, NULL, TERN_E_STATE,
                  "sequential already has an optimizer or made a backward: " TERN__SETUP_ORDER);
    tern_optim_free(optim);
    tern_module_free(net);
    net = fixture_mlp(rng, &err);
    tern_amp *amp = tern_amp_new(net, NULL, &err);
    expect_no_amp(net, NULL, TERN_E_STATE, "sequential already has amp: " TERN__SETUP_ORDER);
    assert_int_equal(tern_amp_add(amp, net, NULL), TERN_E_STATE);
    assert_int_equal(tern_amp_add(NULL, net, NULL), TERN_E_INVALID);
    expect_no_amp(NULL, NULL, TERN_E_INVALID, "the model is NULL or was never made");
    assert_ok(err);
    assert_null(tern_parameter_add(net, "more", TERN_F32, 0, NULL, &err));
    assert_string_equal(
        err.text, "\"more\" cannot be added to sequential, which amp has made: build the whole model first");
    assert_int_equal(err.code, TERN_E_STATE);
    tern_module *inner = net->tree->children->module;
    expect_no_amp(inner, NULL, TERN_E_STATE, "linear is part of another module: give amp the whole");
    tern_amp_free(amp);
    tern_module_free(net);
    tern_rng_free(rng);
}

static void wrong_backwards(void **state)
{
    (void)state;
    tern_error err = {0};
    one o;
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    open_one(&o, &opts, 1, &err);
    tern_amp_backward_opts back = tern_amp_backward_defaults();
    back.loss_id = 1;
    step_one(&o, 1, &back);
    assert_int_equal(tern_scope_end(o.scope, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "loss_id is 1, expected one below num_losses, 1");
    tern_optim *none = NULL;
    back = tern_amp_backward_defaults();
    back.optims = &none;
    back.optim_count = 1;
    step_one(&o, 1, &back);
    err = (tern_error){0};
    assert_int_equal(tern_scope_end(o.scope, &err), TERN_E_INVALID);
    assert_string_equal(err.text, "optimizer 0 is NULL");
    tern_tensor *loss = tern_full(o.scope, TERN_F32, 0, NULL, 1);
    assert_int_equal(tern_amp_backward(NULL, o.scope, loss, NULL), TERN_E_INVALID);
    tern_scope_end(o.scope, NULL);
    close_one(&o);
}

static void options_that_cannot_be(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(1, &err);
    tern_module *net = fixture_mlp(rng, &err);
    tern_amp_opts opts = tern_amp_defaults(TERN_O1);
    opts.half_type = TERN_F32;
    expect_no_amp(net, &opts, TERN_E_DTYPE, "amp: expected a half_type of bf16 or f16, got f32");
    opts = tern_amp_defaults(TERN_O1);
    opts.level = (tern_opt_level)4;
    expect_no_amp(net, &opts, TERN_E_INVALID,
                  "amp: unexpected optimization level 4; options are O0, O1, O2, O3");
    opts = tern_amp_defaults(TERN_O1);
    opts.cast_model_outputs = TERN_I32;
    expect_no_amp(net, &opts, TERN_E_DTYPE,
                  "amp: expected cast_model_outputs of floating point or TERN_DTYPE_COUNT");
    opts = tern_amp_defaults(TERN_O1);
    opts.loss_scale = -1;
    expect_no_amp(net, &opts, TERN_E_RANGE,
                  "amp: expected loss_scale and min_loss_scale >= 0 and max_loss_scale >= 1 and >= "
                  "min_loss_scale, got -1, 0 and 1.67772e+07");
    opts = tern_amp_defaults(TERN_O1);
    opts.num_losses = 0;
    expect_no_amp(net, &opts, TERN_E_RANGE, "amp: expected num_losses >= 1, got 0");
    tern_module_free(net);
    tern_rng_free(rng);
}

/* Not enabled nothing changes. */
static void disabled_does_nothing(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture a, b;
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    opts.enabled = false;
    tern_amp *amp = open_under(&a, NULL, NULL, &opts, NULL, &err);
    fixture_open_alone(&b, &err);
    for (int step = 0; step < 3; step++) {
        step_under(&a, amp, step == 2 ? 3 : step);
        fixture_step(&b, step == 2 ? 3 : step, 0, 8, &err);
    }
    assert_ok(err);
    assert_true(fixture_difference(a.net, b.net) == 0);
    assert_true(tern_amp_loss_scale_get(amp, 0) == 1);
    tern_amp_free(amp);
    fixture_close(&a);
    fixture_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_of_all_levels),
        cmocka_unit_test(masters_keep_what_rounding_drops),
        cmocka_unit_test(scales_as_apexs),
        cmocka_unit_test(constant_scales_skip_nothing),
        cmocka_unit_test(losses_add_up),
        cmocka_unit_test(losses_have_optimizers),
        cmocka_unit_test(replicas_under_every_level),
        cmocka_unit_test(gradients_in_f32),
        cmocka_unit_test(backward_leaves_the_weight),
        cmocka_unit_test(recomputed_under_every_level),
        cmocka_unit_test(overflows_are_said),
        cmocka_unit_test(warm_steps_allocate_nothing),
        cmocka_unit_test(memory_that_is_not_there),
        cmocka_unit_test(wrong_orders),
        cmocka_unit_test(wrong_backwards),
        cmocka_unit_test(options_that_cannot_be),
        cmocka_unit_test(disabled_does_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
