/* test_subgroup.c - ddps on groups made from the world: they train like in a world of their own, also two at
 * once, like the stages of a pipeline, and beside one on the world. */
#include "parallel/ddp_fixture.h"

#include <stdatomic.h>
#include <sys/mman.h>

enum { rows = 8, steps = 5 };

/* Uses one thread, since there are more ranks than CPUs. */
static tern_device *open_device(tern_error *err)
{
    tern_device *dev = tern_device_open("cpu", err);
    if (dev) tern_device_threads_set(dev, 1, err);
    return dev;
}

/* ---- a group behaves like a world ---- */

typedef struct board {
    _Atomic(uint64_t) hash; /* the state after training in a world of the members alone */
    int members;
    bool is_scope_of_group;
} board;

static void replace_ddp(fixture *f, tern_group *group, tern_error *err)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 512;
    f->ddp = tern_ddp_new(f->net, group, &opts, err);
}

static void train(fixture *f, int rank, int step_count, tern_error *err)
{
    for (int step = 0; step < step_count; step++) fixture_step(f, step, rank * rows, rows, err);
}

/* The members alone: `members` ranks, each with its own seed; rank 0's weights are used. */
static int alone_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    fixture f;
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 512;
    fixture_open(&f, boot, NULL, &opts, &err);
    tern_device_threads_set(f.dev, 1, &err);
    train(&f, rank, steps, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 0) atomic_store(&b->hash, fixture_hash(f.net));
    fixture_close(&f);
    return 0;
}

/* The same on the odd ranks of a world twice as large, while each even rank trains alone, for fewer steps. */
static int group_body(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern_error err = {0};
    int odd[RANKS_MAX];
    for (int i = 0; i < b->members; i++) odd[i] = 2 * i + 1;
    fixture f = {.world = tern__group_open_boot(boot, NULL, &err), .dev = open_device(&err)};
    tern_group *group = tern_group_new(f.world, odd, b->members, NULL, &err);
    f.rng = tern_rng_new((uint64_t)(rank / 2) + 7, &err);
    f.net = fixture_mlp(f.rng, &err);
    f.opt = fixture_sgd(f.net, &err);
    f.s = tern_scope_new(f.dev, group && b->is_scope_of_group ? group : f.world, &err);
    RANK_CHECK_OK(rank, err);
    if (group) replace_ddp(&f, group, &err);
    train(&f, rank / 2, group ? steps : 2, &err);
    RANK_CHECK_OK(rank, err);
    if (group) RANK_CHECK(rank, fixture_hash(f.net) == atomic_load(&b->hash));
    if (group) RANK_CHECK(rank, fixture_same(group, fixture_hash(f.net), &err));
    tern_ddp_free(f.ddp);
    f.ddp = NULL;
    tern_scope_free(f.s);
    f.s = NULL;
    tern_group_close(group);
    tern_barrier(f.world, &err);
    RANK_CHECK_OK(rank, err);
    fixture_close(&f);
    return 0;
}

static void test_group_is_a_world_of_its_own(void **state)
{
    (void)state;
    for (int members = 1; members <= 4; members++) {
        board *b = share_memory(sizeof(*b));
        b->members = members;
        assert_ranks_ok(ranks_run(members, alone_body, b));
        for (int scope = 0; scope < 2; scope++) {
            b->is_scope_of_group = scope;
            assert_ranks_ok(ranks_run(2 * members, group_body, b));
        }
        munmap(b, sizeof(*b));
    }
}

/* ---- a pipeline of two stages, each on several ranks ---- */

#define HIDDEN 24

static tern_module *stage_new(int stage, tern_rng *rng, tern_error *err)
{
    return stage == 0 ? tern_mlp_new((int64_t[]){FEATURES, 32, HIDDEN}, 3, rng, err)
                      : tern_mlp_new((int64_t[]){HIDDEN, 16, CLASSES}, 3, rng, err);
}

/* A stage's input from the stage before: a parameter, so that it has a gradient. */
typedef struct inlet {
    tern_module base;
    tern_tensor *x;
} inlet;

typedef struct pipeline {
    tern_group *stage, *link; /* the ranks of this stage; this rank and its partner in the other stage */
    tern_rng *rng;
    tern_module *net;
    tern_ddp *ddp;
    tern_optim *opt;
    inlet in;
} pipeline;

/* Ranks 0 to n - 1 are the first stage, n to 2n - 1 the second. */
static void pipe_open(pipeline *p, fixture *f, const tern__bootstrap *boot, tern_error *err)
{
    int n = boot->world / 2, stage = boot->rank / n;
    *f = (fixture){.world = tern__group_open_boot(boot, NULL, err), .dev = open_device(err)};
    f->s = tern_scope_new(f->dev, f->world, err);
    p->stage = tern_group_split(f->world, stage, 0, NULL, err);
    p->link = tern_group_split(f->world, boot->rank % n, 0, NULL, err);
    p->rng = tern_rng_new((uint64_t)stage + 7, err);
    p->net = stage_new(stage, p->rng, err);
    p->ddp = tern_ddp_new(p->net, p->stage, NULL, err);
    p->opt = fixture_sgd(p->net, err);
    tern_module_init(&p->in.base, "inlet", NULL, err);
    p->in.x = tern_parameter_add(&p->in.base, "x", TERN_F32, 2, (int64_t[]){rows, HIDDEN}, err);
}

static void pipe_close(pipeline *p, fixture *f)
{
    tern_ddp_free(p->ddp);
    tern_optim_free(p->opt);
    tern_module_free(p->net);
    tern_module_release(&p->in.base);
    tern_rng_free(p->rng);
    tern_group_close(p->link);
    tern_group_close(p->stage);
    fixture_close(f);
}

/* Backward from sum(y * dy) gives the gradients for the dy received from the second stage. */
static void first_stage(pipeline *p, fixture *f, int step, int first, tern_error *err)
{
    float between[rows * HIDDEN];
    tern_tensor *y = tern_forward(p->net, f->s, fixture_rows(f, step, first, rows));
    tern_tensor_read(y, between, sizeof(between), err);
    tern_broadcast(p->link, between, rows * HIDDEN, TERN_F32, 0, err);
    tern_broadcast(p->link, between, rows * HIDDEN, TERN_F32, 1, err);
    tern_tensor *dy = tern_tensor_from(f->s, between, TERN_F32, 2, (int64_t[]){rows, HIDDEN});
    tern_backward(f->s, tern_sum(f->s, tern_mul(f->s, y, dy)));
}

static void second_stage(pipeline *p, fixture *f, int first, tern_error *err)
{
    float between[rows * HIDDEN];
    tern_broadcast(p->link, between, rows * HIDDEN, TERN_F32, 0, err);
    memcpy(tern_tensor_data(p->in.x), between, sizeof(between));
    tern_tensor *y = tern_forward(p->net, f->s, p->in.x);
    tern_backward(f->s, tern_cross_entropy(f->s, y, fixture_labels(f, first, rows), NULL));
    if (tern_grad_get(p->in.x)) tern_tensor_read(tern_grad_get(p->in.x), between, sizeof(between), err);
    tern_zero_grad(&p->in.base);
    tern_broadcast(p->link, between, rows * HIDDEN, TERN_F32, 1, err);
}

/* Compares `net` with both stages in one process on all rows. */
static void compare_alone(int stage, int count, tern_module *net, tern_error *err)
{
    fixture f = {.dev = open_device(err)};
    f.s = tern_scope_new(f.dev, NULL, err);
    tern_rng *rng[2] = {tern_rng_new(7, err), tern_rng_new(8, err)};
    tern_module *nets[2] = {stage_new(0, rng[0], err), stage_new(1, rng[1], err)};
    tern_optim *opts[2] = {fixture_sgd(nets[0], err), fixture_sgd(nets[1], err)};
    for (int step = 0; step < steps; step++) {
        tern_tensor *y = tern_forward(nets[0], f.s, fixture_rows(&f, step, 0, count));
        y = tern_forward(nets[1], f.s, y);
        tern_backward(f.s, tern_cross_entropy(f.s, y, fixture_labels(&f, 0, count), NULL));
        for (int i = 0; i < 2; i++) tern_optim_step(opts[i], f.s);
        tern_scope_end(f.s, err);
    }
    tern_scope_free(f.s);
    double difference = fixture_difference(nets[stage], net);
    for (int i = 0; i < 2; i++) {
        tern_optim_free(opts[i]);
        tern_module_free(nets[i]);
        tern_rng_free(rng[i]);
    }
    tern_device_close(f.dev);
    if (!(difference < 2e-6))
        tern__error_set(err, __func__, TERN_E_MISMATCH, "it learned otherwise by %g", difference);
}

static int pipe_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    fixture f;
    pipeline p;
    int n = boot->world / 2, stage = rank / n, first = rank % n * rows;
    pipe_open(&p, &f, boot, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < steps; step++) {
        if (stage == 0)
            first_stage(&p, &f, step, first, &err);
        else
            second_stage(&p, &f, first, &err);
        tern_optim_step(p.opt, f.s);
        tern_scope_end(f.s, &err);
        RANK_CHECK_OK(rank, err);
    }
    RANK_CHECK(rank, fixture_same(p.stage, fixture_hash(p.net), &err));
    compare_alone(stage, n * rows, p.net, &err);
    RANK_CHECK_OK(rank, err);
    pipe_close(&p, &f);
    return 0;
}

static void test_pipeline_of_two_stages(void **state)
{
    (void)state;
    for (int world = 2; world <= 8; world += 2) assert_ranks_ok(ranks_run(world, pipe_body, NULL));
}

/* ---- one ddp on a group beside one on the world ---- */

/* The gradients of the trunk are averaged over a pair of ranks, those of the head over all ranks. The result
 * equals that computed by hand. */
typedef struct model {
    tern_rng *rng;
    tern_module *trunk, *head;
    tern_scope *s;
} model;

static void model_open(model *m, tern_device *dev, tern_group *group, tern_error *err)
{
    m->rng = tern_rng_new(3, err);
    m->trunk = stage_new(0, m->rng, err);
    m->head = stage_new(1, m->rng, err);
    m->s = tern_scope_new(dev, group, err);
}

static void model_close(model *m)
{
    tern_scope_free(m->s);
    tern_module_free(m->trunk);
    tern_module_free(m->head);
    tern_rng_free(m->rng);
}

static void model_backward(model *m, int step, int rank)
{
    fixture f = {.s = m->s};
    tern_tensor *y = tern_forward(m->trunk, m->s, fixture_rows(&f, step, rank * rows, rows));
    y = tern_forward(m->head, m->s, y);
    tern_backward(m->s, tern_cross_entropy(m->s, y, fixture_labels(&f, rank * rows, rows), NULL));
}

static bool same_gradients(const tern_module *ddp, const tern_module *hand, tern_group *group,
                           tern_error *err)
{
    bool same = true;
    for (int i = 0; i < tern_state_count(hand); i++) {
        tern_tensor *one = tern_grad_get(tern_state_get(ddp, i).tensor);
        tern_tensor *other = tern_grad_get(tern_state_get(hand, i).tensor);
        size_t count = (size_t)tern_tensor_count(other);
        tern_all_reduce(group, tern_tensor_data(other), count, TERN_F32, TERN_AVG, err);
        same &= one && !memcmp(tern_tensor_data(one), tern_tensor_data(other), count * sizeof(float));
    }
    return same;
}

static int beside_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    model by_ddp, by_hand;
    tern_device *dev = open_device(&err);
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_group *pair = tern_group_split(world, rank / 2, 0, NULL, &err);
    model_open(&by_ddp, dev, rank % 2 ? pair : world, &err);
    model_open(&by_hand, dev, NULL, &err);
    tern_ddp *head = tern_ddp_new(by_ddp.head, world, NULL, &err);
    tern_ddp *trunk = tern_ddp_new(by_ddp.trunk, pair, NULL, &err);
    RANK_CHECK_OK(rank, err);
    for (int step = 0; step < steps; step++) {
        model_backward(&by_ddp, step, rank);
        model_backward(&by_hand, step, rank);
        RANK_CHECK(rank, same_gradients(by_ddp.trunk, by_hand.trunk, pair, &err));
        RANK_CHECK(rank, same_gradients(by_ddp.head, by_hand.head, world, &err));
        for (int i = 0; i < 2; i++) {
            tern_zero_grad(i ? by_ddp.trunk : by_ddp.head);
            tern_zero_grad(i ? by_hand.trunk : by_hand.head);
        }
        tern_scope_end(by_ddp.s, &err);
        tern_scope_end(by_hand.s, &err);
        RANK_CHECK_OK(rank, err);
    }
    tern_ddp_free(head);
    tern_ddp_free(trunk);
    model_close(&by_ddp);
    model_close(&by_hand);
    tern_group_close(pair);
    tern_group_close(world);
    tern_device_close(dev);
    return 0;
}

static void test_group_beside_the_world(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, beside_body, NULL));
    assert_ranks_ok(ranks_run(8, beside_body, NULL));
}

/* ---- scopes of groups ---- */

/* A scope's random numbers depend on the rank in the world, so two groups drop different elements. */
static int draw_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    uint64_t keys[RANKS_MAX];
    tern_device *dev = open_device(&err);
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_group *pair = tern_group_split(world, rank / 2, 0, NULL, &err);
    tern_scope *s = tern_scope_new(dev, pair, &err);
    RANK_CHECK_OK(rank, err);
    uint64_t key = tern__scope_draw(s).key;
    tern_all_gather(world, &key, keys, 1, TERN_I64, &err);
    RANK_CHECK_OK(rank, err);
    for (int r = 0; r < boot->world; r++) RANK_CHECK(rank, r == rank || keys[r] != key);
    tern_scope_free(s);
    tern_group_close(pair);
    tern_group_close(world);
    tern_device_close(dev);
    return 0;
}

/* If an op fails in a scope of one group, all ranks get the error, whatever they are doing. */
static int op_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_device *dev = open_device(&err);
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    tern_group *pair = tern_group_split(world, rank / 2, 0, NULL, &err);
    if (rank == 1) {
        fixture f = {.s = tern_scope_new(dev, pair, &err)};
        tern_matmul(f.s, fixture_rows(&f, 0, 0, 2), fixture_rows(&f, 0, 0, 2));
        RANK_CHECK(rank, tern_scope_end(f.s, &err) == TERN_E_SHAPE);
        tern_scope_free(f.s);
    } else {
        if (!err.code) tern_barrier(rank == 0 ? pair : world, &err);
        RANK_CHECK(rank, err.code == TERN_E_PEER);
        RANK_CHECK(rank, strstr(err.text, "rank 1 (") && strstr(err.text, "matmul"));
    }
    tern_group_close(pair);
    tern_group_close(world);
    tern_device_close(dev);
    return 0;
}

/* So does a scope that cannot be made, whose steps would otherwise do nothing, silently. */
static int no_scope_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *world = tern__group_open_boot(boot, NULL, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 1) {
        RANK_CHECK(rank, !tern_scope_new(NULL, world, NULL));
    } else {
        tern_barrier(world, &err);
        RANK_CHECK(rank, err.code == TERN_E_PEER);
        RANK_CHECK(rank, strstr(err.text, "rank 1 (") && strstr(err.text, "the device is NULL"));
    }
    tern_group_close(world);
    return 0;
}

static void test_scopes_of_groups(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, draw_body, NULL));
    assert_ranks_ok(ranks_run(4, op_body, NULL));
    assert_ranks_ok(ranks_run(2, no_scope_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group_is_a_world_of_its_own),
        cmocka_unit_test(test_pipeline_of_two_stages),
        cmocka_unit_test(test_group_beside_the_world),
        cmocka_unit_test(test_scopes_of_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
