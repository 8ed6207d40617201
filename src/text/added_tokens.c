/* added_tokens.c - tokens that are cut out of a text as a whole, whatever is around them: special ones such
 * as "<s>", and words that were added to a vocabulary. Of several that begin at a place the longest is
 * taken. */
#include "text/tokenizer.h"
#include "text/unicode.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

static int by_first_and_length(const void *a, const void *b)
{
    const tern__added_token *x = a, *y = b;
    int order = (uint8_t)x->content[0] - (uint8_t)y->content[0];
    if (order) return order;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return memcmp(x->content, y->content, x->bytes);
}

static void added_sort(tern__added_tokens *added)
{
    size_t at = 0;
    if (added->count) qsort(added->tokens, added->count, sizeof(*added->tokens), by_first_and_length);
    for (unsigned first = 0; first < 256; first++) {
        added->first[first] = (uint32_t)at;
        while (at < added->count && (uint8_t)added->tokens[at].content[0] == first) at++;
    }
    added->first[256] = (uint32_t)added->count;
}

/* Keeps the token, or what the normalizers make of it if it is found in what they make. */
static int added_keep(tern_tokenizer *t, tern__added_token token, const char *content, const char *func,
                      tern_error *err)
{
    tern__added_tokens *to = token.normalized ? &t->normalized : &t->raw;
    const char *text = content;
    size_t bytes = strlen(content);
    if (token.normalized && t->normalizer_count) {
        tern_token_ids none = {0};
        tern__encoding *e = tern__encoding_open(t, func, err);
        if (!e) return err ? err->code : TERN_E_MEMORY;
        e->ids = &none;
        int status = tern__normalize(e, &text, &bytes);
        token.content = status ? NULL : tern__alloc(bytes + 1, func, err);
        if (token.content) memcpy(token.content, text, bytes);
        tern__encoding_close(e);
    } else
        token.content = tern__strdup(content, func, err);
    token.bytes = bytes;
    if (!token.content) return TERN_E_MEMORY;
    if (!bytes ||
        tern__array_reserve(&to->tokens, &to->room, to->count + 1, sizeof(*to->tokens), func, err)) {
        tern__free(token.content);
        return bytes ? TERN_E_MEMORY : TERN_OK;
    }
    to->tokens[to->count++] = token;
    return TERN_OK;
}

int tern__added_parse(tern_tokenizer *t, const cJSON *list, const char *path, const char *func,
                      tern_error *err)
{
    static const char begins[] = "\\A[" TERN__RUST_WORD "]", ends[] = "[" TERN__RUST_WORD "]\\z";
    for (const cJSON *part = cJSON_IsArray(list) ? list->child : NULL; part; part = part->next) {
        const cJSON *id = cJSON_GetObjectItemCaseSensitive(part, "id");
        const char *content = tern__part_string(part, "content");
        if (!content || !cJSON_IsNumber(id))
            return tern__error_set(err, func, TERN_E_FORMAT, "%s: an added token has no id or no content",
                                   path);
        if (!*content) continue;
        tern__added_token token = {.id = id->valueint};
        token.is_special = tern__part_bool(part, "special", false);
        token.single_word = tern__part_bool(part, "single_word", false);
        token.lstrip = tern__part_bool(part, "lstrip", false);
        token.rstrip = tern__part_bool(part, "rstrip", false);
        token.normalized = tern__part_bool(part, "normalized", !token.is_special);
        if (tern__vocabulary_add(&t->all, content, strlen(content), token.id, path, func, err))
            return TERN_E_FORMAT;
        if (token.single_word && !t->word_begin) {
            t->word_begin = tern__regex_new(begins, strlen(begins), path, func, err);
            t->word_end = tern__regex_new(ends, strlen(ends), path, func, err);
            if (!t->word_begin || !t->word_end) return TERN_E_UNSUPPORTED;
        }
        if (added_keep(t, token, content, func, err)) return TERN_E_MEMORY;
    }
    added_sort(&t->raw);
    added_sort(&t->normalized);
    return TERN_OK;
}

void tern__added_free(tern__added_tokens *added)
{
    for (size_t i = 0; i < added->count; i++) tern__free(added->tokens[i].content);
    tern__free(added->tokens);
}

/* ---- finding ---- */

/* Is there a word's character before or after the token? Looks at one character only. Returns 1, 0 or a
 * status. */
static int touches_word(tern__encoding *e, const char *text, size_t bytes, size_t begin, size_t end)
{
    size_t at[2], before = begin;
    if (before) do
            before--;
        while (before && ((uint8_t)text[before] & 0xc0) == 0x80);
    int found = begin ? tern__regex_find(e->tokenizer->word_end, e->matcher, text + before, begin - before, 0,
                                         at, e->func, e->err)
                      : 0;
    if (found || end == bytes) return found;
    size_t after = tern__next_char(text, bytes, end);
    return tern__regex_find(e->tokenizer->word_begin, e->matcher, text + end, after - end, 0, at, e->func,
                            e->err);
}

/* Finds the first token at `from` or after it. */
static const tern__added_token *added_find(const tern__added_tokens *added, const char *text, size_t bytes,
                                           size_t *from)
{
    for (; *from < bytes; ++*from) {
        uint8_t first = (uint8_t)text[*from];
        for (uint32_t i = added->first[first]; i < added->first[first + 1]; i++) {
            const tern__added_token *token = &added->tokens[i];
            if (token->bytes <= bytes - *from && !memcmp(text + *from, token->content, token->bytes))
                return token;
        }
    }
    return NULL;
}

int tern__added_split(tern__encoding *e, const tern__added_tokens *added, bool special_is_text,
                      const char *text, size_t bytes,
                      int (*rest)(tern__encoding *e, const char *text, size_t bytes, bool is_first),
                      bool is_first)
{
    size_t done = 0, from = 0;
    const tern__added_token *token;
    while (added->count && (token = added_find(added, text, bytes, &from))) {
        size_t begin = from, end = from + token->bytes;
        from = end;
        if (token->is_special && special_is_text) continue;
        int touches = token->single_word ? touches_word(e, text, bytes, begin, end) : 0;
        if (touches < 0) return touches;
        if (touches) continue;
        if (token->lstrip) begin = TERN__MAX(tern__spaces_at_end(text, begin), done);
        if (token->rstrip) end += tern__spaces_at_start(text + end, bytes - end);
        int status = done < begin ? rest(e, text + done, begin - done, is_first && !done) : TERN_OK;
        if (!status) status = tern__ids_add(e->ids, token->id, e->func, e->err);
        if (status) return status;
        done = end;
    }
    return done < bytes ? rest(e, text + done, bytes - done, is_first && !done) : TERN_OK;
}
