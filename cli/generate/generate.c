/* generate.c - `tern generate`: continues a prompt, or each of several, with a model of a Hugging Face
 * folder, and prints the text as it comes. */
#include "chat.h"
#include "cli.h"
#include "flags.h"

#include "base/text.h"
#include "models/language_model.h"
#include "text/bytes.h"

#include <tern.h>

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char FUNC[] = "tern generate";

/* Where other programs use the cores, threads wait for one another in every product of a token: two make 7
 * tokens a second where one makes 460. So they are only for models whose weights they read much faster. */
enum { EXIT_INTERRUPTED = 128 + SIGINT, READ_AT_ONCE = 1 << 16, FEW_WEIGHTS = 4000000 };

typedef struct settings {
    double temperature, top_p, repetition_penalty; /* NAN: as the folder says */
    long max_new_tokens, top_k, seed, threads;     /* top_k, seed -1: as the folder says, by the clock */
    const char *dtype, *adapter;
    bool greedy, chat, show_prompt;
} settings;

static settings chosen = {
    .temperature = NAN, .top_p = NAN, .repetition_penalty = NAN, .top_k = -1, .seed = -1};

/* ---- what a folder holds, and what texts need ---- */

typedef struct session {
    const char *folder;
    tern_device *device;
    tern_scope *scope;
    tern_module *model;
    tern_tokenizer *tokenizer;
    tern_generation_config config;
    int32_t end; /* the tokenizer's, if the folder names no other */
    tern__chat *chat;
    tern_rng *rng;
    tern_decode_stream *stream;
    tern_token_ids ids;
    tern_kv_cache *cache; /* of a chat: has the first tokens of `seen`, and of the next prompt */
    tern_token_ids seen;
    tern_text prompt, piece, reply;
    int64_t began, first, last;                      /* ns: the call, and its first and last token */
    int64_t prompt_tokens, known_tokens, new_tokens; /* known: the first ones of the prompt */
    tern_error failure;                              /* of the callback */
    bool is_terminal;                                /* standard output */
} session;

/* Lets the command line say otherwise than the folder. */
static int options_settle(session *s, tern_error *err)
{
    tern_generate_opts *o = &s->config.opts;
    bool draws = !isnan(chosen.temperature) || !isnan(chosen.top_p) || chosen.top_k >= 0;
    if (chosen.max_new_tokens) {
        o->max_new_tokens = chosen.max_new_tokens;
        o->max_length = 0;
    }
    if (!isnan(chosen.temperature)) o->temperature = chosen.temperature;
    if (!isnan(chosen.top_p)) o->top_p = chosen.top_p;
    if (!isnan(chosen.repetition_penalty)) o->repetition_penalty = chosen.repetition_penalty;
    if (chosen.top_k >= 0) o->top_k = chosen.top_k;
    if (draws || chosen.greedy) o->do_sample = !chosen.greedy;
    s->end = tern_tokenizer_special(s->tokenizer, TERN_TOKEN_EOS);
    if (!o->eos_count && s->end >= 0) {
        o->eos_ids = &s->end;
        o->eos_count = 1;
    }
    s->rng = tern_rng_new(chosen.seed >= 0 ? (uint64_t)chosen.seed : (uint64_t)tern__now_ns(), err);
    o->rng = s->rng;
    return err->code;
}

/* The model's vocabulary may be larger, as it often is to be a multiple of 64. */
static int generate_vocabulary_check(const session *s, tern_error *err)
{
    const tern__language_model *model = tern__language_model_of(s->model);
    if (!model)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "%s: a %s does not generate text", s->folder,
                               s->model->kind);
    int64_t words = model->embeddings->view.shape[0], ids = tern_tokenizer_size(s->tokenizer);
    if (ids <= words) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_INVALID,
                           "%s: the tokenizer has %lld tokens, and the model's vocabulary %lld", s->folder,
                           (long long)ids, (long long)words);
}

static int generate_model_open(session *s, tern_error *err)
{
    tern_dtype dtype = !chosen.dtype                   ? TERN_F32
                       : !strcmp(chosen.dtype, "bf16") ? TERN_BF16
                       : !strcmp(chosen.dtype, "f16")  ? TERN_F16
                                                       : TERN_F32;
    s->model = tern_pretrained_open(s->folder, NULL, err);
    if (!s->model || generate_vocabulary_check(s, err)) return err->code;
    tern_error apart = {0}; /* adapters of a shared weight stay beside it */
    if (chosen.adapter && tern_lora_open(s->model, chosen.adapter, false, err)) return err->code;
    if (chosen.adapter) tern_lora_merge(s->model, &apart);
    if (dtype != TERN_F32 && tern_module_cast(s->model, dtype, err)) return err->code;
    tern_eval(s->model);
    return TERN_OK;
}

/* A run of train_language_model has its models in folders of its own. */
static int run_folder_check(const session *s, tern_error *err)
{
    static const char *const names[] = {"best", "last"};
    char path[PATH_MAX], found[2 * PATH_MAX] = "";
    snprintf(path, sizeof(path), "%s/config.json", s->folder);
    if (!access(path, F_OK)) return TERN_OK;
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        snprintf(path, sizeof(path), "%s/%s/tokenizer.json", s->folder, names[i]);
        if (!access(path, F_OK))
            tern__text_append(found, sizeof(found), "%s%s/%s", *found ? " and " : "", s->folder, names[i]);
    }
    if (!*found) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_INVALID, "%s is the folder of a run; its models are in %s",
                           s->folder, found);
}

/* The small files first, so that what is wrong with them is told at once. */
static int generate_session_open(session *s, tern_error *err)
{
    s->is_terminal = isatty(STDOUT_FILENO);
    if (run_folder_check(s, err)) return err->code;
    s->tokenizer = tern_tokenizer_open(s->folder, err);
    if (!s->tokenizer || tern_generation_config_open(s->folder, &s->config, err)) return err->code;
    if (options_settle(s, err)) return err->code;
    if (chosen.chat && !(s->chat = tern__chat_open(s->folder, err))) return err->code;
    s->device = tern_device_open(NULL, err);
    s->scope = err->code ? NULL : tern_scope_new(s->device, NULL, err);
    s->stream = s->scope ? tern_decode_stream_new(s->tokenizer, NULL, err) : NULL;
    if (!s->stream || generate_model_open(s, err)) return err->code;
    int threads = tern_device_threads_get(s->device);
    if (tern_module_element_count(s->model) < FEW_WEIGHTS) threads = 1;
    return tern_device_threads_set(s->device, chosen.threads ? (int)chosen.threads : threads, err);
}

static void generate_session_close(session *s)
{
    tern_kv_cache_free(s->cache);
    tern_module_free(s->model);
    tern_decode_stream_free(s->stream);
    tern_scope_free(s->scope);
    tern_device_close(s->device);
    tern_rng_free(s->rng);
    tern__chat_free(s->chat);
    tern_generation_config_free(&s->config);
    tern_tokenizer_free(s->tokenizer);
    tern_token_ids_free(&s->ids);
    tern_token_ids_free(&s->seen);
    tern_text_free(&s->prompt);
    tern_text_free(&s->piece);
    tern_text_free(&s->reply);
}

/* ---- a text ---- */

static volatile sig_atomic_t is_interrupted;

/* The first Ctrl-C ends the text, the second one the program. */
static void on_interrupt(int number)
{
    is_interrupted = 1;
    signal(number, SIG_DFL);
}

static void interrupt_watch(bool on)
{
    struct sigaction action = {.sa_handler = on ? on_interrupt : SIG_DFL, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
}

/* Replaces control characters, C0 and C1, which a terminal would obey. */
static void piece_clean(tern_text *piece)
{
    for (size_t i = 0; i < piece->bytes; i++) {
        unsigned char *at = (unsigned char *)piece->text + i;
        bool is_c1 = at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0;
        if (is_c1) at[1] = '?';
        if (is_c1 || (at[0] < ' ' && at[0] != '\n' && at[0] != '\t') || at[0] == 0x7f) at[0] = '?';
    }
}

/* Keeps a piece of the text for the chat, and prints it. */
static bool piece_print(session *s)
{
    if (s->chat) tern__text_add(&s->reply, s->piece.text, s->piece.bytes, FUNC, &s->failure);
    if (s->is_terminal) piece_clean(&s->piece);
    fwrite(s->piece.text, 1, s->piece.bytes, stdout);
    if (fflush(stdout)) tern__error_set(&s->failure, FUNC, TERN_E_IO, "cannot write: %s", strerror(errno));
    return !s->failure.code;
}

static bool token_print(void *context, int32_t id)
{
    session *s = context;
    s->last = tern__now_ns();
    if (!s->new_tokens++) s->first = s->last;
    return !tern_decode_stream_step(s->stream, id, &s->piece, &s->failure) && piece_print(s) &&
           !is_interrupted;
}

static double rate_of(int64_t tokens, int64_t ns)
{
    return ns > 0 ? (double)tokens / ((double)ns * 1e-9) : 0;
}

/* The first token comes with the prompt's own time. */
static void figures_print(const session *s)
{
    char known[64] = "";
    if (s->known_tokens) snprintf(known, sizeof(known), ", %lld of them known", (long long)s->known_tokens);
    fprintf(stderr, "%lld tokens, %.1f tokens/s; prompt: %lld tokens%s, %.1f tokens/s\n",
            (long long)s->new_tokens, rate_of(s->new_tokens - 1, s->last - s->first),
            (long long)s->prompt_tokens, known,
            rate_of(s->prompt_tokens - s->known_tokens, s->first - s->began));
}

/* Lets the stream see the prompt, so that it knows what the new text follows. */
static int prompt_pass(session *s, tern_error *err)
{
    for (int64_t i = 0; i < s->ids.count && !err->code; i++)
        tern_decode_stream_step(s->stream, s->ids.ids[i], &s->piece, err);
    return err->code;
}

static int prompt_encode(session *s, const char *text, size_t bytes, tern_error *err)
{
    tern_encode_opts opts = tern_encode_defaults();
    opts.add_special_tokens = !s->chat; /* those of a chat are in its template */
    if (chosen.show_prompt) fprintf(stderr, "%.*s\n", (int)bytes, text);
    if (tern_tokenizer_encode(s->tokenizer, text, bytes, &opts, &s->ids, err) || prompt_pass(s, err))
        return err->code;
    s->prompt_tokens = s->ids.count;
    s->new_tokens = 0;
    s->reply.bytes = 0;
    return TERN_OK;
}

/* Of a chat, only what follows the tokens that this prompt and the last text begin with is computed. */
static int prompt_recall(session *s, tern_error *err)
{
    int64_t known = 0, most = TERN__MIN(s->seen.count, s->ids.count - 1);
    if (!s->chat) return TERN_OK;
    if (!s->cache) s->cache = tern_kv_cache_new(s->model, 1, 1, err);
    while (known < most && s->seen.ids[known] == s->ids.ids[known]) known++;
    s->known_tokens = known;
    return s->cache ? tern_kv_cache_crop(s->cache, known, err) : err->code;
}

/* Notes which tokens the cache has. After an error it has none. */
static void text_note(session *s, bool failed)
{
    tern_token_ids old = s->seen;
    if (failed) tern_kv_cache_reset(s->cache);
    s->seen = s->ids;
    s->seen.count = tern_kv_cache_length(s->cache);
    s->ids = old; /* its memory is used again */
}

/* Continues the text and prints what follows. */
static int text_continue(session *s, const char *text, size_t bytes, tern_error *err)
{
    tern_generate_opts o = s->config.opts;
    o.on_token = token_print;
    o.context = s;
    if (prompt_encode(s, text, bytes, err) || prompt_recall(s, err)) return err->code;
    o.cache = s->cache;
    is_interrupted = 0;
    interrupt_watch(true);
    s->began = s->first = s->last = tern__now_ns();
    int status = tern_generate(s->model, s->scope, &s->ids, &o, err);
    interrupt_watch(false);
    text_note(s, status);
    if (!status && !tern_decode_stream_end(s->stream, &s->piece, err)) piece_print(s);
    if (s->new_tokens) {
        putchar('\n');
        fflush(stdout); /* the text comes before its figures */
        figures_print(s);
    }
    if (!err->code) *err = s->failure;
    return err->code;
}

/* Answers a message of the user. One that cannot be answered is no part of the conversation. */
static int message_answer(session *s, const char *message, tern_error *err)
{
    if (tern__chat_add(s->chat, "user", message, err)) return err->code;
    if (!tern__chat_prompt(s->chat, &s->prompt, err)) text_continue(s, s->prompt.text, s->prompt.bytes, err);
    if (!err->code) return tern__chat_add(s->chat, "assistant", s->reply.text ? s->reply.text : "", err);
    tern__chat_drop(s->chat);
    return err->code;
}

static int prompt_answer(session *s, const char *text, size_t bytes, tern_error *err)
{
    if (!bytes) return tern__error_set(err, FUNC, TERN_E_INVALID, "the prompt is empty");
    if (s->chat && strlen(text) != bytes)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "a message has a byte of 0");
    return s->chat ? message_answer(s, text, err) : text_continue(s, text, bytes, err);
}

/* ---- where prompts come from ---- */

/* Answers the lines of standard input; on a terminal it asks for them. */
static int lines_answer(session *s, tern_error *err)
{
    char *line = NULL;
    size_t room = 0;
    bool asks = isatty(STDIN_FILENO);
    for (;;) {
        if (asks) fprintf(stderr, "> ");
        ssize_t bytes = getline(&line, &room, stdin);
        if (bytes < 0) break;
        while (bytes && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r')) line[--bytes] = '\0';
        if (bytes && prompt_answer(s, line, (size_t)bytes, err)) {
            if (!asks) break;
            tern_error_print(err); /* the next prompt may be better */
            *err = s->failure;
            if (err->code) break;
        }
        if (is_interrupted && !asks) break;
    }
    if (asks) is_interrupted = 0; /* it ended a text only */
    if (asks && !err->code) fputc('\n', stderr);
    free(line);
    return err->code;
}

/* Continues all of standard input but the end of its last line. */
static int input_answer(session *s, tern_error *err)
{
    tern_text all = {0};
    size_t some = 1;
    while (some && !tern__text_reserve(&all, READ_AT_ONCE, FUNC, err)) {
        some = fread(all.text + all.bytes, 1, READ_AT_ONCE, stdin);
        all.bytes += some;
    }
    if (!err->code && ferror(stdin))
        tern__error_set(err, FUNC, TERN_E_IO, "cannot read: %s", strerror(errno));
    if (all.bytes && all.text[all.bytes - 1] == '\n') all.bytes--;
    if (!err->code) prompt_answer(s, all.text, all.bytes, err);
    tern_text_free(&all);
    return err->code;
}

static int prompts_answer(session *s, const char *prompt, tern_error *err)
{
    if (prompt) return prompt_answer(s, prompt, strlen(prompt), err);
    return chosen.chat || isatty(STDIN_FILENO) ? lines_answer(s, err) : input_answer(s, err);
}

/* ---- options ---- */

static int option_read_real(const tern__cli_option *option, const char *text, tern_error *err)
{
    if (tern__real_read(text, option->to)) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_INVALID, "expected a number, got \"%s\"", text);
}

static int option_read_temperature(const tern__cli_option *option, const char *text, tern_error *err)
{
    if (option_read_real(option, text, err) || chosen.temperature > 0) return err->code;
    return tern__error_set(err, FUNC, TERN_E_RANGE, "expected more than 0, got %s%s", text,
                           chosen.temperature == 0 ? "; --greedy takes the most probable token" : "");
}

static int option_read_top_p(const tern__cli_option *option, const char *text, tern_error *err)
{
    if (option_read_real(option, text, err) || (chosen.top_p > 0 && chosen.top_p <= 1)) return err->code;
    return tern__error_set(err, FUNC, TERN_E_RANGE, "expected more than 0 and at most 1, got %s", text);
}

static int option_read_penalty(const tern__cli_option *option, const char *text, tern_error *err)
{
    if (option_read_real(option, text, err) || chosen.repetition_penalty > 0) return err->code;
    return tern__error_set(err, FUNC, TERN_E_RANGE, "expected more than 0, got %s", text);
}

/* A number from 0 on. */
static int option_read_count(const tern__cli_option *option, const char *text, tern_error *err)
{
    if (tern__number_read(text, 0, LONG_MAX, option->to)) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_INVALID, "expected a number of at least 0, got \"%s\"", text);
}

static const tern__cli_option options[] = {
    {"max-new-tokens", .value = "N", .number = &chosen.max_new_tokens, .most = 1L << 40,
     .help = "end a text after N tokens; default: as the folder says, else 20"},
    {"greedy", .on = &chosen.greedy,
     .help = "take the most probable token each time; default: as the folder says"},
    {"temperature", .value = "T", .take = option_read_temperature, .to = &chosen.temperature,
     .help = "draw tokens; below 1 probable ones more often, above 1 less often"},
    {"top-k", .value = "K", .take = option_read_count, .to = &chosen.top_k,
     .help = "draw from the K most probable tokens; 0: from all"},
    {"top-p", .value = "P", .take = option_read_top_p, .to = &chosen.top_p,
     .help = "draw from the fewest tokens that have at least the probability P together"},
    {"repetition-penalty", .value = "R", .take = option_read_penalty, .to = &chosen.repetition_penalty,
     .help = "above 1: tokens that are there become less probable"},
    {"seed", .value = "N", .take = option_read_count, .to = &chosen.seed,
     .help = "of the draws, which are then the same each time; default: the clock"},
    {"adapter", .value = "FOLDER", .text = &chosen.adapter,
     .help = "add low-rank adapters to the weights, of a folder with PEFT's files"},
    {"chat", .on = &chosen.chat,
     .help = "each line is a message of the user, to which the model answers; the folder's chat template is "
             "rendered by python3 with Jinja2"},
    {"show-prompt", .on = &chosen.show_prompt, .help = "print what the model is given on stderr"},
    {"dtype", .value = "f32|bf16|f16", .text = &chosen.dtype,
     .help = "of the weights in memory; in 16 bits they are read in half the time; default: f32"},
    {"threads", .value = "N", .number = &chosen.threads, .most = 256,
     .help = "default: one for each core; one for a model of fewer than 4 million weights"},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page tern__generate_page = {
    "FOLDER [PROMPT]",
    "Continues a prompt with the model and the tokenizer of a folder of Hugging Face, and prints the text as "
    "it "
    "comes. Without PROMPT, the prompt is standard input; a terminal is asked for one prompt after the "
    "other. "
    "Ctrl-C ends a text. The folder's generation_config.json says how tokens are chosen and which ones end a "
    "text, where no option does. The speed is printed on stderr at the end.\n",
    options,
};

static int options_check(int operands)
{
    bool draws = !isnan(chosen.temperature) || !isnan(chosen.top_p) || chosen.top_k >= 0;
    const char *problem = operands < 1   ? "expected FOLDER"
                          : operands > 2 ? "expected FOLDER and one PROMPT: quote it"
                          : chosen.greedy && draws
                              ? "--greedy draws nothing: leave out --temperature, --top-k and "
                                "--top-p"
                              : NULL;
    if (!problem) return TERN__EXIT_OK;
    tern__cli_complain(FUNC, "%s", problem);
    return TERN__EXIT_USAGE;
}

int tern__cli_generate(int argc, char **argv)
{
    tern_error err = {0};
    int status = tern__flags_read(&tern__generate_page, FUNC, argc, argv);
    if (!status) status = options_check(argc - optind);
    if (status) return status < 0 ? tern__cli_flush(FUNC) : status;
    session s = {.folder = argv[optind]};
    if (!generate_session_open(&s, &err))
        prompts_answer(&s, argc - optind > 1 ? argv[optind + 1] : NULL, &err);
    generate_session_close(&s);
    tern_error_print(&err);
    if (err.code) return TERN__EXIT_FAILED;
    return is_interrupted ? EXIT_INTERRUPTED : tern__cli_flush(FUNC);
}
