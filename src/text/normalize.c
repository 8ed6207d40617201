/* normalize.c - normalizers: what a text becomes before it is split. */
#include "text/tokenizer.h"

#include "base/plugin.h"
#include "base/text.h"

#include <string.h>

/* ---- reading ---- */

static tern__normalizer *normalizer_new(tern_tokenizer *t, tern__normalizer_kind kind, const char *func,
                                        tern_error *err)
{
    if (tern__array_reserve(&t->normalizers, &t->normalizer_room, t->normalizer_count + 1,
                            sizeof(*t->normalizers), func, err))
        return NULL;
    tern__normalizer *made = &t->normalizers[t->normalizer_count++];
    *made = (tern__normalizer){.kind = kind};
    return made;
}

static int text_parse(tern__normalizer *n, const cJSON *part, const char *field, const char *path,
                      const char *func, tern_error *err)
{
    const char *text = tern__part_string(part, field);
    if (!text) return tern__part_refuse(path, "normalizer", part, "no text", func, err);
    return tern__text_add(&n->to, text, strlen(text), func, err);
}

/* What BertNormalizer makes of each character of ASCII. */
static void bert_parse(tern__normalizer *n, const cJSON *part)
{
    n->clean_text = tern__part_bool(part, "clean_text", true);
    n->handle_chinese_chars = tern__part_bool(part, "handle_chinese_chars", true);
    n->lowercase = tern__part_bool(part, "lowercase", true);
    n->strip_accents = tern__part_bool(part, "strip_accents", n->lowercase);
    for (int c = 0; c < 128; c++) {
        bool is_blank = c == '\t' || c == '\n' || c == '\r', is_control = (c < ' ' && !is_blank) || c == 127;
        bool is_upper = c >= 'A' && c <= 'Z';
        n->ascii[c] = (char)(n->clean_text && is_blank     ? ' '
                             : n->clean_text && is_control ? TERN__DROPPED
                             : n->lowercase && is_upper    ? c + 'a' - 'A'
                                                           : c);
    }
}

/* Reads what the kind has of its own. */
static int fields_parse(tern__normalizer *n, const cJSON *part, const char *path, const char *func,
                        tern_error *err)
{
    int status = TERN_OK;
    switch (n->kind) {
    case TERN__NORMALIZER_PREPEND: return text_parse(n, part, "prepend", path, func, err);
    case TERN__NORMALIZER_REPLACE:
        status = tern__pattern_parse(part, "normalizer", &n->regex, &n->from, path, func, err);
        return status ? status : text_parse(n, part, "content", path, func, err);
    case TERN__NORMALIZER_STRIP:
        n->strip_left = tern__part_bool(part, "strip_left", true);
        n->strip_right = tern__part_bool(part, "strip_right", true);
        return TERN_OK;
    case TERN__NORMALIZER_BERT: bert_parse(n, part); return TERN_OK;
    case TERN__NORMALIZER_PRECOMPILED: return tern__charsmap_parse(n, part, path, func, err);
    default: return TERN_OK;
    }
}

static const struct {
    const char *type;
    tern__normalizer_kind kind;
    tern_unicode_form form;
    bool asks_unicode;
} kinds[] = {
    {"Prepend", TERN__NORMALIZER_PREPEND, 0, false},
    {"Replace", TERN__NORMALIZER_REPLACE, 0, false},
    {"Strip", TERN__NORMALIZER_STRIP, 0, false},
    {"Nmt", TERN__NORMALIZER_NMT, 0, false},
    {"NFC", TERN__NORMALIZER_FORM, TERN_UNICODE_NFC, true},
    {"NFD", TERN__NORMALIZER_FORM, TERN_UNICODE_NFD, true},
    {"NFKC", TERN__NORMALIZER_FORM, TERN_UNICODE_NFKC, true},
    {"NFKD", TERN__NORMALIZER_FORM, TERN_UNICODE_NFKD, true},
    {"Lowercase", TERN__NORMALIZER_LOWERCASE, 0, true},
    {"StripAccents", TERN__NORMALIZER_STRIP_ACCENTS, 0, true},
    {"BertNormalizer", TERN__NORMALIZER_BERT, 0, true},
    {"Precompiled", TERN__NORMALIZER_PRECOMPILED, 0, true},
};

int tern__normalizer_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                           tern_error *err)
{
    const char *type = tern__part_type(part);
    if (!part || cJSON_IsNull(part)) return TERN_OK;
    if (!strcmp(type, "Sequence")) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(part, "normalizers");
        for (const cJSON *p = list ? list->child : NULL; p; p = p->next)
            if (tern__normalizer_parse(t, p, path, func, err)) return TERN_E_FORMAT;
        return TERN_OK;
    }
    for (size_t i = 0; i < TERN__COUNT(kinds); i++) {
        if (strcmp(type, kinds[i].type) != 0) continue;
        tern__normalizer *n = normalizer_new(t, kinds[i].kind, func, err);
        if (!n) return TERN_E_MEMORY;
        n->form = kinds[i].form;
        if (kinds[i].asks_unicode && !(n->unicode = tern__plugin_get(TERN__PLUGIN_UNICODE, path, func, err)))
            return TERN_E_UNSUPPORTED;
        return fields_parse(n, part, path, func, err);
    }
    return tern__part_refuse(path, "normalizer", part, NULL, func, err);
}

void tern__normalizers_free(tern_tokenizer *t)
{
    for (size_t i = 0; i < t->normalizer_count; i++) {
        tern__regex_free(t->normalizers[i].regex);
        tern_text_free(&t->normalizers[i].from);
        tern_text_free(&t->normalizers[i].to);
        tern__charsmap_free(t->normalizers[i].charsmap);
    }
    tern__free(t->normalizers);
}

/* Most normalizers look at a character alone, or at the marks that follow it. */
bool tern__normalizer_may_cut(const tern_tokenizer *t)
{
    for (size_t i = 0; i < t->normalizer_count; i++) {
        const tern__normalizer *n = &t->normalizers[i];
        bool looks_around = n->kind == TERN__NORMALIZER_PREPEND || n->kind == TERN__NORMALIZER_REPLACE ||
                            n->kind == TERN__NORMALIZER_STRIP;
        if (looks_around || (n->charsmap && !tern__charsmap_may_cut(n->charsmap))) return false;
    }
    return true;
}

/* ---- normalizing ---- */

/* Finds what is replaced next. Returns 1, 0 or a negative status. */
static int normalizer_find(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                           size_t from, size_t at[2])
{
    if (n->regex) return tern__regex_find(n->regex, e->matcher, text, bytes, from, at, e->func, e->err);
    const char *found = memmem(text + from, bytes - from, n->from.text, n->from.bytes);
    if (!found) return 0;
    at[0] = (size_t)(found - text);
    at[1] = at[0] + n->from.bytes;
    return 1;
}

/* Appends the text with all matches replaced. An empty match where the last one ended does not count. */
static int text_replace(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                        tern_text *out)
{
    size_t done = 0, from = 0, last = SIZE_MAX, at[2];
    int found = 0;
    while (from <= bytes && (found = normalizer_find(e, n, text, bytes, from, at)) > 0) {
        bool is_empty = at[0] == at[1];
        if (!is_empty || at[0] != last) {
            if (tern__text_add(out, text + done, at[0] - done, e->func, e->err) ||
                tern__text_add(out, n->to.text, n->to.bytes, e->func, e->err))
                return TERN_E_MEMORY;
            done = last = at[1];
        }
        from = is_empty ? tern__next_char(text, bytes, at[1]) : at[1];
    }
    return found < 0 ? found : tern__text_add(out, text + done, bytes - done, e->func, e->err);
}

static int text_lower(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                      tern_text *out)
{
    for (size_t at = 0; at < bytes;) {
        uint32_t code = 0;
        size_t plain = tern__ascii_at_start(text + at, bytes - at);
        if (tern__text_reserve(out, plain, e->func, e->err)) return TERN_E_MEMORY;
        for (size_t end = at + plain; at < end; at++)
            out->text[out->bytes++] = (char)(text[at] + (text[at] >= 'A' && text[at] <= 'Z' ? 32 : 0));
        if (at == bytes) break;
        at += (size_t)tern__utf8_next(text + at, bytes - at, &code);
        if (tern__text_add_lower(out, n->unicode, code, e->func, e->err)) return TERN_E_MEMORY;
    }
    return TERN_OK;
}

static int text_strip_accents(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                              tern_text *out)
{
    for (size_t at = 0; at < bytes;) {
        uint32_t code = 0;
        size_t plain = tern__ascii_at_start(text + at, bytes - at);
        if (tern__text_add(out, text + at, plain, e->func, e->err)) return TERN_E_MEMORY;
        at += plain;
        if (at == bytes) break;
        int length = tern__utf8_next(text + at, bytes - at, &code);
        bool is_mark = *n->unicode->category(code) == 'M';
        if (!is_mark && tern__text_add(out, text + at, (size_t)length, e->func, e->err)) return TERN_E_MEMORY;
        at += (size_t)length;
    }
    return TERN_OK;
}

static int text_strip(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                      tern_text *out)
{
    size_t end = n->strip_right ? tern__spaces_at_end(text, bytes) : bytes;
    size_t begin = n->strip_left ? tern__spaces_at_start(text, end) : 0;
    return tern__text_add(out, text + begin, end - begin, e->func, e->err);
}

static bool nmt_drops(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 11 || (c >= 14 && c <= 31) || c == 127 || c == 0x8f || c == 0x9f;
}

static bool nmt_blanks(uint32_t c)
{
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
}

/* The characters that SentencePiece's rules for machine translation (nmt) drop, and those that are blanks. */
static int text_nmt(tern__encoding *e, const char *text, size_t bytes, tern_text *out)
{
    for (size_t at = 0; at < bytes;) {
        uint32_t code = 0;
        int length = tern__utf8_next(text + at, bytes - at, &code);
        bool is_blank = nmt_blanks(code);
        if (!nmt_drops(code) &&
            tern__text_add(out, is_blank ? " " : text + at, is_blank ? 1 : (size_t)length, e->func, e->err))
            return TERN_E_MEMORY;
        at += (size_t)length;
    }
    return TERN_OK;
}

/* ---- BertNormalizer ---- */

static bool is_chinese_char(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) ||
           (c >= 0x2f800 && c <= 0x2fa1f);
}

/* Copies a stretch without control characters, with blanks around Chinese ones. */
static int stretch_clean(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes)
{
    tern_text *out = &e->stretch;
    out->bytes = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t code = 0;
        at += (size_t)tern__utf8_next(text + at, bytes - at, &code);
        const char *category = n->clean_text ? n->unicode->category(code) : "";
        bool is_control = *category == 'C' && category[1] != 'n';
        if (n->clean_text && (is_control || !code || code == 0xfffd)) continue;
        if (n->clean_text && tern__is_white_space(code)) code = ' ';
        bool is_chinese = n->handle_chinese_chars && is_chinese_char(code);
        if (is_chinese && tern__text_add(out, " ", 1, e->func, e->err)) return TERN_E_MEMORY;
        if (tern__text_add_char(out, code, e->func, e->err)) return TERN_E_MEMORY;
        if (is_chinese && tern__text_add(out, " ", 1, e->func, e->err)) return TERN_E_MEMORY;
    }
    return TERN_OK;
}

/* Appends a stretch of characters beyond ASCII, in the order of BertNormalizer's steps. */
static int bert_add_stretch(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                            tern_text *out)
{
    int status = stretch_clean(e, n, text, bytes);
    text = e->stretch.text;
    bytes = e->stretch.bytes;
    if (!status && n->strip_accents)
        status = tern__form_make(n->unicode, TERN_UNICODE_NFD, text, bytes, &e->codes, &text, &bytes, e->func,
                                 e->err);
    for (size_t at = 0; at < bytes && !status;) {
        uint32_t code = 0;
        at += (size_t)tern__utf8_next(text + at, bytes - at, &code);
        if (n->strip_accents && code >= 128 && !memcmp(n->unicode->category(code), "Mn", 2)) continue;
        status = n->lowercase ? tern__text_add_lower(out, n->unicode, code, e->func, e->err)
                              : tern__text_add_char(out, code, e->func, e->err);
    }
    return status;
}

/* ASCII is mapped byte by byte. What is between it, and what is dropped there, goes through all steps at
 * once. */
static int text_bert(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                     tern_text *out)
{
    for (size_t at = 0, end; at < bytes; at = end) {
        if (tern__text_reserve(out, bytes - at, e->func, e->err)) return TERN_E_MEMORY;
        for (end = at; end < bytes && !(text[end] & 0x80) && n->ascii[(int)text[end]] != TERN__DROPPED; end++)
            out->text[out->bytes++] = n->ascii[(int)text[end]];
        at = end;
        while (end < bytes && (text[end] & 0x80 || n->ascii[(int)text[end]] == TERN__DROPPED)) end++;
        if (at < end && bert_add_stretch(e, n, text + at, end - at, out)) return TERN_E_MEMORY;
    }
    return TERN_OK;
}

/* ---- all of them ---- */

static int normalizer_apply(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                            tern_text *out)
{
    int status = TERN_OK;
    switch (n->kind) {
    case TERN__NORMALIZER_PREPEND:
        status = tern__text_add(out, n->to.text, n->to.bytes, e->func, e->err);
        return status ? status : tern__text_add(out, text, bytes, e->func, e->err);
    case TERN__NORMALIZER_REPLACE: return text_replace(e, n, text, bytes, out);
    case TERN__NORMALIZER_STRIP: return text_strip(e, n, text, bytes, out);
    case TERN__NORMALIZER_NMT: return text_nmt(e, text, bytes, out);
    case TERN__NORMALIZER_FORM:
        return tern__text_add_form(out, n->unicode, n->form, text, bytes, &e->codes, e->func, e->err);
    case TERN__NORMALIZER_LOWERCASE: return text_lower(e, n, text, bytes, out);
    case TERN__NORMALIZER_STRIP_ACCENTS: return text_strip_accents(e, n, text, bytes, out);
    case TERN__NORMALIZER_BERT: return text_bert(e, n, text, bytes, out);
    case TERN__NORMALIZER_PRECOMPILED: return tern__charsmap_apply(e, n, text, bytes, out);
    }
    return status;
}

int tern__normalize(tern__encoding *e, const char **text, size_t *bytes)
{
    for (size_t i = 0; i < e->tokenizer->normalizer_count && *bytes; i++) {
        e->spare.bytes = 0;
        int status = normalizer_apply(e, &e->tokenizer->normalizers[i], *text, *bytes, &e->spare);
        if (status) return status;
        tern_text swapped = e->normalized;
        e->normalized = e->spare;
        e->spare = swapped;
        *text = e->normalized.text;
        *bytes = e->normalized.bytes;
    }
    return TERN_OK;
}
