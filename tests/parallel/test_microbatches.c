/* test_microbatches.c - a step of several microbatches has the same bits on any number of ranks that share
 * them: the parameters after some steps, the mean losses, and dropout's numbers. */
#include "parallel/ddp_fixture.h"

#include <sys/mman.h>

#define ROWS  5
#define STEPS 3

/* Its three branches: one that all microbatches use, one for every third of them, and one that none uses. */
typedef struct net {
    tern_module base;
    tern_module *always, *sometimes, *never, *last;
    int microbatch;
} net;

static tern_tensor *net_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    net *n = (net *)module;
    tern_tensor *y = tern_tanh(s, tern_forward(n->always, s, x));
    if (n->microbatch % 3 == 1) y = tern_add(s, y, tern_tanh(s, tern_forward(n->sometimes, s, x)));
    return tern_forward(n->last, s, tern_dropout(s, y, 0.3));
}

static tern_module *new_net(tern_rng *rng, tern_error *err)
{
    net *n = tern__module_new(sizeof(*n), "net", net_forward, err);
    n->always = tern_module_add(&n->base, "always", tern_linear_new(FEATURES, 33, NULL, rng, err), err);
    n->sometimes = tern_module_add(&n->base, "sometimes", tern_linear_new(FEATURES, 33, NULL, rng, err), err);
    n->never = tern_module_add(&n->base, "never", tern_linear_new(33, 33, NULL, rng, err), err);
    n->last = tern_module_add(&n->base, "last", tern_linear_new(33, CLASSES, NULL, rng, err), err);
    return &n->base;
}

/* One run of `all` microbatches a step on `world` ranks, and what it ended with. */
typedef struct run {
    int all, world;
    bool zeroes;   /* each step begins with a microbatch that tern_zero_grad drops */
    bool is_plain; /* without the option */
    uint64_t hash;
    double losses[STEPS];
} run;

/* The mean over the step's microbatches is that of the ranks' sums of their shares of it. */
static void run_microbatch(fixture *f, int step, int m, int own, bool is_last)
{
    ((net *)f->net)->microbatch = m;
    tern_scope_seed(f->s, 3, (uint64_t)step);
    tern_scope_seed_rank_set(f->s, (uint64_t)m);
    tern_ddp_sync_set(f->ddp, is_last);
    tern_tensor *y = tern_forward(f->net, f->s, fixture_rows(f, step, m * ROWS, ROWS));
    tern_tensor *loss = tern_cross_entropy(f->s, y, fixture_labels(f, m * ROWS, ROWS), NULL);
    tern_backward(f->s, tern_affine(f->s, loss, 1.0 / own, 0));
}

static int run_body(int rank, const tern__bootstrap *boot, void *arg)
{
    run *r = arg;
    int own = r->all / r->world;
    tern_error err = {0};
    fixture f;
    tern_rng *rng = tern_rng_new(7, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    if (!r->is_plain) opts.microbatches = own;
    opts.first_bucket_bytes = opts.bucket_bytes = 1000;
    fixture_open(&f, boot, new_net(rng, &err), &opts, &err);
    for (int step = 0; step < STEPS; step++) {
        if (r->zeroes && own > 1) {
            run_microbatch(&f, step + 100, rank, own, false);
            tern_zero_grad(f.net);
        }
        for (int i = 0; i < own; i++) run_microbatch(&f, step, rank * own + i, own, i == own - 1);
        tern_optim_step(f.opt, f.s);
        if (rank == 0) r->losses[step] = tern_ddp_loss_mean(f.ddp);
        RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_OK);
    }
    RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    if (rank == 0) r->hash = fixture_hash(f.net);
    RANK_CHECK_OK(rank, err);
    tern_rng_free(rng);
    fixture_close(&f);
    return 0;
}

static run run_on(int all, int world, bool zeroes, bool is_plain)
{
    run *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    *shared = (run){.all = all, .world = world, .zeroes = zeroes, .is_plain = is_plain};
    ranks r = ranks_run(world, run_body, shared);
    for (int rank = 0; rank < world; rank++) assert_int_equal(r.status[rank], 0);
    run result = *shared;
    munmap(shared, sizeof(*shared));
    return result;
}

static void test_any_number_of_ranks_has_the_same_bits(void **state)
{
    (void)state;
    static const int shares[][2] = {{4, 2}, {4, 1}, {8, 4}, {8, 2}, {8, 1}, {6, 3}, {3, 3}};
    for (size_t i = 0; i < TERN__COUNT(shares); i++) {
        run one_each = run_on(shares[i][0], shares[i][0], false, false);
        for (int zeroes = 0; zeroes < 2; zeroes++) {
            run r = run_on(shares[i][0], shares[i][1], zeroes, false);
            assert_true(r.hash == one_each.hash);
            assert_memory_equal(r.losses, one_each.losses, sizeof(r.losses));
        }
    }
}

/* So the test above could fail. */
static void test_gradients_added_one_by_one_have_other_bits(void **state)
{
    (void)state;
    assert_true(run_on(8, 1, false, true).hash != run_on(8, 1, false, false).hash);
}

/* ---- errors ---- */

static int backwards_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const bool forgets = *(bool *)arg; /* to synchronise the last; else it synchronises the third */
    char text[TERN_ERROR_TEXT];
    tern_error err = {0};
    fixture f;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.microbatches = 4;
    fixture_open(&f, boot, NULL, &opts, &err);
    for (int i = 0; i < 4 && !tern_scope_error(f.s)->code; i++) {
        tern_ddp_sync_set(f.ddp, !forgets && i == 2);
        fixture_backward(&f, 0, 0, ROWS);
    }
    RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_E_STATE);
    snprintf(text, sizeof(text), "the tern_ddp of %s has 4 microbatches, but %s: tern_ddp_sync_set(ddp, %s",
             f.net->kind,
             forgets ? "the backward of the last of them is not synchronised"
                     : "a synchronised backward came before the last of them",
             forgets ? "true) has to be called before it"
                     : "false) has to be called before all but the last");
    if (strcmp(err.text, text)) fprintf(stderr, "%s\n", err.text);
    RANK_CHECK(rank, !strcmp(err.text, text));
    fixture_close(&f);
    return 0;
}

static void test_a_round_has_so_many_backwards(void **state)
{
    (void)state;
    for (int forgets = 0; forgets < 2; forgets++) {
        bool arg = forgets;
        assert_int_equal(ranks_run(1, backwards_body, &arg).status[0], 0);
    }
}

/* A failure ends the group, so each has its own. */
static int refused_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int microbatches = *(int *)arg;
    char text[96];
    tern_error err = {0};
    fixture f = {.world = tern__group_open_boot(boot, NULL, &err), .rng = tern_rng_new(1, &err)};
    f.net = fixture_mlp(f.rng, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.microbatches = microbatches;
    RANK_CHECK(rank, !tern_ddp_new(f.net, f.world, &opts, &err) && err.code == TERN_E_RANGE);
    snprintf(text, sizeof(text), "ddp: expected 0 or a power of two of microbatches, got %d", microbatches);
    RANK_CHECK(rank, !strcmp(err.text, text));
    fixture_close(&f);
    return 0;
}

static int options_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f = {.world = tern__group_open_boot(boot, NULL, &err), .rng = tern_rng_new(1, &err)};
    f.net = fixture_mlp(f.rng, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.microbatches = 2 << rank;
    RANK_CHECK(rank, !tern_ddp_new(f.net, f.world, &opts, &err) && err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(err.text, ", 2 microbatches") && strstr(err.text, ", 4 microbatches"));
    fixture_close(&f);
    return 0;
}

static void test_bad_options_are_refused(void **state)
{
    (void)state;
    static int bad[] = {3, 12, -2};
    for (size_t i = 0; i < TERN__COUNT(bad); i++)
        assert_int_equal(ranks_run(1, refused_body, &bad[i]).status[0], 0);
    ranks r = ranks_run(2, options_body, NULL);
    assert_int_equal(r.status[0], 0);
    assert_int_equal(r.status[1], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number_of_ranks_has_the_same_bits),
        cmocka_unit_test(test_gradients_added_one_by_one_have_other_bits),
        cmocka_unit_test(test_a_round_has_so_many_backwards),
        cmocka_unit_test(test_bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
