/* conv.c - `bench_parts conv`: compares the speed and the accuracy of all algorithms for a convolution and
 * its gradients.
 *
 * The algorithms take turns, because the machine's speed varies over time, and on one thread its processor
 * time counts, so that other programs matter less. The error is measured on a smaller batch of normally
 * distributed numbers: the difference from the reference kernel in f64, relative to the root mean square of
 * the results. */
#include "parts.h"

#include "kernels/cost.h"
#include "kernels/cpu/conv/conv.h"

#include <tern.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES_MAX = 64, ROUNDS_MAX = 100, ALGORITHMS = 5, ERROR_BATCH = 2 };

static const tern__conv_algorithm *const algorithms[ALGORITHMS] = {
    &tern__conv_direct, &tern__conv_winograd, &tern__conv_tiles, &tern__conv_taps, &tern__conv_unfold};

/* N,C,[D,]H,W:O,[kd,]kh,kw:stride:padding:dilation */
typedef struct shape {
    int ndim;
    int64_t x[5], w[5], y[5];
    tern__conv_attr attr;
} shape;

typedef struct settings {
    shape cases[CASES_MAX];
    int count;
    long rounds;
    bool json, errors;
    tern_dtype dtype;
} settings;

typedef struct result {
    double ms[ALGORITHMS], error[ALGORITHMS]; /* ms 0: the algorithm does not support the case */
    double gflop;
} result;

static const char *const resnet18[] = {
    "32,3,32,32:64,3,3",      "32,64,32,32:64,3,3",     "32,64,32,32:128,3,3:2", "32,128,16,16:128,3,3",
    "32,128,16,16:256,3,3:2", "32,256,8,8:256,3,3",     "32,256,8,8:512,3,3:2",  "32,512,4,4:512,3,3",
    "32,64,32,32:128,1,1:2",  "32,128,16,16:256,1,1:2", "32,256,8,8:512,1,1:2",
};

/* ---- cases ---- */

/* Reads up to `most` numbers of at least `low`, separated by commas. Returns how many, 0 if `text` is wrong.
 */
static int parse_numbers(const char *text, int64_t low, int64_t *numbers, int most)
{
    for (int count = 0; count < most;) {
        char *end;
        numbers[count] = strtoll(text, &end, 10);
        if (end == text || numbers[count] < low || numbers[count] > 1 << 20) return 0;
        count++;
        if (!*end) return count;
        if (*end != ',') return 0;
        text = end + 1;
    }
    return 0;
}

static bool fill_outputs(shape *s)
{
    bool fits = true;
    s->y[0] = s->x[0];
    s->y[1] = s->w[0];
    for (int d = 2, axis = 5 - s->ndim; d < s->ndim; d++, axis++) {
        int64_t reach = s->attr.dilation[axis] * (s->w[d] - 1) + 1;
        int64_t room = s->x[d] + 2 * s->attr.padding[axis] - reach;
        fits = fits && room >= 0;
        s->y[d] = room / s->attr.stride[axis] + 1;
    }
    return fits;
}

static bool parse_case(const char *given, shape *s)
{
    char text[128];
    char *rest = text, *parts[5] = {NULL};
    int64_t one[3] = {1, -1, 1}, w[4];
    if (strlen(given) >= sizeof(text)) return false;
    strcpy(text, given);
    for (int i = 0; i < 5 && rest; i++) parts[i] = strsep(&rest, ":");
    if (rest || !parts[1]) return false;
    s->ndim = parse_numbers(parts[0], 1, s->x, 5);
    if (s->ndim < 4 || parse_numbers(parts[1], 1, w, 4) != s->ndim - 1) return false;
    for (int i = 0; i < 3; i++)
        if (parts[2 + i] && !parse_numbers(parts[2 + i], i == 1 ? 0 : 1, &one[i], 1)) return false;
    s->w[0] = w[0];
    s->w[1] = s->x[1];
    s->attr = (tern__conv_attr){.stride = {1, 1, 1}, .dilation = {1, 1, 1}, .groups = 1};
    for (int d = 2, axis = 5 - s->ndim; d < s->ndim; d++, axis++) {
        s->w[d] = w[d - 1];
        s->attr.stride[axis] = one[0];
        s->attr.padding[axis] = one[1] < 0 ? one[2] * (s->w[d] / 2) : one[1];
        s->attr.dilation[axis] = one[2];
    }
    return fill_outputs(s);
}

static void use_resnet18(settings *set)
{
    set->count = TERN__COUNT(resnet18);
    for (int i = 0; i < set->count; i++) parse_case(resnet18[i], &set->cases[i]);
}

/* ---- operands ---- */

/* The views of a call in the order x, w, y; which one is the result depends on the kernel. */
typedef struct operands {
    tern__view view[3];
    tern__call call;
} operands;

/* Fills with approximately normal numbers, the same for every dtype. */
static void fill_view(tern__view *view, uint64_t seed)
{
    int64_t count = tern__view_count(view);
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(state >> 40) * 0x1p-24 - 0.5;
        }
        tern__view_set(view, i, (double)(float)(sum * sqrt(3)));
    }
}

static bool open_operands(operands *o, tern_device *device, const shape *s, tern__kernel kernel,
                          int64_t batch, tern_dtype dtype, tern_error *err)
{
    const int64_t *shapes[] = {s->x, s->w, s->y};
    *o = (operands){.call = {.device = device, .kernel = kernel, .attr = &s->attr, .err = err}};
    for (int i = 0; i < 3; i++) {
        int64_t own[5];
        memcpy(own, shapes[i], sizeof(own));
        if (i != TERN__CONV_W) own[0] = batch;
        bool blocked = i != TERN__CONV_W && own[1] % 16 == 0;
        o->view[i] = tern__view_make(dtype, blocked ? TERN__BLOCKED16 : TERN__PLAIN, s->ndim, own);
        o->view[i].data = tern__alloc_raw(tern__view_bytes(&o->view[i]), TERN__LINE);
        if (!o->view[i].data)
            return !tern__error_set(err, "bench_parts conv", TERN_E_MEMORY, "out of memory for the operands");
        fill_view(&o->view[i], (uint64_t)i + 1);
    }
    const tern__view *x = &o->view[TERN__CONV_X], *w = &o->view[TERN__CONV_W], *y = &o->view[TERN__CONV_Y];
    o->call.in[0] = kernel == TERN__CONV ? x : y;
    o->call.in[1] = kernel == TERN__CONV_WEIGHT_GRAD ? x : w;
    o->call.out[0] = kernel == TERN__CONV ? y : kernel == TERN__CONV_DATA_GRAD ? x : w;
    return true;
}

static void close_operands(operands *o)
{
    for (int i = 0; i < 3; i++) tern__free(o->view[i].data);
}

/* ---- measuring ---- */

static int64_t clock_of(const operands *o)
{
    return o->call.device->threads > 1 ? tern__now_ns() : tern__thread_ns();
}

static void time_all(operands *o, const settings *set, result *r)
{
    static double ms[ALGORITHMS][ROUNDS_MAX];
    for (long round = -1; round < set->rounds; round++) /* the first is a warm-up */
        for (int a = 0; a < ALGORITHMS; a++) {
            int64_t started = clock_of(o);
            bool ran = tern__conv_run(&o->call, algorithms[a]) == TERN_OK;
            ms[a][TERN__MAX(round, 0)] = ran ? (double)(clock_of(o) - started) * 1e-6 : 0;
        }
    for (int a = 0; a < ALGORITHMS; a++) r->ms[a] = tern__bench_median(ms[a], (size_t)set->rounds);
}

static double error_of(const tern__view *computed, const tern__view *exact)
{
    int64_t count = tern__view_count(exact);
    double error = 0, power = 0;
    for (int64_t i = 0; i < count; i++) {
        double e = tern__view_get(exact, i), difference = tern__view_get(computed, i) - e;
        error += difference * difference;
        power += e * e;
    }
    return sqrt(error / power);
}

static void compare_all(const shape *s, tern__kernel kernel, tern_device *device, const settings *set,
                        result *r, tern_error *err)
{
    int64_t batch = TERN__MIN(s->x[0], ERROR_BATCH);
    operands ours = {0}, exact = {0};
    if (open_operands(&ours, device, s, kernel, batch, set->dtype, err) &&
        open_operands(&exact, device, s, kernel, batch, TERN_F64, err)) {
        tern__reference_kernels[kernel](&exact.call);
        for (int a = 0; a < ALGORITHMS; a++)
            if (r->ms[a] > 0 && tern__conv_run(&ours.call, algorithms[a]) == TERN_OK)
                r->error[a] = error_of(ours.call.out[0], exact.call.out[0]);
    }
    close_operands(&ours);
    close_operands(&exact);
}

static void measure_case(const shape *s, tern__kernel kernel, tern_device *device, const settings *set,
                         result *r, tern_error *err)
{
    operands o = {0};
    *r = (result){0};
    if (open_operands(&o, device, s, kernel, s->x[0], set->dtype, err)) {
        r->gflop = tern__call_cost(&o.call).flops * 1e-9;
        time_all(&o, set, r);
    }
    close_operands(&o);
    if (set->errors && !err->code) compare_all(s, kernel, device, set, r, err);
}

/* ---- printing ---- */

static const char *case_text(const shape *s, char *text, size_t size)
{
    size_t used = 0;
    for (int d = 0; d < s->ndim; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", d ? "," : "", (long long)s->x[d]);
    for (int d = 0; d < s->ndim; d++)
        if (d != 1)
            used += (size_t)snprintf(text + used, size - used, "%s%lld", d ? "," : ":", (long long)s->w[d]);
    if (s->attr.stride[2] > 1 || s->attr.dilation[2] > 1)
        snprintf(text + used, size - used, ":%lld:%lld:%lld", (long long)s->attr.stride[2],
                 (long long)s->attr.padding[2], (long long)s->attr.dilation[2]);
    return text;
}

static void print_json(const char *name, tern__kernel kernel, const result *r)
{
    for (int a = 0; a < ALGORITHMS; a++) {
        if (!(r->ms[a] > 0)) continue;
        cJSON *line = cJSON_CreateObject();
        cJSON_AddStringToObject(line, "case", name);
        cJSON_AddStringToObject(line, "kernel", tern__kernel_name(kernel));
        cJSON_AddStringToObject(line, "algorithm", algorithms[a]->name);
        cJSON_AddNumberToObject(line, "median_ms", r->ms[a]);
        cJSON_AddNumberToObject(line, "gflops", r->gflop / r->ms[a] * 1e3);
        cJSON_AddNumberToObject(line, "error", r->error[a]);
        tern__bench_print(line);
    }
}

static void print_head(const settings *set)
{
    printf("%-28s %-17s", "case", "kernel");
    for (int a = 0; a < ALGORITHMS; a++) {
        printf(" %9s ms %7s", algorithms[a]->name, "GFLOPS");
        if (set->errors) printf(" %8s", "error");
    }
    puts("");
}

static void print_row(const char *name, tern__kernel kernel, const settings *set, const result *r)
{
    printf("%-28s %-17s", name, tern__kernel_name(kernel));
    for (int a = 0; a < ALGORITHMS; a++) {
        if (!(r->ms[a] > 0)) {
            printf("%*s", set->errors ? 30 : 21, "");
            continue;
        }
        printf(" %12.2f %7.0f", r->ms[a], r->gflop / r->ms[a] * 1e3);
        if (set->errors) printf(" %8.1e", r->error[a]);
    }
    puts("");
    fflush(stdout);
}

/* ---- options ---- */

static int take_case(const tern__cli_option *option, const char *text, tern_error *err)
{
    settings *set = option->to;
    if (set->count < CASES_MAX && parse_case(text, &set->cases[set->count])) {
        set->count++;
        return TERN_OK;
    }
    return tern__error_set(err, __func__, TERN_E_INVALID,
                           "expected a shape as in 32,64,32,32:64,3,3, got \"%s\"", text);
}

static settings chosen = {.rounds = 5};
static const char *dtype = "f32";
static bool lacks_errors;

static const tern__cli_option options[] = {
    {"case", .value = "SHAPE", .take = take_case, .to = &chosen,
     .help = "input:weight[:stride[:padding[:dilation]]], as in 32,64,32,32:64,3,3 or "
             "1,16,32,64,64:32,3,3,3:2:1; padding defaults to half the kernel. May be given several times. "
             "Default: the layers of ResNet-18 on 32x32 images, batch 32"},
    {"rounds", .value = "K", .help = "rounds of one call each (default 5)", .number = &chosen.rounds,
     .most = ROUNDS_MAX},
    {"dtype", .value = "f32|bf16", .help = "default f32", .text = &dtype},
    {"no-error", .help = "do not measure the error", .on = &lacks_errors},
    {"json", .help = "print a JSON object a line instead of text", .on = &chosen.json},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page conv_page = {
    NULL,
    "Times a convolution's forward, data gradient and weight gradient with each algorithm that supports the "
    "case, in K rounds, and prints the error against f64, relative to the root mean square of the results.\n",
    options,
};

static int read_options(int argc, char **argv)
{
    int status = tern__flags_read_all(&conv_page, "bench_parts conv", argc, argv);
    chosen.dtype = strcmp(dtype, "bf16") ? TERN_F32 : TERN_BF16;
    chosen.errors = !lacks_errors;
    if (!chosen.count) use_resnet18(&chosen);
    return status;
}

/* ---- running ---- */

static void run_cases(tern_device *device, const settings *set, tern_error *err)
{
    if (!set->json) print_head(set);
    for (int i = 0; i < set->count; i++)
        for (int k = 0; k < 3 && !err->code; k++) {
            const shape *s = &set->cases[i];
            tern__kernel kernel = (tern__kernel)(TERN__CONV + k);
            char name[128];
            result r;
            measure_case(s, kernel, device, set, &r, err);
            case_text(s, name, sizeof(name));
            if (err->code) return;
            if (set->json)
                print_json(name, kernel, &r);
            else
                print_row(name, kernel, set, &r);
        }
}

int bench_conv(int argc, char **argv)
{
    int status = read_options(argc, argv);
    if (status) return status < 0 ? tern__cli_flush(argv[0]) : status;
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    if (device) run_cases(device, &chosen, &err);
    tern_error_print(&err);
    tern_device_close(device);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
