/* matmul.c - `bench_parts matmul`: the speed of the f32 matrix products of some nets on one core, by
 * f32_matmul.c and by oneDNN, compared with the core's multiply-adds.
 *
 * The two take turns, and the thread's time on its core counts, because the machine's speed varies over time
 * and other programs use it. */
#include "parts.h"
#include "bench/machine.h"

#include "kernels/cpu/matrix.h"

#include <tern.h>

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { CASES_MAX = 64, ROUNDS_MAX = 1000, WAYS = 2 };
enum { A, B, Y, OPERANDS };

static tern__products *const ways[WAYS] = {tern__f32_matmul, tern__dnnl_multiply};
static const char *const names[WAYS] = {"f32_matmul", "oneDNN"};

/* M,K,N and how a and b are stored: by rows (n) or turned (t). */
typedef struct product {
    int64_t m, k, n;
    bool turned[OPERANDS];
} product;

typedef struct settings {
    product cases[CASES_MAX];
    int count;
    long rounds;
    bool json;
} settings;

/* A linear layer's forward, dx and dw: of the MLP with batch 64, of GPT-2 with width 384 and 1024 tokens and
 * width 768 and 256 tokens, and a 1x1 convolution of a ResNet. */
static const char *const nets[] = {
    "64,784,1024:nt",   "1024,64,784:tn",  "64,1024,1024:nt", "64,1024,1024:nn",  "1024,64,1024:tn",
    "64,1024,10:nt",    "64,10,1024:nn",   "10,64,1024:tn",   "1024,384,1152:nn", "1024,1152,384:nt",
    "384,1024,1152:tn", "256,768,3072:nn", "256,3072,768:nt", "768,256,3072:tn",  "3136,64,256:nn",
};

static bool parse_case(const char *text, product *p)
{
    long long m, k, n;
    char a, b;
    int used = 0;
    if (sscanf(text, "%lld,%lld,%lld:%c%c%n", &m, &k, &n, &a, &b, &used) != 5 || text[used]) return false;
    *p = (product){m, k, n, {a == 't', b == 't'}};
    const long long most = 1 << 16;
    return m > 0 && k > 0 && n > 0 && m <= most && k <= most && n <= most && strchr("nt", a) &&
           strchr("nt", b);
}

static int take_case(const tern__cli_option *option, const char *text, tern_error *err)
{
    settings *set = option->to;
    if (set->count < CASES_MAX && parse_case(text, &set->cases[set->count])) {
        set->count++;
        return TERN_OK;
    }
    return tern__error_set(err, __func__, TERN_E_INVALID,
                           "expected a product as in 64,784,1024:nt, got \"%s\"", text);
}

static settings chosen = {.rounds = 21};

static const tern__cli_option options[] = {
    {"case", .value = "PRODUCT", .take = take_case, .to = &chosen,
     .help = "rows, products in a sum and columns of y = a b, and for a and b n, or t where they are stored "
             "turned: 64,784,1024:nt. May be given several times. Default: products of an MLP, of GPT-2 and "
             "of a ResNet"},
    {"rounds", .value = "K", .help = "rounds of a few milliseconds each (default 21)",
     .number = &chosen.rounds, .most = ROUNDS_MAX},
    {"json", .help = "print a JSON object a line instead of text", .on = &chosen.json},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page matmul_page = {
    NULL,
    "Times f32 matrix products on one core, by the product that tern uses on CPUs without AVX-512 and by "
    "oneDNN, in K rounds, and prints medians of both in GFLOPS and relative to the core's multiply-adds.\n",
    options,
};

/* ---- measuring ---- */

static bool open_view(tern__view *v, int64_t rows, int64_t columns, bool turned, tern_error *err)
{
    *v = tern__view_make(TERN_F32, TERN__PLAIN, 2, (int64_t[]){rows, columns});
    float *data = v->data = tern__alloc(tern__view_bytes(v), "bench_parts matmul", err);
    for (int64_t i = 0; data && i < rows * columns; i++) data[i] = (float)(i % 1009 - 504) * 1e-3f;
    if (turned) v->stride[0] = 1, v->stride[1] = rows;
    return data != NULL;
}

/* Repeats the product until it has taken about 5 ms on a core of 100 GFLOPS. */
static int time_once(const tern__call *call, const product *p, int way, double *seconds)
{
    tern__product seen = tern__product_of(call);
    char *at[] = {call->in[A]->data, call->in[B]->data, call->out[0]->data};
    int64_t times = 1 + 250000000 / (p->m * p->k * p->n);
    int status = TERN_OK;
    int64_t started = tern__thread_ns();
    for (int64_t i = 0; i < times && !status; i++) status = ways[way](call, &seen, at, false);
    *seconds = (double)(tern__thread_ns() - started) * 1e-9 / (double)times;
    return status;
}

static void measure_case(const product *p, tern_device *device, const settings *set, double median[WAYS],
                         tern_error *err)
{
    static double seconds[WAYS][ROUNDS_MAX];
    tern__view v[OPERANDS] = {{0}};
    tern__call call = {
        .device = device, .kernel = TERN__MATMUL, .in = {&v[A], &v[B]}, .out = {&v[Y]}, .err = err};
    if (open_view(&v[A], p->m, p->k, p->turned[A], err) && open_view(&v[B], p->k, p->n, p->turned[B], err) &&
        open_view(&v[Y], p->m, p->n, false, err))
        for (long round = -1; round < set->rounds && !err->code; round++) /* the first is a warm-up */
            for (int w = 0; w < WAYS && !err->code; w++)
                time_once(&call, p, w, &seconds[w][TERN__MAX(round, 0)]);
    for (int w = 0; w < WAYS; w++) median[w] = tern__bench_median(seconds[w], (size_t)set->rounds);
    for (int o = 0; o < OPERANDS; o++) tern__free(v[o].data);
}

/* ---- printing ---- */

static void print_case(const product *p, const settings *set, const double median[WAYS], double peak)
{
    char text[80];
    snprintf(text, sizeof(text), "%lld,%lld,%lld:%c%c", (long long)p->m, (long long)p->k, (long long)p->n,
             p->turned[A] ? 't' : 'n', p->turned[B] ? 't' : 'n');
    if (!set->json) printf("%-20s", text);
    for (int w = 0; w < WAYS; w++) {
        double gflops = 2e-9 * (double)(p->m * p->k * p->n) / median[w];
        if (!set->json) {
            printf(" %14.3f %6.1f %5.1f", median[w] * 1e3, gflops, 100 * gflops / peak);
            continue;
        }
        cJSON *line = cJSON_CreateObject();
        cJSON_AddStringToObject(line, "case", text);
        cJSON_AddStringToObject(line, "algorithm", names[w]);
        cJSON_AddNumberToObject(line, "median_ms", median[w] * 1e3);
        cJSON_AddNumberToObject(line, "gflops", gflops);
        cJSON_AddNumberToObject(line, "peak_gflops", peak);
        tern__bench_print(line);
    }
    if (!set->json) puts("");
    fflush(stdout);
}

static void print_head(double peak)
{
    printf("one core reaches %.1f GFLOPS\n%-20s", peak, "product");
    for (int w = 0; w < WAYS; w++) printf(" %11s ms GFLOPS %%peak", names[w]);
    puts("");
}

/* ---- running ---- */

static void run_cases(tern_device *device, const settings *set, tern_error *err)
{
    tern__machine machine;
    if (tern__machine_measure(device, TERN_F32, &machine, err)) return;
    if (!set->json) print_head(machine.gflops);
    for (int i = 0; i < set->count && !err->code; i++) {
        double median[WAYS];
        measure_case(&set->cases[i], device, set, median, err);
        if (!err->code) print_case(&set->cases[i], set, median, machine.gflops);
    }
}

int bench_matmul(int argc, char **argv)
{
    int status = tern__flags_read_all(&matmul_page, "bench_parts matmul", argc, argv);
    if (status) return status < 0 ? tern__cli_flush(argv[0]) : status;
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    if (!chosen.count)
        for (size_t i = 0; i < TERN__COUNT(nets); i++) parse_case(nets[i], &chosen.cases[chosen.count++]);
#ifdef _OPENMP
    omp_set_num_threads(1); /* which oneDNN asks for */
#endif
    tern_device_threads_set(device, 1, &err);
    if (!err.code) run_cases(device, &chosen, &err);
    tern_error_print(&err);
    tern_device_close(device);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
