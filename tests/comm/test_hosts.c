/* test_hosts.c - what is special about a group over several hosts: its name, windows of other sizes, forked
 * children. The tests of the collectives, which also run over hosts, check its results. */
#include "board.h"
#include "meeting.h"

#include "comm/move/transport/hosts.h"
#include "comm/move/window/window.h"

#include <sys/wait.h>

/* Opens a group of ranks that are on two hosts in turn. */
static tern_group *open_over_hosts(int rank, const tern__bootstrap *boot, const char *backend,
                                   tern_error *err)
{
    tern__bootstrap own = *boot;
    tern_group_opts opts = tern_group_defaults();
    own.host_id = rank % 2 ? "attic" : "barn";
    opts.timeout_s = RANKS_TIMEOUT_S;
    opts.backend = backend;
    return tern__group_open_boot(&own, &opts, err);
}

static int name_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    tern_group *world = open_over_hosts(rank, boot, arg, &err);
    tern_group *here = tern_group_split(world, rank % 2, rank, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !strcmp(tern_group_backend(world), arg ? "gloo" : "native+gloo"));
    RANK_CHECK(rank, !strcmp(tern_group_backend(here), arg ? "gloo" : "native"));
    tern_group_close(here);
    tern_group_close(world);
    return 0;
}

static void a_group_within_a_host_needs_no_transport(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, name_body, NULL));
    assert_ranks_ok(ranks_run(4, name_body, "gloo"));
}

static int window_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = open_over_hosts(rank, boot, NULL, &err);
    RANK_CHECK_OK(rank, err);
    uint32_t window;
    RANK_CHECK(rank, group->backend->window_open(group->state,
                                                 &(tern__window_opts){.bytes = rank == 1 ? 4096 : 8192},
                                                 &window, &err));
    bool is_right = err.code == TERN_E_MISMATCH && strstr(err.text, "8192") && strstr(err.text, "4096") &&
                    strstr(err.text, "rank 1");
    if (!is_right) fprintf(stderr, "%s: %s\n", tern_status_name(err.code), err.text);
    RANK_CHECK(rank, is_right);
    tern_group_close(group);
    return 0;
}

static void windows_of_other_sizes_are_told_to_all(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, window_body, NULL));
}

/* ---- several works at a time ---- */

/* 512 elements are the most that are sent with their header, 513 the fewest that are not. Then one round,
 * several rounds, and more pieces than may be in flight at a time. */
static const size_t flight_counts[] = {1, 512, 513, 70000, 600000, 3, 700001};
enum { FLIGHTS = TERN__COUNT(flight_counts), FLIGHT_ROOM = 700001 };

/* Sums of these are exact in any order. They repeat after FLIGHT_PERIOD elements. */
enum { FLIGHT_PERIOD = 64 };
static float flight_value(int rank, size_t work, size_t i)
{
    return (float)((i * 7 + work * 3 + (size_t)rank * 5) % FLIGHT_PERIOD);
}

static float flight_sum(int world, size_t work, size_t i)
{
    float sum = 0;
    for (int rank = 0; rank < world; rank++) sum += flight_value(rank, work, i);
    return sum;
}

static int flights_right(int rank, int world, float *const *data)
{
    float sums[FLIGHT_PERIOD];
    for (size_t w = 0; w < FLIGHTS; w++) {
        for (size_t i = 0; i < FLIGHT_PERIOD; i++) sums[i] = flight_sum(world, w, i);
        for (size_t i = 0; i < flight_counts[w]; i++) RANK_CHECK(rank, data[w][i] == sums[i % FLIGHT_PERIOD]);
    }
    return 0;
}

static int flight_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    float *data[FLIGHTS];
    tern_work *works[FLIGHTS];
    tern_group *group = open_over_hosts(rank, boot, arg, &err);
    RANK_CHECK_OK(rank, err);
    for (int times = 0; times < 3; times++) {
        for (size_t w = 0; w < FLIGHTS; w++) {
            bool in_window = (w + (size_t)times) % 3 == 0;
            data[w] = in_window ? tern_group_mem_alloc(group, FLIGHT_ROOM * sizeof(float), &err)
                                : malloc(FLIGHT_ROOM * sizeof(float));
            for (size_t i = 0; i < flight_counts[w]; i++) data[w][i] = flight_value(rank, w, i);
        }
        for (size_t w = 0; w < FLIGHTS; w++)
            works[w] = tern_all_reduce_post(group, data[w], flight_counts[w], TERN_F32, TERN_SUM, &err);
        for (size_t w = 0; w < FLIGHTS; w++) tern_work_wait(works[w], &err);
        RANK_CHECK_OK(rank, err);
        if (flights_right(rank, boot->world, data)) return 1;
        for (size_t w = 0; w < FLIGHTS; w++)
            (w + (size_t)times) % 3 == 0 ? tern_group_mem_free(group, data[w]) : free(data[w]);
    }
    tern_group_close(group);
    return 0;
}

/* Hosts of equal size, each with one rank, and of unequal size. */
static void works_overlap(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world += 3) {
        assert_ranks_ok(ranks_run(world, flight_body, NULL));
        assert_ranks_ok(ranks_run(world, flight_body, "gloo"));
    }
    assert_ranks_ok(ranks_run(3, flight_body, NULL));
}

/* ---- ordinary memory ---- */

/* One rank's memory is unaligned; the list has two buffers. */
static int own_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { COUNT = 200000 };
    tern_error err = {0};
    char *room = malloc(COUNT * sizeof(float) + 64), *x = room + (rank ? 1 : 0);
    float value;
    tern_group *group = open_over_hosts(rank, boot, "gloo", &err);
    RANK_CHECK_OK(rank, err);
    for (size_t i = 0; i < COUNT; i++) {
        value = flight_value(rank, 1, i);
        memcpy(x + i * sizeof(value), &value, sizeof(value));
    }
    tern_span list[] = {{x, 1000}, {x + 1000 * sizeof(float), COUNT - 1000}};
    tern_all_reduce_coalesced(group, list, 2, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    for (size_t i = 0; i < COUNT; i++) {
        memcpy(&value, x + i * sizeof(value), sizeof(value));
        RANK_CHECK(rank, value == flight_sum(boot->world, 1, i));
    }
    tern_reduce(group, x, COUNT, TERN_F32, TERN_SUM, 1, &err);
    tern_broadcast(group, x, COUNT, TERN_F32, 1, &err);
    RANK_CHECK_OK(rank, err);
    memcpy(&value, x, sizeof(value));
    RANK_CHECK(rank, value == (float)boot->world * flight_sum(boot->world, 1, 0));
    tern_group_close(group);
    free(room);
    return 0;
}

static void memory_of_ones_own(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) assert_ranks_ok(ranks_run(world, own_body, NULL));
}

/* Rank 1 dies after all have met, and before it has published an address for the transport. */
static int unpublished_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    if (rank == 1) {
        tern__bootstrap own = *boot;
        own.host_id = "attic";
        own.choice = tern__comm_choose("native+gloo", false);
        tern__control_open(&own, tern__store_open(&own, RANKS_TIMEOUT_S, &err), RANKS_TIMEOUT_S, 15, &err);
        RANK_CHECK_OK(rank, err);
        raise(SIGKILL);
    }
    int64_t began = tern__now_ns();
    RANK_CHECK(rank, !open_over_hosts(rank, boot, "native+gloo", &err) && err.code == TERN_E_PEER);
    RANK_CHECK(rank, strstr(err.text, "rank 1 (") && strstr(err.text, "was lost"));
    RANK_CHECK(rank, (double)(tern__now_ns() - began) * 1e-9 < RANKS_SOON_S);
    return 0;
}

static void a_rank_that_dies_before_the_transport_is_open_is_named(void **state)
{
    (void)state;
    ranks r = ranks_run(3, unpublished_body, NULL);
    assert_int_equal(r.status[0], 0);
    assert_int_equal(r.status[1], 128 + SIGKILL);
    assert_int_equal(r.status[2], 0);
}

static atomic_int *opened; /* shared by the ranks */

/* A peer's message may arrive after a rank was told of the failure and has freed the buffer that was meant
 * for it. */
static int failure_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    int64_t in[4] = {0}, out[4];
    tern_group *group = open_over_hosts(rank, boot, arg, &err);
    RANK_CHECK_OK(rank, err);
    const tern__link *link = (const tern__link *)group->root->incoming;
    RANK_CHECK(rank, link->state);
    atomic_fetch_add(opened, 1);
    while (rank == 1 && atomic_load(opened) < boot->world) usleep(100);
    if (rank == 1) tern_group_abort(group, TERN_E_IO, "enough");
    RANK_CHECK(rank, tern_all_to_all(group, in, out, 1, TERN_I64, &err) < 0);
    RANK_CHECK(rank, strstr(err.text, "enough") && !link->state);
    tern_group_close(group);
    return 0;
}

static void after_a_failure_no_message_comes(void **state)
{
    (void)state;
    opened = share_memory(sizeof(*opened));
    for (int world = 2; world <= 4; world++) {
        assert_ranks_ok(ranks_run(world, failure_body, world == 3 ? "gloo" : NULL));
        atomic_store(opened, 0);
    }
    munmap(opened, sizeof(*opened));
}

static int fork_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    float x = 1;
    int status = 0;
    tern_group *group = open_over_hosts(rank, boot, NULL, &err);
    RANK_CHECK_OK(rank, err);
    pid_t child = fork();
    if (!child) {
        tern_error own = {0};
        int code = tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &own);
        tern_group_close(group);
        _exit(code == TERN_E_FORKED ? 0 : 1);
    }
    RANK_CHECK(rank, waitpid(child, &status, 0) == child && status == 0);
    tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, x == (float)boot->world);
    tern_group_close(group);
    return 0;
}

static void a_forked_child_closes_nothing_but_its_own(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, fork_body, NULL));
}

/* ---- ranks that wait for each other ---- */

/* The world, a group of the same ranks, and the time of each rank's last call. Ranks 0 and 2 are on host
 * barn, the others on attic. */
typedef struct astray {
    _Atomic(int64_t) called[RANKS_MAX];
    bool
        in_barrier[RANKS_MAX]; /* these call a barrier of the world while the others sum in the other group */
    double timeout_s;
    int code;
    const char *first, *second, *third; /* parts of the error, or NULL */
} astray;

static int64_t last_call(const astray *a, int world)
{
    int64_t last = 0;
    for (int rank = 0; rank < world; rank++) last = TERN__MAX(last, atomic_load(&a->called[rank]));
    return last;
}

static int check_astray(int rank, int world, const astray *a, const tern_error *err)
{
    int64_t took = tern__now_ns() - last_call(a, world);
    bool is_told =
        a->code == TERN_E_TIMEOUT && err->code == TERN_E_PEER; /* from a rank that timed out before */
    if (err->code != a->code && !is_told) fprintf(stderr, "rank %d: %d: %s\n", rank, err->code, err->text);
    RANK_CHECK(rank, err->code == a->code || is_told);
    RANK_CHECK(rank, took < (int64_t)(a->timeout_s * 1e9) + RANKS_SOON_S * INT64_C(1000000000));
    const char *texts[] = {a->first, a->second, a->third};
    for (size_t i = 0; i < TERN__COUNT(texts); i++) {
        if (!texts[i] || strstr(err->text, texts[i])) continue;
        fprintf(stderr, "rank %d: no \"%s\" in: %s\n", rank, texts[i], err->text);
        return 1;
    }
    return 0;
}

static int astray_body(int rank, const tern__bootstrap *boot, void *arg)
{
    astray *a = arg;
    tern_error err = {0};
    float x[10] = {0};
    tern_group *world = open_over_hosts(rank, boot, NULL, &err);
    tern_group *other = tern_group_split(world, 0, rank, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, all_meet(boot->world, 1));
    if (a->timeout_s) world->opts.timeout_s = other->opts.timeout_s = a->timeout_s;
    atomic_store(&a->called[rank], tern__now_ns());
    if (a->in_barrier[rank])
        tern_barrier(world, &err);
    else
        tern_all_reduce(other, x, 10, TERN_F32, TERN_SUM, &err);
    if (check_astray(rank, boot->world, a, &err)) return 1;
    tern_group_close(other);
    tern_group_close(world);
    return 0;
}

static void run_astray(int world, const astray *what)
{
    astray *a = share_memory(sizeof(*a));
    memcpy(a, what, sizeof(*a));
    assert_ranks_ok(meeting_run(world, astray_body, a));
    munmap(a, sizeof(*a));
}

/* Ranks on one host: reported as soon as in a group on one host, also to the ranks on the other hosts. */
static void ranks_of_a_host_that_wait_for_each_other_are_named(void **state)
{
    (void)state;
    static const char sums[] = "waits in all_reduce of 10 f32, sum (work 1) in the group of ranks 0, 1, 2";
    for (int odd = 0; odd < 4; odd++) {
        char who[32];
        snprintf(who, sizeof(who), "rank %d (", odd);
        astray a = {
            .code = TERN_E_MISMATCH, .first = who, .second = "waits in barrier (work 2)", .third = sums};
        a.in_barrier[odd] = true;
        run_astray(4 + odd % 2, &a);
    }
}

/* Ranks on two hosts: reported at the timeout, with the calls of the ranks that wait elsewhere. */
static void ranks_of_several_hosts_that_wait_for_each_other_are_named(void **state)
{
    (void)state;
    astray barn = {.timeout_s = 0.7,
                   .code = TERN_E_TIMEOUT,
                   .first = " waits in ",
                   .second = "barrier (work 2)",
                   .third = "all_reduce of 10 f32, sum (work 1) in the group of ranks 0, 1, 2, 3"};
    barn.in_barrier[0] = barn.in_barrier[2] = true;
    run_astray(4, &barn);
}

/* Every rank checks for a deadlock before every sleep. Ranks wait in different orders for works of the
 * world, of a group over hosts and of one within a host. These advance while a rank waits for another one,
 * and no deadlock is reported. */
static int orders_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { rounds = THOUSANDS(1) / 5, works = 9 };
    unsigned seed = (unsigned)rank + 1;
    float x[works] = {0};
    uint64_t looks = 0;
    tern_error err = {0};
    tern_group *world = open_over_hosts(rank, boot, NULL, &err);
    tern_group *groups[] = {world, tern_group_split(world, 0, -rank, NULL, &err),
                            tern_group_split(world, rank % 2, rank, NULL, &err)};
    RANK_CHECK_OK(rank, err);
    tern__shm *shm = world->root->shm;
    shm->late_s = 0;
    for (int round = 0; round < rounds; round++) {
        tern_work *work[works];
        int order = rand_r(&seed) % works;
        for (int i = 0; i < works; i++)
            work[i] = tern_all_reduce_post(groups[i % 3], &x[i], 1, TERN_F32, TERN_MAX, &err);
        if (rand_r(&seed) % 8 == 0) usleep((useconds_t)(rand_r(&seed) % 1000));
        for (int i = 0; i < works; i++) tern_work_wait(work[(i + order) % works], &err);
        RANK_CHECK_OK(rank, err);
    }
    for (int r = 0; r < shm->world; r++) looks += tern__deadlock_turn(shm, r);
    RANK_CHECK(rank, looks > 0);
    for (int i = 2; i >= 0; i--) tern_group_close(groups[i]);
    return 0;
}

static void nobody_is_named_who_goes_on(void **state)
{
    (void)state;
    for (int world = 4; world <= 5; world++) assert_ranks_ok(ranks_run(world, orders_body, NULL));
}

/* ---- errors about late ranks ---- */

enum { LATE_RANKS = 4 };

typedef enum act { SUMS_ALL, SUMS_HERE, SUMS_ACROSS, RECEIVES, MEETS, MAKES_GROUP, COMPUTES, STOPS } act;

/* Ranks 0 and 2 are on host barn, ranks 1 and 3 on attic. A teller times out soon. Its error must contain the
 * texts `told` and must not contain `untold`. */
typedef struct late_scene {
    act acts[LATE_RANKS];
    bool tells[LATE_RANKS];
    const char *told[4], *untold[4];
} late_scene;

typedef struct late_stage {
    late_scene scene;
    _Atomic(int64_t) called[LATE_RANKS];
    pid_t pids[LATE_RANKS];
    atomic_int over;
} late_stage;

/* The group "here" has the ranks of the barn, "across" has ranks 1 and 2. */
typedef struct late_groups {
    tern_group *world, *here, *across;
} late_groups;

static bool is_in_state(pid_t pid, char wanted)
{
    char path[64], state = '?';
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    bool is_read = file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    if (file) fclose(file);
    return is_read && state == wanted;
}

static void sum(tern_group *group, size_t count, tern_error *err)
{
    float x[600] = {0};
    if (group) tern_all_reduce(group, x, count, TERN_F32, TERN_SUM, err);
}

static int late_open(late_groups *g, int rank, const tern__bootstrap *boot, tern_error *err)
{
    static const int barn[] = {0, 2}, two_hosts[] = {1, 2};
    g->world = open_over_hosts(rank, boot, NULL, err);
    g->here = tern_group_new(g->world, barn, 2, NULL, err);
    g->across = tern_group_new(g->world, two_hosts, 2, NULL, err);
    sum(g->world, 100, err);
    sum(g->here, 7, err);
    sum(g->across, 8, err);
    tern_barrier(g->world, err);
    RANK_CHECK_OK(rank, *err);
    return 0;
}

static int compute_until_over(late_stage *stage, int rank)
{
    int64_t deadline = tern__now_ns() + RANKS_TIMEOUT_S * INT64_C(1000000000);
    while (!atomic_load(&stage->over)) {
        RANK_CHECK(rank, tern__now_ns() < deadline);
        usleep(1000);
    }
    return 0;
}

static int act_late(const late_groups *g, late_stage *stage, int rank, tern_error *err)
{
    float x[4];
    switch (stage->scene.acts[rank]) {
    case SUMS_ALL: sum(g->world, 600, err); break;
    case SUMS_HERE: sum(g->here, 500, err); break;
    case SUMS_ACROSS: sum(g->across, 501, err); break;
    case RECEIVES: tern_recv(g->world, x, 4, TERN_F32, 3, 5, NULL, err); break;
    case MEETS: tern_barrier(g->world, err); break;
    case MAKES_GROUP: tern_group_split(g->world, 0, rank, NULL, err); break;
    case COMPUTES: return compute_until_over(stage, rank);
    case STOPS: raise(SIGSTOP);
    }
    return 0;
}

/* A teller starts its call when the others are in theirs, or stopped. */
static int await_others(const late_stage *stage, int rank)
{
    int64_t deadline = tern__now_ns() + RANKS_TIMEOUT_S * INT64_C(1000000000);
    for (int other = 0; other < LATE_RANKS; other++) {
        bool stops = stage->scene.acts[other] == STOPS;
        while (stage->scene.tells[other] ? false
               : stops                   ? !is_in_state(stage->pids[other], 'T')
                                         : !atomic_load(&stage->called[other])) {
            RANK_CHECK(rank, tern__now_ns() < deadline);
            usleep(1000);
        }
    }
    return 0;
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) count++;
    return count;
}

/* Each text must occur exactly once. */
static int check_told(int rank, const late_scene *scene, const tern_error *err)
{
    bool is_right = err->code == TERN_E_TIMEOUT || err->code == TERN_E_PEER;
    for (int i = 0; i < 4; i++) {
        if (scene->told[i]) is_right &= count_of(err->text, scene->told[i]) == 1;
        if (scene->untold[i]) is_right &= !strstr(err->text, scene->untold[i]);
    }
    if (!is_right) fprintf(stderr, "rank %d: %d: %s\n", rank, err->code, err->text);
    return !is_right;
}

static int late_body(int rank, const tern__bootstrap *boot, void *arg)
{
    late_stage *stage = arg;
    bool tells = stage->scene.tells[rank];
    late_groups g = {0};
    tern_error err = {0};
    stage->pids[rank] = getpid();
    if (late_open(&g, rank, boot, &err)) return 1;
    RANK_CHECK(rank, all_meet(boot->world, 1));
    tern_group *groups[] = {g.world, g.here, g.across};
    if (tells && await_others(stage, rank)) return 1;
    for (int i = 0; i < 3 && tells; i++)
        if (groups[i]) groups[i]->opts.timeout_s = 1;
    atomic_store(&stage->called[rank], tern__now_ns());
    if (act_late(&g, stage, rank, &err)) return 1;
    int64_t took = tern__now_ns() - atomic_load(&stage->called[rank]);
    atomic_store(&stage->over, 1);
    for (int other = 0; tells && other < LATE_RANKS; other++)
        if (stage->scene.acts[other] == STOPS) kill(stage->pids[other], SIGCONT);
    if (tells) RANK_CHECK(rank, took < (1 + RANKS_SOON_S) * INT64_C(1000000000));
    if (tells && check_told(rank, &stage->scene, &err)) return 1;
    for (int i = 2; i >= 0; i--) tern_group_close(groups[i]);
    return 0;
}

/* The scenes wait beside each other, each in its own meeting. */
static void run_late(const late_scene *scenes, size_t count)
{
    enum { most = 8 };
    ranks started[most];
    atomic_int *kept = met;
    late_stage *stages = share_memory(count * sizeof(*stages));
    assert_true(count <= most);
    for (size_t i = 0; i < count; i++) {
        stages[i].scene = scenes[i];
        met = share_memory(sizeof(*met));
        started[i] = ranks_start(LATE_RANKS, late_body, &stages[i]);
        munmap(met, sizeof(*met));
    }
    met = kept;
    for (size_t i = 0; i < count; i++) ranks_wait(&started[i]);
    for (size_t i = 0; i < count; i++) assert_ranks_ok(started[i]);
    munmap(stages, count * sizeof(*stages));
}

/* Several ranks time out at the same moment, and none claims that another one does not wait. */
static void ranks_that_wait_are_not_accused(void **state)
{
    (void)state;
    const late_scene scene = {.acts = {SUMS_ALL, SUMS_ALL, SUMS_ALL, COMPUTES},
                              .tells = {true, true, true},
                              .told = {"in all_reduce of 600 f32, sum (work 5); rank 3 (",
                                       ") does not wait, its last collective was barrier (work 4)",
                                       "does not wait"},
                              .untold = {"is it stopped"}};
    run_late((const late_scene[]){scene, scene, scene}, 3);
}

static void a_stopped_rank_is_named_once(void **state)
{
    (void)state;
    static const late_scene scenes[] = {
        {.acts = {SUMS_ALL, SUMS_ALL, SUMS_ALL, STOPS},
         .tells = {true},
         .told = {"; rank 3 (", ") does not answer: is it stopped?"},
         .untold = {"does not wait", "whose last"}},
        {.acts = {SUMS_ALL, SUMS_ALL, SUMS_ALL, STOPS},
         .tells = {false, true},
         .told = {"; rank 3 (", ") is stopped (by SIGSTOP or a debugger)"},
         .untold = {"does not wait", "whose last", "is it stopped?"}},
    };
    run_late(scenes, TERN__COUNT(scenes));
}

/* A late rank may wait in a work of a group within a host, in a message, or in a work of other hosts. */
static void what_late_ranks_wait_in_is_told(void **state)
{
    (void)state;
    static const late_scene scenes[] = {
        {.acts = {RECEIVES, COMPUTES, MEETS, COMPUTES},
         .tells = {false, false, true},
         .told = {"; rank 3 (", ") does not wait, its last collective was barrier (work 4); rank 0 (",
                  ") waits in recv of 4 f32 from rank 3, tag 5"},
         .untold = {"rank 1 ("}},
        {.acts = {SUMS_HERE, MEETS, COMPUTES, MEETS},
         .tells = {false, true},
         .told = {"; rank 2 (", ") does not wait, its last collective was barrier (work 4); rank 0 (",
                  ") waits in all_reduce of 500 f32, sum (work 2) in the group of ranks 0, 2, for rank 2"},
         .untold = {"rank 3 (", "rank 0 does not"}},
        {.acts = {SUMS_HERE, COMPUTES, SUMS_ACROSS, COMPUTES},
         .tells = {true},
         .told = {"; not called by rank 2 (",
                  "), which waits in all_reduce of 501 f32, sum (work 2) in the group of ranks 1, 2"},
         .untold = {"whose last"}},
        {.acts = {COMPUTES, COMPUTES, SUMS_ACROSS, COMPUTES},
         .tells = {false, false, true},
         .told = {"in all_reduce of 501 f32, sum (work 2) in the group of ranks 1, 2; rank 1 (",
                  "does not wait, its last collective was barrier (work 4)"},
         .untold = {"rank 0 (", "rank 3 ("}},
        {.acts = {MAKES_GROUP, COMPUTES, COMPUTES, COMPUTES},
         .tells = {true},
         .told = {"rank 0 waited 1 s in tern_group_new or tern_group_split (work 5); rank 2 (",
                  "does not wait, its last collective was barrier (work 4)"},
         .untold = {"all_gather"}},
    };
    run_late(scenes, TERN__COUNT(scenes));
}

/* ---- a rank that leaves while the transport still holds one of its receives ---- */

/* The transport whose `close` takes three seconds, once its connections are closed. */
static tern_transport slow_to_close;
static const tern_transport *usual;
static atomic_int *closed;

static void close_slowly(void *state, bool failed)
{
    usual->close(state, failed);
    atomic_store(closed, 1);
    tern__poll(NULL, 0, tern__deadline(3));
}

/* Whoever receives from any source has asked every rank for a message, and the transport holds what was not
 * answered: ranks 0 and 1 have asked each other. So rank 1 sees that the connection to rank 0 is closed, in
 * a wait for rank 2. */
static int leaver_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    int64_t x = 1;
    tern_group *group = open_over_hosts(rank, boot, arg, &err);
    RANK_CHECK_OK(rank, err);
    for (int to = 0; to < 2 && rank == 2; to++) tern_send(group, &x, 1, TERN_I64, to, 7, &err);
    if (rank < 2) tern_recv(group, &x, 1, TERN_I64, TERN_ANY_SOURCE, 7, NULL, &err);
    tern_barrier(group, &err);
    if (rank == 0) {
        tern__link *link = (tern__link *)group->root->incoming;
        usual = link->transport;
        slow_to_close = *usual;
        slow_to_close.close = close_slowly;
        link->transport = &slow_to_close;
    }
    if (rank == 2 && await_count(closed, 1)) tern_send(group, &x, 1, TERN_I64, 1, 9, &err);
    if (rank == 1) tern_recv(group, &x, 1, TERN_I64, 2, 9, NULL, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(group);
    return 0;
}

static void a_rank_says_that_it_leaves_before_its_connections_close(void **state)
{
    (void)state;
    closed = share_memory(sizeof(*closed));
    assert_ranks_ok(ranks_run(3, leaver_body, "gloo"));
    munmap(closed, sizeof(*closed));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_within_a_host_needs_no_transport),
        cmocka_unit_test(windows_of_other_sizes_are_told_to_all),
        cmocka_unit_test(works_overlap),
        cmocka_unit_test(memory_of_ones_own),
        cmocka_unit_test(a_rank_that_dies_before_the_transport_is_open_is_named),
        cmocka_unit_test(after_a_failure_no_message_comes),
        cmocka_unit_test(a_forked_child_closes_nothing_but_its_own),
        cmocka_unit_test(a_rank_says_that_it_leaves_before_its_connections_close),
        cmocka_unit_test(ranks_of_a_host_that_wait_for_each_other_are_named),
        cmocka_unit_test(ranks_of_several_hosts_that_wait_for_each_other_are_named),
        cmocka_unit_test(nobody_is_named_who_goes_on),
        cmocka_unit_test(ranks_that_wait_are_not_accused),
        cmocka_unit_test(a_stopped_rank_is_named_once),
        cmocka_unit_test(what_late_ranks_wait_in_is_told),
    };
#ifdef __SANITIZE_THREAD__
    return skip_program("ThreadSanitizer sees nothing of what libgloo locks");
#endif
    if (!has_part("gloo")) return skip_program("this build has no gloo");
    if (!board_plugin("tern_gloo.so")) return 1;
    return cmocka_run_group_tests(tests, meeting_setup, NULL);
}
