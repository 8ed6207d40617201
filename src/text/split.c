/* split.c - pre-tokenizers: they split a text into words, each one what the one before it gives. A word goes
 * to the next pre-tokenizer as soon as it is found, and from the last one to the model, so no list of words
 * is kept. */
#include "text/gpt2.h"
#include "text/tokenizer.h"

#include <string.h>

/* ---- reading ---- */

/* Pre-tokenizers that are a regular expression. What `tokenizers` splits character by character is the same
 * with an expression of one character. */
static const struct {
    const char *type, *pattern;
    tern__split_behavior behavior;
    bool invert;
} plain[] = {
    {"Whitespace", "[" TERN__RUST_WORD "]+|[^" TERN__RUST_WORD "\\s]+", TERN__SPLIT_REMOVED, true},
    {"WhitespaceSplit", "\\s", TERN__SPLIT_REMOVED, false},
    {"BertPreTokenizer", "\\s", TERN__SPLIT_REMOVED, false},
};

#define PUNCTUATION "[!-/:-@\\[-`{-~\\p{P}]"

/* A text passes through them by recursion. */
enum { SPLITS_MOST = 256 };

static tern__split *split_add(tern_tokenizer *t, tern__split_kind kind, const char *path, const char *func,
                              tern_error *err)
{
    if (t->split_count == SPLITS_MOST) {
        tern__error_set(err, func, TERN_E_FORMAT, "%s has more than %d pre_tokenizers", path, SPLITS_MOST);
        return NULL;
    }
    if (tern__array_reserve(&t->splits, &t->split_room, t->split_count + 1, sizeof(*t->splits), func, err))
        return NULL;
    tern__split *made = &t->splits[t->split_count++];
    *made = (tern__split){.kind = kind};
    return made;
}

/* What is known of expressions in files: words of letters end before a blank, and nothing that matches has a
 * letter of ASCII before a blank in it, or looks back. */
static const struct {
    const char *pattern;
    tern__split_cut cut;
} known[] = {
    {TERN__LLAMA3_WORDS, TERN__CUT_SURE},
    {TERN__QWEN2_WORDS, TERN__CUT_SURE},
    {tern__gpt2_words, TERN__CUT_SURE},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
     "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     TERN__CUT_SURE}, /* DeepSeek's, with the next two */
    {"\\p{N}{1,3}", TERN__CUT_PASSED},
    {"[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+", TERN__CUT_PASSED},
    {"\\p{N}", TERN__CUT_PASSED},
};

static tern__split_cut pattern_cut(const cJSON *part, tern__split_behavior behavior, bool invert)
{
    const char *pattern = tern__part_string(cJSON_GetObjectItemCaseSensitive(part, "pattern"), "Regex");
    bool is_plain = invert ? behavior == TERN__SPLIT_REMOVED : behavior == TERN__SPLIT_ISOLATED;
    for (size_t i = 0; i < TERN__COUNT(known) && pattern && is_plain; i++)
        if (!strcmp(pattern, known[i].pattern) && (!invert || known[i].cut == TERN__CUT_SURE))
            return known[i].cut;
    return TERN__CUT_UNKNOWN;
}

/* `cut` is that of expressions for single characters and runs of them. */
static int split_add_regex(tern_tokenizer *t, const char *pattern, tern__split_behavior behavior, bool invert,
                           tern__split_cut cut, const char *path, const char *func, tern_error *err)
{
    tern__split *made = split_add(t, TERN__SPLIT_REGEX, path, func, err);
    if (!made) return TERN_E_MEMORY;
    made->behavior = behavior;
    made->invert = invert;
    made->cut = cut;
    made->regex = tern__regex_new(pattern, strlen(pattern), path, func, err);
    return made->regex ? TERN_OK : TERN_E_FORMAT;
}

/* Reads "behavior" of a part. */
static int behavior_parse(const cJSON *part, tern__split_behavior *to, const char *path, const char *func,
                          tern_error *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const char *name = tern__part_string(part, "behavior");
    for (size_t i = 0; name && i < TERN__COUNT(names); i++)
        if (!strcmp(name, names[i])) {
            *to = (tern__split_behavior)i;
            return TERN_OK;
        }
    return tern__part_refuse(path, "pre_tokenizer", part, "this behavior", func, err);
}

static int byte_level_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                            tern_error *err)
{
    tern__split *made = split_add(t, TERN__SPLIT_BYTE_LEVEL, path, func, err);
    if (!made) return TERN_E_MEMORY;
    t->bpe.byte_level = true;
    made->prepend =
        tern__part_bool(part, "add_prefix_space", true) ? TERN__PREPEND_ALWAYS : TERN__PREPEND_NEVER;
    if (tern__text_add(&made->replacement, " ", 1, func, err)) return TERN_E_MEMORY;
    made->behavior = TERN__SPLIT_ISOLATED;
    made->cut = TERN__CUT_PASSED;
    if (!tern__part_bool(part, "use_regex", true)) return TERN_OK;
    made->cut = TERN__CUT_SURE;
    made->regex = tern__regex_new(tern__gpt2_words, strlen(tern__gpt2_words), path, func, err);
    return made->regex ? TERN_OK : TERN_E_FORMAT;
}

/* Older files have add_prefix_space instead of prepend_scheme. */
static int metaspace_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                           tern_error *err)
{
    static const char *const schemes[] = {"never", "first", "always"};
    const char *mark = tern__part_string(part, "replacement"),
               *scheme = tern__part_string(part, "prepend_scheme");
    tern__split *made = split_add(t, TERN__SPLIT_METASPACE, path, func, err);
    if (!made) return TERN_E_MEMORY;
    if (!mark) return tern__part_refuse(path, "pre_tokenizer", part, "no replacement", func, err);
    made->prepend =
        tern__part_bool(part, "add_prefix_space", true) ? TERN__PREPEND_ALWAYS : TERN__PREPEND_NEVER;
    for (int i = 0; scheme && i < 3; i++)
        if (!strcmp(scheme, schemes[i])) made->prepend = (tern__prepend_scheme)i;
    made->behavior = TERN__SPLIT_MERGED_WITH_NEXT;
    if (tern__text_add(&made->replacement, mark, strlen(mark), func, err)) return TERN_E_MEMORY;
    if (!tern__part_bool(part, "split", true)) return TERN_OK;
    if (*mark && tern__next_char(mark, strlen(mark), 0) == strlen(mark)) made->cut = TERN__CUT_SURE;
    made->regex = tern__regex_new_text(mark, strlen(mark), path, func, err);
    return made->regex ? TERN_OK : TERN_E_FORMAT;
}

static int split_parse_regex(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                             tern_error *err)
{
    tern__split *made = split_add(t, TERN__SPLIT_REGEX, path, func, err);
    if (!made) return TERN_E_MEMORY;
    made->invert = tern__part_bool(part, "invert", false);
    if (behavior_parse(part, &made->behavior, path, func, err)) return TERN_E_FORMAT;
    made->cut = pattern_cut(part, made->behavior, made->invert);
    return tern__pattern_parse(part, "pre_tokenizer", &made->regex, NULL, path, func, err);
}

static int delimiter_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                           tern_error *err)
{
    const char *delimiter = tern__part_string(part, "delimiter");
    tern__split *made = split_add(t, TERN__SPLIT_REGEX, path, func, err);
    if (!made) return TERN_E_MEMORY;
    if (!delimiter || !*delimiter)
        return tern__part_refuse(path, "pre_tokenizer", part, "no delimiter", func, err);
    made->behavior = TERN__SPLIT_REMOVED;
    made->regex = tern__regex_new_text(delimiter, strlen(delimiter), path, func, err);
    return made->regex ? TERN_OK : TERN_E_FORMAT;
}

static int split_parse_one(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                           tern_error *err)
{
    const char *type = tern__part_type(part);
    tern__split_behavior behavior = TERN__SPLIT_ISOLATED;
    if (!strcmp(type, "ByteLevel")) return byte_level_parse(t, part, path, func, err);
    if (!strcmp(type, "Metaspace")) return metaspace_parse(t, part, path, func, err);
    if (!strcmp(type, "Split")) return split_parse_regex(t, part, path, func, err);
    if (!strcmp(type, "CharDelimiterSplit")) return delimiter_parse(t, part, path, func, err);
    if (!strcmp(type, "Digits")) {
        behavior =
            tern__part_bool(part, "individual_digits", false) ? TERN__SPLIT_ISOLATED : TERN__SPLIT_CONTIGUOUS;
        return split_add_regex(t, "\\p{N}", behavior, false, TERN__CUT_PASSED, path, func, err);
    }
    if (!strcmp(type, "Punctuation")) {
        if (behavior_parse(part, &behavior, path, func, err)) return TERN_E_FORMAT;
        return split_add_regex(t, PUNCTUATION, behavior, false, TERN__CUT_PASSED, path, func, err);
    }
    for (size_t i = 0; i < TERN__COUNT(plain); i++) {
        if (strcmp(type, plain[i].type) != 0) continue;
        int status = split_add_regex(t, plain[i].pattern, plain[i].behavior, plain[i].invert, TERN__CUT_SURE,
                                     path, func, err);
        if (status || strcmp(type, "BertPreTokenizer") != 0) return status;
        return split_add_regex(t, PUNCTUATION, TERN__SPLIT_ISOLATED, false, TERN__CUT_PASSED, path, func,
                               err);
    }
    return tern__part_refuse(path, "pre_tokenizer", part, NULL, func, err);
}

int tern__split_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                      tern_error *err)
{
    if (!part || cJSON_IsNull(part)) return TERN_OK;
    if (t->bpe.byte_level)
        return tern__part_refuse(path, "pre_tokenizer", part, "a pre_tokenizer after ByteLevel", func, err);
    if (strcmp(tern__part_type(part), "Sequence") != 0) return split_parse_one(t, part, path, func, err);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(part, "pretokenizers");
    for (const cJSON *p = list ? list->child : NULL; p; p = p->next)
        if (tern__split_parse(t, p, path, func, err)) return TERN_E_FORMAT;
    return TERN_OK;
}

void tern__splits_free(tern_tokenizer *t)
{
    for (size_t i = 0; i < t->split_count; i++) {
        tern__regex_free(t->splits[i].regex);
        tern_text_free(&t->splits[i].replacement);
    }
    tern__free(t->splits);
}

/* ---- where a text may be cut ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

size_t tern__split_place(const char *text, size_t bytes, size_t from)
{
    size_t at = from ? from : 1;
    while (at < bytes && !(text[at] == ' ' && is_letter(text[at - 1]))) at++;
    return TERN__MIN(at, bytes);
}

/* An added token may not reach over such a place, nor ask what is on its other side. */
static bool added_may_cut(const tern__added_tokens *added)
{
    for (size_t i = 0; i < added->count; i++) {
        const tern__added_token *token = &added->tokens[i];
        bool asks = token->rstrip || token->single_word;
        if (asks || tern__split_place(token->content, token->bytes, 0) < token->bytes) return false;
    }
    return true;
}

bool tern__split_may_cut(const tern_tokenizer *t)
{
    if (!tern__normalizer_may_cut(t) || !added_may_cut(&t->raw) || !added_may_cut(&t->normalized))
        return false;
    for (size_t i = 0; i < t->split_count; i++)
        if (t->splits[i].cut != TERN__CUT_PASSED) return t->splits[i].cut == TERN__CUT_SURE;
    return false;
}

/* ---- splitting ---- */

/* The words of one step on their way to the next one. Words are parts of the text, one after the other, so
 * one that may still grow is known by its begin and end. */
typedef struct splitter {
    tern__encoding *e;
    size_t step; /* that gets the words */
    const char *text;
    tern__split_behavior behavior;
    bool is_first; /* the text begins the whole text */
    bool has_word, was_match;
    size_t begin, end; /* of the word that waits */
} splitter;

static int word_send(splitter *s, size_t begin, size_t end)
{
    if (begin == end) return TERN_OK;
    return tern__split_text(s->e, s->step, s->text + begin, end - begin, s->is_first && !begin);
}

/* Gets the next part of the text, a match or what is between two. */
static int part_add(splitter *s, size_t begin, size_t end, bool is_match)
{
    bool grows = false;
    switch (s->behavior) {
    case TERN__SPLIT_REMOVED: return is_match ? TERN_OK : word_send(s, begin, end);
    case TERN__SPLIT_ISOLATED: return word_send(s, begin, end);
    case TERN__SPLIT_CONTIGUOUS: grows = is_match == s->was_match; break;
    case TERN__SPLIT_MERGED_WITH_PREVIOUS: grows = is_match && !s->was_match; break;
    case TERN__SPLIT_MERGED_WITH_NEXT: grows = !is_match && s->was_match; break;
    }
    s->was_match = is_match;
    if (grows && s->has_word) {
        s->end = end;
        return TERN_OK;
    }
    int status = s->has_word ? word_send(s, s->begin, s->end) : TERN_OK;
    s->has_word = true;
    s->begin = begin;
    s->end = end;
    return status;
}

/* Splits the text at the matches of the step's expression. An empty one parts what is around it, but does not
 * count where the last one ended. */
static int split_at_matches(tern__encoding *e, size_t step, const char *text, size_t bytes, bool is_first)
{
    const tern__split *split = &e->tokenizer->splits[step];
    splitter s = {.e = e, .step = step + 1, .text = text, .behavior = split->behavior, .is_first = is_first};
    size_t done = 0, from = 0, last = SIZE_MAX, at[2];
    int found = 0, status = TERN_OK;
    while (!status && from < bytes &&
           (found = tern__regex_find(split->regex, e->matcher, text, bytes, from, at, e->func, e->err)) > 0) {
        if (done < at[0]) status = part_add(&s, done, at[0], split->invert);
        if (!status && (at[0] < at[1] || at[0] != last)) status = part_add(&s, at[0], at[1], !split->invert);
        done = last = at[1];
        from = at[0] == at[1] ? tern__next_char(text, bytes, done) : done;
    }
    if (found < 0) return found;
    if (!status && done < bytes) status = part_add(&s, done, bytes, split->invert);
    if (!status && s.has_word) status = word_send(&s, s.begin, s.end);
    return status;
}

/* Copies the text with a mark before it and, by Metaspace, in place of spaces. Each step has a copy of its
 * own: the steps before it are still reading theirs. */
static int mark_spaces(tern__encoding *e, size_t step, const char **text, size_t *bytes, bool is_first)
{
    const tern__split *split = &e->tokenizer->splits[step];
    const tern_text *mark = &split->replacement;
    tern_text *copy = &e->prepended[step];
    bool is_meta = split->kind == TERN__SPLIT_METASPACE;
    bool wants =
        split->prepend == TERN__PREPEND_ALWAYS || (split->prepend == TERN__PREPEND_FIRST && is_first);
    bool has =
        (is_meta && **text == ' ') || (*bytes >= mark->bytes && !memcmp(*text, mark->text, mark->bytes));
    if (!is_meta && (!wants || has)) return TERN_OK;
    copy->bytes = 0;
    if (wants && !has && tern__text_add(copy, mark->text, mark->bytes, e->func, e->err)) return TERN_E_MEMORY;
    for (size_t at = 0; at < *bytes;) {
        const char *space = is_meta ? memchr(*text + at, ' ', *bytes - at) : NULL;
        size_t plain_bytes = space ? (size_t)(space - *text) - at : *bytes - at;
        if (tern__text_add(copy, *text + at, plain_bytes, e->func, e->err)) return TERN_E_MEMORY;
        if (space && tern__text_add(copy, mark->text, mark->bytes, e->func, e->err)) return TERN_E_MEMORY;
        at += plain_bytes + (space != NULL);
    }
    *text = copy->text;
    *bytes = copy->bytes;
    return TERN_OK;
}

int tern__split_text(tern__encoding *e, size_t step, const char *text, size_t bytes, bool is_first)
{
    const tern_tokenizer *t = e->tokenizer;
    if (step == t->split_count) return tern__model_encode(e, text, bytes);
    const tern__split *split = &t->splits[step];
    if (split->kind != TERN__SPLIT_REGEX && mark_spaces(e, step, &text, &bytes, is_first))
        return TERN_E_MEMORY;
    if (split->regex) return split_at_matches(e, step, text, bytes, is_first);
    return tern__split_text(e, step + 1, text, bytes, is_first);
}
