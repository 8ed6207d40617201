/* test_choices.c - rank 0 measures convolution algorithms, and all ranks use its choices. */
#include "parallel/ddp_fixture.h"

#include "device/choices.h"
#include "kernels/cpu/conv/choice.h"

#include <stdatomic.h>

#define LINES ((size_t)512 << 10)
#define MANY  360 /* as many as a DenseNet-121 has, per direction */

/* ---- the algorithms of a step ---- */

typedef struct witness {
    tern__kernel_observer observer; /* first: the observer is cast to the witness */
    tern_device *device;
    uint64_t hash; /* of the algorithms' names, in order */
    int convolutions, direct;
} witness;

static void ran(tern__kernel_observer *observer, const tern__call *call)
{
    witness *w = (witness *)observer;
    if (call->kernel < TERN__CONV || call->kernel > TERN__CONV_WEIGHT_GRAD) return;
    w->convolutions++;
    w->direct += !strcmp(w->device->algorithm, "direct");
    for (const char *c = w->device->algorithm; *c; c++) w->hash = (w->hash ^ (uint64_t)*c) * 1099511628211u;
}

/* ---- a rank ---- */

static tern_module *new_net(tern_rng *rng, tern_error *err)
{
    tern_conv2d_opts opts = tern_conv2d_defaults();
    opts.padding[0] = opts.padding[1] = 1;
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_conv2d_new(4, 32, 3, 3, &opts, rng, err), err);
    for (int i = 0; i < 2; i++) tern_sequential_add(net, tern_conv2d_new(32, 32, 3, 3, &opts, rng, err), err);
    tern_sequential_add(net, tern_global_avg_pool_new(err), err);
    tern_sequential_add(net, tern_linear_new(32, CLASSES, NULL, rng, err), err);
    return net;
}

/* Chooses by time, whatever the environment of the tests says. */
static void open_rank(fixture *f, const tern__bootstrap *boot, tern_error *err)
{
    tern_rng *rng = tern_rng_new(7, err);
    fixture_open(f, boot, new_net(rng, err), NULL, err);
    tern_rng_free(rng);
    tern_device_conv_opts rules = tern_device_conv_defaults();
    rules.exact = rules.deterministic = false;
    tern_device_conv_set(f->dev, &rules, err);
    tern_device_threads_set(f->dev, 1, err);
}

static witness step(fixture *f, int64_t size, tern_error *err)
{
    static _Thread_local float x[2 * 4 * 32 * 32];
    witness w = {.observer = {.ran = ran}, .device = f->dev};
    f->dev->observer = &w.observer;
    for (int i = 0; i < (int)TERN__COUNT(x); i++) x[i] = (float)(i % 17 - 8) / 8;
    tern_tensor *in = tern_tensor_from(f->s, x, TERN_F32, 4, (int64_t[]){2, 4, size, size});
    tern_tensor *y = tern_forward(f->net, f->s, in);
    tern_backward(f->s, tern_cross_entropy(f->s, y, fixture_labels(f, 0, 2), NULL));
    tern_optim_step(f->opt, f->s);
    f->dev->observer = NULL;
    tern_scope_end(f->s, err);
    return w;
}

/* Returns a hash of this rank's choices, independent of their order, and their number in *count. */
static uint64_t learned(const fixture *f, int *count)
{
    static _Thread_local char text[LINES];
    uint64_t sum = 0, hash = 1;
    size_t bytes = tern__choices_write(f->dev, text, sizeof(text));
    *count = 0;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
        if (text[i] != '\n') continue;
        sum += hash;
        hash = 1;
        ++*count;
    }
    return sum;
}

/* Makes rank 0 choose "direct" everywhere from now on, as if it had been the fastest. */
static void take_direct(const fixture *f)
{
    static _Thread_local char text[LINES], changed[LINES];
    size_t used = 0;
    tern__choices_write(f->dev, text, sizeof(text));
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        int head = (int)(strstr(line, "\"choice\":") - line);
        used += (size_t)snprintf(changed + used, LINES - used, "%.*s\"choice\":\"direct\"}\n", head, line);
    }
    tern__choices_read(f->dev, changed, used);
}

/* Gives rank 0 `count` more cases, as if it had met its first case with as many other numbers of threads. */
static void take_many(const fixture *f, int count)
{
    static const char threads[] = " threads 1 ";
    static _Thread_local char text[LINES], changed[LINES];
    size_t used = 0;
    tern__choices_write(f->dev, text, sizeof(text));
    const char *at = strstr(text, threads), *end = strchr(text, '\n');
    for (int i = 0; at && i < count; i++)
        used += (size_t)snprintf(changed + used, LINES - used, "%.*s threads %d %.*s\n", (int)(at - text),
                                 text, 2 + i, (int)(end - at - strlen(threads)), at + strlen(threads));
    tern__choices_read(f->dev, changed, used);
}

/* ---- tests ---- */

/* Compares the ranks after the step in which rank 0 chose, and again after it got choices that it would
 * never make. */
static int told_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    int count;
    (void)arg;
    open_rank(&f, boot, &err);
    witness w = step(&f, 16, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, w.convolutions == 8 && f.dev->follows == (rank != 0));
    uint64_t mine = learned(&f, &count);
    RANK_CHECK(rank, fixture_same(f.world, mine, &err));
    RANK_CHECK(rank, count > 0 || w.direct == 8);          /* 0 on a machine with one algorithm */
    RANK_CHECK(rank, rank == 0 || !count || w.direct < 8); /* the table's choices are others */
    if (rank == 0) take_direct(&f);
    w = step(&f, 16, &err);
    if (rank == 0) RANK_CHECK(rank, w.direct == 8);
    w = step(&f, 16, &err);
    RANK_CHECK(rank, w.direct == 8 && fixture_same(f.world, w.hash, &err));
    for (int64_t size = 8; size <= 12; size += 4) { /* and whenever a new case occurs */
        step(&f, size, &err);
        RANK_CHECK(rank, fixture_same(f.world, learned(&f, &count), &err));
    }
    RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    RANK_CHECK_OK(rank, err);
    fixture_close(&f);
    return 0;
}

static void all_ranks_take_rank_0s_choices(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, told_body, NULL));
}

/* All cases are sent in one round. */
static int many_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    int before, after;
    (void)arg;
    open_rank(&f, boot, &err);
    step(&f, 16, &err);
    learned(&f, &before);
    if (rank == 0) take_many(&f, MANY);
    step(&f, 16, &err);
    uint64_t mine = learned(&f, &after);
    RANK_CHECK(rank, !before || after == before + MANY); /* none on a machine with one algorithm */
    RANK_CHECK(rank, fixture_same(f.world, mine, &err));
    RANK_CHECK_OK(rank, err);
    fixture_close(&f);
    return 0;
}

static void all_choices_of_a_large_network_are_told(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, many_body, NULL));
}

/* Rank 0's table is full: it measures no more and sends nothing, and all ranks compute new cases alike. */
static int full_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    int count;
    (void)arg;
    open_rank(&f, boot, &err);
    step(&f, 16, &err);
    learned(&f, &count);
    if (count > 0 && rank == 0) take_many(&f, TERN__CHOICE_CASES - count);
    step(&f, 16, &err);
    uint64_t mine = learned(&f, &count);
    RANK_CHECK(rank, !count || count == TERN__CHOICE_CASES); /* none on a machine with one algorithm */
    RANK_CHECK(rank, fixture_same(f.world, mine, &err));
    for (int64_t size = 8; size <= 24; size += 4) {
        witness w = step(&f, size, &err);
        RANK_CHECK(rank, w.convolutions == 8 && fixture_same(f.world, w.hash, &err));
        RANK_CHECK(rank, learned(&f, &count) == mine);
    }
    RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    RANK_CHECK_OK(rank, err);
    fixture_close(&f);
    return 0;
}

static void a_full_rank_0_has_nothing_to_tell(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) assert_ranks_ok(ranks_run(world, full_body, NULL));
}

/* Each rank has its own size, and one that changes. */
static int shapes_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    (void)arg;
    open_rank(&f, boot, &err);
    for (int i = 0; i < 9; i++) step(&f, 4 + 3 * rank + (rank + i) % 2, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    fixture_close(&f);
    return 0;
}

static void ranks_with_different_shapes_go_on(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, shapes_body, NULL));
}

/* *last: the rank with the most steps. Rank 0 meets sizes when the others have no more inputs. */
static int join_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    int count;
    const int *last = arg;
    open_rank(&f, boot, &err);
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int i = 0; i < (rank == *last ? 4 : 1); i++) step(&f, 8 + 4 * ((epoch + i) % 3), &err);
        tern_ddp_join(f.ddp, NULL, &err);
        RANK_CHECK_OK(rank, err);
    }
    step(&f, 16, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, fixture_same(f.world, learned(&f, &count), &err));
    fixture_close(&f);
    return 0;
}

static void who_had_no_inputs_hears_of_it_later(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++)
        for (int last = 0; last < world; last++) assert_ranks_ok(ranks_run(world, join_body, &last));
}

/* The loss is of another model, and rank 0 has met a new case in addition. */
static int unused_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    (void)arg;
    open_rank(&f, boot, &err);
    step(&f, 16, &err);
    float x[3] = {1, 2, 3};
    tern_module *other = tern_linear_new(3, CLASSES, NULL, f.rng, &err);
    tern_ddp *ddp = tern_ddp_new(other, f.world, NULL, &err);
    for (int i = 0; i < 2; i++) {
        tern_scope *alone = tern_scope_new(f.dev, NULL, &err);
        int64_t size = 8 + 4 * i;
        if (rank == 0) tern_forward(f.net, alone, tern_randn(alone, f.rng, 4, (int64_t[]){2, 4, size, size}));
        tern_scope_free(alone);
        tern_tensor *in = tern_tensor_from(f.s, x, TERN_F32, 2, (int64_t[]){1, 3});
        tern_backward(f.s, tern_mean(f.s, tern_forward(other, f.s, in)));
        tern_scope_end(f.s, &err);
        RANK_CHECK_OK(rank, err);
    }
    tern_ddp_free(ddp);
    tern_module_free(other);
    fixture_close(&f);
    return 0;
}

static void a_ddp_without_a_loss_tells_nothing(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) assert_ranks_ok(ranks_run(world, unused_body, NULL));
}

static atomic_long requests;

static void *counted(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    atomic_fetch_add(&requests, 1);
    return aligned_alloc(align, tern__align_up(bytes, align));
}

static void give_back(void *block, void *ctx)
{
    (void)ctx;
    free(block);
}

static int warm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f;
    (void)arg;
    open_rank(&f, boot, &err);
    for (int i = 0; i < 6; i++) step(&f, 16, &err);
    long before = atomic_load(&requests);
    for (int i = 6; i < 9; i++) step(&f, 16, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, before > 0 && atomic_load(&requests) == before);
    fixture_close(&f);
    return 0;
}

static void a_warm_step_allocates_nothing(void **state)
{
    (void)state;
    tern__allocator_replace(&(tern_allocator){counted, give_back, NULL});
    ranks r = ranks_run(2, warm_body, NULL);
    tern__allocator_replace(NULL);
    assert_ranks_ok(r);
}

/* Replica 0 measures; the other replicas and the device around them get its choices. */
static void replicas_take_the_first_ones_choices(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture f = {.dev = tern_device_open("cpu", &err), .rng = tern_rng_new(7, &err)};
    tern_device *devices[2];
    tern_device_conv_opts rules = tern_device_conv_defaults();
    rules.exact = rules.deterministic = false;
    for (int i = 0; i < 2; i++) {
        devices[i] = tern_device_open("cpu:0", &err);
        tern_device_conv_set(devices[i], &rules, &err);
    }
    tern_module *net = new_net(f.rng, &err);
    tern_data_parallel_opts opts = tern_data_parallel_defaults();
    opts.devices = devices;
    opts.device_count = 2;
    tern_data_parallel *parallel = tern_data_parallel_new(net, &opts, &err);
    tern_scope *s = f.s = tern_scope_new(f.dev, NULL, &err);
    assert_ok(err);
    float x[4 * 4 * 16 * 16] = {1};
    tern_tensor *in = tern_tensor_from(s, x, TERN_F32, 4, (int64_t[]){4, 4, 16, 16});
    tern_tensor *y = tern_to(s, tern_data_parallel_forward(parallel, s, in), f.dev);
    tern_backward(s, tern_cross_entropy(s, y, fixture_labels(&f, 0, 4), NULL));
    tern_scope_end(s, &err);
    assert_ok(err);
    assert_false(devices[0]->follows);
    assert_true(devices[1]->follows);
    uint64_t serial = tern__choices_serial(devices[0]);
    assert_int_equal(tern__choices_serial(devices[1]), serial);
    assert_int_equal(tern__choices_serial(f.dev), serial);
    int count[3];
    uint64_t first = learned(&(fixture){.dev = devices[0]}, &count[0]);
    assert_true(first == learned(&(fixture){.dev = devices[1]}, &count[1]));
    assert_true(first == learned(&f, &count[2]));
    tern_scope_free(s);
    tern_data_parallel_free(parallel);
    tern_module_free(net);
    for (int i = 0; i < 2; i++) tern_device_close(devices[i]);
    tern_rng_free(f.rng);
    tern_device_close(f.dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_take_rank_0s_choices),
        cmocka_unit_test(all_choices_of_a_large_network_are_told),
        cmocka_unit_test(a_full_rank_0_has_nothing_to_tell),
        cmocka_unit_test(ranks_with_different_shapes_go_on),
        cmocka_unit_test(who_had_no_inputs_hears_of_it_later),
        cmocka_unit_test(a_ddp_without_a_loss_tells_nothing),
        cmocka_unit_test(a_warm_step_allocates_nothing),
        cmocka_unit_test(replicas_take_the_first_ones_choices),
    };
    setenv("TERN_CONV_CACHE", "off", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
