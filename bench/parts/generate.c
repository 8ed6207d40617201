/* generate.c - `bench_parts generate`: the time of a token of generation, compared with reading the weights.
 *
 * A token reads every weight once, except the tables of which it takes a row, and computes little: it cannot
 * be faster than its weights come from memory. So what is timed in turn is the generation of some tokens by a
 * model with random weights, and a sum over as many bytes by as many threads. Also timed is the choice of a
 * token from the logits. */
#include "parts.h"

#include "base/simd.h"
#include "models/language_model.h"

#include <tern.h>

#include <stdio.h>
#include <string.h>

enum { ROUNDS_MAX = 1000, TOKENS_MAX = 512, PROMPT = 8, CHOICES = 20 };

typedef struct settings {
    long tokens, rounds, layers;
    const char *model, *dtype;
    bool json;
} settings;

static settings chosen = {.tokens = 16, .rounds = 9, .layers = 12, .model = "gpt2", .dtype = "f32"};

static const tern__cli_option options[] = {
    {"model", .value = "gpt2|llama", .text = &chosen.model,
     .help = "GPT-2 with 124 million parameters (default), or a Llama with 130 million"},
    {"dtype", .value = "f32|bf16|f16", .text = &chosen.dtype, .help = "of the weights (default f32)"},
    {"layers", .value = "N", .number = &chosen.layers, .most = 1000, .help = "of the model (default 12)"},
    {"tokens", .value = "N", .number = &chosen.tokens, .most = TOKENS_MAX,
     .help = "of each round (default 16)"},
    {"rounds", .value = "K", .number = &chosen.rounds, .most = ROUNDS_MAX,
     .help = "rounds of N tokens and one sum each (default 9)"},
    {"json", .help = "print a JSON object instead of text", .on = &chosen.json},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page generate_page = {
    NULL,
    "Times generation, one token after the other, by a language model with random weights, and a sum over as "
    "many bytes as a token reads of them, which is the least that a token can take.\n",
    options,
};

typedef struct bench {
    tern_device *device;
    tern_scope *scope;
    tern_module *model;
    double bytes; /* that a token reads */
    float *memory, *logits;
    float kept;                  /* so that the sum is computed */
    int64_t first, last, tokens; /* ns of the first and last token, and how many there were */
    double token[ROUNDS_MAX], sum[ROUNDS_MAX], greedy[CHOICES], drawn[CHOICES];
} bench;

/* ---- open and close ---- */

static tern_module *model_new(tern_rng *rng, tern_error *err)
{
    tern_gpt2_opts gpt2 = tern_gpt2_defaults();
    gpt2.n_layer = (int)chosen.layers;
    if (!strcmp(chosen.model, "gpt2")) return tern_gpt2_new(&gpt2, rng, err);
    tern_llama_opts opts = tern_llama_defaults();
    opts.hidden_size = 768;
    opts.intermediate_size = 2048;
    opts.num_hidden_layers = (int)chosen.layers;
    opts.num_attention_heads = 12;
    opts.num_key_value_heads = 4;
    return tern_llama_new(&opts, rng, err);
}

/* Of a table a token takes one row. lm_head has its bytes under its own name, also where it shares one. */
static double bytes_read(const tern_module *model)
{
    static const char *const tables[] = {"wpe.", "wte.", "embed_tokens."};
    double bytes = 0;
    for (int i = 0; i < tern_state_count(model); i++) {
        tern_state_entry entry = tern_state_get(model, i);
        bool is_table = false;
        for (size_t t = 0; t < TERN__COUNT(tables); t++) is_table |= strstr(entry.name, tables[t]) != NULL;
        if (!is_table) bytes += (double)tern__view_bytes(&entry.tensor->view);
    }
    return bytes;
}

static void open_bench(bench *b, tern_error *err)
{
    tern_rng *rng = tern_rng_new(1, err);
    tern_dtype dtype = !strcmp(chosen.dtype, "f32")    ? TERN_F32
                       : !strcmp(chosen.dtype, "bf16") ? TERN_BF16
                                                       : TERN_F16;
    b->device = tern_device_open(NULL, err);
    b->scope = err->code ? NULL : tern_scope_new(b->device, NULL, err);
    b->model = rng && b->scope ? model_new(rng, err) : NULL;
    if (b->model && dtype != TERN_F32) tern_module_cast(b->model, dtype, err);
    tern_rng_free(rng);
    if (err->code) return;
    int64_t words = tern__language_model_of(b->model)->embeddings->view.shape[0];
    b->bytes = bytes_read(b->model);
    b->memory = tern__alloc((size_t)b->bytes, "bench_parts generate", err);
    b->logits = err->code ? NULL : tern__alloc((size_t)words * sizeof(float), "bench_parts generate", err);
    if (b->memory) memset(b->memory, 1, (size_t)b->bytes);
}

static void close_bench(bench *b)
{
    tern__free(b->memory);
    tern__free(b->logits);
    tern_module_free(b->model);
    tern_scope_free(b->scope);
    tern_device_close(b->device);
}

/* ---- measuring ---- */

TERN__SIMD static float sum_part(const float *x, size_t count)
{
    enum { LANES = 64 };
    float sum[LANES] = {0}, all = 0;
    for (size_t i = 0; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++) sum[l] += x[i + l];
    for (int l = 0; l < LANES; l++) all += sum[l];
    return all;
}

static double time_sum(bench *b)
{
    float all = 0;
    int threads = tern_device_threads_get(b->device);
    size_t count = (size_t)b->bytes / sizeof(float);
    int64_t start = tern__now_ns();
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : all)
    for (int t = 0; t < threads; t++) {
        size_t first = count * (size_t)t / (size_t)threads, last = count * ((size_t)t + 1) / (size_t)threads;
        all += sum_part(b->memory + first, last - first);
    }
    b->kept = all;
    return (double)(tern__now_ns() - start) * 1e-9;
}

static bool on_token(void *context, int32_t id)
{
    bench *b = context;
    (void)id;
    b->last = tern__now_ns();
    if (!b->tokens++) b->first = b->last;
    return true;
}

/* The prompt's time is the first token's and does not count. */
static double time_tokens(bench *b, tern_error *err)
{
    tern_generate_opts opts = tern_generate_defaults();
    tern_token_ids ids = {0};
    int32_t prompt[PROMPT] = {1, 2, 3, 4, 5, 6, 7, 8};
    opts.max_new_tokens = chosen.tokens + 1;
    opts.on_token = on_token;
    opts.context = b;
    b->tokens = 0;
    ids.ids = tern__alloc(sizeof(prompt), "bench_parts generate", err);
    if (!ids.ids) return 0;
    memcpy(ids.ids, prompt, sizeof(prompt));
    ids.count = ids.room = PROMPT;
    tern_generate(b->model, b->scope, &ids, &opts, err);
    tern_token_ids_free(&ids);
    return (double)(b->last - b->first) * 1e-9 / (double)chosen.tokens;
}

/* Chooses from logits as of a model that has learnt something: few are far above the others. */
static double time_choice(bench *b, bool draws, tern_error *err)
{
    tern_generate_opts opts = tern_generate_defaults();
    tern_rng *rng = tern_rng_new(1, err);
    int64_t words = tern__language_model_of(b->model)->embeddings->view.shape[0];
    int32_t id;
    if (!rng) return 0;
    tern_rng_normal(rng, b->logits, (size_t)words, 0, 2);
    opts.rng = rng;
    opts.do_sample = draws;
    opts.top_p = 0.9;
    opts.top_k = 0;
    int64_t start = tern__now_ns();
    tern_generate_choose(b->logits, words, NULL, 0, &opts, &id, err);
    int64_t end = tern__now_ns();
    tern_rng_free(rng);
    return (double)(end - start) * 1e-9;
}

/* The first round is a warm-up. */
static void run_rounds(bench *b, tern_error *err)
{
    for (long round = -1; round < chosen.rounds && !err->code; round++) {
        b->token[TERN__MAX(round, 0)] = time_tokens(b, err);
        b->sum[TERN__MAX(round, 0)] = time_sum(b);
    }
    for (int i = 0; i < CHOICES && !err->code; i++) {
        b->greedy[i] = time_choice(b, false, err);
        b->drawn[i] = time_choice(b, true, err);
    }
}

/* ---- printing ---- */

static void print_figures(bench *b)
{
    size_t rounds = (size_t)chosen.rounds;
    double token = tern__bench_median(b->token, rounds), sum = tern__bench_median(b->sum, rounds),
           greedy = tern__bench_median(b->greedy, CHOICES), drawn = tern__bench_median(b->drawn, CHOICES);
    int threads = tern_device_threads_get(b->device);
    if (!chosen.json) {
        printf("%s, %s, %d threads: %.2f ms/token, %.1f tokens/s\n", chosen.model, chosen.dtype, threads,
               token * 1e3, 1 / token);
        printf("reading the %.0f MB of a token: %.2f ms, %.1f GB/s; a token takes %.2f times as long\n",
               b->bytes * 1e-6, sum * 1e3, b->bytes / sum * 1e-9, token / sum);
        printf("choosing a token: %.3f ms, of top_p 0.9: %.3f ms\n", greedy * 1e3, drawn * 1e3);
        return;
    }
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "model", chosen.model);
    cJSON_AddStringToObject(line, "dtype", chosen.dtype);
    cJSON_AddNumberToObject(line, "threads", threads);
    cJSON_AddNumberToObject(line, "bytes", b->bytes);
    cJSON_AddNumberToObject(line, "token_ms", token * 1e3);
    cJSON_AddNumberToObject(line, "read_ms", sum * 1e3);
    cJSON_AddNumberToObject(line, "greedy_ms", greedy * 1e3);
    cJSON_AddNumberToObject(line, "top_p_ms", drawn * 1e3);
    tern__bench_print(line);
}

int bench_generate(int argc, char **argv)
{
    int status = tern__flags_read_all(&generate_page, "bench_parts generate", argc, argv);
    if (status) return status < 0 ? tern__cli_flush(argv[0]) : status;
    static bench b; /* large */
    tern_error err = {0};
    open_bench(&b, &err);
    if (!err.code) run_rounds(&b, &err);
    if (!err.code) print_figures(&b);
    tern_error_print(&err);
    close_bench(&b);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
