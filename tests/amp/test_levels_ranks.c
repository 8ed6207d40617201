/* Opt levels on several ranks: all skip together, gradients go over in the type asked for, differences are
 * found, synchronised batch norms, and the order in which they are set up. */
#include "amp/levels.h"
#include "ledger.h"

/* ---- ranks: all skip together ---- */

typedef struct variant {
    tern_opt_level level;
    tern_dtype half, reduce;
} variant;

static const variant variants[] = {
    {TERN_O0, TERN_BF16, TERN_F32}, {TERN_O1, TERN_BF16, TERN_BF16}, {TERN_O2, TERN_BF16, TERN_F32},
    {TERN_O2, TERN_F16, TERN_F16},  {TERN_O3, TERN_BF16, TERN_F32},
};

static int together_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const variant *v = arg;
    tern_error err = {0};
    fixture f;
    tern_amp_opts opts = opts_of(v->level, v->half);
    opts.loss_scale = TERN_LOSS_SCALE_DYNAMIC;
    tern_ddp_opts ddp = tern_ddp_defaults();
    ddp.reduce_dtype = v->reduce;
    tern_amp *amp = open_under(&f, boot, NULL, &opts, &ddp, &err);
    RANK_CHECK_OK(rank, err);
    double scale = 65536, first = 0, last = 0;
    for (int step = 0; step < 12; step++) {
        bool overflows = step == 3 || step == 7; /* on the last rank only */
        uint64_t before = fixture_hash(f.net);
        double boost = overflows && rank == f.world_size - 1 ? 1e38 : 1;
        tern_amp_backward(amp, f.s, loss_of(&f, 0, rank * 8, boost), NULL);
        tern_optim_step(f.opt, f.s);
        RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_OK);
        if (overflows) scale /= 2;
        RANK_CHECK(rank, (fixture_hash(f.net) == before) == overflows);
        RANK_CHECK(rank, tern_amp_loss_scale_get(amp, 0) == scale);
        RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
        last = tern_ddp_loss_mean(f.ddp);
        if (step == 0) first = last;
    }
    RANK_CHECK(rank, first > 1 && first < 2 && last < first);
    tern_amp_free(amp);
    fixture_close(&f);
    return 0;
}

static void all_ranks_skip_together(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(variants); i++)
        assert_ranks_ok(ranks_run(2 + (int)i % 3, together_body, (void *)&variants[i]));
}

/* ---- ranks: who it was ---- */

static void keep_warning(tern_log_level level, const char *text, void *ctx)
{
    if (level == TERN_LOG_WARN) snprintf(ctx, 256, "%s", text);
}

/* One element of the last layer's bias, and all before it by way of the loss, on rank 1 in the third
 * backward; reduced, it is all ranks'. `arg`: by a scaler, or amp. */
static int named_body(int rank, const tern__bootstrap *boot, void *arg)
{
    bool by_scaler = *(const int *)arg;
    tern_error err = {0};
    fixture f;
    char text[256] = "";
    tern_amp_opts opts = tern_amp_defaults(TERN_O0);
    opts.name_non_finite = !by_scaler;
    tern_amp *amp = open_under(&f, boot, NULL, &opts, NULL, &err);
    tern_scaler_opts scaler_opts = tern_scaler_defaults();
    scaler_opts.name_non_finite = true;
    scaler_opts.init_scale = 1;
    tern_scaler *scaler = tern_scaler_new(&scaler_opts, &err);
    RANK_CHECK_OK(rank, err);
    tern_log_set(keep_warning, text);
    for (int step = 0; step < 3; step++) {
        tern_tensor *loss = loss_of(&f, step, rank * 8, 1), *bias = tern_state_find(f.net, "2.bias");
        tern_tensor *element = tern_select(f.s, bias, 0, 2);
        if (rank == 1 && step == 2) loss = tern_add(f.s, loss, scaled(&f, element, 1e39));
        if (by_scaler) {
            tern_backward(f.s, tern_scaler_scale(scaler, f.s, loss));
            RANK_CHECK(rank, tern_scaler_step(scaler, f.s, f.opt) == (step < 2));
            tern_scaler_update(scaler, f.s);
        } else {
            tern_amp_backward(amp, f.s, loss, NULL);
            tern_optim_step(f.opt, f.s);
        }
        RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_OK);
        RANK_CHECK(rank, (rank == 1 && step == 2) == (*text != 0));
    }
    const char *want =
        "rank 1, backward 3: gradients that are not finite: 1, first that of \"2.bias\", in 1 of 16 numbers";
    if (rank == 1 && strcmp(text, want) != 0) fprintf(stderr, "%s\n", text);
    RANK_CHECK(rank, rank != 1 || !strcmp(text, want));
    tern_log_set(NULL, NULL);
    tern_scaler_free(scaler);
    tern_amp_free(amp);
    fixture_close(&f);
    return 0;
}

static void what_is_not_finite_has_a_name(void **state)
{
    (void)state;
    for (int by_scaler = 0; by_scaler < 2; by_scaler++) assert_ranks_ok(ranks_run(2, named_body, &by_scaler));
}

/* ---- ranks: bytes that go over ---- */

static size_t bytes_over(const tern_ddp *ddp)
{
    size_t bytes = 0;
    for (int b = 0; b < tern_ddp_bucket_count(ddp); b++) bytes += tern_ddp_bucket_bytes(ddp, b);
    return bytes;
}

static int narrow_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f, g;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 256;
    fixture_open(&f, boot, NULL, &opts, &err);
    size_t wide = bytes_over(f.ddp);
    tern_module *net = fixture_mlp(f.rng, &err);
    opts.reduce_dtype = TERN_BF16;
    g = f;
    g.net = net;
    g.ddp = tern_ddp_new(net, f.world, &opts, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, 2 * bytes_over(g.ddp) == wide);
    for (int step = 0; step < 3; step++) { /* before and after the buckets are cut again */
        fixture_backward(&g, step, rank * 8, 8);
        RANK_CHECK(rank, tern_scope_end(g.s, &err) == TERN_OK);
        for (int i = 0; i < tern_state_count(net); i++) {
            const tern_tensor *grad = tern_grad_get(tern_state_get(net, i).tensor);
            RANK_CHECK(rank, grad && grad->view.dtype == TERN_F32);
            const uint32_t *bits = grad->view.data;
            uint64_t hash = 0, any = 0;
            for (int64_t k = 0; k < tern_tensor_count(grad); k++) {
                RANK_CHECK(rank, (bits[k] & 0xffff) == 0); /* a mean that was rounded to bf16 */
                hash = hash * 31 + bits[k];
                any |= bits[k];
            }
            RANK_CHECK(rank, any && fixture_same(f.world, hash, &err));
        }
        tern_zero_grad(net);
    }
    tern_ddp_free(g.ddp);
    tern_module_free(net);
    fixture_close(&f);
    return 0;
}

/* Exactly the mean of what was rounded: 1 and 2^-9 are bf16, their sum is not. */
static int rounded_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_dtype dtype = *(const tern_dtype *)arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_module net;
    tern_module_init(&net, "net", NULL, &err);
    const int64_t shapes[3] = {1, 33, 5};
    tern_tensor *p[3];
    const char *names[3] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) p[i] = tern_parameter_add(&net, names[i], TERN_F32, 1, &shapes[i], &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.reduce_dtype = dtype;
    tern_ddp *ddp = tern_ddp_new(&net, world, &opts, &err);
    tern_scope *scope = tern_scope_new(device, world, &err);
    RANK_CHECK_OK(rank, err);
    double x = rank == 0 ? 1 + 0x1p-9 : 0x1p-7; /* rounded: 1 in bf16, as it is in f16 */
    tern_tensor *used = tern_add(scope, tern_sum(scope, p[0]), tern_sum(scope, p[1]));
    tern_backward(scope, tern_mul(scope, tern_full(scope, TERN_F32, 0, NULL, x), used));
    double want = dtype == TERN_BF16 ? 0.50390625 : (1 + 0x1p-9 + 0x1p-7) / 2;
    for (int i = 0; i < 2; i++) {
        const tern_tensor *grad = tern_grad_get(p[i]);
        for (int64_t k = 0; k < shapes[i]; k++) RANK_CHECK(rank, tern__view_get(&grad->view, k) == want);
    }
    RANK_CHECK(rank, !tern_grad_get(p[2])); /* nobody has used it */
    RANK_CHECK(rank, tern_scope_end(scope, &err) == TERN_OK);
    tern_scope_free(scope);
    tern_ddp_free(ddp);
    tern_module_release(&net);
    tern_device_close(device);
    tern_group_close(world);
    return 0;
}

static void gradients_go_over_in_16_bits(void **state)
{
    (void)state;
    const tern_dtype dtypes[] = {TERN_BF16, TERN_F16};
    for (int size = 2; size <= 3; size++) assert_ranks_ok(ranks_run(size, narrow_body, NULL));
    for (int i = 0; i < 2; i++) assert_ranks_ok(ranks_run(2, rounded_body, (void *)&dtypes[i]));
}

/* ---- ranks: sharded masters ---- */

/* Of every kind that has masters: Adam, LAMB, SGD. */
static tern_optim *optim_of(int kind, tern_module *net, tern_error *err)
{
    tern_lamb_opts lamb = tern_lamb_defaults();
    tern_adam_opts adam = tern_adam_defaults();
    lamb.lr = adam.lr = 0.01;
    if (kind == 0) return tern_adam_new(net, &adam, err);
    return kind == 1 ? tern_lamb_new(net, &lamb, err) : fixture_sgd(net, err);
}

static void step_of(fixture *f, tern_amp *amp, int step)
{
    tern_amp_backward(amp, f->s, loss_of(f, step, f->rank * 8, step == 2 ? 1e38 : 1), NULL);
    tern_optim_step(f->opt, f->s);
}

/* Sharded and not, the same bits, also in what is gathered for a checkpoint; it goes on from there. */
static int sharded_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int kind = *(const int *)arg;
    tern_error err = {0};
    fixture f, g;
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    tern_amp *amp[2];
    amp[0] = open_under(&f, boot, NULL, &opts, NULL, &err);
    tern_rng_seed(f.rng, 7);
    g = f;
    g.net = fixture_mlp(f.rng, &err);
    amp[1] = tern_amp_new(g.net, &opts, &err);
    g.ddp = tern_ddp_new(g.net, g.world, NULL, &err);
    tern_optim_free(f.opt);
    f.opt = optim_of(kind, f.net, &err);
    g.opt = optim_of(kind, g.net, &err);
    RANK_CHECK(rank, tern_optim_shard(g.opt, g.world, &err) == TERN_OK);
    for (int step = 0; step < 6; step++) {
        step_of(&f, amp[0], step);
        step_of(&g, amp[1], step);
        RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_OK);
        RANK_CHECK(rank, fixture_hash(f.net) == fixture_hash(g.net));
        if (step != 3) continue;
        /* Slices differ by a section, of parameters of 16 bits: twice that of each of three states in f32. */
        size_t most = tern_optim_state_bytes(f.opt) / (size_t)f.world_size + 3 * 2 * TERN__SECTION;
        RANK_CHECK(rank, tern_optim_state_bytes(g.opt) <= most);
        tern_optim_state *whole = tern_optim_state_gather(f.opt, -1, &err),
                         *parts = tern_optim_state_gather(g.opt, -1, &err);
        RANK_CHECK_OK(rank, err);
        int count = tern_optim_state_count(whole), masters = 0;
        RANK_CHECK(rank, count == tern_optim_state_count(parts));
        for (int i = 0; i < count; i++) {
            const tern_optim_entry *a = tern_optim_state_entries(whole) + i,
                                   *b = tern_optim_state_entries(parts) + i;
            masters += !strcmp(a->name, "master");
            RANK_CHECK(rank, !strcmp(a->name, b->name) && !strcmp(a->parameter, b->parameter));
            RANK_CHECK(rank, a->tensor->view.dtype == b->tensor->view.dtype);
            RANK_CHECK(rank, !memcmp(a->tensor->view.data, b->tensor->view.data,
                                     tern__view_bytes(&a->tensor->view)));
        }
        RANK_CHECK(rank, masters == tern_module_parameter_count(f.net));
        tern_optim_state_load(g.opt, tern_optim_state_entries(whole), count, &err);
        tern_optim_state_load(f.opt, tern_optim_state_entries(parts), count, &err);
        RANK_CHECK_OK(rank, err);
        tern_optim_state_free(whole);
        tern_optim_state_free(parts);
    }
    tern_optim_free(g.opt);
    tern_ddp_free(g.ddp);
    tern_amp_free(amp[0]);
    tern_amp_free(amp[1]);
    tern_module_free(g.net);
    fixture_close(&f);
    return 0;
}

static void sharded_masters(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) assert_ranks_ok(ranks_run(2 + kind % 2, sharded_body, &kind));
}

/* ---- ranks: differences are found ---- */

static int differ_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int what = *(const int *)arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_rng *rng = tern_rng_new(1, &err);
    tern_module *net = fixture_mlp(rng, &err);
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    tern_ddp_opts ddp = tern_ddp_defaults();
    if (what == 0) opts.gradients_f32 = rank == 0;
    if (what == 1) opts = tern_amp_defaults(rank ? TERN_O1 : TERN_O0);
    if (what == 2) ddp.reduce_dtype = rank ? TERN_BF16 : TERN_F32;
    if (what == 3) opts = opts_of(TERN_O1, rank ? TERN_F16 : TERN_BF16);
    if (what == 4) ddp.reduce_dtype = TERN_I32;
    tern_amp *amp = tern_amp_new(net, &opts, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !tern_ddp_new(net, world, &ddp, &err));
    if (what < 4) {
        const char *says[] = {"gradients_f32", "patch_functions", "gradients by rank in bf16", "amp_f16"};
        RANK_CHECK(rank, err.code == TERN_E_MISMATCH && strstr(err.text, says[what]));
    } else if (rank == 0 || err.code == TERN_E_DTYPE) {
        RANK_CHECK(rank, err.code == TERN_E_DTYPE || err.code == TERN_E_PEER);
        RANK_CHECK(rank, strstr(err.text, "expected a reduce_dtype of f32, bf16 or f16, got i32"));
    }
    tern_amp_free(amp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_group_close(world);
    return 0;
}

static void ranks_that_differ(void **state)
{
    (void)state;
    for (int what = 0; what < 5; what++) assert_ranks_ok(ranks_run(2, differ_body, &what));
}

/* ---- ranks: synchronised batch norms; warm steps ask for no memory ---- */

static int synced_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_opt_level level = *(const tern_opt_level *)arg;
    tern_error err = {0};
    ledger books = {0};
    ledger_open(&books);
    fixture f;
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = conv_net(rng, &err);
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    RANK_CHECK(rank, tern_sync_batch_norm_convert(net, world, &err) == TERN_OK);
    tern_amp_opts opts = tern_amp_defaults(level);
    tern_amp *amp = tern_amp_new(net, &opts, &err);
    f = (fixture){.rank = rank, .net = net, .world = world, .rng = rng, .dev = tern_device_open("cpu", &err)};
    tern_ddp_opts ddp = tern_ddp_defaults();
    if (level == TERN_O1) ddp.reduce_dtype = TERN_BF16;
    f.ddp = tern_ddp_new(net, world, &ddp, &err);
    f.opt = fixture_sgd(net, &err);
    f.s = tern_scope_new(f.dev, world, &err);
    RANK_CHECK_OK(rank, err);
    double first = 0;
    int warm = 0;
    for (int step = 0; step < 8; step++) {
        tern_tensor *y = tern_forward(net, f.s, image_rows(&f, 0, rank * 8, 8));
        tern_amp_backward(amp, f.s, tern_cross_entropy(f.s, y, fixture_labels(&f, rank * 8, 8), NULL), NULL);
        tern_optim_step(f.opt, f.s);
        RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_OK);
        RANK_CHECK(rank, fixture_same(world, fixture_hash(net), &err));
        if (step == 0) first = tern_ddp_loss_mean(f.ddp);
        if (step == 3) warm = atomic_load(&books.requests);
        if (step == 6) RANK_CHECK(rank, atomic_load(&books.requests) == warm); /* no peer leaves yet */
    }
    RANK_CHECK(rank, tern_ddp_loss_mean(f.ddp) < first);
    tern_amp_free(amp);
    fixture_close(&f);
    tern_allocator_set(NULL);
    RANK_CHECK(rank, atomic_load(&books.live) == 0);
    return 0;
}

static void synced_under_every_level(void **state)
{
    (void)state;
    for (tern_opt_level level = TERN_O0; level <= TERN_O3; level++)
        assert_ranks_ok(ranks_run(2, synced_body, &level));
}

static int order_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0}, late = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = conv_net(rng, &err);
    tern_amp *amp = tern_amp_new(net, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, tern_sync_batch_norm_convert(net, world, &late) == TERN_E_STATE);
    RANK_CHECK(rank, !strcmp(late.text, "sequential already has amp: " TERN__SETUP_ORDER));
    tern_module *other = fixture_mlp(rng, &err);
    tern_ddp *ddp = tern_ddp_new(other, world, NULL, &err);
    late = (tern_error){0};
    RANK_CHECK(rank, !tern_amp_new(other, NULL, &late) && late.code == TERN_E_STATE);
    RANK_CHECK(rank, !strcmp(late.text, "sequential already has a ddp: " TERN__SETUP_ORDER));
    late = (tern_error){0};
    RANK_CHECK(rank, tern_sync_batch_norm_convert(other, world, &late) == TERN_E_STATE);
    RANK_CHECK(rank, !strcmp(late.text, "sequential already has a ddp: " TERN__SETUP_ORDER));
    tern_ddp_free(ddp);
    tern_amp_free(amp);
    tern_module_free(other);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_group_close(world);
    return 0;
}

static void wrong_orders_of_ranks(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, order_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_skip_together),
        cmocka_unit_test(what_is_not_finite_has_a_name),
        cmocka_unit_test(gradients_go_over_in_16_bits),
        cmocka_unit_test(sharded_masters),
        cmocka_unit_test(ranks_that_differ),
        cmocka_unit_test(synced_under_every_level),
        cmocka_unit_test(wrong_orders_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
