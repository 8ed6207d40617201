/* test_join.c - ranks with unequal numbers of batches: their common result, the errors and warnings, and
 * that ranks without batches allocate nothing. */
#include "parallel/bag.h"
#include "parallel/straggler.h"

#include "ledger.h"

#define ROWS 8

/* Rank 1 has no batch at all, rank 2 has the most. */
static int batches_of(int rank)
{
    static const int batches[] = {3, 0, 6, 5};
    return batches[rank];
}

static int most_batches(int world)
{
    int most = 0;
    for (int r = 0; r < world; r++) most = TERN__MAX(most, batches_of(r));
    return most;
}

/* ---- equal to one process that scales and adds by hand ---- */

/* One step of the net in one process: the sum of every active rank's mean loss over `divisor`. */
static void step_alone(fixture *f, int world, int step, bool initial, tern_error *err)
{
    tern_tensor *loss = NULL;
    int active = 0;
    for (int r = 0; r < world; r++) {
        if (step >= batches_of(r)) continue;
        active++;
        tern_tensor *y = tern_forward(f->net, f->s, fixture_rows(f, step, r * ROWS, ROWS));
        tern_tensor *own = tern_cross_entropy(f->s, y, fixture_labels(f, r * ROWS, ROWS), NULL);
        loss = loss ? tern_add(f->s, loss, own) : own;
    }
    tern_tensor *divisor = tern_full(f->s, TERN_F32, 0, NULL, initial ? world : active);
    tern_backward(f->s, tern_div(f->s, loss, divisor));
    tern_optim_step(f->opt, f->s);
    tern_scope_end(f->s, err);
}

/* Makes the same step as the others. */
static int step_too(void *arg, tern_error *err)
{
    fixture *f = arg;
    tern_optim_step(f->opt, f->s);
    return tern_scope_end(f->s, err);
}

typedef struct how {
    bool initial, follow;
    size_t cap;
    bool shard; /* the optimizer's step is a collective of all ranks */
} uneven;

static int join_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const uneven *how = arg;
    tern_error err = {0};
    fixture f, alone;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.divide_by_initial_world_size = how->initial;
    opts.gradient_predivide_factor = how->cap ? 4 : 1;
    if (how->cap) opts.first_bucket_bytes = opts.bucket_bytes = how->cap;
    fixture_open(&f, boot, NULL, &opts, &err);
    fixture_open_alone(&alone, &err);
    if (how->shard) tern_optim_shard(f.opt, f.world, &err);
    RANK_CHECK_OK(rank, err);
    tern_join_opts join = tern_join_defaults();
    if (how->follow) join = (tern_join_opts){sizeof(join), .after_backward = step_too, .ctx = &f};
    for (int epoch = 0; epoch < (how->follow ? 2 : 1); epoch++) {
        for (int step = 0; step < batches_of(rank); step++) fixture_step(&f, step, rank * ROWS, ROWS, &err);
        RANK_CHECK_OK(rank, err);
        tern_ddp_join(f.ddp, &join, &err);
        RANK_CHECK_OK(rank, err);
        for (int step = 0; step < most_batches(boot->world); step++)
            step_alone(&alone, boot->world, step, how->initial, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
        RANK_CHECK(rank, fixture_difference(f.net, alone.net) < 1e-5);
    }
    fixture_close(&alone);
    fixture_close(&f);
    return 0;
}

static void a_join_equals_one_process(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++)
        for (int i = 0; i < 4; i++) {
            uneven how = {i & 1, i & 2, i == 1 || i == 2 ? 64 : 0, i == 3};
            assert_ranks_ok(ranks_run(world, join_body, &how));
        }
}

/* No rank had a batch: the next epoch starts like the first one. */
static int nobody_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    fixture_open(&f, boot, NULL, NULL, &err);
    uint64_t before = fixture_hash(f.net);
    for (int i = 0; i < 2; i++) RANK_CHECK(rank, tern_ddp_join(f.ddp, NULL, &err) == TERN_OK);
    RANK_CHECK(rank, fixture_hash(f.net) == before && !f.ddp->rebuilt && isnan(tern_ddp_loss_mean(f.ddp)));
    for (int step = 0; step < 2; step++) fixture_step(&f, step, rank * ROWS, ROWS, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, f.ddp->rebuilt && fixture_same(f.world, fixture_hash(f.net), &err));
    fixture_close(&f);
    return 0;
}

static void a_join_of_nobody_changes_nothing(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, nobody_body, NULL));
}

/* Rank 1 runs out between two microbatches: its accumulated gradients are discarded and do not appear later.
 */
static int accumulate_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    static const tern_dtype f32[] = {TERN_F32, TERN_F32};
    tern_error err = {0};
    bag b;
    bag_open(&b, boot, f32, 2, NULL, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < 3; step++) { /* two microbatches, and after the join one backward of all */
        tern_ddp_sync_set(b.ddp, step > 0);
        if (step == 2) RANK_CHECK(rank, tern_ddp_join(b.ddp, NULL, &err) == TERN_OK);
        if (step == 1 && rank == 1) continue;
        tern_backward(b.s, bag_loss(&b, b.s, step, rank, 3));
        tern_scope_end(b.s, &err);
        RANK_CHECK_OK(rank, err);
        for (int i = 0; i < 12 && step > 0; i++) {
            double sum = 0;
            for (int r = 0; r < boot->world; r++) {
                if (step == 2) sum += bag_number(2, r, 1, i);
                if (step == 1 && r != 1) sum += bag_number(0, r, 1, i) + bag_number(1, r, 1, i);
            }
            RANK_CHECK(rank, bag_holds(&b, 1, i, sum / boot->world));
        }
    }
    bag_close(&b);
    return 0;
}

static void what_is_left_of_an_accumulation_is_lost(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, accumulate_body, NULL));
}

/* ---- errors and warnings ---- */

typedef struct told {
    fixture *f;
    double losses[8];
    int count;
} told;

static int tell(void *arg, tern_error *err)
{
    (void)err;
    told *t = arg;
    t->losses[t->count++] = tern_ddp_loss_mean(t->f->ddp);
    return TERN_OK;
}

static int loss_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.divide_by_initial_world_size = *(bool *)arg;
    opts.gradient_predivide_factor = 3;
    fixture_open(&f, boot, NULL, &opts, &err);
    RANK_CHECK_OK(rank, err);
    told t = {.f = &f};
    double own[8] = {0};
    for (int step = 0; step < batches_of(rank); step++) {
        tern_tensor *y = tern_forward(f.net, f.s, fixture_rows(&f, step, rank * ROWS, ROWS));
        tern_tensor *loss = tern_cross_entropy(f.s, y, fixture_labels(&f, rank * ROWS, ROWS), NULL);
        own[step] = tern_item(loss);
        tern_backward(f.s, loss);
        tell(&t, &err);
        tern_zero_grad(f.net);
        tern_scope_end(f.s, &err);
    }
    tern_join_opts join = tern_join_defaults();
    join.after_backward = tell;
    join.ctx = &t;
    RANK_CHECK(rank, tern_ddp_join(f.ddp, &join, &err) == TERN_OK);
    RANK_CHECK(rank, t.count == most_batches(boot->world));
    RANK_CHECK(rank, tern_all_reduce(f.world, own, 8, TERN_F64, TERN_SUM, &err) == TERN_OK);
    for (int step = 0; step < t.count; step++) {
        int active = 0;
        for (int r = 0; r < boot->world; r++) active += step < batches_of(r);
        RANK_CHECK(rank, fabs(t.losses[step] - own[step] / active) < 1e-6);
    }
    fixture_close(&f);
    return 0;
}

static void the_mean_loss_is_that_of_the_active(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int world = 1; world <= 4; world++) {
            bool initial = i;
            assert_ranks_ok(ranks_run(world, loss_body, &initial));
        }
}

/* ---- the first rank that runs out ends the loop of all ---- */

/* Rank 1 of 3 has the fewest batches: 4, the others 6. With equal numbers no rank runs out early. */
static int throw_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int few = *(int *)arg, batches = rank == 1 ? few : 6;
    tern_error err = {0};
    fixture f;
    fixture_open(&f, boot, NULL, NULL, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < batches && !err.code; step++) fixture_step(&f, step, rank * ROWS, ROWS, &err);
    tern_join_opts join = tern_join_defaults();
    join.throw_on_early_termination = true;
    tern_ddp_join(f.ddp, &join, &err);
    bool early = boot->world > 1 && few < 6;
    RANK_CHECK(rank, err.code == (!early ? TERN_OK : rank == 1 ? TERN_E_STATE : TERN_E_PEER));
    RANK_CHECK(rank, !early || strstr(err.text, "rank 1 ran out of inputs after backward 4"));
    fixture_close(&f);
    return 0;
}

static void whoever_runs_out_first_is_named(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++)
        for (int few = 4; few <= 6; few += 2) assert_ranks_ok(ranks_run(world, throw_body, &few));
}

/* ---- several models, some unused, some on only a part of the ranks ---- */

static int models_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16, TERN_F32};
    tern_error err = {0};
    bag a, b, half;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 32;
    opts.divide_by_initial_world_size = false;
    bag_open(&a, boot, dtypes, 3, &opts, &err);
    bag_init(&b, dtypes, 2, &err);
    bag_init(&half, dtypes, 3, &err);
    tern_group *group = tern_group_split(a.world, rank % 2, 0, NULL, &err);
    b.ddp = tern_ddp_new(&b.base, a.world, &opts, &err);
    half.ddp = tern_ddp_new(&half.base, group, &opts, &err);
    RANK_CHECK_OK(rank, err);
    for (int k = 0; k < 2; k++) /* the last active rank's values go to all ranks at the end */
        for (int64_t i = 0; i < 5; i++) tern__view_set(&b.p[k]->view, i, 0);
    for (int step = 0; step < batches_of(rank); step++) {
        tern_tensor *loss = bag_loss(&a, a.s, step, rank, step % 2 ? 5 : 2); /* other parameters each time */
        if (rank != 3) loss = tern_add(a.s, loss, bag_loss(&half, a.s, step, rank, 7));
        tern_backward(a.s, loss);
        tern_scope_end(a.s, &err);
        RANK_CHECK_OK(rank, err);
        int active = 0;
        double want = 0;
        for (int r = 0; r < boot->world; r++) {
            active += step < batches_of(r);
            if (step < batches_of(r)) want += bag_number(step, r, 1, 2);
        }
        RANK_CHECK(rank, (tern_grad_get(a.p[1]) != NULL) == (step % 2 == 0));
        RANK_CHECK(rank, step % 2 || bag_holds(&a, 1, 2, want / active));
        RANK_CHECK(rank, !tern_grad_get(b.p[0]));
        tern_zero_grad(&a.base);
        tern_zero_grad(&half.base);
        tern__view_set(&a.p[2]->view, 0, 100 * rank + step); /* parameters that drift apart */
        tern__view_set(&half.p[0]->view, 0, 100 * rank + step);
    }
    RANK_CHECK(rank, tern_ddp_join(b.ddp, NULL, &err) == TERN_OK);
    int last = 0, last_half = rank % 2;
    for (int r = 0; r < boot->world; r++) {
        if (batches_of(r) >= batches_of(last)) last = r;
        if (r % 2 == rank % 2 && batches_of(r) >= batches_of(last_half)) last_half = r;
    }
    RANK_CHECK(rank, tern__view_get(&a.p[2]->view, 0) == 100 * last + batches_of(last) - 1);
    double half_end = batches_of(last_half) ? 100 * last_half + batches_of(last_half) - 1 : 0;
    RANK_CHECK(rank, tern__view_get(&half.p[0]->view, 0) == half_end);
    for (int k = 0; k < 3; k++) RANK_CHECK(rank, !tern_grad_get(a.p[k]));
    tern_ddp_free(half.ddp);
    tern_ddp_free(b.ddp);
    tern_module_release(&half.base);
    tern_module_release(&b.base);
    tern_group_close(group);
    bag_close(&a);
    return 0;
}

static void all_models_join_at_once(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) {
        assert_ranks_ok(ranks_run(world, models_body, NULL));
        assert_ranks_ok(ranks_run_threads(world, models_body, NULL));
    }
}

/* ---- buffers ---- */

/* Rank 0's buffers while it has inputs, then those of the highest active rank; at the end those of the last
 * active one. */
static int buffers_body(int rank, const tern__bootstrap *boot, void *arg)
{
    bool broadcast = *(bool *)arg;
    static const tern_dtype f32[] = {TERN_F32};
    tern_error err = {0};
    bag b;
    bag_init(&b, f32, 1, &err);
    tern_tensor *seen = tern_buffer_add(&b.base, "seen", TERN_I64, 0, NULL, &err);
    b.world = tern__group_open_boot(boot, NULL, &err);
    b.dev = tern_device_open("cpu", &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.broadcast_buffers = broadcast;
    b.ddp = tern_ddp_new(&b.base, b.world, &opts, &err);
    b.s = tern_scope_new(b.dev, b.world, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < batches_of(rank); step++) {
        tern__view_set(&seen->view, 0, 100 * rank + step);
        tern_backward(b.s, bag_loss(&b, b.s, step, rank, 1));
        tern_scope_end(b.s, &err);
        RANK_CHECK_OK(rank, err);
        int from = step < batches_of(0) ? 0 : boot->world - 1;
        while (step >= batches_of(from)) from--;
        RANK_CHECK(rank, tern_item(seen) == 100 * (broadcast ? from : rank) + step);
        tern_zero_grad(&b.base);
    }
    RANK_CHECK(rank, tern_ddp_join(b.ddp, NULL, &err) == TERN_OK);
    int most = most_batches(boot->world), end = 0;
    for (int r = 0; r < boot->world; r++)
        if (batches_of(r) == most) end = r;
    if (broadcast && batches_of(0) == most) end = 0;
    RANK_CHECK(rank, tern_item(seen) == 100 * end + most - 1);
    bag_close(&b);
    return 0;
}

static void buffers_are_those_of_whoever_is_active(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int world = 1; world <= 4; world++) {
            bool broadcast = i;
            assert_ranks_ok(ranks_run(world, buffers_body, &broadcast));
        }
}

/* ---- a long join, in which the ranks also exchange their waiting times ---- */

static int long_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    static const tern_dtype f32[] = {TERN_F32, TERN_F32};
    tern_error err = {0};
    bag b;
    bag_open(&b, boot, f32, 2, NULL, &err);
    int rounds = 2 * TERN__STRAGGLER_STEPS + 7;
    for (int step = 0; step < (rank == boot->world - 1 ? rounds : rank); step++) {
        tern_backward(b.s, bag_loss(&b, b.s, step, rank, 3));
        tern_scope_end(b.s, &err);
        RANK_CHECK_OK(rank, err);
    }
    RANK_CHECK(rank, tern_ddp_join(b.ddp, NULL, &err) == TERN_OK);
    RANK_CHECK(rank, b.ddp->round.backward == (uint64_t)rounds);
    bag_close(&b);
    return 0;
}

static void a_join_may_be_long(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, long_body, NULL));
}

/* ---- without a join ---- */

typedef enum ending { CLOSES, FREES_ITS_DDP, EXITS, BARRIER, ALL_REDUCE, NO_SYNC, ENDINGS } ending;

/* Rank 1 does this instead of its fifth backward. */
static int end_otherwise(fixture *f, ending how, tern_error *err)
{
    double one = 1;
    switch (how) {
    case EXITS: _exit(0);
    case FREES_ITS_DDP:
        tern_ddp_free(f->ddp);
        f->ddp = NULL;
        return tern_barrier(f->world, err);
    case BARRIER: return tern_barrier(f->world, err);
    case ALL_REDUCE: return tern_all_reduce(f->world, &one, 1, TERN_F64, TERN_SUM, err);
    case NO_SYNC:
        tern_ddp_sync_set(f->ddp, false);
        fixture_step(f, 4, 0, ROWS, err);
        tern_ddp_sync_set(f->ddp, true);
        fixture_step(f, 5, 0, ROWS, err);
        return err->code;
    default: return TERN_E_PEER; /* closes the group, as all cases do */
    }
}

/* The others soon get an error that names rank 1, and so does rank 1 unless it has left. */
static int otherwise_body(int rank, const tern__bootstrap *boot, void *arg)
{
    ending how = *(ending *)arg;
    tern_error err = {0};
    fixture f;
    fixture_open(&f, boot, NULL, NULL, &err);
    RANK_CHECK_OK(rank, err);
    int64_t began = 0;
    for (int step = 0; step < (rank == 1 ? 4 : 6) && !err.code; step++) {
        began = tern__now_ns();
        fixture_step(&f, step, rank * ROWS, ROWS, &err);
    }
    if (rank == 1) {
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, end_otherwise(&f, how, &err) < 0);
    } else {
        RANK_CHECK(rank, err.code == TERN_E_PEER || err.code == TERN_E_MISMATCH);
        RANK_CHECK(rank, tern__now_ns() - began < RANKS_SOON_S * INT64_C(1000000000));
    }
    if (rank != 1 || err.code) RANK_CHECK(rank, strstr(err.text, "rank 1"));
    if (how == NO_SYNC) RANK_CHECK(rank, strstr(err.text, "no_sync"));
    if (how == BARRIER || how == ALL_REDUCE) RANK_CHECK(rank, strstr(err.text, "tern_ddp_join"));
    fixture_close(&f);
    return 0;
}

/* Ranks on several hosts that wait for each other only get their timeout's error. */
static void a_rank_that_ends_otherwise_is_named(void **state)
{
    (void)state;
    if (getenv("TERN_TEST_HOSTS")) skip_test("ranks of several hosts wait for each other");
    for (int how = 0; how < ENDINGS; how++)
        for (int world = 2; world <= 3; world++) {
            ending then = (ending)how;
            assert_ranks_ok(ranks_run(world, otherwise_body, &then));
        }
}

/* ---- errors ---- */

static int refuse(void *arg, tern_error *err)
{
    (void)arg;
    return tern__error_set(err, __func__, TERN_E_RANGE, "the shelf is full");
}

/* An error of a shadow's own code, or one that is set when it calls, ends the others' training. */
static int refuse_body(int rank, const tern__bootstrap *boot, void *arg)
{
    bool brings = *(bool *)arg;
    tern_error err = {0};
    fixture f;
    fixture_open(&f, boot, NULL, NULL, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < (rank == 0 ? 2 : 50) && !err.code; step++)
        fixture_step(&f, step, rank * ROWS, ROWS, &err);
    tern_join_opts join = tern_join_defaults();
    join.after_backward = rank == 0 ? refuse : NULL;
    if (rank == 0 && brings) refuse(NULL, &err);
    int status = tern_ddp_join(f.ddp, &join, &err);
    RANK_CHECK(rank, status == (rank == 0 ? TERN_E_RANGE : TERN_E_PEER) && err.code == status);
    RANK_CHECK(rank, strstr(err.text, "the shelf is full"));
    fixture_close(&f);
    return 0;
}

static void a_shadows_error_reaches_all(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_int_equal(tern_ddp_join(NULL, NULL, &err), TERN_E_INVALID);
    for (int i = 0; i < 2; i++) {
        bool brings = i;
        for (int world = 2; world <= 3; world++) assert_ranks_ok(ranks_run(world, refuse_body, &brings));
    }
}

/* ---- shadows allocate nothing ---- */

typedef struct watch {
    ledger ledger;
    int rounds, warm;
} watch;

static int note_requests(void *arg, tern_error *err)
{
    (void)err;
    watch *b = arg;
    if (++b->rounds == 3) b->warm = atomic_load(&b->ledger.requests); /* the buckets have been rebuilt */
    return TERN_OK;
}

static int no_alloc_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    static watch books;
    tern__allocator_replace(&(tern_allocator){ledger_alloc, ledger_free, &books.ledger});
    tern_error err = {0};
    fixture f;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 64;
    fixture_open(&f, boot, NULL, &opts, &err);
    for (int step = 0; step < (rank == 1 ? 0 : 9); step++) fixture_step(&f, step, rank * ROWS, ROWS, &err);
    RANK_CHECK_OK(rank, err);
    tern_join_opts join = tern_join_defaults();
    join.after_backward = note_requests;
    join.ctx = &books;
    tern_ddp_join(f.ddp, &join, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, rank != 1 || (books.rounds == 9 && books.warm > 0));
    RANK_CHECK(rank, rank != 1 || atomic_load(&books.ledger.requests) == books.warm);
    fixture_close(&f);
    return 0;
}

static void a_shadow_allocates_nothing(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) assert_ranks_ok(ranks_run(world, no_alloc_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_join_equals_one_process),
        cmocka_unit_test(a_join_of_nobody_changes_nothing),
        cmocka_unit_test(what_is_left_of_an_accumulation_is_lost),
        cmocka_unit_test(the_mean_loss_is_that_of_the_active),
        cmocka_unit_test(whoever_runs_out_first_is_named),
        cmocka_unit_test(all_models_join_at_once),
        cmocka_unit_test(buffers_are_those_of_whoever_is_active),
        cmocka_unit_test(a_join_may_be_long),
        cmocka_unit_test(a_rank_that_ends_otherwise_is_named),
        cmocka_unit_test(a_shadows_error_reaches_all),
        cmocka_unit_test(a_shadow_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
