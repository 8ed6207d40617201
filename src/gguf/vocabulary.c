/* vocabulary.c - the keys of a tokenizer. llama.cpp has two kinds of BPE. "gpt2" is byte-level: it splits a
 * text by one of the expressions that llama.cpp knows by name, and has a list of merges. "llama" is
 * SentencePiece's: there are no merges; of two neighbours any may become one token that the vocabulary has,
 * and the token with the highest score comes first. A tokenizer.json that was made of a SentencePiece model
 * has a merge for each such pair, in the order of the scores, so that scores follow from the order. */
#include "gguf/gguf.h"
#include "text/tokenizer.h"

#include "base/file.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MARK "\xe2\x96\x81" /* U+2581, which stands for a blank */

typedef enum token_type { /* llama.cpp's numbers */
                          TOKEN_NORMAL = 1,
                          TOKEN_UNKNOWN,
                          TOKEN_CONTROL,
                          TOKEN_USER_DEFINED,
                          TOKEN_UNUSED,
                          TOKEN_BYTE
} token_type;

typedef struct vocabulary {
    tern__gguf *g;
    const char *folder;
    const tern_tokenizer *tokenizer;
    const cJSON *file; /* tokenizer.json */
    int64_t size;      /* of the model, which may have more tokens than the tokenizer */
    uint8_t *types;
} vocabulary;

/* E_UNSUPPORTED "FOLDER: the tokenizer's WHAT, which llama.cpp does not have". */
static void vocabulary_refuse(const vocabulary *v, const char *what)
{
    if (!tern__is_set(v->g->err))
        tern__error_set(v->g->err, v->g->func, TERN_E_UNSUPPORTED,
                        "%s: the tokenizer has %s, which llama.cpp does not have", v->folder, what);
}

static const cJSON *model_field(const vocabulary *v, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(v->file, "model"), name);
}

/* ---- tokens ---- */

/* llama.cpp takes added tokens that look so for special ones, since some files do not say that they are. */
static bool looks_special(const char *text)
{
    size_t bytes = strlen(text);
    return !strcmp(text, "<pad>") || !strcmp(text, "<mask>") ||
           (bytes > 3 && !strncmp(text, "<|", 2) && !strcmp(text + bytes - 2, "|>"));
}

static void note_added_tokens(vocabulary *v)
{
    static const char *const stripped[] = {"lstrip", "rstrip", "single_word"};
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(v->file, "added_tokens"), *part;
    char quote[TERN__QUOTE_TEXT], what[TERN__QUOTE_TEXT + 64];
    cJSON_ArrayForEach(part, list)
    {
        const char *content = tern__part_string(part, "content");
        int64_t id = cJSON_GetObjectItemCaseSensitive(part, "id")->valueint;
        bool is_special = tern__part_bool(part, "special", false) || looks_special(content);
        if (*content) v->types[id] = is_special ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
        for (size_t i = 0; i < TERN__COUNT(stripped); i++) {
            if (!tern__part_bool(part, stripped[i], false)) continue;
            snprintf(what, sizeof(what), "an added token %s with %s",
                     tern__quote(content, strlen(content), quote), stripped[i]);
            vocabulary_refuse(v, what);
        }
    }
}

static void note_types(vocabulary *v)
{
    const tern_tokenizer *t = v->tokenizer;
    for (int64_t i = 0; i < v->size; i++)
        v->types[i] = i < t->all.size && t->all.tokens[i].text ? TOKEN_NORMAL : TOKEN_UNUSED;
    note_added_tokens(v);
    if (t->bpe.byte_level) return;
    for (int b = 0; b < 256; b++)
        if (t->byte_ids[b] >= 0) v->types[t->byte_ids[b]] = TOKEN_BYTE;
    if (t->unk >= 0) v->types[t->unk] = TOKEN_UNKNOWN;
}

/* Tokens that were added as text have blanks where the vocabulary has marks. */
static void add_token_text(const vocabulary *v, int64_t id)
{
    tern_text text = {0};
    char unused[32];
    const tern__token *token = &v->tokenizer->all.tokens[id];
    if (v->types[id] == TOKEN_UNUSED) {
        snprintf(unused, sizeof(unused), "[PAD%lld]", (long long)id);
        tern__gguf_item_string(v->g, unused, strlen(unused));
        return;
    }
    if (v->types[id] != TOKEN_USER_DEFINED || !strstr(token->text, MARK)) {
        tern__gguf_item_string(v->g, token->text, token->bytes);
        return;
    }
    for (const char *at = token->text, *mark; *at; at = mark + strlen(MARK)) {
        mark = strstr(at, MARK);
        tern__text_add(&text, at, mark ? (size_t)(mark - at) : strlen(at), v->g->func, v->g->err);
        if (!mark) break;
        tern__text_add(&text, " ", 1, v->g->func, v->g->err);
    }
    tern__gguf_item_string(v->g, text.text, text.bytes);
    tern_text_free(&text);
}

static void add_tokens(const vocabulary *v)
{
    tern__gguf_array(v->g, "tokenizer.ggml.tokens", TERN__GGUF_STRING, v->size);
    for (int64_t i = 0; i < v->size; i++) add_token_text(v, i);
}

static void add_types(const vocabulary *v)
{
    tern__gguf_array(v->g, "tokenizer.ggml.token_type", TERN__GGUF_I32, v->size);
    for (int64_t i = 0; i < v->size; i++) tern__gguf_item_i32(v->g, v->types[i]);
}

/* ---- merges ---- */

typedef struct merge {
    const char *left, *right; /* not terminated by 0 */
    size_t left_bytes, right_bytes;
} merge;

/* Reads "left right" or ["left", "right"], which tern_tokenizer_open has seen. */
static merge merge_read(const cJSON *item)
{
    const char *text = cJSON_GetStringValue(item), *blank = text ? strchr(text, ' ') : NULL;
    const char *left = blank ? text : cJSON_GetStringValue(cJSON_GetArrayItem(item, 0));
    const char *right = blank ? blank + 1 : cJSON_GetStringValue(cJSON_GetArrayItem(item, 1));
    return (merge){left, right, blank ? (size_t)(blank - text) : strlen(left), strlen(right)};
}

static void add_merges(const vocabulary *v)
{
    const cJSON *list = model_field(v, "merges"), *item;
    tern_text text = {0};
    tern__gguf_array(v->g, "tokenizer.ggml.merges", TERN__GGUF_STRING, cJSON_GetArraySize(list));
    cJSON_ArrayForEach(item, list)
    {
        merge m = merge_read(item);
        text.bytes = 0;
        tern__text_add(&text, m.left, m.left_bytes, v->g->func, v->g->err);
        tern__text_add(&text, " ", 1, v->g->func, v->g->err);
        tern__text_add(&text, m.right, m.right_bytes, v->g->func, v->g->err);
        tern__gguf_item_string(v->g, text.text, text.bytes);
    }
    tern_text_free(&text);
}

/* ---- gpt2: which expression splits a text ---- */

/* What llama.cpp calls a pre_tokenizer, as splits_describe writes it. */
static const struct {
    const char *name, *splits;
    bool ignore_merges;
} pre_tokenizers[] = {
    {"gpt-2", "ByteLevel with its expression", false},
    {"smollm", "single Digits, ByteLevel with its expression", false},
    {"llama-bpe", "Split " TERN__LLAMA3_WORDS ", ByteLevel", true},
    {"smaug-bpe", "Split " TERN__LLAMA3_WORDS ", ByteLevel", false},
    {"qwen2", "Split " TERN__QWEN2_WORDS ", ByteLevel", false},
};

static void splits_describe(const vocabulary *v, const cJSON *part, tern_text *text)
{
    const char *type = tern__part_type(part), *comma = text->bytes ? ", " : "", *before = "", *after = "";
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(part, "pretokenizers"), *item;
    if (!strcmp(type, "Sequence")) {
        cJSON_ArrayForEach(item, list) splits_describe(v, item, text);
        return;
    }
    if (!strcmp(type, "ByteLevel")) {
        if (tern__part_bool(part, "add_prefix_space", true)) before = "prefixed ";
        if (tern__part_bool(part, "use_regex", true)) after = " with its expression";
    } else if (!strcmp(type, "Digits")) {
        if (tern__part_bool(part, "individual_digits", false)) before = "single ";
    } else if (!strcmp(type, "Split")) {
        const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(part, "pattern");
        const char *expression = tern__part_string(pattern, "Regex");
        const char *behavior = tern__part_string(part, "behavior");
        bool is_plain = behavior && !strcmp(behavior, "Isolated") && !tern__part_bool(part, "invert", false);
        if (!is_plain) before = "another ";
        after = expression ? expression : "";
    }
    const char *const words[] = {comma, before, type, *after && *after != ' ' ? " " : "", after};
    for (size_t i = 0; i < TERN__COUNT(words); i++)
        tern__text_add(text, words[i], strlen(words[i]), v->g->func, v->g->err);
}

static void add_gpt2(const vocabulary *v)
{
    const tern__bpe *bpe = &v->tokenizer->bpe;
    tern_text splits = {0};
    const char *name = NULL;
    if (v->tokenizer->normalizer_count) vocabulary_refuse(v, "a normalizer before ByteLevel");
    splits_describe(v, cJSON_GetObjectItemCaseSensitive(v->file, "pre_tokenizer"), &splits);
    for (size_t i = 0; i < TERN__COUNT(pre_tokenizers) && splits.text && !name; i++)
        if (!strcmp(splits.text, pre_tokenizers[i].splits) &&
            pre_tokenizers[i].ignore_merges == bpe->ignore_merges)
            name = pre_tokenizers[i].name;
    if (!name && !tern__is_set(v->g->err)) {
        char what[512] = "";
        tern__text_append(what, sizeof(what), "the pre_tokenizer \"%s\"%s", splits.text,
                          bpe->ignore_merges ? " with ignore_merges" : "");
        vocabulary_refuse(v, what);
    }
    tern_text_free(&splits);
    tern__gguf_string(v->g, "tokenizer.ggml.model", "gpt2");
    tern__gguf_string(v->g, "tokenizer.ggml.pre", name ? name : "");
    add_tokens(v);
    add_types(v);
    add_merges(v);
}

/* ---- llama: scores ---- */

/* Counts the merges of each token in `counts`, and gives the tokens that merges make scores in their order:
 * 0, -1, -2 .. Returns the next one. All merges of a token follow each other. */
static float score_merges(const vocabulary *v, int32_t *counts, float *scores)
{
    const tern__vocabulary *model = &v->tokenizer->model;
    const cJSON *item;
    tern_text text = {0};
    int32_t last = -1;
    float next = 0;
    cJSON_ArrayForEach(item, model_field(v, "merges"))
    {
        merge m = merge_read(item);
        text.bytes = 0;
        tern__text_add(&text, m.left, m.left_bytes, v->g->func, v->g->err);
        if (tern__text_add(&text, m.right, m.right_bytes, v->g->func, v->g->err)) break;
        int32_t id = tern__vocabulary_find(model, text.text, text.bytes);
        if (id != last && counts[id]) vocabulary_refuse(v, "merges that no SentencePiece model has");
        if (!counts[id]++) scores[id] = next--;
        last = id;
    }
    tern_text_free(&text);
    return next;
}

/* Returns in how many ways two tokens make this one. */
static int32_t count_pairs(const tern__vocabulary *model, const tern__token *token)
{
    int32_t count = 0;
    for (size_t at = tern__next_char(token->text, token->bytes, 0); at < token->bytes;
         at = tern__next_char(token->text, token->bytes, at))
        count += tern__vocabulary_find(model, token->text, at) >= 0 &&
                 tern__vocabulary_find(model, token->text + at, token->bytes - at) >= 0;
    return count;
}

/* Of the tokens that no merge makes, characters and those that do not occur, follow the others. */
static void score_tokens(const vocabulary *v, int32_t *counts, float *scores)
{
    const tern__vocabulary *model = &v->tokenizer->model;
    char quote[TERN__QUOTE_TEXT], what[TERN__QUOTE_TEXT + 64];
    float next = score_merges(v, counts, scores);
    for (int64_t i = 0; i < v->size && !tern__is_set(v->g->err); i++) {
        if (v->types[i] == TOKEN_UNUSED) scores[i] = -10000;
        if (v->types[i] == TOKEN_CONTROL || v->types[i] == TOKEN_USER_DEFINED) scores[i] = -1000;
        if (v->types[i] != TOKEN_NORMAL) continue;
        const tern__token *token = &model->tokens[i];
        if (!counts[i]) scores[i] = next--;
        if (count_pairs(model, token) <= counts[i]) continue;
        snprintf(what, sizeof(what), "no merge for one of the pairs that make %s",
                 tern__quote(token->text, token->bytes, quote));
        vocabulary_refuse(v, what);
    }
}

static void add_scores(const vocabulary *v)
{
    size_t count = (size_t)v->size;
    int32_t *counts = tern__alloc(count * sizeof(*counts), v->g->func, v->g->err);
    float *scores = counts ? tern__alloc(count * sizeof(*scores), v->g->func, v->g->err) : NULL;
    if (scores) score_tokens(v, counts, scores);
    tern__gguf_array(v->g, "tokenizer.ggml.scores", TERN__GGUF_F32, v->size);
    for (int64_t i = 0; i < v->size && scores; i++) tern__gguf_item_f32(v->g, scores[i]);
    tern__free(counts);
    tern__free(scores);
}

static bool text_is(const tern_text *text, const char *want)
{
    return text->bytes == strlen(want) && !memcmp(text->text, want, text->bytes);
}

/* Whether blanks become marks, and nothing else happens before the model. Sets *prefix if one is put before a
 * text: Prepend and Replace, or Metaspace. llama.cpp puts it after special tokens, too. */
static bool has_marks_alone(const tern_tokenizer *t, bool *prefix)
{
    const tern__split *split = t->splits;
    const tern__normalizer *n = t->normalizers, *last = n + t->normalizer_count - 1;
    if (t->split_count == 1 && !t->normalizer_count) {
        *prefix = split->prepend != TERN__PREPEND_NEVER;
        return split->kind == TERN__SPLIT_METASPACE && !split->regex && text_is(&split->replacement, MARK);
    }
    if (t->split_count || !t->normalizer_count || t->normalizer_count > 2) return false;
    *prefix = last > n;
    if (*prefix && (n->kind != TERN__NORMALIZER_PREPEND || !text_is(&n->to, MARK))) return false;
    return last->kind == TERN__NORMALIZER_REPLACE && !last->regex && text_is(&last->from, " ") &&
           text_is(&last->to, MARK);
}

static void add_llama(const vocabulary *v)
{
    const tern__bpe *bpe = &v->tokenizer->bpe;
    bool prefix = true;
    for (int b = 0; b < 256; b++)
        if (!v->tokenizer->byte_fallback || v->tokenizer->byte_ids[b] < 0) {
            vocabulary_refuse(v, "characters without a byte_fallback");
            return;
        }
    if (bpe->ignore_merges) vocabulary_refuse(v, "ignore_merges without ByteLevel");
    if (!has_marks_alone(v->tokenizer, &prefix))
        vocabulary_refuse(v, "a normalizer or pre_tokenizer that is not SentencePiece's");
    tern__gguf_string(v->g, "tokenizer.ggml.model", "llama");
    tern__gguf_string(v->g, "tokenizer.ggml.pre", "default");
    tern__gguf_bool(v->g, "tokenizer.ggml.add_space_prefix", prefix);
    add_tokens(v);
    add_scores(v);
    add_types(v);
}

/* ---- what both have ---- */

/* Returns an id of config.json, or -1. */
static int64_t config_id(const cJSON *config, const char *name)
{
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(config, name);
    return cJSON_IsNumber(id) ? id->valueint : -1;
}

static void add_special_ids(const vocabulary *v, const cJSON *config)
{
    static const char *const keys[] = {[TERN_TOKEN_BOS] = "tokenizer.ggml.bos_token_id",
                                       [TERN_TOKEN_EOS] = "tokenizer.ggml.eos_token_id",
                                       [TERN_TOKEN_UNK] = "tokenizer.ggml.unknown_token_id",
                                       [TERN_TOKEN_PAD] = "tokenizer.ggml.padding_token_id"};
    static const char *const names[] = {[TERN_TOKEN_BOS] = "bos_token_id",
                                        [TERN_TOKEN_EOS] = "eos_token_id",
                                        [TERN_TOKEN_UNK] = "unk_token_id",
                                        [TERN_TOKEN_PAD] = "pad_token_id"};
    const tern_token_ids *around[] = {&v->tokenizer->before, &v->tokenizer->after};
    int64_t ids[TERN_TOKEN_COUNT];
    for (int i = 0; i < TERN_TOKEN_COUNT; i++) {
        ids[i] = v->tokenizer->special[i];
        if (ids[i] < 0) ids[i] = config_id(config, names[i]);
    }
    for (int i = TERN_TOKEN_BOS; i <= TERN_TOKEN_EOS; i++) {
        if (ids[i] < 0 && around[i]->count == 1) ids[i] = around[i]->ids[0];
        if (around[i]->count > 1 || (around[i]->count && around[i]->ids[0] != ids[i]))
            vocabulary_refuse(v, "a post_processor with other tokens than bos_token and eos_token");
    }
    for (int i = 0; i < TERN_TOKEN_COUNT; i++)
        if (ids[i] >= 0 && ids[i] < v->size) tern__gguf_u32(v->g, keys[i], ids[i]);
    tern__gguf_bool(v->g, "tokenizer.ggml.add_bos_token", around[TERN_TOKEN_BOS]->count);
    tern__gguf_bool(v->g, "tokenizer.ggml.add_eos_token", around[TERN_TOKEN_EOS]->count);
}

/* Returns the path of a file of the folder for the caller to free, or NULL if there is none. */
static char *find_file(const vocabulary *v, const char *name)
{
    char *path = tern__path_join(v->folder, name, v->g->func, v->g->err);
    if (path && !access(path, F_OK)) return path;
    tern__free(path);
    return NULL;
}

/* Reads a JSON file of the folder, or returns NULL. */
static cJSON *read_json(const vocabulary *v, const char *name)
{
    char *path = find_file(v, name);
    cJSON *file = path ? tern__config_read(path, v->g->func, v->g->err) : NULL;
    tern__free(path);
    return file;
}

/* Of several templates it is the one called "default". */
static void add_chat_template(const vocabulary *v)
{
    cJSON *config = read_json(v, "tokenizer_config.json");
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(config, "chat_template"), *item;
    const char *text = cJSON_GetStringValue(field);
    cJSON_ArrayForEach(item, field)
    {
        const char *name = tern__part_string(item, "name");
        if (name && !strcmp(name, "default")) text = tern__part_string(item, "template");
    }
    char *path = text ? NULL : find_file(v, "chat_template.jinja");
    size_t bytes;
    char *own = path ? tern__config_load(path, &bytes, v->g->func, v->g->err) : NULL;
    if (text || own) tern__gguf_string(v->g, "tokenizer.chat_template", text ? text : own);
    tern__free(path);
    tern__free(own);
    cJSON_Delete(config);
}

static void add_all(vocabulary *v)
{
    const tern_tokenizer *t = v->tokenizer;
    if (t->all.size > v->size) {
        tern__error_set(v->g->err, v->g->func, TERN_E_FORMAT,
                        "%s: the tokenizer has %lld tokens, but the model's vocab_size is %lld", v->folder,
                        (long long)t->all.size, (long long)v->size);
        return;
    }
    if (t->kind != TERN__MODEL_BPE) {
        tern__error_set(v->g->err, v->g->func, TERN_E_UNSUPPORTED,
                        "%s: the tokenizer is no BPE, which alone tern writes into GGUF", v->folder);
        return;
    }
    if (t->bpe.prefix.bytes || t->bpe.suffix.bytes)
        vocabulary_refuse(v, "tokens that say whether they begin or end a word");
    note_types(v);
    if (t->bpe.byte_level)
        add_gpt2(v);
    else
        add_llama(v);
    cJSON *config = read_json(v, "config.json");
    add_special_ids(v, config);
    add_chat_template(v);
    cJSON_Delete(config);
}

void tern__gguf_add_vocabulary(tern__gguf *g, const char *folder, int64_t vocab_size)
{
    tern_tokenizer *tokenizer = tern_tokenizer_open(folder, g->err);
    cJSON *file = NULL;
    if (tokenizer) file = tern__config_parse(tokenizer->json, tokenizer->json_bytes, folder, g->func, g->err);
    vocabulary v = {.g = g, .folder = folder, .tokenizer = tokenizer, .file = file, .size = vocab_size};
    if (file) v.types = tern__alloc((size_t)vocab_size, g->func, g->err);
    if (v.types) add_all(&v);
    tern__free(v.types);
    cJSON_Delete(file);
    tern_tokenizer_free(tokenizer);
}
