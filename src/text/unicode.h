/* unicode.h - what characters are, and normal forms. White space is known here; the rest is known by utf8proc
 * (plugins/unicode.c). */
#ifndef TERN_SRC_TEXT_UNICODE_H
#define TERN_SRC_TEXT_UNICODE_H

#include "text/bytes.h"

#include <tern/backend/unicode.h>

/* Is it Unicode's White_Space, as Rust's char::is_whitespace? */
bool tern__is_white_space(uint32_t code);
/* Return how many bytes at the start are white space; where the white space at the end begins. */
size_t tern__spaces_at_start(const char *text, size_t bytes);
size_t tern__spaces_at_end(const char *text, size_t bytes);

/* Returns how many bytes at the start are ASCII. */
size_t tern__ascii_at_start(const char *text, size_t bytes);

/* Appends a character, or its lower case as Rust's char::to_lowercase has it. */
int tern__text_add_char(tern_text *to, uint32_t code, const char *func, tern_error *err);
int tern__text_add_lower(tern_text *to, const tern_unicode_backend *unicode, uint32_t code, const char *func,
                         tern_error *err);

/* Memory for the characters of a text. Begin with zeros. */
typedef struct tern__codes {
    int32_t *codes;
    size_t room;
} tern__codes;

/* Makes a normal form, which stays in `codes`, and sets *made to it. */
int tern__form_make(const tern_unicode_backend *unicode, tern_unicode_form form, const char *text,
                    size_t bytes, tern__codes *codes, const char **made, size_t *made_bytes, const char *func,
                    tern_error *err);
/* Appends a text's normal form. */
int tern__text_add_form(tern_text *to, const tern_unicode_backend *unicode, tern_unicode_form form,
                        const char *text, size_t bytes, tern__codes *codes, const char *func,
                        tern_error *err);

#endif
