/* Loss scaling: the scale moves as GradScaler's, training is the same in every bit but for the steps that are
 * skipped, all ranks skip together, and what is done in a wrong order is said in torch's words. */
#include "parallel/ddp_fixture.h"

#include "amp/amp.h"
#include "ledger.h"
#include "ops/world.h"

/* One backward of the fixture's batch `step`; the loss times `boost` overflows for 1e38. */
static tern_tensor *loss_of(fixture *f, int step, int first, double boost)
{
    tern_tensor *y = tern_forward(f->net, f->s, fixture_rows(f, step, first, 8));
    tern_tensor *loss = tern_cross_entropy(f->s, y, fixture_labels(f, first, 8), NULL);
    return boost == 1 ? loss : tern_mul(f->s, loss, tern_full(f->s, TERN_F32, 0, NULL, boost));
}

static bool scaled_step(fixture *f, tern_scaler *scaler, int step, int first, double boost)
{
    tern_backward(f->s, tern_scaler_scale(scaler, f->s, loss_of(f, step, first, boost)));
    bool made = tern_scaler_step(scaler, f->s, f->opt);
    tern_scaler_update(scaler, f->s);
    return made;
}

static tern_scaler *new_scaler(int64_t interval, tern_error *err)
{
    tern_scaler_opts opts = tern_scaler_defaults();
    opts.growth_interval = interval;
    return tern_scaler_new(&opts, err);
}

/* ---- alone ---- */

static bool overflows(int step)
{
    return step == 0 || step == 7 || step == 8 || step == 20;
}

/* GradScaler's own arithmetic, in its types. */
static void model_update(float *scale, int64_t *tracker, int64_t interval, bool found)
{
    if (found) {
        *scale = (float)((double)*scale * 0.5);
        *tracker = 0;
    } else if (++*tracker == interval) {
        float larger = (float)((double)*scale * 2);
        if (isfinite(larger)) *scale = larger;
        *tracker = 0;
    }
}

static void trains_as_without_and_skips(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture a, b;
    fixture_open_alone(&a, &err);
    fixture_open_alone(&b, &err);
    tern_scaler *scaler = new_scaler(3, &err);
    float scale = 65536;
    int64_t tracker = 0;
    for (int step = 0; step < 30; step++) {
        bool made = scaled_step(&a, scaler, step, 0, overflows(step) ? 1e38 : 1);
        assert_int_equal(made, !overflows(step));
        assert_null(tern_grad_get(tern_state_get(a.net, 0).tensor));
        model_update(&scale, &tracker, 3, overflows(step));
        assert_true(tern_scaler_scale_get(scaler) == scale);
        tern_scope_end(a.s, &err);
        if (!overflows(step)) fixture_step(&b, step, 0, 8, &err);
        assert_ok(err);
    }
    assert_true(fixture_difference(a.net, b.net) == 0);
    tern_scaler_free(scaler);
    fixture_close(&a);
    fixture_close(&b);
}

/* The scale stays where it would become infinite. */
static void grows_no_further_than_f32(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f;
    fixture_open_alone(&f, &err);
    tern_scaler_opts opts = tern_scaler_defaults();
    opts.init_scale = 1e38;
    opts.growth_factor = 4;
    opts.growth_interval = 1;
    tern_scaler *scaler = tern_scaler_new(&opts, &err);
    tern_tensor *x = fixture_rows(&f, 0, 0, 8), *y = tern_forward(f.net, f.s, x);
    tern_tensor *small = tern_mul(f.s, tern_sum(f.s, y), tern_full(f.s, TERN_F32, 0, NULL, 1e-30));
    tern_backward(f.s, tern_scaler_scale(scaler, f.s, small));
    assert_true(tern_scaler_step(scaler, f.s, f.opt));
    tern_scaler_update(scaler, f.s);
    assert_true(tern_scaler_scale_get(scaler) == 1e38f);
    assert_int_equal(tern_scope_end(f.s, &err), TERN_OK);
    tern_scaler_free(scaler);
    fixture_close(&f);
}

/* A ddp may weigh the ranks by what their losses were divided by. */
static void a_scaled_loss_keeps_its_normaliser(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f;
    fixture_open_alone(&f, &err);
    tern_scaler *scaler = tern_scaler_new(NULL, &err);
    tern_tensor *scaled = tern_scaler_scale(scaler, f.s, loss_of(&f, 0, 0, 1));
    assert_true(tern_loss_normaliser(scaled) == 8);
    assert_int_equal(tern_scope_end(f.s, &err), TERN_OK);
    tern_scaler_free(scaler);
    fixture_close(&f);
}

/* torch multiplies by the scale's inverse in f32, in f64 too: which shows if the scale is no power of two. */
static void the_inverse_is_rounded_to_f32(void **state)
{
    (void)state;
    tern_error err = {0};
    world w = open_world();
    tern_module net;
    tern_module_init(&net, "double", NULL, &err);
    tern_tensor *p = tern_parameter_add(&net, "p", TERN_F64, 0, NULL, &err);
    tern_optim *optim = tern_sgd_new(&net, NULL, &err);
    tern_scaler_opts opts = tern_scaler_defaults();
    opts.init_scale = 3;
    tern_scaler *scaler = tern_scaler_new(&opts, &err);
    assert_ok(err);
    tern_backward(w.scope, tern_scaler_scale(scaler, w.scope, tern_sum(w.scope, p)));
    tern_scaler_unscale(scaler, w.scope, optim);
    assert_true(tern__view_get(&tern_grad_get(p)->view, 0) == 3 * (double)(1 / 3.0f));
    assert_int_equal(tern_scope_end(w.scope, &err), TERN_OK);
    tern_scaler_free(scaler);
    tern_optim_free(optim);
    tern_module_release(&net);
    close_world(&w);
}

/* Two optimizers of one net: the skip is one's own, the scale is shared. */
static bool is_weight(const char *name, const tern_tensor *parameter, void *ctx)
{
    (void)ctx;
    return parameter && strstr(name, "weight");
}

static void each_optimizer_skips_for_itself(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f, g;
    fixture_open_alone(&f, &err);
    fixture_open_alone(&g, &err);
    g.s = (tern_scope_free(g.s), f.s);
    tern_scaler *scaler = new_scaler(100, &err);
    assert_int_equal(tern_sgd_group_add(f.opt, is_weight, NULL, NULL, &err), 1);
    uint64_t before[2] = {fixture_hash(f.net), fixture_hash(g.net)};
    tern_tensor *loss = tern_add(f.s, loss_of(&f, 0, 0, 1), loss_of(&g, 0, 0, 1e38));
    tern_backward(f.s, tern_scaler_scale(scaler, f.s, loss));
    assert_true(tern_scaler_step(scaler, f.s, f.opt));
    assert_false(tern_scaler_step(scaler, f.s, g.opt));
    tern_scaler_update(scaler, f.s);
    assert_true(tern_scaler_scale_get(scaler) == 32768);
    assert_int_equal(tern_scope_end(f.s, &err), TERN_OK);
    assert_true(fixture_hash(f.net) != before[0] && fixture_hash(g.net) == before[1]);
    tern_scaler_free(scaler);
    g.s = NULL;
    fixture_close(&f);
    fixture_close(&g);
}

/* Between unscale and step gradients are the loss's own. */
static void clips_what_is_unscaled(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture a, b;
    fixture_open_alone(&a, &err);
    fixture_open_alone(&b, &err);
    tern_scaler *scaler = tern_scaler_new(NULL, &err);
    for (int step = 0; step < 3; step++) {
        tern_backward(a.s, tern_scaler_scale(scaler, a.s, loss_of(&a, step, 0, 1)));
        tern_scaler_unscale(scaler, a.s, a.opt);
        double norm = tern_item(tern_clip_grad_norm(a.s, a.net, 0.0625, 2));
        assert_true(tern_scaler_step(scaler, a.s, a.opt));
        tern_scaler_update(scaler, a.s);
        tern_backward(b.s, loss_of(&b, step, 0, 1));
        assert_true(norm == tern_item(tern_clip_grad_norm(b.s, b.net, 0.0625, 2)));
        assert_true(norm > 0.0625);
        tern_optim_step(b.opt, b.s);
        tern_scope_end(a.s, &err);
        tern_scope_end(b.s, &err);
    }
    assert_ok(err);
    assert_true(fixture_difference(a.net, b.net) == 0);
    tern_scaler_free(scaler);
    fixture_close(&a);
    fixture_close(&b);
}

static void disabled_does_nothing(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f;
    fixture_open_alone(&f, &err);
    tern_scaler_opts opts = tern_scaler_defaults();
    opts.enabled = false;
    tern_scaler *scaler = tern_scaler_new(&opts, &err);
    tern_tensor *loss = loss_of(&f, 0, 0, 1);
    assert_ptr_equal(tern_scaler_scale(scaler, f.s, loss), loss);
    tern_backward(f.s, loss);
    tern_scaler_unscale(scaler, f.s, f.opt);
    assert_true(tern_scaler_step(scaler, f.s, f.opt));
    tern_scaler_update(scaler, f.s);
    assert_true(tern_scaler_scale_get(scaler) == 1);
    assert_int_equal(tern_scope_end(f.s, &err), TERN_OK);
    tern_object *dict = tern_scaler_state_dict(scaler, &err);
    assert_int_equal(tern_object_count(dict), 0);
    assert_int_equal(tern_scaler_state_dict_load(scaler, NULL, &err), TERN_OK);
    tern_object_free(dict);
    tern_scaler_free(scaler);
    fixture_close(&f);
}

static void warm_steps_allocate_nothing(void **state)
{
    (void)state;
    tern_error err = {0};
    ledger books = {0};
    ledger_open(&books);
    fixture f;
    fixture_open_alone(&f, &err);
    tern_scaler *scaler = new_scaler(2, &err);
    int warm = 0;
    for (int step = 0; step < 8; step++) {
        scaled_step(&f, scaler, step, 0, step == 1 || step == 5 ? 1e38 : 1);
        assert_int_equal(tern_scope_end(f.s, &err), TERN_OK);
        if (step == 3) warm = atomic_load(&books.requests);
    }
    assert_int_equal(atomic_load(&books.requests), warm);
    tern_scaler_free(scaler);
    fixture_close(&f);
    ledger_close(&books);
}

static void memory_that_is_not_there(void **state)
{
    (void)state;
    ledger books = {0};
    int failures = 0, code = TERN_E_MEMORY;
    ledger_open(&books);
    for (int refuse = 1; refuse < 60; refuse++) {
        tern_error err = {0};
        fixture f;
        fixture_open_alone(&f, &err);
        fixture_step(&f, 0, 0, 8, &err);
        fixture_step(&f, 0, 0, 8, &err);
        assert_ok(err);
        books.refuse_at = atomic_load(&books.requests) + refuse;
        tern_scaler *scaler = tern_scaler_new(NULL, &err);
        tern_object *saved = scaler ? tern_scaler_state_dict(scaler, &err) : NULL;
        if (saved) tern_scaler_state_dict_load(scaler, saved, &err);
        if (saved) scaled_step(&f, scaler, 0, 0, 1);
        tern_scope_end(f.s, &err);
        books.refuse_at = 0;
        code = err.code;
        if (code) assert_int_equal(code, TERN_E_MEMORY);
        failures += code != TERN_OK;
        tern_object_free(saved);
        tern_scaler_free(scaler);
        fixture_close(&f);
    }
    assert_true(failures > 8 && code == TERN_OK);
    ledger_close(&books);
}

/* ---- several ranks ---- */

/* In step 2 the parameter that the ddp leaves to each rank overflows on the last rank only; in step 4 the
 * loss does. */
static double boost_of(fixture *f, int step)
{
    return f->rank == f->world_size - 1 && step == 4 ? 1e38 : 1;
}

static tern_tensor *add_own(fixture *f, tern_tensor *loss, int step)
{
    if (f->rank != f->world_size - 1 || step != 2) return loss;
    tern_tensor *own = tern_state_get(f->net, 1).tensor; /* the first bias, which is ignored */
    tern_tensor *boost = tern_full(f->s, TERN_F32, 0, NULL, 1e38);
    return tern_add(f->s, loss, tern_mul(f->s, boost, tern_sum(f->s, own)));
}

static int skip_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    tern_ddp_opts opts = tern_ddp_defaults();
    const char *ignore[] = {"0.bias"};
    opts.ignore = ignore;
    opts.ignore_count = 1;
    fixture_open(&f, boot, NULL, &opts, &err);
    tern_scaler *scaler = new_scaler(100, &err);
    RANK_CHECK_OK(rank, err);
    double scale = 65536;
    for (int step = 0; step < 6; step++) {
        tern_tensor *loss = add_own(&f, loss_of(&f, step, rank * 8, boost_of(&f, step)), step);
        double mean = tern_item(loss);
        tern_backward(f.s, tern_scaler_scale(scaler, f.s, loss));
        bool made = tern_scaler_step(scaler, f.s, f.opt);
        tern_scaler_update(scaler, f.s);
        RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_OK);
        bool skipped = step == 2 || step == 4;
        if (skipped) scale /= 2;
        RANK_CHECK(rank, made == !skipped && tern_scaler_scale_get(scaler) == scale);
        if (tern_group_size(f.world) == 1 && !skipped) RANK_CHECK(rank, tern_ddp_loss_mean(f.ddp) == mean);
        RANK_CHECK(rank, skipped || tern_ddp_loss_mean(f.ddp) < 3); /* not the scaled one */
    }
    uint64_t hash = 0;
    tern_tensor *weight = tern_state_find(f.net, "0.weight");
    memcpy(&hash, weight->view.data, sizeof(hash));
    RANK_CHECK(rank, fixture_same(f.world, hash, &err));
    tern_scaler_free(scaler);
    fixture_close(&f);
    return 0;
}

static void all_ranks_skip_together(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) assert_ranks_ok(ranks_run(size, skip_body, NULL));
}

typedef struct follower {
    fixture *f;
    tern_scaler *scaler;
    int skipped;
} follower;

static int follow(void *arg, tern_error *err)
{
    follower *self = arg;
    self->skipped += !tern_scaler_step(self->scaler, self->f->s, self->f->opt);
    tern_scaler_update(self->scaler, self->f->s);
    return tern_scope_end(self->f->s, err);
}

/* Those who go on would wait for it in their step. */
static int refused_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    fixture_open(&f, boot, NULL, NULL, &err);
    tern_scaler *scaler = new_scaler(100, &err);
    scaled_step(&f, scaler, 0, rank * 8, 1);
    if (rank == 0) RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_OK);
    tern_join_opts opts = tern_join_defaults();
    if (rank == 0) {
        RANK_CHECK(rank, tern_ddp_join(f.ddp, &opts, &err) == TERN_E_STATE);
        RANK_CHECK(rank, strstr(err.text, "is stepped by a scaler: pass an after_backward that steps it"));
    }
    tern_scaler_free(scaler);
    fixture_close(&f);
    return 0;
}

/* Rank 1 has no batch at all, and hears of the scaler from those that have. */
static int refused_at_once_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const bool *several = arg;
    tern_error err = {0};
    fixture f;
    fixture_open(&f, boot, NULL, NULL, &err);
    tern_scaler *scaler = new_scaler(100, &err);
    if (rank == 1) {
        RANK_CHECK(rank, tern_ddp_join(f.ddp, NULL, &err) == TERN_E_STATE);
        RANK_CHECK(rank, strstr(err.text, "is stepped by a scaler: pass an after_backward that steps it"));
    } else {
        tern_tensor *loss = tern_scaler_scale(scaler, f.s, loss_of(&f, 0, rank * 8, 1));
        if (*several) loss = tern_add(f.s, loss, tern_scaler_scale(scaler, f.s, loss_of(&f, 1, rank * 8, 1)));
        tern_backward(f.s, loss);
        tern_scaler_step(scaler, f.s, f.opt);
        RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_E_PEER);
    }
    tern_scaler_free(scaler);
    fixture_close(&f);
    return 0;
}

/* Nobody waits for a rank alone. */
static int alone_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    fixture_open(&f, boot, NULL, NULL, &err);
    tern_scaler *scaler = new_scaler(100, &err);
    scaled_step(&f, scaler, 0, 0, 1);
    RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_OK);
    RANK_CHECK(rank, tern_ddp_join(f.ddp, NULL, &err) == TERN_OK);
    tern_scaler_free(scaler);
    fixture_close(&f);
    return 0;
}

/* Rank 1 runs out after two steps; step 3 of rank 0 overflows. */
static int joined_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    fixture_open(&f, boot, NULL, NULL, &err);
    tern_scaler *scaler = new_scaler(100, &err);
    follower self = {&f, scaler, 0};
    int steps = rank == 0 ? 5 : 2;
    for (int step = 0; step < steps; step++) {
        self.skipped += !scaled_step(&f, scaler, step, rank * 8, step == 3 ? 1e38 : 1);
        RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_OK);
    }
    tern_join_opts opts = tern_join_defaults();
    opts.after_backward = follow;
    opts.arg = &self;
    RANK_CHECK(rank, tern_ddp_join(f.ddp, &opts, &err) == TERN_OK);
    RANK_CHECK(rank, self.skipped == 1 && tern_scaler_scale_get(scaler) == 32768);
    RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    tern_scaler_free(scaler);
    fixture_close(&f);
    return 0;
}

static void ranks_without_inputs_follow(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, joined_body, NULL));
    assert_ranks_ok(ranks_run(2, refused_body, NULL));
    assert_ranks_ok(ranks_run(1, alone_body, NULL));
    for (int i = 0; i < 2; i++) {
        bool several = i;
        assert_ranks_ok(ranks_run(2, refused_at_once_body, &several));
        assert_ranks_ok(ranks_run(3, refused_at_once_body, &several));
    }
}

/* ---- the state ---- */

static void state_goes_on(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f;
    fixture_open_alone(&f, &err);
    tern_scaler *one = new_scaler(3, &err), *two = tern_scaler_new(NULL, &err);
    for (int step = 0; step < 5; step++) {
        scaled_step(&f, one, step, 0, step == 0 ? 1e38 : 1);
        tern_scope_end(f.s, &err);
    }
    tern_object *dict = tern_scaler_state_dict(one, &err);
    const char *keys[] = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"};
    const double values[] = {65536, 2, 0.5, 3, 1};
    assert_int_equal(tern_object_count(dict), 5);
    for (int i = 0; i < 5; i++) {
        double value = 0;
        assert_string_equal(tern_object_to_string(tern_object_key(dict, i)), keys[i]);
        assert_int_equal(tern_object_to_float(tern_object_get(dict, keys[i]), &value, &err), TERN_OK);
        assert_true(value == values[i]);
    }
    assert_int_equal(tern_scaler_state_dict_load(two, dict, &err), TERN_OK);
    for (int step = 5; step < 7; step++) {
        scaled_step(&f, two, step, 0, 1);
        tern_scope_end(f.s, &err);
    }
    assert_true(tern_scaler_scale_get(two) == 131072);
    assert_ok(err);
    tern_object_free(dict);
    tern_scaler_free(one);
    tern_scaler_free(two);
    fixture_close(&f);
}

static void expect_load(tern_scaler *scaler, tern_object *dict, int code, const char *text)
{
    tern_error err = {0};
    assert_int_equal(tern_scaler_state_dict_load(scaler, dict, &err), code);
    assert_string_equal(err.text, text);
    assert_string_equal(err.func, "tern_scaler_state_dict_load");
    assert_true(tern_scaler_scale_get(scaler) == 65536);
}

static void states_that_cannot_be(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_scaler *scaler = tern_scaler_new(NULL, &err);
    tern_object *dict = tern_object_dict(&err);
    expect_load(scaler, dict, TERN_E_INVALID,
                "The source state dict is empty, possibly because it was saved from a disabled instance of "
                "GradScaler.");
    expect_load(scaler, NULL, TERN_E_INVALID, "state[\"scale\"] is missing");
    tern_object_set(dict, "scale", tern_object_string("large", &err), &err);
    expect_load(scaler, dict, TERN_E_DTYPE, "state[\"scale\"] is a string, expected a number");
    tern_object_set(dict, "scale", tern_object_float(8, &err), &err);
    tern_object_set(dict, "growth_factor", tern_object_float(0.5, &err), &err);
    expect_load(scaler, dict, TERN_E_RANGE, "state[\"growth_factor\"] is 0.5, expected [1, 3.40282e+38]");
    tern_object_set(dict, "growth_factor", tern_object_float(2, &err), &err);
    tern_object_set(dict, "backoff_factor", tern_object_float(0.25, &err), &err);
    expect_load(scaler, dict, TERN_E_INVALID, "state[\"growth_interval\"] is missing");
    assert_ok(err);
    assert_null(tern_scaler_state_dict(NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_int_equal(tern_scaler_state_dict_load(NULL, dict, NULL), TERN_E_INVALID);
    tern_object_free(dict);
    tern_scaler_free(scaler);
}

/* ---- what cannot be ---- */

static void expect_refused(fixture *f, const char *func, int code, const char *text)
{
    tern_error err = {0};
    tern_scope_end(f->s, &err);
    assert_string_equal(err.text, text);
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, func);
}

static void wrong_orders(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f;
    fixture_open_alone(&f, &err);
    tern_scaler *scaler = tern_scaler_new(NULL, &err);
    const char *step = "tern_scaler_step", *unscale = "tern_scaler_unscale";
    tern_scaler_step(scaler, f.s, f.opt);
    expect_refused(&f, step, TERN_E_STATE, "No inf checks were recorded for this optimizer.");
    tern_scaler_update(scaler, f.s);
    expect_refused(&f, "tern_scaler_update", TERN_E_STATE, "No inf checks were recorded prior to update.");
    tern_scaler_free(scaler);
    scaler = tern_scaler_new(NULL, &err);
    tern_backward(f.s, tern_scaler_scale(scaler, f.s, loss_of(&f, 0, 0, 1)));
    tern_scaler_unscale(scaler, f.s, f.opt);
    tern_scaler_unscale(scaler, f.s, f.opt);
    expect_refused(&f, unscale, TERN_E_STATE,
                   "unscale_() has already been called on this optimizer since the last update().");
    assert_true(tern_scaler_step(scaler, f.s, f.opt));
    tern_scaler_unscale(scaler, f.s, f.opt);
    expect_refused(&f, unscale, TERN_E_STATE, "unscale_() is being called after step().");
    assert_false(tern_scaler_step(scaler, f.s, f.opt));
    expect_refused(&f, step, TERN_E_STATE, "step() has already been called since the last update().");
    tern_scaler_unscale(NULL, f.s, f.opt);
    expect_refused(&f, unscale, TERN_E_INVALID, "the scaler is NULL");
    tern_scaler_step(scaler, f.s, NULL);
    expect_refused(&f, step, TERN_E_INVALID, "the optimizer is NULL");
    tern_scaler_update(NULL, f.s);
    expect_refused(&f, "tern_scaler_update", TERN_E_INVALID, "the scaler is NULL");
    assert_null(tern_scaler_scale(NULL, f.s, fixture_rows(&f, 0, 0, 1)));
    expect_refused(&f, "tern_scaler_scale", TERN_E_INVALID, "the scaler is NULL");
    tern_scaler_free(scaler);
    fixture_close(&f);
}

static void keep_warning(tern_log_level level, const char *text, void *ctx)
{
    if (level == TERN_LOG_WARN) snprintf(ctx, TERN_ERROR_TEXT, "%s", text);
}

/* Those of a backward that no step followed are forgotten. */
static void the_last_backward_names_what_is_not_finite(void **state)
{
    (void)state;
    char text[TERN_ERROR_TEXT] = "";
    tern_error err = {0};
    fixture f;
    fixture_open_alone(&f, &err);
    tern_scaler_opts opts = tern_scaler_defaults();
    opts.name_non_finite = true;
    tern_scaler *scaler = tern_scaler_new(&opts, &err);
    tern_backward(f.s, tern_scaler_scale(scaler, f.s, loss_of(&f, 0, 0, 1e38)));
    tern_zero_grad(f.net);
    tern_log_set(keep_warning, text);
    tern_backward(f.s, tern_scaler_scale(scaler, f.s, loss_of(&f, 1, 0, 1)));
    assert_true(tern_scaler_step(scaler, f.s, f.opt));
    tern_log_set(NULL, NULL);
    assert_string_equal(text, "");
    assert_int_equal(tern_scope_end(f.s, &err), TERN_OK);
    tern_scaler_free(scaler);
    fixture_close(&f);
}

/* In f16 small gradients would be lost again. */
static void gradients_of_f16(void **state)
{
    (void)state;
    tern_error err = {0};
    world w = open_world();
    tern_module net;
    tern_module_init(&net, "half", NULL, &err);
    tern_tensor *p = tern_parameter_add(&net, "p", TERN_F16, 0, NULL, &err);
    tern_optim *optim = tern_sgd_new(&net, NULL, &err);
    tern_scaler *scaler = tern_scaler_new(NULL, &err);
    assert_ok(err);
    tern_backward(w.scope, tern_mul(w.scope, p, p));
    tern_scaler_unscale(scaler, w.scope, optim);
    expect_error(&w, NULL, "tern_scaler_unscale", TERN_E_DTYPE, "Attempting to unscale FP16 gradients.");
    tern_scaler_free(scaler);
    tern_optim_free(optim);
    tern_module_release(&net);
    close_world(&w);
}

static void expect_opts(tern_scaler_opts opts, const char *text)
{
    tern_error err = {0};
    assert_null(tern_scaler_new(&opts, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    assert_string_equal(err.text, text);
}

static void options_that_cannot_be(void **state)
{
    (void)state;
    tern_scaler_opts opts = tern_scaler_defaults();
    opts.init_scale = 0;
    expect_opts(opts, "scaler: expected an init_scale > 0, got 0");
    opts = tern_scaler_defaults();
    opts.growth_factor = 1;
    expect_opts(opts, "scaler: expected a growth_factor > 1, got 1");
    opts = tern_scaler_defaults();
    opts.backoff_factor = 1;
    expect_opts(opts, "scaler: expected a backoff_factor between 0 and 1, got 1");
    opts = tern_scaler_defaults();
    opts.growth_interval = 0;
    expect_opts(opts, "scaler: expected a growth_interval >= 1, got 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* first: a fork after OpenMP has started its threads waits for them */
        cmocka_unit_test(all_ranks_skip_together),
        cmocka_unit_test(ranks_without_inputs_follow),
        cmocka_unit_test(trains_as_without_and_skips),
        cmocka_unit_test(grows_no_further_than_f32),
        cmocka_unit_test(a_scaled_loss_keeps_its_normaliser),
        cmocka_unit_test(the_inverse_is_rounded_to_f32),
        cmocka_unit_test(each_optimizer_skips_for_itself),
        cmocka_unit_test(clips_what_is_unscaled),
        cmocka_unit_test(disabled_does_nothing),
        cmocka_unit_test(warm_steps_allocate_nothing),
        cmocka_unit_test(memory_that_is_not_there),
        cmocka_unit_test(state_goes_on),
        cmocka_unit_test(states_that_cannot_be),
        cmocka_unit_test(wrong_orders),
        cmocka_unit_test(the_last_backward_names_what_is_not_finite),
        cmocka_unit_test(gradients_of_f16),
        cmocka_unit_test(options_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
