/* normalize.c - normalizers: what a text becomes before it is split. */
#include "text/tokenizer.h"

#include <string.h>

/* ---- reading ---- */

static int normalizer_add(tern_tokenizer *t, const cJSON *part, tern__normalizer_kind kind, const char *field,
                          const char *path, const char *func, tern_error *err)
{
    const char *text = tern__part_string(part, field);
    if (!text) return tern__part_refuse(path, "normalizer", part, "no text", func, err);
    if (tern__array_reserve(&t->normalizers, &t->normalizer_room, t->normalizer_count + 1,
                            sizeof(*t->normalizers), func, err))
        return TERN_E_MEMORY;
    tern__normalizer *made = &t->normalizers[t->normalizer_count++];
    *made = (tern__normalizer){.kind = kind};
    if (kind == TERN__NORMALIZER_REPLACE &&
        tern__pattern_parse(part, "normalizer", &made->regex, &made->from, path, func, err))
        return TERN_E_FORMAT;
    return tern__text_add(&made->to, text, strlen(text), func, err);
}

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
    if (!strcmp(type, "Prepend"))
        return normalizer_add(t, part, TERN__NORMALIZER_PREPEND, "prepend", path, func, err);
    if (!strcmp(type, "Replace"))
        return normalizer_add(t, part, TERN__NORMALIZER_REPLACE, "content", path, func, err);
    return tern__part_refuse(path, "normalizer", part, NULL, func, err);
}

void tern__normalizers_free(tern_tokenizer *t)
{
    for (size_t i = 0; i < t->normalizer_count; i++) {
        tern__regex_free(t->normalizers[i].regex);
        tern_text_free(&t->normalizers[i].from);
        tern_text_free(&t->normalizers[i].to);
    }
    tern__free(t->normalizers);
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

int tern__normalize(tern__encoding *e, const char **text, size_t *bytes)
{
    for (size_t i = 0; i < e->tokenizer->normalizer_count && *bytes; i++) {
        const tern__normalizer *n = &e->tokenizer->normalizers[i];
        tern_text *out = &e->spare;
        int status = TERN_OK;
        out->bytes = 0;
        if (n->kind == TERN__NORMALIZER_PREPEND) {
            status = tern__text_add(out, n->to.text, n->to.bytes, e->func, e->err);
            if (!status) status = tern__text_add(out, *text, *bytes, e->func, e->err);
        } else
            status = text_replace(e, n, *text, *bytes, out);
        if (status) return status;
        tern_text swapped = e->normalized;
        e->normalized = *out;
        e->spare = swapped;
        *text = e->normalized.text;
        *bytes = e->normalized.bytes;
    }
    return TERN_OK;
}
