/* test_stream.c - streamed datasets: the order of samples over ranks and workers, and how passes end, resume
 * and fail. */
#include "base/base.h"
#include "check.h"
#include "data/loader/loader_inner.h"

#include <stdatomic.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/state_dict.h>

/* Part p of P has the numbers p, p + P, .. below `length`, in every epoch; a sample's value is 1000 epoch +
 * its number, which is also its label. */
typedef struct counting {
    tern_dataset base;
    int64_t length;
    int64_t fails_at; /* the number that cannot be read; -1: none */
    bool no_cursor;
    atomic_int opened, closed;
    tern__dataset_function hangs_in; /* once, until `named` is posted */
    int64_t hangs_at;                /* the number whose `next` hangs; -1: none */
    atomic_bool hangs;
    sem_t named;
} counting;

static void hang(counting *stream, tern__dataset_function function)
{
    if (stream->hangs_in == function && atomic_exchange(&stream->hangs, false)) sem_wait(&stream->named);
}

typedef struct cursor {
    counting *stream;
    int64_t epoch, number, parts;
} cursor;

static void *counting_open(const tern_dataset *base, int64_t epoch, int64_t part, int64_t parts,
                           tern_error *err)
{
    counting *stream = (counting *)base;
    (void)err;
    if (stream->no_cursor) return NULL;
    hang(stream, TERN__DATASET_OPEN);
    cursor *c = malloc(sizeof(*c));
    *c = (cursor){stream, epoch, part, parts};
    atomic_fetch_add(&stream->opened, 1);
    return c;
}

static int counting_next(void *arg, float *x, void *y, tern_error *err)
{
    cursor *c = arg;
    if (c->number >= c->stream->length) return 0;
    if (c->number == c->stream->hangs_at) hang(c->stream, TERN__DATASET_NEXT);
    if (c->number == c->stream->fails_at) return tern__error_set(err, "counting", TERN_E_IO, "it is torn");
    *x = (float)(1000 * c->epoch + c->number);
    *(int64_t *)y = c->number;
    c->number += c->parts;
    return 1;
}

static void counting_close(void *arg)
{
    cursor *c = arg;
    hang(c->stream, TERN__DATASET_CLOSE);
    atomic_fetch_add(&c->stream->closed, 1);
    free(c);
}

static void counting_init(counting *stream, int64_t length)
{
    memset(stream, 0, sizeof(*stream));
    stream->base = (tern_dataset){
        .ndim = 1, .shape = {1}, .open = counting_open, .next = counting_next, .close = counting_close};
    stream->length = length;
    stream->fails_at = stream->hangs_at = -1;
}

static tern_loader *loader_new(counting *stream, int rank, int ranks, int workers, int64_t batch_size)
{
    tern_error err = {0};
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = batch_size;
    opts.workers = workers;
    opts.rank = rank;
    opts.ranks = ranks;
    tern_loader *loader = tern_loader_new(&stream->base, &opts, &err);
    assert_ok(err);
    assert_int_equal(tern_loader_length(loader), 0);
    return loader;
}

/* The expected batches of a pass: parts are cut into batches, and the parts that have one left give one in
 * turn. */
typedef struct expected {
    int64_t parts, first_part, workers, length, size;
    bool drop_last;
    int64_t given; /* batches compared */
} expected;

/* Writes the next batch's samples to `numbers` and returns how many; 0 at the end. */
static int64_t expected_next(expected *e, int64_t *numbers)
{
    for (int64_t looked = 0; looked < e->workers; looked++) {
        int64_t worker = e->given % e->workers, round = e->given / e->workers, count = 0;
        e->given++;
        for (int64_t i = 0; i < e->size; i++) {
            int64_t number = e->first_part + worker + (round * e->size + i) * e->parts;
            if (number < e->length) numbers[count++] = number;
        }
        if (count == e->size || (count > 0 && !e->drop_last)) return count;
    }
    return 0;
}

static void expect_pass(tern_loader *loader, expected e, int64_t epoch)
{
    tern_error err = {0};
    tern__batch batch;
    int64_t numbers[8];
    for (int64_t count; (count = expected_next(&e, numbers)) > 0;) {
        assert_int_equal(tern__loader_next(loader, &batch, &err), 1);
        assert_int_equal(batch.count, count);
        for (int64_t i = 0; i < count; i++) {
            assert_int_equal(((int64_t *)batch.y)[i], numbers[i]);
            assert_true(batch.x[i] == (float)(1000 * epoch + numbers[i]));
        }
        tern__loader_slot_release(loader, batch.slot);
    }
    assert_int_equal(tern__loader_next(loader, &batch, &err), 0);
    assert_ok(err);
}

static expected rule(const counting *stream, int rank, int ranks, int workers, int64_t size)
{
    int64_t each = workers ? workers : 1;
    return (expected){ranks * each, rank * each, each, stream->length, size, false, 0};
}

static void every_sample_comes_once_over_ranks_and_workers(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int rank = 0; rank < ranks; rank++)
            for (int workers = 0; workers <= 3; workers++)
                for (int64_t length = 0; length <= 40; length += 13) {
                    counting stream;
                    counting_init(&stream, length);
                    tern_loader *loader = loader_new(&stream, rank, ranks, workers, 3);
                    for (int epoch = 0; epoch < 3; epoch++)
                        expect_pass(loader, rule(&stream, rank, ranks, workers, 3), epoch);
                    tern_loader_free(loader);
                    assert_int_equal(stream.opened, 3 * (workers ? workers : 1));
                    assert_int_equal(stream.closed, stream.opened);
                }
}

static void a_batch_that_is_not_full_may_be_dropped(void **state)
{
    (void)state;
    counting stream;
    counting_init(&stream, 16); /* parts of 8: two batches of 3 each, and 2 samples are dropped */
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 3;
    opts.workers = 2;
    opts.drop_last = true;
    tern_loader *loader = tern_loader_new(&stream.base, &opts, NULL);
    expected e = rule(&stream, 0, 1, 2, 3);
    e.drop_last = true;
    expect_pass(loader, e, 0);
    tern_loader_free(loader);
}

static void held_batches_do_not_stop_the_others(void **state)
{
    (void)state;
    counting stream;
    counting_init(&stream, 60);
    tern_loader *loader = loader_new(&stream, 0, 1, 3, 2); /* seven slots */
    tern__batch held[7];
    tern_error err = {0};
    for (int i = 0; i < 7; i++) assert_int_equal(tern__loader_next(loader, &held[i], NULL), 1);
    assert_int_equal(tern__loader_next(loader, &held[0], &err), TERN_E_STATE);
    int batches = 7;
    for (int i = 0; i < 7; i++) tern__loader_slot_release(loader, held[i].slot);
    for (; tern__loader_next(loader, &held[0], NULL) == 1; batches++)
        tern__loader_slot_release(loader, held[0].slot);
    assert_int_equal(batches, 30);
    tern_loader_free(loader);
}

static void a_pass_may_be_left_anywhere(void **state)
{
    (void)state;
    for (int taken = 0; taken < 9; taken++)
        for (int workers = 0; workers < 3; workers++) {
            counting stream;
            counting_init(&stream, 20);
            tern_loader *loader = loader_new(&stream, 0, 1, workers, 2);
            tern__batch batch;
            for (int i = 0; i < taken; i++) {
                assert_int_equal(tern__loader_next(loader, &batch, NULL), 1);
                tern__loader_slot_release(loader, batch.slot);
            }
            tern_loader_free(loader);
            assert_int_equal(stream.closed, stream.opened);
        }
}

static void a_pass_is_taken_up_where_it_was(void **state)
{
    (void)state;
    for (int workers = 0; workers < 4; workers++)
        for (int taken = 0; taken < 12; taken++) {
            counting stream;
            tern_error err = {0};
            counting_init(&stream, 23);
            tern_loader *first = loader_new(&stream, 1, 2, workers, 2);
            tern_loader *second = loader_new(&stream, 1, 2, workers, 2);
            tern__batch batch;
            int64_t epoch = 1, numbers[8];
            expected rest = rule(&stream, 1, 2, workers, 2);
            expect_pass(first, rest, 0);
            for (int i = 0; i < taken && expected_next(&rest, numbers); i++) {
                assert_int_equal(tern__loader_next(first, &batch, NULL), 1);
                tern__loader_slot_release(first, batch.slot);
            }
            tern_object *saved = tern_loader_state_dict(first, &err);
            tern__loader_next(second, &batch, NULL); /* within another pass */
            tern__loader_slot_release(second, batch.slot);
            assert_int_equal(tern_loader_state_dict_load(second, saved, &err), TERN_OK);
            expect_pass(second, rest, epoch);
            expect_pass(second, rule(&stream, 1, 2, workers, 2), epoch + 1);
            tern_object_free(saved);
            tern_loader_free(first);
            tern_loader_free(second);
            assert_int_equal(stream.closed, stream.opened);
        }
}

static void an_error_ends_its_part_and_no_other(void **state)
{
    (void)state;
    counting stream;
    counting_init(&stream, 12);
    stream.fails_at = 5; /* the third of part 1: 1, 3, 5 */
    tern_loader *loader = loader_new(&stream, 0, 1, 2, 2);
    tern__batch batch;
    int64_t seen = 0, failed = 0;
    for (int status = 1; status;) {
        tern_error err = {0};
        status = tern__loader_next(loader, &batch, &err);
        if (status < 0) {
            assert_int_equal(err.code, TERN_E_IO);
            assert_string_equal(err.text, "batch 3, sample 0: it is torn");
            failed++;
        }
        if (status > 0) {
            seen += batch.count;
            tern__loader_slot_release(loader, batch.slot);
        }
    }
    assert_int_equal(failed, 1);
    assert_int_equal(seen, 6 + 2);
    assert_int_equal(stream.closed, stream.opened);
    tern_loader_free(loader);
}

static void wrong_labels_and_no_cursor_are_named(void **state)
{
    (void)state;
    counting stream;
    tern_error err = {0};
    tern__batch batch;
    counting_init(&stream, 4);
    stream.base.classes = 1;
    tern_loader *loader = loader_new(&stream, 0, 1, 0, 4);
    assert_int_equal(tern__loader_next(loader, &batch, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "batch 0, sample 1: label is 1, expected [0, 0]");
    tern_loader_free(loader);
    counting_init(&stream, 4);
    stream.no_cursor = true;
    err = (tern_error){0};
    loader = loader_new(&stream, 0, 1, 0, 4);
    assert_int_equal(tern__loader_next(loader, &batch, &err), TERN_E_INVALID);
    assert_string_equal(err.text, "batch 0, sample 0: the stream's open returned NULL");
    tern_loader_free(loader);
}

static void a_stream_has_its_own_order(void **state)
{
    (void)state;
    counting stream;
    tern_error err = {0};
    counting_init(&stream, 4);
    tern_loader_opts opts = tern_loader_defaults();
    opts.shuffle = true;
    assert_null(tern_loader_new(&stream.base, &opts, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_string_equal(err.text, "a stream comes in its own order: expected no sampler and no shuffle");
    opts = tern_loader_defaults();
    opts.rank = 2;
    opts.ranks = 2;
    err = (tern_error){0};
    assert_null(tern_loader_new(&stream.base, &opts, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    assert_string_equal(err.text, "rank is 2, expected [0, 1] for 2 ranks");
}

static char named[256];

static void note_and_free(tern_log_level level, const char *text, void *sem)
{
    if (level != TERN_LOG_WARN) return;
    strcat(named, text);
    sem_post(sem);
}

/* Reads a pass of which a function hangs once; `taken` batches were used before it was resumed. */
static void expect_name(tern__dataset_function function, int64_t hangs_at, int workers, int64_t taken,
                        const char *text)
{
    counting stream;
    char whole[256];
    counting_init(&stream, 12);
    stream.hangs_in = function;
    stream.hangs_at = hangs_at;
    sem_init(&stream.named, 0, 0);
    tern_loader *loader = loader_new(&stream, 0, 1, workers, 2);
    loader->patience_s = 0.05;
    *named = '\0';
    atomic_store(&stream.hangs, true);
    tern_log_set(note_and_free, &stream.named);
    tern__loader_place_set(loader, (tern__loader_place){0, 2 * taken});
    tern__batch batch;
    while (tern__loader_next(loader, &batch, NULL) == 1) tern__loader_slot_release(loader, batch.slot);
    tern_log_set(NULL, NULL);
    snprintf(whole, sizeof(whole), "no batch came for 0.05 s: the dataset's %s", text);
    assert_string_equal(named, whole);
    tern_loader_free(loader);
    assert_int_equal(stream.closed, stream.opened);
}

static void whatever_hangs_is_named(void **state)
{
    (void)state;
    for (int workers = 0; workers <= 1; workers++) {
        expect_name(TERN__DATASET_OPEN, -1, workers, 0, "open has not returned for part 0");
        expect_name(TERN__DATASET_NEXT, 5, workers, 0, "next has not returned sample 1 of batch 2");
        expect_name(TERN__DATASET_NEXT, 1, workers, 2,
                    "next has not returned sample 1 of part 0, which is to be skipped");
        expect_name(TERN__DATASET_CLOSE, -1, workers, 0, "close has not returned for part 0");
    }
    expect_name(TERN__DATASET_NEXT, 7, 2, 0, "next has not returned sample 1 of batch 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_comes_once_over_ranks_and_workers),
        cmocka_unit_test(a_batch_that_is_not_full_may_be_dropped),
        cmocka_unit_test(held_batches_do_not_stop_the_others),
        cmocka_unit_test(a_pass_may_be_left_anywhere),
        cmocka_unit_test(a_pass_is_taken_up_where_it_was),
        cmocka_unit_test(an_error_ends_its_part_and_no_other),
        cmocka_unit_test(wrong_labels_and_no_cursor_are_named),
        cmocka_unit_test(a_stream_has_its_own_order),
        cmocka_unit_test(whatever_hangs_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
