/* Sharded optimizers on 1 to 4 ranks: the bits of unsharded ones, a part of the state, and slow peers that
 * still read. */
#include "optim/twins.h"

#include "comm/move/window/window.h"

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
    /* Two dtypes of at most three states, each cut at sections. */
    return sum == (int64_t)tern_optim_state_bytes(t->b.optim) && most + least <= 6 * (int64_t)TERN__SECTION;
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
    twin_optim makes[] = {twin_sgd,     twin_nesterov,      twin_grouped_sgd,
                          twin_adam,    twin_grouped_adamw, twin_grouped_rmsprop,
                          twin_adagrad, twin_grouped_lamb,  twin_larc};
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < TERN__COUNT(makes); i++)
            assert_ranks_ok(ranks_run(world, equal_body, &makes[i]));
}

static void ranks_may_be_threads(void **state)
{
    (void)state;
    twin_optim makes[] = {twin_grouped_adamw, twin_grouped_lamb, twin_larc};
    for (int world = 2; world <= 4; world++)
        for (size_t i = 0; i < TERN__COUNT(makes); i++)
            assert_ranks_ok(ranks_run_threads(world, equal_body, &makes[i]));
}

/* ---- other sizes ---- */

typedef struct mlp {
    int64_t sizes[5];
    int count;
} mlp;

enum { SIZE_MAKES = 4 };
static const twin_optim size_makes[SIZE_MAKES] = {twin_adam, twin_grouped_sgd, twin_grouped_lamb, twin_larc};

/* The first has two parameters of one element: most ranks of four have nothing to do. The larger ones are of
 * several sections. */
static mlp draw_mlp(tern_rng *rng, int seed)
{
    mlp m = {.sizes = {1, 1}, .count = 2};
    tern_rng_seed(rng, (uint64_t)seed);
    if (seed) m.count = 2 + (int)(tern_rng_u32(rng) % 4);
    for (int i = 0; seed && i < m.count; i++) m.sizes[i] = 1 + tern_rng_u32(rng) % (seed < 6 ? 40 : 120);
    return m;
}

static void step_mlp(twins *t, const mlp *m, tern_module *net, tern_optim *optim, int step)
{
    tern_rng_seed(t->rng, (uint64_t)(step * 10 + t->rank));
    tern_tensor *x = tern_randn(t->s, t->rng, 2, (int64_t[]){3, m->sizes[0]});
    tern_tensor *y = tern_forward(net, t->s, x);
    tern_backward(t->s, tern_mean(t->s, tern_mul(t->s, y, y)));
    tern_optim_step(optim, t->s);
    tern_scope_end(t->s, &t->err);
}

static bool same_params(const tern_module *a, const tern_module *b)
{
    bool same = true;
    for (int i = 0; i < tern_state_count(a); i++) {
        const tern__view *x = &tern_state_get(a, i).tensor->view, *y = &tern_state_get(b, i).tensor->view;
        same &= !memcmp(x->data, y->data, tern__view_bytes(x));
    }
    return same;
}

static int sizes_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int seed = *(int *)arg;
    twins t;
    tern_module *nets[2];
    tern_ddp *ddps[2];
    tern_optim *optims[2];
    twins_open(&t, boot, NULL);
    mlp m = draw_mlp(t.rng, seed);
    for (int i = 0; i < 2; i++) {
        tern_rng_seed(t.rng, (uint64_t)seed);
        nets[i] = tern_mlp_new(m.sizes, m.count, t.rng, &t.err);
        ddps[i] = tern_ddp_new(nets[i], t.world, NULL, &t.err);
        optims[i] = size_makes[seed % SIZE_MAKES](nets[i], &t.err);
    }
    tern_optim_shard(optims[0], t.world, &t.err);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 2; i++) step_mlp(&t, &m, nets[i], optims[i], step);
        RANK_CHECK_OK(rank, t.err);
        RANK_CHECK(rank, same_params(nets[0], nets[1]));
    }
    for (int i = 0; i < 2; i++) {
        tern_optim_free(optims[i]);
        tern_ddp_free(ddps[i]);
    }
    RANK_CHECK(rank, same_params(nets[0], nets[1])); /* its pages are private again */
    for (int i = 0; i < 2; i++) tern_module_free(nets[i]);
    return twins_close(&t);
}

static void models_of_other_sizes(void **state)
{
    (void)state;
    for (int seed = 0; seed < 12; seed++)
        for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, sizes_body, &seed));
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

/* The first hook of a family is its newest: the meeting of the shard. */
static bool others_are_waiting(const twins *t, uint64_t posts)
{
    const tern__meeting *meeting = (const tern__meeting *)t->world->shm->hooks;
    bool waiting = true;
    for (int rank = 0; rank < t->size - 1; rank++)
        waiting &= atomic_load(&meeting->posted[rank].value) >= posts;
    return waiting;
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
        double before = twins_evaluate(&t);
        twins_backward(&t, &t.a, step);
        if (rank == t.size - 1) {
            while (!others_are_waiting(&t, (uint64_t)((step + 1) * t.size))) sched_yield();
            for (int i = 0; i < 50; i++) {
                RANK_CHECK(rank, twins_evaluate(&t) == before);
                RANK_CHECK(rank, tern__shm_progress(t.world->shm, &t.err) == TERN_OK);
            }
        }
        tern_optim_step(t.a.optim, t.s);
        RANK_CHECK(rank, twins_evaluate(&t) != before);
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
    opts.ctx = &t;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_without_a_shard),
        cmocka_unit_test(ranks_may_be_threads),
        cmocka_unit_test(models_of_other_sizes),
        cmocka_unit_test(a_group_of_a_group_has_its_own_shards),
        cmocka_unit_test(two_parts_of_a_tree),
        cmocka_unit_test(a_slow_peer_reads_its_parameters_undisturbed),
        cmocka_unit_test(packed_copies_are_made_anew),
        cmocka_unit_test(a_rank_that_has_run_out_keeps_stepping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
