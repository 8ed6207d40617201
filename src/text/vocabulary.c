/* vocabulary.c - an array of tokens and a hash table of their ids. */
#include "text/vocabulary.h"

#include "base/text.h"

#include <string.h>
#include <xxhash.h>

static bool token_is(const tern__token *token, const char *text, size_t bytes)
{
    return token->bytes == bytes && !memcmp(token->text, text, bytes);
}

/* Returns the slot that has the token, or the free one where it belongs. */
static size_t slot_of(const tern__vocabulary *v, const char *text, size_t bytes)
{
    size_t slot = XXH3_64bits(text, bytes) & (v->slot_count - 1);
    while (v->slots[slot] >= 0 && !token_is(&v->tokens[v->slots[slot]], text, bytes))
        slot = (slot + 1) & (v->slot_count - 1);
    return slot;
}

/* Makes room for one more id: at most half of the slots are used. */
static int slots_grow(tern__vocabulary *v, const char *func, tern_error *err)
{
    if (2 * (v->used + 1) <= v->slot_count) return TERN_OK;
    size_t old_count = v->slot_count, count = TERN__MAX(2 * old_count, (size_t)1024);
    int32_t *old = v->slots, *slots = tern__alloc(count * sizeof(*slots), func, err);
    if (!slots) return TERN_E_MEMORY;
    memset(slots, 0xff, count * sizeof(*slots));
    v->slots = slots;
    v->slot_count = count;
    for (size_t i = 0; i < old_count; i++)
        if (old[i] >= 0) slots[slot_of(v, v->tokens[old[i]].text, v->tokens[old[i]].bytes)] = old[i];
    tern__free(old);
    return TERN_OK;
}

static int id_refuse(const char *text, size_t bytes, int64_t id, const char *problem, const char *whose,
                     const char *func, tern_error *err)
{
    char quote[TERN__QUOTE_TEXT];
    return tern__error_set(err, func, TERN_E_FORMAT, "%s: token %s has id %lld, %s", whose,
                           tern__quote(text, bytes, quote), (long long)id, problem);
}

int tern__vocabulary_add(tern__vocabulary *v, const char *text, size_t bytes, int64_t id, const char *whose,
                         const char *func, tern_error *err)
{
    if (id < 0 || id >= TERN__VOCABULARY_MOST)
        return id_refuse(text, bytes, id, "expected 0 to 4194303", whose, func, err);
    if (tern__array_reserve(&v->tokens, &v->room, (size_t)id + 1, sizeof(*v->tokens), func, err))
        return TERN_E_MEMORY;
    tern__token *token = &v->tokens[id];
    if (token->text && token_is(token, text, bytes)) return TERN_OK;
    if (token->text) return id_refuse(text, bytes, id, "which another token has", whose, func, err);
    if (slots_grow(v, func, err)) return TERN_E_MEMORY;
    *token = (tern__token){tern__alloc(bytes + 1, func, err), (uint32_t)bytes};
    if (!token->text) return TERN_E_MEMORY;
    memcpy(token->text, text, bytes);
    v->size = TERN__MAX(v->size, id + 1);
    size_t slot = slot_of(v, text, bytes);
    if (v->slots[slot] < 0) {
        v->slots[slot] = (int32_t)id;
        v->used++;
    }
    return TERN_OK;
}

void tern__vocabulary_prefer(tern__vocabulary *v, int64_t id)
{
    v->slots[slot_of(v, v->tokens[id].text, v->tokens[id].bytes)] = (int32_t)id;
}

int32_t tern__vocabulary_find(const tern__vocabulary *v, const char *text, size_t bytes)
{
    return v->slot_count ? v->slots[slot_of(v, text, bytes)] : -1;
}

void tern__vocabulary_free(tern__vocabulary *v)
{
    for (int64_t i = 0; i < v->size; i++) tern__free(v->tokens[i].text);
    tern__free(v->tokens);
    tern__free(v->slots);
    *v = (tern__vocabulary){0};
}
