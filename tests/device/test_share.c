/* test_share.c - a rank's share of the cores. The machine's cores, the binding, OpenMP's places and the
 * cgroup quota are simulated. */
#include "device/device.h"
#include "ledger.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static int allowed, online;
static int later = -1; /* allowed from the second look on; -1: as many */
static bool is_hidden; /* the affinity cannot be read                  */
static int places;     /* OpenMP's places, of one CPU each from CPU 0 on */
static int at_start;   /* CPUs before OpenMP bound the thread            */

/* A simulated file about the process's cgroups; a NULL path ends the list. */
typedef struct text_file {
    const char *path, *text;
} text_file;

static const text_file none[] = {{NULL}}, *files = none;

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    (void)pid;
    if (is_hidden) return errno = EPERM, -1;
    memset(set, 0, size);
    for (int cpu = 0; cpu < allowed; cpu++) CPU_SET(cpu, set);
    if (later >= 0) allowed = later;
    return 0;
}

#ifdef _OPENMP
omp_proc_bind_t omp_get_proc_bind(void)
{
    return places ? omp_proc_bind_true : omp_proc_bind_false;
}

int omp_get_num_places(void)
{
    return places;
}

int omp_get_place_num_procs(int place)
{
    return place < places;
}

void omp_get_place_proc_ids(int place, int *ids)
{
    *ids = place;
}

int omp_get_num_procs(void)
{
    return at_start;
}
#endif

long sysconf(int name)
{
    static long (*real)(int);
    if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_NPROCESSORS_ONLN ? online : real(name);
}

FILE *fopen(const char *path, const char *mode)
{
    static FILE *(*real)(const char *, const char *);
    if (!real) real = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    if (strncmp(path, "/sys/fs/cgroup/", 15) != 0 && strcmp(path, "/proc/self/cgroup") != 0)
        return real(path, mode);
    for (const text_file *file = files; file->path; file++)
        if (!strcmp(file->path, path)) return fmemopen((void *)file->text, strlen(file->text), "r");
    return NULL;
}

static void set_int(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

/* Sets the variables that Open MPI sets for a rank. */
static void be_rank(int rank, int ranks, bool is_bound)
{
    set_int("OMPI_COMM_WORLD_RANK", rank);
    set_int("OMPI_COMM_WORLD_SIZE", ranks);
    set_int("OMPI_COMM_WORLD_LOCAL_RANK", rank);
    set_int("OMPI_COMM_WORLD_LOCAL_SIZE", ranks);
    if (is_bound)
        setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
    else
        unsetenv("OMPI_MCA_orte_bound_at_launch");
}

static void check_share(int expected_first, int expected_count)
{
    tern_error err = {0};
    int first, count;
    tern__device_share(&first, &count, &err);
    assert_ok(err);
    assert_int_equal(count, expected_count);
    assert_int_equal(first, expected_first);
}

static void the_cores_of_a_machine_are_divided(void **state)
{
    (void)state;
    allowed = online = 32;
    for (int rank = 0; rank < 3; rank++) {
        be_rank(rank, 3, false);
        check_share(rank * 10, 10);
    }
    be_rank(39, 40, false);
    check_share(7, 1);
}

static void cores_that_are_taken_away_meanwhile(void **state)
{
    (void)state;
    allowed = online = 8, later = 1;
    be_rank(0, 1, false);
    check_share(0, 8);
    later = -1;
    check_share(0, 1);
}

static void without_an_affinity_all_cores_count(void **state)
{
    (void)state;
    online = 6, is_hidden = true;
    be_rank(1, 2, false);
    check_share(3, 3);
    is_hidden = false;
}

/* Three ranks on two sockets of 16 cores each get 11 cores, and two such shares do not fit into a socket. */
static void a_share_ends_with_the_cores_that_a_launcher_has_chosen(void **state)
{
    (void)state;
    allowed = 16, online = 32;
    for (int rank = 0; rank < 3; rank++) {
        be_rank(rank, 3, true);
        check_share(0, 11);
    }
    allowed = 8;
    be_rank(3, 8, true);
    check_share(4, 4);
}

#ifdef _OPENMP
static void the_cores_are_those_of_all_places(void **state)
{
    (void)state;
    allowed = 1, online = at_start = 8;
    be_rank(0, 1, false);
    check_share(0, 1);
    for (places = 1; places <= 8; places++) check_share(0, places);
    places = 8;
    be_rank(1, 2, false);
    check_share(4, 4);
    at_start = 2; /* GOMP_CPU_AFFINITY also lists CPUs that the process may not use */
    be_rank(0, 1, false);
    check_share(0, 1);
    places = 0;
}
#endif

/* They share it, whatever cores they are bound to. */
static void a_quota_is_that_of_all_ranks_of_the_host(void **state)
{
    (void)state;
    static const text_file eight[] = {
        {"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "800000 100000\n"}, {NULL}};
    allowed = 16, online = 32, files = eight;
    be_rank(1, 2, true);
    check_share(4, 4);
    tern__device_share_among(0, 1, 2);
    check_share(0, 4);
    tern__device_share_among(1, 2, 4);
    check_share(2, 2);
    tern__device_share_among(0, 0, 0);
    be_rank(1, 2, false);
    check_share(4, 4);
    files = none;
}

static void check_quota(const text_file *system, int expected)
{
    files = system;
    assert_int_equal(tern__device_cores(), expected);
    files = none;
}

/* In either version of cgroups, of the process's group or of one above it, whichever group appears as the
 * root. */
static void a_quota_is_found_where_it_is(void **state)
{
    (void)state;
    allowed = online = 32;
    check_quota(none, 32);
    check_quota((text_file[]){{"/proc/self/cgroup", "0::/a\n"},
                              {"/sys/fs/cgroup/a/cpu.max", "max 100000\n"},
                              {"/sys/fs/cgroup/cpu.max", "max 100000\n"},
                              {NULL}},
                32);
    check_quota((text_file[]){{"/proc/self/cgroup", "0::/slurm/job_1/step_0\n"},
                              {"/sys/fs/cgroup/slurm/job_1/step_0/cpu.max", "max 100000\n"},
                              {"/sys/fs/cgroup/slurm/job_1/cpu.max", "400000 100000\n"},
                              {"/sys/fs/cgroup/slurm/cpu.max", "800000 100000\n"},
                              {NULL}},
                4);
    check_quota((text_file[]){{"/proc/self/cgroup", "5:cpuset:/b\n4:cpu,cpuacct:/job:1\n0::/\n"},
                              {"/sys/fs/cgroup/cpu/job:1/cpu.cfs_quota_us", "150000\n"},
                              {"/sys/fs/cgroup/cpu/job:1/cpu.cfs_period_us", "50000\n"},
                              {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                              {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
                              {NULL}},
                3);
    check_quota((text_file[]){{"/proc/self/cgroup", "4:cpuacct,cpu:/docker/1234\n"},
                              {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"},
                              {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
                              {NULL}},
                1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cores_of_a_machine_are_divided),
        cmocka_unit_test(cores_that_are_taken_away_meanwhile),
        cmocka_unit_test(without_an_affinity_all_cores_count),
        cmocka_unit_test(a_share_ends_with_the_cores_that_a_launcher_has_chosen),
#ifdef _OPENMP
        cmocka_unit_test(the_cores_are_those_of_all_places),
#endif
        cmocka_unit_test(a_quota_is_that_of_all_ranks_of_the_host),
        cmocka_unit_test(a_quota_is_found_where_it_is),
    };
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
