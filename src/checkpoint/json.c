/* json.c - reads JSON in place. */
#include "checkpoint/json.h"

#include "base/text.h"

#include <string.h>

/* ---- single characters ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_space(tern__json *json)
{
    while (json->at < json->bytes && is_space(json->text[json->at])) json->at++;
}

/* Fails with what was expected and what is at `at`. */
static int json_fail(const tern__json *json, const char *expected, tern_error *err)
{
    char quote[TERN__QUOTE_TEXT];
    size_t left = json->bytes - json->at;
    return tern__error_set(err, json->func, TERN_E_FORMAT, "%s: at byte %zu expected %s, got %s", json->what,
                           json->at, expected,
                           left ? tern__excerpt(json->text + json->at, left, 16, quote) : "the end");
}

bool tern__json_take(tern__json *json, char c)
{
    skip_space(json);
    if (json->at == json->bytes || json->text[json->at] != c) return false;
    json->at++;
    return true;
}

static bool take_word(tern__json *json, const char *word)
{
    size_t length = strlen(word);
    skip_space(json);
    if (json->bytes - json->at < length || memcmp(json->text + json->at, word, length)) return false;
    json->at += length;
    return true;
}

bool tern__json_take_null(tern__json *json)
{
    return take_word(json, "null");
}

int tern__json_expect(tern__json *json, char c, tern_error *err)
{
    const char expected[] = {'\'', c, '\'', '\0'};
    return tern__json_take(json, c) ? TERN_OK : json_fail(json, expected, err);
}

int tern__json_end(tern__json *json, tern_error *err)
{
    skip_space(json);
    return json->at == json->bytes ? TERN_OK : json_fail(json, "the end", err);
}

/* ---- strings ---- */

/* Returns the value of four hexadecimal digits at `at`; -1 if there are no four digits. */
static int hex4(const char *text, size_t bytes, size_t at)
{
    int value = 0;
    if (bytes - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Reads the escape whose backslash is at `at`. Returns its length and sets *code; 0 if it is not valid. The
 * two \u of a surrogate pair are one escape; half a pair is not valid. */
static size_t read_escape(const char *text, size_t bytes, size_t at, uint32_t *code)
{
    static const char letter[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
    char c = at + 1 < bytes ? text[at + 1] : '\0';
    const char *found = c ? strchr(letter, c) : NULL;
    if (found) *code = (uint32_t)meaning[found - letter];
    if (found || c != 'u') return found ? 2 : 0;
    int high = hex4(text, bytes, at + 2), low;
    *code = (uint32_t)high;
    if (high < 0 || high >> 10 == 0x37) return 0;
    if (high >> 10 != 0x36) return 6;
    bool has_low = bytes - at >= 12 && text[at + 6] == '\\' && text[at + 7] == 'u';
    low = has_low ? hex4(text, bytes, at + 8) : -1;
    *code = 0x10000u + ((uint32_t)(high & 0x3ff) << 10 | (uint32_t)(low & 0x3ff));
    return low >= 0 && low >> 10 == 0x37 ? 12 : 0;
}

int tern__json_string(tern__json *json, tern__json_slice *out, tern_error *err)
{
    uint32_t code;
    if (!tern__json_take(json, '"')) return json_fail(json, "a string", err);
    size_t start = json->at;
    while (json->at < json->bytes && json->text[json->at] != '"') {
        uint8_t c = (uint8_t)json->text[json->at];
        size_t used = c == '\\' ? read_escape(json->text, json->bytes, json->at, &code) : c >= 0x20;
        if (!used)
            return json_fail(json, c == '\\' ? "an escape of a character" : "no control character", err);
        json->at += used;
    }
    if (json->at == json->bytes) return json_fail(json, "the end of a string", err);
    *out = (tern__json_slice){json->text + start, json->at - start};
    json->at++;
    return TERN_OK;
}

size_t tern__json_unescape(tern__json_slice slice, char *out)
{
    uint32_t code;
    size_t wrote = 0;
    for (size_t at = 0; at < slice.bytes;) {
        if (slice.text[at] != '\\') {
            out[wrote++] = slice.text[at++];
            continue;
        }
        at += read_escape(slice.text, slice.bytes, at, &code);
        wrote += (size_t)tern__utf8_write(code, out + wrote);
    }
    return wrote;
}

bool tern__json_is(tern__json_slice slice, const char *text)
{
    char plain[64];
    if (slice.bytes > sizeof(plain)) return false;
    size_t bytes = tern__json_unescape(slice, plain);
    return bytes == strlen(text) && memcmp(plain, text, bytes) == 0;
}

/* ---- numbers ---- */

static bool is_digit(const tern__json *json)
{
    return json->at < json->bytes && json->text[json->at] >= '0' && json->text[json->at] <= '9';
}

int tern__json_count(tern__json *json, int64_t *out, tern_error *err)
{
    static const char expected[] = "an integer from 0 to 9223372036854775807";
    skip_space(json);
    size_t start = json->at;
    bool fine = is_digit(json);
    for (*out = 0; fine && is_digit(json); json->at++)
        fine = !__builtin_mul_overflow(*out, 10, out) &&
               !__builtin_add_overflow(*out, json->text[json->at] - '0', out);
    bool has_zero = json->at - start > 1 && json->text[start] == '0';
    bool has_more = json->at < json->bytes && json->text[json->at] && strchr(".eE", json->text[json->at]);
    if (fine && !has_zero && !has_more) return TERN_OK;
    json->at = start;
    return json_fail(json, expected, err);
}

/* Returns false if there is no digit. */
static bool skip_digits(tern__json *json)
{
    size_t start = json->at;
    while (is_digit(json)) json->at++;
    return json->at > start;
}

static bool skip_char(tern__json *json, const char *any)
{
    bool is = json->at < json->bytes && json->text[json->at] && strchr(any, json->text[json->at]);
    json->at += is;
    return is;
}

static int skip_number(tern__json *json, tern_error *err)
{
    size_t start = json->at;
    skip_char(json, "-");
    bool fine = skip_char(json, "0") || skip_digits(json);
    if (fine && skip_char(json, ".")) fine = skip_digits(json);
    if (fine && skip_char(json, "eE")) {
        skip_char(json, "+-");
        fine = skip_digits(json);
    }
    if (fine) return TERN_OK;
    json->at = start;
    return json_fail(json, "a value", err);
}

/* ---- objects, arrays, anything ---- */

static int read_members(tern__json *json, char open, tern__json_member *member, void *ctx, tern_error *err)
{
    const char close = open == '{' ? '}' : ']';
    tern__json_slice key = {"", 0};
    int status = tern__json_expect(json, open, err);
    if (status || tern__json_take(json, close)) return status;
    do {
        if (open == '{') {
            status = tern__json_string(json, &key, err);
            if (!status) status = tern__json_expect(json, ':', err);
        }
        if (!status) status = member(json, key, ctx, err);
        if (status) return status;
    } while (tern__json_take(json, ','));
    if (tern__json_take(json, close)) return TERN_OK;
    return json_fail(json, open == '{' ? "',' or '}'" : "',' or ']'", err);
}

int tern__json_object(tern__json *json, tern__json_member *member, void *ctx, tern_error *err)
{
    return read_members(json, '{', member, ctx, err);
}

int tern__json_array(tern__json *json, tern__json_member *member, void *ctx, tern_error *err)
{
    return read_members(json, '[', member, ctx, err);
}

static int skip_value(tern__json *json, int *depth, tern_error *err);

static int skip_member(tern__json *json, tern__json_slice key, void *depth, tern_error *err)
{
    (void)key;
    return skip_value(json, depth, err);
}

static int skip_nested(tern__json *json, char open, int *depth, tern_error *err)
{
    if (*depth == TERN__JSON_DEPTH)
        return tern__error_set(err, json->func, TERN_E_FORMAT, "%s nests deeper than %d at byte %zu",
                               json->what, TERN__JSON_DEPTH, json->at);
    ++*depth;
    int status = read_members(json, open, skip_member, depth, err);
    --*depth;
    return status;
}

static int skip_value(tern__json *json, int *depth, tern_error *err)
{
    static const char *const words[] = {"true", "false", "null"};
    tern__json_slice string;
    skip_space(json);
    char c = json->at < json->bytes ? json->text[json->at] : '\0';
    if (c == '{' || c == '[') return skip_nested(json, c, depth, err);
    if (c == '"') return tern__json_string(json, &string, err);
    for (size_t i = 0; i < TERN__COUNT(words); i++)
        if (take_word(json, words[i])) return TERN_OK;
    return skip_number(json, err);
}

int tern__json_skip(tern__json *json, tern_error *err)
{
    int depth = 0;
    return skip_value(json, &depth, err);
}
