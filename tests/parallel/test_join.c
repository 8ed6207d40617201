/* test_join.c - ranks with unequal numbers of batches: what they learn together, who is told of whom, and
 * that those who have run out allocate nothing. */
#include "parallel/ddp_fixture.h"

#include "ledger.h"

#define ROWS 8

/* Rank r has 2 + r % 3 batches more than none; `more` is added to rank 0's. */
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

/* One step of the net alone: the sum of every active rank's mean loss over `divisor`. */
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

/* Stays in step with the others. */
static int step_too(void *arg, tern_error *err)
{
    fixture *f = arg;
    tern_optim_step(f->opt, f->s);
    return tern_scope_end(f->s, err);
}

typedef struct how {
    bool initial, follow;
    size_t cap;
} uneven;

static int join_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const uneven *how = arg;
    tern_error err = {0};
    fixture f, alone;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.divide_by_initial_world_size = how->initial;
    if (how->cap) opts.first_bucket_bytes = opts.bucket_bytes = how->cap;
    fixture_open(&f, boot, NULL, &opts, &err);
    fixture_open_alone(&alone, &err);
    RANK_CHECK_OK(rank, err);
    tern_join_opts join = tern_join_defaults();
    if (how->follow) join = (tern_join_opts){sizeof(join), .after_backward = step_too, .arg = &f};
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
        for (int i = 0; i < 8; i++) {
            uneven how = {i & 1, i & 2, i & 4 ? 64 : 0};
            assert_ranks_ok(ranks_run(world, join_body, &how));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_join_equals_one_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
