/* macro.h - expands ${local_rank} and the like in arguments and prefixes. */
#ifndef TERN_CLI_RUN_MACRO_H
#define TERN_CLI_RUN_MACRO_H

#include "base/base.h"

typedef struct tern__macro {
    const char *name, *value;
} tern__macro;

/* Writes `text` with each known ${name} replaced by its value, cut to `size` bytes. Returns the full length.
 */
size_t tern__macro_expand(const char *text, const tern__macro *macros, size_t count, char *out, size_t size);

#endif
