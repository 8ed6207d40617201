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

/* Writes the first character of `text` as it is to be shown; *used is its length in `text`. In a message a
 * backslash stays. */
static const char *character_show(const char *text, size_t bytes, bool is_message, size_t *used,
                                  char out[SHOWN_TEXT])
{
    static const char plain[] = "\a\b\t\n\v\f\r", letter[] = "abtnvfr";
    uint32_t code = 0;
    int length = tern__utf8_next(text, bytes, &code);
    *used = length ? (size_t)length : 1;
    const char *known = length && code ? memchr(plain, (int)code, code < 0x20 ? sizeof(plain) - 1 : 0) : NULL;
    if (!length || (is_unsafe(code) && code < 0x80 && !known))
        snprintf(out, SHOWN_TEXT, "\\x%02x", (unsigned)(uint8_t)text[0]);
    else if (known || (code == '\\' && !is_message))
        snprintf(out, SHOWN_TEXT, "\\%c", known ? letter[known - plain] : '\\');
    else if (is_unsafe(code))
        snprintf(out, SHOWN_TEXT, "\\u%04x", (unsigned)code);
    else
        memcpy(memset(out, 0, SHOWN_TEXT), text, *used);
    return out;
}

static size_t text_escape(const char *text, size_t bytes, bool is_message, char *out, size_t room)
{
    char shown[SHOWN_TEXT];
    size_t total = 0, wrote = 0;
    for (size_t at = 0, used; at < bytes; at += used) {
        size_t length = strlen(character_show(text + at, bytes - at, is_message, &used, shown));
        if (wrote == total && total + length < room) {
            memcpy(out + wrote, shown, length);
            wrote += length;
        }
        total += length;
    }
    if (room) out[wrote] = '\0';
    return total;
}

size_t tern__escape(const char *text, size_t bytes, char *out, size_t room)
{
    return text_escape(text, bytes, false, out, room);
}

const char *tern__excerpt(const char *text, size_t bytes, size_t most, char out[TERN__QUOTE_TEXT])
{
    size_t room = TERN__MIN(most + 1, (size_t)TERN__QUOTE_TEXT - 5); /* without quotes and dots */
    /* Escaped text is never shorter than the original, so a character that starts after `room` cannot fit. */
    bool fits = tern__escape(text, TERN__MIN(bytes, room + 4), out + 1, room) < room;
    out[0] = '"';
    strcat(out, fits ? "\"" : "...\"");
    return out;
}

const char *tern__quote(const char *text, size_t bytes, char out[TERN__QUOTE_TEXT])
{
    return tern__excerpt(text, bytes, TERN__QUOTE_TEXT, out);
}

/* ---- messages ---- */

void tern__message_vformat(char *out, size_t size, const char *fmt, va_list args)
{
    char plain[TERN__MESSAGE_MOST + 8]; /* what is cut off here would not fit `out` */
    int length = vsnprintf(plain, sizeof(plain), fmt, args);
    size_t bytes = TERN__MIN((size_t)TERN__MAX(length, 0), sizeof(plain) - 1);
    if (text_escape(plain, bytes, true, out, size) < size || size < sizeof("..")) return;
    text_escape(plain, bytes, true, out, size - 2);
    strcat(out, "..");
}

void tern__message_format(char *out, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tern__message_vformat(out, size, fmt, args);
    va_end(args);
}

void tern__text_vappend(char *text, size_t size, const char *fmt, va_list args)
{
    size_t used = strlen(text);
    int length = vsnprintf(text + used, size - used, fmt, args);
    if (length < (int)(size - used) || size < sizeof("..")) return;
    size_t end = size - sizeof("..");
    while (end && ((uint8_t)text[end] & 0xc0) == 0x80) end--;
    strcpy(text + end, "..");
}

void tern__text_append(char *text, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tern__text_vappend(text, size, fmt, args);
    va_end(args);
}
