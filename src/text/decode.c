/* decode.c - tokens to text. What a token is as text depends on its neighbours in three ways only: bytes of
 * several tokens may make one character, a mark may be removed from the first token, and blanks where the
 * text begins. So the text of each token is made once, and decoding puts these together. */
#include "text/tokenizer.h"

#include "base/opts.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define FUNC        "tern_tokenizer_decode"
#define FUNC_STREAM "tern_decode_stream_new"

void tern_text_free(tern_text *text)
{
    if (!text) return;
    tern__free(text->text);
    *text = (tern_text){0};
}

/* ---- reading ---- */

static int step_add(tern_tokenizer *t, tern__decoder_kind kind, const char *from, const char *to,
                    const char *func, tern_error *err)
{
    tern__decoder *d = &t->decoder;
    if (tern__array_reserve(&d->steps, &d->step_room, d->step_count + 1, sizeof(*d->steps), func, err))
        return TERN_E_MEMORY;
    tern__decoder_step *step = &d->steps[d->step_count++];
    *step = (tern__decoder_step){.kind = kind};
    if (tern__text_add(&step->from, from, strlen(from), func, err)) return TERN_E_MEMORY;
    return tern__text_add(&step->to, to, strlen(to), func, err);
}

static int strip_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                       tern_error *err)
{
    const char *content = tern__part_string(part, "content");
    const cJSON *start = cJSON_GetObjectItemCaseSensitive(part, "start"),
                *stop = cJSON_GetObjectItemCaseSensitive(part, "stop");
    bool fine = content && *content && cJSON_IsNumber(start) && cJSON_IsNumber(stop) && stop->valueint == 0 &&
                t->decoder.fuses;
    if (!fine || t->decoder.strip.bytes)
        return tern__part_refuse(path, "decoder", part, "this form of it", func, err);
    t->decoder.strip_most = start->valueint;
    return tern__text_add(&t->decoder.strip, content, strlen(content), func, err);
}

static int metaspace_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                           tern_error *err)
{
    const char *mark = tern__part_string(part, "replacement"),
               *scheme = tern__part_string(part, "prepend_scheme");
    bool drops = scheme ? strcmp(scheme, "never") != 0 : tern__part_bool(part, "add_prefix_space", true);
    if (!mark || !*mark || t->decoder.step_count)
        return tern__part_refuse(path, "decoder", part, "this form of it", func, err);
    if (drops && tern__text_add(&t->decoder.drop, mark, strlen(mark), func, err)) return TERN_E_MEMORY;
    return step_add(t, TERN__DECODER_METASPACE, mark, " ", func, err);
}

static int decoder_parse_one(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                             tern_error *err)
{
    const char *type = tern__part_type(part),
               *pattern = tern__part_string(cJSON_GetObjectItemCaseSensitive(part, "pattern"), "String");
    const char *content = tern__part_string(part, "content");
    if (!strcmp(type, "Fuse")) {
        t->decoder.fuses = true;
        return TERN_OK;
    }
    if (!strcmp(type, "Strip")) return strip_parse(t, part, path, func, err);
    if (t->decoder.fuses) return tern__part_refuse(path, "decoder", part, "it after Fuse", func, err);
    if (!strcmp(type, "ByteLevel")) {
        t->decoder.fuses = t->decoder.byte_level = true;
        return step_add(t, TERN__DECODER_BYTE_LEVEL, "", "", func, err);
    }
    if (!strcmp(type, "ByteFallback")) return step_add(t, TERN__DECODER_BYTE_FALLBACK, "", "", func, err);
    if (!strcmp(type, "Metaspace")) return metaspace_parse(t, part, path, func, err);
    if (!strcmp(type, "Replace") && pattern && *pattern && content)
        return step_add(t, TERN__DECODER_REPLACE, pattern, content, func, err);
    return tern__part_refuse(path, "decoder", part, NULL, func, err);
}

int tern__decoder_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                        tern_error *err)
{
    t->decoder.has_blanks = !part || cJSON_IsNull(part);
    if (t->decoder.has_blanks) return TERN_OK;
    if (strcmp(tern__part_type(part), "Sequence") != 0) return decoder_parse_one(t, part, path, func, err);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(part, "decoders");
    for (const cJSON *p = list ? list->child : NULL; p; p = p->next)
        if (decoder_parse_one(t, p, path, func, err)) return TERN_E_FORMAT;
    return TERN_OK;
}

/* ---- the text of each token ---- */

/* Reads <0x41>, the token of a byte; -1: it is none. */
static int byte_token(const tern__token *token)
{
    char *end;
    if (token->bytes != 6 || memcmp(token->text, "<0x", 3) != 0 || token->text[5] != '>') return -1;
    long byte = strtol(token->text + 3, &end, 16);
    return end == token->text + 5 ? (int)byte : -1;
}

/* Maps characters to the bytes for which they stand, unless one of them stands for none. */
static int unmap_bytes(const tern_text *from, tern_text *to, const char *func, tern_error *err)
{
    uint32_t code = 0;
    for (size_t at = 0; at < from->bytes;) {
        at += (size_t)tern__utf8_next(from->text + at, from->bytes - at, &code);
        int byte = tern__char_byte(code);
        char c = (char)byte;
        if (byte < 0) {
            to->bytes = 0;
            return tern__text_add(to, from->text, from->bytes, func, err);
        }
        if (tern__text_add(to, &c, 1, func, err)) return TERN_E_MEMORY;
    }
    return TERN_OK;
}

static int replace_all(const tern_text *from, tern_text *to, const tern__decoder_step *step, const char *func,
                       tern_error *err)
{
    size_t at = 0;
    for (const char *found;
         (found = memmem(from->text + at, from->bytes - at, step->from.text, step->from.bytes));) {
        size_t place = (size_t)(found - from->text);
        if (tern__text_add(to, from->text + at, place - at, func, err) ||
            tern__text_add(to, step->to.text, step->to.bytes, func, err))
            return TERN_E_MEMORY;
        at = place + step->from.bytes;
    }
    return tern__text_add(to, from->text + at, from->bytes - at, func, err);
}

/* Makes the text of a token; `now` and `next` are memory that is used again. */
static int piece_make(tern_tokenizer *t, int64_t id, const tern__token *token, tern_text *now,
                      tern_text *next, const char *func, tern_error *err)
{
    const tern__decoder *d = &t->decoder;
    tern__decoded *piece = &d->pieces[id];
    now->bytes = 0;
    int status = tern__text_add(now, token->text, token->bytes, func, err);
    for (size_t i = 0; i < d->step_count && !status && !piece->is_byte; i++) {
        const tern__decoder_step *step = &d->steps[i];
        int byte = step->kind == TERN__DECODER_BYTE_FALLBACK ? byte_token(token) : -1;
        char c = (char)byte;
        next->bytes = 0;
        if (step->kind == TERN__DECODER_BYTE_LEVEL)
            status = unmap_bytes(now, next, func, err);
        else if (step->kind != TERN__DECODER_BYTE_FALLBACK)
            status = replace_all(now, next, step, func, err);
        else if (byte < 0)
            continue;
        else
            status = tern__text_add(next, &c, 1, func, err);
        piece->is_byte = byte >= 0;
        tern_text swapped = *now;
        *now = *next;
        *next = swapped;
    }
    piece->text = status ? NULL : tern__alloc(now->bytes + 1, func, err);
    if (!piece->text) return TERN_E_MEMORY;
    memcpy(piece->text, now->text, now->bytes);
    piece->bytes = (uint32_t)now->bytes;
    return TERN_OK;
}

/* Of an added token that is found in what the normalizers make, that is its text. */
static tern__token normalized_text(const tern__added_token *added)
{
    return (tern__token){added->content, (uint32_t)added->bytes};
}

static void special_mark(tern_tokenizer *t, const tern__added_tokens *added)
{
    for (size_t i = 0; i < added->count; i++)
        t->decoder.pieces[added->tokens[i].id].is_special = added->tokens[i].is_special;
}

int tern__decoder_make(tern_tokenizer *t, const char *func, tern_error *err)
{
    tern_text now = {0}, next = {0};
    int status = TERN_OK;
    t->decoder.pieces = tern__alloc((size_t)t->all.size * sizeof(*t->decoder.pieces) + 1, func, err);
    if (!t->decoder.pieces) return TERN_E_MEMORY;
    for (int64_t id = 0; id < t->all.size && !status; id++)
        if (t->all.tokens[id].text) status = piece_make(t, id, &t->all.tokens[id], &now, &next, func, err);
    for (size_t i = 0; i < t->normalized.count && !status; i++) {
        const tern__token token = normalized_text(&t->normalized.tokens[i]);
        tern__decoded *piece = &t->decoder.pieces[t->normalized.tokens[i].id];
        tern__free(piece->text);
        *piece = (tern__decoded){0};
        status = piece_make(t, t->normalized.tokens[i].id, &token, &now, &next, func, err);
    }
    special_mark(t, &t->raw);
    special_mark(t, &t->normalized);
    tern_text_free(&now);
    tern_text_free(&next);
    return status;
}

void tern__decoder_free(tern_tokenizer *t)
{
    tern__decoder *d = &t->decoder;
    for (int64_t id = 0; d->pieces && id < t->all.size; id++) tern__free(d->pieces[id].text);
    for (size_t i = 0; i < d->step_count; i++) {
        tern_text_free(&d->steps[i].from);
        tern_text_free(&d->steps[i].to);
    }
    tern__free(d->pieces);
    tern__free(d->steps);
    tern_text_free(&d->strip);
    tern_text_free(&d->drop);
}

/* ---- decoding ---- */

tern_decode_opts tern_decode_defaults(void)
{
    return (tern_decode_opts){.size = sizeof(tern_decode_opts), .skip_special_tokens = true};
}

struct tern_decode_stream {
    const tern_tokenizer *tokenizer;
    tern_decode_opts opts;
    bool whole;        /* bytes wait for the end of their run, to be judged together */
    bool has_begun;    /* a token came */
    int64_t stripped;  /* of `strip`; -1: something else came */
    tern_text waiting; /* bytes that are no whole character yet */
    tern_text *out;    /* the caller's */
    const char *func;
    tern_error *err;
};

static int stream_emit(tern_decode_stream *s, const char *text, size_t bytes)
{
    const tern__decoder *d = &s->tokenizer->decoder;
    while (bytes && s->stripped >= 0) {
        bool is_stripped = s->stripped < d->strip_most && bytes >= d->strip.bytes &&
                           !memcmp(text, d->strip.text, d->strip.bytes);
        s->stripped = is_stripped ? s->stripped + 1 : -1;
        text += is_stripped ? d->strip.bytes : 0;
        bytes -= is_stripped ? d->strip.bytes : 0;
    }
    return tern__text_add_repaired(s->out, text, bytes, s->func, s->err);
}

/* Emits the bytes that wait: all of them, or those of whole characters. */
static int waiting_emit(tern_decode_stream *s, bool all)
{
    tern_text *w = &s->waiting;
    size_t done = w->bytes, tail = 0;
    bool is_whole = true;
    if (!w->bytes) return TERN_OK;
    for (size_t back = 1; !all && back <= 3 && back <= w->bytes;
         back++) { /* the begin of a character at the end */
        if (((uint8_t)w->text[w->bytes - back] & 0xc0) == 0x80) continue;
        tail = tern__utf8_part(w->text + w->bytes - back, back, &is_whole);
        if (tail != back) is_whole = true;
        break;
    }
    if (!is_whole) done -= tail;
    int status = stream_emit(s, w->text, done);
    memmove(w->text, w->text + done, w->bytes - done);
    w->bytes -= done;
    return status;
}

/* Ends a run of byte tokens. As in `tokenizers`, a run that is not UTF-8 as a whole is one U+FFFD for each
 * byte. */
static int run_end(tern_decode_stream *s)
{
    tern_text *w = &s->waiting;
    int status = TERN_OK;
    bool is_text = w->bytes && tern__utf8_check(w->text, w->bytes) < 0;
    if (is_text) status = stream_emit(s, w->text, w->bytes);
    for (size_t i = 0; i < w->bytes && !is_text && !status; i++) status = stream_emit(s, "\xff", 1);
    w->bytes = 0;
    return status;
}

static int stream_add_byte(tern_decode_stream *s, const tern__decoded *piece)
{
    tern_text *w = &s->waiting;
    bool is_whole;
    if (tern__text_add(w, piece->text, piece->bytes, s->func, s->err)) return TERN_E_MEMORY;
    if (s->whole) return TERN_OK;
    size_t part = tern__utf8_part(w->text, w->bytes, &is_whole);
    return is_whole || part < w->bytes ? run_end(s) : TERN_OK;
}

/* Emits the first token without Metaspace's marks. */
static int emit_without_marks(tern_decode_stream *s, int32_t id)
{
    const tern_tokenizer *t = s->tokenizer;
    tern__token own = t->all.tokens[id], *token = &own;
    for (size_t i = 0; i < t->normalized.count; i++)
        if (t->normalized.tokens[i].id == id) own = normalized_text(&t->normalized.tokens[i]);
    const tern_text *mark = &s->tokenizer->decoder.drop;
    size_t at = 0;
    for (const char *found; (found = memmem(token->text + at, token->bytes - at, mark->text, mark->bytes));) {
        size_t place = (size_t)(found - token->text);
        if (stream_emit(s, token->text + at, place - at)) return TERN_E_MEMORY;
        at = place + mark->bytes;
    }
    return stream_emit(s, token->text + at, token->bytes - at);
}

static int stream_add(tern_decode_stream *s, int32_t id)
{
    const tern_tokenizer *t = s->tokenizer;
    const tern__decoder *d = &t->decoder;
    const tern__decoded *piece = id >= 0 && id < t->all.size ? &d->pieces[id] : NULL;
    if (!piece || !piece->text || (piece->is_special && s->opts.skip_special_tokens)) return TERN_OK;
    bool is_first = !s->has_begun;
    s->has_begun = true;
    if (d->byte_level) {
        if (tern__text_add(&s->waiting, piece->text, piece->bytes, s->func, s->err)) return TERN_E_MEMORY;
        return waiting_emit(s, false);
    }
    if (piece->is_byte) return stream_add_byte(s, piece);
    if (run_end(s) || (d->has_blanks && !is_first && stream_emit(s, " ", 1))) return TERN_E_MEMORY;
    if (is_first && d->drop.bytes) return emit_without_marks(s, id);
    return stream_emit(s, piece->text, piece->bytes);
}

static int stream_finish(tern_decode_stream *s)
{
    int status = s->tokenizer->decoder.byte_level ? waiting_emit(s, true) : run_end(s);
    s->has_begun = false;
    s->stripped = 0;
    return status;
}

int tern_tokenizer_decode(const tern_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                          const tern_decode_opts *opts, tern_text *text, tern_error *err)
{
    tern_decode_stream s = {.tokenizer = tokenizer,
                            .opts = tern_decode_defaults(),
                            .whole = true,
                            .out = text,
                            .func = FUNC,
                            .err = err};
    if (tern__is_set(err)) return err->code;
    if (tern__need(tokenizer, "tokenizer", FUNC, err) || (count && tern__need(ids, "ids", FUNC, err)) ||
        tern__need(text, "text", FUNC, err))
        return TERN_E_INVALID;
    int status = tern__opts_read(&s.opts, sizeof(s.opts), opts, FUNC, err);
    if (status) return status;
    text->bytes = 0;
    status = tern__text_add(text, "", 0, FUNC, err);
    for (int64_t i = 0; i < count && !status; i++) status = stream_add(&s, ids[i]);
    if (!status) status = stream_finish(&s);
    tern_text_free(&s.waiting);
    return status;
}

/* ---- the stream ---- */

tern_decode_stream *tern_decode_stream_new(const tern_tokenizer *tokenizer, const tern_decode_opts *opts,
                                           tern_error *err)
{
    tern_decode_opts own = tern_decode_defaults();
    if (tern__is_set(err) || tern__need(tokenizer, "tokenizer", FUNC_STREAM, err)) return NULL;
    if (tern__opts_read(&own, sizeof(own), opts, FUNC_STREAM, err)) return NULL;
    tern_decode_stream *s = tern__alloc(sizeof(*s), FUNC_STREAM, err);
    if (!s) return NULL;
    *s = (tern_decode_stream){.tokenizer = tokenizer, .opts = own};
    return s;
}

/* The caller's text is empty from here on. */
static int stream_begin(tern_decode_stream *s, tern_text *text, const char *func, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (tern__need(s, "stream", func, err) || tern__need(text, "text", func, err)) return TERN_E_INVALID;
    s->func = func;
    s->err = err;
    s->out = text;
    text->bytes = 0;
    return tern__text_add(text, "", 0, func, err);
}

int tern_decode_stream_step(tern_decode_stream *stream, int32_t id, tern_text *text, tern_error *err)
{
    int status = stream_begin(stream, text, "tern_decode_stream_step", err);
    return status ? status : stream_add(stream, id);
}

int tern_decode_stream_end(tern_decode_stream *stream, tern_text *text, tern_error *err)
{
    int status = stream_begin(stream, text, "tern_decode_stream_end", err);
    return status ? status : stream_finish(stream);
}

void tern_decode_stream_free(tern_decode_stream *stream)
{
    if (!stream) return;
    tern_text_free(&stream->waiting);
    tern__free(stream);
}
