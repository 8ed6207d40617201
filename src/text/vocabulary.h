/* vocabulary.h - the tokens of a model: id to token and back. */
#ifndef TERN_SRC_TEXT_VOCABULARY_H
#define TERN_SRC_TEXT_VOCABULARY_H

#include "base/base.h"

typedef struct tern__token {
    char *text; /* as the file writes it, with a 0 at its end; NULL: no token has this id */
    uint32_t bytes;
} tern__token;

typedef struct tern__vocabulary {
    tern__token *tokens; /* by id */
    int64_t size;        /* the highest id and 1 */
    size_t room;
    int32_t *slots; /* a hash table of ids, -1: free */
    size_t slot_count, used;
} tern__vocabulary;

#define TERN__VOCABULARY_MOST (1 << 22) /* tokens */

/* Adds a token. The first one of several with the same text keeps it. E_FORMAT: the id has another token, or
 * is not in [0, 2^22); E_MEMORY. */
int tern__vocabulary_add(tern__vocabulary *vocabulary, const char *text, size_t bytes, int64_t id,
                         const char *whose, const char *func, tern_error *err);
/* Of several ids with the same text this one is found. */
void tern__vocabulary_prefer(tern__vocabulary *vocabulary, int64_t id);
/* Returns the token's id, or -1. */
int32_t tern__vocabulary_find(const tern__vocabulary *vocabulary, const char *text, size_t bytes);
void tern__vocabulary_free(tern__vocabulary *vocabulary);

#endif
