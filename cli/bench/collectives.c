/* collectives.c - `tern bench all_reduce` and the like: times a collective, or send/recv, and compares it
 * with the memory-bandwidth bound. `tern bench collectives` does so for all of them.
 *
 * Each size is checked for correct results on all ranks before it is timed. A time runs from the first rank's
 * start to the last rank's end; send/recv counts half of a round trip. The bound is the time that all ranks
 * together need to read, increment and write in place as many bytes of their own as the collective must read
 * and write. Small sizes are timed many calls at a time and have no bound, since the latency between two
 * cores dominates there. */
#include "bench/bench.h"
#include "bench/collective.h"

#include "kernels/kernel.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SIZES_MAX = 32,
    SIZE_STEP = sizeof(float), /* of --sizes */
    SAMPLES_MAX = 101,
    SAMPLES_MIN = 5,
    WARM_UP = 3,
    SMALL_BYTES = 64 << 10,
    SMALL_CALLS = 200, /* timed together */
};

typedef struct settings {
    const tern__collective *op; /* NULL: all */
    size_t sizes[SIZES_MAX];
    int count;
    double budget_s; /* for one size */
    tern_dtype dtype;
    const char *backend;
    bool plain, json;
} settings;

typedef struct bench {
    const settings *set;
    tern__trial trial;
    size_t bytes, passed; /* of the call; of the bound's pass */
    float *scratch;
    double samples[SAMPLES_MAX]; /* seconds */
} bench;

typedef struct result {
    size_t bytes;
    double median_s, bound_s; /* bound_s 0: no bound */
} result;

#define BACK_ENDS                                                                                            \
    "NAME: native, mpi, gloo, native+mpi, native+gloo, optionally with the prefix nccl+ or debug+."

static const char barrier_usage[] =
    "usage: tern bench barrier [--backend NAME] [--seconds S] [--json]\n"
    "\n"
    "Times %s, for about S seconds (default 1): tern run -n 2 tern bench barrier.\n" BACK_ENDS "\n";

static const char usage[] =
    "usage: tern bench %s [--sizes 4,1K,64K,1M,25M,100M] [--memory window|plain] [--dtype f32|bf16]\n"
    "       [--backend NAME] [--seconds S] [--json]\n"
    "\n"
    "Times %s: tern run -n 2 tern bench %s. A size is the bytes of\n"
    "the whole buffer of a rank, rounded up to equal parts; K, M and G are powers of 1024. All ranks can "
    "access\n"
    "`window` memory directly; `plain` memory is copied through a ring.\n" BACK_ENDS "\n"
    "ratio: the time divided by that of a read-add-write pass of all ranks over as many bytes as the "
    "collective\n"
    "must read and write. Results are checked before they are timed. Each size is timed for about S seconds\n"
    "(default 1 for one collective, 0.3 for all).\n";

/* ---- measuring ---- */

static void call(bench *b, tern_error *err)
{
    b->trial.op->call(&b->trial, err);
}

TERN__SIMD static void add_one(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] += 1;
}

static void pass(bench *b, tern_error *err)
{
    (void)err;
    add_one(b->scratch, b->passed / sizeof(float));
}

/* Returns the seconds of one call, from the first rank's start to the last rank's end. Where ranks share a
 * core, a rank's own time would leave out its wait for the core. The ranks of a host share a clock. */
static double time_calls(bench *b, void (*what)(bench *, tern_error *), int calls, tern_error *err)
{
    tern_barrier(b->trial.world, err);
    int64_t started = tern__now_ns();
    for (int i = 0; i < calls; i++) what(b, err);
    int64_t span[2] = {-started, tern__now_ns()};
    tern_all_reduce(b->trial.world, span, 2, TERN_I64, TERN_MAX, err);
    return (double)(span[0] + span[1]) * 1e-9 / calls;
}

/* All ranks see the same times, so they take the same number of samples. */
static double median_time(bench *b, void (*what)(bench *, tern_error *), int calls, tern_error *err)
{
    double trial = 0;
    for (int i = 0; i < WARM_UP; i++) trial = time_calls(b, what, calls, err);
    double fit = b->set->budget_s / (trial * calls + 1e-9);
    int samples = fit > SAMPLES_MAX ? SAMPLES_MAX : fit < SAMPLES_MIN ? SAMPLES_MIN : (int)fit;
    for (int i = 0; i < samples && !err->code; i++) b->samples[i] = time_calls(b, what, calls, err);
    return tern__bench_median(b->samples, (size_t)samples);
}

static void *alloc(const bench *b, size_t bytes, tern_error *err)
{
    if (!bytes) return NULL;
    return b->set->plain ? tern__alloc(bytes, "tern bench", err)
                         : tern_group_mem_alloc(b->trial.world, bytes, err);
}

static void release(const bench *b, void *buf)
{
    if (b->set->plain)
        tern__free(buf);
    else
        tern_group_mem_free(b->trial.world, buf);
}

/* Clears the input: sums repeated in place would overflow to infinity. */
static void clear(const bench *b)
{
    size_t bytes = tern__collective_holds(b->trial.op->in, b->bytes, b->trial.ranks);
    if (bytes) memset(b->trial.in, 0, bytes);
}

static void time_checked(bench *b, result *r, tern_error *err)
{
    bool small = b->bytes < SMALL_BYTES;
    tern__collective_fill(&b->trial);
    call(b, err);
    if (err->code || tern__collective_check(&b->trial, err)) return;
    clear(b);
    r->median_s = median_time(b, call, small ? SMALL_CALLS : 1, err);
    if (tern__collective_is_pair(b->trial.op)) r->median_s /= 2;
}

static double time_bound(bench *b, tern_error *err)
{
    b->passed = (size_t)tern__collective_bound(b->trial.op, b->bytes, b->trial.ranks);
    if (b->bytes < SMALL_BYTES || !b->passed) return 0;
    b->scratch = tern__alloc(b->passed, "tern bench", err);
    double seconds = err->code ? 0 : median_time(b, pass, 1, err);
    tern__free(b->scratch);
    return seconds;
}

static result measure(bench *b, size_t wish, tern_error *err)
{
    tern__trial *t = &b->trial;
    const tern__collective *op = t->op;
    b->bytes = tern__collective_bytes(op, wish, t->dtype, t->ranks);
    result r = {.bytes = b->bytes};
    t->count = tern__collective_count(op, b->bytes, t->dtype, t->ranks);
    t->in = alloc(b, tern__collective_holds(op->in, b->bytes, t->ranks), err);
    t->out = alloc(b, tern__collective_holds(op->out, b->bytes, t->ranks), err);
    if (!err->code) time_checked(b, &r, err);
    release(b, t->out);
    release(b, t->in);
    if (!err->code) r.bound_s = time_bound(b, err);
    return r;
}

/* ---- printing ---- */

static double algbw_gbs(const result *r)
{
    return (double)r->bytes / r->median_s * 1e-9;
}

static double busbw_gbs(const bench *b, const result *r)
{
    return tern__collective_bus(b->trial.op, r->bytes, b->trial.ranks) / r->median_s * 1e-9;
}

static void print_json(const bench *b, const result *r)
{
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "op", b->trial.op->name);
    cJSON_AddStringToObject(line, "backend", tern_group_backend(b->trial.world));
    cJSON_AddStringToObject(line, "memory", b->set->plain ? "plain" : "window");
    cJSON_AddStringToObject(line, "dtype", tern_dtype_name(b->trial.dtype));
    cJSON_AddNumberToObject(line, "ranks", b->trial.ranks);
    cJSON_AddNumberToObject(line, "bytes", (double)r->bytes);
    cJSON_AddNumberToObject(line, "median_us", r->median_s * 1e6);
    cJSON_AddNumberToObject(line, "algbw_gbs", algbw_gbs(r));
    cJSON_AddNumberToObject(line, "busbw_gbs", busbw_gbs(b, r));
    if (r->bound_s > 0)
        cJSON_AddNumberToObject(line, "bound_ratio", r->median_s / r->bound_s);
    else
        cJSON_AddNullToObject(line, "bound_ratio");
    tern__bench_print(line);
}

static void print_head(const bench *b)
{
    const char *op = b->set->op ? b->set->op->name : "collectives";
    printf("%s of %s, %d rank%s, %s, %s memory\n", op, tern_dtype_name(b->trial.dtype), b->trial.ranks,
           b->trial.ranks == 1 ? "" : "s", tern_group_backend(b->trial.world),
           b->set->plain ? "plain" : "window");
    if (!b->set->op) printf("%-15s", "");
    printf("%12s %12s %10s %10s %8s\n", "bytes", "median us", "alg GB/s", "bus GB/s", "ratio");
}

static void print_row(const bench *b, const result *r)
{
    if (!b->set->op) printf("%-15s", b->trial.op->name);
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
    return *bytes % SIZE_STEP == 0;
}

/* "4,1K,64K" */
static bool take_sizes(const char *who, char *text, void *to)
{
    settings *set = to;
    set->count = 0;
    for (char *one; (one = strsep(&text, ",")); set->count++) {
        if (set->count == SIZES_MAX) {
            fprintf(stderr, "%s: --sizes: at most %d\n", who, SIZES_MAX);
            return false;
        }
        if (parse_size(one, &set->sizes[set->count])) continue;
        fprintf(stderr, "%s: --sizes: expected bytes in steps of %d, as in 4,64K,25M, got \"%s\"\n", who,
                SIZE_STEP, one);
        return false;
    }
    return true;
}

static bool take_seconds(const char *who, char *text, void *to)
{
    char *end;
    double seconds = strtod(text, &end);
    *(double *)to = seconds;
    if (end != text && !*end && seconds >= 0 && seconds <= 3600) return true;
    fprintf(stderr, "%s: --seconds: expected a number from 0 to 3600, got \"%s\"\n", who, text);
    return false;
}

static void print_usage(const settings *set)
{
    const char *name = set->op ? set->op->name : "collectives";
    if (!strcmp(name, "barrier"))
        printf(barrier_usage, set->op->help);
    else
        printf(usage, name, set->op ? set->op->help : "each collective", name);
}

/* Returns what tern__flags_read_all does. */
static int parse(int argc, char **argv, settings *set)
{
    static const char *const memories[] = {"window", "plain", NULL}, *const dtypes[] = {"f32", "bf16", NULL};
    static char who[64]; /* argv[0] points to it after this call */
    const char *memory = "window", *dtype = "f32";
    const tern__flag flags[] = {
        {"sizes", .take = take_sizes, .to = set},
        {"memory", .text = &memory, .words = memories},
        {"dtype", .text = &dtype, .words = dtypes},
        {"backend", .text = &set->backend},
        {"seconds", .take = take_seconds, .to = &set->budget_s},
        {"json", .on = &set->json},
        {0},
    };
    snprintf(who, sizeof(who), "tern bench %s", set->op ? set->op->name : "collectives");
    int status = tern__flags_read_all(flags, who, NULL, argc, argv);
    if (status < 0) print_usage(set);
    set->plain = !strcmp(memory, "plain");
    set->dtype = strcmp(dtype, "bf16") ? TERN_F32 : TERN_BF16;
    return status;
}

/* ---- running ---- */

/* Do two buffers and a copy per rank fit into half of the machine's memory? */
static bool fits(const bench *b, size_t bytes)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    return 3.0 * (double)bytes * b->trial.ranks < memory / 2;
}

static bool has_peer(const bench *b, const tern__collective *op)
{
    return b->trial.ranks > 1 || !tern__collective_is_pair(op);
}

static void run_op(bench *b, const tern__collective *op, tern_error *err)
{
    const settings *set = b->set;
    b->trial.op = op;
    for (int i = 0; i < set->count && !err->code; i++) {
        if (!set->op && !fits(b, set->sizes[i])) continue;
        result r = measure(b, set->sizes[i], err);
        if (b->trial.rank == 0 && !err->code) (set->json ? print_json : print_row)(b, &r);
        fflush(stdout);
        if (!r.bytes) break; /* a barrier has no sizes */
    }
}

static void run(bench *b, tern_error *err)
{
    const tern__collective *op = b->set->op ? b->set->op : tern__collective_at(0);
    if (b->set->op && !has_peer(b, op)) {
        tern__error_set(err, "tern bench", TERN_E_INVALID,
                        "a single rank has no peer to send to: tern run -n 2 tern bench %s", op->name);
        return;
    }
    if (b->trial.rank == 0 && !b->set->json) print_head(b);
    for (int i = 0; op && !err->code; op = b->set->op ? NULL : tern__collective_at(++i))
        if (has_peer(b, op)) run_op(b, op, err);
}

static tern_group *open_world(const settings *set, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    if (set->backend) opts.backend = set->backend;
    return tern_group_open(&opts, err);
}

int tern__bench_collective(int argc, char **argv)
{
    settings set = {.op = tern__collective_find(argv[0]),
                    .sizes = {4, 1 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20},
                    .count = 6,
                    .budget_s = 1};
    if (!set.op) {
        set.sizes[5] = 256 << 20;
        set.budget_s = 0.3;
    }
    int status = parse(argc, argv, &set);
    if (status) return status < 0 ? tern__cli_flush(argv[0]) : status;
    tern_error err = {0};
    tern_group *world = open_world(&set, &err);
    bench b = {.set = &set, .trial = {.world = world, .dtype = set.dtype}};
    b.trial.rank = tern_group_rank(world);
    b.trial.ranks = tern_group_size(world);
    if (world) run(&b, &err);
    tern_error_print(&err);
    tern_group_close(world);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
