/* text.h - text that comes from outside: is it UTF-8, and how is it shown? */
#ifndef TERN_SRC_TEXT_H
#define TERN_SRC_TEXT_H

#include "base/base.h"

#include <sys/types.h>

/* The bytes of the code point at the start of `text`, which has `bytes` > 0 of them, and *code; 0 if it is
 * not UTF-8 (a stray or missing byte, a longer form than needed, a surrogate, above U+10FFFF). */
int tern__utf8_next(const char *text, size_t bytes, uint32_t *code);
/* The offset of the first byte that is not UTF-8; -1 if all is. */
ssize_t tern__utf8_check(const char *text, size_t bytes);
/* Writes `code`, no surrogate and at most U+10FFFF; the number of bytes, at most 4. */
int tern__utf8_write(uint32_t code, char *out);

/* Writes the text so that a terminal shows it and does nothing else: control characters, those that change
 * the direction of writing, and bytes that are not UTF-8 as \n, \x1b, \u202e; a backslash as \\. Ends with 0,
 * cut between characters where `room` ends. The bytes that all of it takes, without the 0. */
size_t tern__escape(const char *text, size_t bytes, char *out, size_t room);

/* The same in quotes, for errors: "name", or "long na..." where it does not fit; returns out. */
#define TERN__QUOTE_TEXT 128
const char *tern__quote(const char *text, size_t bytes, char out[TERN__QUOTE_TEXT]);

/* Puts more behind the text of a string with `size` bytes of room; what does not fit is left out. */
void tern__text_append(char *text, size_t size, const char *fmt, ...) TERN__PRINTF(3, 4);

#endif
