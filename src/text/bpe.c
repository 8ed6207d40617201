/* bpe.c - byte-pair encoding: a word's bytes or characters become symbols, and of all pairs of neighbours
 * the one whose merge was learnt first is merged, the leftmost one first, until no pair has a merge.
 *
 * The pairs wait in a heap, ordered by (rank of the merge, place). A merge changes the pairs on its two
 * sides; their old entries stay in the heap, and are known by a rank that the pair at their place no longer
 * has. So a word of n symbols takes n log n steps, also a text without spaces. Most words come again soon:
 * the last ones are kept with their ids, in a table with one place for each hash. */
#include "text/tokenizer.h"

#include "base/text.h"
#include "checkpoint/json.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define NO_PAIR UINT64_MAX

typedef struct tern__symbol {
    int32_t id;          /* -1: it is part of the symbol before it */
    uint32_t next, prev; /* places; UINT32_MAX: none */
} tern__symbol;

/* ---- merges ---- */

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static size_t merge_slot(const tern__bpe *bpe, uint64_t pair)
{
    uint64_t hash = pair * UINT64_C(0x9e3779b97f4a7c15);
    size_t slot = (hash ^ hash >> 32) & (bpe->merge_slots - 1);
    while (bpe->merges[slot].pair != pair && bpe->merges[slot].pair != NO_PAIR)
        slot = (slot + 1) & (bpe->merge_slots - 1);
    return slot;
}

static const tern__merge *merge_find(const tern__bpe *bpe, int32_t left, int32_t right)
{
    const tern__merge *merge = &bpe->merges[merge_slot(bpe, pair_of(left, right))];
    return merge->pair == NO_PAIR ? NULL : merge;
}

/* ---- reading: without cJSON, whose strings end at U+0000 ---- */

/* Reads one of the model's two lists. */
typedef struct list_reading {
    tern_tokenizer *t;
    const char *name;   /* "vocab", then "merges" */
    uint32_t rank;      /* of the next merge      */
    tern_text parts[3]; /* of a merge: its two tokens and what they make; of the vocabulary: a token */
} list_reading;

/* Decodes a string of the file. */
static int slice_read(tern__json_slice slice, tern_text *to, const char *func, tern_error *err)
{
    to->bytes = 0;
    if (tern__text_reserve(to, slice.bytes, func, err)) return TERN_E_MEMORY;
    to->bytes = tern__json_unescape(slice, to->text);
    return TERN_OK;
}

static int token_read(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    list_reading *r = ctx;
    int64_t id;
    int status = slice_read(key, &r->parts[0], json->func, err);
    if (!status) status = tern__json_count(json, &id, err);
    if (status) return status;
    return tern__vocabulary_add(&r->t->model, r->parts[0].text, r->parts[0].bytes, id, json->what, json->func,
                                err);
}

static int merge_refuse(const tern__json *json, uint32_t rank, tern_error *err)
{
    return tern__error_set(err, json->func, TERN_E_FORMAT, "%s: merge %u is not two tokens", json->what,
                           rank);
}

/* Reads "a b". */
static int merge_split(const tern__json *json, list_reading *r, tern_error *err)
{
    tern_text *both = &r->parts[2];
    const char *space = memchr(both->text, ' ', both->bytes);
    size_t left = space ? (size_t)(space - both->text) : 0, right = space ? both->bytes - left - 1 : 0;
    if (!left || !right || memchr(space + 1, ' ', right)) return merge_refuse(json, r->rank, err);
    r->parts[0].bytes = r->parts[1].bytes = 0;
    if (tern__text_add(&r->parts[0], both->text, left, json->func, err)) return TERN_E_MEMORY;
    return tern__text_add(&r->parts[1], space + 1, right, json->func, err);
}

/* Reads ["a", "b"]. */
static int merge_read_pair(tern__json *json, list_reading *r, tern_error *err)
{
    tern__json_slice part;
    for (int i = 0; i < 2; i++) {
        int status = i ? tern__json_expect(json, ',', err) : TERN_OK;
        if (!status) status = tern__json_string(json, &part, err);
        if (!status) status = slice_read(part, &r->parts[i], json->func, err);
        if (status) return status;
    }
    return tern__json_expect(json, ']', err);
}

/* A later merge of the same pair replaces an earlier one. */
static int merge_read(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    list_reading *r = ctx;
    tern__json_slice both;
    char quote[TERN__QUOTE_TEXT];
    int32_t ids[3];
    int status;
    (void)key;
    if (2 * (size_t)r->rank >= r->t->bpe.merge_slots) /* the first list was counted */
        return tern__error_set(err, json->func, TERN_E_FORMAT, "%s: there are two lists of merges",
                               json->what);
    if (tern__json_take(json, '['))
        status = merge_read_pair(json, r, err);
    else {
        status = tern__json_string(json, &both, err);
        if (!status) status = slice_read(both, &r->parts[2], json->func, err);
        if (!status) status = merge_split(json, r, err);
    }
    if (status) return status;
    r->parts[2].bytes = 0;
    for (int i = 0; i < 2; i++)
        if (tern__text_add(&r->parts[2], r->parts[i].text, r->parts[i].bytes, json->func, err))
            return TERN_E_MEMORY;
    for (int i = 0; i < 3; i++) {
        ids[i] = tern__vocabulary_find(&r->t->model, r->parts[i].text, r->parts[i].bytes);
        if (ids[i] < 0)
            return tern__error_set(err, json->func, TERN_E_FORMAT,
                                   "%s: merge %u: token %s is not in the vocabulary", json->what, r->rank,
                                   tern__quote(r->parts[i].text, r->parts[i].bytes, quote));
    }
    uint64_t pair = pair_of(ids[0], ids[1]);
    r->t->bpe.merges[merge_slot(&r->t->bpe, pair)] = (tern__merge){pair, r->rank++, ids[2]};
    return TERN_OK;
}

static int model_read(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    list_reading *r = ctx;
    if (!tern__json_is(key, r->name)) return tern__json_skip(json, err);
    return *r->name == 'v' ? tern__json_object(json, token_read, r, err)
                           : tern__json_array(json, merge_read, r, err);
}

static int root_read(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    return tern__json_is(key, "model") ? tern__json_object(json, model_read, ctx, err)
                                       : tern__json_skip(json, err);
}

static int lists_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                       tern_error *err)
{
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab"),
                *merges = cJSON_GetObjectItemCaseSensitive(model, "merges");
    list_reading r = {.t = t};
    if (!cJSON_IsObject(vocab))
        return tern__error_set(err, func, TERN_E_FORMAT, "%s: model: \"vocab\" is not an object", path);
    if (!cJSON_IsArray(merges))
        return tern__error_set(err, func, TERN_E_FORMAT, "%s: model: \"merges\" is not a list", path);
    size_t count = (size_t)cJSON_GetArraySize(merges);
    for (t->bpe.merge_slots = 16; t->bpe.merge_slots < 2 * count; t->bpe.merge_slots *= 2) {
    }
    t->bpe.merges = tern__alloc(t->bpe.merge_slots * sizeof(*t->bpe.merges), func, err);
    if (!t->bpe.merges) return TERN_E_MEMORY;
    for (size_t i = 0; i < t->bpe.merge_slots; i++) t->bpe.merges[i].pair = NO_PAIR;
    int status = TERN_OK;
    for (int list = 0; list < 2 && !status; list++) {
        tern__json json = {.text = t->json, .bytes = t->json_bytes, .what = path, .func = func};
        r.name = list ? "merges" : "vocab";
        status = tern__json_object(&json, root_read, &r, err);
    }
    for (int i = 0; i < 3; i++) tern_text_free(&r.parts[i]);
    return status;
}

/* Finds the ids of single bytes. */
static void byte_ids_find(tern_tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char text[8];
        int bytes = t->bpe.byte_level ? tern__utf8_write(tern__byte_char((uint8_t)b), text)
                                      : snprintf(text, sizeof(text), "<0x%02X>", b);
        t->bpe.byte_ids[b] = tern__vocabulary_find(&t->model, text, (size_t)bytes);
    }
}

int tern__bpe_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                    tern_error *err)
{
    static const char *const refused[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *unk = tern__part_string(model, "unk_token"), *type = tern__part_type(model);
    const cJSON *dropout = cJSON_GetObjectItemCaseSensitive(model, "dropout");
    bool is_bpe = !strcmp(type, "BPE") || (!*type && cJSON_HasObjectItem(model, "merges"));
    if (!is_bpe) return tern__part_refuse(path, "model", model, NULL, func, err);
    for (size_t i = 0; i < TERN__COUNT(refused); i++) {
        const char *text = tern__part_string(model, refused[i]);
        if (text && *text) return tern__part_refuse(path, "model", model, refused[i], func, err);
    }
    if (cJSON_IsNumber(dropout) && dropout->valuedouble != 0)
        return tern__part_refuse(path, "model", model, "dropout", func, err);
    t->bpe.byte_fallback = tern__part_bool(model, "byte_fallback", false);
    t->bpe.fuse_unk = tern__part_bool(model, "fuse_unk", false);
    t->bpe.ignore_merges = tern__part_bool(model, "ignore_merges", false);
    int status = lists_parse(t, model, path, func, err);
    if (status) return status;
    byte_ids_find(t);
    t->bpe.unk = unk ? tern__vocabulary_find(&t->model, unk, strlen(unk)) : -1;
    if (unk && *unk && t->bpe.unk < 0)
        return tern__part_refuse(path, "model", model, "an unk_token that is not in the vocabulary", func,
                                 err);
    return TERN_OK;
}

/* ---- symbols ---- */

typedef struct word_symbols {
    tern__encoding *e;
    uint32_t count;
    bool has_unknown; /* one more unknown symbol waits: fuse_unk */
} word_symbols;

static void symbol_push(word_symbols *w, int32_t id)
{
    w->e->symbols[w->count] = (tern__symbol){id, w->count + 1, w->count - 1};
    w->count++;
}

static void unknown_flush(word_symbols *w)
{
    if (w->has_unknown) symbol_push(w, w->e->tokenizer->bpe.unk);
    w->has_unknown = false;
}

/* Adds a character that the vocabulary lacks: its bytes, or the unknown token, or nothing. As in
 * `tokenizers`, an unknown token that waits comes after the bytes. */
static void symbol_push_unknown(word_symbols *w, const char *text, size_t bytes)
{
    const tern__bpe *bpe = &w->e->tokenizer->bpe;
    bool has_bytes = bpe->byte_fallback && !bpe->byte_level;
    for (size_t i = 0; i < bytes && has_bytes; i++) has_bytes = bpe->byte_ids[(uint8_t)text[i]] >= 0;
    if (has_bytes) {
        for (size_t i = 0; i < bytes; i++) symbol_push(w, bpe->byte_ids[(uint8_t)text[i]]);
        return;
    }
    if (bpe->unk < 0) return;
    if (!bpe->fuse_unk) unknown_flush(w);
    w->has_unknown = true;
}

/* Makes the symbols of a word, of bytes or of characters. Returns their number. */
static uint32_t symbols_make(tern__encoding *e, const char *word, size_t bytes)
{
    const tern_tokenizer *t = e->tokenizer;
    word_symbols w = {.e = e};
    for (size_t at = 0; at < bytes;) {
        uint32_t code;
        char text[4];
        size_t length = t->bpe.byte_level ? 1 : (size_t)tern__utf8_next(word + at, bytes - at, &code);
        int32_t id = t->bpe.byte_level ? t->bpe.byte_ids[(uint8_t)word[at]]
                                       : tern__vocabulary_find(&t->model, word + at, length);
        if (id >= 0) {
            unknown_flush(&w);
            symbol_push(&w, id);
        } else if (t->bpe.byte_level)
            symbol_push_unknown(&w, text, (size_t)tern__utf8_write(tern__byte_char((uint8_t)word[at]), text));
        else
            symbol_push_unknown(&w, word + at, length);
        at += length;
    }
    unknown_flush(&w);
    if (w.count) e->symbols[w.count - 1].next = UINT32_MAX;
    return w.count;
}

/* ---- merging ---- */

static void heap_sink(uint64_t *heap, size_t count, size_t at)
{
    uint64_t key = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && heap[child + 1] < heap[child];
        if (heap[child] >= key) break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t key)
{
    size_t at = (*count)++;
    for (; at && heap[(at - 1) / 2] > key; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = key;
}

static void pair_push(tern__encoding *e, size_t *count, uint32_t place)
{
    const tern__symbol *s = &e->symbols[place];
    const tern__merge *merge = merge_find(&e->tokenizer->bpe, s->id, e->symbols[s->next].id);
    if (merge) heap_push(e->heap, count, (uint64_t)merge->rank << 32 | place);
}

/* Merges until no pair has a merge. What is left is linked by `next` from the first symbol on. */
static void symbols_merge(tern__encoding *e, uint32_t symbols)
{
    const tern__bpe *bpe = &e->tokenizer->bpe;
    size_t count = 0;
    for (uint32_t i = 0; i + 1 < symbols; i++) pair_push(e, &count, i);
    while (count) {
        uint32_t rank = (uint32_t)(e->heap[0] >> 32), place = (uint32_t)e->heap[0];
        tern__symbol *left = &e->symbols[place];
        e->heap[0] = e->heap[--count];
        if (count) heap_sink(e->heap, count, 0);
        if (left->id < 0 || left->next == UINT32_MAX) continue;
        tern__symbol *right = &e->symbols[left->next];
        const tern__merge *merge = merge_find(bpe, left->id, right->id);
        if (!merge || merge->rank != rank) continue;
        left->id = merge->id;
        right->id = -1;
        left->next = right->next;
        if (left->next != UINT32_MAX) {
            e->symbols[left->next].prev = place;
            pair_push(e, &count, place);
        }
        if (place) pair_push(e, &count, left->prev);
    }
}

static int symbols_reserve(tern__encoding *e, size_t count)
{
    if (tern__array_reserve(&e->symbols, &e->symbol_room, count, sizeof(*e->symbols), e->func, e->err))
        return TERN_E_MEMORY;
    return tern__array_reserve(&e->heap, &e->heap_room, 3 * count, sizeof(*e->heap), e->func, e->err);
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

static int ids_reserve(tern__encoding *e, size_t more)
{
    size_t room = (size_t)e->ids->room;
    if (e->ids->count + (int64_t)more <= e->ids->room) return TERN_OK;
    int status = tern__array_reserve(&e->ids->ids, &room, (size_t)e->ids->count + more, sizeof(*e->ids->ids),
                                     e->func, e->err);
    e->ids->room = (int64_t)room;
    return status;
}

/* Returns the id of a word that is one token as a whole, or -1. */
static int32_t whole_find(tern__encoding *e, const char *word, size_t bytes)
{
    const tern_tokenizer *t = e->tokenizer;
    if (!t->bpe.byte_level) return tern__vocabulary_find(&t->model, word, bytes);
    size_t wrote = 0;
    e->written.bytes = 0;
    if (tern__text_reserve(&e->written, 2 * bytes, e->func, e->err)) return -1;
    for (size_t i = 0; i < bytes; i++)
        wrote += (size_t)tern__utf8_write(tern__byte_char((uint8_t)word[i]), e->written.text + wrote);
    return tern__vocabulary_find(&t->model, e->written.text, wrote);
}

/* Encodes a word that is not kept. */
static int word_encode(tern__encoding *e, const char *word, size_t bytes)
{
    int32_t whole = e->tokenizer->bpe.ignore_merges ? whole_find(e, word, bytes) : -1;
    if (whole >= 0) {
        if (ids_reserve(e, 1)) return TERN_E_MEMORY;
        e->ids->ids[e->ids->count++] = whole;
        return TERN_OK;
    }
    if (bytes >= UINT32_MAX)
        return tern__error_set(e->err, e->func, TERN_E_RANGE, "a word of %zu bytes, expected fewer than 2^32",
                               bytes);
    if (symbols_reserve(e, bytes)) return TERN_E_MEMORY;
    uint32_t count = symbols_make(e, word, bytes);
    symbols_merge(e, count);
    if (ids_reserve(e, count)) return TERN_E_MEMORY;
    for (uint32_t at = count ? 0 : UINT32_MAX; at != UINT32_MAX; at = e->symbols[at].next)
        e->ids->ids[e->ids->count++] = e->symbols[at].id;
    return TERN_OK;
}

int tern__bpe_encode(tern__encoding *e, const char *word, size_t bytes)
{
    if (bytes > WORD_BYTES) return word_encode(e, word, bytes);
    tern__kept_word *kept = &e->words[XXH3_64bits(word, bytes) & (WORD_SLOTS - 1)];
    if (kept->bytes == bytes && !memcmp(kept->text, word, bytes)) {
        if (ids_reserve(e, WORD_IDS)) return TERN_E_MEMORY;
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

int tern__bpe_cache_new(tern__encoding *e)
{
    e->words = tern__alloc(WORD_SLOTS * sizeof(*e->words), e->func, e->err);
    return e->words ? TERN_OK : TERN_E_MEMORY;
}
