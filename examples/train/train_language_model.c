/* train_language_model.c - trains a GPT-2 or a Llama on text, from scratch or from a folder of Hugging Face,
 * wholly or by low-rank adapters.
 *
 *     bible -f gen1:1-rev22:21 | cut -d ' ' -f 2- > bible.txt         (apt install bible-kjv)
 *     tern run -n 2 build/examples/train_language_model --data bible.txt
 *     tern generate runs/.../best
 *
 *     tern run -n 2 build/examples/train_language_model --data letters.txt --pretrained gpt2 --context 256 \
 *         --lora-rank 8 --lr 2e-4
 *
 * A text is tokenized by every rank, with a tokenizer that is trained on it, or that of --tokenizer or
 * --pretrained. Its end is held out for the test. Files of tokens (`tern tokenize`) may be larger than
 * memory.
 *
 * Prints the perplexity of the held-out part, and a text that the model writes. Writes curves for
 * TensorBoard, checkpoints for --resume, the folders `best` and `last` for transformers and `tern generate`,
 * and train_language_model.png. */
#include "run_dir.h"
#include "trainer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TEXT_MOST (INT64_C(1) << 28) /* bytes of a text that every rank holds and tokenizes */

#define ARCHS "gpt2|llama"
enum { GPT2, LLAMA };

typedef struct language_model {
    int arch;
    int64_t layers, width, heads, context, vocabulary, stride;
    double dropout, beta2, test_share;
    const char *tokenizer_path, *pretrained, *test_data;
    char resumed[FLAGS_DIR + 32]; /* the tokenizer that a resumed run has saved, or "" */
    bool recompute;
    int64_t lora_rank;
    double lora_alpha;
    const char *lora_targets;
    const char *prompt;
    int64_t sample_tokens;
    double temperature;
    tern_tokenizer *tokenizer;
    tern_dataset *sets[2],
        *wholes[2]; /* for training and the test; the files of which they are parts, or NULL */
} language_model;

/* ---- text ---- */

static bool ends_in(const char *path, const char *suffix)
{
    size_t length = strlen(path), end = strlen(suffix);
    return length >= end && !strcmp(path + length - end, suffix);
}

static bool is_token_file(const char *path)
{
    return ends_in(path, ".bin") || ends_in(path, ".npy");
}

/* Reads a file as a whole. The caller frees the text. */
static char *read_text(const char *path, size_t *bytes, tern_error *err)
{
    const char *func = "train_language_model";
    struct stat about = {0};
    char *text = NULL;
    *bytes = 0;
    if (err->code) return NULL;
    FILE *file = fopen(path, "rb");
    bool is_open = file && fstat(fileno(file), &about) == 0;
    if (is_open && S_ISDIR(about.st_mode)) errno = EISDIR, is_open = false;
    long long size = about.st_size;
    if (!is_open)
        tern_error_set(err, func, TERN_E_IO, "cannot read %s: %s", path, strerror(errno));
    else if (!size)
        tern_error_set(err, func, TERN_E_INVALID, "%s is empty", path);
    else if (size > TEXT_MOST)
        tern_error_set(err, func, TERN_E_RANGE,
                       "%s has %lld MB, too many for a text that every rank tokenizes: write its tokens with "
                       "`tern tokenize -o FILE.bin`, and give --data FILE.bin --tokenizer PATH",
                       path, size >> 20);
    else if (!(text = malloc((size_t)size)))
        tern_error_set(err, func, TERN_E_MEMORY, "no memory for %s", path);
    else if (fread(text, 1, (size_t)size, file) != (size_t)size)
        tern_error_set(err, func, TERN_E_IO, "cannot read %s: %s", path, strerror(errno));
    else
        *bytes = (size_t)size;
    if (file) fclose(file);
    return text;
}

/* Returns the place behind the line's end before a share of a text. */
static size_t find_cut(const char *text, size_t bytes, double share)
{
    size_t cut = (size_t)((double)bytes * share), line = cut;
    while (cut < bytes && line && text[line - 1] != '\n') line--;
    return line ? line : cut;
}

/* Finds the tokenizer that the run which is resumed has trained, and saved beside its best model. */
static void find_tokenizer(language_model *m, const flags *f, tern_error *err)
{
    const char *slash = f->resume ? strrchr(f->resume, '/') : NULL;
    char dir[FLAGS_DIR] = ".", note[RUN_NOTE] = "";
    if (!f->resume || err->code) return;
    if (!strcmp(f->resume, "latest"))
        run_dir_find(f, dir, sizeof(dir), note, err);
    else if (slash)
        snprintf(dir, sizeof(dir), "%.*s", (int)(slash - f->resume), f->resume);
    if (*dir && run_dir_has(dir, "best/tokenizer.json"))
        snprintf(m->resumed, sizeof(m->resumed), "%s/best/tokenizer.json", dir);
}

/* Opens the tokenizer, or trains one on a text: GPT-2's byte-level BPE. */
static void open_tokenizer(language_model *m, const char *text, size_t bytes, tern_error *err)
{
    const char *path = m->tokenizer_path ? m->tokenizer_path
                       : m->pretrained   ? m->pretrained
                       : *m->resumed     ? m->resumed
                                         : NULL;
    const char *eot = "<|endoftext|>";
    tern_tokenizer_train_opts opts = tern_tokenizer_train_defaults();
    opts.texts = &text;
    opts.text_bytes = &bytes;
    opts.text_count = 1;
    opts.vocab_size = m->vocabulary;
    opts.special_tokens = &eot;
    opts.special_count = 1;
    m->tokenizer = path ? tern_tokenizer_open(path, err) : tern_tokenizer_train(&opts, err);
}

/* A part of the data, for training or for the test: of a text or of the windows of a file of tokens. */
typedef struct part {
    const char *path;
    double begin, end; /* shares: 0 and 0.95 */
    bool trains;
} part;

static tern_token_dataset_opts window_opts(const language_model *m, const part *p)
{
    tern_token_dataset_opts opts = tern_token_dataset_defaults();
    opts.window = m->context;
    opts.stride = p->trains ? m->stride : 0;
    opts.shift = p->trains;
    opts.dtype = TERN_I32;
    opts.vocab_size = tern_tokenizer_size(m->tokenizer);
    return opts;
}

static tern_dataset *open_text(language_model *m, const part *p, tern_error *err)
{
    tern_encode_opts opts = tern_encode_defaults();
    tern_token_ids ids = {0};
    tern_dataset *set = NULL;
    size_t bytes;
    char *text = read_text(p->path, &bytes, err);
    size_t begin = find_cut(text, bytes, p->begin), end = find_cut(text, bytes, p->end);
    opts.add_special_tokens = false;
    if (text && !m->tokenizer) open_tokenizer(m, text + begin, end - begin, err);
    if (m->tokenizer) tern_tokenizer_encode(m->tokenizer, text + begin, end - begin, &opts, &ids, err);
    tern_token_dataset_opts windows = window_opts(m, p);
    if (!err->code) set = tern_token_dataset_new(ids.ids, ids.count, &windows, err);
    size_t used = strlen(err->text);
    if (ids.count && !set)
        snprintf(err->text + used, sizeof(err->text) - used, " (%.4g %% of %s)", 100 * (p->end - p->begin),
                 p->path);
    tern_token_ids_free(&ids);
    free(text);
    return set;
}

/* A part has the windows that are within its tokens. */
static tern_dataset *open_tokens(language_model *m, const part *p, tern_dataset **whole, tern_error *err)
{
    if (!m->tokenizer) open_tokenizer(m, NULL, 0, err);
    tern_token_dataset_opts opts = window_opts(m, p);
    *whole = err->code ? NULL : tern_token_dataset_open(p->path, &opts, err);
    if (!*whole) return NULL;
    int64_t stride = opts.stride ? opts.stride : opts.window, least = opts.window + (opts.shift ? stride : 1);
    double tokens = (double)tern_token_dataset_tokens(*whole);
    int64_t begin = (int64_t)(p->begin * tokens), end = (int64_t)(p->end * tokens);
    int64_t first = (begin + stride - 1) / stride, count = (end - least) / stride + 1 - first;
    if (end < least || count < 1) {
        tern_error_set(err, "train_language_model", TERN_E_RANGE,
                       "%s: %.4g %% of its %.0f tokens are fewer than a window of %lld", p->path,
                       100 * (p->end - p->begin), tokens, (long long)opts.window);
        return NULL;
    }
    int64_t *indices = malloc((size_t)count * sizeof(*indices));
    for (int64_t i = 0; indices && i < count; i++) indices[i] = first + i;
    tern_dataset *set = indices ? tern_subset_new(*whole, indices, count, err) : NULL;
    free(indices);
    return set;
}

static void open_data(language_model *m, const flags *f, tern_error *err)
{
    double end = m->test_data ? 1 : 1 - m->test_share;
    find_tokenizer(m, f, err);
    const part parts[] = {{f->data, 0, end, true},
                          {m->test_data ? m->test_data : f->data, m->test_data ? 0 : end, 1, false}};
    for (int i = 0; i < 2 && !err->code; i++)
        m->sets[i] = is_token_file(parts[i].path) ? open_tokens(m, &parts[i], &m->wholes[i], err)
                                                  : open_text(m, &parts[i], err);
}

/* ---- the model ---- */

static tern_module *new_gpt2(const language_model *m, tern_rng *rng, tern_error *err)
{
    tern_gpt2_opts opts = tern_gpt2_defaults();
    opts.vocab_size = tern_tokenizer_size(m->tokenizer);
    opts.n_positions = m->context;
    opts.n_embd = m->width;
    opts.n_layer = (int)m->layers;
    opts.n_head = m->heads;
    opts.resid_pdrop = opts.embd_pdrop = opts.attn_pdrop = m->dropout;
    return tern_gpt2_new(&opts, rng, err);
}

/* The MLP has 8/3 of the width, as Llama's, in multiples of 32. */
static tern_module *new_llama(const language_model *m, tern_rng *rng, tern_error *err)
{
    tern_llama_opts opts = tern_llama_defaults();
    opts.vocab_size = tern_tokenizer_size(m->tokenizer);
    opts.max_position_embeddings = m->context;
    opts.hidden_size = m->width;
    opts.intermediate_size = (m->width * 8 / 3 + 31) / 32 * 32;
    opts.num_hidden_layers = (int)m->layers;
    opts.num_attention_heads = m->heads;
    opts.attention_dropout = m->dropout;
    opts.tie_word_embeddings = true;
    return tern_llama_new(&opts, rng, err);
}

/* The embeddings, whose rows are the tokens, are a model's first parameter. */
static void check_vocabulary(const language_model *m, const tern_module *net, tern_error *err)
{
    int64_t tokens = tern_tokenizer_size(m->tokenizer);
    if (err->code) return;
    int64_t rows = tern_tensor_shape(tern_state_get(net, 0).tensor)[0];
    if (tokens > rows)
        tern_error_set(err, "train_language_model", TERN_E_RANGE,
                       "the tokenizer has %lld tokens, but the model's vocabulary only %lld: they do not "
                       "belong together",
                       (long long)tokens, (long long)rows);
}

static void check_context(const language_model *m, const tern_module *net, tern_error *err)
{
    tern_error why = {0};
    if (err->code) return;
    tern_kv_cache_free(tern_kv_cache_new(net, 1, m->context, &why)); /* knows the longest context */
    if (why.code)
        tern_error_set(err, "train_language_model", why.code,
                       "--context: %lld tokens are more than the model can see (%s)", (long long)m->context,
                       why.text);
}

/* Cuts "a,b" into names. The caller frees names[0]. */
static int split_names(const char *text, const char **names, int most)
{
    char *rest = text ? strdup(text) : NULL, *state = NULL;
    int count = 0;
    if (!rest) return 0;
    names[0] = rest;
    for (char *name = strtok_r(rest, ",", &state); name && count < most; name = strtok_r(NULL, ",", &state))
        names[count++] = name;
    return count;
}

static void add_adapters(const language_model *m, tern_module *net, tern_rng *rng, tern_error *err)
{
    const char *names[32] = {NULL};
    tern_lora_opts opts = tern_lora_defaults();
    opts.r = m->lora_rank;
    opts.lora_alpha = m->lora_alpha;
    opts.lora_dropout = m->dropout;
    opts.target_count = split_names(m->lora_targets, names, 32);
    opts.target_modules = opts.target_count ? names : NULL;
    tern_lora_add(net, &opts, rng, err);
    free((void *)names[0]);
}

static tern_module *new_net(const language_model *m, tern_rng *rng, tern_error *err)
{
    if (err->code) return NULL;
    tern_module *net = m->pretrained      ? tern_pretrained_open(m->pretrained, NULL, err)
                       : m->arch == LLAMA ? new_llama(m, rng, err)
                                          : new_gpt2(m, rng, err);
    check_vocabulary(m, net, err);
    check_context(m, net, err);
    if (!err->code && m->recompute)
        tern_module_checkpoint_set(net, !strcmp(net->kind, "llama") ? "llama_layer" : "gpt2_block", true);
    if (!err->code && m->lora_rank) add_adapters(m, net, rng, err);
    return net;
}

/* ---- training ---- */

static tern_optim *new_adamw(trainer *t, tern_error *err)
{
    const language_model *m = t->task->self;
    tern_adam_opts opts = tern_adamw_defaults();
    opts.lr = t->flags->lr;
    opts.beta2 = m->beta2;
    opts.weight_decay = t->flags->weight_decay;
    tern_optim *optim = tern_adamw_new(t->task->net, &opts, err);
    if (optim && !m->lora_rank) tern_optim_no_decay_group_add(optim, err);
    return optim;
}

/* Returns the loss itself: the logits are not made as a whole. */
static tern_tensor *forward(trainer *t, const tern_batch *b)
{
    tern_language_model_loss_opts opts = tern_language_model_loss_defaults();
    opts.shifted = true;
    return tern_language_model_loss(t->task->net, t->s, b->x, b->y, &opts);
}

static tern_tensor *loss(trainer *t, tern_tensor *output, const tern_batch *b)
{
    (void)t;
    (void)b;
    return output;
}

/* ---- evaluation: the mean over all tokens of the test, each window once over all ranks ---- */

static void evaluate(trainer *t, tern_error *err)
{
    double sums[2] = {0}; /* of the losses, and windows */
    tern_batch b;
    while (trainer_test_next(t, &b, err)) {
        sums[0] += tern_item(forward(t, &b)) * (double)b.count;
        sums[1] += (double)b.count;
        tern_scope_end(t->s, err);
    }
    tern_all_reduce(t->world, sums, 2, TERN_F64, TERN_SUM, err);
    if (err->code) return;
    trainer_number(t, "loss/test", sums[0] / sums[1]);
    trainer_number(t, "perplexity", exp(sums[0] / sums[1]));
}

/* Replaces control characters, C0 and C1, which a terminal would obey. */
static void clean_text(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at; at++) {
        bool is_c1 = at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0;
        if (is_c1) at[1] = '?';
        if (is_c1 || (at[0] < ' ' && at[0] != '\n' && at[0] != '\t') || at[0] == 0x7f) at[0] = '?';
    }
}

/* A sample that fails does not end a run. */
static void show(trainer *t, tern_scope *s, gallery *g, tern_error *run)
{
    tern_error own = {0}, *err = &own;
    const language_model *m = t->task->self;
    tern_generate_opts opts = tern_generate_defaults();
    tern_token_ids ids = {0};
    tern_text text = {0};
    int32_t eos = tern_tokenizer_special(m->tokenizer, TERN_TOKEN_EOS);
    const char *prompt = m->prompt ? m->prompt : "\n";
    (void)g;
    (void)run;
    if (!m->sample_tokens) return;
    opts.max_new_tokens = m->sample_tokens;
    opts.do_sample = true;
    opts.temperature = m->temperature;
    opts.eos_ids = &eos;
    opts.eos_count = eos >= 0;
    opts.rng = tern_rng_new((uint64_t)t->flags->seed, err);
    tern_tokenizer_encode(m->tokenizer, prompt, strlen(prompt), NULL, &ids, err);
    if (!err->code) tern_generate(t->task->net, s, &ids, &opts, err);
    if (!err->code) tern_tokenizer_decode(m->tokenizer, ids.ids, ids.count, NULL, &text, err);
    if (!err->code) {
        clean_text(text.text);
        trainer_text(t, "sample", text.text);
    }
    tern_error_print(err);
    tern_rng_free(opts.rng);
    tern_token_ids_free(&ids);
    tern_text_free(&text);
}

/* ---- folders for transformers and `tern generate` ---- */

static void copy_file(const char *from, const char *to, tern_error *err)
{
    tern_error none = {0};
    size_t bytes;
    char *text = read_text(from, &bytes, &none); /* it may be missing */
    FILE *file = text ? fopen(to, "wb") : NULL;
    bool written = file && fwrite(text, 1, bytes, file) == bytes;
    if (file) written &= !fclose(file);
    if (text && !written)
        tern_error_set(err, "train_language_model", TERN_E_IO, "cannot write %s: %s", to, strerror(errno));
    free(text);
}

static void save(trainer *t, const char *name, tern_error *err)
{
    static const char *const beside[] = {"tokenizer_config.json", "special_tokens_map.json",
                                         "generation_config.json", "chat_template.jinja"};
    const language_model *m = t->task->self;
    char folder[FLAGS_DIR + 16], path[FLAGS_DIR + 64], from[FLAGS_DIR + 64];
    snprintf(folder, sizeof(folder), "%s/%s", t->dir, name);
    if (m->lora_rank)
        tern_lora_save(t->task->net, folder, m->pretrained, err);
    else
        tern_pretrained_save(t->task->net, folder, NULL, err);
    snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    if (!err->code) tern_tokenizer_save(m->tokenizer, path, err);
    for (size_t i = 0; m->pretrained && i < sizeof(beside) / sizeof(*beside) && !err->code; i++) {
        snprintf(from, sizeof(from), "%.512s/%s", m->pretrained, beside[i]);
        snprintf(path, sizeof(path), "%s/%s", folder, beside[i]);
        copy_file(from, path, err);
    }
}

/* ---- main ---- */

/* A flag that would change nothing is a mistake. */
static void check_ignored(const language_model *m, const flags *f)
{
    const bool has_model = m->pretrained, has_tokenizer = m->pretrained || m->tokenizer_path;
    const struct {
        const char *name;
        bool is_ignored;
        const char *why;
    } all[] = {{"arch", has_model, "the model of --pretrained has its own"},
               {"layers", has_model, "the model of --pretrained has its own"},
               {"width", has_model, "the model of --pretrained has its own"},
               {"heads", has_model, "the model of --pretrained has its own"},
               {"dropout", has_model && !m->lora_rank, "the model of --pretrained has its own"},
               {"vocabulary", has_tokenizer, "none is made, since there is a tokenizer"},
               {"lora-alpha", !m->lora_rank, "there are no adapters without --lora-rank"},
               {"lora-targets", !m->lora_rank, "there are no adapters without --lora-rank"}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (all[i].is_ignored && flags_given(f, all[i].name))
            flags_wrong(f, "--%s: %s", all[i].name, all[i].why);
}

static void check_flags(const language_model *m, const flags *f)
{
    if (!f->data)
        flags_wrong(
            f, "--data: expected a text, or a file of tokens from `tern tokenize`, got nothing; "
               "`apt install bible-kjv; bible -f gen1:1-rev22:21 | cut -d ' ' -f 2- > bible.txt` makes one");
    if (is_token_file(f->data) && !m->tokenizer_path && !m->pretrained)
        flags_wrong(f, "--data: %s has tokens; --tokenizer PATH names what made them", f->data);
    if (!m->pretrained && m->width % m->heads)
        flags_wrong(f, "--width: expected a multiple of --heads %lld, got %lld", (long long)m->heads,
                    (long long)m->width);
    if (m->lora_rank && !m->pretrained)
        flags_wrong(f, "--lora-rank: adapters need a model to adapt, --pretrained FOLDER, got nothing");
    check_ignored(m, f);
}

int main(int argc, char **argv)
{
    language_model m = {.layers = 4,
                        .width = 192,
                        .heads = 6,
                        .context = 128,
                        .vocabulary = 2048,
                        .beta2 = 0.99,
                        .test_share = 0.05,
                        .lora_alpha = 16,
                        .sample_tokens = 100,
                        .temperature = 0.8};
    flags f = flags_defaults("train_language_model", "Trains a GPT-2 or a Llama on text.");
    const flag own[] = {
        {"arch", 0, FLAG_CHOICE, &m.arch, ARCHS, "the model", 0, 0},
        {"layers", 0, FLAG_COUNT, &m.layers, "N", "of the model", 1, 1000},
        {"width", 0, FLAG_COUNT, &m.width, "N", "features of a token, a multiple of --heads", 1, 1 << 20},
        {"heads", 0, FLAG_COUNT, &m.heads, "N", "of attention", 1, 1 << 20},
        {"context", 0, FLAG_COUNT, &m.context, "N", "tokens that the model sees", 1, 1 << 20},
        {"dropout", 0, FLAG_NUMBER, &m.dropout, "P", "of a new model, or of adapters", 0, 0.99},
        {"pretrained", 0, FLAG_TEXT, &m.pretrained, "DIR", "begin with the model of this folder", 0, 0},
        {"tokenizer", 0, FLAG_TEXT, &m.tokenizer_path, "PATH",
         "a tokenizer.json or its folder; default: that of --pretrained, or one is trained", 0, 0},
        {"vocabulary", 0, FLAG_COUNT, &m.vocabulary, "N", "tokens of a tokenizer that is trained", 257,
         1 << 22},
        {"test-data", 0, FLAG_TEXT, &m.test_data, "PATH", "default: the end of --data", 0, 0},
        {"test-share", 0, FLAG_NUMBER, &m.test_share, "S", "of --data that is for the test", 0.0001, 0.5},
        {"stride", 0, FLAG_COUNT, &m.stride, "N", "tokens between two samples; 0: the context", 0, 1 << 30},
        {"beta2", 0, FLAG_NUMBER, &m.beta2, "B", "of AdamW", 0, 0.999999},
        {"gradient-checkpointing", 0, FLAG_SWITCH, &m.recompute, NULL,
         "compute layers again in backward, for less memory", 0, 0},
        {"lora-rank", 0, FLAG_COUNT, &m.lora_rank, "R", "train adapters of this rank; 0: the model", 0,
         1 << 16},
        {"lora-alpha", 0, FLAG_NUMBER, &m.lora_alpha, "A", "adapters count A / R times", 0, INFINITY},
        {"lora-targets", 0, FLAG_TEXT, &m.lora_targets, "NAME,NAME,..",
         "linears that get adapters; default: those of attention, as in PEFT", 0, 0},
        {"prompt", 0, FLAG_TEXT, &m.prompt, "TEXT", "with which the samples begin; default: a new line", 0,
         0},
        {"sample-tokens", 0, FLAG_COUNT, &m.sample_tokens, "N", "of a sample; 0: none", 0, 1 << 20},
        {"temperature", 0, FLAG_NUMBER, &m.temperature, "T", "of the samples", 0.01, 100},
        {0}};
    f.batch = 16;
    f.epochs = 4;
    f.lr = 2e-3;
    f.min_lr = 2e-4;
    f.weight_decay = 0.1;
    f.clip = 1;
    f.warm_up = 0.2;
    f.schedule = FLAGS_COSINE;
    f.opt_level = TERN_O0;
    f.evaluate_every = 100;
    flags_read(&f, own, argc, argv);
    check_flags(&m, &f);

    trainer t;
    tern_error err = {0};
    trainer_open(&t, &f, &err);
    open_data(&m, &f, &err);
    tern_module *net = new_net(&m, t.rng, &err);
    char model[128];
    snprintf(model, sizeof(model), "%s of %s", m.lora_rank ? "adapters" : "all", net ? net->kind : "");
    const task k = {.model = m.lora_rank ? model
                             : net       ? net->kind
                                         : "",
                    .data = f.data,
                    .net = net,
                    .train = m.sets[0],
                    .test = m.sets[1],
                    .unit = "tokens",
                    .units = m.context,
                    .best = "perplexity",
                    .best_is_least = true,
                    .self = &m,
                    .optim = new_adamw,
                    .forward = forward,
                    .loss = loss,
                    .evaluate = evaluate,
                    .show = show,
                    .save = save};
    trainer_run(&t, &k, &err);
    tern_module_free(net);
    for (int i = 0; i < 2; i++) tern_dataset_free(m.sets[i]);
    for (int i = 0; i < 2; i++) tern_dataset_free(m.wholes[i]);
    tern_tokenizer_free(m.tokenizer);
    return trainer_close(&t, &err);
}
