/* test_checksum.c - if a rank's parameters have drifted, all ranks name it in the step of the comparison;
 * otherwise there is no error. */
#include "parallel/ddp_fixture.h"

#include "ledger.h"

#define ROWS  8
#define EVERY 3

/* ---- ranks that have drifted ---- */

typedef struct drift {
    int world, step;  /* backwards before the drift */
    bool drifts[4];   /* by rank             */
    const char *text; /* after "the parameters have drifted apart: " */
} drift;

/* Flips one bit in the last word of a weight. */
static void flip(fixture *f)
{
    uint32_t *word = tern_tensor_data(tern_state_find(f->net, "2.weight"));
    word[16 * 32 - 1] ^= UINT32_C(1) << f->rank;
}

static int drift_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const drift *d = arg;
    tern_error err = {0};
    fixture f;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.checksum_every = EVERY;
    fixture_open(&f, boot, NULL, &opts, &err);
    RANK_CHECK_OK(rank, err);
    int step = 0;
    for (; !err.code && step < 20; step++) {
        if (step == d->step && d->drifts[rank]) flip(&f);
        fixture_step(&f, step, rank * ROWS, ROWS, &err);
    }
    RANK_CHECK(rank, err.code == TERN_E_MISMATCH && step == (d->step / EVERY + 1) * EVERY);
    if (!strstr(err.text, d->text)) {
        fprintf(stderr, "rank %d: %s\n", rank, err.text);
        return 1;
    }
    fixture_close(&f);
    return 0;
}

#define APART "the parameters have drifted apart: in synchronised backward "

static void a_rank_that_drifts_is_named(void **state)
{
    (void)state;
    drift all[] = {
        {2, 0, {0, 1}, APART "3 rank 1 differs from rank 0, first in \"2.weight\""},
        {2, 7, {1, 0}, APART "9 rank 1 differs from rank 0, first in \"2.weight\""}, /* a tie */
        {3, 4, {0, 0, 1}, APART "6 rank 2 differs from rank 0, first in \"2.weight\""},
        {3, 5, {1, 0, 0}, APART "6 rank 0 differs from rank 1, first in \"2.weight\""},
        {4, 3, {0, 1, 0, 0}, APART "6 rank 1 differs from rank 0, first in \"2.weight\""},
        {4, 8, {0, 1, 0, 1}, APART "9 ranks 1, 3 differ from rank 0, first in \"2.weight\""},
        {4, 2, {1, 0, 0, 1}, APART "3 ranks 0, 3 differ from rank 1, first in \"2.weight\""},
    };
    for (size_t i = 0; i < TERN__COUNT(all); i++)
        assert_ranks_ok(ranks_run(all[i].world, drift_body, &all[i]));
}

/* ---- no rank has drifted ---- */

static tern_module *new_conv_net(tern_rng *rng, tern_error *err)
{
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_conv2d_new(2, 6, 3, 3, NULL, rng, err), err);
    tern_sequential_add(net, tern_batch_norm2d_new(6, NULL, err), err);
    tern_sequential_add(net, tern_relu_new(err), err);
    tern_sequential_add(net, tern_global_avg_pool_new(err), err);
    tern_sequential_add(net, tern_linear_new(6, CLASSES, NULL, rng, err), err);
    return net;
}

typedef struct sound {
    bool is_conv, adam, has_own, sharded; /* has_own: a parameter that each rank keeps to itself */
} sound;

static tern_tensor *input(fixture *f, const sound *how, int step)
{
    tern_tensor *rows = fixture_rows(f, step, f->rank * ROWS, ROWS * (how->is_conv ? 6 : 1));
    return how->is_conv ? tern_reshape(f->s, rows, 4, (int64_t[]){ROWS, 2, 6, 6}) : rows;
}

static int sound_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const sound *how = arg;
    static const char *const own[] = {"2.weight"};
    tern_error err = {0};
    fixture f;
    tern_rng *rng = tern_rng_new((uint64_t)rank, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.checksum_every = 1;
    opts.ignore = own;
    opts.ignore_count = how->has_own;
    fixture_open(&f, boot, how->is_conv ? new_conv_net(rng, &err) : NULL, &opts, &err);
    tern_device_threads_set(f.dev, 1, &err); /* more threads would only spin on a busy machine */
    tern_optim *adam = how->adam ? tern_adam_new(f.net, NULL, &err) : NULL;
    if (how->sharded) tern_optim_shard(adam, f.world, &err);
    for (int step = 0; step < 50 && !err.code; step++) {
        tern_ddp_sync_set(f.ddp, step % 7 != 3);
        tern_tensor *y = tern_forward(f.net, f.s, input(&f, how, step));
        tern_backward(f.s, tern_cross_entropy(f.s, y, fixture_labels(&f, rank * ROWS, ROWS), NULL));
        if (step % 7 != 3) tern_optim_step(adam ? adam : f.opt, f.s);
        tern_scope_end(f.s, &err);
    }
    RANK_CHECK_OK(rank, err);
    tern_optim_free(adam);
    fixture_close(&f);
    tern_rng_free(rng);
    return 0;
}

static void nobody_is_named_for_nothing(void **state)
{
    (void)state;
    sound all[] = {{0},
                   {.adam = true},
                   {.is_conv = true},
                   {.is_conv = true, .adam = true},
                   {.has_own = true},
                   {.adam = true, .sharded = true}};
    for (size_t i = 0; i < TERN__COUNT(all); i++)
        for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, sound_body, &all[i]));
}

/* ---- ranks that have run out of batches are not compared; the others are ---- */

static int uneven_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const bool drifts = *(bool *)arg;
    tern_error err = {0};
    fixture f;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.checksum_every = 2;
    fixture_open(&f, boot, NULL, &opts, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < 3 + 4 * rank && !err.code; step++) {
        if (drifts && rank == 3 && step == 8) flip(&f);
        fixture_step(&f, step, rank * ROWS, ROWS, &err);
    }
    tern_error joined = {0};
    if (!err.code) tern_ddp_join(f.ddp, NULL, &joined);
    const tern_error *last = err.code ? &err : &joined;
    if (drifts)
        RANK_CHECK(rank, last->code == TERN_E_MISMATCH &&
                             strstr(last->text, APART "10 rank 3 differs from rank 2"));
    else
        RANK_CHECK(rank, !last->code && fixture_same(f.world, fixture_hash(f.net), &err));
    fixture_close(&f);
    return 0;
}

static void ranks_that_have_run_out_are_not_asked(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, uneven_body, &(bool){false}));
    assert_ranks_ok(ranks_run(4, uneven_body, &(bool){true}));
}

/* ---- cost and wrong use ---- */

static int warm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    ledger books = {0};
    int warm = 0;
    ledger_open(&books);
    fixture f;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.checksum_every = 1;
    fixture_open(&f, boot, NULL, &opts, &err);
    for (int step = 0; step < 10; step++) {
        if (step == 3) warm = atomic_load(&books.requests);
        if (step == 9) RANK_CHECK(rank, atomic_load(&books.requests) == warm); /* no rank has left yet */
        fixture_step(&f, step, rank * ROWS, ROWS, &err);
    }
    RANK_CHECK_OK(rank, err);
    fixture_close(&f);
    ledger_close(&books);
    return 0;
}

static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, warm_body, NULL));
}

static int negative_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.checksum_every = -1;
    fixture_open(&f, boot, NULL, &opts, &err);
    RANK_CHECK(rank, !f.ddp && err.code == TERN_E_RANGE);
    RANK_CHECK(rank, !strcmp(err.text, "ddp: expected checksum_every >= 0, got -1"));
    fixture_close(&f);
    return 0;
}

static void never_is_0(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, negative_body, NULL));
}

/* The last test: a process that has computed on threads cannot fork again. */
static void ranks_may_be_threads(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run_threads(3, sound_body, &(sound){0}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_drifts_is_named),
        cmocka_unit_test(nobody_is_named_for_nothing),
        cmocka_unit_test(ranks_that_have_run_out_are_not_asked),
        cmocka_unit_test(a_warm_step_allocates_nothing),
        cmocka_unit_test(never_is_0),
        cmocka_unit_test(ranks_may_be_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
