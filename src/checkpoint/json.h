/* json.h - reads JSON (RFC 8259) in place, without a tree: it allocates nothing and takes linear time,
 * however a hostile text nests or repeats. The caller says what it expects next; anything else is E_FORMAT
 * with the byte offset. Comments, trailing commas, NaN and Infinity are refused. */
#ifndef TERN_SRC_CHECKPOINT_JSON_H
#define TERN_SRC_CHECKPOINT_JSON_H

#include "base/base.h"

#define TERN__JSON_DEPTH 128 /* of skipped values */

typedef struct tern__json {
    const char *text; /* UTF-8 */
    size_t bytes, at;
    const char *what; /* for errors: "last.safetensors: header" */
    const char *func;
} tern__json;

/* The raw text between a string's quotes, with escapes. */
typedef struct tern__json_slice {
    const char *text;
    size_t bytes;
} tern__json_slice;

/* Skips white space, and `c` if it comes next. Returns whether it did. */
bool tern__json_take(tern__json *json, char c);
/* The same for the word `null`. */
bool tern__json_take_null(tern__json *json);
/* Read `c`, a string, an integer from 0 to INT64_MAX, or the end of the text; fail if something else comes
 * next. */
int tern__json_expect(tern__json *json, char c, tern_error *err);
int tern__json_string(tern__json *json, tern__json_slice *out, tern_error *err);
int tern__json_count(tern__json *json, int64_t *out, tern_error *err);
int tern__json_end(tern__json *json, tern_error *err);
/* Skips any value. */
int tern__json_skip(tern__json *json, tern_error *err);

/* Read an object or an array: they call `member` at each value, and it reads the value. In an array the key
 * is empty. */
typedef int tern__json_member(tern__json *json, tern__json_slice key, void *ctx, tern_error *err);
int tern__json_object(tern__json *json, tern__json_member *member, void *ctx, tern_error *err);
int tern__json_array(tern__json *json, tern__json_member *member, void *ctx, tern_error *err);

/* Decodes a string's escapes and returns the number of bytes; writes no final 0. `out` has room for
 * slice.bytes and may be the slice itself. */
size_t tern__json_unescape(tern__json_slice slice, char *out);
bool tern__json_is(tern__json_slice slice, const char *text);

#endif
