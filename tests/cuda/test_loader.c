/* Loaders for devices with memory of their own, on the CUDA that the CPU emulates, whose copies beside the
 * step are done as late as events allow: batches are those of the CPU, and a warm pass waits for nothing. */
#include "gpus.h"
#include "ledger.h"
#include "spy.h"

#include "data/loader/loader_inner.h"
#include "tensor/tensor.h"

#include <string.h>
#include <time.h>

enum { LENGTH = 29, VALUES = 2 * 3 * 5, SPOTS = 3 * 5, BATCH = 4, FAILING = 13 };

/* Sample i of epoch e is (2, 3, 5) values and a label, or a map of (3, 5) bytes, all of them of e and i. As a
 * stream, part p of P are those with i % P = p, of which there are fewer the larger p is. */
typedef struct sample_set {
    tern_dataset base;
    bool fails; /* at one sample */
} sample_set;

static int fill_sample(const sample_set *set, int64_t epoch, int64_t i, float *x, void *y, tern_error *err)
{
    if (spy_is_read(x) || spy_is_read(y))
        return tern__error_set(err, "set", TERN_E_STATE, "it is being read");
    for (int j = 0; j < VALUES; j++) x[j] = (float)(10000 * epoch + 100 * i + j);
    for (int j = 0; j < SPOTS && set->base.target_ndim; j++) ((uint8_t *)y)[j] = (uint8_t)(epoch + 7 * i + j);
    if (!set->base.target_ndim) *(int64_t *)y = 1000 * epoch + i;
    return TERN_OK;
}

static int get(const tern_dataset *base, int64_t epoch, int64_t i, float *x, void *y, tern_error *err)
{
    const sample_set *set = (const sample_set *)base;
    if (set->fails && i == FAILING) return tern__error_set(err, "set", TERN_E_IO, "it is torn");
    return fill_sample(set, epoch, i, x, y, err);
}

typedef struct reading {
    const sample_set *set;
    int64_t epoch, next, step, end;
} reading;

static void *open_part(const tern_dataset *base, int64_t epoch, int64_t part, int64_t parts, tern_error *err)
{
    (void)err;
    reading *r = malloc(sizeof(*r));
    *r = (reading){(const sample_set *)base, epoch, part, parts, LENGTH - 5 * part};
    return r;
}

static int next(void *cursor, float *x, void *y, tern_error *err)
{
    reading *r = cursor;
    if (r->next >= r->end) return 0;
    int status = fill_sample(r->set, r->epoch, r->next, x, y, err);
    r->next += r->step;
    return status ? status : 1;
}

/* ---- a loader, and the same one for the CPU ---- */

typedef struct feed {
    tern_error err;
    sample_set set;
    tern_device *device, *cpu;
    tern_scope *scope, *cpu_scope;
    tern_loader *loader, *oracle;
    spy spy;
} feed;

typedef struct kind {
    int workers, prefetch;
    bool maps, stream, fails;
} kind;

static void open_feed(feed *f, kind k)
{
    memset(f, 0, sizeof(*f));
    tern_dataset base = {.length = LENGTH, .ndim = 3, .shape = {2, 3, 5}, .get = get};
    if (k.stream)
        base = (tern_dataset){.ndim = 3, .shape = {2, 3, 5}, .open = open_part, .next = next, .close = free};
    f->set = (sample_set){.base = base, .fails = k.fails};
    if (k.maps) {
        f->set.base.target_ndim = 2;
        f->set.base.target_shape[0] = 3;
        f->set.base.target_shape[1] = 5;
        f->set.base.target_dtype = TERN_U8;
    }
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = BATCH;
    opts.workers = k.workers;
    opts.prefetch = k.prefetch;
    opts.shuffle = !k.stream;
    opts.seed = 3;
    f->device = tern_device_open("cuda:0", &f->err);
    f->cpu = tern_device_open("cpu", &f->err);
    assert_ok(f->err);
    f->scope = tern_scope_new(f->device, NULL, &f->err);
    f->cpu_scope = tern_scope_new(f->cpu, NULL, &f->err);
    f->loader = tern_loader_new(&f->set.base, &opts, &f->err);
    f->oracle = tern_loader_new(&f->set.base, &opts, &f->err);
    assert_ok(f->err);
    spy_open(&f->spy, f->device);
}

static void close_feed(feed *f)
{
    tern_scope_free(f->scope);
    tern_scope_free(f->cpu_scope);
    tern_loader_free(f->loader);
    tern_loader_free(f->oracle);
    spy_close(&f->spy);
    tern_device_close(f->device);
    tern_device_close(f->cpu);
}

/* ---- batches ---- */

static void expect_same_tensor(const tern_tensor *a, const tern_tensor *b)
{
    static char one[BATCH * VALUES * 4], other[BATCH * VALUES * 4];
    size_t bytes = tern__view_bytes(&a->view);
    tern_error err = {0};
    assert_int_equal(a->view.dtype, b->view.dtype);
    assert_int_equal(a->view.ndim, b->view.ndim);
    assert_memory_equal(a->view.shape, b->view.shape, sizeof(int64_t) * (size_t)a->view.ndim);
    tern_tensor_read(a, one, bytes, &err);
    tern_tensor_read(b, other, bytes, &err);
    assert_ok(err);
    assert_memory_equal(one, other, bytes);
}

static void expect_same_batch(const feed *f, const tern_batch *a, const tern_batch *b)
{
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->x == NULL, b->x == NULL);
    if (!a->x) return;
    assert_ptr_equal(tern__memory_device(a->x->view.data), f->device);
    assert_ptr_equal(tern__memory_device(a->y->view.data), f->device);
    expect_same_tensor(a->x, b->x);
    expect_same_tensor(a->y, b->y);
}

/* The next batch, which is used until the step ends. */
static bool take(feed *f, tern_batch *batch)
{
    bool more = tern_loader_next(f->loader, f->scope, batch);
    if (batch->x) *spy_step_of(batch->x->view.data) = SPY_HELD;
    return more;
}

static int end_step(feed *f)
{
    f->spy.step++;
    for (int i = 0; i < SPY_PLACES; i++)
        if (f->spy.places[i].step == SPY_HELD) f->spy.places[i].step = f->spy.step;
    return tern_scope_end(f->scope, &f->err);
}

/* A pass of both, `held` batches to a step; how many there were. */
static int expect_same_pass(feed *f, int held)
{
    tern_batch batch[16], oracle[16];
    int total = 0, count;
    do {
        for (count = 0; count < held && take(f, &batch[count]); count++) total++;
        for (int i = 0; i < count; i++) {
            assert_true(tern_loader_next(f->oracle, f->cpu_scope, &oracle[i]));
            expect_same_batch(f, &batch[i], &oracle[i]);
        }
        assert_int_equal(tern_scope_error(f->scope)->code, tern_scope_error(f->cpu_scope)->code);
        end_step(f);
        f->err = (tern_error){0};
        tern_scope_end(f->cpu_scope, NULL);
    } while (count == held);
    assert_false(tern_loader_next(f->oracle, f->cpu_scope, &oracle[0]));
    return total;
}

/* ---- tests ---- */

static const int WORKERS[] = {0, 1, 3};

static void batches_are_the_cpus(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++)
        for (int maps = 0; maps < 2; maps++) {
            feed f;
            open_feed(&f, (kind){.workers = WORKERS[w], .prefetch = 1 + maps, .maps = maps});
            for (int epoch = 0; epoch < 3; epoch++)
                assert_int_equal(expect_same_pass(&f, 1), (LENGTH + BATCH - 1) / BATCH);
            close_feed(&f);
        }
}

static void batches_of_a_stream_are_the_cpus(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++) {
        feed f;
        open_feed(&f, (kind){.workers = WORKERS[w], .prefetch = 2, .stream = true});
        for (int epoch = 0; epoch < 3; epoch++) assert_true(expect_same_pass(&f, 1) >= 6);
        close_feed(&f);
    }
}

static void a_sample_that_fails_is_told_and_passed(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++) {
        feed f;
        open_feed(&f, (kind){.workers = WORKERS[w], .prefetch = 2, .fails = true});
        for (int epoch = 0; epoch < 2; epoch++)
            assert_int_equal(expect_same_pass(&f, 1), (LENGTH + BATCH - 1) / BATCH);
        close_feed(&f);
    }
}

static void a_step_may_hold_several(void **state)
{
    (void)state;
    for (int held = 2; held <= 5; held++) {
        feed f;
        open_feed(&f, (kind){.workers = 1, .prefetch = 4});
        for (int epoch = 0; epoch < 3; epoch++)
            assert_int_equal(expect_same_pass(&f, held), (LENGTH + BATCH - 1) / BATCH);
        tern_batch batch;
        for (int i = 0; i < 5; i++) take(&f, &batch);
        assert_non_null(batch.x);
        take(&f, &batch);
        assert_null(batch.x);
        assert_int_equal(end_step(&f), TERN_E_STATE);
        close_feed(&f);
    }
}

/* A batch of the loader that is next for both is the same. */
static void expect_same_next(feed *f)
{
    tern_batch batch, oracle;
    assert_true(take(f, &batch));
    assert_true(tern_loader_next(f->oracle, f->cpu_scope, &oracle));
    expect_same_batch(f, &batch, &oracle);
    end_step(f);
    tern_scope_end(f->cpu_scope, NULL);
    assert_ok(f->err);
}

static void a_pass_is_given_up(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++) {
        feed f;
        open_feed(&f, (kind){.workers = WORKERS[w], .prefetch = 2});
        for (int epoch = 0; epoch < 5; epoch++) {
            tern__loader_place place = {epoch, 3 * epoch};
            for (int i = 0; i <= epoch; i++) expect_same_next(&f);
            tern__loader_place_set(f.loader, place);
            tern__loader_place_set(f.oracle, place);
        }
        expect_same_pass(&f, 1);
        close_feed(&f);
    }
}

/* Also in the middle of a pass, with batches on their way; those that are held last until their scope ends.
 */
static void a_loader_is_freed_early(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++)
        for (int held = 0; held < 3; held++) {
            ledger books = {0};
            feed f;
            ledger_open(&books);
            open_feed(&f, (kind){.workers = WORKERS[w], .prefetch = 2});
            tern_batch batch[2], oracle[2];
            expect_same_next(&f);
            for (int i = 0; i < held; i++) {
                take(&f, &batch[i]);
                tern_loader_next(f.oracle, f.cpu_scope, &oracle[i]);
            }
            tern_loader_free(f.loader);
            f.loader = NULL;
            for (int i = 0; i < held; i++) expect_same_batch(&f, &batch[i], &oracle[i]);
            assert_int_equal(end_step(&f), TERN_OK);
            close_feed(&f);
            ledger_close(&books);
        }
}

/* Batches that nobody reads on the host, as most are. */
static void run_pass(feed *f, int held)
{
    tern_batch batch;
    bool more = true;
    while (more) {
        for (int i = 0; i < held && (more = take(f, &batch)); i++) tern_relu(f->scope, batch.x);
        assert_int_equal(end_step(f), TERN_OK);
    }
}

static void a_warm_pass_allocates_and_waits_for_nothing(void **state)
{
    (void)state;
    for (size_t w = 0; w < TERN__COUNT(WORKERS); w++)
        for (int held = 1; held < 3; held++) {
            feed f;
            ledger books = {0};
            ledger_open(&books);
            open_feed(&f, (kind){.workers = WORKERS[w], .prefetch = 2});
            for (int i = 0; i < 2; i++) run_pass(&f, held);
            int requests = atomic_load(&books.requests), allocs = atomic_load(&f.spy.allocs);
            atomic_store(&f.spy.own_waits, 0);
            atomic_store(&f.spy.copies, 0);
            for (int i = 0; i < 4; i++) run_pass(&f, held);
            int own = (LENGTH + BATCH - 1) / BATCH; /* of relu's results, which are the step's */
            assert_int_equal(atomic_load(&books.requests), requests);
            assert_int_equal(atomic_load(&f.spy.allocs), allocs + 4 * own);
            assert_int_equal(atomic_load(&f.spy.copies), 0);
            assert_int_equal(atomic_load(&f.spy.waits), 0);
            if (WORKERS[w] > 0) assert_int_equal(atomic_load(&f.spy.own_waits), 0);
            close_feed(&f);
            ledger_close(&books);
        }
}

/* Waits, a few seconds at most, until a worker has fetched it. */
static void await_batch(tern_loader *loader, int64_t index)
{
    bool is_there = false;
    for (int i = 0; i < 5000 && !is_there; i++) {
        pthread_mutex_lock(&loader->lock);
        is_there = tern__loader_slot_of(loader, index) != NULL;
        pthread_mutex_unlock(&loader->lock);
        if (!is_there) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_true(is_there);
}

/* Two more are asked for than are handed out, each in two copies. */
static void batches_are_sent_before_they_are_asked_for(void **state)
{
    (void)state;
    feed f;
    tern_batch batch;
    open_feed(&f, (kind){.workers = 1, .prefetch = 4});
    take(&f, &batch);
    await_batch(f.loader, 3);
    for (int i = 1; i < 5; i++) {
        end_step(&f);
        take(&f, &batch);
        assert_int_equal(f.spy.sent, 2 * (i + 3));
        await_batch(f.loader, i + 3);
    }
    assert_int_equal(atomic_load(&f.spy.blocks), 3);
    close_feed(&f);
}

/* The slot whose copy was asked for first is the least likely to be waited for. */
static void slots_take_turns(void **state)
{
    (void)state;
    feed f;
    open_feed(&f, (kind){.workers = 0, .prefetch = 2});
    for (int i = 0; i < 7; i++) {
        tern__batch batch;
        assert_int_equal(tern__loader_next(f.loader, &batch, &f.err), 1);
        assert_int_equal(batch.slot, i % 3);
        assert_int_equal(tern__loader_copy_to_device(f.loader, f.device, &batch, &f.err), TERN_OK);
        tern__loader_slot_release(f.loader, batch.slot);
    }
    close_feed(&f);
}

/* The first such device has the carrier; scopes of others get copies of their own. */
static void scopes_of_several_devices_share_a_loader(void **state)
{
    (void)state;
    feed f;
    open_feed(&f, (kind){.workers = 1, .prefetch = 4});
    tern_device *second = tern_device_open(other_gpu(), &f.err);
    assert_ok(f.err);
    tern_scope *scopes[] = {tern_scope_new(f.cpu, NULL, &f.err), f.scope,
                            tern_scope_new(second, NULL, &f.err), tern_scope_new(f.cpu, NULL, &f.err)};
    assert_ok(f.err);
    for (int step = 0; step < 6; step++) {
        tern_batch batch, oracle;
        for (int i = 0; i < 4; i++) {
            bool more = i == 1 ? take(&f, &batch) : tern_loader_next(f.loader, scopes[i], &batch);
            assert_int_equal(more, tern_loader_next(f.oracle, f.cpu_scope, &oracle));
            if (!more) continue;
            assert_ptr_equal(tern__memory_device(batch.x->view.data), i == 2                 ? second
                                                                      : scopes[i] == f.scope ? f.device
                                                                                             : NULL);
            expect_same_tensor(batch.x, oracle.x);
            expect_same_tensor(batch.y, oracle.y);
        }
        end_step(&f);
        for (int i = 0; i < 4; i++)
            if (i != 1) tern_scope_end(scopes[i], &f.err);
        tern_scope_end(f.cpu_scope, &f.err);
        assert_ok(f.err);
    }
    tern_scope_free(scopes[0]);
    tern_scope_free(scopes[2]);
    tern_scope_free(scopes[3]);
    close_feed(&f);
    tern_device_close(second);
}

/* Of the loader's blocks and pins one after the other: each is the scope's error, and the next call works. */
static void what_a_device_refuses_is_told(void **state)
{
    (void)state;
    for (int refused = 1; refused <= 5; refused++) {
        feed f;
        open_feed(&f, (kind){.workers = 1, .prefetch = 2});
        f.spy.refused_alloc = refused <= 3 ? refused : 0;
        f.spy.refused_pin = refused > 3 ? refused - 3 : 0;
        tern_batch batch, oracle;
        assert_true(take(&f, &batch));
        assert_null(batch.x);
        assert_int_equal(end_step(&f), refused <= 3 ? TERN_E_MEMORY : TERN_E_SYSTEM);
        assert_non_null(strstr(f.err.text, refused <= 3 ? "cuda:0 is out of memory" : "cannot be pinned"));
        f.err = (tern_error){0};
        tern_loader_next(f.oracle, f.cpu_scope, &oracle);
        expect_same_next(&f);
        close_feed(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_the_cpus),
        cmocka_unit_test(batches_of_a_stream_are_the_cpus),
        cmocka_unit_test(a_sample_that_fails_is_told_and_passed),
        cmocka_unit_test(a_step_may_hold_several),
        cmocka_unit_test(a_pass_is_given_up),
        cmocka_unit_test(a_loader_is_freed_early),
        cmocka_unit_test(a_warm_pass_allocates_and_waits_for_nothing),
        cmocka_unit_test(batches_are_sent_before_they_are_asked_for),
        cmocka_unit_test(slots_take_turns),
        cmocka_unit_test(scopes_of_several_devices_share_a_loader),
        cmocka_unit_test(what_a_device_refuses_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
