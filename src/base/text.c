/* text.c - UTF-8, and escaped text. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- UTF-8 ---- */

int tern__utf8_next(const char *text, size_t bytes, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* the smallest code point of each length */
    const uint8_t *t = (const uint8_t *)text;
    size_t length = t[0] < 0x80 ? 1 : t[0] >> 5 == 0x6 ? 2 : t[0] >> 4 == 0xe ? 3 : t[0] >> 3 == 0x1e ? 4 : 0;
    if (!length || length > bytes) return 0;
    *code = length == 1 ? t[0] : t[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (t[i] >> 6 != 0x2) return 0;
        *code = *code << 6 | (t[i] & 0x3f);
    }
    bool is_surrogate = *code >= 0xd800 && *code < 0xe000;
    return *code < least[length] || *code > 0x10ffff || is_surrogate ? 0 : (int)length;
}

ssize_t tern__utf8_check(const char *text, size_t bytes)
{
    uint32_t code;
    size_t at = 0;
    while (at < bytes) {
        int length = tern__utf8_next(text + at, bytes - at, &code);
        if (!length) return (ssize_t)at;
        at += (size_t)length;
    }
    return -1;
}

int tern__utf8_write(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)((uint32_t)(0xf00u >> length & 0xf0) | code);
    return length;
}

/* ---- escaping ---- */

/* Control characters of ASCII and Latin-1, line and paragraph separators, and characters that change the
 * writing direction. */
static bool is_unsafe(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

enum { SHOWN_TEXT = 16 };

/* Writes the first character of `text` as it is to be shown; *used is its length in `text`. */
static const char *show(const char *text, size_t bytes, size_t *used, char out[SHOWN_TEXT])
{
    static const char plain[] = "\a\b\t\n\v\f\r", letter[] = "abtnvfr";
    uint32_t code;
    int length = tern__utf8_next(text, bytes, &code);
    *used = length ? (size_t)length : 1;
    const char *known = length && code ? memchr(plain, (int)code, code < 0x20 ? sizeof(plain) - 1 : 0) : NULL;
    if (!length || (is_unsafe(code) && code < 0x80 && !known))
        snprintf(out, SHOWN_TEXT, "\\x%02x", (unsigned)(uint8_t)text[0]);
    else if (known || code == '\\')
        snprintf(out, SHOWN_TEXT, "\\%c", known ? letter[known - plain] : '\\');
    else if (is_unsafe(code))
        snprintf(out, SHOWN_TEXT, "\\u%04x", (unsigned)code);
    else
        snprintf(out, SHOWN_TEXT, "%.*s", length, text);
    return out;
}

size_t tern__escape(const char *text, size_t bytes, char *out, size_t room)
{
    char shown[SHOWN_TEXT];
    size_t total = 0, wrote = 0;
    for (size_t at = 0, used; at < bytes; at += used) {
        size_t length = strlen(show(text + at, bytes - at, &used, shown));
        if (wrote == total && total + length < room) {
            memcpy(out + wrote, shown, length);
            wrote += length;
        }
        total += length;
    }
    if (room) out[wrote] = '\0';
    return total;
}

const char *tern__quote(const char *text, size_t bytes, char out[TERN__QUOTE_TEXT])
{
    enum { ROOM = TERN__QUOTE_TEXT - 5 }; /* without quotes and dots */
    /* Escaped text is never shorter than the original, so a character that starts after ROOM cannot fit. */
    bool fits = tern__escape(text, TERN__MIN(bytes, (size_t)ROOM + 4), out + 1, ROOM) < ROOM;
    out[0] = '"';
    strcat(out, fits ? "\"" : "...\"");
    return out;
}

void tern__text_append(char *text, size_t size, const char *fmt, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + used, size - used, fmt, args);
    va_end(args);
}
