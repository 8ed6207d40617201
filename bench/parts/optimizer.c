/* optimizer.c - `bench_parts optimizer`: the memory bandwidth of SGD with momentum and of Adam, compared with
 * a copy.
 *
 * Both are limited by memory bandwidth. A step reads the gradient, the parameter and the state and writes the
 * last two back in place; these bytes are counted. The copy uses plain stores, which read the target into the
 * cache before they write it. That read is not counted, so a step, which has no such overhead, may be faster
 * than the copy. Copy and steps take turns, since the bandwidth of a shared machine varies over time. On a
 * GPU the copy stays within the GPU's memory and events measure the times. */
#include "parts.h"
#include "bench/machine.h"

#include "device/backend.h"
#include "nn/nn.h"

#include <tern.h>

#include <cjson/cJSON.h>
#include <stdio.h>

enum { ROUNDS_MAX = 1000, ELEMENTS_MAX = 1 << 30 };

typedef struct settings {
    long elements, rounds;
    bool json;
} settings;

/* What is timed, and the floats that it reads and writes per element. */
enum { COPY, SGD, ADAM, SUBJECTS };
static const char *const names[SUBJECTS] = {"copy", "sgd", "adam"};
static const int floats[SUBJECTS] = {2, 5, 7};

typedef struct bench {
    tern_group *world;
    tern_device *device;
    tern_module *net;
    tern_scope *scope;
    tern_tensor *parameter;
    tern_optim *optims[SUBJECTS]; /* [COPY] is NULL */
    float *copy;
    tern__bench_clock *clock;
    double seconds[SUBJECTS][ROUNDS_MAX];
} bench;

static settings chosen = {.elements = 25000000, .rounds = 15};

static const tern__cli_option options[] = {
    {"elements", .value = "N", .help = "floats that are updated and copied (default 25000000)",
     .number = &chosen.elements, .most = ELEMENTS_MAX},
    {"rounds", .value = "K", .help = "rounds of one step and one copy each (default 15)",
     .number = &chosen.rounds, .most = ROUNDS_MAX},
    {"json", .help = "print a JSON object a line instead of text", .on = &chosen.json},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page optimizer_page = {
    NULL,
    "Times steps of SGD with momentum and of Adam over N floats and a copy of as many: with one thread and "
    "with all threads of the device, or on the GPU that TERN_DEVICE names. GB/s counts bytes read and bytes "
    "written, without what the copy reads into the cache only to overwrite it. Several ranks work at the "
    "same time, each on N floats.\n",
    options,
};

/* ---- open and close ---- */

static void open_optims(bench *b, tern_error *err)
{
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.momentum = 0.9;
    b->optims[SGD] = tern_sgd_new(b->net, &sgd, err);
    b->optims[ADAM] = tern_adam_new(b->net, NULL, err);
}

static void set_gradients(bench *b, int64_t count, tern_error *err)
{
    float *numbers = tern__alloc((size_t)count * sizeof(*numbers), "bench_parts optimizer", err);
    for (int64_t i = 0; numbers && i < count; i++) numbers[i] = (float)(i % 1000 - 500) * 1e-3f;
    if (!err->code)
        tern__memory_copy(b->parameter->leaf->grad->view.data, numbers, (size_t)count * sizeof(*numbers),
                          err);
    tern__free(numbers);
}

static void open_bench(bench *b, const settings *set, tern_error *err)
{
    int64_t count = set->elements;
    b->world = tern_group_open(NULL, err);
    b->device = tern_device_open(NULL, err);
    b->net = tern_sequential_new(err); /* only holds the parameter */
    b->parameter = tern_parameter_add(b->net, "p", TERN_F32, 1, &count, err);
    if (!err->code && b->device->backend) tern_module_to(b->net, b->device, err);
    open_optims(b, err);
    b->scope = tern_scope_new(b->device, b->world, err);
    if (!err->code) b->clock = tern__bench_clock_new(b->device, 2, err);
    if (err->code) return;
    b->copy = tern__memory_new(b->device, (size_t)count * sizeof(*b->copy), "bench_parts optimizer", err);
    set_gradients(b, count, err);
}

static void close_bench(bench *b)
{
    tern__memory_free(b->copy);
    tern__bench_clock_free(b->clock);
    tern_scope_free(b->scope);
    for (int i = 0; i < SUBJECTS; i++) tern_optim_free(b->optims[i]);
    tern_module_free(b->net);
    tern_device_close(b->device);
    tern_group_close(b->world);
}

/* ---- measuring ---- */

static void copy_once(bench *b, const settings *set, tern_error *err)
{
    const float *from = b->parameter->leaf->grad->view.data;
    size_t count = (size_t)set->elements;
    if (b->device->backend)
        b->device->backend->copy(b->device, b->copy, from, count * sizeof(*from), err);
    else
        tern__machine_copy(b->copy, from, count, tern_device_threads_get(b->device));
}

static void run_once(bench *b, const settings *set, int subject, tern_error *err)
{
    if (subject == COPY) {
        copy_once(b, set, err);
        return;
    }
    b->parameter->leaf->fresh = true; /* reuse the same gradient */
    tern_optim_step(b->optims[subject], b->scope);
}

/* Returns the seconds of the slowest rank. */
static double time_once(bench *b, const settings *set, int subject, tern_error *err)
{
    tern_barrier(b->world, err);
    tern__bench_clock_set(b->clock, 0, err);
    run_once(b, set, subject, err);
    tern__bench_clock_set(b->clock, 1, err);
    double seconds = err->code ? 0 : tern__bench_clock_ms(b->clock, 0, 1) * 1e-3;
    tern_all_reduce(b->world, &seconds, 1, TERN_F64, TERN_MAX, err);
    return seconds;
}

/* The first round is a warm-up: it touches the memory for the first time. */
static void measure_medians(bench *b, const settings *set, double median[SUBJECTS], tern_error *err)
{
    for (long round = -1; round < set->rounds && !err->code; round++) {
        for (int s = 0; s < SUBJECTS && !err->code; s++)
            b->seconds[s][TERN__MAX(round, 0)] = time_once(b, set, s, err);
        tern_scope_end(b->scope, err); /* reports the first error of the steps */
    }
    for (int s = 0; s < SUBJECTS; s++) median[s] = tern__bench_median(b->seconds[s], (size_t)set->rounds);
}

/* ---- printing ---- */

static double rate_gbs(const settings *set, int subject, const double median[SUBJECTS])
{
    return 4.0 * floats[subject] * (double)set->elements / median[subject] * 1e-9;
}

static void print_json(const bench *b, const settings *set, int subject, const double median[SUBJECTS])
{
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "optimizer", names[subject]);
    cJSON_AddNumberToObject(line, "ranks", tern_group_size(b->world));
    cJSON_AddStringToObject(line, "device", tern_device_name(b->device));
    cJSON_AddNumberToObject(line, "threads", tern_device_threads_get(b->device));
    cJSON_AddNumberToObject(line, "elements", (double)set->elements);
    cJSON_AddNumberToObject(line, "median_ms", median[subject] * 1e3);
    cJSON_AddNumberToObject(line, "gbs", rate_gbs(set, subject, median));
    cJSON_AddNumberToObject(line, "copy_gbs", rate_gbs(set, COPY, median));
    tern__bench_print(line);
}

static void print_head(const bench *b, const settings *set)
{
    int ranks = tern_group_size(b->world);
    printf("optimizers over %ld f32, %d rank%s%s%s\n", set->elements, ranks, ranks == 1 ? "" : "s",
           b->device->backend ? ", " : "", b->device->backend ? tern_device_name(b->device) : "");
    printf("%-10s %8s %12s %8s %10s %8s\n", "optimizer", "threads", "median ms", "GB/s", "copy GB/s",
           "of copy");
}

static void print_row(const bench *b, const settings *set, int subject, const double median[SUBJECTS])
{
    double ours = rate_gbs(set, subject, median), copy = rate_gbs(set, COPY, median);
    printf("%-10s %8d %12.3f %8.2f %10.2f %6.0f %%\n", names[subject], tern_device_threads_get(b->device),
           median[subject] * 1e3, ours, copy, 100 * ours / copy);
}

/* ---- running ---- */

static void run_rounds(bench *b, const settings *set, tern_error *err)
{
    bool prints = tern_group_rank(b->world) == 0;
    int all = tern_device_threads_get(b->device), fewest = b->device->backend ? all : 1;
    double median[SUBJECTS];
    if (prints && !set->json) print_head(b, set);
    for (int threads = fewest; threads <= all && !err->code; threads += TERN__MAX(all - 1, 1)) {
        tern_device_threads_set(b->device, threads, err);
        measure_medians(b, set, median, err);
        for (int s = SGD; s < SUBJECTS && prints && !err->code; s++)
            (set->json ? print_json : print_row)(b, set, s, median);
    }
}

int bench_optimizer(int argc, char **argv)
{
    int status = tern__flags_read_all(&optimizer_page, "bench_parts optimizer", argc, argv);
    if (status) return status < 0 ? tern__cli_flush(argv[0]) : status;
    static bench b; /* large */
    tern_error err = {0};
    open_bench(&b, &chosen, &err);
    if (!err.code) run_rounds(&b, &chosen, &err);
    tern_error_print(&err);
    close_bench(&b);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
