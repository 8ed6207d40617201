/* tokenizer.c - opens and saves tokenizers, and answers what their tokens are. */
#include "text/tokenizer.h"
#include "text/gpt2.h"

#include "base/file.h"
#include "base/text.h"
#include "models/config.h"

#include <libgen.h>
#include <string.h>
#include <unistd.h>

#define FUNC "tern_tokenizer_open"

/* ---- special tokens ---- */

static const char *const special_names[TERN_TOKEN_COUNT] = {"bos_token", "eos_token", "unk_token",
                                                            "pad_token"};

/* A token is its text, or an object with "content". */
static void special_read(tern_tokenizer *t, const cJSON *config)
{
    for (int i = 0; i < TERN_TOKEN_COUNT; i++) {
        const cJSON *token = cJSON_GetObjectItemCaseSensitive(config, special_names[i]);
        const char *text =
            cJSON_IsObject(token) ? tern__part_string(token, "content") : cJSON_GetStringValue(token);
        if (text && t->special[i] < 0) t->special[i] = tern__vocabulary_find(&t->all, text, strlen(text));
    }
}

/* Reads which tokens are special from the files in the folder, and guesses without them. */
static int special_find(tern_tokenizer *t, const char *folder, tern_error *err)
{
    static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json"};
    bool has_file = false;
    for (size_t i = 0; folder && i < TERN__COUNT(files); i++) {
        char *path = tern__path_join(folder, files[i], FUNC, err);
        if (!path) return TERN_E_MEMORY;
        bool is_there = !access(path, F_OK);
        cJSON *config = is_there ? tern__config_read(path, FUNC, err) : NULL;
        tern__free(path);
        if (is_there && !config) return TERN_E_FORMAT;
        special_read(t, config);
        has_file |= is_there;
        cJSON_Delete(config);
    }
    if (t->special[TERN_TOKEN_UNK] < 0) t->special[TERN_TOKEN_UNK] = t->unk;
    int32_t end = has_file ? -1 : tern_tokenizer_id(t, "<|endoftext|>");
    if (t->special[TERN_TOKEN_BOS] < 0) t->special[TERN_TOKEN_BOS] = end;
    if (t->special[TERN_TOKEN_EOS] < 0) t->special[TERN_TOKEN_EOS] = end;
    return TERN_OK;
}

/* ---- opening ---- */

static tern_tokenizer *open_file(const char *path, tern_error *err)
{
    size_t bytes;
    char *json = tern__config_load(path, &bytes, FUNC, err);
    return json ? tern__tokenizer_parse(json, bytes, path, FUNC, err) : NULL;
}

/* Makes the tokenizer.json that GPT-2's two files stand for. */
static tern_tokenizer *open_gpt2(const char *folder, const char *vocab, const char *merges, tern_error *err)
{
    static const char end[] = "<|endoftext|>";
    size_t bytes[2] = {0, 0};
    tern_text json = {0};
    char *texts[2] = {tern__config_load(vocab, &bytes[0], FUNC, err), NULL};
    if (texts[0]) texts[1] = tern__config_load(merges, &bytes[1], FUNC, err);
    cJSON *tokens = texts[1] ? tern__config_parse(texts[0], bytes[0], vocab, FUNC, err) : NULL;
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(tokens, end);
    const char *specials[] = {end};
    tern__gpt2_parts parts = {.vocab = texts[0],
                              .vocab_bytes = bytes[0],
                              .merges = texts[1],
                              .merges_bytes = bytes[1],
                              .specials = specials,
                              .special_count = cJSON_IsNumber(id),
                              .special_ids = (int64_t[]){cJSON_IsNumber(id) ? id->valueint : 0}};
    int status = tokens ? tern__gpt2_json(&parts, &json, FUNC, err) : TERN_E_FORMAT;
    cJSON_Delete(tokens);
    tern__free(texts[0]);
    tern__free(texts[1]);
    if (!status) return tern__tokenizer_parse(json.text, json.bytes, folder, FUNC, err);
    tern_text_free(&json);
    return NULL;
}

static tern_tokenizer *open_folder(const char *folder, tern_error *err)
{
    static const char *const names[] = {"tokenizer.json", "vocab.json", "merges.txt"};
    char *paths[3] = {NULL, NULL, NULL};
    tern_tokenizer *t = NULL;
    bool fine = true;
    for (int i = 0; i < 3 && fine; i++) fine = (paths[i] = tern__path_join(folder, names[i], FUNC, err));
    if (fine && !access(paths[0], F_OK))
        t = open_file(paths[0], err);
    else if (fine && !access(paths[1], F_OK) && !access(paths[2], F_OK))
        t = open_gpt2(folder, paths[1], paths[2], err);
    else if (fine)
        tern__error_set(err, FUNC, TERN_E_IO,
                        "%s has no tokenizer.json, and not both of vocab.json and merges.txt", folder);
    for (int i = 0; i < 3; i++) tern__free(paths[i]);
    return t;
}

tern_tokenizer *tern_tokenizer_open(const char *path, tern_error *err)
{
    struct stat about;
    tern_error why = {0};
    if (tern__is_set(err) || tern__need(path, "path", FUNC, err)) return NULL;
    bool is_folder = !stat(path, &about) && S_ISDIR(about.st_mode);
    tern_tokenizer *t = is_folder ? open_folder(path, &why) : open_file(path, &why);
    char *copy = t ? tern__strdup(path, FUNC, &why) : NULL;
    if (copy) special_find(t, is_folder ? copy : dirname(copy), &why);
    tern__free(copy);
    if (!why.code) return t;
    tern_tokenizer_free(t);
    tern__error_set(err, FUNC, why.code, "%s", why.text);
    if (err && !err->native) err->native = why.native;
    return NULL;
}

tern_tokenizer *tern__tokenizer_made(tern_text *json, const char *func, tern_error *err)
{
    tern_tokenizer *t = tern__tokenizer_parse(json->text, json->bytes, "the trained tokenizer", func, err);
    *json = (tern_text){0};
    if (t) special_find(t, NULL, err);
    return t;
}

int tern_tokenizer_save(const tern_tokenizer *tokenizer, const char *path, tern_error *err)
{
    static const char func[] = "tern_tokenizer_save";
    tern__output out;
    if (tern__is_set(err)) return err->code;
    if (tern__need(tokenizer, "tokenizer", func, err) || tern__need(path, "path", func, err))
        return TERN_E_INVALID;
    int status = tern__output_tidy(path, func, err);
    if (!status) status = tern__output_open(&out, path, func, err);
    if (status) return status;
    status = tern__output_write(&out, tokenizer->json, tokenizer->json_bytes, err);
    return tern__output_close(&out, status, true, err);
}

void tern_tokenizer_free(tern_tokenizer *t)
{
    if (!t) return;
    for (void *e; (e = tern__scratch_pool_close(&t->pool));) tern__encoding_free(e);
    tern__decoder_free(t);
    tern__normalizers_free(t);
    tern__splits_free(t);
    tern__added_free(&t->raw);
    tern__added_free(&t->normalized);
    tern__regex_free(t->word_begin);
    tern__regex_free(t->word_end);
    tern_token_ids_free(&t->before);
    tern_token_ids_free(&t->after);
    tern__model_free(t);
    tern__vocabulary_free(&t->all);
    tern__free(t->json);
    tern__free(t);
}

/* ---- the vocabulary ---- */

int64_t tern_tokenizer_size(const tern_tokenizer *tokenizer)
{
    return tokenizer ? tokenizer->all.size : 0;
}

int32_t tern_tokenizer_id(const tern_tokenizer *tokenizer, const char *token)
{
    return tokenizer && token ? tern__vocabulary_find(&tokenizer->all, token, strlen(token)) : -1;
}

const char *tern_tokenizer_token(const tern_tokenizer *tokenizer, int32_t id)
{
    return tokenizer && id >= 0 && id < tokenizer->all.size ? tokenizer->all.tokens[id].text : NULL;
}

int32_t tern_tokenizer_special(const tern_tokenizer *tokenizer, tern_special_token which)
{
    bool is_known = (unsigned)which < TERN_TOKEN_COUNT;
    return tokenizer && is_known ? tokenizer->special[which] : -1;
}
