/* encode.c - a text passes through the stages of a tokenizer; many texts on several threads. */
#include "text/tokenizer.h"

#include "base/cores.h"
#include "base/opts.h"
#include "base/text.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <string.h>

#define FUNC       "tern_tokenizer_encode"
#define FUNC_BATCH "tern_tokenizer_encode_batch"

enum { THREADS_MOST = 256 };

/* ---- ids ---- */

int tern__ids_add(tern_token_ids *ids, int32_t id, const char *func, tern_error *err)
{
    size_t room = (size_t)ids->room;
    int status = tern__array_reserve(&ids->ids, &room, (size_t)ids->count + 1, sizeof(*ids->ids), func, err);
    ids->room = (int64_t)room;
    if (!status) ids->ids[ids->count++] = id;
    return status;
}

void tern_token_ids_free(tern_token_ids *ids)
{
    if (!ids) return;
    tern__free(ids->ids);
    *ids = (tern_token_ids){0};
}

/* ---- what a call uses ---- */

static bool needs_matcher(const tern_tokenizer *t)
{
    bool needs = t->word_begin != NULL;
    for (size_t i = 0; i < t->split_count; i++) needs |= t->splits[i].regex != NULL;
    for (size_t i = 0; i < t->normalizer_count; i++) needs |= t->normalizers[i].regex != NULL;
    return needs;
}

tern__encoding *tern__encoding_open(const tern_tokenizer *t, const char *func, tern_error *err)
{
    tern__scratch_pool *pool = (tern__scratch_pool *)&t->pool; /* the one thing in a tokenizer that changes */
    tern__encoding *e = tern__scratch_pool_take(pool, sizeof(*e), func, err);
    if (!e) return NULL;
    e->tokenizer = t;
    e->func = func;
    e->err = err;
    int status = e->words ? TERN_OK : tern__words_new(e);
    if (!status && !e->prepended && t->split_count) {
        e->prepended = tern__alloc(t->split_count * sizeof(*e->prepended), func, err);
        if (!e->prepended) status = TERN_E_MEMORY;
    }
    if (!status && !e->matcher && needs_matcher(t)) {
        e->matcher = tern__regex_matcher_new(func, err);
        if (!e->matcher) status = TERN_E_MEMORY;
    }
    if (!status) return e;
    tern__encoding_free(e);
    return NULL;
}

void tern__encoding_close(tern__encoding *e)
{
    tern__scratch_pool_give((tern__scratch_pool *)&e->tokenizer->pool, e);
}

void tern__encoding_free(tern__encoding *e)
{
    tern_text *const texts[] = {&e->repaired, &e->normalized, &e->spare, &e->written, &e->stretch};
    for (size_t i = 0; i < TERN__COUNT(texts); i++) tern_text_free(texts[i]);
    for (size_t i = 0; e->prepended && i < e->tokenizer->split_count; i++) tern_text_free(&e->prepended[i]);
    tern__free(e->prepended);
    tern__regex_matcher_free(e->matcher);
    tern__free(e->words);
    tern__free(e->symbols);
    tern__free(e->heap);
    tern__free(e->path);
    tern__free(e->codes.codes);
    tern__free(e);
}

/* ---- one text ---- */

tern_encode_opts tern_encode_defaults(void)
{
    return (tern_encode_opts){.size = sizeof(tern_encode_opts), .add_special_tokens = true};
}

static int encode_words(tern__encoding *e, const char *text, size_t bytes, bool is_first)
{
    return tern__split_text(e, 0, text, bytes, is_first);
}

static int encode_normalized(tern__encoding *e, const char *text, size_t bytes, bool is_first)
{
    int status = tern__normalize(e, &text, &bytes);
    if (status || !bytes) return status;
    return tern__added_split(e, &e->tokenizer->normalized, e->special_is_text, text, bytes, encode_words,
                             is_first);
}

static int encode_around(tern__encoding *e, const tern_token_ids *around, bool wanted)
{
    for (int64_t i = 0; wanted && i < around->count; i++)
        if (tern__ids_add(e->ids, around->ids[i], e->func, e->err)) return TERN_E_MEMORY;
    return TERN_OK;
}

/* A text, or a part of it. */
typedef struct piece {
    const char *text;
    size_t bytes;
    bool is_first, is_last; /* of its text */
    tern_token_ids *ids;
} piece;

static int encode_piece(tern__encoding *e, const piece *p, const tern_encode_opts *opts)
{
    const tern_tokenizer *t = e->tokenizer;
    const char *text = p->text;
    size_t bytes = p->bytes;
    if (bytes && tern__utf8_check(text, bytes) >= 0) {
        e->repaired.bytes = 0;
        if (tern__text_add_repaired(&e->repaired, text, bytes, e->func, e->err)) return TERN_E_MEMORY;
        text = e->repaired.text;
        bytes = e->repaired.bytes;
    }
    e->ids = p->ids;
    e->ids->count = 0;
    e->special_is_text = opts->encode_special_tokens;
    int status = encode_around(e, &t->before, opts->add_special_tokens && p->is_first);
    if (!status && bytes)
        status =
            tern__added_split(e, &t->raw, e->special_is_text, text, bytes, encode_normalized, p->is_first);
    if (!status) status = encode_around(e, &t->after, opts->add_special_tokens && p->is_last);
    return status;
}

int tern_tokenizer_encode(const tern_tokenizer *tokenizer, const char *text, size_t bytes,
                          const tern_encode_opts *opts, tern_token_ids *ids, tern_error *err)
{
    tern_encode_opts own = tern_encode_defaults();
    tern_error why = {0};
    if (tern__is_set(err)) return err->code;
    if (tern__need(tokenizer, "tokenizer", FUNC, err) || (bytes && tern__need(text, "text", FUNC, err)) ||
        tern__need(ids, "ids", FUNC, err))
        return TERN_E_INVALID;
    int status = tern__opts_read(&own, sizeof(own), opts, FUNC, &why);
    tern__encoding *e = status ? NULL : tern__encoding_open(tokenizer, FUNC, &why);
    if (e) {
        encode_piece(e, &(piece){text, bytes, true, true, ids}, &own);
        tern__encoding_close(e);
    }
    if (!why.code) return TERN_OK;
    return tern__error_set(err, FUNC, why.code, "%s", why.text);
}

/* ---- many texts ---- */

/* A long text is cut into parts where its words surely end, if the tokenizer has such places, so that one
 * text has work for all threads. Each part gets ids of its own, which are put together at the end. */
typedef struct batch {
    const tern_tokenizer *tokenizer;
    piece *pieces;
    size_t count, room;
    tern_encode_opts opts;
    _Atomic(size_t) next;
    atomic_bool failed;
    pthread_mutex_t lock;
    tern_error err; /* the first one, under the lock */
} batch;

static int batch_add(batch *b, piece p, tern_error *err)
{
    if (tern__array_reserve(&b->pieces, &b->room, b->count + 1, sizeof(*b->pieces), FUNC_BATCH, err))
        return TERN_E_MEMORY;
    b->pieces[b->count++] = p;
    return TERN_OK;
}

/* Adds a text; its first part has its ids, and the others make theirs. */
static int batch_add_text(batch *b, const char *text, size_t bytes, tern_token_ids *ids, tern_error *err)
{
    size_t begin = 0, end = bytes;
    size_t most = b->opts.threads == 1 ? SIZE_MAX : b->tokenizer->part_bytes;
    do {
        if (bytes - begin > most) end = tern__split_place(text, bytes, begin + most);
        piece p = {text ? text + begin : NULL, end - begin, !begin, end == bytes, ids};
        if (begin) p.ids = tern__alloc(sizeof(*p.ids), FUNC_BATCH, err);
        if (!p.ids || batch_add(b, p, err)) {
            if (begin) tern__free(p.ids);
            return TERN_E_MEMORY;
        }
        begin = end;
        end = bytes;
    } while (begin < bytes);
    return TERN_OK;
}

/* Appends the ids of the parts of each text to those of its first one. */
static int batch_join(batch *b, tern_error *err)
{
    tern_token_ids *whole = NULL;
    for (size_t i = 0, last = 0; i < b->count; i++) {
        const piece *p = &b->pieces[i];
        if (p->is_first) {
            whole = p->ids;
            int64_t count = whole->count;
            for (last = i; !b->pieces[last].is_last; last++) count += b->pieces[last + 1].ids->count;
            size_t room = (size_t)whole->room;
            if (tern__array_reserve(&whole->ids, &room, (size_t)count, sizeof(*whole->ids), FUNC_BATCH, err))
                return TERN_E_MEMORY;
            whole->room = (int64_t)room;
        } else if (p->ids->count) {
            memcpy(whole->ids + whole->count, p->ids->ids, (size_t)p->ids->count * sizeof(*whole->ids));
            whole->count += p->ids->count;
        }
    }
    return TERN_OK;
}

static void batch_free(batch *b)
{
    for (size_t i = 0; i < b->count; i++) {
        if (b->pieces[i].is_first) continue;
        tern_token_ids_free(b->pieces[i].ids);
        tern__free(b->pieces[i].ids);
    }
    tern__free(b->pieces);
}

/* Encodes pieces until none is left. Each thread takes the next one, since their lengths differ. */
static void *batch_work(void *arg)
{
    batch *b = arg;
    tern_error err = {0};
    tern__encoding *e = tern__encoding_open(b->tokenizer, FUNC_BATCH, &err);
    while (e && !err.code && !atomic_load(&b->failed)) {
        size_t i = atomic_fetch_add(&b->next, 1);
        if (i >= b->count) break;
        encode_piece(e, &b->pieces[i], &b->opts);
    }
    if (e) tern__encoding_close(e);
    if (!err.code) return NULL;
    atomic_store(&b->failed, true);
    pthread_mutex_lock(&b->lock);
    tern__error_set(&b->err, FUNC_BATCH, err.code, "%s", err.text);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

static int batch_threads(const tern_encode_opts *opts, size_t count)
{
    cpu_set_t cores;
    int threads = opts->threads ? opts->threads : tern__cores_get(&cores) == 0 ? CPU_COUNT(&cores) : 1;
    return (int)TERN__MIN((size_t)TERN__MIN(threads, THREADS_MOST), TERN__MAX(count, 1));
}

/* The calling thread is one of the threads. If another one cannot be started, the rest do its work. */
static void batch_encode(batch *b)
{
    pthread_t threads[THREADS_MOST];
    int wanted = batch_threads(&b->opts, b->count), started = 0;
    while (started + 1 < wanted && !tern__thread_new(&threads[started], NULL, batch_work, b)) started++;
    batch_work(b);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

int tern_tokenizer_encode_batch(const tern_tokenizer *tokenizer, const char *const *texts,
                                const size_t *bytes, int64_t count, const tern_encode_opts *opts,
                                tern_token_ids *ids, tern_error *err)
{
    batch b = {.tokenizer = tokenizer, .opts = tern_encode_defaults()};
    if (tern__is_set(err)) return err->code;
    if (tern__need(tokenizer, "tokenizer", FUNC_BATCH, err)) return TERN_E_INVALID;
    if (tern__opts_read(&b.opts, sizeof(b.opts), opts, FUNC_BATCH, err)) return TERN_E_INVALID;
    if (count < 0 || b.opts.threads < 0)
        return tern__error_set(err, FUNC_BATCH, TERN_E_RANGE, "%lld texts on %d threads", (long long)count,
                               b.opts.threads);
    if (count && (tern__need(texts, "texts", FUNC_BATCH, err) ||
                  tern__need(bytes, "bytes", FUNC_BATCH, err) || tern__need(ids, "ids", FUNC_BATCH, err)))
        return TERN_E_INVALID;
    for (int64_t i = 0; i < count; i++)
        if (bytes[i] && tern__need(texts[i], "text", FUNC_BATCH, err)) return TERN_E_INVALID;
    int status = TERN_OK;
    for (int64_t i = 0; i < count && !status; i++)
        status = batch_add_text(&b, texts[i], bytes[i], &ids[i], &b.err);
    if (!status) {
        pthread_mutex_init(&b.lock, NULL);
        batch_encode(&b);
        pthread_mutex_destroy(&b.lock);
        if (!b.err.code) batch_join(&b, &b.err);
    }
    batch_free(&b);
    if (!b.err.code) return TERN_OK;
    return tern__error_set(err, FUNC_BATCH, b.err.code, "%s", b.err.text);
}
