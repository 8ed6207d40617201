/* test_resume.c - a run that is killed and resumed, at any step, once or several times, ends with the same
 * bits as one that was not; also with one rank fewer and without a group. */
#include "checkpoint/trainee.h"

#include <sys/mman.h>

enum { STEPS = 37, EVERY = 5, MAX_WORLD = 3 };

/* The ranks' results, in shared memory. */
typedef struct result {
    uint64_t hash[MAX_WORLD];
    int64_t epoch[MAX_WORLD];
} result;

typedef struct job {
    trainee_opts opts;
    int64_t kill_at; /* all ranks die with SIGKILL in this step; -1: none */
    int killer;      /* only this rank dies, and the others lose a peer; -1: all */
    result *out;
} job;

static int train(int rank, const tern__bootstrap *boot, job *j)
{
    trainee t;
    trainee_open(&t, boot, &j->opts);
    RANK_CHECK_OK(rank, t.err);
    trainee_load(&t, NULL);
    RANK_CHECK_OK(rank, t.err);
    while (t.step < STEPS && !t.err.code) {
        trainee_step(&t);
        if (t.step == j->kill_at && (j->killer < 0 || j->killer == rank)) raise(SIGKILL);
        if (t.step % EVERY == 0) trainee_save(&t);
    }
    if (t.err.code == TERN_E_PEER && j->killer >= 0) _exit(3);
    RANK_CHECK_OK(rank, t.err);
    j->out->hash[rank] = trainee_hash(&t);
    j->out->epoch[rank] = t.epoch;
    return trainee_close(&t);
}

static int train_body(int rank, const tern__bootstrap *boot, void *arg)
{
    return train(rank, boot, arg);
}

static int alone_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)boot;
    return train(rank, NULL, arg);
}

static result run_whole(int world, ranks_body body, trainee_opts opts)
{
    folder f = open_folder();
    opts.dir = f.path;
    job j = {.opts = opts, .kill_at = -1, .killer = -1, .out = share_memory(sizeof(result))};
    assert_ranks_ok(ranks_run(world, body, &j));
    result whole = *j.out;
    munmap(j.out, sizeof(*j.out));
    close_folder(&f);
    return whole;
}

/* Runs to the end, after being killed in each of these steps in turn; 0 ends the list. */
static void expect_same(const result *whole, int world, ranks_body body, trainee_opts opts, const int *kills,
                        int killer)
{
    folder f = open_folder();
    opts.dir = f.path;
    job j = {.opts = opts, .killer = killer, .out = share_memory(sizeof(result))};
    for (; *kills; kills++) {
        j.kill_at = *kills;
        ranks r = ranks_run(world, body, &j);
        assert_int_equal(r.status[killer < 0 ? 0 : killer], 128 + SIGKILL);
    }
    j.kill_at = -1;
    assert_ranks_ok(ranks_run(world, body, &j));
    for (int rank = 0; rank < world; rank++) {
        assert_int_equal(j.out->epoch[rank], whole->epoch[rank]);
        if (j.out->hash[rank] != whole->hash[rank])
            fail_msg("rank %d of %d ended with other weights or numbers", rank, world);
    }
    munmap(j.out, sizeof(*j.out));
    close_folder(&f);
}

/* Kills within the first epoch (14 steps alone, 7 on two ranks), at an epoch's boundary, at a save, after it,
 * before the first one, and twice without a step in between. */
static const int kills[][4] = {{7}, {14}, {15}, {3}, {22, 33}, {6, 6, 36}};

static void it_ends_with_the_same_bits(void **state)
{
    (void)state;
    for (int adam = 0; adam < 2; adam++)
        for (int world = 1; world <= 2; world++) {
            trainee_opts opts = {.adam = adam};
            result whole = run_whole(world, train_body, opts);
            for (size_t i = adam; i < TERN__COUNT(kills); i += 2)
                expect_same(&whole, world, train_body, opts, kills[i], -1);
        }
}

static void without_a_group_too(void **state)
{
    (void)state;
    trainee_opts opts = {.adam = true};
    result whole = run_whole(1, alone_body, opts);
    expect_same(&whole, 1, alone_body, opts, kills[4], -1);
}

static void with_a_sharded_optimizer_too(void **state)
{
    (void)state;
    trainee_opts opts = {.adam = true, .shard = true};
    result whole = run_whole(3, train_body, opts);
    expect_same(&whole, 3, train_body, opts, kills[4], -1);
}

static void with_a_moving_momentum_too(void **state)
{
    (void)state;
    for (int adam = 0; adam < 2; adam++) {
        trainee_opts opts = {.adam = adam, .cycle = true};
        result whole = run_whole(1, alone_body, opts);
        expect_same(&whole, 1, alone_body, opts, kills[4], -1);
    }
}

/* 16-bit parameters are f32 in the file, next to their master weights; the loss scale has been reduced. */
static void in_mixed_precision_too(void **state)
{
    (void)state;
    trainee_opts opts = {.adam = true, .amp = true};
    result whole = run_whole(2, train_body, opts);
    expect_same(&whole, 2, train_body, opts, kills[4], -1);
    opts.shard = true;
    whole = run_whole(2, train_body, opts);
    expect_same(&whole, 2, train_body, opts, kills[5], -1);
}

/* When one rank is lost, the others return an error. */
static void one_rank_may_be_killed(void **state)
{
    (void)state;
    trainee_opts opts = {0};
    result whole = run_whole(2, train_body, opts);
    for (int killer = 0; killer < 2; killer++) expect_same(&whole, 2, train_body, opts, kills[4], killer);
}

/* Rewrites every case in the file as if "direct" had been the fastest. A machine with a single algorithm has
 * no cases. */
static void prefer_direct(const char *path)
{
    static const char key[] = "\"choice\":\"";
    static char text[1 << 16], changed[1 << 16];
    FILE *file = fopen(path, "r");
    if (!file) return;
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    char *next = text;
    size_t used = 0;
    for (char *at; (at = strstr(next, key)); next = strchr(at + strlen(key), '"'))
        used += (size_t)snprintf(changed + used, sizeof(changed) - used, "%.*s%sdirect", (int)(at - next),
                                 next, key);
    assert_true(used > 0);
    file = fopen(path, "w");
    fprintf(file, "%s%s", changed, next);
    fclose(file);
}

/* Rank 0 gets choices from the file that differ from the fixed table, with which the other ranks start. The
 * last batch of an epoch is smaller, so it is a case of its own. */
static void with_choices_of_a_clock_too(void **state)
{
    (void)state;
    char path[96];
    folder cache = open_folder();
    snprintf(path, sizeof(path), "%s/conv.jsonl", cache.path);
    setenv("TERN_CONV_CACHE", path, 1);
    trainee_opts opts = {.conv = true};
    run_whole(2, train_body, opts);
    prefer_direct(path);
    result whole = run_whole(2, train_body, opts);
    for (size_t i = 0; i < TERN__COUNT(kills); i++) expect_same(&whole, 2, train_body, opts, kills[i], -1);
    unsetenv("TERN_CONV_CACHE");
    close_folder(&cache);
}

/* Kills at a random step. */
static void at_any_step(void **state)
{
    (void)state;
    trainee_opts opts = {.adam = true};
    result whole = run_whole(2, train_body, opts);
    int at[2] = {1 + (int)randombytes_uniform(STEPS - 1), 0};
    print_message("killed at step %d\n", at[0]);
    expect_same(&whole, 2, train_body, opts, at, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_ends_with_the_same_bits),   cmocka_unit_test(without_a_group_too),
        cmocka_unit_test(with_a_sharded_optimizer_too), cmocka_unit_test(with_a_moving_momentum_too),
        cmocka_unit_test(in_mixed_precision_too),       cmocka_unit_test(one_rank_may_be_killed),
        cmocka_unit_test(with_choices_of_a_clock_too),  cmocka_unit_test(at_any_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
