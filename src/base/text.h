/* text.h - checks untrusted text for UTF-8, escapes it for display, and formats messages. */
#ifndef TERN_SRC_TEXT_H
#define TERN_SRC_TEXT_H

#include "base/base.h"

#include <stdarg.h>
#include <sys/types.h>

/* Decodes the code point at the start of `text`, which has `bytes` > 0, to *code and returns its length. 0:
 * it is not UTF-8 (a stray or missing byte, an overlong form, a surrogate, above U+10FFFF). */
int tern__utf8_next(const char *text, size_t bytes, uint32_t *code);
/* Returns the offset of the first byte that is not UTF-8; -1 if all are. */
ssize_t tern__utf8_check(const char *text, size_t bytes);
/* Writes `code`, which is not a surrogate and at most U+10FFFF, and returns the number of bytes, at most 4.
 */
int tern__utf8_write(uint32_t code, char *out);

/* Writes the text so that a terminal only shows it: control characters, characters that change the writing
 * direction, and bytes that are not UTF-8 become \n, \x1b, \u202e; a backslash becomes \\. The result ends
 * with 0 and is cut between characters to fit `room`. Returns the bytes that the whole result needs, without
 * the 0. */
size_t tern__escape(const char *text, size_t bytes, char *out, size_t room);

/* The same in quotes, for errors: "name", or "long na..." if it does not fit. Returns out. */
#define TERN__QUOTE_TEXT 128
const char *tern__quote(const char *text, size_t bytes, char out[TERN__QUOTE_TEXT]);
/* The same with at most `most` bytes between the quotes. */
const char *tern__excerpt(const char *text, size_t bytes, size_t most, char out[TERN__QUOTE_TEXT]);

/* Formats an error or a log message, which may contain names and bytes of files, so that a terminal only
 * shows it. As tern__escape, but a backslash stays, since what the message quotes may have been escaped
 * already. A message that does not fit `size`, at most TERN__MESSAGE_MOST, ends with "..". */
#define TERN__MESSAGE_MOST 1024
void tern__message_vformat(char *out, size_t size, const char *fmt, va_list args);
void tern__message_format(char *out, size_t size, const char *fmt, ...) TERN__PRINTF(3, 4);

/* Appends to a string with `size` bytes of room. If it does not fit, the string ends with "..", after a whole
 * character. */
void tern__text_vappend(char *text, size_t size, const char *fmt, va_list args);
void tern__text_append(char *text, size_t size, const char *fmt, ...) TERN__PRINTF(3, 4);

#endif
