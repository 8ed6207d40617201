/* collectives.c - `tern bench all_reduce` and the like: times a collective, or send/recv, and compares it
 * with the memory-bandwidth bound. `tern bench collectives` does so for all of them.
 *
 * Each size is checked for correct results on all ranks before it is timed. A time runs from the first rank's
 * start to the last rank's end; send/recv counts half of a round trip. The bound is the time that all ranks
 * together need to read, increment and write in place as many bytes of their own as the collective must read
 * and write. Small sizes are timed many calls at a time and have no bound, since the latency between two
 * cores dominates there. */
#include "bench/bench.h"
#include "cli.h"

#include "kernels/kernel.h"

#include <tern.h>

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

/* ---- a collective ---- */

typedef struct collective collective;

/* The arguments of a call. */
typedef struct trial {
    const collective *op;
    tern_group *world;
    int rank, ranks;
    tern_dtype dtype;
    size_t count; /* the call's count argument */
    void *in, *out;
} trial;

/* What a buffer of a rank holds: nothing, its part (S / ranks bytes), or the whole (S bytes). */
typedef enum holds { NONE, PART, WHOLE } holds;

struct collective {
    const char *name, *help;
    int (*call)(const trial *t, tern_error *err);
    holds in, out; /* `out` NONE: works in place, in `in`             */
    bool has_root; /* rank 0 is the root; if one buffer is a PART, only the root uses the WHOLE one */
    bool is_cut;   /* `count` counts the elements of a part */
};

static int call_all_reduce(const trial *t, tern_error *err)
{
    return tern_all_reduce(t->world, t->in, t->count, t->dtype, TERN_SUM, err);
}

static int call_reduce(const trial *t, tern_error *err)
{
    return tern_reduce(t->world, t->in, t->count, t->dtype, TERN_SUM, 0, err);
}

static int call_broadcast(const trial *t, tern_error *err)
{
    return tern_broadcast(t->world, t->in, t->count, t->dtype, 0, err);
}

static int call_all_gather(const trial *t, tern_error *err)
{
    return tern_all_gather(t->world, t->in, t->out, t->count, t->dtype, err);
}

static int call_reduce_scatter(const trial *t, tern_error *err)
{
    return tern_reduce_scatter(t->world, t->in, t->out, t->count, t->dtype, TERN_SUM, err);
}

static int call_gather(const trial *t, tern_error *err)
{
    return tern_gather(t->world, t->in, t->out, t->count, t->dtype, 0, err);
}

static int call_scatter(const trial *t, tern_error *err)
{
    return tern_scatter(t->world, t->in, t->out, t->count, t->dtype, 0, err);
}

static int call_all_to_all(const trial *t, tern_error *err)
{
    return tern_all_to_all(t->world, t->in, t->out, t->count, t->dtype, err);
}

static int call_barrier(const trial *t, tern_error *err)
{
    return tern_barrier(t->world, err);
}

static int call_sendrecv(const trial *t, tern_error *err)
{
    if (t->rank == 0) tern_send(t->world, t->in, t->count, t->dtype, 1, 0, err);
    if (t->rank <= 1) tern_recv(t->world, t->in, t->count, t->dtype, 1 - t->rank, 0, NULL, err);
    if (t->rank == 1) tern_send(t->world, t->in, t->count, t->dtype, 0, 0, err);
    return err->code;
}

static const collective collectives[] = {
    {"all_reduce", "a sum over all ranks, to all", call_all_reduce, WHOLE, NONE, false, false},
    {"reduce", "a sum over all ranks, to rank 0", call_reduce, WHOLE, NONE, true, false},
    {"broadcast", "what rank 0 has, to all", call_broadcast, WHOLE, NONE, true, false},
    {"all_gather", "a part of each rank, to all", call_all_gather, PART, WHOLE, false, true},
    {"reduce_scatter", "a sum over all ranks, a part to each", call_reduce_scatter, WHOLE, PART, false, true},
    {"gather", "a part of each rank, to rank 0", call_gather, PART, WHOLE, true, true},
    {"scatter", "what rank 0 has, a part to each", call_scatter, WHOLE, PART, true, true},
    {"all_to_all", "a part of each rank for each", call_all_to_all, WHOLE, WHOLE, false, true},
    {"barrier", "all ranks meet", call_barrier, NONE, NONE, false, false},
    {"sendrecv", "a message from rank 0 to rank 1", call_sendrecv, WHOLE, NONE, true, false},
};

/* Returns NULL if there is none of that name. */
static const collective *find_collective(const char *name)
{
    for (size_t i = 0; i < TERN__COUNT(collectives); i++)
        if (!strcmp(name, collectives[i].name)) return &collectives[i];
    return NULL;
}

/* Is it send/recv? A call then sends from rank 0 to rank 1 and back; other ranks do nothing. */
static bool is_pair(const collective *op)
{
    return op->call == call_sendrecv;
}

/* ---- bytes ---- */

/* Rounds `wish` up to a number of bytes that splits evenly over the ranks. 0 for a barrier. */
static size_t whole_bytes(const collective *op, size_t wish, tern_dtype dtype, int ranks)
{
    size_t step = tern_dtype_bytes(dtype) * (op->is_cut ? (size_t)ranks : 1);
    return op->call == call_barrier ? 0 : (wish + step - 1) / step * step;
}

/* Returns the count argument of a call on so many bytes. */
static size_t count_of(const collective *op, size_t bytes, tern_dtype dtype, int ranks)
{
    return bytes / tern_dtype_bytes(dtype) / (op->is_cut ? (size_t)ranks : 1);
}

/* Returns the bytes of a buffer that holds nothing, a part or the whole. */
static size_t buffer_bytes(holds what, size_t bytes, int ranks)
{
    return what == PART ? bytes / (size_t)ranks : what == WHOLE ? bytes : 0;
}

/* Returns the bytes that each rank must read and write if all share the work (docs/collectives.md). */
static double bound_bytes(const collective *op, size_t bytes, int ranks)
{
    double whole = (double)bytes, part = whole / ranks;
    if (op->call == call_reduce || op->call == call_reduce_scatter) return (whole + part) / 2;
    if (op->call == call_broadcast) return whole - part;
    if (op->call == call_sendrecv) return whole / 2;
    return op->call == call_gather || op->call == call_scatter ? part : whole;
}

/* Returns the bytes that cross a rank's link, counted as nccl-tests does (bus bandwidth). */
static double bus_bytes(const collective *op, size_t bytes, int ranks)
{
    double whole = (double)bytes, others = whole * (ranks - 1) / ranks;
    if (op->call == call_reduce || op->call == call_broadcast || op->call == call_sendrecv) return whole;
    return op->call == call_all_reduce ? 2 * others : others;
}

/* ---- inputs and expected results ---- */

/* Returns element i of the rank's input. */
static float given_value(int rank, size_t i)
{
    return (float)((i + (size_t)rank) % 4);
}

static float summed_value(const trial *t, size_t i)
{
    float sum = 0;
    for (int rank = 0; rank < t->ranks; rank++) sum += given_value(rank, i);
    return sum;
}

static float expected_value(const trial *t, size_t i)
{
    size_t own = (size_t)t->rank * t->count, part = t->op->is_cut ? i % t->count : 0;
    int from = t->op->is_cut ? (int)(i / t->count) : 0;
    if (t->op->call == call_all_reduce || t->op->call == call_reduce) return summed_value(t, i);
    if (t->op->call == call_reduce_scatter) return summed_value(t, own + i);
    if (t->op->call == call_scatter) return given_value(0, own + i);
    if (t->op->call == call_sendrecv) return given_value(t->rank == 1 ? 0 : t->rank, i);
    if (t->op->call == call_all_to_all) return given_value(from, own + part);
    return t->op->call == call_broadcast ? given_value(0, i) : given_value(from, part);
}

static void put_value(const trial *t, size_t i, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (t->dtype == TERN_BF16)
        ((uint16_t *)t->in)[i] = (uint16_t)(bits >> 16); /* exact: it is 0 to 3 */
    else
        ((float *)t->in)[i] = value;
}

static float get_value(const trial *t, const void *from, size_t i)
{
    uint32_t bits = (uint32_t)((const uint16_t *)from)[t->dtype == TERN_BF16 ? i : 0] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return t->dtype == TERN_BF16 ? value : ((const float *)from)[i];
}

static size_t count_elements(const trial *t, holds what)
{
    size_t parts = what == WHOLE && t->op->is_cut ? (size_t)t->ranks : 1;
    return what == NONE ? 0 : t->count * parts;
}

/* Fills `in` with small whole numbers: every dtype holds them and their sums exactly. */
static void trial_fill_input(const trial *t)
{
    for (size_t i = 0; i < count_elements(t, t->op->in); i++) put_value(t, i, given_value(t->rank, i));
}

/* Returns the index of the first wrong element, -1 if all are right. */
static int64_t find_wrong(const trial *t)
{
    bool is_in_place = t->op->out == NONE, is_not_root = t->op->has_root && t->rank != 0;
    const void *result = is_in_place ? t->in : t->out;
    size_t count = count_elements(t, is_in_place ? t->op->in : t->op->out);
    if (is_not_root && (t->op->call == call_reduce || t->op->call == call_gather)) return -1;
    for (size_t i = 0; i < count; i++)
        if (get_value(t, result, i) != expected_value(t, i)) return (int64_t)i;
    return -1;
}

/* Compares the results of all ranks. Every rank gets E_MISMATCH if one of them is wrong. Collective. */
static int check_results(const trial *t, tern_error *err)
{
    int64_t wrong = find_wrong(t), worst[2] = {wrong, wrong < 0 ? -1 : t->rank};
    tern_all_reduce(t->world, worst, 2, TERN_I64, TERN_MAX, err);
    if (tern__is_set(err)) return err->code;
    if (worst[0] < 0) return TERN_OK;
    return tern__error_set(
        err, "tern bench", TERN_E_MISMATCH,
        "%s of %zu %s on %d ranks: rank %lld has a wrong result, at element %lld or before", t->op->name,
        t->count, tern_dtype_name(t->dtype), t->ranks, (long long)worst[1], (long long)worst[0]);
}

/* ---- a bench ---- */

typedef struct settings {
    const collective *op; /* NULL: all */
    size_t sizes[SIZES_MAX];
    int count;
    double budget_s; /* for one size */
    tern_dtype dtype;
    const char *backend;
    bool plain, json;
} settings;

typedef struct bench {
    const settings *set;
    trial trial;
    size_t bytes, passed; /* of the call; of the bound's pass */
    float *scratch;
    double samples[SAMPLES_MAX]; /* seconds */
} bench;

typedef struct result {
    size_t bytes;
    double median_s, bound_s; /* bound_s 0: no bound */
} result;

/* ---- measuring ---- */

static void call_once(bench *b, tern_error *err)
{
    b->trial.op->call(&b->trial, err);
}

TERN__SIMD static void add_one(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] += 1;
}

static void pass_once(bench *b, tern_error *err)
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
    double last = 0;
    for (int i = 0; i < WARM_UP; i++) last = time_calls(b, what, calls, err);
    double fit = b->set->budget_s / (last * calls + 1e-9);
    int samples = fit > SAMPLES_MAX ? SAMPLES_MAX : fit < SAMPLES_MIN ? SAMPLES_MIN : (int)fit;
    for (int i = 0; i < samples && !err->code; i++) b->samples[i] = time_calls(b, what, calls, err);
    return tern__bench_median(b->samples, (size_t)samples);
}

static void *alloc_buffer(const bench *b, size_t bytes, tern_error *err)
{
    if (!bytes) return NULL;
    return b->set->plain ? tern__alloc(bytes, "tern bench", err)
                         : tern_group_mem_alloc(b->trial.world, bytes, err);
}

static void free_buffer(const bench *b, void *buf)
{
    if (b->set->plain)
        tern__free(buf);
    else
        tern_group_mem_free(b->trial.world, buf);
}

/* Clears the input: sums repeated in place would overflow to infinity. */
static void bench_clear_input(const bench *b)
{
    size_t bytes = buffer_bytes(b->trial.op->in, b->bytes, b->trial.ranks);
    if (bytes) memset(b->trial.in, 0, bytes);
}

static void time_checked(bench *b, result *r, tern_error *err)
{
    bool repeats = b->bytes < SMALL_BYTES && b->set->budget_s > 0;
    trial_fill_input(&b->trial);
    call_once(b, err);
    if (err->code || check_results(&b->trial, err)) return;
    bench_clear_input(b);
    r->median_s = median_time(b, call_once, repeats ? SMALL_CALLS : 1, err);
    if (is_pair(b->trial.op)) r->median_s /= 2;
}

static double time_bound(bench *b, tern_error *err)
{
    b->passed = (size_t)bound_bytes(b->trial.op, b->bytes, b->trial.ranks);
    if (b->bytes < SMALL_BYTES || !b->passed) return 0;
    b->scratch = tern__alloc(b->passed, "tern bench", err);
    double seconds = err->code ? 0 : median_time(b, pass_once, 1, err);
    tern__free(b->scratch);
    return seconds;
}

static result measure_size(bench *b, size_t wish, tern_error *err)
{
    trial *t = &b->trial;
    const collective *op = t->op;
    b->bytes = whole_bytes(op, wish, t->dtype, t->ranks);
    result r = {.bytes = b->bytes};
    t->count = count_of(op, b->bytes, t->dtype, t->ranks);
    t->in = alloc_buffer(b, buffer_bytes(op->in, b->bytes, t->ranks), err);
    t->out = alloc_buffer(b, buffer_bytes(op->out, b->bytes, t->ranks), err);
    if (!err->code) time_checked(b, &r, err);
    free_buffer(b, t->out);
    free_buffer(b, t->in);
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
    return bus_bytes(b->trial.op, r->bytes, b->trial.ranks) / r->median_s * 1e-9;
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
    tern__bench_print_oversubscribed(1);
    if (!b->set->op) printf("%-15s", "");
    printf("%12s %12s %10s %10s %8s\n", "bytes", "median us", "alg GB/s", "bus GB/s", "ratio");
}

static void collectives_print_row(const bench *b, const result *r)
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
static int take_sizes(const tern__cli_option *option, const char *text, tern_error *err)
{
    settings *set = option->to;
    set->count = 0;
    for (const char *one = text;; one++) {
        char size[64];
        int length = (int)strcspn(one, ",");
        snprintf(size, sizeof(size), "%.*s", length, one);
        if (set->count == SIZES_MAX)
            return tern__error_set(err, __func__, TERN_E_INVALID, "at most %d", SIZES_MAX);
        if (!parse_size(size, &set->sizes[set->count]))
            return tern__error_set(err, __func__, TERN_E_INVALID,
                                   "expected bytes in steps of %d, as in 4,64K,25M, got \"%.*s\"", SIZE_STEP,
                                   length, one);
        set->count++;
        one += length;
        if (!*one) return TERN_OK;
    }
}

static int take_seconds(const tern__cli_option *option, const char *text, tern_error *err)
{
    double *seconds = option->to;
    if (tern__real_read(text, seconds) && *seconds >= 0 && *seconds <= 3600) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected a number from 0 to 3600, got \"%s\"",
                           text);
}

static settings chosen = {
    .sizes = {4, 1 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20}, .count = 6, .budget_s = 1};
static const char *kind_of_memory = "window", *dtype = "f32";

#define COMMON_OPTIONS                                                                                       \
    {"backend", .value = "NAME", .text = &chosen.backend,                                                    \
     .help = "one that tern info lists, with nccl+ or debug+ before it, or neither"},                        \
        {"seconds", .value = "S", .take = take_seconds, .to = &chosen.budget_s,                              \
         .help = "time each size for about S seconds (default 1 for one collective, 0.3 for all); 0: a few " \
                 "calls"},                                                                                   \
        {"json", .help = "print a JSON object a line instead of text", .on = &chosen.json},                  \
        TERN__OPTION_HELP,                                                                                   \
    {                                                                                                        \
        0                                                                                                    \
    }

static const tern__cli_option options[] = {
    {"sizes", .value = "SIZE,..", .take = take_sizes, .to = &chosen,
     .help = "the bytes of the whole buffer of a rank, rounded up to equal parts; K, M and G are powers of "
             "1024 (default 4,1K,64K,1M,25M,100M)"},
    {"memory", .value = "window|plain", .text = &kind_of_memory,
     .help = "window memory (the default) is accessed by all ranks directly, plain memory is copied through "
             "a ring"},
    {"dtype", .value = "f32|bf16", .help = "default f32", .text = &dtype},
    COMMON_OPTIONS,
};

/* A barrier moves no bytes; scripts may give all benches the same options. */
static const tern__cli_option barrier_options[] = {
    {"sizes", .value = "SIZE,..", .is_hidden = true, .take = take_sizes, .to = &chosen},
    {"memory", .value = "window|plain", .is_hidden = true, .text = &kind_of_memory},
    {"dtype", .value = "f32|bf16", .is_hidden = true, .text = &dtype},
    COMMON_OPTIONS,
};

const tern__cli_page tern__collective_page = {
    NULL,
    "Times a collective, or all of them, over the ranks of a launcher, as in `tern run -n 2 tern bench "
    "all_reduce`; `tern bench --help` says what each one does. Results are checked before they are timed.\n"
    "\n"
    "ratio: the time divided by that of a read-add-write pass of all ranks over as many bytes as the "
    "collective must read and write.\n",
    options,
};

const tern__cli_page tern__barrier_page = {
    NULL,
    "Times how long all ranks of a launcher wait for each other: `tern run -n 2 tern bench barrier`.\n",
    barrier_options,
};

/* Returns what tern__flags_read_all does. */
static int collectives_read_options(int argc, char **argv)
{
    static char who[64]; /* argv[0] points to it after this call */
    const char *name = chosen.op ? chosen.op->name : "collectives";
    snprintf(who, sizeof(who), "tern bench %s", name);
    const tern__cli_page *page = strcmp(name, "barrier") ? &tern__collective_page : &tern__barrier_page;
    int status = tern__flags_read_all(page, who, argc, argv);
    chosen.plain = !strcmp(kind_of_memory, "plain");
    chosen.dtype = strcmp(dtype, "bf16") ? TERN_F32 : TERN_BF16;
    return status;
}

/* ---- running ---- */

/* Do two buffers and a copy per rank fit into half of the machine's memory? */
static bool fits_memory(const bench *b, size_t bytes)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    return 3.0 * (double)bytes * b->trial.ranks < memory / 2;
}

static bool has_peer(const bench *b, const collective *op)
{
    return b->trial.ranks > 1 || !is_pair(op);
}

static void run_op(bench *b, const collective *op, tern_error *err)
{
    const settings *set = b->set;
    b->trial.op = op;
    for (int i = 0; i < set->count && !err->code; i++) {
        if (!set->op && !fits_memory(b, set->sizes[i])) continue;
        result r = measure_size(b, set->sizes[i], err);
        if (b->trial.rank == 0 && !err->code) (set->json ? print_json : collectives_print_row)(b, &r);
        fflush(stdout);
        if (!r.bytes) break; /* a barrier has no sizes */
    }
}

static void run_all(bench *b, tern_error *err)
{
    const collective *only = b->set->op;
    if (only && !has_peer(b, only)) {
        tern__error_set(err, "tern bench", TERN_E_INVALID,
                        "a single rank has no peer to send to: tern run -n 2 tern bench %s", only->name);
        return;
    }
    if (b->trial.rank == 0 && !b->set->json) print_head(b);
    for (size_t i = 0; i < TERN__COUNT(collectives) && !err->code; i++)
        if ((!only || only == &collectives[i]) && has_peer(b, &collectives[i]))
            run_op(b, &collectives[i], err);
}

static tern_group *open_world(const settings *set, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    if (set->backend) opts.backend = set->backend;
    return tern_group_open(&opts, err);
}

int tern__bench_collective(int argc, char **argv)
{
    chosen.op = find_collective(argv[0]);
    if (!chosen.op) {
        chosen.sizes[5] = 256 << 20;
        chosen.budget_s = 0.3;
    }
    int status = collectives_read_options(argc, argv);
    if (status) return status < 0 ? tern__cli_flush(argv[0]) : status;
    tern_error err = {0};
    tern_group *world = open_world(&chosen, &err);
    bench b = {.set = &chosen, .trial = {.world = world, .dtype = chosen.dtype}};
    b.trial.rank = tern_group_rank(world);
    b.trial.ranks = tern_group_size(world);
    if (world) run_all(&b, &err);
    tern_error_print(&err);
    tern_group_close(world);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
