/* json.h - JSON (RFC 8259) read where it stands, without a tree: whatever a hostile text nests or repeats, no
 * memory is taken and time is linear. Whoever reads says what is expected next; anything else is E_FORMAT
 * with the byte at which it stands. Comments, trailing commas, NaN and Infinity are no JSON. */
#ifndef TERN_SRC_CHECKPOINT_JSON_H
#define TERN_SRC_CHECKPOINT_JSON_H

#include "base/base.h"

#define TERN__JSON_DEPTH 128 /* of what is skipped */

typedef struct tern__json {
    const char *text; /* UTF-8 */
    size_t bytes, at;
    const char *what; /* for errors: "last.safetensors: header" */
    const char *func;
} tern__json;

/* A string as it stands between its quotes, escapes and all. */
typedef struct tern__json_slice {
    const char *text;
    size_t bytes;
} tern__json_slice;

/* After white space: is `c` next? If so it is read. */
bool tern__json_take(tern__json *json, char c);
/* The next is `c`, a string, an integer from 0 to INT64_MAX, or nothing. */
int tern__json_expect(tern__json *json, char c, tern_error *err);
int tern__json_string(tern__json *json, tern__json_slice *out, tern_error *err);
int tern__json_count(tern__json *json, int64_t *out, tern_error *err);
int tern__json_end(tern__json *json, tern_error *err);
/* Any value. */
int tern__json_skip(tern__json *json, tern_error *err);

/* An object or an array: `member` is called at each value and reads it; in an array the key is empty. */
typedef int tern__json_member(tern__json *json, tern__json_slice key, void *ctx, tern_error *err);
int tern__json_object(tern__json *json, tern__json_member *member, void *ctx, tern_error *err);
int tern__json_array(tern__json *json, tern__json_member *member, void *ctx, tern_error *err);

/* What a string that was read means, without a 0 at its end; `out` has room for slice.bytes and may be where
 * the slice is. The number of bytes. */
size_t tern__json_unescape(tern__json_slice slice, char *out);
bool tern__json_is(tern__json_slice slice, const char *text);

#endif
