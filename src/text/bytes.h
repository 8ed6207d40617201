/* bytes.h - the characters by which GPT-2 writes bytes, and growing text. */
#ifndef TERN_SRC_TEXT_BYTES_H
#define TERN_SRC_TEXT_BYTES_H

#include "base/base.h"

#include <tern/tokenizer.h>

/* GPT-2 writes each byte as a character that can be seen: those of Latin-1 that can be seen as themselves,
 * the others as U+0100, U+0101 .. in their order. Returns the character of a byte, which is below 0x144. */
uint32_t tern__byte_char(uint8_t byte);
/* Returns the byte that a character stands for, or -1. */
int tern__char_byte(uint32_t code);

/* Append to text that grows; a 0 follows what is there. E_MEMORY. */
int tern__text_reserve(tern_text *text, size_t more, const char *func, tern_error *err);
int tern__text_add(tern_text *text, const char *more, size_t bytes, const char *func, tern_error *err);

/* Appends text[0..bytes) with U+FFFD for each part that is not UTF-8, as Python's errors="replace" and the
 * Unicode standard's "maximal subparts" have it. */
int tern__text_add_repaired(tern_text *text, const char *more, size_t bytes, const char *func,
                            tern_error *err);

/* Returns where the character after the one at `at` begins, in UTF-8; more than `bytes` at the end. */
static inline size_t tern__next_char(const char *text, size_t bytes, size_t at)
{
    at++;
    while (at < bytes && ((uint8_t)text[at] & 0xc0) == 0x80) at++;
    return at;
}

/* Returns how many of the bytes at the start are the begin of a character, or 0 if they cannot be. Sets
 * *whole if they are a whole character. */
size_t tern__utf8_part(const char *text, size_t bytes, bool *whole);

#endif
