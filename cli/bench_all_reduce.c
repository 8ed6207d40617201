/* bench_all_reduce.c - `tern bench all_reduce`: how long a sum of floats over all ranks takes, beside the
 * least that the memory allows.
 *
 * A time is that of all ranks together. The bound is the time in which all ranks at once pass over as many
 * bytes of their own in place (read, add, write): a reduction moves no less. Small sizes are timed many at a
 * time, and have no bound: there it is the way between two cores that counts. */
#include "bench.h"

#include "kernels/kernel.h"

#include <tern.h>

#include <cjson/cJSON.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIZES_MAX = 32,
    SAMPLES_MAX = 101,
    SAMPLES_MIN = 5,
    WARM_UP = 3,
    SMALL_BYTES = 64 << 10,
    SMALL_CALLS = 200, /* timed together */
};
#define BUDGET_NS 1e9 /* of one size */

typedef struct settings {
    size_t sizes[SIZES_MAX];
    int count;
    bool plain, json;
} settings;

typedef struct bench {
    tern_group *world;
    int rank, ranks;
    float *buf;
    size_t floats;
    double samples[SAMPLES_MAX]; /* seconds */
} bench;

typedef struct result {
    size_t bytes;
    double median_s, bound_s; /* bound_s: 0 if there is none */
} result;

static const char usage[] =
    "usage: tern bench all_reduce [--sizes 4,1K,64K,1M,25M,100M] [--memory window|plain] [--json]\n"
    "\n"
    "Times a sum of floats over all ranks: tern run -n 2 tern bench all_reduce. Sizes are bytes of one rank, "
    "in\n"
    "steps of 4; K, M and G are powers of 1024. `window` memory is reached by all ranks, `plain` is copied\n"
    "through a ring. ratio: time over that of a read-add-write pass of all ranks over as many bytes.\n";

/* ---- measuring ---- */

static void reduce(bench *b, tern_error *err)
{
    tern_all_reduce(b->world, b->buf, b->floats, TERN_F32, TERN_SUM, err);
}

TERN__SIMD static void add_one(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] += 1;
}

static void pass(bench *b, tern_error *err)
{
    (void)err;
    add_one(b->buf, b->floats);
}

/* Seconds of one call, from the first rank's start to the last one's end: where ranks share a core, one that
 * has to wait for it would otherwise not count what it waited for. The ranks of a host share a clock. */
static double time_calls(bench *b, void (*call)(bench *, tern_error *), int calls, tern_error *err)
{
    tern_barrier(b->world, err);
    int64_t started = tern__now_ns();
    for (int i = 0; i < calls; i++) call(b, err);
    int64_t span[2] = {-started, tern__now_ns()};
    tern_all_reduce(b->world, span, 2, TERN_I64, TERN_MAX, err);
    return (double)(span[0] + span[1]) * 1e-9 / calls;
}

/* All ranks know the same times, so all take the same number of samples. */
static double median_time(bench *b, void (*call)(bench *, tern_error *), int calls, tern_error *err)
{
    double trial = 0;
    for (int i = 0; i < WARM_UP; i++) trial = time_calls(b, call, calls, err);
    double fit = BUDGET_NS * 1e-9 / (trial * calls + 1e-9);
    int samples = fit > SAMPLES_MAX ? SAMPLES_MAX : fit < SAMPLES_MIN ? SAMPLES_MIN : (int)fit;
    for (int i = 0; i < samples && !err->code; i++) b->samples[i] = time_calls(b, call, calls, err);
    return tern__bench_median(b->samples, (size_t)samples);
}

static float *alloc(const bench *b, const settings *set, size_t bytes, tern_error *err)
{
    return set->plain ? tern__alloc(bytes, "tern bench all_reduce", err)
                      : tern_group_mem_alloc(b->world, bytes, err);
}

static result measure(bench *b, const settings *set, size_t bytes, tern_error *err)
{
    result r = {.bytes = bytes};
    b->floats = bytes / sizeof(*b->buf);
    b->buf = alloc(b, set, bytes, err);
    bool small = bytes < SMALL_BYTES;
    if (!err->code) r.median_s = median_time(b, reduce, small ? SMALL_CALLS : 1, err);
    if (!err->code && !small) r.bound_s = median_time(b, pass, 1, err);
    if (set->plain)
        tern__free(b->buf);
    else
        tern_group_mem_free(b->world, b->buf);
    return r;
}

/* ---- printing ---- */

static double algbw_gbs(const result *r)
{
    return (double)r->bytes / r->median_s * 1e-9;
}

/* As nccl-tests count: what each rank must send and receive. */
static double busbw_gbs(const bench *b, const result *r)
{
    return algbw_gbs(r) * 2 * (b->ranks - 1) / b->ranks;
}

static void print_json(const bench *b, const settings *set, const result *r)
{
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "op", "all_reduce");
    cJSON_AddStringToObject(line, "backend", tern_group_backend(b->world));
    cJSON_AddStringToObject(line, "memory", set->plain ? "plain" : "window");
    cJSON_AddNumberToObject(line, "ranks", b->ranks);
    cJSON_AddNumberToObject(line, "bytes", (double)r->bytes);
    cJSON_AddNumberToObject(line, "median_us", r->median_s * 1e6);
    cJSON_AddNumberToObject(line, "algbw_gbs", algbw_gbs(r));
    cJSON_AddNumberToObject(line, "busbw_gbs", busbw_gbs(b, r));
    if (r->bound_s > 0)
        cJSON_AddNumberToObject(line, "bound_ratio", r->median_s / r->bound_s);
    else
        cJSON_AddNullToObject(line, "bound_ratio");
    char *text = cJSON_PrintUnformatted(line);
    if (text) puts(text);
    cJSON_free(text);
    cJSON_Delete(line);
}

static void print_head(const bench *b, const settings *set)
{
    printf("all_reduce of f32, sum, %d rank%s, %s, %s memory\n", b->ranks, b->ranks == 1 ? "" : "s",
           tern_group_backend(b->world), set->plain ? "plain" : "window");
    printf("%12s %12s %10s %10s %8s\n", "bytes", "median us", "alg GB/s", "bus GB/s", "ratio");
}

static void print_row(const bench *b, const result *r)
{
    printf("%12zu %12.2f %10.3f %10.3f", r->bytes, r->median_s * 1e6, algbw_gbs(r), busbw_gbs(b, r));
    if (r->bound_s > 0)
        printf(" %8.2f\n", r->median_s / r->bound_s);
    else
        printf(" %8s\n", "-");
}

/* ---- options ---- */

static bool parse_size(const char *text, size_t *bytes)
{
    static const char units[] = "KMG";
    char *end;
    if (*text < '0' || *text > '9') return false;
    unsigned long long number = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (end[unit != NULL] || !number || number > (UINT64_C(1) << 40) >> shift) return false;
    *bytes = (size_t)(number << shift);
    return *bytes % sizeof(float) == 0;
}

static bool parse_sizes(char *text, settings *set)
{
    set->count = 0;
    for (char *one; (one = strsep(&text, ",")); set->count++) {
        if (set->count == SIZES_MAX) {
            fprintf(stderr, "tern bench all_reduce: --sizes: at most %d\n", SIZES_MAX);
            return false;
        }
        if (parse_size(one, &set->sizes[set->count])) continue;
        fprintf(stderr,
                "tern bench all_reduce: --sizes: expected bytes in steps of 4, as in 4,64K,25M, got \"%s\"\n",
                one);
        return false;
    }
    return true;
}

static bool parse_memory(const char *text, settings *set)
{
    set->plain = !strcmp(text, "plain");
    if (set->plain || !strcmp(text, "window")) return true;
    fprintf(stderr, "tern bench all_reduce: --memory: expected window or plain, got \"%s\"\n", text);
    return false;
}

/* TERN__EXIT_OK to go on; -1 after --help; TERN__EXIT_USAGE. */
static int parse(int argc, char **argv, settings *set)
{
    static const struct option options[] = {
        {"sizes", required_argument, NULL, 's'},
        {"memory", required_argument, NULL, 'm'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    argv[0] = "tern bench all_reduce"; /* as getopt names it */
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        bool fine = true;
        switch (option) {
        case 's': fine = parse_sizes(optarg, set); break;
        case 'm': fine = parse_memory(optarg, set); break;
        case 'j': set->json = true; break;
        case 'h': fputs(usage, stdout); return -1;
        default: fine = false;
        }
        if (!fine) return TERN__EXIT_USAGE;
    }
    if (optind == argc) return TERN__EXIT_OK;
    fprintf(stderr, "tern bench all_reduce: unexpected \"%s\"\n", argv[optind]);
    return TERN__EXIT_USAGE;
}

static void run(bench *b, const settings *set, tern_error *err)
{
    if (b->rank == 0 && !set->json) print_head(b, set);
    for (int i = 0; i < set->count && !err->code; i++) {
        result r = measure(b, set, set->sizes[i], err);
        if (b->rank != 0 || err->code) continue;
        if (set->json)
            print_json(b, set, &r);
        else
            print_row(b, &r);
        fflush(stdout);
    }
}

int tern__bench_all_reduce(int argc, char **argv)
{
    settings set = {.sizes = {4, 1 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20}, .count = 6};
    int status = parse(argc, argv, &set);
    if (status) return status < 0 ? TERN__EXIT_OK : status;
    tern_error err = {0};
    bench b = {.world = tern_group_open(NULL, &err)};
    if (b.world) {
        b.rank = tern_group_rank(b.world);
        b.ranks = tern_group_size(b.world);
        run(&b, &set, &err);
    }
    tern_error_print(&err);
    tern_group_close(b.world);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
