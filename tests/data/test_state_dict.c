/* test_state_dict.c - a resumed loader hands out what the first one would have: on the same number of ranks,
 * on another one, and with another batch size. Batches that were fetched ahead are neither lost nor seen
 * twice. */
#include "check.h"

#include "data/loader/loader.h"
#include "ledger.h"
#include "tensor/tensor.h"

#include <string.h>

enum { SAMPLES = 103, MAX_RANKS = 4 };

static int label_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                     tern_error *err)
{
    (void)base;
    (void)err;
    *x = (float)epoch;
    *(int64_t *)y = index;
    return TERN_OK;
}

static tern_dataset labels = {.length = SAMPLES, .ndim = 1, .shape = {1}, .get = label_get};

/* A rank's sampler and loader. */
typedef struct rank {
    tern_sampler *sampler;
    tern_loader *loader;
} rank;

static rank open_rank_with(int number, int world, int64_t block, int64_t batch_size, int workers)
{
    tern_error err = {0};
    tern_distributed_opts d = tern_distributed_defaults();
    d.seed = 7;
    d.block = block;
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = batch_size;
    opts.workers = workers;
    rank r = {.sampler = tern_distributed_sampler_new(SAMPLES, world, number, &d, &err)};
    opts.sampler = r.sampler;
    r.loader = tern_loader_new(&labels, &opts, &err);
    assert_ok(err);
    return r;
}

static rank open_rank(int number, int world, int64_t batch_size, int workers)
{
    return open_rank_with(number, world, 1, batch_size, workers);
}

static void close_rank(rank *r)
{
    tern_loader_free(r->loader);
    tern_sampler_free(r->sampler);
}

/* Gets the next batch's samples in out[0..), and its epoch. Returns their number; 0 at the end of a pass. */
static int64_t next(rank *r, int64_t *out, int64_t *epoch)
{
    tern_error err = {0};
    tern__batch batch;
    int status = tern__loader_next(r->loader, &batch, &err);
    assert_ok(err);
    if (!status) return 0;
    memcpy(out, batch.y, (size_t)batch.count * sizeof(*out));
    *epoch = (int64_t)batch.x[0];
    tern__loader_slot_release(r->loader, batch.slot);
    return batch.count;
}

static void hand_over(rank *from, rank *to)
{
    tern_error err = {0};
    tern_object *state = tern_loader_state_dict(from->loader, &err);
    tern_loader_state_dict_load(to->loader, state, &err);
    tern_object_free(state);
    assert_ok(err);
}

static void expect_same_way(rank *a, rank *b, int batches)
{
    int64_t x[SAMPLES], y[SAMPLES], epoch_x = -1, epoch_y = -1;
    for (int i = 0; i < batches; i++) {
        int64_t count = next(a, x, &epoch_x);
        assert_int_equal(next(b, y, &epoch_y), count);
        assert_memory_equal(x, y, (size_t)count * sizeof(*x));
        if (count) assert_int_equal(epoch_x, epoch_y);
    }
}

/* Stops after any number of batches in two passes: before the first, in the middle, after the last but before
 * asking for the end, and between passes. */
static void the_next_batch_is_the_next_batch(void **state)
{
    (void)state;
    for (int workers = 0; workers <= 3; workers++)
        for (int taken = 0; taken < 32; taken++) {
            int64_t out[SAMPLES], epoch;
            rank a = open_rank(1, 2, 4, workers), b = open_rank(1, 2, 4, workers);
            for (int i = 0; i < taken; i++) next(&a, out, &epoch);
            hand_over(&a, &b);
            expect_same_way(&a, &b, 20);
            close_rank(&a);
            close_rank(&b);
        }
}

/* Also loads within another pass with batches fetched ahead, and twice. */
static void a_pass_under_way_is_given_up(void **state)
{
    (void)state;
    int64_t out[SAMPLES], epoch;
    rank a = open_rank(0, 2, 4, 2), b = open_rank(0, 2, 4, 2);
    for (int i = 0; i < 19; i++) next(&a, out, &epoch);
    for (int i = 0; i < 3; i++) next(&b, out, &epoch);
    hand_over(&a, &b);
    expect_same_way(&a, &b, 2);
    hand_over(&a, &b);
    hand_over(&b, &a);
    expect_same_way(&a, &b, 30);
    close_rank(&a);
    close_rank(&b);
}

/* What all ranks of `from` saw before and those of `to` see after makes up the epoch: each sample at least
 * once, and more often only where the samplers' padding and the division's remainder repeat some. */
static void expect_each_sample(int from, int to, int64_t size_from, int64_t size_to, int taken)
{
    int seen[SAMPLES] = {0}, total = 0;
    int64_t out[SAMPLES], epoch, count;
    rank before[MAX_RANKS], after[MAX_RANKS];
    for (int r = 0; r < from; r++) {
        before[r] = open_rank(r, from, size_from, 1);
        for (int i = 0; i < taken; i++)
            for (count = next(&before[r], out, &epoch); count > 0; count--) seen[out[count - 1]]++;
    }
    for (int r = 0; r < to; r++) {
        after[r] = open_rank(r, to, size_to, 1);
        hand_over(&before[0], &after[r]);
        while ((count = next(&after[r], out, &epoch)) > 0)
            for (; count > 0; count--) seen[out[count - 1]]++;
    }
    for (int i = 0; i < SAMPLES; i++) {
        assert_true(seen[i] >= 1);
        total += seen[i];
    }
    assert_in_range(total, SAMPLES, SAMPLES + 2 * MAX_RANKS);
    for (int r = 0; r < from; r++) close_rank(&before[r]);
    for (int r = 0; r < to; r++) close_rank(&after[r]);
}

static void other_ranks_and_batches_go_on_there(void **state)
{
    (void)state;
    for (int from = 1; from <= MAX_RANKS; from++)
        for (int to = 1; to <= MAX_RANKS; to++)
            for (int taken = 1; taken < 9; taken += 3) {
                expect_each_sample(from, to, 3, 3, taken);
                expect_each_sample(from, to, 3, 5, taken);
            }
}

/* Ranks that share a step in blocks go on, on any number of them, with the same samples in the same step. */
static void blocks_go_on_in_the_same_steps(void **state)
{
    (void)state;
    enum { STEP = 12, STEPS = 9 };
    static const int worlds[STEPS] = {4, 2, 2, 1, 3, 4, 1, 2, 4};
    int64_t whole[SAMPLES + STEP], out[SAMPLES], epoch;
    rank alone = open_rank_with(0, 1, STEP, STEP, 1), ranks[MAX_RANKS], before = {0};
    for (int step = 0; step < STEPS; step++) {
        int world = worlds[step], block = STEP / world;
        assert_int_equal(next(&alone, whole, &epoch), STEP);
        for (int r = 0; r < world; r++) {
            ranks[r] = open_rank_with(r, world, block, block, 1);
            if (step) hand_over(&before, &ranks[r]);
            assert_int_equal(next(&ranks[r], out, &epoch), block);
            assert_memory_equal(out, whole + r * block, (size_t)block * sizeof(*out));
        }
        if (step) close_rank(&before);
        before = ranks[0];
        for (int r = 1; r < world; r++) close_rank(&ranks[r]);
    }
    close_rank(&before);
    close_rank(&alone);
}

/* The order is the saved one, whatever seed the new sampler has. */
static void the_seed_is_the_saved_one(void **state)
{
    (void)state;
    tern_error err = {0};
    int64_t out[SAMPLES], epoch;
    rank a = open_rank(0, 2, 4, 0);
    tern_distributed_opts d = tern_distributed_defaults();
    d.seed = 8;
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 4;
    rank b = {.sampler = tern_distributed_sampler_new(SAMPLES, 2, 0, &d, &err)};
    opts.sampler = b.sampler;
    b.loader = tern_loader_new(&labels, &opts, &err);
    assert_ok(err);
    next(&a, out, &epoch);
    hand_over(&a, &b);
    expect_same_way(&a, &b, 20);
    close_rank(&a);
    close_rank(&b);
}

/* A last batch that is not full does not count as if it were. */
static void the_position_ends_with_the_samples(void **state)
{
    (void)state;
    tern_error err = {0};
    int64_t out[SAMPLES], epoch, position = 0;
    rank r = open_rank(0, 1, 10, 0);
    for (int64_t taken = 0; taken < SAMPLES; taken += next(&r, out, &epoch)) continue;
    tern_object *saved = tern_loader_state_dict(r.loader, &err);
    tern_object_to_int(tern_object_get(saved, "position"), &position, &err);
    assert_ok(err);
    assert_int_equal(position, SAMPLES);
    tern_object_free(saved);
    close_rank(&r);
}

static void the_last_batch_may_be_dropped(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 10;
    opts.drop_last = true;
    tern_loader *a = tern_loader_new(&labels, &opts, &err), *b = tern_loader_new(&labels, &opts, &err);
    tern__batch batch;
    for (int i = 0; i < 9; i++) {
        assert_int_equal(tern__loader_next(a, &batch, &err), 1);
        tern__loader_slot_release(a, batch.slot);
    }
    tern_object *saved = tern_loader_state_dict(a, &err);
    tern_loader_state_dict_load(b, saved, &err);
    assert_int_equal(tern__loader_next(b, &batch, &err), 1);
    assert_int_equal(((int64_t *)batch.y)[0], 90);
    tern__loader_slot_release(b, batch.slot);
    assert_int_equal(tern__loader_next(b, &batch, &err), 0);
    assert_ok(err);
    tern_object_free(saved);
    tern_loader_free(a);
    tern_loader_free(b);
}

/* ---- states that do not fit ---- */

static void expect_error(int got, tern_error *err, int code, const char *text)
{
    if (got != code || !strstr(err->text, text))
        fail_msg("expected %s with \"%s\", got %s: %s", tern_status_name(code), text, tern_status_name(got),
                 err->text);
    *err = (tern_error){0};
}

static int load_with(tern_loader *loader, const char *key, tern_object *value, tern_error *err)
{
    tern_object *state = tern_loader_state_dict(loader, NULL);
    tern_object_set(state, key, value, NULL);
    int status = tern_loader_state_dict_load(loader, state, err);
    tern_object_free(state);
    return status;
}

static void what_does_not_fit_is_an_error(void **state)
{
    (void)state;
    tern_error err = {0};
    rank r = open_rank(0, 1, 4, 0);
    tern_object *none = tern_object_none(NULL), *empty = tern_object_dict(NULL);
    expect_error(load_with(r.loader, "length", tern_object_int(5, NULL), &err), &err, TERN_E_INVALID,
                 "for 5 samples");
    expect_error(load_with(r.loader, "shuffle", tern_object_bool(false, NULL), &err), &err, TERN_E_INVALID,
                 "its own order");
    expect_error(load_with(r.loader, "position", tern_object_int(-1, NULL), &err), &err, TERN_E_RANGE,
                 "\"position\"");
    expect_error(load_with(r.loader, "epoch", tern_object_float(1.5, NULL), &err), &err, TERN_E_DTYPE,
                 "\"epoch\"");
    expect_error(load_with(r.loader, "shuffle", tern_object_none(NULL), &err), &err, TERN_E_DTYPE,
                 "\"shuffle\"");
    expect_error(tern_loader_state_dict_load(r.loader, empty, &err), &err, TERN_E_INVALID,
                 "\"epoch\" is missing");
    expect_error(tern_loader_state_dict_load(r.loader, none, &err), &err, TERN_E_INVALID, "expected a dict");
    expect_error(tern_loader_state_dict_load(NULL, none, &err), &err, TERN_E_INVALID, "NULL");
    assert_null(tern_loader_state_dict(NULL, &err));
    expect_error(err.code, &err, TERN_E_INVALID, "NULL");
    tern_object_free(none);
    tern_object_free(empty);
    close_rank(&r);
}

static void out_of_memory_is_told(void **state)
{
    (void)state;
    rank r = open_rank(0, 1, 4, 0);
    tern_object *made = NULL;
    for (int at = 1; !made; at++) {
        tern_error err = {0};
        ledger books = {.refuse_at = at};
        ledger_open(&books);
        made = tern_loader_state_dict(r.loader, &err);
        assert_int_equal(err.code, made ? TERN_OK : TERN_E_MEMORY);
        tern_object_free(made);
        ledger_close(&books);
    }
    close_rank(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_batch_is_the_next_batch),
        cmocka_unit_test(a_pass_under_way_is_given_up),
        cmocka_unit_test(other_ranks_and_batches_go_on_there),
        cmocka_unit_test(blocks_go_on_in_the_same_steps),
        cmocka_unit_test(the_seed_is_the_saved_one),
        cmocka_unit_test(the_position_ends_with_the_samples),
        cmocka_unit_test(the_last_batch_may_be_dropped),
        cmocka_unit_test(what_does_not_fit_is_an_error),
        cmocka_unit_test(out_of_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
