/* test_deadlock.c - ranks that wait for each other all get an error within a second of the last call. Ranks
 * that wait for one that computes do not. Each case is the call of every rank. */
#include "place.h"

#include "comm/move/window/window.h"

#include <sys/mman.h>

enum { window_bytes = 4096 };

static const tern__shm *shm_of(const place *p)
{
    return p->group->root->shm;
}

/* ---- the calls in which a rank may wait ---- */

/* Posts a work like a ddp's bucket. */
static void post(place *p, int channel, uint64_t backward, uint64_t *seq)
{
    const tern__post what = {.kind = TERN__ALL_REDUCE,
                             .dtype = TERN_F32,
                             .op = TERN_SUM,
                             .label = {&tern__ddp_label, (uint32_t)channel + 1, 0, 0, backward},
                             .extents = &p->extent[channel],
                             .extent_count = 1};
    p->backend->post(p->channel[channel], &what, seq, &p->err);
}

static void reduce_in(place *p, int channel)
{
    uint64_t seq;
    post(p, channel, 7, &seq);
    if (!p->err.code) p->backend->wait(p->channel[channel], seq, &p->err);
}

static void fill_slots(place *p)
{
    uint64_t seq;
    for (uint64_t i = 0; i <= place_slots && !p->err.code; i++) post(p, 0, i, &seq);
}

static void reduce_plain(place *p)
{
    enum { count = 1 << 20 };
    float *x = calloc(count, sizeof(*x));
    tern_all_reduce(p->group, x, count, TERN_F32, TERN_SUM, &p->err);
    free(x);
}

static void open_window(place *p)
{
    uint32_t window;
    p->backend->window_open(p->group->state, &(tern__window_opts){.bytes = 4096}, &window, &p->err);
}

static void open_channel(place *p)
{
    void *channel =
        p->backend->channel_open(p->group->state, &(tern__channel_opts){.slots = place_slots}, &p->err);
    if (channel) p->backend->channel_close(channel);
}

static void split(place *p)
{
    tern_group_close(tern_group_split(p->group, 0, 0, NULL, &p->err));
}

/* ---- deadlocks ---- */

/* The odd rank makes one call, the others the other. */
typedef struct deadlock {
    const char *name;
    void (*odd)(place *p), (*others)(place *p);
    const char *odd_text, *others_text;
} deadlock;

static void in_barrier(place *p)
{
    tern_barrier(p->group, &p->err);
}

static void in_first(place *p)
{
    reduce_in(p, 0);
}

static void in_second(place *p)
{
    reduce_in(p, 1);
}

static const char opening[] = "waits in the opening of a window or channel";

static const deadlock deadlocks[] = {
    {"a bucket and a barrier", in_first, in_barrier,
     "waits in all_reduce of 100 f32, sum (ddp 1, backward 7, bucket 0,", "waits in barrier (work 1)"},
    {"a barrier and a bucket", in_barrier, in_first, "waits in barrier (work 1)",
     "waits in all_reduce of 100 f32, sum (ddp 1, backward 7, bucket 0,"},
    {"two ddps", in_first, in_second, "(ddp 1, backward 7", "(ddp 2, backward 7"},
    {"pieces of ordinary memory", reduce_plain, in_first, "waits in all_reduce of 1048576 f32, sum (work 1)",
     "(ddp 1, backward 7"},
    {"a bucket beside pieces", in_first, reduce_plain, "(ddp 1, backward 7",
     "waits in all_reduce of 1048576 f32, sum (work 1)"},
    {"a free slot", fill_slots, in_barrier, "waits in all_reduce of 100 f32, sum (ddp 1, backward 0",
     "waits in barrier (work 1)"},
    {"a window", open_window, in_barrier, opening, "waits in barrier (work 1)"},
    {"a window that one does not open", in_barrier, open_window, "waits in barrier (work 1)", opening},
    {"a channel", open_channel, in_first, opening, "(ddp 1, backward 7"},
    {"a channel that one does not open", in_first, open_channel, "(ddp 1, backward 7", opening},
    {"a group", split, in_first, "waits in tern_group_new or tern_group_split (work ", "(ddp 1, backward 7"},
};

/* When each rank made its last call. */
typedef struct shared {
    _Atomic(int64_t) called[RANKS_MAX];
} shared;

typedef struct trial {
    const deadlock *what;
    int odd;
    shared *shared;
} trial;

/* "rank 1 (host, pid 77) waits in ... while rank 0 (...) waits in ..." */
static int check_text(const place *p, const trial *t)
{
    const char *text = p->err.text, *both = strstr(text, " while rank ");
    char odd[32];
    snprintf(odd, sizeof(odd), "rank %d (", t->odd);
    RANK_CHECK(p->rank, both);
    RANK_CHECK(p->rank, strstr(text, odd) && strstr(text, t->what->odd_text));
    RANK_CHECK(p->rank, strstr(text, t->what->others_text));
    bool odd_first = strstr(text, odd) < both;
    RANK_CHECK(p->rank, odd_first == (strstr(text, t->what->odd_text) < both));
    RANK_CHECK(p->rank, odd_first != (strstr(text, t->what->others_text) < both));
    return 0;
}

static int64_t last_call(const trial *t, int world)
{
    int64_t last = 0;
    for (int rank = 0; rank < world; rank++) last = TERN__MAX(last, atomic_load(&t->shared->called[rank]));
    return last;
}

static int deadlock_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const trial *t = arg;
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    atomic_store(&t->shared->called[rank], tern__now_ns());
    if (rank == t->odd)
        t->what->odd(&p);
    else
        t->what->others(&p);
    int64_t took = tern__now_ns() - last_call(t, p.world);
    if (p.err.code != TERN_E_MISMATCH) fprintf(stderr, "%s: %d: %s\n", t->what->name, p.err.code, p.err.text);
    RANK_CHECK(rank, p.err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, took < RANKS_SOON_S * INT64_C(1000000000));
    if (check_text(&p, t)) return 1;
    place_close(&p);
    return 0;
}

static void run_trial(const deadlock *what, int world, int odd, bool threads)
{
    trial t = {.what = what, .odd = odd, .shared = share_memory(sizeof(shared))};
    ranks r = threads ? ranks_run_threads(world, deadlock_body, &t) : ranks_run(world, deadlock_body, &t);
    munmap(t.shared, sizeof(shared));
    for (int rank = 0; rank < world; rank++)
        if (r.status[rank]) fail_msg("%s: rank %d of %d, odd is %d", what->name, rank, world, odd);
}

static void test_deadlocks_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(deadlocks); i++) {
        int world = 2 + (int)i / 2 % 2;
        run_trial(&deadlocks[i], world, (int)i % world, false);
        if (i % 3 == 0) run_trial(&deadlocks[i], 5 - world, (int)(i + 1) % (5 - world), true);
    }
    run_trial(&deadlocks[0], 4, 2, false);
    run_trial(&deadlocks[1], 8, 7, false);
}

/* Three ranks wait for each other in a circle, in works of one group or in groups of two. */
static int circle_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const bool *in_pairs = arg;
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    if (*in_pairs) {
        tern_group *pairs[3];
        for (int i = 0; i < 3; i++) {
            pairs[i] = tern_group_split(p.group, rank == i ? -1 : 0, 0, NULL, &p.err);
            RANK_CHECK_OK(rank, p.err);
        }
        tern_barrier(pairs[(rank + 1) % 3], &p.err);
        RANK_CHECK(rank, strstr(p.err.text, "waits in barrier (work 1) in the group of ranks "));
        for (int i = 0; i < 3; i++) tern_group_close(pairs[i]);
    } else {
        reduce_in(&p, rank);
        RANK_CHECK(rank, strstr(p.err.text, ", backward 7, bucket 0, 0 folded) while rank "));
    }
    RANK_CHECK(rank, p.err.code == TERN_E_MISMATCH);
    place_close(&p);
    return 0;
}

static void test_circles_of_three(void **state)
{
    (void)state;
    bool in_pairs = false;
    assert_ranks_ok(ranks_run(3, circle_body, &in_pairs));
    in_pairs = true;
    assert_ranks_ok(ranks_run(3, circle_body, &in_pairs));
    assert_ranks_ok(ranks_run_threads(3, circle_body, &in_pairs));
}

/* ---- no deadlocks ---- */

/* Computes until every other rank has checked three times for a deadlock. */
static int compute(const place *p)
{
    uint64_t start[RANKS_MAX];
    int64_t deadline = tern__now_ns() + INT64_C(20000000000);
    for (int rank = 0; rank < p->world; rank++) start[rank] = tern__deadlock_turn(shm_of(p), rank);
    for (int rank = 0; rank < p->world; rank++)
        while (rank != p->rank && tern__deadlock_turn(shm_of(p), rank) < start[rank] + 6) {
            RANK_CHECK(p->rank, tern__now_ns() < deadline);
            usleep(100);
        }
    return 0;
}

/* All ranks but 2 wait for rank 2, each in another call. All have posted the works that the others wait for.
 */
static int busy_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    uint64_t seq[3];
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    if (rank == 2 && compute(&p)) return 1;
    for (int i = 0; i < 3; i++) post(&p, i, 1, &seq[i]);
    for (int i = 0; i < 3; i++) {
        int channel = (i + rank) % 3;
        p.backend->wait(p.channel[channel], seq[channel], &p.err);
    }
    if (rank == 2 && compute(&p)) return 1;
    tern_barrier(p.group, &p.err);
    if (rank == 2 && compute(&p)) return 1;
    open_window(&p);
    if (rank == 2 && compute(&p)) return 1;
    open_channel(&p);
    RANK_CHECK_OK(rank, p.err);
    place_close(&p);
    return 0;
}

static void test_whoever_computes_is_waited_for(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, busy_body, NULL));
    assert_ranks_ok(ranks_run(4, busy_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, busy_body, NULL));
}

static void post_and_wait(place *p, int channel, uint64_t backward)
{
    uint64_t seq;
    post(p, channel, backward, &seq);
    p->backend->wait(p->channel[channel], seq, &p->err);
}

/* Rank 0 waits for a slot that rank 2, which computes, has not released. Rank 1 waits for a later work of
 * rank 0. Rank 0 waits for none of its works, although one of them waits for rank 1. */
static int slot_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    uint64_t seq;
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    if (rank == 1) post_and_wait(&p, 0, 0);
    if (rank == 1) post_and_wait(&p, 1, 0);
    if (rank == 2) post(&p, 1, 0, &seq);
    for (uint64_t i = rank == 1; i < place_slots; i++) post(&p, 0, i, &seq);
    if (rank == 2 && compute(&p)) return 1;
    if (rank == 0) p.backend->test(p.channel[0], 1, &p.err);
    post(&p, 0, place_slots, &seq);
    if (rank == 0) post_and_wait(&p, 1, 0);
    p.backend->wait(p.channel[0], seq, &p.err);
    RANK_CHECK_OK(rank, p.err);
    tern_barrier(p.group, &p.err);
    place_close(&p);
    return 0;
}

static void test_slots_are_waited_for(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, slot_body, NULL));
}

/* Rank 1 has started an all_reduce of many pieces and waits in another call, which rank 0 makes only later.
 */
static int pieces_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { count = 1 << 20 };
    uint64_t seq;
    float *x = calloc(count, sizeof(*x));
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    tern_work *work = tern_all_reduce_post(p.group, x, count, TERN_F32, TERN_SUM, &p.err);
    if (rank == 0) tern_work_wait(work, &p.err);
    if (rank == 0 && compute(&p)) return 1;
    post(&p, 0, 1, &seq);
    p.backend->wait(p.channel[0], seq, &p.err);
    if (rank != 0) tern_work_wait(work, &p.err);
    RANK_CHECK_OK(rank, p.err);
    place_close(&p);
    free(x);
    return 0;
}

static void test_waiting_ranks_do_their_pieces(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, pieces_body, NULL));
}

/* Rank 1 waits for rank 0, which keeps querying it and thereby waking it. */
static int asked_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { times = THOUSANDS(10) };
    const char *barrier = "barrier (work 1)";
    char text[TERN__WORK_TEXT];
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    const tern__shm *shm = shm_of(&p);
    if (rank == 0 && compute(&p)) return 1;
    for (int i = 0; rank == 0 && i < times; i++) {
        tern__shm_wake(shm);
        RANK_CHECK(rank, tern__deadlock_text(shm, p.group, 1, text) && !strcmp(text, barrier));
    }
    tern_barrier(p.group, &p.err);
    RANK_CHECK_OK(rank, p.err);
    int64_t deadline = tern__now_ns() + INT64_C(20000000000);
    while (rank == 0 && tern__deadlock_text(shm, p.group, 1, text) && !strcmp(text, barrier))
        RANK_CHECK(rank, tern__now_ns() < deadline);
    place_close(&p);
    return 0;
}

static void test_what_a_rank_waits_in_can_be_read_between_its_sleeps(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, asked_body, NULL));
    assert_ranks_ok(ranks_run_threads(2, asked_body, NULL));
}

/* Every rank checks for a deadlock before every sleep. Ranks wait for their works in different orders and
 * open windows and channels, and no deadlock is reported. */
static int stress_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { rounds = THOUSANDS(1) / 2, works = 6 };
    unsigned seed = (unsigned)rank + 1;
    float x[works] = {0};
    uint64_t looks = 0;
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    p.group->root->shm->late_s = 0;
    for (int round = 0; round < rounds; round++) {
        tern_work *work[works];
        uint64_t seq[3];
        for (int i = 0; i < 3; i++) post(&p, i, (uint64_t)round, &seq[i]);
        for (int i = 0; i < works; i++)
            work[i] = tern_all_reduce_post(p.group, &x[i], 1, TERN_F32, TERN_MAX, &p.err);
        RANK_CHECK_OK(rank, p.err);
        int first = rand_r(&seed) % 3, order = rand_r(&seed) % works;
        if (rand_r(&seed) % 8 == 0) usleep((useconds_t)(rand_r(&seed) % 1000));
        for (int i = 0; i < 3; i++) p.backend->wait(p.channel[(i + first) % 3], seq[(i + first) % 3], &p.err);
        for (int i = 0; i < works; i++) tern_work_wait(work[(i + order) % works], &p.err);
        if (round % 50 == 0) open_window(&p);
        if (round % 50 == 25) open_channel(&p);
        RANK_CHECK_OK(rank, p.err);
    }
    for (int r = 0; r < p.world; r++) looks += tern__deadlock_turn(shm_of(&p), r);
    RANK_CHECK(rank, looks > 0);
    place_close(&p);
    return 0;
}

static void test_nobody_is_told_without_cause(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, stress_body, NULL));
    assert_ranks_ok(ranks_run(5, stress_body, NULL));
    assert_ranks_ok(ranks_run_threads(4, stress_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadlocks_are_named),
        cmocka_unit_test(test_circles_of_three),
        cmocka_unit_test(test_whoever_computes_is_waited_for),
        cmocka_unit_test(test_slots_are_waited_for),
        cmocka_unit_test(test_waiting_ranks_do_their_pieces),
        cmocka_unit_test(test_what_a_rank_waits_in_can_be_read_between_its_sleeps),
        cmocka_unit_test(test_nobody_is_told_without_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
