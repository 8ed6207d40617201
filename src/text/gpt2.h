/* gpt2.h - writes the tokenizer.json of GPT-2's byte-level BPE. */
#ifndef TERN_SRC_TEXT_GPT2_H
#define TERN_SRC_TEXT_GPT2_H

#include "text/bytes.h"

typedef struct tern__gpt2_parts {
    const char *vocab; /* a JSON object: {"!": 0, ..} */
    size_t vocab_bytes;
    const char *merges; /* lines "a b", as in merges.txt, whose first line may be "#version: .." */
    size_t merges_bytes;
    const char *const *specials;
    const int64_t *special_ids;
    int64_t special_count;
} tern__gpt2_parts;

int tern__gpt2_json(const tern__gpt2_parts *parts, tern_text *json, const char *func, tern_error *err);
/* The expression by which GPT-2 splits a text into words. */
extern const char tern__gpt2_words[];

/* Appends a JSON string with its quotes. */
int tern__json_add_string(tern_text *json, const char *text, size_t bytes, const char *func, tern_error *err);
int tern__text_add_format(tern_text *text, const char *func, tern_error *err, const char *format, ...)
    TERN__PRINTF(4, 5);

/* Makes a tokenizer of such a file, which it takes over. */
tern_tokenizer *tern__tokenizer_made(tern_text *json, const char *func, tern_error *err);

#endif
