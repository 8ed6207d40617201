/* utf8.h - whether text is what it says it is. */
#ifndef TERN_SRC_BASE_UTF8_H
#define TERN_SRC_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* As RFC 3629 has it: no surrogates, nothing longer than needed, nothing above U+10FFFF. */
bool tern__utf8_is_valid(const void *text, size_t bytes);

#endif
