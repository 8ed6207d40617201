/* step.c - `tern bench step`: times a training step (forward, loss, backward, SGD) on synthetic data. */
#include "bench/bench.h"
#include "bench/model.h"
#include "bench/profile.h"

#include <tern.h>

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct settings {
    tern__bench_model own; /* the model, with the options' numbers */
    const tern__bench_model *model;
    const char *size_text, *dtype, *reduce;
    const char *level; /* of amp; NULL: no amp */
    const char *model_name;
    const char *device; /* NULL: TERN_DEVICE or the CPU */
    int64_t size[3];    /* of the spatial dimensions */
    long batch, steps, warm_up;
    long layers, width, heads, vocabulary, patch; /* of a transformer; 0: its own */
    bool json, profile, shapes, data_parallel, shard, exact_conv, deterministic;
} settings;

typedef struct result {
    double median_ms, min_ms, samples_per_s, loss_first, loss_last;
    double cpu_ms;        /* per step, all threads of a rank; mean over the ranks */
    double first_step_ms; /* from the launcher's start to the end of the first step; -1: unknown */
    double peak_rss_mb;
    double pss_mb;     /* per rank, mean: pages that several processes map are split between them */
    double tensor_mb;  /* activations and their gradients: tensor memory of rank 0's device */
    double reduced_mb; /* gradients of a step, in the dtype of the reduction */
    double state_mb;   /* this rank's optimizer state */
    double total_ms;   /* of all timed steps */
    tern__machine machine;
} result;

/* Everything that a step needs. */
typedef struct bench {
    tern_group *world;
    tern_device *device;
    tern_rng *rng;
    tern_module *net;
    tern_amp *amp; /* NULL: no opt level */
    tern_ddp *ddp;
    tern_data_parallel *parallel; /* NULL: one device */
    tern_optim *optim;
    tern_scope *scope, *data; /* of a step; of the inputs, which all steps use */
    tern__profile *profile;   /* NULL: no --profile */
    int64_t shape[5], label_shape[5];
    int ndim, label_ndim;
    float *numbers;
    int64_t *classes, *tokens;
    tern_tensor *x, *labels; /* the same on the device */
} bench;

static int64_t count_of(const int64_t *shape, int ndim)
{
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) count *= shape[d];
    return count;
}

/* Inputs are (N, C, size), or tokens (N, T); labels are (N) or (N, size), a mask is (N, 1, size). */
static void set_shapes(bench *b, const settings *set)
{
    const tern__bench_model *model = set->model;
    b->shape[b->ndim++] = b->label_shape[b->label_ndim++] = set->batch;
    if (!tern__bench_model_is_language(model)) b->shape[b->ndim++] = model->channels;
    if (model->classes == 1) b->label_shape[b->label_ndim++] = 1;
    for (int d = 0; d < model->spatial; d++) {
        b->shape[b->ndim++] = set->size[d];
        if (model->dense) b->label_shape[b->label_ndim++] = set->size[d];
    }
}

/* Tokens that look random and are the same in PyTorch; the label of each is the next. */
static void make_tokens(bench *b, const settings *set, tern_error *err)
{
    int64_t length = set->size[0], count = set->batch * length, first = count * tern_group_rank(b->world);
    b->tokens = tern__alloc((size_t)count * sizeof(*b->tokens), "tern bench step", err);
    b->classes = tern__alloc((size_t)count * sizeof(*b->classes), "tern bench step", err);
    if (!b->tokens || !b->classes) return;
    for (int64_t i = 0; i < count; i++)
        b->tokens[i] = (int64_t)((uint32_t)(first + i) * 2654435761u >> 8) % set->model->classes;
    for (int64_t i = 0; i < count; i++) b->classes[i] = (i + 1) % length ? b->tokens[i + 1] : -100;
    b->data = tern_scope_new(b->device, b->world, err);
    b->x = tern_tensor_from(b->data, b->tokens, TERN_I64, b->ndim, b->shape);
    b->labels = tern_tensor_from(b->data, b->classes, TERN_I64, b->label_ndim, b->label_shape);
}

static void make_data(bench *b, const settings *set, tern_error *err)
{
    set_shapes(b, set);
    if (tern__bench_model_is_language(set->model)) {
        make_tokens(b, set, err);
        return;
    }
    int64_t count = count_of(b->shape, b->ndim), labels = count_of(b->label_shape, b->label_ndim);
    b->numbers = tern__alloc((size_t)count * sizeof(*b->numbers), "tern bench step", err);
    b->classes = tern__alloc((size_t)labels * sizeof(*b->classes), "tern bench step", err);
    if (!b->numbers || !b->classes) return;
    tern_rng_seed(b->rng, (uint64_t)tern_group_rank(b->world) + 1);
    tern_rng_normal(b->rng, b->numbers, (size_t)count, 0, 1);
    for (int64_t i = 0; i < labels; i++) b->classes[i] = i % TERN__MAX(set->model->classes, 2);
    b->data = tern_scope_new(b->device, b->world, err);
    b->x = tern_tensor_from(b->data, b->numbers, TERN_F32, b->ndim, b->shape);
    b->labels = tern_tensor_from(b->data, b->classes, TERN_I64, b->label_ndim, b->label_shape);
}

static tern_dtype dtype_of(const char *name)
{
    return !strcmp(name, "bf16") ? TERN_BF16 : !strcmp(name, "f16") ? TERN_F16 : TERN_F32;
}

static void open_bench(bench *b, const settings *set, tern_error *err)
{
    b->world = tern_group_open(NULL, err);
    b->device = tern_device_open(NULL, err);
    b->rng = tern_rng_new(0, err);
    b->net = err->code ? NULL : set->model->make(set->model, b->rng, err);
    if (b->net && b->device->backend) tern_module_to(b->net, b->device, err);
    if (set->level) {
        tern_amp_opts amp = tern_amp_defaults((tern_opt_level)(set->level[1] - '0'));
        b->amp = tern_amp_new(b->net, &amp, err);
    }
    tern_ddp_opts ddp = tern_ddp_defaults();
    ddp.reduce_dtype = dtype_of(set->reduce);
    b->ddp = tern_ddp_new(b->net, b->world, &ddp, err);
    if (set->data_parallel) b->parallel = tern_data_parallel_new(b->net, NULL, err);
    tern_sgd_opts sgd = tern_sgd_defaults();
    sgd.lr = 0.01;
    sgd.momentum = 0.9;
    b->optim = tern_sgd_new(b->net, &sgd, err);
    if (set->shard) tern_optim_shard(b->optim, b->world, err);
    b->scope = tern_scope_new(b->device, b->world, err);
    if (!err->code) tern_autocast_set(b->scope, dtype_of(set->dtype));
    if (!err->code) make_data(b, set, err);
}

static void close_bench(bench *b)
{
    tern__profile_free(b->profile);
    tern_scope_free(b->scope);
    tern_scope_free(b->data);
    tern__free(b->classes);
    tern__free(b->tokens);
    tern__free(b->numbers);
    tern_optim_free(b->optim);
    tern_data_parallel_free(b->parallel);
    tern_ddp_free(b->ddp);
    tern_amp_free(b->amp);
    tern_module_free(b->net);
    tern_rng_free(b->rng);
    tern_device_close(b->device);
    tern_group_close(b->world);
}

static tern_tensor *scores_of(bench *b)
{
    if (!b->parallel) return tern_forward(b->net, b->scope, b->x);
    return tern_to(b->scope, tern_data_parallel_forward(b->parallel, b->scope, b->x), b->device);
}

static tern_tensor *loss_of(bench *b, const settings *set)
{
    if (!tern__bench_model_is_language(set->model) || b->parallel)
        return set->model->loss(b->scope, scores_of(b), b->labels);
    tern_language_model_loss_opts opts = tern_language_model_loss_defaults();
    opts.shifted = true;
    return tern_language_model_loss(b->net, b->scope, b->x, b->labels, &opts);
}

static void bench_step_run(bench *b, const settings *set, tern_error *err)
{
    tern_tensor *loss = loss_of(b, set);
    if (b->amp)
        tern_amp_backward(b->amp, b->scope, loss, NULL);
    else
        tern_backward(b->scope, loss);
    tern_optim_step(b->optim, b->scope);
    tern_scope_end(b->scope, err);
}

/* Returns the milliseconds since the launcher started, of the slowest rank; -1 if unknown. */
static double ms_since_launch(bench *b, tern_error *err)
{
    long launched;
    tern__env_int(TERN__ENV_STARTED, 0, LONG_MAX, 0, &launched, err);
    double ms = launched ? (double)(tern__now_ns() - launched) * 1e-6 : -1;
    tern_all_reduce(b->world, &ms, 1, TERN_F64, TERN_MAX, err);
    return ms;
}

/* Returns the CPU time of this process so far. */
static double own_cpu_ms(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-3;
}

static double peak_rss_mb(bench *b, tern_error *err)
{
    struct rusage usage_now;
    getrusage(RUSAGE_SELF, &usage_now);
    double mb = (double)usage_now.ru_maxrss / 1024;
    tern_all_reduce(b->world, &mb, 1, TERN_F64, TERN_MAX, err);
    return mb;
}

/* Returns the proportional set size of this process; 0 if the kernel does not tell. */
static double own_pss_mb(void)
{
    char line[256];
    long kb = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "Pss: %ld", &kb) != 1) continue;
    if (file) fclose(file);
    return (double)kb / 1024;
}

/* The barrier and the reduction keep all ranks from freeing or allocating memory meanwhile. */
static double pss_mb(bench *b, tern_error *err)
{
    tern_barrier(b->world, err);
    double mb = own_pss_mb();
    tern_all_reduce(b->world, &mb, 1, TERN_F64, TERN_AVG, err);
    return mb;
}

static void warm_up(bench *b, const settings *set, result *r, tern_error *err)
{
    for (int i = 0; i < set->warm_up && !err->code; i++) {
        bench_step_run(b, set, err);
        if (i > 0 || err->code) continue;
        r->first_step_ms = ms_since_launch(b, err);
        r->loss_first = tern_ddp_loss_mean(b->ddp);
    }
}

static double reduced_mb(const bench *b)
{
    double bytes = 0;
    for (int i = 0; i < tern_ddp_bucket_count(b->ddp); i++) bytes += (double)tern_ddp_bucket_bytes(b->ddp, i);
    return bytes / (1 << 20);
}

/* Stores the milliseconds of each step, from the end of the step before to its own end. The CPU time ends
 * when the last step is queued: waiting for a GPU does not count. */
static void run_steps(bench *b, const settings *set, double *ms, result *r, tern_error *err)
{
    tern__bench_clock *clock = tern__bench_clock_new(b->device, (int)set->steps + 1, err);
    if (!clock) return;
    double used = own_cpu_ms();
    tern__bench_clock_set(clock, 0, err);
    for (int i = 0; i < set->steps && !err->code; i++) {
        bench_step_run(b, set, err);
        tern__bench_clock_set(clock, i + 1, err);
    }
    r->cpu_ms = (own_cpu_ms() - used) / (double)set->steps;
    for (int i = 0; i < set->steps && !err->code; i++) {
        ms[i] = tern__bench_clock_ms(clock, i, i + 1);
        r->total_ms += ms[i];
    }
    tern__bench_clock_free(clock);
}

static void time_steps(bench *b, const settings *set, double *ms, result *r, tern_error *err)
{
    if (set->profile) b->profile = tern__profile_new(b->device, set->shapes, err);
    if (!err->code) run_steps(b, set, ms, r, err);
    tern_all_reduce(b->world, &r->cpu_ms, 1, TERN_F64, TERN_AVG, err);
    if (err->code) return;
    r->median_ms = tern__bench_median(ms, (size_t)set->steps);
    r->min_ms = ms[0];
    r->samples_per_s = (double)set->batch * tern_group_size(b->world) / r->median_ms * 1e3;
    r->loss_last = tern_ddp_loss_mean(b->ddp);
    r->peak_rss_mb = peak_rss_mb(b, err);
    r->pss_mb = pss_mb(b, err);
    r->tensor_mb = (double)tern__device_bytes(b->device) / (1 << 20);
    r->reduced_mb = reduced_mb(b);
    r->state_mb = (double)tern_optim_state_bytes(b->optim) / (1 << 20);
}

/* All ranks measure at the same time, as cores share clock rate and memory bandwidth. */
static void measure_machine(bench *b, tern_dtype dtype, result *r, tern_error *err)
{
    tern_barrier(b->world, err);
    if (!err->code) tern__machine_measure(b->device, dtype, &r->machine, err);
}

static result measure_steps(bench *b, const settings *set, tern_error *err)
{
    result r = {0};
    double *ms = tern__alloc((size_t)set->steps * sizeof(*ms), "tern bench step", err);
    warm_up(b, set, &r, err);
    if (set->profile && !err->code)
        measure_machine(b, set->level ? TERN_BF16 : dtype_of(set->dtype), &r, err);
    if (!err->code) time_steps(b, set, ms, &r, err);
    tern__free(ms);
    return r;
}

static void add_settings(cJSON *line, const bench *b, const settings *set, int ranks)
{
    cJSON_AddStringToObject(line, "model", set->model->name);
    cJSON_AddNumberToObject(line, "ranks", ranks);
    cJSON_AddNumberToObject(line, "replicas", b->parallel ? tern_data_parallel_count(b->parallel) : 1);
    cJSON_AddNumberToObject(line, "batch", (double)set->batch);
    cJSON *size = cJSON_AddArrayToObject(line, "size");
    for (int d = 0; d < set->model->spatial; d++)
        cJSON_AddItemToArray(size, cJSON_CreateNumber((double)set->size[d]));
    if (set->model->layers) {
        cJSON_AddNumberToObject(line, "layers", (double)set->model->layers);
        cJSON_AddNumberToObject(line, "width", (double)set->model->width);
        cJSON_AddNumberToObject(line, "heads", (double)set->model->heads);
        if (set->model->patch)
            cJSON_AddNumberToObject(line, "patch", (double)set->model->patch);
        else
            cJSON_AddNumberToObject(line, "vocabulary", (double)set->model->classes);
    }
    cJSON_AddStringToObject(line, "dtype", set->dtype);
    if (set->level) cJSON_AddStringToObject(line, "opt_level", set->level);
    cJSON_AddStringToObject(line, "reduce", set->reduce);
    cJSON_AddNumberToObject(line, "steps", (double)set->steps);
    cJSON_AddNumberToObject(line, "warm_up", (double)set->warm_up);
}

static void add_result(cJSON *line, const result *r)
{
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"median_ms", r->median_ms},         {"min_ms", r->min_ms},           {"cpu_ms", r->cpu_ms},
        {"samples_per_s", r->samples_per_s}, {"peak_rss_mb", r->peak_rss_mb}, {"pss_mb", r->pss_mb},
        {"tensor_mb", r->tensor_mb},         {"reduced_mb", r->reduced_mb},   {"state_mb", r->state_mb},
    };
    for (size_t i = 0; i < TERN__COUNT(numbers); i++)
        cJSON_AddNumberToObject(line, numbers[i].name, numbers[i].value);
    if (r->first_step_ms >= 0)
        cJSON_AddNumberToObject(line, "first_step_ms", r->first_step_ms);
    else
        cJSON_AddNullToObject(line, "first_step_ms");
    cJSON_AddNumberToObject(line, "loss_first", r->loss_first);
    cJSON_AddNumberToObject(line, "loss_last", r->loss_last);
}

static void print_json(const bench *b, const settings *set, int ranks, const result *r)
{
    cJSON *line = cJSON_CreateObject();
    add_settings(line, b, set, ranks);
    add_result(line, r);
    if (tern__bench_model_is_language(set->model))
        cJSON_AddNumberToObject(line, "tokens_per_s", r->samples_per_s * (double)set->size[0]);
    if (b->profile)
        cJSON_AddItemToObject(line, "profile",
                              tern__profile_json(b->profile, &r->machine, set->steps, r->total_ms));
    tern__bench_print(line);
}

static void step_print_text(const bench *b, const settings *set, int ranks, const result *r)
{
    printf("%s, %s, %d rank%s, batch %ld x %d: median %.3f ms, min %.3f ms, %.*f samples/s, peak %.0f MB, "
           "PSS %.0f MB, tensors %.1f MB, reduced %.1f MB, ",
           set->model->name, set->level ? set->level : set->dtype, ranks, ranks == 1 ? "" : "s", set->batch,
           ranks, r->median_ms, r->min_ms, r->samples_per_s < 10 ? 2 : 0, r->samples_per_s, r->peak_rss_mb,
           r->pss_mb, r->tensor_mb, r->reduced_mb);
    if (tern__bench_model_is_language(set->model))
        printf("%.0f tokens/s, ", r->samples_per_s * (double)set->size[0]);
    if (r->first_step_ms >= 0) printf("first step after %.1f ms, ", r->first_step_ms);
    printf("loss %.4f -> %.4f\n", r->loss_first, r->loss_last);
    if (ranks == 1) printf("1 rank (for more: tern run -n 2 tern bench step)\n");
    if (!b->device->backend) tern__bench_print_oversubscribed(tern_device_threads_get(b->device));
    if (b->parallel) tern_data_parallel_print(b->parallel);
    if (b->profile) tern__profile_print(b->profile, &r->machine, set->steps, r->total_ms);
}

/* ---- options ---- */

static settings chosen = {.model_name = "mlp", .dtype = "f32", .reduce = "f32", .steps = 20, .warm_up = 3};

static int take_profile(const tern__cli_option *option, const char *text, tern_error *err)
{
    settings *set = option->to;
    set->profile = true;
    set->shapes = text != NULL;
    if (!text || !strcmp(text, "shapes")) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected shapes, got \"%s\"", text);
}

enum { MOST = 1 << 20 };

static const tern__cli_option options[] = {
    {"model", .value = "mlp|fashion|resnet18|resnet50|deeplabv3|unet3d|vit|gpt2|llama",
     .text = &chosen.model_name,
     .help = "mlp (the default) is 784-1024-1024-10; fashion is the demo's ResNet of 16, 32 and 64 "
             "channels, with 64 images of 28x28; resnet18 is the variant for 32x32 images (3x3 stem, no max "
             "pool); resnet50 and deeplabv3 (on a ResNet-50; a label per pixel, no dropout) are "
             "torchvision's, with a batch of 4 images of 257x257; unet3d has 16 channels in its first level "
             "and learns the mask of one volume of 32x64x64 with binary cross entropy and Dice; vit is "
             "DeiT-Ti with "
             "8 images of 224x224, whose scores begin with weights other than 0; gpt2 and llama learn the "
             "next token of 8 sequences of 128, without dropout. The others learn classes with cross "
             "entropy"},
    {"batch", .value = "N", .help = "samples per rank", .number = &chosen.batch, .most = MOST},
    {"size", .value = "SIZE",
     .help = "another size of images and volumes, HxW or DxHxW; 257 means 257x257; the tokens of a sequence",
     .text = &chosen.size_text},
    {"layers", .value = "L", .help = "of gpt2 and llama (default 4) and vit (12)", .number = &chosen.layers,
     .most = 4096},
    {"width", .value = "W", .number = &chosen.width, .most = MOST,
     .help = "features of their hidden states, a multiple of the heads (default 256, vit 192)"},
    {"heads", .value = "H", .help = "of their attention (default 4, vit 3)", .number = &chosen.heads,
     .most = MOST},
    {"vocabulary", .value = "V", .help = "the number of tokens of gpt2 and llama (default 256)",
     .number = &chosen.vocabulary, .most = MOST},
    {"patch", .value = "P", .help = "side of vit's patches, a divisor of the image's (default 16)",
     .number = &chosen.patch, .most = 4096},
    {"steps", .value = "K", .help = "timed steps (default 20)", .number = &chosen.steps, .most = MOST},
    {"warm-up", .value = "K", .number = &chosen.warm_up, .most = MOST,
     .help = "steps before them (default 3): an idle GPU reaches its full clock rate within half a second of "
             "work"},
    {"dtype", .value = "f32|bf16|f16", .text = &chosen.dtype,
     .help = "bf16 and f16 compute in an autocast region; parameters and their gradients stay f32"},
    {"opt-level", .value = "O0|O1|O2|O3", .help = "train with amp at this level in bf16, instead of --dtype",
     .text = &chosen.level},
    {"reduce", .value = "f32|bf16|f16", .help = "the dtype in which gradients are reduced",
     .text = &chosen.reduce},
    {"device", .value = "NAME", .text = &chosen.device,
     .help = "cuda trains on a GPU, with the data already there. Default: TERN_DEVICE, or the CPU"},
    {"shard", .help = "split the optimizer's state and update over the ranks", .on = &chosen.shard},
    {"exact-conv", .help = "multiply and add f32 in f32 (tern_device_conv_opts)", .on = &chosen.exact_conv},
    {"deterministic", .help = "take convolution algorithms from a fixed table", .on = &chosen.deterministic},
    {"data-parallel", .help = "split the batch over replicas, one per core of the rank",
     .on = &chosen.data_parallel},
    {"profile", .value = "[shapes]", .take = take_profile, .to = &chosen,
     .help =
         "also print the time of each kernel, its arithmetic (matrix products and convolutions) relative to "
         "the measured peak of the cores, and the bytes of its operands relative to a copy out of cache, on "
         "a GPU to a copy of as many bytes (% copy; % once counts once what a batch norm reads twice on a "
         "GPU). With =shapes a line per kernel and shapes, with the algorithm of convolutions"},
    {"json", .help = "print a JSON object instead of text", .on = &chosen.json},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page tern__step_page = {
    NULL,
    "Times forward, loss, backward and SGD (lr 0.01, momentum 0.9) on synthetic data, after warm-up steps. "
    "Start it with any launcher, `tern run -n 2 tern bench step`; the batch is per rank.\n",
    options,
};

/* The library reads these from the environment, also for the devices of replicas. */
static void set_environment(const settings *set)
{
    if (set->device) setenv("TERN_DEVICE", set->device, 1);
    if (set->exact_conv) setenv("TERN_EXACT_CONV", "1", 1);
    if (set->deterministic) setenv("TERN_DETERMINISTIC", "1", 1);
}

/* Returns false after a message if the model does not have an option that was given. */
static bool check_model_options(const settings *set)
{
    const tern__bench_model *model = set->model;
    const struct {
        bool wrong;
        const char *text;
    } checks[] = {
        {!model->layers && (set->layers || set->width || set->heads),
         "--layers, --width and --heads are for gpt2, llama and vit"},
        {!tern__bench_model_is_language(model) && set->vocabulary, "--vocabulary is for gpt2 and llama"},
        {!model->patch && set->patch, "--patch is for vit"},
        {model->patch && set->size[0] != set->size[1], "--size: vit takes square images"},
    };
    for (size_t i = 0; i < TERN__COUNT(checks); i++) {
        if (!checks[i].wrong) continue;
        fprintf(stderr, "tern bench step: %s\n", checks[i].text);
        return false;
    }
    return true;
}

/* Gives the model the numbers of its options. */
static bool complete_model(settings *set)
{
    if (!check_model_options(set)) return false;
    set->own = *set->model;
    memcpy(set->own.size, set->size, sizeof(set->size));
    if (set->layers) set->own.layers = set->layers;
    if (set->width) set->own.width = set->width;
    if (set->heads) set->own.heads = set->heads;
    if (set->vocabulary) set->own.classes = set->vocabulary;
    if (set->patch) set->own.patch = set->patch;
    set->model = &set->own;
    return true;
}

/* Fills in the model's defaults. Returns false after a message if options contradict each other. */
static bool complete_settings(settings *set)
{
    if (set->profile && set->data_parallel) {
        fprintf(stderr, "tern bench step: --profile works on one device, not with --data-parallel\n");
        return false;
    }
    if (set->level && (strcmp(set->dtype, "f32") || set->data_parallel)) {
        fprintf(stderr, "tern bench step: --opt-level works neither with --dtype nor with --data-parallel\n");
        return false;
    }
    set->model = tern__bench_model_find(set->model_name);
    if (!set->batch) set->batch = set->model->batch;
    memcpy(set->size, set->model->size, sizeof(set->size));
    if (set->size_text && !tern__bench_model_size(set->model, set->size_text, set->size)) return false;
    return complete_model(set);
}

/* Returns what tern__flags_read_all does, and TERN__EXIT_USAGE if options contradict each other. */
static int step_read_options(int argc, char **argv)
{
    int status = tern__flags_read_all(&tern__step_page, "tern bench step", argc, argv);
    if (status) return status;
    set_environment(&chosen);
    return complete_settings(&chosen) ? TERN__EXIT_OK : TERN__EXIT_USAGE;
}

int tern__bench_step(int argc, char **argv)
{
    int status = step_read_options(argc, argv);
    if (status) return status < 0 ? tern__cli_flush(argv[0]) : status;
    tern_error err = {0};
    bench b = {0};
    open_bench(&b, &chosen, &err);
    if (!err.code) {
        result r = measure_steps(&b, &chosen, &err);
        if (!err.code && tern_group_rank(b.world) == 0) {
            if (chosen.json)
                print_json(&b, &chosen, tern_group_size(b.world), &r);
            else
                step_print_text(&b, &chosen, tern_group_size(b.world), &r);
        }
    }
    tern_error_print(&err);
    close_bench(&b);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
