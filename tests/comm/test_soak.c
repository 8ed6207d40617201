/* test_soak.c - many small works and many short-lived groups: descriptors, threads and memory stay what they
 * were. Many ranks on one core take turns. */
#include "group_fixture.h"

#include <dirent.h>
#include <malloc.h>
#include <sched.h>
#include <time.h>

/* A sanitizer takes ten times as long. It sees what is wrong in the first ones, and what leaks at the end. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WORKS = 5000, GROUPS = 50, WORLD = 2 };
#else
enum { WORKS = 100000, GROUPS = 1000, WORLD = 2 };
#endif

/* Between hosts everything takes the latency of messages. */
static int times(int count)
{
    return getenv("TERN_TEST_HOSTS") ? count / 20 : count;
}

typedef struct footprint {
    int descriptors, threads, mappings;
    long resident_kb;
} footprint;

static int entries_of(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    for (struct dirent *one; dir && (one = readdir(dir));) count += *one->d_name != '.';
    if (dir) closedir(dir);
    return count;
}

static int lines_of(const char *path)
{
    int lines = 0, c;
    FILE *file = fopen(path, "r");
    while (file && (c = getc(file)) != EOF) lines += c == '\n';
    if (file) fclose(file);
    return lines;
}

static footprint footprint_now(void)
{
    footprint now = {.descriptors = entries_of("/proc/self/fd"),
                     .threads = entries_of("/proc/self/task"),
                     .mappings = lines_of("/proc/self/maps")};
    long all, resident = 0;
    malloc_trim(0);
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &all, &resident) != 2) resident = 0;
    if (file) fclose(file);
    now.resident_kb = resident * (sysconf(_SC_PAGESIZE) / 1024);
    return now;
}

/* A few allocations of the C library may come late. A sanitizer keeps what was freed. */
static int footprint_compare(int rank, const footprint *before, const char *after)
{
    footprint now = footprint_now();
    bool same = now.descriptors <= before->descriptors && now.threads <= before->threads;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    same = same && now.mappings <= before->mappings + 8 && now.resident_kb <= before->resident_kb + 1024;
#endif
    if (!same)
        fprintf(stderr,
                "rank %d, after %s: descriptors %d -> %d, threads %d -> %d, mappings %d -> %d, resident %ld "
                "-> %ld KiB\n",
                rank, after, before->descriptors, now.descriptors, before->threads, now.threads,
                before->mappings, now.mappings, before->resident_kb, now.resident_kb);
    RANK_CHECK(rank, same);
    return 0;
}

/* ---- works ---- */

static int works_run(fixture *f, int count)
{
    int32_t own = f->rank, all[WORLD], sum, *window = (int32_t *)f->window;
    for (int i = 0; i < count; i++) {
        sum = i + f->rank;
        *window = i - f->rank;
        switch (i % 5) {
        case 0: tern_all_reduce(f->group, &sum, 1, TERN_I32, TERN_SUM, &f->err); break;
        case 1: tern_all_reduce(f->group, window, 1, TERN_I32, TERN_SUM, &f->err); break;
        case 2: tern_all_gather(f->group, &own, all, 1, TERN_I32, &f->err); break;
        case 3: tern_barrier(f->group, &f->err); break;
        default:
            tern_work_wait(tern_broadcast_post(f->group, &sum, 1, TERN_I32, i % f->world, &f->err), &f->err);
        }
        RANK_CHECK_OK(f->rank, f->err);
        RANK_CHECK(f->rank, i % 5 || sum == 2 * i + 1);
        RANK_CHECK(f->rank, i % 5 != 1 || *window == 2 * i - 1);
        RANK_CHECK(f->rank, i % 5 != 4 || sum == i + i % f->world);
    }
    return 0;
}

static int works_body(int rank, const tern__bootstrap *boot, void *arg)
{
    fixture f;
    (void)arg;
    if (fixture_open(&f, rank, boot, 64) || fixture_map(&f) || works_run(&f, times(WORKS) / 20)) return 1;
    footprint before = footprint_now();
    if (works_run(&f, times(WORKS)) || footprint_compare(rank, &before, "works")) return 1;
    return fixture_close(&f);
}

static void works_leave_nothing_behind(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(WORLD, works_body, NULL));
}

/* ---- groups ---- */

/* A group with memory, a work, and messages in both directions. */
static int groups_run(fixture *f, int count)
{
    for (int i = 0; i < count; i++) {
        int32_t sum = 1, out = f->rank + i, in = -1;
        int peer = 1 - f->rank;
        tern_group *group = tern_group_new(f->group, (int[]){0, 1}, 2, NULL, &f->err);
        int32_t *mem = tern_group_mem_alloc(group, 4096, &f->err);
        RANK_CHECK_OK(f->rank, f->err);
        *mem = f->rank;
        tern_all_reduce(group, mem, 1, TERN_I32, TERN_SUM, &f->err);
        tern_all_reduce(group, &sum, 1, TERN_I32, TERN_SUM, &f->err);
        tern_work *send = tern_isend(group, &out, 1, TERN_I32, peer, 0, &f->err);
        tern_recv(group, &in, 1, TERN_I32, TERN_ANY_SOURCE, 0, NULL, &f->err);
        tern_work_wait(send, &f->err);
        RANK_CHECK_OK(f->rank, f->err);
        RANK_CHECK(f->rank, *mem == 1 && sum == 2 && in == peer + i);
        tern_group_close(group);
    }
    return 0;
}

static int groups_body(int rank, const tern__bootstrap *boot, void *arg)
{
    fixture f;
    (void)arg;
    if (fixture_open(&f, rank, boot, 64) || groups_run(&f, 50)) return 1;
    footprint before = footprint_now();
    if (groups_run(&f, GROUPS) || footprint_compare(rank, &before, "groups")) return 1;
    return fixture_close(&f);
}

static void groups_leave_nothing_behind(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(WORLD, groups_body, NULL));
}

/* ---- whole families ---- */

enum { FAMILIES = 60 };

/* Each has its own meeting: rank 0's listening socket serves all of them. */
static int families_run(int rank, const tern__bootstrap *boot, int count)
{
    for (int i = 0; i < count; i++) {
        fixture f;
        tern__bootstrap own = *boot;
        if (rank == 0) own.listen_fd = dup(boot->listen_fd);
        if (fixture_open(&f, rank, &own, 64)) return 1;
        tern_barrier(f.group, &f.err);
        RANK_CHECK_OK(rank, f.err);
        fixture_close(&f);
    }
    return 0;
}

static int families_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    if (families_run(rank, boot, 10)) return 1;
    footprint before = footprint_now();
    if (families_run(rank, boot, FAMILIES)) return 1;
    return footprint_compare(rank, &before, "families");
}

static void families_leave_nothing_behind(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(WORLD, families_body, NULL));
}

/* ---- many ranks on one core ---- */

enum { CROWD = 16, ROUNDS = 400 };

/* A rank that waits leaves the core to the one it waits for: one that spun to the end of its time slice would
 * take milliseconds of the core each time. */
static int crowd_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const int *core = arg;
    cpu_set_t one;
    struct timespec used;
    fixture f;
    CPU_ZERO(&one);
    CPU_SET(*core, &one);
    RANK_CHECK(rank, sched_setaffinity(0, sizeof(one), &one) == 0);
    if (fixture_open(&f, rank, boot, 64)) return 1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    double before = (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
    for (int i = 0; i < times(ROUNDS); i++) {
        int32_t sum = i;
        tern_barrier(f.group, &f.err);
        tern_all_reduce(f.group, &sum, 1, TERN_I32, TERN_SUM, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, sum == CROWD * i);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    double each = ((double)used.tv_sec + 1e-9 * (double)used.tv_nsec - before) / (2.0 * times(ROUNDS));
    if (rank == 0) printf("%g us of the core for a work of %d ranks, in each\n", 1e6 * each, CROWD);
    RANK_CHECK(rank, each < 1e-3);
    return fixture_close(&f);
}

static void many_ranks_on_one_core_take_turns(void **state)
{
    (void)state;
    int core = sched_getcpu();
    assert_ranks_ok(ranks_run(CROWD, crowd_body, &core));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_ranks_on_one_core_take_turns), cmocka_unit_test(works_leave_nothing_behind),
        cmocka_unit_test(groups_leave_nothing_behind), cmocka_unit_test(families_leave_nothing_behind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
