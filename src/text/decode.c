/* decode.c - tokens to text. What a token is as text depends on its neighbours in three ways only: bytes of
 * several tokens may make one character, the first or the last token may be another text than those between
 * them, and blanks may be removed where the text begins. So the text of each token is made once for each of
 * these places, and decoding puts the texts together. */
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

static tern__decoder_step *step_add(tern_tokenizer *t, tern__decoder_kind kind, const char *from,
                                    const char *to, const char *func, tern_error *err)
{
    tern__decoder *d = &t->decoder;
    if (tern__array_reserve(&d->steps, &d->step_room, d->step_count + 1, sizeof(*d->steps), func, err))
        return NULL;
    tern__decoder_step *step = &d->steps[d->step_count++];
    *step = (tern__decoder_step){.kind = kind};
    if (tern__text_add(&step->from, from, strlen(from), func, err)) return NULL;
    return tern__text_add(&step->to, to, strlen(to), func, err) ? NULL : step;
}

/* Adds a step that asks where a token is. Byte tokens become one before it, which has another place. */
static tern__decoder_step *placed_step_add(tern_tokenizer *t, const cJSON *part, tern__decoder_kind kind,
                                           unsigned asks, const char *field, const char *path,
                                           const char *func, tern_error *err)
{
    const char *from = tern__part_string(part, field);
    bool has_bytes = false;
    for (size_t i = 0; i < t->decoder.step_count; i++)
        has_bytes |= t->decoder.steps[i].kind == TERN__DECODER_BYTE_FALLBACK;
    if (!from || has_bytes || t->decoder.asks) {
        tern__part_refuse(path, "decoder", part, "this form of it", func, err);
        return NULL;
    }
    tern__decoder_step *step = step_add(t, kind, from, " ", func, err);
    if (step) step->asks = t->decoder.asks = asks;
    return step;
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
    const char *scheme = tern__part_string(part, "prepend_scheme");
    bool drops = scheme ? strcmp(scheme, "never") != 0 : tern__part_bool(part, "add_prefix_space", true);
    tern__decoder_step *step = placed_step_add(t, part, TERN__DECODER_METASPACE,
                                               drops ? TERN__TOKEN_FIRST : 0, "replacement", path, func, err);
    if (step && !step->from.bytes)
        return tern__part_refuse(path, "decoder", part, "this form of it", func, err);
    return step ? TERN_OK : TERN_E_FORMAT;
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
    tern__decoder_step *step = NULL;
    if (!strcmp(type, "ByteLevel")) {
        t->decoder.fuses = t->decoder.byte_level = true;
        step = step_add(t, TERN__DECODER_BYTE_LEVEL, "", "", func, err);
    } else if (!strcmp(type, "ByteFallback"))
        step = step_add(t, TERN__DECODER_BYTE_FALLBACK, "", "", func, err);
    else if (!strcmp(type, "Metaspace"))
        return metaspace_parse(t, part, path, func, err);
    else if (!strcmp(type, "WordPiece")) {
        step =
            placed_step_add(t, part, TERN__DECODER_WORDPIECE, TERN__TOKEN_FIRST, "prefix", path, func, err);
        if (step) step->cleanup = tern__part_bool(part, "cleanup", true);
    } else if (!strcmp(type, "BPEDecoder"))
        step = placed_step_add(t, part, TERN__DECODER_BPE, TERN__TOKEN_LAST, "suffix", path, func, err);
    else if (!strcmp(type, "Replace") && pattern && *pattern && content)
        step = step_add(t, TERN__DECODER_REPLACE, pattern, content, func, err);
    else
        return tern__part_refuse(path, "decoder", part, NULL, func, err);
    return step ? TERN_OK : TERN_E_FORMAT;
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

static int replace_all(const tern_text *from, tern_text *to, const char *old, size_t old_bytes,
                       const char *new, const char *func, tern_error *err)
{
    size_t at = 0;
    for (const char *found;
         old_bytes && (found = memmem(from->text + at, from->bytes - at, old, old_bytes));) {
        size_t place = (size_t)(found - from->text);
        if (tern__text_add(to, from->text + at, place - at, func, err) ||
            tern__text_add(to, new, strlen(new), func, err))
            return TERN_E_MEMORY;
        at = place + old_bytes;
    }
    return tern__text_add(to, from->text + at, from->bytes - at, func, err);
}

static void texts_swap(tern_text *a, tern_text *b)
{
    tern_text swapped = *a;
    *a = *b;
    *b = swapped;
}

/* Takes the blanks out of what WordPiece has written, one rule after the other as `tokenizers` does. */
static int blanks_clean(tern_text *now, tern_text *next, const char *func, tern_error *err)
{
    static const char *const rules[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < TERN__COUNT(rules); i++) {
        next->bytes = 0;
        if (replace_all(now, next, rules[i][0], strlen(rules[i][0]), rules[i][1], func, err))
            return TERN_E_MEMORY;
        texts_swap(now, next);
    }
    return TERN_OK;
}

/* A token that begins a word has a blank before it, another one loses its prefix. */
static int wordpiece_decode(const tern__decoder_step *step, tern_text *now, tern_text *next, bool is_first,
                            const char *func, tern_error *err)
{
    size_t prefix = step->from.bytes;
    bool goes_on = now->bytes >= prefix && !memcmp(now->text, step->from.text, prefix);
    int status = TERN_OK;
    next->bytes = 0;
    if (!is_first && !goes_on) status = tern__text_add(next, " ", 1, func, err);
    size_t from = is_first || !goes_on ? 0 : prefix;
    if (!status) status = tern__text_add(next, now->text + from, now->bytes - from, func, err);
    texts_swap(now, next);
    return status || !step->cleanup ? status : blanks_clean(now, next, func, err);
}

/* Applies a step to *now. */
static int step_apply(const tern__decoder_step *step, unsigned place, tern_text *now, tern_text *next,
                      const char *func, tern_error *err)
{
    bool is_special = step->asks & place;
    int status = TERN_OK;
    if (step->kind == TERN__DECODER_WORDPIECE)
        return wordpiece_decode(step, now, next, is_special, func, err);
    next->bytes = 0;
    if (step->kind == TERN__DECODER_BYTE_LEVEL)
        status = unmap_bytes(now, next, func, err);
    else
        status = replace_all(now, next, step->from.text, step->from.bytes, is_special ? "" : step->to.text,
                             func, err);
    texts_swap(now, next);
    return status;
}

/* Makes the text of a token at a place; `now` and `next` are memory that is used again. */
static int piece_make(const tern__decoder *d, tern__decoded *piece, const tern__token *token, unsigned place,
                      tern_text *now, tern_text *next, const char *func, tern_error *err)
{
    now->bytes = 0;
    int status = tern__text_add(now, token->text, token->bytes, func, err);
    for (size_t i = 0; i < d->step_count && !status && !piece->is_byte; i++) {
        const tern__decoder_step *step = &d->steps[i];
        if (step->kind != TERN__DECODER_BYTE_FALLBACK) {
            status = step_apply(step, place, now, next, func, err);
            continue;
        }
        int byte = byte_token(token);
        char c = (char)byte;
        piece->is_byte = byte >= 0;
        if (byte < 0) continue;
        now->bytes = 0;
        status = tern__text_add(now, &c, 1, func, err);
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

static void special_mark(tern__decoded *pieces, const tern__added_tokens *added)
{
    for (size_t i = 0; i < added->count; i++)
        pieces[added->tokens[i].id].is_special = added->tokens[i].is_special;
}

/* Makes the text of all tokens at a place. */
static int pieces_make(tern_tokenizer *t, unsigned place, const char *func, tern_error *err)
{
    const tern__decoder *d = &t->decoder;
    tern_text now = {0}, next = {0};
    int status = TERN_OK;
    tern__decoded *pieces = tern__alloc((size_t)t->all.size * sizeof(*pieces) + 1, func, err);
    if (!(t->decoder.pieces[place] = pieces)) return TERN_E_MEMORY;
    for (int64_t id = 0; id < t->all.size && !status; id++)
        if (t->all.tokens[id].text)
            status = piece_make(d, &pieces[id], &t->all.tokens[id], place, &now, &next, func, err);
    for (size_t i = 0; i < t->normalized.count && !status; i++) {
        const tern__token token = normalized_text(&t->normalized.tokens[i]);
        tern__decoded *piece = &pieces[t->normalized.tokens[i].id];
        tern__free(piece->text);
        *piece = (tern__decoded){0};
        status = piece_make(d, piece, &token, place, &now, &next, func, err);
    }
    special_mark(pieces, &t->raw);
    special_mark(pieces, &t->normalized);
    /* A vocabulary may have the same text at several ids. */
    for (int64_t id = 0; id < t->all.size && !status; id++) {
        const tern__token *token = &t->all.tokens[id];
        int32_t found = token->text ? tern__vocabulary_find(&t->all, token->text, token->bytes) : -1;
        if (found >= 0) pieces[id].is_special |= pieces[found].is_special;
    }
    tern_text_free(&now);
    tern_text_free(&next);
    return status;
}

int tern__decoder_make(tern_tokenizer *t, const char *func, tern_error *err)
{
    int status = TERN_OK;
    for (unsigned place = 0; place < TERN__TOKEN_PLACES && !status; place++)
        if (!(place & ~t->decoder.asks)) status = pieces_make(t, place, func, err);
    return status;
}

void tern__decoder_free(tern_tokenizer *t)
{
    tern__decoder *d = &t->decoder;
    for (int place = 0; place < TERN__TOKEN_PLACES; place++) {
        for (int64_t id = 0; d->pieces[place] && id < t->all.size; id++)
            tern__free(d->pieces[place][id].text);
        tern__free(d->pieces[place]);
    }
    for (size_t i = 0; i < d->step_count; i++) {
        tern_text_free(&d->steps[i].from);
        tern_text_free(&d->steps[i].to);
    }
    tern__free(d->steps);
    tern_text_free(&d->strip);
}

/* ---- decoding ---- */

tern_decode_opts tern_decode_defaults(void)
{
    return (tern_decode_opts){.size = sizeof(tern_decode_opts), .skip_special_tokens = true};
}

struct tern_decode_stream {
    const tern_tokenizer *tokenizer;
    tern_decode_opts opts;
    bool whole;     /* bytes wait for the end of their run, to be judged together */
    bool has_begun; /* a token came */
    int32_t held;   /* the token that may be the last one */
    unsigned held_place;
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

/* Adds a token, of which `place` says whether it is the first or the last one. */
static int piece_add(tern_decode_stream *s, int32_t id, unsigned place)
{
    const tern__decoder *d = &s->tokenizer->decoder;
    const tern__decoded *piece = &d->pieces[place & d->asks][id];
    if (d->byte_level) {
        if (tern__text_add(&s->waiting, piece->text, piece->bytes, s->func, s->err)) return TERN_E_MEMORY;
        return waiting_emit(s, false);
    }
    if (piece->is_byte) return stream_add_byte(s, piece);
    if (run_end(s)) return TERN_E_MEMORY;
    if (d->has_blanks && !(place & TERN__TOKEN_FIRST) && stream_emit(s, " ", 1)) return TERN_E_MEMORY;
    return stream_emit(s, piece->text, piece->bytes);
}

/* Where the text of the last token is another one, a token waits until it is known whether it is that. */
static int stream_add(tern_decode_stream *s, int32_t id)
{
    const tern_tokenizer *t = s->tokenizer;
    const tern__decoded *piece = id >= 0 && id < t->all.size ? &t->decoder.pieces[0][id] : NULL;
    if (!piece || !piece->text || (piece->is_special && s->opts.skip_special_tokens)) return TERN_OK;
    unsigned place = s->has_begun ? 0 : TERN__TOKEN_FIRST;
    s->has_begun = true;
    if (!(t->decoder.asks & TERN__TOKEN_LAST)) return piece_add(s, id, place);
    int status = place ? TERN_OK : piece_add(s, s->held, s->held_place);
    s->held = id;
    s->held_place = place;
    return status;
}

static int stream_finish(tern_decode_stream *s)
{
    const tern__decoder *d = &s->tokenizer->decoder;
    bool holds = s->has_begun && d->asks & TERN__TOKEN_LAST;
    int status = holds ? piece_add(s, s->held, s->held_place | TERN__TOKEN_LAST) : TERN_OK;
    if (!status) status = d->byte_level ? waiting_emit(s, true) : run_end(s);
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
