/* test_native.c - works in flight, channels with few slots, and windows. Ranks are processes, and also
 * threads of one process that share a mapping, so that a race detector sees their accesses. */
#include "group_fixture.h"

#include "comm/meet/shm.h"
#include "comm/move/window/window.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static uint64_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* ---- works in flight ---- */

enum { works = 24 };

/* A reduce_scatter is in place: its result is the rank's own part of `x`. */
static tern_work *start(fixture *f, int k, float *x, size_t count)
{
    size_t part = count / (size_t)f->world;
    switch (k % 4) {
    case 2:
        return tern_reduce_scatter_post(f->group, x, x + (size_t)f->rank * part, part, TERN_F32, TERN_SUM,
                                        &f->err);
    case 3: return tern_broadcast_post(f->group, x, count, TERN_F32, k % f->world, &f->err);
    default: return tern_all_reduce_post(f->group, x, count, TERN_F32, TERN_SUM, &f->err);
    }
}

static bool is_done_right(const fixture *f, int k, const float *x, size_t count)
{
    size_t part = count / (size_t)f->world, first = (size_t)f->rank * part;
    float sum = (float)(f->world * k + f->world * (f->world - 1) / 2), own = (float)(f->rank + k);
    for (size_t i = 0; i < count; i++) {
        bool is_part = i >= first && i - first < part;
        float expected = k % 4 == 3 ? (float)(k % f->world + k) : k % 4 == 2 && !is_part ? own : sum;
        if (x[i] != expected) return false;
    }
    return true;
}

/* Rounds of works of all kinds. They are finished in another order than started, and the ranks start at
 * random times. */
static int async_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    uint64_t seed = 7, own_seed = (uint64_t)rank * 77 + 5;
    if (fixture_open(&f, rank, boot, 260000 * 4)) return 1;
    for (int round = 0; round < 9; round++) {
        if (round == 3 && fixture_map(&f)) return 1;
        tern_work *work[works];
        float *at[works];
        size_t used = 0, count[works];
        for (int k = 0; k < works; k++) {
            count[k] = random_next(&seed) % (k % 5 == 0 ? 9000 : k == round ? 200000 : 300);
            at[k] = (float *)(k % 3 || !f.window ? f.plain : f.window) + used;
            used += count[k] + 1;
            for (size_t i = 0; i < count[k]; i++) at[k][i] = (float)(rank + k);
            if (random_next(&own_seed) % 4 == 0) usleep((useconds_t)(random_next(&own_seed) % 200));
            work[k] = start(&f, k, at[k], count[k]);
            RANK_CHECK_OK(rank, f.err);
            if (k % 7 == 0) RANK_CHECK(rank, tern_work_test(work[k], &f.err) >= 0);
        }
        float one = 1;
        tern_all_reduce(f.group, &one, 1, TERN_F32, TERN_SUM, &f.err); /* a blocking call in between */
        RANK_CHECK(rank, one == (float)f.world);
        for (int j = 0; j < works; j++) {
            int k = (j * 5 + rank) % works;
            tern_work_wait(work[k], &f.err);
            RANK_CHECK_OK(rank, f.err);
            RANK_CHECK(rank, is_done_right(&f, k, at[k], count[k]));
        }
    }
    return fixture_close(&f);
}

static void test_works_in_flight(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++) assert_ranks_ok(ranks_run(worlds[i], async_body, NULL));
}

/* ---- the back end itself: few slots, several extents to a work ---- */

enum { areas = 6, area_floats = 9000, posts = 120, extents_max = 5 };

typedef struct pending {
    uint64_t seq, total;
    tern__extent extents[extents_max];
} pending;

static void make_extents(pending *p, tern__post *post, uint32_t window, int area, uint64_t *seed)
{
    uint64_t at = 0;
    post->extents = p->extents;
    post->extent_count = 1 + (int)(random_next(seed) % extents_max);
    for (int i = 0; i < post->extent_count; i++) {
        uint64_t count = random_next(seed) % (area_floats / extents_max);
        p->extents[i] = (tern__extent){window, ((uint64_t)area * area_floats + at) * 4, count};
        at += count + random_next(seed) % 3;
    }
}

static void fill(float *base, const tern__post *post, float value)
{
    for (int i = 0; i < post->extent_count; i++)
        for (uint64_t k = 0; k < post->extents[i].count; k++) base[post->extents[i].offset / 4 + k] = value;
}

static int check_filled(int rank, const float *base, const tern__post *post, float value)
{
    for (int i = 0; i < post->extent_count; i++)
        for (uint64_t k = 0; k < post->extents[i].count; k++)
            RANK_CHECK(rank, base[post->extents[i].offset / 4 + k] == value);
    return 0;
}

/* Ordinary buffers that fit the ring: once the others have posted, rank 0 finishes all works without them. */
static int alone_body(int rank, const tern__bootstrap *boot, void *arg)
{
    atomic_int *is_done = arg;
    enum { count = 1200 };
    fixture f;
    if (fixture_open(&f, rank, boot, (size_t)count * 4 * 8)) return 1;
    float *x = (float *)f.plain;
    for (int i = 0; i < count * 8; i++) x[i] = i < 7 * count ? 1 : 2;
    tern_work *work[] = {
        tern_all_reduce_post(f.group, x, count, TERN_F32, TERN_SUM, &f.err),
        tern_reduce_scatter_post(f.group, x + count, x + 4 * count, count, TERN_F32, TERN_SUM, &f.err),
        tern_broadcast_post(f.group, x + 5 * count, count, TERN_F32, 0, &f.err),
        tern_all_gather_post(f.group, x + 7 * count, x + 6 * count, count / 3, TERN_F32, &f.err),
    };
    RANK_CHECK_OK(rank, f.err);
    for (int i = 0; rank && !atomic_load(is_done) && i < 5000; i++) usleep(1000);
    RANK_CHECK(rank, !rank || atomic_load(is_done));
    for (size_t i = 0; i < TERN__COUNT(work); i++) tern_work_wait(work[i], &f.err);
    RANK_CHECK_OK(rank, f.err);
    atomic_store(is_done, 1);
    RANK_CHECK(rank, x[0] == 3 && x[4 * count] == 3 && x[5 * count] == 1 && x[7 * count - 1] == 2);
    return fixture_close(&f);
}

static void test_ranks_that_have_posted_owe_nothing(void **state)
{
    (void)state;
    atomic_int *is_done = share_memory(4096);
    assert_ranks_ok(ranks_run(3, alone_body, is_done));
    munmap(is_done, 4096);
}

/* There are fewer slots than areas, so posts wait for slots. An area is reused as soon as its work is done.
 */
static int slots_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    uint64_t seed = 3, own_seed = (uint64_t)rank + 1;
    uint32_t window;
    float world = (float)boot->world;
    tern_group *group = open_group(boot, &err);
    RANK_CHECK_OK(rank, err);
    const tern__comm_backend *backend = group->backend;
    void *channel = backend->channel_open(group->state, &(tern__channel_opts){.slots = *(int *)arg}, &err);
    backend->window_open(group->state, &(tern__window_opts){.bytes = (size_t)areas * area_floats * 4},
                         &window, &err);
    RANK_CHECK_OK(rank, err);
    float *base = (void *)tern__window_own(group, window);
    pending all[areas] = {0};
    tern__post said[areas] = {0};
    for (int n = 0; n < posts + areas; n++) {
        int area = n % areas;
        if (n >= areas) {
            RANK_CHECK(rank, backend->wait(channel, all[area].seq, &err) == TERN_OK);
            float last = (float)(n - areas);
            if (check_filled(rank, base, &said[area], last * world + world * (world - 1) / 2)) return 1;
        }
        if (n >= posts) continue;
        said[area] = (tern__post){.kind = TERN__ALL_REDUCE, .dtype = TERN_F32, .op = TERN_SUM};
        make_extents(&all[area], &said[area], window, area, &seed);
        fill(base, &said[area], (float)(n + rank));
        if (random_next(&own_seed) % 16 == 0) usleep((useconds_t)(random_next(&own_seed) % 300));
        RANK_CHECK(rank, backend->post(channel, &said[area], &all[area].seq, &err) == TERN_OK);
        RANK_CHECK(rank, group->root->progress(group, &err) == TERN_OK);
    }
    backend->channel_close(channel);
    backend->window_close(group->state, window);
    tern_group_close(group);
    return 0;
}

static void test_posts_wait_for_slots(void **state)
{
    (void)state;
    for (int slots = 2; slots <= 4; slots += 2)
        for (size_t i = 1; i < TERN__COUNT(worlds); i++)
            assert_ranks_ok(ranks_run(worlds[i], slots_body, &slots));
}

/* ---- the caller's own memory as a window ---- */

enum { part = 100, gap = 7 };

/* Element i of rank `rank`'s window. */
static float value_of(uint32_t i, int rank)
{
    return (float)(i * 10 + (uint32_t)rank);
}

/* Makes three extents with gaps between them; they end in the middle of parts. */
static void cut_extents(tern__extent *extents, uint32_t window, uint32_t count)
{
    const uint32_t cuts[] = {0, part / 3, part + part / 3 + 1, count};
    for (uint32_t i = 0; i < 3; i++)
        extents[i] = (tern__extent){window, (uint64_t)(cuts[i] + i * gap) * 4, cuts[i + 1] - cuts[i]};
}

/* Returns the position of element i in the window. */
static uint32_t place_of(const tern__extent *extents, uint32_t i)
{
    while (i >= extents->count) i -= (uint32_t)extents++->count;
    return (uint32_t)extents->offset / 4 + i;
}

static bool is_right(tern__kind kind, const float *out, uint32_t i, uint32_t place, int rank, int world)
{
    uint32_t owner = i / part, within = i % part;
    switch (kind) {
    case TERN__ALL_GATHER: return out[owner * (part + gap) + within] == value_of(place, (int)owner);
    case TERN__BROADCAST: return rank == 1 || out[i] == value_of(place, 1);
    default: return owner != (uint32_t)rank || out[within] == value_of(place, world - 1);
    }
}

/* The result goes to `out`, and the window does not change. */
static int check_out(tern_group *group, tern__kind kind, uint32_t window)
{
    tern_error err = {0};
    uint64_t seq;
    int rank = group->boot.rank, world = group->boot.world;
    uint32_t count = (uint32_t)(part * world);
    float *base = (void *)tern__window_own(group, window), out[8 * (part + gap)];
    tern__extent extents[3];
    cut_extents(extents, window, count);
    for (uint32_t i = 0; i < count + 2 * gap; i++) base[i] = value_of(i, rank);
    tern__post post = {.kind = kind, .dtype = TERN_F32, .op = TERN_MAX, .root = 1, .extents = extents};
    post.extent_count = 3;
    post.out = out;
    post.stride = part + gap;
    group->backend->post(group->channel, &post, &seq, &err);
    group->backend->wait(group->channel, seq, &err);
    RANK_CHECK_OK(rank, err);
    for (uint32_t i = 0; i < count + 2 * gap; i++) RANK_CHECK(rank, base[i] == value_of(i, rank));
    for (uint32_t i = 0; i < count; i++)
        RANK_CHECK(rank, is_right(kind, out, i, place_of(extents, i), rank, world));
    return 0;
}

static int out_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    uint32_t window;
    tern_group *group = open_group(boot, &err);
    group->backend->window_open(group->state, &(tern__window_opts){.bytes = 8 * (part + gap) * 4}, &window,
                                &err);
    RANK_CHECK_OK(rank, err);
    if (check_out(group, TERN__REDUCE_SCATTER, window) || check_out(group, TERN__BROADCAST, window) ||
        check_out(group, TERN__ALL_GATHER, window))
        return 1;
    group->backend->window_close(group->state, window);
    tern_group_close(group);
    return 0;
}

static void test_results_in_own_memory(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, out_body, NULL));
    assert_ranks_ok(ranks_run(5, out_body, NULL));
}

/* The caller's memory keeps its address and contents when it becomes a window and when the window is closed.
 */
static int base_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    enum { bytes = 1 << 16 };
    uint32_t window;
    uint64_t seq;
    tern_group *group = open_group(boot, &err);
    RANK_CHECK_OK(rank, err);
    int32_t *base = aligned_alloc(1 << 16, bytes);
    for (int i = 0; i < bytes / 4; i++) base[i] = i + rank;
    group->backend->window_open(group->state, &(tern__window_opts){.base = base, .bytes = bytes}, &window,
                                &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, (void *)tern__window_own(group, window) == base);
    for (int i = 0; i < bytes / 4; i++) RANK_CHECK(rank, base[i] == i + rank);
    tern__extent half = {window, bytes / 2, bytes / 8};
    tern__post post = {
        .kind = TERN__BROADCAST, .dtype = TERN_I32, .root = 1, .extents = &half, .extent_count = 1};
    group->backend->post(group->channel, &post, &seq, &err);
    group->backend->wait(group->channel, seq, &err);
    RANK_CHECK_OK(rank, err);
    group->backend->window_close(group->state, window);
    for (int i = 0; i < bytes / 4; i++) RANK_CHECK(rank, base[i] == i + (i < bytes / 8 ? rank : 1));
    base[0] = -1 - rank;
    tern_barrier(group, &err);
    RANK_CHECK(rank, base[0] == -1 - rank);
    free(base);
    tern_group_close(group);
    return 0;
}

static void test_window_over_own_memory(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, base_body, NULL));
}

/* A descriptor from a peer is checked before it is mapped. */
static int attach(int fd, size_t bytes, tern_error *err)
{
    char *base = NULL;
    bool borrowed;
    const tern__shm_group nobody = {.world = 2};
    *err = (tern_error){0};
    return tern__segment_attach(&nobody, 1, fd, bytes, false, &base, &borrowed, err);
}

static void test_false_windows_are_refused(void **state)
{
    (void)state;
    tern_error err = {0};
    void *base = NULL;
    int pipes[2], fd, file = memfd_create("false", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_return_code(pipe(pipes), errno);
    assert_int_equal(attach(pipes[0], 4096, &err), TERN_E_PEER);
    assert_int_equal(attach(file, 4096, &err), TERN_E_PEER); /* empty, not sealed */
    assert_return_code(ftruncate(file, 8192), errno);
    assert_int_equal(attach(file, 4096, &err), TERN_E_PEER); /* can still be truncated */
    assert_return_code(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), errno);
    assert_int_equal(attach(file, 4096, &err), TERN_E_PEER); /* has no note after the data */
    err = (tern_error){0};
    assert_int_equal(tern__segment_create(&base, 5000, &fd, &err), TERN_OK);
    assert_int_equal(attach(fd, 4096, &err), TERN_E_MISMATCH);
    assert_int_equal(ftruncate(fd, 4096), -1); /* a peer cannot truncate it, so no access can fault */
    munmap(base, 8192);
    close(fd);
    close(file);
    close(pipes[0]);
    close(pipes[1]);
}

/* As in older kernels: a signal interrupts fallocate, and this process gets one all the time. */
static int ticks;

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (!ticks || sigismember(&blocked, SIGALRM)) return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    errno = --ticks ? EINTR : ENOSPC; /* so that this test ends */
    return -1;
}

static void test_signals_do_not_keep_memory_from_being_reserved(void **state)
{
    (void)state;
    tern_error err = {0};
    void *base = NULL;
    int fd;
    ticks = 1000;
    assert_int_equal(tern__segment_create(&base, 5000, &fd, &err), TERN_OK);
    ticks = 0;
    munmap(base, 8192);
    close(fd);
}

/* ---- many windows ---- */

/* On a busy machine rank 0 ends it earlier, by an element that is larger by one half. */
static int many_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { least = THOUSANDS(2) };
    const double enough_s = 20;
    fixture f;
    if (fixture_open(&f, rank, boot, 70000 * 4) || fixture_map(&f)) return 1;
    float *x = (float *)f.window, more = 0;
    int64_t deadline = tern__deadline(enough_s);
    for (int n = 0; n < THOUSANDS(100) && more == 0; n++) {
        bool is_last = rank == 0 && n >= least && tern__now_ns() >= deadline;
        x[0] = (float)(n + rank) + (is_last ? 0.5F : 0);
        RANK_CHECK(rank, tern_all_reduce(f.group, x, 1, TERN_F32, TERN_SUM, NULL) == TERN_OK);
        more = x[0] - (float)(2 * n + 1);
        RANK_CHECK(rank, more == 0 || (n >= least && more == 0.5F));
    }
    return fixture_close(&f);
}

static void test_many_small_works(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, many_body, NULL));
}

/* ---- sleeping ---- */

static _Thread_local bool is_missed; /* nobody has ended this rank's last sleep */

/* The C library's, whose arguments are all numbers of the machine's width. */
long syscall(long number, ...)
{
    typedef long caller(long, ...);
    caller *call = (caller *)dlsym(RTLD_NEXT, "syscall");
    long given[6];
    va_list args;
    va_start(args, number);
    for (size_t i = 0; i < TERN__COUNT(given); i++) given[i] = va_arg(args, long);
    va_end(args);
    long result = call(number, given[0], given[1], given[2], given[3], given[4], given[5]);
    if (number == SYS_futex && (int)given[1] == FUTEX_WAIT) is_missed = result && errno == ETIMEDOUT;
    return result;
}

/* Rank 1 comes to a barrier when rank 0 sleeps, which would wake by itself only every 50 ms. Not every sleep
 * must be ended by rank 1, since it may come between two of them, but most are. */
static int sleep_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { rounds = 20 };
    fixture f;
    int missed = 0;
    if (fixture_open(&f, rank, boot, 70000 * 4)) return 1;
    for (int round = 0; round < rounds; round++) {
        while (rank == 1 && !tern__shm_has_sleepers(f.group->shm)) usleep(1000);
        is_missed = false;
        tern_barrier(f.group, &f.err);
        missed += is_missed;
        tern_barrier(f.group, &f.err);
        RANK_CHECK_OK(rank, f.err);
    }
    RANK_CHECK(rank, missed <= rounds / 2);
    return fixture_close(&f);
}

static void test_sleeping_rank_is_woken(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, sleep_body, NULL));
    assert_ranks_ok(ranks_run_threads(2, sleep_body, NULL));
}

/* ---- ranks as threads ---- */

static void test_ranks_as_threads(void **state)
{
    (void)state;
    int slots = 2;
    for (int world = 2; world <= 7; world += world == 2 ? 2 : 3) {
        assert_ranks_ok(ranks_run_threads(world, async_body, NULL));
        assert_ranks_ok(ranks_run_threads(world, slots_body, &slots));
    }
    assert_ranks_ok(ranks_run_threads(3, base_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_works_in_flight),
        cmocka_unit_test(test_posts_wait_for_slots),
        cmocka_unit_test(test_ranks_that_have_posted_owe_nothing),
        cmocka_unit_test(test_results_in_own_memory),
        cmocka_unit_test(test_window_over_own_memory),
        cmocka_unit_test(test_false_windows_are_refused),
        cmocka_unit_test(test_signals_do_not_keep_memory_from_being_reserved),
        cmocka_unit_test(test_many_small_works),
        cmocka_unit_test(test_sleeping_rank_is_woken),
        cmocka_unit_test(test_ranks_as_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
