/* wordpiece.c - WordPiece, the model of BERT: from a word's begin on, the longest token that fits is taken,
 * again and again. A word of which some part has no token is unknown as a whole. */
#include "text/tokenizer.h"

#include <string.h>

int tern__wordpiece_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                          tern_error *err)
{
    const char *prefix = tern__part_string(model, "continuing_subword_prefix");
    const cJSON *most = cJSON_GetObjectItemCaseSensitive(model, "max_input_chars_per_word");
    tern__wordpiece *w = &t->wordpiece;
    if (!prefix) prefix = "##";
    w->most_chars = cJSON_IsNumber(most) ? most->valueint : 100;
    if (tern__text_add(&w->prefix, prefix, strlen(prefix), func, err)) return TERN_E_MEMORY;
    int status = tern__vocab_parse(t, model, path, func, err);
    if (!status) status = tern__unk_parse(t, model, path, func, err);
    for (int64_t i = 0; i < t->model.size; i++)
        w->longest = TERN__MAX(w->longest, (size_t)t->model.tokens[i].bytes);
    return status;
}

static bool has_more_chars(const char *word, size_t bytes, int64_t most)
{
    int64_t chars = 0;
    for (size_t at = 0; at < bytes && chars <= most; at = tern__next_char(word, bytes, at)) chars++;
    return chars > most;
}

static int unknown_add(tern__encoding *e)
{
    if (e->tokenizer->unk < 0)
        return tern__error_set(e->err, e->func, TERN_E_FORMAT,
                               "a word has no tokens, and the model has no unk_token");
    return tern__ids_add(e->ids, e->tokenizer->unk, e->func, e->err);
}

/* Finds the longest token at the start of a text. Returns its length; 0: there is none. */
static size_t longest_find(const tern_tokenizer *t, const char *text, size_t bytes, size_t least, int32_t *id)
{
    size_t end = TERN__MIN(bytes, t->wordpiece.longest);
    while (end < bytes && end > least && ((uint8_t)text[end] & 0xc0) == 0x80) end--;
    while (end > least) {
        *id = tern__vocabulary_find(&t->model, text, end);
        if (*id >= 0) return end;
        do end--;
        while (end > least && ((uint8_t)text[end] & 0xc0) == 0x80);
    }
    return 0;
}

/* The rest of the word has the prefix before it, so that a token is found in one piece. */
int tern__wordpiece_encode(tern__encoding *e, const char *word, size_t bytes)
{
    const tern_tokenizer *t = e->tokenizer;
    size_t prefix = t->wordpiece.prefix.bytes;
    int64_t before = e->ids->count;
    int32_t id = -1;
    if (has_more_chars(word, bytes, t->wordpiece.most_chars)) return unknown_add(e);
    for (size_t at = 0, found; at < bytes; at += found) {
        if (!at)
            found = longest_find(t, word, bytes, 0, &id);
        else {
            e->written.bytes = 0;
            size_t rest = TERN__MIN(bytes - at, t->wordpiece.longest);
            if (tern__text_add(&e->written, t->wordpiece.prefix.text, prefix, e->func, e->err) ||
                tern__text_add(&e->written, word + at, rest, e->func, e->err))
                return TERN_E_MEMORY;
            found = longest_find(t, e->written.text, e->written.bytes, prefix, &id);
            found -= found ? prefix : 0;
        }
        if (!found) {
            e->ids->count = before;
            return unknown_add(e);
        }
        if (tern__ids_add(e->ids, id, e->func, e->err)) return TERN_E_MEMORY;
    }
    return TERN_OK;
}
