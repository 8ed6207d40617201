/* train.c - learns byte-level BPE, with the results of tokenizers' BpeTrainer.
 *
 * The words of all texts are counted. Each starts as its bytes. Of all pairs of neighbours the most frequent
 * one, or of equally frequent ones the one with the lowest ids, becomes a token in all words that have it,
 * which changes the counts of the pairs beside it; and so on until the vocabulary is full.
 *
 * A queue has entries of a pair, its count when it was queued, and the words in which it had been found
 * since the pair was queued before. A count that is no longer true is put right when the entry comes out,
 * and the entry goes back. If a token is made in two ways ("ab" + "c" and "a" + "bc"), a pair with it may be
 * queued again, and is then merged twice, each time in the words of one entry; the later merge counts. All
 * this is BpeTrainer's, and decides which merges result. */
#include "text/gpt2.h"
#include "text/regex.h"
#include "text/vocabulary.h"

#include "base/file.h"
#include "base/opts.h"
#include "base/text.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define FUNC "tern_tokenizer_train"

/* A word, or what is left of it: `count` symbols from `at` on. */
typedef struct train_word {
    size_t at;      /* in the bytes, later in the symbols */
    uint32_t count; /* bytes, later symbols               */
    int64_t times;  /* in all texts                       */
} train_word;

typedef struct place_list {
    uint32_t *words;
    size_t count, room;
} place_list;

typedef struct train_pair {
    int32_t left, right;
    int64_t times;
    place_list found; /* words in which it was found since it was queued */
    int64_t merge;    /* the last merge of this pair, -1: none           */
} train_pair;

typedef struct queued {
    int64_t times;
    uint32_t pair;
    place_list found;
} queued;

typedef struct train_merge {
    uint32_t pair;
    bool is_replaced; /* by a later one */
} train_merge;

typedef struct trainer {
    tern_tokenizer_train_opts opts;
    tern__regex *regex;
    tern__regex_matcher *matcher;
    tern_text bytes; /* of all words */
    train_word *words;
    size_t word_count, word_room;
    uint32_t *word_slots; /* a hash table of words, UINT32_MAX: free */
    size_t word_slot_count;
    int32_t *symbols;
    train_pair *pairs;
    size_t pair_count, pair_room;
    uint32_t *pair_slots;
    size_t pair_slot_count;
    uint32_t *touched; /* pairs with words in `found` */
    size_t touched_count, touched_room;
    queued *queue; /* a heap */
    size_t queue_count, queue_room;
    train_merge *merges;
    size_t merge_count, merge_room;
    tern__vocabulary vocabulary;
    tern_error *err;
} trainer;

/* ---- hash tables ---- */

static uint64_t pair_hash(int32_t left, int32_t right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

static size_t word_slot(const trainer *t, const char *text, size_t bytes)
{
    size_t slot = XXH3_64bits(text, bytes) & (t->word_slot_count - 1);
    for (uint32_t i; (i = t->word_slots[slot]) != UINT32_MAX; slot = (slot + 1) & (t->word_slot_count - 1))
        if (t->words[i].count == bytes && !memcmp(t->bytes.text + t->words[i].at, text, bytes)) break;
    return slot;
}

static size_t pair_slot(const trainer *t, int32_t left, int32_t right)
{
    size_t slot = pair_hash(left, right) & (t->pair_slot_count - 1);
    for (uint32_t i; (i = t->pair_slots[slot]) != UINT32_MAX; slot = (slot + 1) & (t->pair_slot_count - 1))
        if (t->pairs[i].left == left && t->pairs[i].right == right) break;
    return slot;
}

/* Makes a table of twice the slots, all of them free, unless less than half of them are used. The caller
 * fills it. */
static int slots_double(uint32_t **slots, size_t *count, size_t used, bool *is_new, tern_error *err)
{
    *is_new = 2 * (used + 1) > *count;
    if (!*is_new) return TERN_OK;
    size_t wanted = TERN__MAX(2 * *count, (size_t)4096);
    uint32_t *made = tern__alloc(wanted * sizeof(*made), FUNC, err);
    if (!made) return TERN_E_MEMORY;
    memset(made, 0xff, wanted * sizeof(*made));
    tern__free(*slots);
    *slots = made;
    *count = wanted;
    return TERN_OK;
}

/* ---- counting words ---- */

static int word_count(trainer *t, const char *text, size_t bytes)
{
    bool is_new;
    if (bytes >= UINT32_MAX || t->word_count >= UINT32_MAX - 1)
        return tern__error_set(t->err, FUNC, TERN_E_RANGE, "more than 2^32 words, or bytes in a word");
    if (slots_double(&t->word_slots, &t->word_slot_count, t->word_count, &is_new, t->err))
        return TERN_E_MEMORY;
    for (size_t i = 0; is_new && i < t->word_count; i++)
        t->word_slots[word_slot(t, t->bytes.text + t->words[i].at, t->words[i].count)] = (uint32_t)i;
    size_t slot = word_slot(t, text, bytes);
    if (t->word_slots[slot] == UINT32_MAX) {
        if (tern__array_reserve(&t->words, &t->word_room, t->word_count + 1, sizeof(*t->words), FUNC, t->err))
            return TERN_E_MEMORY;
        t->words[t->word_count] = (train_word){.at = t->bytes.bytes, .count = (uint32_t)bytes};
        if (tern__text_add(&t->bytes, text, bytes, FUNC, t->err)) return TERN_E_MEMORY;
        t->word_slots[slot] = (uint32_t)t->word_count++;
    }
    t->words[t->word_slots[slot]].times++;
    return TERN_OK;
}

/* Every character is in a word, so there is nothing between two matches. */
static int words_count(trainer *t, const char *text, size_t bytes)
{
    tern_text repaired = {0};
    size_t at[2], from = 0;
    int status = tern__text_add_repaired(&repaired, text, bytes, FUNC, t->err);
    while (!status && from < repaired.bytes) {
        int found =
            tern__regex_find(t->regex, t->matcher, repaired.text, repaired.bytes, from, at, FUNC, t->err);
        if (found <= 0) status = found;
        if (found <= 0) break;
        status = word_count(t, repaired.text + at[0], at[1] - at[0]);
        from = at[1];
    }
    tern_text_free(&repaired);
    return status;
}

static int file_count_words(trainer *t, const char *path)
{
    struct stat about;
    int fd = tern__file_open(path, O_RDONLY, 0, &about, FUNC, t->err);
    if (fd < 0) return TERN_E_IO;
    size_t bytes = (size_t)about.st_size;
    char *text = tern__alloc(bytes + 1, FUNC, t->err);
    int status = text ? tern__file_read(fd, path, 0, text, bytes, FUNC, t->err) : TERN_E_MEMORY;
    close(fd);
    if (!status) status = words_count(t, text, bytes);
    tern__free(text);
    return status;
}

static int texts_count(trainer *t)
{
    const tern_tokenizer_train_opts *o = &t->opts;
    int status = TERN_OK;
    for (int64_t i = 0; i < o->text_count && !status; i++)
        status = words_count(t, o->texts[i], o->text_bytes ? o->text_bytes[i] : strlen(o->texts[i]));
    for (int64_t i = 0; i < o->file_count && !status; i++) status = file_count_words(t, o->files[i]);
    return status;
}

/* ---- the first tokens ---- */

static int token_add(trainer *t, const char *text, size_t bytes)
{
    if (tern__vocabulary_find(&t->vocabulary, text, bytes) >= 0) return TERN_OK;
    return tern__vocabulary_add(&t->vocabulary, text, bytes, t->vocabulary.size, "trained tokens", FUNC,
                                t->err);
}

/* Writes the character of a byte and returns its bytes. */
static size_t byte_write(uint8_t byte, char text[4])
{
    uint32_t code = tern__byte_char(byte);
    text[0] = (char)(code < 0x80 ? code : 0xc0 | code >> 6);
    text[1] = (char)(0x80 | (code & 0x3f));
    return code < 0x80 ? 1 : 2;
}

/* Special tokens, then the characters of bytes in their order. */
static int alphabet_make(trainer *t)
{
    char text[4];
    int status = TERN_OK;
    for (int64_t i = 0; i < t->opts.special_count && !status; i++)
        status = token_add(t, t->opts.special_tokens[i], strlen(t->opts.special_tokens[i]));
    for (uint32_t code = 0; code < 0x144 && !status; code++) {
        int byte = tern__char_byte(code);
        if (byte >= 0) status = token_add(t, text, byte_write((uint8_t)byte, text));
    }
    return status;
}

/* Makes symbols of the words' bytes. */
static int symbols_make(trainer *t)
{
    int32_t ids[256];
    char text[4];
    for (int b = 0; b < 256; b++)
        ids[b] = tern__vocabulary_find(&t->vocabulary, text, byte_write((uint8_t)b, text));
    t->symbols = tern__alloc((t->bytes.bytes + 1) * sizeof(*t->symbols), FUNC, t->err);
    for (size_t i = 0; t->symbols && i < t->bytes.bytes; i++) t->symbols[i] = ids[(uint8_t)t->bytes.text[i]];
    return t->symbols ? TERN_OK : TERN_E_MEMORY;
}

/* ---- pairs ---- */

/* Returns the index of a pair, which is added if it is new, or UINT32_MAX with an error. */
static uint32_t pair_get(trainer *t, int32_t left, int32_t right)
{
    bool is_new;
    if (slots_double(&t->pair_slots, &t->pair_slot_count, t->pair_count, &is_new, t->err)) return UINT32_MAX;
    for (size_t i = 0; is_new && i < t->pair_count; i++)
        t->pair_slots[pair_slot(t, t->pairs[i].left, t->pairs[i].right)] = (uint32_t)i;
    size_t slot = pair_slot(t, left, right);
    if (t->pair_slots[slot] != UINT32_MAX) return t->pair_slots[slot];
    if (tern__array_reserve(&t->pairs, &t->pair_room, t->pair_count + 1, sizeof(*t->pairs), FUNC, t->err))
        return UINT32_MAX;
    t->pairs[t->pair_count] = (train_pair){.left = left, .right = right, .merge = -1};
    return t->pair_slots[slot] = (uint32_t)t->pair_count++;
}

/* Counts a pair `times` more often in a word; if it is new there, the word is kept with it. */
static int pair_change(trainer *t, int32_t left, int32_t right, int64_t times, uint32_t word)
{
    uint32_t i = pair_get(t, left, right);
    if (i == UINT32_MAX) return TERN_E_MEMORY;
    train_pair *pair = &t->pairs[i];
    place_list *found = &pair->found;
    pair->times += times;
    if (times < 0 || (found->count && found->words[found->count - 1] == word)) return TERN_OK;
    if (!found->count) {
        if (tern__array_reserve(&t->touched, &t->touched_room, t->touched_count + 1, sizeof(*t->touched),
                                FUNC, t->err))
            return TERN_E_MEMORY;
        t->touched[t->touched_count++] = i;
    }
    if (tern__array_reserve(&found->words, &found->room, found->count + 1, sizeof(*found->words), FUNC,
                            t->err))
        return TERN_E_MEMORY;
    found->words[found->count++] = word;
    return TERN_OK;
}

static int pairs_count(trainer *t)
{
    int status = TERN_OK;
    for (size_t w = 0; w < t->word_count; w++)
        for (uint32_t i = 0; i + 1 < t->words[w].count && !status; i++) {
            const int32_t *s = t->symbols + t->words[w].at + i;
            status = pair_change(t, s[0], s[1], t->words[w].times, (uint32_t)w);
        }
    return status;
}

/* Merges a pair in one word. */
static int word_merge(trainer *t, uint32_t word, int32_t left, int32_t right, int32_t made)
{
    train_word *w = &t->words[word];
    int32_t *s = t->symbols + w->at;
    uint32_t wrote = 0, count = w->count;
    int status = TERN_OK;
    for (uint32_t i = 0; i < count && !status;) {
        if (s[i] != left || i + 1 == count || s[i + 1] != right) {
            s[wrote++] = s[i++];
            continue;
        }
        if (wrote) status = pair_change(t, s[wrote - 1], left, -w->times, word);
        if (wrote && !status) status = pair_change(t, s[wrote - 1], made, w->times, word);
        i += 2;
        s[wrote++] = made;
        if (i < count && !status) status = pair_change(t, right, s[i], -w->times, word);
        if (i < count && !status) status = pair_change(t, made, s[i], w->times, word);
    }
    w->count = wrote;
    return status;
}

/* ---- the queue ---- */

/* Does `a` come out before `b`? */
static bool queued_before(const trainer *t, const queued *a, const queued *b)
{
    const train_pair *x = &t->pairs[a->pair], *y = &t->pairs[b->pair];
    if (a->times != b->times) return a->times > b->times;
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static int queue_push(trainer *t, queued entry)
{
    if (tern__array_reserve(&t->queue, &t->queue_room, t->queue_count + 1, sizeof(*t->queue), FUNC, t->err)) {
        tern__free(entry.found.words);
        return TERN_E_MEMORY;
    }
    size_t at = t->queue_count++;
    for (; at && queued_before(t, &entry, &t->queue[(at - 1) / 2]); at = (at - 1) / 2)
        t->queue[at] = t->queue[(at - 1) / 2];
    t->queue[at] = entry;
    return TERN_OK;
}

static queued queue_pop(trainer *t)
{
    queued top = t->queue[0], last = t->queue[--t->queue_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < t->queue_count; at = child) {
        child += child + 1 < t->queue_count && queued_before(t, &t->queue[child + 1], &t->queue[child]);
        if (!queued_before(t, &t->queue[child], &last)) break;
        t->queue[at] = t->queue[child];
    }
    t->queue[at] = last;
    return top;
}

/* Queues the pairs that were found in words since the last time. */
static int queue_touched(trainer *t)
{
    int status = TERN_OK;
    for (size_t i = 0; i < t->touched_count; i++) {
        train_pair *pair = &t->pairs[t->touched[i]];
        place_list found = pair->found;
        pair->found = (place_list){0};
        if (pair->times > 0 && !status)
            status = queue_push(t, (queued){pair->times, t->touched[i], found});
        else
            tern__free(found.words);
    }
    t->touched_count = 0;
    return status;
}

/* ---- learning ---- */

/* Returns the id of the token that the pair makes, which may exist, or -1 with an error. */
static int32_t pair_token(trainer *t, const train_pair *pair)
{
    const tern__token *left = &t->vocabulary.tokens[pair->left], *right = &t->vocabulary.tokens[pair->right];
    tern_text text = {0};
    int status = tern__text_add(&text, left->text, left->bytes, FUNC, t->err);
    if (!status) status = tern__text_add(&text, right->text, right->bytes, FUNC, t->err);
    if (!status) status = token_add(t, text.text, text.bytes);
    int32_t id = status ? -1 : tern__vocabulary_find(&t->vocabulary, text.text, text.bytes);
    tern_text_free(&text);
    return id;
}

static int pair_merge(trainer *t, const queued *top)
{
    int32_t left = t->pairs[top->pair].left, right = t->pairs[top->pair].right,
            made = pair_token(t, &t->pairs[top->pair]);
    if (made < 0 ||
        tern__array_reserve(&t->merges, &t->merge_room, t->merge_count + 1, sizeof(*t->merges), FUNC, t->err))
        return TERN_E_MEMORY;
    int64_t before = t->pairs[top->pair].merge;
    if (before >= 0) t->merges[before].is_replaced = true;
    t->pairs[top->pair].merge = (int64_t)t->merge_count;
    t->merges[t->merge_count++] = (train_merge){.pair = top->pair};
    int status = TERN_OK;
    for (size_t i = 0; i < top->found.count && !status; i++)
        status = word_merge(t, top->found.words[i], left, right, made);
    return status ? status : queue_touched(t);
}

static int merges_learn(trainer *t)
{
    int status = queue_touched(t);
    while (!status && t->vocabulary.size < t->opts.vocab_size && t->queue_count) {
        queued top = queue_pop(t);
        int64_t times = t->pairs[top.pair].times;
        if (top.times != times) {
            top.times = times;
            status = queue_push(t, top);
            continue;
        }
        bool ends = top.times < 1 || top.times < t->opts.min_frequency;
        if (!ends) status = pair_merge(t, &top);
        tern__free(top.found.words);
        if (ends) break;
    }
    return status;
}

/* ---- the result ---- */

static int vocab_write(const trainer *t, tern_text *vocab)
{
    int status = tern__text_add(vocab, "{", 1, FUNC, t->err);
    for (int64_t id = 0; id < t->vocabulary.size && !status; id++) {
        const tern__token *token = &t->vocabulary.tokens[id];
        status = tern__text_add(vocab, ",\n", id ? 2 : 0, FUNC, t->err);
        if (!status) status = tern__json_add_string(vocab, token->text, token->bytes, FUNC, t->err);
        if (!status) status = tern__text_add_format(vocab, FUNC, t->err, ":%lld", (long long)id);
    }
    return status ? status : tern__text_add(vocab, "}", 1, FUNC, t->err);
}

static int merges_write(const trainer *t, tern_text *lines)
{
    int status = tern__text_add(lines, "#version: 0.2\n", 14, FUNC, t->err);
    for (size_t i = 0; i < t->merge_count && !status; i++) {
        const train_pair *pair = &t->pairs[t->merges[i].pair];
        const tern__token *left = &t->vocabulary.tokens[pair->left],
                          *right = &t->vocabulary.tokens[pair->right];
        if (t->merges[i].is_replaced) continue;
        status = tern__text_add(lines, left->text, left->bytes, FUNC, t->err);
        if (!status) status = tern__text_add(lines, " ", 1, FUNC, t->err);
        if (!status) status = tern__text_add(lines, right->text, right->bytes, FUNC, t->err);
        if (!status) status = tern__text_add(lines, "\n", 1, FUNC, t->err);
    }
    return status;
}

static tern_tokenizer *trainer_result(const trainer *t)
{
    tern_text vocab = {0}, lines = {0}, json = {0};
    int64_t *ids = tern__alloc((size_t)(t->opts.special_count + 1) * sizeof(*ids), FUNC, t->err);
    for (int64_t i = 0; ids && i < t->opts.special_count; i++)
        ids[i] = tern__vocabulary_find(&t->vocabulary, t->opts.special_tokens[i],
                                       strlen(t->opts.special_tokens[i]));
    int status = ids ? vocab_write(t, &vocab) : TERN_E_MEMORY;
    if (!status) status = merges_write(t, &lines);
    tern__gpt2_parts parts = {
        vocab.text, vocab.bytes, lines.text, lines.bytes, t->opts.special_tokens, ids, t->opts.special_count};
    if (!status) status = tern__gpt2_json(&parts, &json, FUNC, t->err);
    tern_tokenizer *made = status ? NULL : tern__tokenizer_made(&json, FUNC, t->err);
    tern_text_free(&json);
    tern_text_free(&vocab);
    tern_text_free(&lines);
    tern__free(ids);
    return made;
}

static void trainer_free(trainer *t)
{
    for (size_t i = 0; i < t->pair_count; i++) tern__free(t->pairs[i].found.words);
    for (size_t i = 0; i < t->queue_count; i++) tern__free(t->queue[i].found.words);
    void *const arrays[] = {t->words,      t->word_slots, t->symbols, t->pairs,
                            t->pair_slots, t->touched,    t->queue,   t->merges};
    for (size_t i = 0; i < TERN__COUNT(arrays); i++) tern__free(arrays[i]);
    tern_text_free(&t->bytes);
    tern__vocabulary_free(&t->vocabulary);
    tern__regex_matcher_free(t->matcher);
    tern__regex_free(t->regex);
}

/* ---- options ---- */

tern_tokenizer_train_opts tern_tokenizer_train_defaults(void)
{
    return (tern_tokenizer_train_opts){.size = sizeof(tern_tokenizer_train_opts), .vocab_size = 30000};
}

static int list_check(const char *const *list, int64_t count, const char *what, tern_error *err)
{
    for (int64_t i = 0; i < count; i++)
        if (tern__need(list ? list[i] : NULL, what, FUNC, err)) return TERN_E_INVALID;
    return TERN_OK;
}

static int opts_check(const tern_tokenizer_train_opts *o, tern_error *err)
{
    if (o->text_count < 0 || o->file_count < 0 || o->special_count < 0 || o->min_frequency < 0)
        return tern__error_set(err, FUNC, TERN_E_RANGE,
                               "%lld texts, %lld files, %lld special tokens, min_frequency %lld",
                               (long long)o->text_count, (long long)o->file_count,
                               (long long)o->special_count, (long long)o->min_frequency);
    int64_t least = 256 + o->special_count;
    if (o->vocab_size < least || o->vocab_size > TERN__VOCABULARY_MOST)
        return tern__error_set(err, FUNC, TERN_E_RANGE,
                               "vocab_size is %lld, expected %lld (single bytes and special tokens) to %d",
                               (long long)o->vocab_size, (long long)least, TERN__VOCABULARY_MOST);
    if (list_check(o->texts, o->text_count, "text", err) ||
        list_check(o->files, o->file_count, "path", err) ||
        list_check(o->special_tokens, o->special_count, "special token", err))
        return TERN_E_INVALID;
    for (int64_t i = 0; i < o->special_count; i++) {
        const char *token = o->special_tokens[i];
        if (!*token || tern__utf8_check(token, strlen(token)) >= 0)
            return tern__error_set(err, FUNC, TERN_E_INVALID, "special token %lld is %s", (long long)i,
                                   *token ? "not UTF-8" : "empty");
    }
    return TERN_OK;
}

tern_tokenizer *tern_tokenizer_train(const tern_tokenizer_train_opts *opts, tern_error *err)
{
    tern_error why = {0};
    trainer t = {.opts = tern_tokenizer_train_defaults(), .err = &why};
    if (tern__is_set(err)) return NULL;
    int status = tern__opts_read(&t.opts, sizeof(t.opts), opts, FUNC, &why);
    if (!status) status = opts_check(&t.opts, &why);
    if (!status) t.regex = tern__regex_new(tern__gpt2_words, strlen(tern__gpt2_words), "words", FUNC, &why);
    if (t.regex) t.matcher = tern__regex_matcher_new(FUNC, &why);
    if (!status && !t.matcher) status = TERN_E_UNSUPPORTED;
    if (!status) status = texts_count(&t);
    if (!status) status = alphabet_make(&t);
    if (!status) status = symbols_make(&t);
    if (!status) status = pairs_count(&t);
    if (!status) status = merges_learn(&t);
    tern_tokenizer *made = status ? NULL : trainer_result(&t);
    trainer_free(&t);
    if (made) return made;
    tern__error_set(err, FUNC, why.code, "%s", why.text);
    if (err && !err->native) err->native = why.native;
    return NULL;
}
