/* test_timeline.c - the timeline of real ranks: its events compared with each other and with tern_ddp_stats.
 *
 * The trace's lines are parsed with cJSON. All ranks read the same clock, so the order of events can be
 * checked across ranks. */
#include "parallel/net.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define STEPS   5
#define BUCKETS 3

/* ---- the test's file ---- */

static char path[64];

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/tern_timeline_XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

static char *read_all(void)
{
    struct stat st;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fstat(fileno(file), &st);
    char *text = calloc((size_t)st.st_size + 8, 1);
    assert_int_equal(fread(text, 1, (size_t)st.st_size, file), st.st_size);
    fclose(file);
    return text;
}

/* ---- events ---- */

typedef struct event {
    char name[32], phase;
    int rank, track;
    int64_t began, ended; /* ns */
    int64_t bucket, bytes, backward, step, work;
} event;

typedef struct timeline {
    event *events;
    int count;
} timeline;

static double number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(object, key);
    return item ? cJSON_GetNumberValue(item) : -1;
}

static event event_of(const cJSON *json)
{
    const cJSON *args = cJSON_GetObjectItem(json, "args");
    event e = {.phase = *cJSON_GetStringValue(cJSON_GetObjectItem(json, "ph")),
               .rank = (int)number(json, "pid") - 1,
               .track = (int)(number(json, "tid") - 1000 * number(json, "pid")) - 1,
               .bucket = (int64_t)number(args, "bucket"),
               .bytes = (int64_t)number(args, "bytes"),
               .backward = (int64_t)number(args, "backward"),
               .step = (int64_t)number(args, "step"),
               .work = (int64_t)number(args, "work")};
    snprintf(e.name, sizeof(e.name), "%s", cJSON_GetStringValue(cJSON_GetObjectItem(json, "name")));
    if (e.phase == 'M') return e;
    e.began = llround(number(json, "ts") * 1000);
    e.ended = e.phase == 'X' ? e.began + llround(number(json, "dur") * 1000) : e.began;
    return e;
}

static timeline parse(const char *text)
{
    cJSON *json = cJSON_ParseWithOpts(text, NULL, true), *item;
    if (!json) fail_msg("no JSON: ...%.60s", text + TERN__MAX(strlen(text), 60) - 60);
    timeline t = {calloc((size_t)cJSON_GetArraySize(json), sizeof(event)), 0};
    cJSON_ArrayForEach(item, json) t.events[t.count++] = event_of(item);
    cJSON_Delete(json);
    return t;
}

static timeline read_timeline(void)
{
    char *text = read_all();
    timeline t = parse(text);
    free(text);
    return t;
}

static int count(const timeline *t, int rank, const char *name)
{
    int n = 0;
    for (int i = 0; i < t->count; i++) n += t->events[i].rank == rank && !strcmp(t->events[i].name, name);
    return n;
}

/* Returns the index-th event of that name on a rank, in the order of the file, which is that of the ends. */
static const event *nth(const timeline *t, int rank, const char *name, int index)
{
    for (int i = 0; i < t->count; i++)
        if (t->events[i].rank == rank && !strcmp(t->events[i].name, name) && index-- == 0)
            return &t->events[i];
    fail_msg("rank %d has too few \"%s\"", rank, name);
    return NULL;
}

static bool is_inside(const event *inner, const event *outer)
{
    return inner->began >= outer->began && inner->ended <= outer->ended;
}

/* ---- a job ---- */

typedef struct job {
    tern_ddp_times *last; /* [RANKS_MAX], shared: the last step's */
    int kill_after;       /* the number of steps after which the last rank kills itself; 0: never */
} job;

static int train_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    tern_error err = {0};
    net n;
    tern_group_opts opts = tern_group_defaults();
    opts.trace = path;
    net_open(&n, boot, &opts, 1024, &err);
    RANK_CHECK_OK(rank, err);
    tern_ddp_stats s = {.size = sizeof(s)};
    long warm = 0;
    for (int step = 0; step < STEPS && !err.code; step++) {
        if (step == 3) warm = requests;
        tern_tensor *y = tern_forward(&n.base, n.scope, net_input(&n));
        net_step(&n, slow(n.scope, y, (spins){.backward = (rank + 1) * 200000}), &err);
        if (j->kill_after == step + 1 && rank == boot->world - 1) kill(getpid(), SIGKILL);
    }
    long cold = requests - warm;
    tern_ddp_stats_get(n.ddp, &s, NULL);
    if (j->last) j->last[rank] = s.last;
    net_close(&n);
    if (j->kill_after) return err.code == TERN_E_PEER ? 0 : 1;
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, cold == 0);
    return 0;
}

/* ---- the events of one rank ---- */

/* On a track, two spans are nested or disjoint. */
static void check_nesting(const timeline *t)
{
    for (int i = 0; i < t->count; i++)
        for (int k = i + 1; k < t->count; k++) {
            const event *a = &t->events[i], *b = &t->events[k];
            if (a->phase != 'X' || b->phase != 'X' || a->rank != b->rank || a->track != b->track) continue;
            bool is_apart = a->ended <= b->began || b->ended <= a->began;
            if (!is_apart && !is_inside(a, b) && !is_inside(b, a))
                fail_msg("rank %d: \"%s\" and \"%s\" overlap", a->rank, a->name, b->name);
        }
}

static void check_labels(const timeline *t, int rank)
{
    assert_int_equal(count(t, rank, "process_name"), 1);
    assert_int_equal(count(t, rank, "thread_name"), TERN__TRACK_COUNT);
}

/* forward, then backward with the synchronisation at its end, then the optimizer's step. */
static void check_steps(const timeline *t, int rank, int steps)
{
    int64_t before = 0;
    for (int step = 0; step < steps; step++) {
        const event *forward = nth(t, rank, "forward", step), *backward = nth(t, rank, "backward", step);
        const event *end = nth(t, rank, "synchronise", step), *update = nth(t, rank, "optimizer step", step);
        assert_true(forward->step == step && backward->step == step && end->step == step);
        assert_true(forward->began >= before && forward->ended == backward->began);
        assert_true(is_inside(end, backward) && end->ended == backward->ended);
        assert_true(update->began >= backward->ended);
        assert_true(backward->ended - backward->began >= (rank + 1) * 200000);
        before = update->ended;
    }
}

/* The kernels of a step are in its forward, backward or optimizer step. */
static void check_kernels(const timeline *t, int rank, int steps)
{
    static const char *const parts[] = {"forward", "backward", "optimizer step"};
    int kernels = 0;
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->events[i];
        bool is_kernel = !strcmp(e->name, "matmul") || !strcmp(e->name, "sgd");
        if (e->rank != rank || !is_kernel) continue;
        bool has_place = false;
        for (int step = 0; step < steps; step++)
            for (int p = 0; p < 3; p++) has_place |= is_inside(e, nth(t, rank, parts[p], step));
        assert_true(has_place);
        kernels++;
    }
    assert_int_equal(count(t, rank, "matmul"), 8 * steps); /* the first layer's input needs no gradient */
    assert_true(kernels > 8 * steps);
}

/* ---- across ranks ---- */

static const event *find_bucket(const timeline *t, int rank, const char *name, int64_t backward,
                                int64_t bucket)
{
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->events[i];
        bool is_it =
            e->rank == rank && !strcmp(e->name, name) && e->backward == backward && e->bucket == bucket;
        if (is_it) return e;
    }
    return NULL;
}

/* A bucket becomes ready in its rank's backward. A rank reduces it in its own backward, once it is ready on
 * all ranks. */
static void check_buckets(const timeline *t, int world, int steps)
{
    for (int rank = 0; rank < world; rank++)
        for (int backward = 1; backward <= steps; backward++)
            for (int bucket = 0; bucket < BUCKETS; bucket++) {
                const event *own = find_bucket(t, rank, "bucket ready", backward, bucket);
                const event *reduce = find_bucket(t, rank, "all_reduce", backward, bucket);
                const event *whole = nth(t, rank, "backward", backward - 1);
                assert_non_null(own);
                assert_true(own->phase == 'i' && is_inside(own, whole));
                assert_int_equal(own->bytes, (NET_WIDTH + 1) * NET_WIDTH * sizeof(float));
                if (world == 1) continue;
                assert_true(reduce && is_inside(reduce, whole) && reduce->bytes >= own->bytes);
                for (int peer = 0; peer < world; peer++) {
                    const event *ready = find_bucket(t, peer, "bucket ready", backward, bucket);
                    assert_true(ready && reduce->ended >= ready->began);
                    assert_true(nth(t, rank, "backward", backward - 1)->ended >= ready->began);
                }
            }
}

/* Every rank has waited in every backward, except the slowest, which takes 200 us longer than the next. */
static void check_waits(const timeline *t, int world, int steps)
{
    for (int rank = 0; rank < world; rank++)
        for (int backward = 1; backward <= steps; backward++) {
            int64_t waited = 0;
            for (int i = 0; i < t->count; i++) {
                const event *e = &t->events[i];
                if (e->rank != rank || strcmp(e->name, "wait") || e->backward != backward) continue;
                assert_true(is_inside(e, nth(t, rank, "backward", backward - 1)));
                waited += e->ended - e->began;
            }
            const event *end = nth(t, rank, "synchronise", backward - 1);
            assert_true(waited <= end->ended - end->began);
        }
}

static void check_against_stats(const timeline *t, const job *j, int rank)
{
    const event *forward = nth(t, rank, "forward", STEPS - 1),
                *backward = nth(t, rank, "backward", STEPS - 1);
    const event *end = nth(t, rank, "synchronise", STEPS - 1);
    const event *first = find_bucket(t, rank, "bucket ready", STEPS, 0);
    const tern_ddp_times *last = &j->last[rank];
    assert_int_equal(forward->ended - forward->began, last->forward);
    assert_int_equal(end->began - backward->began, last->backward);
    assert_int_equal(end->began - first->began, last->overlap);
    assert_true(backward->ended - first->began >= last->communication);
}

static tern_ddp_times *share_times(void)
{
    return share_memory(RANKS_MAX * sizeof(tern_ddp_times));
}

static void check_job(const job *j, int world)
{
    timeline t = read_timeline();
    check_nesting(&t);
    check_buckets(&t, world, STEPS);
    if (world > 1) check_waits(&t, world, STEPS);
    for (int rank = 0; rank < world; rank++) {
        check_labels(&t, rank);
        check_steps(&t, rank, STEPS);
        assert_int_equal(count(&t, rank, "forward"), STEPS);
        assert_int_equal(count(&t, rank, "optimizer step"), STEPS);
        check_kernels(&t, rank, STEPS);
        check_against_stats(&t, j, rank);
    }
    for (int i = 0; i < t.count; i++) assert_in_range(t.events[i].rank, 0, world - 1);
    free(t.events);
}

static void ranks_are_merged_into_one_timeline(void **state)
{
    (void)state;
    job j = {.last = share_times()};
    for (int world = 1; world <= 4; world++) {
        assert_ranks_ok(ranks_run(world, train_body, &j));
        check_job(&j, world);
    }
    munmap(j.last, RANKS_MAX * sizeof(*j.last));
}

static void ranks_of_one_process_are_too(void **state)
{
    (void)state;
    tern_ddp_times last[RANKS_MAX];
    job j = {.last = last};
    assert_ranks_ok(ranks_run_threads(3, train_body, &j));
    check_job(&j, 3);
}

/* The dead rank's finished steps are in the file, and the survivors complete it. They may have been told of
 * the death while they still waited in the last step. */
static void a_killed_ranks_steps_are_kept(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) {
        ranks r = ranks_run(world, train_body, &(job){.kill_after = 3});
        for (int rank = 0; rank < world - 1; rank++) assert_int_equal(r.status[rank], 0);
        assert_int_equal(r.status[world - 1], 128 + SIGKILL);
        timeline t = read_timeline();
        check_nesting(&t);
        check_buckets(&t, world, 2);
        check_steps(&t, world - 1, 3);
        for (int rank = 0; rank < world - 1; rank++) check_steps(&t, rank, 2);
        free(t.events);
    }
}

/* No rank is left to complete it: a reader that does not require the "]" gets all finished steps. */
static void a_timeline_without_an_end_can_be_read(void **state)
{
    (void)state;
    ranks r = ranks_run(1, train_body, &(job){.kill_after = 4});
    assert_int_equal(r.status[0], 128 + SIGKILL);
    char *text = read_all();
    assert_null(cJSON_ParseWithOpts(text, NULL, true));
    timeline t = parse(strcat(text, "]"));
    check_steps(&t, 0, 4);
    free(t.events);
    free(text);
}

/* A ddp on a part of the ranks writes to the same file, with the job's rank numbers. */
static int subgroup_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    opts.trace = path;
    tern_group *world = tern__group_open_boot(boot, &opts, &err);
    tern_group *half = tern_group_split(world, rank % 2, -rank, NULL, &err);
    RANK_CHECK_OK(rank, err);
    float x = (float)rank;
    tern_all_reduce(half, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(half);
    tern_group_close(world);
    return 0;
}

static void groups_made_from_the_world_write_to_its_timeline(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, subgroup_body, NULL));
    timeline t = read_timeline();
    for (int rank = 0; rank < 4; rank++) {
        check_labels(&t, rank);
        assert_int_equal(count(&t, rank, "all_reduce"), 1);
    }
    free(t.events);
}

static int env_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)boot;
    (void)arg;
    tern_error err = {0};
    setenv("TERN_TRACE", path, 1);
    tern_group *world = tern_group_open(NULL, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(world);
    return 0;
}

static void the_environment_names_the_file(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, env_body, NULL));
    timeline t = read_timeline();
    check_labels(&t, 0);
    free(t.events);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(ranks_are_merged_into_one_timeline),
        TEST(ranks_of_one_process_are_too),
        TEST(a_killed_ranks_steps_are_kept),
        TEST(a_timeline_without_an_end_can_be_read),
        TEST(groups_made_from_the_world_write_to_its_timeline),
        TEST(the_environment_names_the_file),
    };
    requests_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
