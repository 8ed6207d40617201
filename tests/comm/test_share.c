/* test_share.c - the ranks of a host share cores if their CPU sets overlap. */
#include "group_fixture.h"

#include "device/device.h"

#include <sched.h>

/* Rank r is bound to CPU number cpu_of[r] of the test's mask; if negative, it is not bound. */
typedef struct binding {
    cpu_set_t all;
    int cpu_of[3], sharers[3], place[3];
} binding;

static void bind_to(const cpu_set_t *all, int number)
{
    cpu_set_t one;
    int cpu = 0;
    CPU_ZERO(&one);
    while (!CPU_ISSET(cpu, all) || number--) cpu++;
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);
}

/* The rank resets its affinity to all cores before it asks for its share, so the share's size shows between
 * how many ranks the cores are divided. The group has determined these ranks already. */
static int check_share(int rank, const tern__bootstrap *boot, void *arg)
{
    const binding *b = arg;
    tern_error err = {0};
    int first, count;
    if (b->cpu_of[rank] >= 0) bind_to(&b->all, b->cpu_of[rank]);
    tern_group *group = open_group(boot, &err);
    tern_barrier(group, &err);
    sched_setaffinity(0, sizeof(b->all), &b->all);
    tern__device_share(&first, &count, &err);
    tern_group_close(group);
    RANK_CHECK_OK(rank, err);
    int cores = tern__device_cores(), share = TERN__MAX(1, cores / b->sharers[rank]);
    RANK_CHECK(rank, count == share);
    RANK_CHECK(rank, first == b->place[rank] * share % cores);
    return 0;
}

static void cores_are_divided_among_those_who_share_them(void **state)
{
    (void)state;
    binding b = {.cpu_of = {-1, -1, -1}, .sharers = {3, 3, 3}, .place = {0, 1, 2}};
    assert_int_equal(sched_getaffinity(0, sizeof(b.all), &b.all), 0);
    assert_ranks_ok(ranks_run(3, check_share, &b));
    if (CPU_COUNT(&b.all) < 2) skip_test("one core, or not all of them are ours");
    b = (binding){.all = b.all, .cpu_of = {0, 1}, .sharers = {1, 1}};
    assert_ranks_ok(ranks_run(2, check_share, &b));
    b = (binding){.all = b.all, .cpu_of = {1, 0, 1}, .sharers = {2, 1, 2}, .place = {0, 0, 1}};
    assert_ranks_ok(ranks_run(3, check_share, &b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cores_are_divided_among_those_who_share_them)};
    unsetenv("LOCAL_WORLD_SIZE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
