/* rank.c - a program that uses tern but not MPI; the tests start it with mpirun. Its first argument chooses
 * what it does. */
#include <tern.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    return 1;
}

/* Checks the sum over all ranks of a value that differs between them. */
static int check_sum(tern_group *world, tern_error *err)
{
    int64_t rank = tern_group_rank(world), size = tern_group_size(world), x[1000];
    for (int i = 0; i < 1000; i++) x[i] = (rank + 1) * (i + 1);
    if (tern_all_reduce(world, x, 1000, TERN_I64, TERN_SUM, err)) return tern_error_print(err);
    for (int i = 0; i < 1000; i++)
        if (x[i] != (i + 1) * size * (size + 1) / 2) return fail("a wrong sum");
    return 0;
}

static int sum(tern_group *world, tern_error *err)
{
    printf("rank %d of %d, local %d, pid %d, %s\n", tern_group_rank(world), tern_group_size(world),
           tern_group_local_rank(world), (int)getpid(), tern_group_backend(world));
    fflush(stdout);
    return check_sum(world, err);
}

/* Returns a hash of sums whose bits depend on the order of the additions. All ranks must get the same hash.
 */
static uint64_t hash_of_sums(tern_group *world, tern_error *err)
{
    static const size_t counts[] = {1, 2, 3, 64, 1001, 70000};
    static float x[70000];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        uint32_t state = 12345u * (uint32_t)(tern_group_rank(world) + 1);
        for (size_t i = 0; i < counts[c]; i++) {
            state = state * 1664525u + 1013904223u;
            x[i] = ((float)(state >> 8) - 8388608.0f) * 1e-5f;
        }
        tern_all_reduce(world, x, counts[c], TERN_F32, TERN_SUM, err);
        for (size_t i = 0; i < counts[c] * sizeof(x[0]); i++)
            hash = (hash ^ ((const unsigned char *)x)[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static int bits(tern_group *world, tern_error *err)
{
    uint64_t hash = hash_of_sums(world, err);
    if (err->code) return tern_error_print(err);
    printf("hash %016llx\n", (unsigned long long)hash);
    return 0;
}

/* Sums so much that its packets are large, until the network loses them. */
static int pour(tern_group *world, tern_error *err)
{
    if (sum(world, err)) return 1;
    while (!err->code) hash_of_sums(world, err);
    return tern_error_print(err);
}

/* Sums until a rank is killed. */
static int work(tern_group *world, tern_error *err)
{
    if (sum(world, err)) return 1;
    while (!check_sum(world, err)) usleep(1000);
    return 1;
}

/* Rank 1 exits with `code` and with its group open, while the others go on. */
static int desert(tern_group *world, int code, tern_error *err)
{
    if (tern_group_rank(world) == 1) exit(code);
    return check_sum(world, err);
}

/* Like a static C++ object that owns its group: constructed before the group, destroyed when the process
 * exits. */
static tern_group *kept;

static void close_kept(void)
{
    tern_group_close(kept);
}

static int keep(tern_group *world, tern_error *err)
{
    kept = world;
    return sum(world, err);
}

int main(int argc, char **argv)
{
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    const char *what = argc > 1 ? argv[1] : "sum";
    if (!strcmp(what, "impatient")) opts.connect_timeout_s = 1;
    if (!strcmp(what, "warn")) opts.connect_timeout_s = 8; /* the warning comes after half of it */
    if (!strcmp(what, "pour")) opts.timeout_s = 4;
    if (!strcmp(what, "keep")) atexit(close_kept);
    if (!strcmp(what, "hurry") && argc > 2) opts.timeout_s = opts.host_timeout_s = atof(argv[2]);
    int status = 0;
    for (int times = strcmp(what, "twice") ? 1 : 2; times && !status; times--) {
        tern_group *world = tern_group_open(&opts, &err);
        if (!world) return tern_error_print(&err);
        if (!strcmp(what, "keep")) return keep(world, &err);
        bool works = !strcmp(what, "work") || !strcmp(what, "hurry");
        status = works ? work(world, &err) : sum(world, &err);
        if (!status && !strcmp(what, "pour")) status = pour(world, &err);
        if (!status && !strcmp(what, "bits")) status = bits(world, &err);
        if (!status && !strcmp(what, "leave")) status = desert(world, 0, &err);
        if (!status && !strcmp(what, "exit")) status = desert(world, 7, &err);
        tern_group_close(world);
    }
    return status;
}
