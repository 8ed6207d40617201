/* unigram.c - Unigram, SentencePiece's model: each token has a score, the log of its probability, and a word
 * becomes the tokens whose scores have the largest sum (Kudo 2018).
 *
 * Viterbi's algorithm goes over the characters from left to right. Each place knows the best sum of tokens
 * that end there, and where the last of them began. All tokens that begin at a place are found by one walk
 * through a trie. A character that is no token of its own may be the unknown one, whose score is 10 below the
 * lowest. At the end the best tokens are read backwards; unknown characters that follow each other are one.
 *
 * The trie is an array in the order of breadth: the children of a node follow each other, by their bytes. */
#include "text/tokenizer.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the trie ---- */

/* The tokens, sorted, and for each node of the trie which of them pass through it. */
typedef struct trie_building {
    const tern__token *tokens;
    int32_t *sorted; /* ids */
    struct {
        uint32_t begin, end; /* in `sorted` */
        uint32_t depth;
    } * spans;
    uint32_t nodes;
} trie_building;

/* Of equal tokens the last one counts, as in `tokenizers`. */
static int by_text(const void *a, const void *b, void *ctx)
{
    const tern__token *tokens = ctx, *x = &tokens[*(const int32_t *)a], *y = &tokens[*(const int32_t *)b];
    int order = memcmp(x->text, y->text, TERN__MIN(x->bytes, y->bytes));
    if (order) return order;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

/* Returns how many nodes the trie has: one for each byte that a token does not share with the one before. */
static size_t nodes_count(const trie_building *b, size_t count)
{
    size_t nodes = 1;
    for (size_t i = 0; i < count; i++) {
        const tern__token *token = &b->tokens[b->sorted[i]],
                          *before = i ? &b->tokens[b->sorted[i - 1]] : NULL;
        size_t shared = 0, most = before ? TERN__MIN(token->bytes, before->bytes) : 0;
        while (shared < most && token->text[shared] == before->text[shared]) shared++;
        nodes += token->bytes - shared;
    }
    return nodes;
}

/* Adds the children of a node behind the last one. */
static void children_add(trie_building *b, tern__unigram *u, uint32_t node)
{
    uint32_t at = b->spans[node].begin, end = b->spans[node].end, depth = b->spans[node].depth;
    u->nodes[node] = (tern__trie_node){.child = b->nodes, .id = -1};
    while (at < end && b->tokens[b->sorted[at]].bytes == depth) u->nodes[node].id = b->sorted[at++];
    while (at < end) {
        uint8_t byte = (uint8_t)b->tokens[b->sorted[at]].text[depth];
        uint32_t begin = at;
        while (at < end && (uint8_t)b->tokens[b->sorted[at]].text[depth] == byte) at++;
        b->spans[b->nodes].begin = begin;
        b->spans[b->nodes].end = at;
        b->spans[b->nodes].depth = depth + 1;
        u->bytes[b->nodes++] = byte;
        u->nodes[node].children++;
    }
}

static int trie_make(tern_tokenizer *t, const char *func, tern_error *err)
{
    tern__unigram *u = &t->unigram;
    size_t count = (size_t)t->model.size;
    trie_building b = {.tokens = t->model.tokens, .nodes = 1};
    b.sorted = tern__alloc((count + 1) * sizeof(*b.sorted), func, err);
    if (!b.sorted) return TERN_E_MEMORY;
    for (size_t i = 0; i < count; i++) b.sorted[i] = (int32_t)i;
    qsort_r(b.sorted, count, sizeof(*b.sorted), by_text, (void *)b.tokens);
    size_t nodes = nodes_count(&b, count);
    if (nodes < UINT32_MAX) {
        b.spans = tern__alloc(nodes * sizeof(*b.spans), func, err);
        u->nodes = tern__alloc(nodes * sizeof(*u->nodes), func, err);
        u->bytes = tern__alloc(nodes, func, err);
    } else
        tern__error_set(err, func, TERN_E_FORMAT, "a vocabulary of %zu different bytes", nodes);
    bool fine = b.spans && u->nodes && u->bytes;
    if (fine) b.spans[0].end = (uint32_t)count;
    for (uint32_t node = 0; fine && node < nodes; node++) children_add(&b, u, node);
    tern__free(b.sorted);
    tern__free(b.spans);
    return fine ? TERN_OK : TERN_E_MEMORY;
}

/* ---- reading ---- */

typedef struct scores_reading {
    tern_tokenizer *t;
    const cJSON *item; /* of the same list, for the score */
    int64_t id;
    tern_text token;
} scores_reading;

/* Reads ["token", -3.5]. */
static int token_read(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    scores_reading *r = ctx;
    tern__json_slice token;
    (void)key;
    if (!r->item)
        return tern__error_set(err, json->func, TERN_E_FORMAT, "%s: there are two vocabularies", json->what);
    const cJSON *score = cJSON_GetArrayItem(r->item, 1);
    if (!cJSON_IsNumber(score) || !isfinite(score->valuedouble))
        return tern__error_set(err, json->func, TERN_E_FORMAT, "%s: token %lld has no score", json->what,
                               (long long)r->id);
    int status = tern__json_expect(json, '[', err);
    if (!status) status = tern__json_string(json, &token, err);
    if (!status) status = tern__json_expect(json, ',', err);
    if (!status) status = tern__json_skip(json, err);
    if (!status) status = tern__json_expect(json, ']', err);
    if (!status) status = tern__slice_read(token, &r->token, json->func, err);
    if (status) return status;
    r->item = r->item->next;
    r->t->unigram.scores[r->id] = score->valuedouble;
    status =
        tern__vocabulary_add(&r->t->model, r->token.text, r->token.bytes, r->id, json->what, json->func, err);
    if (!status) tern__vocabulary_prefer(&r->t->model, r->id++);
    return status;
}

static int scores_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                        tern_error *err)
{
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab");
    scores_reading r = {.t = t, .item = cJSON_IsArray(vocab) ? vocab->child : NULL};
    size_t count = r.item ? (size_t)cJSON_GetArraySize(vocab) : 0;
    if (!count) return tern__error_set(err, func, TERN_E_FORMAT, "%s: model: \"vocab\" is not a list", path);
    t->unigram.scores = tern__alloc(count * sizeof(*t->unigram.scores), func, err);
    if (!t->unigram.scores) return TERN_E_MEMORY;
    int status = tern__model_list(t, "vocab", true, token_read, &r, path, func, err);
    tern_text_free(&r.token);
    return status;
}

int tern__unigram_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                        tern_error *err)
{
    const cJSON *unk = cJSON_GetObjectItemCaseSensitive(model, "unk_id");
    tern__unigram *u = &t->unigram;
    int status = scores_parse(t, model, path, func, err);
    if (status) return status;
    t->byte_fallback = tern__part_bool(model, "byte_fallback", false);
    if (cJSON_IsNumber(unk)) t->unk = unk->valueint;
    if (t->unk >= t->model.size || (cJSON_IsNumber(unk) && t->unk < 0))
        return tern__part_refuse(path, "model", model, "an unk_id that is not in the vocabulary", func, err);
    double lowest = INFINITY;
    for (int64_t i = 0; i < t->model.size; i++) lowest = fmin(lowest, u->scores[i]);
    u->unk_score = lowest - 10;
    return trie_make(t, func, err);
}

/* ---- the best path ---- */

/* A place in the word. */
typedef struct tern__path_node {
    double score;   /* the best sum of tokens that end here */
    uint32_t begin; /* of the last of them                  */
    int32_t id;     /* of it; -1: none ends here            */
} tern__path_node;

static void path_offer(tern__path_node *end, double score, size_t begin, int32_t id)
{
    if (end->id < 0 || score > end->score) *end = (tern__path_node){score, (uint32_t)begin, id};
}

/* Offers all tokens that begin at a place. */
static int path_extend(tern__encoding *e, const char *word, size_t bytes, size_t at, size_t next)
{
    const tern_tokenizer *t = e->tokenizer;
    const tern__unigram *u = &t->unigram;
    double score = e->path[at].score;
    bool has_single = false;
    const tern__trie_node *node = u->nodes;
    for (size_t i = at; i < bytes; i++) {
        const uint8_t *found = memchr(u->bytes + node->child, (uint8_t)word[i], node->children);
        if (!found) break;
        node = &u->nodes[found - u->bytes];
        if (node->id < 0) continue;
        path_offer(&e->path[i + 1], score + u->scores[node->id], at, node->id);
        has_single |= i + 1 == next;
    }
    if (has_single) return TERN_OK;
    if (t->unk < 0)
        return tern__error_set(e->err, e->func, TERN_E_FORMAT,
                               "a character has no token, and the model has no unk_id");
    path_offer(&e->path[next], score + u->unk_score, at, t->unk);
    return TERN_OK;
}

/* Adds the ids of a part, the last one first. What is unknown becomes its bytes, if these are tokens. */
static int part_add_backwards(tern__encoding *e, const char *part, size_t bytes, int32_t id)
{
    const tern_tokenizer *t = e->tokenizer;
    if (id == t->unk) {
        int32_t whole = tern__vocabulary_find(&t->model, part, bytes);
        bool has_bytes = t->byte_fallback && whole < 0;
        for (size_t i = 0; i < bytes && has_bytes; i++) has_bytes = t->byte_ids[(uint8_t)part[i]] >= 0;
        if (tern__ids_reserve(e, bytes)) return TERN_E_MEMORY;
        for (size_t i = bytes; i > 0 && has_bytes; i--)
            e->ids->ids[e->ids->count++] = t->byte_ids[(uint8_t)part[i - 1]];
        if (has_bytes) return TERN_OK;
        if (whole >= 0) id = whole;
    }
    return tern__ids_add(e->ids, id, e->func, e->err);
}

int tern__unigram_encode(tern__encoding *e, const char *word, size_t bytes)
{
    const int32_t unk = e->tokenizer->unk;
    int64_t first = e->ids->count;
    if (tern__array_reserve(&e->path, &e->path_room, bytes + 1, sizeof(*e->path), e->func, e->err))
        return TERN_E_MEMORY;
    e->path[0].score = 0;
    for (size_t i = 1; i <= bytes; i++) e->path[i].id = -1;
    for (size_t at = 0, next; at < bytes; at = next) {
        next = tern__next_char(word, bytes, at);
        int status = path_extend(e, word, bytes, at, next);
        if (status) return status;
    }
    for (size_t end = bytes, begin; end > 0; end = begin) {
        int32_t id = e->path[end].id;
        begin = e->path[end].begin;
        while (id == unk && begin > 0 && e->path[begin].id == unk) begin = e->path[begin].begin;
        if (part_add_backwards(e, word + begin, end - begin, id)) return TERN_E_MEMORY;
    }
    for (int64_t i = first, k = e->ids->count - 1; i < k; i++, k--) {
        int32_t swapped = e->ids->ids[i];
        e->ids->ids[i] = e->ids->ids[k];
        e->ids->ids[k] = swapped;
    }
    return TERN_OK;
}
