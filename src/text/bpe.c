/* bpe.c - byte-pair encoding: a word's bytes or characters become symbols, and of all pairs of neighbours
 * the one whose merge was learnt first is merged, the leftmost one first, until no pair has a merge.
 *
 * The pairs wait in a heap, ordered by (rank of the merge, place). A merge changes the pairs on its two
 * sides; their old entries stay in the heap, and are known by a rank that the pair at their place no longer
 * has. So a word of n symbols takes n log n steps, also a text without spaces. */
#include "text/tokenizer.h"

#include "base/text.h"

#include <string.h>

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

/* ---- reading ---- */

/* Reads the merges. */
typedef struct merges_reading {
    tern_tokenizer *t;
    uint32_t rank;      /* of the next merge */
    tern_text parts[3]; /* of a merge: its two tokens and what they make */
} merges_reading;

static int merge_refuse(const tern__json *json, uint32_t rank, tern_error *err)
{
    return tern__error_set(err, json->func, TERN_E_FORMAT, "%s: merge %u is not two tokens", json->what,
                           rank);
}

/* Reads "a b". */
static int merge_split(const tern__json *json, merges_reading *r, tern_error *err)
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
static int merge_read_pair(tern__json *json, merges_reading *r, tern_error *err)
{
    tern__json_slice part;
    for (int i = 0; i < 2; i++) {
        int status = i ? tern__json_expect(json, ',', err) : TERN_OK;
        if (!status) status = tern__json_string(json, &part, err);
        if (!status) status = tern__slice_read(part, &r->parts[i], json->func, err);
        if (status) return status;
    }
    return tern__json_expect(json, ']', err);
}

/* Makes the text of what the two tokens become: the second one loses the prefix of those that begin no
 * word. */
static int merge_join(const tern__json *json, merges_reading *r, tern_error *err)
{
    size_t prefix = r->t->bpe.prefix.bytes;
    if (r->parts[1].bytes < prefix) return merge_refuse(json, r->rank, err);
    r->parts[2].bytes = 0;
    if (tern__text_add(&r->parts[2], r->parts[0].text, r->parts[0].bytes, json->func, err))
        return TERN_E_MEMORY;
    return tern__text_add(&r->parts[2], r->parts[1].text + prefix, r->parts[1].bytes - prefix, json->func,
                          err);
}

/* A later merge of the same pair replaces an earlier one. */
static int merge_read(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    merges_reading *r = ctx;
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
        if (!status) status = tern__slice_read(both, &r->parts[2], json->func, err);
        if (!status) status = merge_split(json, r, err);
    }
    if (!status) status = merge_join(json, r, err);
    if (status) return status;
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

static int merges_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                        tern_error *err)
{
    const cJSON *merges = cJSON_GetObjectItemCaseSensitive(model, "merges");
    merges_reading r = {.t = t};
    if (!cJSON_IsArray(merges))
        return tern__error_set(err, func, TERN_E_FORMAT, "%s: model: \"merges\" is not a list", path);
    size_t count = (size_t)cJSON_GetArraySize(merges);
    for (t->bpe.merge_slots = 16; t->bpe.merge_slots < 2 * count; t->bpe.merge_slots *= 2) {
    }
    t->bpe.merges = tern__alloc(t->bpe.merge_slots * sizeof(*t->bpe.merges), func, err);
    if (!t->bpe.merges) return TERN_E_MEMORY;
    for (size_t i = 0; i < t->bpe.merge_slots; i++) t->bpe.merges[i].pair = NO_PAIR;
    int status = tern__model_list(t, "merges", true, merge_read, &r, path, func, err);
    for (int i = 0; i < 3; i++) tern_text_free(&r.parts[i]);
    return status;
}

int tern__bpe_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                    tern_error *err)
{
    const char *prefix = tern__part_string(model, "continuing_subword_prefix"),
               *suffix = tern__part_string(model, "end_of_word_suffix");
    const cJSON *dropout = cJSON_GetObjectItemCaseSensitive(model, "dropout");
    tern__bpe *bpe = &t->bpe;
    if (cJSON_IsNumber(dropout) && dropout->valuedouble != 0)
        return tern__part_refuse(path, "model", model, "dropout", func, err);
    t->byte_fallback = tern__part_bool(model, "byte_fallback", false);
    bpe->fuse_unk = tern__part_bool(model, "fuse_unk", false);
    bpe->ignore_merges = tern__part_bool(model, "ignore_merges", false);
    if (prefix && tern__text_add(&bpe->prefix, prefix, strlen(prefix), func, err)) return TERN_E_MEMORY;
    if (suffix && tern__text_add(&bpe->suffix, suffix, strlen(suffix), func, err)) return TERN_E_MEMORY;
    int status = tern__vocab_parse(t, model, path, func, err);
    if (!status) status = merges_parse(t, model, path, func, err);
    return status ? status : tern__unk_parse(t, model, path, func, err);
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
    if (w->has_unknown) symbol_push(w, w->e->tokenizer->unk);
    w->has_unknown = false;
}

/* Adds a character that the vocabulary lacks: its bytes, or the unknown token, or nothing. As in
 * `tokenizers`, an unknown token that waits comes after the bytes. */
static void symbol_push_unknown(word_symbols *w, const char *text, size_t bytes)
{
    const tern_tokenizer *t = w->e->tokenizer;
    bool has_bytes = t->byte_fallback && !t->bpe.byte_level;
    for (size_t i = 0; i < bytes && has_bytes; i++) has_bytes = t->byte_ids[(uint8_t)text[i]] >= 0;
    if (has_bytes) {
        for (size_t i = 0; i < bytes; i++) symbol_push(w, t->byte_ids[(uint8_t)text[i]]);
        return;
    }
    if (t->unk < 0) return;
    if (!t->bpe.fuse_unk) unknown_flush(w);
    w->has_unknown = true;
}

static void symbol_push_text(word_symbols *w, int32_t id, const char *text, size_t bytes)
{
    if (id < 0) {
        symbol_push_unknown(w, text, bytes);
        return;
    }
    unknown_flush(w);
    symbol_push(w, id);
}

/* Makes the symbols of a word, of bytes or of characters. Returns their number. */
static uint32_t symbols_make(tern__encoding *e, const char *word, size_t bytes)
{
    const tern_tokenizer *t = e->tokenizer;
    word_symbols w = {.e = e};
    for (size_t at = 0; at < bytes;) {
        char text[4];
        int32_t id = -1;
        if (t->bpe.byte_level) {
            uint8_t byte = (uint8_t)word[at++];
            id = t->byte_ids[byte];
            size_t length = id < 0 ? (size_t)tern__utf8_write(tern__byte_char(byte), text) : 0;
            symbol_push_text(&w, id, text, length);
        } else {
            size_t length = tern__next_char(word, bytes, at) - at;
            id = tern__vocabulary_find(&t->model, word + at, length);
            symbol_push_text(&w, id, word + at, length);
            at += length;
        }
    }
    unknown_flush(&w);
    if (w.count) e->symbols[w.count - 1].next = UINT32_MAX;
    return w.count;
}

/* The same where tokens say whether they begin or end a word. Fails with E_MEMORY. */
static int symbols_make_affixed(tern__encoding *e, const char *word, size_t bytes, uint32_t *count)
{
    const tern_tokenizer *t = e->tokenizer;
    word_symbols w = {.e = e};
    tern_text *symbol = &e->written;
    for (size_t at = 0; at < bytes;) {
        char text[4];
        size_t length = t->bpe.byte_level ? 1 : tern__next_char(word, bytes, at) - at;
        const char *character = word + at;
        size_t wrote = length;
        if (t->bpe.byte_level) {
            wrote = (size_t)tern__utf8_write(tern__byte_char((uint8_t)word[at]), text);
            character = text;
        }
        symbol->bytes = 0;
        if ((at && tern__text_add(symbol, t->bpe.prefix.text, t->bpe.prefix.bytes, e->func, e->err)) ||
            tern__text_add(symbol, character, wrote, e->func, e->err) ||
            (at + length == bytes &&
             tern__text_add(symbol, t->bpe.suffix.text, t->bpe.suffix.bytes, e->func, e->err)))
            return TERN_E_MEMORY;
        symbol_push_text(&w, tern__vocabulary_find(&t->model, symbol->text, symbol->bytes), symbol->text,
                         symbol->bytes);
        at += length;
    }
    unknown_flush(&w);
    if (w.count) e->symbols[w.count - 1].next = UINT32_MAX;
    *count = w.count;
    return TERN_OK;
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

int tern__bpe_encode(tern__encoding *e, const char *word, size_t bytes)
{
    const tern__bpe *bpe = &e->tokenizer->bpe;
    bool has_affixes = bpe->prefix.bytes || bpe->suffix.bytes;
    int32_t whole = bpe->ignore_merges ? whole_find(e, word, bytes) : -1;
    if (whole >= 0) {
        if (tern__ids_reserve(e, 1)) return TERN_E_MEMORY;
        e->ids->ids[e->ids->count++] = whole;
        return TERN_OK;
    }
    /* A symbol that the vocabulary lacks may become the bytes of its affixes, too. */
    size_t room = has_affixes ? bytes * (2 + bpe->prefix.bytes) + bpe->suffix.bytes : bytes;
    if (room >= UINT32_MAX)
        return tern__error_set(e->err, e->func, TERN_E_RANGE, "a word of %zu bytes is too long", bytes);
    if (symbols_reserve(e, room)) return TERN_E_MEMORY;
    uint32_t count = 0;
    int status = TERN_OK;
    if (has_affixes)
        status = symbols_make_affixed(e, word, bytes, &count);
    else
        count = symbols_make(e, word, bytes);
    if (status) return status;
    symbols_merge(e, count);
    if (tern__ids_reserve(e, count)) return TERN_E_MEMORY;
    for (uint32_t at = count ? 0 : UINT32_MAX; at != UINT32_MAX; at = e->symbols[at].next)
        e->ids->ids[e->ids->count++] = e->symbols[at].id;
    return TERN_OK;
}
