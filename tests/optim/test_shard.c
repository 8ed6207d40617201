/* Sharded optimizers on 1 to 4 ranks: the bits of unsharded ones, a part of the state, slow peers that still
 * read, and what goes wrong. */
#include "optim/twins.h"

#include "comm/native/native.h"

#include <sched.h>

enum { STEPS = 9, IDLE = 5 };

/* ---- the same bits ---- */

/* This rank's bytes of state, and those of all together. */
static bool has_its_share(twins *t)
{
    int64_t own = (int64_t)tern_optim_state_bytes(t->a.optim), sum = own, most = own, least = -own;
    tern_all_reduce(t->world, &sum, 1, TERN_I64, TERN_SUM, &t->err);
    tern_all_reduce(t->world, &most, 1, TERN_I64, TERN_MAX, &t->err);
    tern_all_reduce(t->world, &least, 1, TERN_I64, TERN_MAX, &t->err);
    /* Two dtypes of at most three states, each cut at cache lines. */
    return sum == (int64_t)tern_optim_state_bytes(t->b.optim) && most + least <= 6 * TERN__LINE;
}

static int equal_body(int rank, const tern__bootstrap *boot, void *arg)
{
    twins t;
    twins_open(&t, boot, *(twin_optim *)arg);
    RANK_CHECK_OK(rank, t.err);
    RANK_CHECK(rank, tern_optim_state_bytes(t.a.optim) == 0);
    for (int step = 0; step < STEPS; step++) {
        if (step == IDLE) { /* nothing has a gradient */
            tern_optim_step(t.a.optim, t.s);
            tern_scope_end(t.s, &t.err);
        } else {
            twins_step(&t, &t.a, step);
            twins_step(&t, &t.b, step);
        }
        RANK_CHECK_OK(rank, t.err);
        RANK_CHECK(rank, twins_are_equal(&t));
    }
    RANK_CHECK(rank, has_its_share(&t));
    RANK_CHECK_OK(rank, t.err);
    return twins_close(&t);
}

static void bits_are_those_without_a_shard(void **state)
{
    (void)state;
    twin_optim makes[] = {twin_sgd, twin_nesterov, twin_grouped_sgd, twin_adam, twin_grouped_adamw};
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < TERN__COUNT(makes); i++)
            assert_ranks_ok(ranks_run(world, equal_body, &makes[i]));
}

static void ranks_may_be_threads(void **state)
{
    (void)state;
    twin_optim make = twin_grouped_adamw;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run_threads(world, equal_body, &make));
}

/* ---- in a group of a group ---- */

/* Two pairs of ranks learn apart from each other, each with its model and its shards. */
static int pair_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open_part(&t, boot, rank % 2, twin_adam);
    RANK_CHECK_OK(rank, t.err);
    RANK_CHECK(rank, t.size == 2 && t.rank == rank / 2);
    for (int step = 0; step < STEPS + rank % 2; step++) {
        twins_step(&t, &t.a, step);
        twins_step(&t, &t.b, step);
        RANK_CHECK_OK(rank, t.err);
        RANK_CHECK(rank, twins_are_equal(&t));
    }
    RANK_CHECK(rank, has_its_share(&t));
    RANK_CHECK(rank, tern_barrier(t.root, &t.err) == TERN_OK);
    return twins_close(&t);
}

static void a_group_of_a_group_has_its_own_shards(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, pair_body, NULL));
    assert_ranks_ok(ranks_run_threads(4, pair_body, NULL));
}

/* ---- two optimizers in one tree ---- */

static void step_part(twins *t, twin *one, int step, tern_optim *first, tern_optim *second)
{
    twins_backward(t, one, step);
    tern_optim_step(first, t->s);
    tern_optim_step(second, t->s);
    tern_scope_end(t->s, &t->err);
}

/* One of them ends early; the windows over the parameters stay for the other. */
static int parts_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, NULL);
    tern_optim *first[2], *second[2];
    for (int i = 0; i < 2; i++) {
        twin *one = i ? &t.b : &t.a;
        first[i] = twin_adam(one->layers[0], &t.err);
        second[i] = twin_nesterov(one->layers[1], &t.err);
    }
    tern_optim_shard(first[0], t.world, &t.err);
    tern_optim_shard(second[0], t.world, &t.err);
    RANK_CHECK_OK(rank, t.err);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 2; i++) step_part(&t, i ? &t.b : &t.a, step, first[i], second[i]);
        RANK_CHECK_OK(rank, t.err);
        RANK_CHECK(rank, twins_are_equal(&t));
        if (step != STEPS / 2) continue;
        for (int i = 0; i < 2; i++) {
            tern_optim_free(first[i]);
            first[i] = NULL;
        }
    }
    for (int i = 0; i < 2; i++) tern_optim_free(second[i]);
    RANK_CHECK(rank, twins_are_equal(&t)); /* their pages are private again */
    return twins_close(&t);
}

static void two_parts_of_a_tree(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, parts_body, NULL));
}

/* ---- a slow peer still reads ---- */

/* The first channel of a group's list is its newest: the shard's. */
static bool others_are_waiting(const twins *t, uint64_t posts)
{
    const tern__channel *channel = ((tern__native *)t->world->state)->channels;
    bool waiting = true;
    for (int rank = 0; rank < t->size - 1; rank++)
        waiting &= atomic_load(&channel->posted[rank].value) >= posts;
    return waiting;
}

static double evaluate(twins *t)
{
    double sum = 0;
    for (int i = 0; i < PARAMS; i++)
        for (int64_t k = 0; k < tern_tensor_count(t->a.p[i]); k++)
            sum += tern__view_get(&t->a.p[i]->view, k) * (double)(k % 7 + 1);
    return sum;
}

/* The last rank computes with its parameters while all others have said that their slices are ready. It also
 * makes progress for them, as any call does that waits: still nothing may be written to its parameters. */
static int slow_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_nesterov);
    for (int step = 0; step < 4; step++) {
        RANK_CHECK_OK(rank, t.err);
        double before = evaluate(&t);
        twins_backward(&t, &t.a, step);
        if (rank == t.size - 1) {
            while (!others_are_waiting(&t, (uint64_t)((step + 1) * t.size))) sched_yield();
            for (int i = 0; i < 50; i++) {
                RANK_CHECK(rank, evaluate(&t) == before);
                RANK_CHECK(rank, tern__native_progress(t.world->state, &t.err) == TERN_OK);
            }
        }
        tern_optim_step(t.a.optim, t.s);
        RANK_CHECK(rank, evaluate(&t) != before);
        tern_scope_end(t.s, &t.err);
    }
    RANK_CHECK_OK(rank, t.err);
    return twins_close(&t);
}

static void a_slow_peer_reads_its_parameters_undisturbed(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        assert_ranks_ok(ranks_run(world, slow_body, NULL));
        assert_ranks_ok(ranks_run_threads(world, slow_body, NULL));
    }
}

/* ---- kernels' copies of parameters ---- */

enum { IMAGES = 3, PIXELS = IMAGES * 36 };

typedef struct convnet {
    tern_module *net;
    tern_ddp *ddp;
    tern_optim *optim;
} convnet;

static convnet open_convnet(twins *t)
{
    tern_resnet_opts shape = tern_resnet_defaults();
    shape.in_channels = shape.stages = shape.blocks[0] = 1;
    shape.classes = 4;
    shape.channels[0] = 16;
    shape.small_stem = true;
    tern_rng_seed(t->rng, 4);
    convnet c = {.net = tern_resnet_new(&shape, t->rng, &t->err)};
    c.ddp = tern_ddp_new(c.net, t->world, NULL, &t->err);
    c.optim = twin_nesterov(c.net, &t->err);
    return c;
}

static void close_convnet(convnet *c)
{
    tern_optim_free(c->optim);
    tern_ddp_free(c->ddp);
    tern_module_free(c->net);
}

static tern_tensor *scores_of(twins *t, convnet *c, int seed)
{
    float x[PIXELS];
    tern_rng_seed(t->rng, (uint64_t)seed);
    tern_rng_normal(t->rng, x, PIXELS, 0, 1);
    return tern_forward(c->net, t->s, tern_tensor_from(t->s, x, TERN_F32, 4, (int64_t[]){IMAGES, 1, 6, 6}));
}

/* Convolutions keep a packed copy of their weights from the second use on, and use it in the third. */
static void step_convnet(twins *t, convnet *c, int step, float scores[IMAGES * 4])
{
    tern_tensor *y = scores_of(t, c, step * 10 + t->rank);
    tern_backward(
        t->s, tern_cross_entropy(
                  t->s, y, tern_tensor_from(t->s, (int64_t[]){0, 1, 2}, TERN_I64, 1, (int64_t[]){3}), NULL));
    tern_optim_step(c->optim, t->s);
    tern_eval(c->net);
    for (int i = 0; i < 3; i++)
        tern_tensor_read(scores_of(t, c, step), scores, IMAGES * 4 * sizeof(*scores), &t->err);
    tern_train(c->net);
    tern_scope_end(t->s, &t->err);
}

static int packed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, NULL);
    convnet a = open_convnet(&t), b = open_convnet(&t);
    tern_optim_shard(a.optim, t.world, &t.err);
    for (int step = 0; step < 3; step++) {
        float x[IMAGES * 4], y[IMAGES * 4];
        step_convnet(&t, &a, step, x);
        step_convnet(&t, &b, step, y);
        RANK_CHECK_OK(rank, t.err);
        RANK_CHECK(rank, !memcmp(x, y, sizeof(x)));
    }
    close_convnet(&a);
    close_convnet(&b);
    return twins_close(&t);
}

static void packed_copies_are_made_anew(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, packed_body, NULL));
}

/* ---- ranks that have run out of batches ---- */

/* The step of the twin that is training: b has state as soon as it is. */
static int follow(void *arg, tern_error *err)
{
    twins *t = arg;
    twin *one = tern_optim_state_bytes(t->b.optim) ? &t->b : &t->a;
    tern_clip_grad_norm(t->s, one->net, 5, 2);
    tern_optim_step(one->optim, t->s);
    tern_schedule_step(one->schedule);
    return tern_scope_end(t->s, err);
}

/* Rank r has 2 + 2 r batches. The twins train one after the other. */
static int join_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_adam);
    tern_join_opts opts = tern_join_defaults();
    opts.after_backward = follow;
    opts.arg = &t;
    for (int i = 0; i < 2; i++) {
        for (int step = 0; step < 2 + 2 * rank; step++) twins_step(&t, i ? &t.b : &t.a, step);
        tern_ddp_join(i ? t.b.ddp : t.a.ddp, &opts, &t.err);
        RANK_CHECK_OK(rank, t.err);
    }
    RANK_CHECK(rank, twins_are_equal(&t) && has_its_share(&t));
    return twins_close(&t);
}

static int join_without_step_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_adam);
    for (int step = 0; step < 2 + 2 * rank && !t.err.code; step++) twins_step(&t, &t.a, step);
    tern_ddp_join(t.a.ddp, NULL, &t.err);
    RANK_CHECK(rank, t.err.code == (rank == 0 ? TERN_E_STATE : TERN_E_PEER));
    RANK_CHECK(rank, strstr(t.err.text, "the optimizer of sequential is sharded: pass an after_backward"));
    return twins_close(&t);
}

static void a_rank_that_has_run_out_keeps_stepping(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, join_body, NULL));
    assert_ranks_ok(ranks_run(3, join_without_step_body, NULL));
}

/* ---- memory ---- */

static _Thread_local long requests, refuse_at;

static void *counting_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    return ++requests == refuse_at ? NULL : aligned_alloc(align, tern__align_up(bytes, align));
}

static void counting_free(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

static int warm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_allocator_set(&(tern_allocator){counting_alloc, counting_free, NULL});
    twins t;
    long warm = 0;
    twins_open(&t, boot, twin_grouped_adamw);
    for (int step = 0; step < 9; step++) {
        if (step == 4) warm = requests; /* both arenas have grown */
        twins_step(&t, &t.a, 0);
    }
    RANK_CHECK_OK(rank, t.err);
    RANK_CHECK(rank, warm > 0 && requests == warm);
    return twins_close(&t);
}

static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, warm_body, NULL));
}

/* The `at`th request of rank 1 in tern_optim_shard is refused: all ranks hear of it, one that is late still
 * in its earlier calls. */
static int refused_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_allocator_set(&(tern_allocator){counting_alloc, counting_free, NULL});
    twins t;
    twins_open(&t, boot, NULL);
    t.a.optim = twin_adam(t.a.net, &t.err);
    requests = 0;
    refuse_at = rank == 1 ? *(int *)arg : 0;
    tern_optim_shard(t.a.optim, t.world, &t.err);
    refuse_at = 0;
    if (!t.err.code) tern_barrier(t.world, &t.err); /* it may have been the others' last word */
    RANK_CHECK(rank, t.err.code == (rank == 1 ? TERN_E_MEMORY : TERN_E_PEER));
    RANK_CHECK(rank, rank == 1 || strstr(t.err.text, "rank 1"));
    return twins_close(&t);
}

static void out_of_memory_reaches_all(void **state)
{
    (void)state;
    for (int at = 1; at <= 5; at++) assert_ranks_ok(ranks_run(2, refused_body, &at));
}

/* ---- wrong use ---- */

static int shard(twins *t, tern_optim *optim, int code, const char *text)
{
    tern_error err = {0};
    int status = tern_optim_shard(optim, t->world, &err);
    if (status == code && err.code == code && strstr(err.text, text)) return TERN_OK;
    fprintf(stderr, "rank %d: %s\n", t->rank, err.text);
    return 1;
}

/* A refusal ends the group, so each has its own. */
enum { NO_OPTIM, NO_DDP, IGNORED, TWICE, LATE, WRONG_USES };

/* A ddp that ignores a parameter, in the place of the twin's own. */
static void ignore_one(twins *t)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    const char *name = "b.bias";
    opts.ignore = &name;
    opts.ignore_count = 1;
    tern_ddp_free(t->a.ddp);
    t->a.ddp = tern_ddp_new(t->a.net, t->world, &opts, &t->err);
}

static int wrong_use_body(int rank, const tern__bootstrap *boot, void *arg)
{
    twins t;
    twins_open(&t, boot, *(int *)arg == NO_DDP || *(int *)arg == IGNORED ? NULL : twin_sgd);
    RANK_CHECK_OK(rank, t.err);
    tern_module *alone = tern_linear_new(3, 3, NULL, t.rng, &t.err);
    tern_optim *optim = tern_sgd_new(alone, NULL, &t.err);
    int status = 1;
    switch (*(int *)arg) {
    case NO_OPTIM: status = shard(&t, NULL, TERN_E_INVALID, "the optimizer is NULL"); break;
    case NO_DDP: status = shard(&t, optim, TERN_E_STATE, "linear has no ddp on this group"); break;
    case IGNORED:
        ignore_one(&t);
        t.a.optim = twin_sgd(t.a.net, &t.err);
        status = shard(&t, t.a.optim, TERN_E_INVALID, "\"b.bias\" is ignored by the ddp");
        break;
    case TWICE: status = shard(&t, t.a.optim, TERN_E_STATE, "the optimizer is sharded already"); break;
    case LATE:
        twins_step(&t, &t.b, 0);
        status = shard(&t, t.b.optim, TERN_E_STATE, "the optimizer has made a step; shard it before");
        break;
    }
    tern_error err = {0};
    RANK_CHECK(rank, tern_optim_shard(t.a.optim, NULL, &err) == TERN_E_INVALID && err.code == TERN_E_INVALID);
    tern_optim_free(optim);
    tern_module_free(alone);
    return status || twins_close(&t);
}

static void wrong_use_is_refused(void **state)
{
    (void)state;
    for (int use = 0; use < WRONG_USES; use++) assert_ranks_ok(ranks_run(1, wrong_use_body, &use));
}

static int set_error_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, NULL);
    t.a.optim = twin_sgd(t.a.net, &t.err);
    if (rank == 1) tern_idx_open("/nowhere/images.gz", "/nowhere/labels.gz", NULL, &t.err);
    RANK_CHECK(rank, tern_optim_shard(t.a.optim, t.world, &t.err) == t.err.code);
    RANK_CHECK(rank, t.err.code == (rank == 1 ? TERN_E_IO : TERN_E_PEER));
    RANK_CHECK(rank, strstr(t.err.text, "/nowhere/images.gz"));
    return twins_close(&t);
}

static void an_earlier_error_reaches_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, set_error_body, NULL));
}

/* ---- ranks that differ ---- */

enum { RATE, OPTIONS, GRADIENTS, DIFFERENCES };

static tern_optim *odd_nesterov(tern_module *module, tern_error *err)
{
    tern_sgd_opts opts = tern_sgd_defaults();
    opts.lr = 0.01;
    opts.momentum = 0.8;
    opts.weight_decay = 0.01;
    return tern_sgd_new(module, &opts, err);
}

/* The last of three ranks is the odd one, from the third step on. */
static int differ_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int what = *(int *)arg, step = 0;
    bool odd = rank == 2;
    twins t;
    twins_open(&t, boot, odd && what == OPTIONS ? odd_nesterov : twin_nesterov);
    for (; step < 4 && !t.err.code; step++) {
        if (step == 2 && odd && what == RATE) tern_optim_lr_set(t.a.optim, 0, 0.02);
        twins_backward(&t, &t.a, step);
        if (step == 2 && odd && what == GRADIENTS) tern_zero_grad(t.a.layers[1]);
        tern_optim_step(t.a.optim, t.s);
        tern_scope_end(t.s, &t.err);
    }
    RANK_CHECK(rank, t.err.code == TERN_E_MISMATCH);
    static const char *const texts[] = {
        [RATE] = "step 3 of a sharded optimizer: rank 2 updated its slice with other options or learning",
        [OPTIONS] = "step 1 of a sharded optimizer: rank 2 updated its slice with other options",
        [GRADIENTS] = "step 3)",
    };
    if (!strstr(t.err.text, texts[what])) fprintf(stderr, "rank %d: %s\n", rank, t.err.text);
    RANK_CHECK(rank, strstr(t.err.text, texts[what]) && strstr(t.err.text, "rank 2"));
    return twins_close(&t);
}

static void ranks_that_differ_are_named(void **state)
{
    (void)state;
    for (int what = 0; what < DIFFERENCES; what++) assert_ranks_ok(ranks_run(3, differ_body, &what));
}

/* ---- a failed step ---- */

/* A scope that knows of no group still ends the step of the others. */
static int failed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_nesterov);
    tern_scope *alone = tern_scope_new(t.dev, NULL, &t.err);
    RANK_CHECK_OK(rank, t.err);
    twins_backward(&t, &t.a, 0);
    double before = evaluate(&t);
    if (rank == 1) {
        tern_relu(alone, NULL);
        tern_optim_step(t.a.optim, alone);
        tern_scope_end(alone, &t.err);
        RANK_CHECK(rank, t.err.code == TERN_E_INVALID && evaluate(&t) == before);
    } else {
        tern_optim_step(t.a.optim, t.s);
        tern_scope_end(t.s, &t.err);
        RANK_CHECK(rank, t.err.code == TERN_E_PEER && strstr(t.err.text, "rank 1"));
        RANK_CHECK(rank, strstr(t.err.text, "relu: input 0 is NULL"));
    }
    tern_scope_free(alone);
    return twins_close(&t);
}

static void a_failed_step_ends_that_of_all(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, failed_body, NULL));
}

static int killed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_adam);
    for (int step = 0; step < 1000000 && !t.err.code; step++) {
        twins_backward(&t, &t.a, step);
        if (rank == 1 && step == 20) kill(getpid(), SIGKILL);
        tern_optim_step(t.a.optim, t.s);
        tern_scope_end(t.s, &t.err);
    }
    RANK_CHECK(rank, t.err.code == TERN_E_PEER && strstr(t.err.text, "rank 1"));
    return twins_close(&t);
}

static void a_killed_rank_is_named(void **state)
{
    (void)state;
    ranks r = ranks_run(3, killed_body, NULL);
    assert_int_equal(r.status[0], 0);
    assert_int_equal(r.status[1], 128 + SIGKILL);
    assert_int_equal(r.status[2], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_without_a_shard),
        cmocka_unit_test(ranks_may_be_threads),
        cmocka_unit_test(a_group_of_a_group_has_its_own_shards),
        cmocka_unit_test(two_parts_of_a_tree),
        cmocka_unit_test(a_slow_peer_reads_its_parameters_undisturbed),
        cmocka_unit_test(packed_copies_are_made_anew),
        cmocka_unit_test(a_rank_that_has_run_out_keeps_stepping),
        cmocka_unit_test(a_warm_step_allocates_nothing),
        cmocka_unit_test(out_of_memory_reaches_all),
        cmocka_unit_test(wrong_use_is_refused),
        cmocka_unit_test(an_earlier_error_reaches_all),
        cmocka_unit_test(ranks_that_differ_are_named),
        cmocka_unit_test(a_failed_step_ends_that_of_all),
        cmocka_unit_test(a_killed_rank_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
