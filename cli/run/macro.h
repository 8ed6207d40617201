/* macro.h - ${local_rank} and the like in what a user gave. */
#ifndef TERN_CLI_RUN_MACRO_H
#define TERN_CLI_RUN_MACRO_H

#include "base/base.h"

typedef struct tern__macro {
    const char *name, *value;
} tern__macro;

/* `text` with each ${name} replaced by its value; what is no macro stays. Cut off where `size` ends; returns
 * the length of the whole. */
size_t tern__macro_expand(const char *text, const tern__macro *macros, size_t count, char *out, size_t size);

#endif
