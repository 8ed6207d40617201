/* model.c - which ids a word has. Reads what the models have in common. Most words come again soon, so the
 * last ones are kept with their ids, in a table with one place for each hash. */
#include "text/tokenizer.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* ---- lists of the file ---- */

typedef struct list_reading {
    const char *name;
    bool is_array;
    tern__json_member *member;
    void *ctx;
} list_reading;

static int model_read(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    const list_reading *r = ctx;
    if (!tern__json_is(key, r->name)) return tern__json_skip(json, err);
    return r->is_array ? tern__json_array(json, r->member, r->ctx, err)
                       : tern__json_object(json, r->member, r->ctx, err);
}

static int root_read(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    return tern__json_is(key, "model") ? tern__json_object(json, model_read, ctx, err)
                                       : tern__json_skip(json, err);
}

int tern__model_list(tern_tokenizer *t, const char *name, bool is_array, tern__json_member *member, void *ctx,
                     const char *path, const char *func, tern_error *err)
{
    list_reading r = {name, is_array, member, ctx};
    tern__json json = {.text = t->json, .bytes = t->json_bytes, .what = path, .func = func};
    return tern__json_object(&json, root_read, &r, err);
}

int tern__slice_read(tern__json_slice slice, tern_text *to, const char *func, tern_error *err)
{
    to->bytes = 0;
    if (tern__text_reserve(to, slice.bytes, func, err)) return TERN_E_MEMORY;
    to->bytes = tern__json_unescape(slice, to->text);
    return TERN_OK;
}

/* ---- the vocabulary ---- */

typedef struct vocab_reading {
    tern_tokenizer *t;
    tern_text token;
} vocab_reading;

static int token_read(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    vocab_reading *r = ctx;
    int64_t id;
    int status = tern__slice_read(key, &r->token, json->func, err);
    if (!status) status = tern__json_count(json, &id, err);
    if (status) return status;
    return tern__vocabulary_add(&r->t->model, r->token.text, r->token.bytes, id, json->what, json->func, err);
}

int tern__vocab_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                      tern_error *err)
{
    vocab_reading r = {.t = t};
    if (!cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(model, "vocab")))
        return tern__error_set(err, func, TERN_E_FORMAT, "%s: model: \"vocab\" is not an object", path);
    int status = tern__model_list(t, "vocab", false, token_read, &r, path, func, err);
    tern_text_free(&r.token);
    return status;
}

int tern__unk_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                    tern_error *err)
{
    const char *unk = tern__part_string(model, "unk_token");
    t->unk = unk ? tern__vocabulary_find(&t->model, unk, strlen(unk)) : -1;
    if (!unk || !*unk || t->unk >= 0) return TERN_OK;
    return tern__part_refuse(path, "model", model, "an unk_token that is not in the vocabulary", func, err);
}

/* Finds the ids of single bytes. */
static void byte_ids_find(tern_tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char text[8];
        int bytes = t->bpe.byte_level ? tern__utf8_write(tern__byte_char((uint8_t)b), text)
                                      : snprintf(text, sizeof(text), "<0x%02X>", b);
        t->byte_ids[b] = tern__vocabulary_find(&t->model, text, (size_t)bytes);
    }
}

/* ---- the kinds ---- */

static const struct {
    const char *type;
    int (*parse)(tern_tokenizer *t, const cJSON *model, const char *path, const char *func, tern_error *err);
    int (*encode)(tern__encoding *e, const char *word, size_t bytes);
} kinds[] = {
    [TERN__MODEL_BPE] = {"BPE", tern__bpe_parse, tern__bpe_encode},
    [TERN__MODEL_WORDPIECE] = {"WordPiece", tern__wordpiece_parse, tern__wordpiece_encode},
    [TERN__MODEL_UNIGRAM] = {"Unigram", tern__unigram_parse, tern__unigram_encode},
};

/* Older files of BPE do not say which kind they are. */
int tern__model_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                      tern_error *err)
{
    const char *type = tern__part_type(model);
    if (!*type && cJSON_HasObjectItem(model, "merges")) type = "BPE";
    for (size_t i = 0; i < TERN__COUNT(kinds); i++) {
        if (strcmp(type, kinds[i].type) != 0) continue;
        t->kind = (tern__model_kind)i;
        if (t->bpe.byte_level && t->kind != TERN__MODEL_BPE)
            return tern__part_refuse(path, "model", model, "it after ByteLevel", func, err);
        int status = kinds[i].parse(t, model, path, func, err);
        if (!status) byte_ids_find(t);
        return status;
    }
    return tern__part_refuse(path, "model", model, NULL, func, err);
}

void tern__model_free(tern_tokenizer *t)
{
    tern__free(t->bpe.merges);
    tern_text_free(&t->bpe.prefix);
    tern_text_free(&t->bpe.suffix);
    tern_text_free(&t->wordpiece.prefix);
    tern__free(t->unigram.nodes);
    tern__free(t->unigram.bytes);
    tern__free(t->unigram.scores);
    tern__vocabulary_free(&t->model);
}

/* ---- words ---- */

enum { WORD_BYTES = 30, WORD_IDS = 8, WORD_SLOTS = 1 << 15 };

/* A word that is kept. */
typedef struct tern__kept_word {
    uint8_t bytes, count; /* bytes 0: free */
    char text[WORD_BYTES];
    int32_t ids[WORD_IDS];
} tern__kept_word;
_Static_assert(sizeof(tern__kept_word) == TERN__LINE, "a word is a cache line");

int tern__words_new(tern__encoding *e)
{
    e->words = tern__alloc(WORD_SLOTS * sizeof(*e->words), e->func, e->err);
    return e->words ? TERN_OK : TERN_E_MEMORY;
}

int tern__ids_reserve(tern__encoding *e, size_t more)
{
    size_t room = (size_t)e->ids->room;
    if (e->ids->count + (int64_t)more <= e->ids->room) return TERN_OK;
    int status = tern__array_reserve(&e->ids->ids, &room, (size_t)e->ids->count + more, sizeof(*e->ids->ids),
                                     e->func, e->err);
    e->ids->room = (int64_t)room;
    return status;
}

/* Encodes a word that is not kept. */
static int word_encode(tern__encoding *e, const char *word, size_t bytes)
{
    if (bytes >= UINT32_MAX)
        return tern__error_set(e->err, e->func, TERN_E_RANGE, "a word of %zu bytes, expected fewer than 2^32",
                               bytes);
    return kinds[e->tokenizer->kind].encode(e, word, bytes);
}

int tern__model_encode(tern__encoding *e, const char *word, size_t bytes)
{
    if (bytes > WORD_BYTES) return word_encode(e, word, bytes);
    tern__kept_word *kept = &e->words[XXH3_64bits(word, bytes) & (WORD_SLOTS - 1)];
    if (kept->bytes == bytes && !memcmp(kept->text, word, bytes)) {
        if (tern__ids_reserve(e, WORD_IDS)) return TERN_E_MEMORY;
        memcpy(e->ids->ids + e->ids->count, kept->ids, sizeof(kept->ids));
        e->ids->count += kept->count;
        return TERN_OK;
    }
    int64_t before = e->ids->count;
    int status = word_encode(e, word, bytes);
    int64_t count = e->ids->count - before;
    if (status || count > WORD_IDS || !bytes) return status;
    kept->bytes = (uint8_t)bytes;
    kept->count = (uint8_t)count;
    memcpy(kept->text, word, bytes);
    memcpy(kept->ids, e->ids->ids + before, (size_t)count * sizeof(*kept->ids));
    return TERN_OK;
}
