/* test_share.c - a parameter with two names under a ddp: it is reduced once, is the same on all ranks, and
 * gets the values of one process on all samples. */
#include "parallel/ddp_fixture.h"

#include <tern/data_parallel.h>

#define WORDS   11
#define SIZE    6
#define LETTERS 12 /* on all ranks together */
#define STEPS   15

/* The decoder uses the encoder's weight, and the two inner layers are the same module. */
static tern_module *new_model(tern_rng *rng, tern_error *err)
{
    tern_module *model = tern_sequential_new(err), *second, *decoder;
    tern_module_add(model, "encoder", tern_embedding_new(WORDS, SIZE, NULL, rng, err), err);
    tern_module_add(model, "first", tern_linear_new(SIZE, SIZE, NULL, rng, err), err);
    tern_module_add(model, "tanh", tern_tanh_new(err), err);
    second = tern_module_add(model, "second", tern_linear_new(SIZE, SIZE, NULL, rng, err), err);
    decoder = tern_module_add(model, "decoder", tern_linear_new(SIZE, WORDS, NULL, rng, err), err);
    tern_parameter_share(decoder, "weight", tern_state_find(model, "encoder.weight"), err);
    tern_parameter_share(second, "weight", tern_state_find(model, "first.weight"), err);
    tern_parameter_share(second, "bias", tern_state_find(model, "first.bias"), err);
    return model;
}

static tern_tensor *words(fixture *f, int step, int first, int count)
{
    int64_t x[LETTERS] = {0};
    for (int i = 0; i < count; i++)
        x[i] = (int64_t)((uint32_t)(step * 97 + first + i) * 2654435761u >> 16) % WORDS;
    return tern_tensor_from(f->s, x, TERN_I64, 1, (int64_t[]){count});
}

static void train(fixture *f, int step, int first, int count, tern_error *err)
{
    tern_tensor *y = tern_forward(f->net, f->s, words(f, step, first, count));
    tern_backward(f->s, tern_cross_entropy(f->s, y, words(f, step, first + 1, count), NULL));
    tern_optim_step(f->opt, f->s);
    tern_scope_end(f->s, err);
}

typedef struct how {
    bool adam;
    const char *ignore; /* the name of a parameter that each rank keeps to itself, or NULL */
} how;

static void choose_adam(fixture *f, bool adam, tern_error *err)
{
    if (!adam) return;
    tern_optim_free(f->opt);
    f->opt = tern_adam_new(f->net, NULL, err);
    tern_optim_lr_set(f->opt, 0, 0.01);
}

static int learn_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const how *h = arg;
    tern_error err = {0};
    fixture f, alone;
    tern_rng *rng = tern_rng_new((uint64_t)rank + 7, &err);
    fixture_open(&f, boot, new_model(rng, &err), NULL, &err);
    fixture_open_alone_with(&alone, new_model, &err);
    tern_device_threads_set(f.dev, 1, &err); /* more threads would only spin on a busy machine */
    tern_device_threads_set(alone.dev, 1, &err);
    choose_adam(&f, h->adam, &err);
    choose_adam(&alone, h->adam, &err);
    RANK_CHECK_OK(rank, err);
    size_t bytes = 4 * (WORDS * SIZE + SIZE * SIZE + SIZE + WORDS);
    RANK_CHECK(rank, f.ddp->leaf_count == 4 && tern_ddp_bucket_bytes(f.ddp, 0) == bytes);
    int share = LETTERS / boot->world;
    for (int step = 0; step < STEPS; step++) {
        train(&f, step, rank * share, share, &err);
        train(&alone, step, 0, LETTERS, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, fixture_difference(f.net, alone.net) < 1e-5);
    }
    RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    fixture_close(&f);
    fixture_close(&alone);
    tern_rng_free(rng);
    return 0;
}

static void ranks_learn_what_one_process_learns(void **state)
{
    (void)state;
    for (int adam = 0; adam < 2; adam++)
        for (int world = 1; world <= 4; world++)
            assert_ranks_ok(ranks_run(world, learn_body, &(how){.adam = adam}));
}

/* It may be ignored by either name, and each rank keeps its own. */
static int ignore_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const how *h = arg;
    tern_error err = {0};
    fixture f;
    tern_rng *rng = tern_rng_new((uint64_t)rank + 7, &err);
    tern_module *model = new_model(rng, &err);
    tern_tensor *weight = tern_state_find(model, "encoder.weight");
    float before[WORDS * SIZE], after[WORDS * SIZE];
    tern_tensor_read(weight, before, sizeof(before), &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.ignore = &h->ignore;
    opts.ignore_count = 1;
    fixture_open(&f, boot, model, &opts, &err);
    RANK_CHECK_OK(rank, err);
    tern_tensor_read(weight, after, sizeof(after), &err);
    RANK_CHECK(rank, f.ddp->leaf_count == 3 && !memcmp(before, after, sizeof(before)));
    train(&f, 0, rank * 3, 3, &err);
    RANK_CHECK_OK(rank, err);
    fixture_close(&f);
    tern_rng_free(rng);
    return 0;
}

static void it_is_ignored_under_any_name(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        assert_ranks_ok(ranks_run(world, ignore_body, &(how){.ignore = "encoder.weight"}));
        assert_ranks_ok(ranks_run(world, ignore_body, &(how){.ignore = "decoder.weight"}));
    }
}

/* ---- replicas, which share parameters in any case, sum the gradients of all uses ---- */

static void learn_alone(fixture *alone, int replicas, tern_error *err)
{
    tern_device *devices[3];
    tern_data_parallel_opts opts = tern_data_parallel_defaults();
    fixture_open_alone_with(alone, new_model, err);
    for (int i = 0; i < replicas; i++) devices[i] = tern_device_open("cpu:0", err);
    opts.devices = devices;
    opts.device_count = replicas;
    tern_data_parallel *parallel = replicas ? tern_data_parallel_new(alone->net, &opts, err) : NULL;
    for (int step = 0; step < STEPS; step++) {
        tern_tensor *x = words(alone, step, 0, LETTERS);
        tern_tensor *y = parallel ? tern_data_parallel_forward(parallel, alone->s, x)
                                  : tern_forward(alone->net, alone->s, x);
        y = tern_to(alone->s, y, alone->dev);
        tern_backward(alone->s, tern_cross_entropy(alone->s, y, words(alone, step, 1, LETTERS), NULL));
        tern_optim_step(alone->opt, alone->s);
        tern_scope_end(alone->s, err);
    }
    tern_data_parallel_free(parallel);
    tern_scope_free(alone->s);
    alone->s = NULL;
    for (int i = 0; i < replicas; i++) tern_device_close(devices[i]);
}

static void replicas_learn_what_one_device_learns(void **state)
{
    (void)state;
    tern_error err = {0};
    fixture one, some;
    learn_alone(&one, 0, &err);
    for (int replicas = 1; replicas <= 3; replicas++) {
        learn_alone(&some, replicas, &err);
        assert_ok(err);
        assert_true(fixture_difference(one.net, some.net) < 1e-5);
        fixture_close(&some);
    }
    fixture_close(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_learn_what_one_process_learns),
        cmocka_unit_test(it_is_ignored_under_any_name),
        cmocka_unit_test(replicas_learn_what_one_device_learns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
