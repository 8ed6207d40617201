/* text_files.h - tokenizers of a tokenizer.json that a test has as text, and texts of all planes. */
#ifndef TERN_TESTS_TEXT_FILES_H
#define TERN_TESTS_TEXT_FILES_H

#include "check.h"

#include "base/text.h"
#include "text/tokenizer.h"

#include <tern/rng.h>

static inline uint32_t below(tern_rng *rng, uint32_t n)
{
    return tern_rng_u32(rng) % n;
}

static inline tern_rng *rng_new(uint64_t seed)
{
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(seed, &err);
    assert_ok(err);
    return rng;
}

/* Makes a tokenizer of a file's text, or fails with E_MEMORY alone. */
static inline tern_tokenizer *tokenizer_try(const char *json, tern_error *err)
{
    char *copy = tern__strdup(json, "test", err);
    return copy ? tern__tokenizer_parse(copy, strlen(json), "test.json", "test", err) : NULL;
}

static inline tern_tokenizer *tokenizer_of(const char *json)
{
    tern_error err = {0};
    tern_tokenizer *t = tokenizer_try(json, &err);
    if (!t) fail_msg("%s: %s", json, err.text);
    return t;
}

static inline void encode(const tern_tokenizer *t, const char *text, size_t bytes, tern_token_ids *ids)
{
    tern_error err = {0};
    tern_tokenizer_encode(t, text, bytes, NULL, ids, &err);
    assert_ok(err);
}

/* Writes words, blanks, marks, and characters of all planes; at most `room` bytes. */
static inline size_t planes_write(tern_rng *rng, char *text, size_t room)
{
    static const char *const words[] = {"the ",
                                        "Tern",
                                        " sea",
                                        "n't",
                                        "\n",
                                        "  ",
                                        "1234",
                                        "\xe6\xb5\xb7",
                                        "e\xcc\x81",
                                        "\xc3\x84",
                                        "\xcc\xa3\xcc\x81",
                                        "\xe2\x84\xab",
                                        "\x07"};
    size_t bytes = 0;
    while (bytes + 16 < room) {
        uint32_t code = below(rng, below(rng, 2) ? 0x110000 : 0x3000);
        if (below(rng, 4) || code >> 11 == 0x1b)
            bytes += (size_t)sprintf(text + bytes, "%s", words[below(rng, TERN__COUNT(words))]);
        else
            bytes += (size_t)tern__utf8_write(code, text + bytes);
    }
    return bytes;
}

#endif
