/* value.h - what the values of some options of `tern run` mean: lists of local ranks, and texts with ${rank}.
 */
#ifndef TERN_CLI_RUN_VALUE_H
#define TERN_CLI_RUN_VALUE_H

#include "base/base.h"

/* Returns the streams of a local rank from "3" or "0:3,1:1" (see tern__log_opts); -1 if `text` is invalid. */
int tern__streams_of(const char *text, int local);
/* Is `local` in a list such as "0,2"? Returns 1, 0, or -1 if `text` is invalid. An empty list contains all
 * ranks. */
int tern__list_holds(const char *text, int local);

typedef struct tern__macro {
    const char *name, *value;
} tern__macro;

/* Writes `text` with each known ${name} replaced by its value, cut to `size` bytes. Returns the full length.
 */
size_t tern__macro_expand(const char *text, const tern__macro *macros, size_t count, char *out, size_t size);

#endif
