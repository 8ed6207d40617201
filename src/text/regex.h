/* regex.h - regular expressions as the files of tokenizers write them (Oniguruma's, in Ruby's syntax), found
 * by PCRE2 (plugins/regex.c). */
#ifndef TERN_SRC_TEXT_REGEX_H
#define TERN_SRC_TEXT_REGEX_H

#include "base/base.h"

/* What \w is in Rust's expressions, in which `tokenizers` has written its own ones. */
#define TERN__RUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"

typedef struct tern__regex tern__regex;
/* What one thread needs to look for matches. */
typedef struct tern__regex_matcher tern__regex_matcher;

/* `whose` names the file and part for errors. E_UNSUPPORTED: no PCRE2, or what has no translation; E_FORMAT:
 * PCRE2 refuses the expression. */
tern__regex *tern__regex_new(const char *pattern, size_t bytes, const char *whose, const char *func,
                             tern_error *err);
/* The same for an expression that matches this text and nothing else. */
tern__regex *tern__regex_new_text(const char *text, size_t bytes, const char *whose, const char *func,
                                  tern_error *err);
void tern__regex_free(tern__regex *regex);

/* NULL: E_MEMORY, E_UNSUPPORTED. */
tern__regex_matcher *tern__regex_matcher_new(const char *func, tern_error *err);
void tern__regex_matcher_free(tern__regex_matcher *matcher);

/* Looks for the first match in text[from..bytes). Returns 1 and sets its begin and end; 0: none; or a
 * negative status. */
int tern__regex_find(const tern__regex *regex, tern__regex_matcher *matcher, const char *text, size_t bytes,
                     size_t from, size_t at[2], const char *func, tern_error *err);

#endif
