/* test_shard.c - sharded optimizers with parameters on GPUs: with NCCL, one GPU per rank, and through the
 * host, where ranks share one. Each is compared with the same model and an optimizer that is not sharded,
 * on the same GPU. */
#include "twins.h"

enum { STEPS = 5 };

/* ---- optimizers ---- */

static tern_optim *make_adamw(tern_module *module, tern_error *err)
{
    return tern_adamw_new(module, NULL, err);
}

static tern_optim *make_amsgrad(tern_module *module, tern_error *err)
{
    tern_adam_opts opts = tern_adam_defaults();
    opts.amsgrad = true;
    return tern_adam_new(module, &opts, err);
}

static tern_optim *make_lamb(tern_module *module, tern_error *err)
{
    tern_lamb_opts opts = tern_lamb_defaults();
    opts.lr = 0.01;
    opts.max_grad_norm = 0.05;
    return tern_lamb_new(module, &opts, err);
}

static tern_optim *make_larc(tern_module *module, tern_error *err)
{
    tern_optim *optim = make_sgd(module, err);
    tern_optim_larc(optim, NULL, err);
    return optim;
}

/* Those at even indices also with scaled losses. */
static const optim_fn kinds[] = {make_sgd, make_adam, make_adamw, make_amsgrad, make_lamb, make_larc};

/* ---- the same bits, a part of the state ---- */

static bool has_its_share(twins *t)
{
    int64_t own = (int64_t)tern_optim_state_bytes(t->a.optim),
            all = (int64_t)tern_optim_state_bytes(t->b.optim), sum = own, unit = (int64_t)TERN__SECTION;
    tern_all_reduce(t->world, &sum, 1, TERN_I64, TERN_SUM, &t->err);
    int64_t most =
        all / t->job->world + 6 * unit; /* three states of at most two ranges, masters of half width */
    return sum == all && own <= (t->job->scaling == LEVEL_2 ? 2 * most : most);
}

static bool same_states(twins *t)
{
    tern_optim_state *parts = tern_optim_state_gather(t->a.optim, -1, &t->err),
                     *whole = tern_optim_state_gather(t->b.optim, -1, &t->err);
    bool same = !t->err.code && tern_optim_state_count(parts) == tern_optim_state_count(whole);
    for (int i = 0; same && i < tern_optim_state_count(whole); i++) {
        const tern_optim_entry *a = tern_optim_state_entries(parts) + i,
                               *b = tern_optim_state_entries(whole) + i;
        same = !strcmp(a->name, b->name) && !strcmp(a->parameter, b->parameter) &&
               !memcmp(a->tensor->view.data, b->tensor->view.data, tern__view_bytes(&a->tensor->view));
    }
    tern_optim_state_free(parts);
    tern_optim_state_free(whole);
    return same;
}

/* Each takes the other's state; only one rank keeps what is gathered. */
static void swap_states(twins *t)
{
    tern_object *whole = tern_optim_state_dict(t->b.optim, -1, &t->err),
                *parts = tern_optim_state_dict(t->a.optim, -1, &t->err);
    tern_optim_state *kept = tern_optim_state_gather(t->a.optim, t->job->world - 1, &t->err);
    tern_optim_state_dict_load(t->a.optim, whole, &t->err);
    tern_optim_state_dict_load(t->b.optim, parts, &t->err);
    tern_optim_state_free(kept);
    tern_object_free(whole);
    tern_object_free(parts);
}

static int equal_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    twins t;
    open_twins(&t, boot, j);
    RANK_CHECK_OK(rank, t.err);
    for (int i = 0; i < STEPS; i++) {
        step(&t, &t.a, i);
        step(&t, &t.b, i);
        RANK_CHECK_OK(rank, t.err);
        RANK_CHECK(rank, are_equal(&t));
        if (i == 2) swap_states(&t);
    }
    RANK_CHECK(rank, has_its_share(&t));
    RANK_CHECK(rank, same_states(&t));
    RANK_CHECK_OK(rank, t.err);
    return close_twins(&t);
}

/* Through the host, and with NCCL. */
static void run_both(ranks_body body, job *j, int world)
{
    draw_batch(&j->batch, 5, 2, (int64_t[]){ROWS, INPUTS});
    j->world = world;
    j->backend = NULL;
    assert_ranks_ok(ranks_run(world, body, j));
    j->backend = "nccl";
    if (is_emulated() || world <= gpu_count()) assert_ranks_ok(ranks_run(world, body, j));
}

static void bits_are_those_without_a_shard(void **state)
{
    (void)state;
    static job j;
    for (size_t i = 0; i < TERN__COUNT(kinds); i++)
        for (j.scaling = PLAIN; j.scaling < (i % 2 ? SCALER : WAYS); j.scaling++) {
            j.optim = kinds[i];
            run_both(equal_body, &j, 2 + (int)j.scaling % 2);
            if (j.scaling == PLAIN && i % 2 == 0) run_both(equal_body, &j, 3);
        }
}

static void one_rank_has_one_slice(void **state)
{
    (void)state;
    static job j = {.optim = make_lamb};
    run_both(equal_body, &j, 1);
}

static void a_tree_in_two_memories(void **state)
{
    (void)state;
    static job j = {.optim = make_adam, .is_split = true};
    run_both(equal_body, &j, 3);
}

/* ---- two optimizers in one tree ---- */

static int parts_body(int rank, const tern__bootstrap *boot, void *arg)
{
    twins t;
    tern_optim *first[2], *second[2];
    open_twins(&t, boot, arg);
    for (int i = 0; i < 2; i++) {
        const twin *one = i ? &t.b : &t.a;
        first[i] = make_adam(one->layers[1], &t.err);
        second[i] = make_sgd(one->layers[2], &t.err);
    }
    tern_optim_shard(first[0], t.world, &t.err);
    tern_optim_shard(second[0], t.world, &t.err);
    RANK_CHECK_OK(rank, t.err);
    for (int i = 0; i < STEPS; i++) {
        for (int side = 0; side < 2; side++) {
            backward(&t, side ? &t.b : &t.a, i);
            tern_optim_step(first[side], t.scope);
            tern_optim_step(second[side], t.scope);
            tern_scope_end(t.scope, &t.err);
        }
        RANK_CHECK_OK(rank, t.err);
        RANK_CHECK(rank, are_equal(&t));
        for (int side = 0; side < 2 && i == STEPS / 2; side++) {
            tern_optim_free(first[side]);
            first[side] = NULL;
        }
    }
    for (int i = 0; i < 2; i++) tern_optim_free(second[i]);
    return close_twins(&t);
}

static void two_parts_of_a_tree(void **state)
{
    (void)state;
    static job j;
    run_both(parts_body, &j, 2);
}

/* ---- ranks that have run out of batches ---- */

typedef struct runner {
    twins *t;
    twin *one;
} runner;

static int follow(void *arg, tern_error *err)
{
    const runner *own = arg;
    update(own->t, own->one);
    return tern_scope_end(own->t->scope, err);
}

/* Rank r has 2 + r batches. */
static void run_out(twins *t, twin *one)
{
    runner own = {t, one};
    tern_join_opts opts = tern_join_defaults();
    opts.after_backward = follow;
    opts.ctx = &own;
    for (int i = 0; i < 2 + t->rank && !t->err.code; i++) step(t, one, i);
    tern_ddp_join(one->ddp, &opts, &t->err);
}

/* One twin after the other: with NCCL all ranks post in one order, so a joined group has one ddp. */
static int join_body(int rank, const tern__bootstrap *boot, void *arg)
{
    twins t;
    open_group(&t, boot, arg);
    for (int side = 0; side < 2; side++) {
        twin *one = side ? &t.b : &t.a;
        open_twin(&t, one, t.job->optim);
        if (!side) tern_optim_shard(one->optim, t.world, &t.err);
        run_out(&t, one);
        RANK_CHECK_OK(rank, t.err);
        tern_optim_free(one->optim);
        tern_ddp_free(one->ddp);
        one->optim = NULL;
        one->ddp = NULL;
    }
    RANK_CHECK(rank, are_equal(&t));
    return close_twins(&t);
}

static void a_rank_that_has_run_out_keeps_stepping(void **state)
{
    (void)state;
    static job j = {.optim = make_adam};
    run_both(join_body, &j, 3);
}

/* ---- ranks that differ ---- */

enum { RATE, GRADIENTS, OTHER_GRADIENTS, NO_GRADIENTS, DIFFERENCES };

/* The last of three ranks differs, from the third step on. */
static int differ_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    bool is_odd = rank == 2;
    twins t;
    open_twins(&t, boot, j);
    for (int i = 0; i < 4 && !t.err.code; i++) {
        backward(&t, &t.a, i);
        bool differs = is_odd && i == 2;
        if (differs && j->what == RATE) tern_optim_lr_set(t.a.optim, 0, 0.02);
        if (differs && j->what == GRADIENTS) tern_zero_grad(t.a.layers[0]);
        if (i == 2 && j->what == OTHER_GRADIENTS) tern_zero_grad(t.a.layers[is_odd]);
        if (differs && j->what == NO_GRADIENTS) tern_zero_grad(t.a.net);
        tern_optim_step(t.a.optim, t.scope);
        tern_scope_end(t.scope, &t.err);
    }
    const char *text =
        j->what == RATE
            ? "step 3 of a sharded optimizer: rank 2 updated its slice with other options or learning"
            : "step 3); they updated different parameters: their gradients or groups differ";
    bool is_told = t.err.code == TERN_E_MISMATCH && strstr(t.err.text, text) && strstr(t.err.text, "rank 2");
    if (!is_told) fprintf(stderr, "rank %d: %s\n", rank, t.err.text);
    RANK_CHECK(rank, is_told);
    return close_twins(&t);
}

static void ranks_that_differ_are_named(void **state)
{
    (void)state;
    static job j;
    for (j.what = 0; j.what < DIFFERENCES; j.what++) {
        j.optim = j.what == RATE ? make_sgd : make_adam;
        run_both(differ_body, &j, 3);
    }
}

/* ---- a failed step, and a killed rank ---- */

enum { FAILS, DIES };

/* Rank 1's third step fails, or it is killed. */
static int lost_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    twins t;
    open_twins(&t, boot, j);
    for (int i = 0; i < 4 && !t.err.code; i++) {
        backward(&t, &t.a, i);
        if (rank == 1 && i == 2 && j->what == FAILS) tern_relu(t.scope, NULL);
        if (rank == 1 && i == 2 && j->what == DIES) kill(getpid(), SIGKILL);
        tern_optim_step(t.a.optim, t.scope);
        tern_scope_end(t.scope, &t.err);
    }
    bool is_told =
        rank == 1 ? t.err.code == TERN_E_INVALID : t.err.code == TERN_E_PEER && strstr(t.err.text, "rank 1");
    if (!is_told) fprintf(stderr, "rank %d: %s\n", rank, t.err.text);
    RANK_CHECK(rank, is_told);
    return close_twins(&t);
}

static void a_lost_rank_is_named(void **state)
{
    (void)state;
    static job j = {.optim = make_adam, .world = 3};
    draw_batch(&j.batch, 5, 2, (int64_t[]){ROWS, INPUTS});
    for (int i = 0; i < 4; i++) {
        j.backend = i % 2 ? "nccl" : NULL;
        j.what = i / 2;
        if (j.backend && !is_emulated() && j.world > gpu_count()) continue;
        ranks r = ranks_run(j.world, lost_body, &j);
        for (int rank = 0; rank < j.world; rank++)
            assert_int_equal(r.status[rank], rank == 1 && j.what == DIES ? 128 + SIGKILL : 0);
    }
}

/* ---- waits ---- */

static int wait_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    twins t;
    open_twins(&t, boot, j);
    const long *count = emulated_symbol("emulated_waits");
    long before = 0;
    RANK_CHECK(rank, count);
    for (int i = 0; i < STEPS; i++) {
        if (i == 2) before = *count;
        step(&t, &t.a, i);
        RANK_CHECK_OK(rank, t.err);
    }
    if (*count != before) fprintf(stderr, "rank %d: %ld waits\n", rank, *count - before);
    RANK_CHECK(rank, *count == before);
    return close_twins(&t);
}

static void a_warm_step_waits_for_no_device(void **state)
{
    (void)state;
    static job j = {.backend = "nccl", .world = 2};
    if (!is_emulated()) skip_test("needs the emulation");
    draw_batch(&j.batch, 5, 2, (int64_t[]){ROWS, INPUTS});
    for (size_t i = 0; i < TERN__COUNT(kinds); i++)
        for (j.scaling = PLAIN; j.scaling < (kinds[i] == make_lamb ? WAYS : SCALER); j.scaling++) {
            j.optim = kinds[i];
            assert_ranks_ok(ranks_run(j.world, wait_body, &j));
        }
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    setenv("TERN_EMULATED_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_without_a_shard),
        cmocka_unit_test(one_rank_has_one_slice),
        cmocka_unit_test(a_tree_in_two_memories),
        cmocka_unit_test(two_parts_of_a_tree),
        cmocka_unit_test(a_rank_that_has_run_out_keeps_stepping),
        cmocka_unit_test(ranks_that_differ_are_named),
        cmocka_unit_test(a_lost_rank_is_named),
        cmocka_unit_test(a_warm_step_waits_for_no_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
