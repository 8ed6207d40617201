/* What is peculiar to a group that spans hosts: its name, windows of other sizes, forked children. That its
 * results are right is shown by the tests of the collectives, which run over hosts, too. */
#include "board.h"
#include "group_fixture.h"

#include "comm/hosts/hosts.h"

#include <stdatomic.h>
#include <sys/wait.h>

/* Two hosts in turn. */
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
    RANK_CHECK(rank, !tern_group_mem_alloc(group, rank == 1 ? 4096 : 8192, &err));
    RANK_CHECK(rank, err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(err.text, "8192") && strstr(err.text, "4096") && strstr(err.text, "rank 1"));
    tern_group_close(group);
    return 0;
}

static void windows_of_other_sizes_are_told_to_all(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, window_body, NULL));
}

/* ---- several works at a time ---- */

/* The last that goes over with its head, the first that does not; one round, several; more pieces than are
 * under way at a time. */
static const size_t flight_counts[] = {1, 512, 513, 70000, 600000, 3, 700001};
enum { FLIGHTS = TERN__COUNT(flight_counts), FLIGHT_ROOM = 700001 };

/* Sums of these are exact in any order. */
static float flight_value(int rank, size_t work, size_t i)
{
    return (float)((i * 7 + work * 3 + (size_t)rank * 5) % 64);
}

static float flight_sum(int world, size_t work, size_t i)
{
    float sum = 0;
    for (int rank = 0; rank < world; rank++) sum += flight_value(rank, work, i);
    return sum;
}

static int flights_right(int rank, int world, float *const *data)
{
    for (size_t w = 0; w < FLIGHTS; w++)
        for (size_t i = 0; i < flight_counts[w]; i++) RANK_CHECK(rank, data[w][i] == flight_sum(world, w, i));
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

static void works_overlap(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        assert_ranks_ok(ranks_run(world, flight_body, NULL));
        assert_ranks_ok(ranks_run(world, flight_body, "gloo"));
    }
}

/* ---- memory of a rank's own ---- */

/* One rank's memory is odd, another's is in two buffers: each its own affair. */
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

static atomic_int *opened; /* the ranks share it */

/* A peer's message may come later, and whoever was told has freed the memory that it was for. */
static int failure_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    int64_t in[4] = {0}, out[4];
    tern_group *group = open_over_hosts(rank, boot, arg, &err);
    RANK_CHECK_OK(rank, err);
    const tern__link *link = group->root->link;
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
    opened = mmap(NULL, sizeof(*opened), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(opened, MAP_FAILED);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_within_a_host_needs_no_transport),
        cmocka_unit_test(windows_of_other_sizes_are_told_to_all),
        cmocka_unit_test(works_overlap),
        cmocka_unit_test(memory_of_ones_own),
        cmocka_unit_test(after_a_failure_no_message_comes),
        cmocka_unit_test(a_forked_child_closes_nothing_but_its_own),
    };
#ifdef __SANITIZE_THREAD__
    return puts("skipped: ThreadSanitizer sees nothing of what libgloo locks"), 77;
#endif
    if (!board_plugin("tern_gloo.so")) return puts("skipped: the gloo plug-in was not built"), 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
