/* bytes.c - GPT-2's characters of bytes; text that grows; text that is not quite UTF-8. */
#include "text/bytes.h"

#include "base/text.h"

#include <string.h>

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */

/* ---- bytes as characters ---- */

static bool is_seen(uint32_t byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

uint32_t tern__byte_char(uint8_t byte)
{
    uint32_t hidden = 0;
    if (is_seen(byte)) return byte;
    for (uint32_t b = 0; b < byte; b++) hidden += !is_seen(b);
    return 0x100 + hidden;
}

int tern__char_byte(uint32_t code)
{
    if (code < 0x100) return is_seen(code) ? (int)code : -1;
    uint32_t hidden = 0x100;
    for (int b = 0; b < 0x100; b++)
        if (!is_seen((uint32_t)b) && hidden++ == code) return b;
    return -1;
}

/* ---- text that grows ---- */

int tern__text_reserve(tern_text *text, size_t more, const char *func, tern_error *err)
{
    return tern__array_reserve(&text->text, &text->room, text->bytes + more + 1, 1, func, err);
}

int tern__text_add(tern_text *text, const char *more, size_t bytes, const char *func, tern_error *err)
{
    if (tern__text_reserve(text, bytes, func, err)) return TERN_E_MEMORY;
    if (bytes) memcpy(text->text + text->bytes, more, bytes);
    text->bytes += bytes;
    text->text[text->bytes] = '\0';
    return TERN_OK;
}

/* The second byte's limits depend on the first one: no overlong form, no surrogate, nothing above U+10FFFF.
 */
size_t tern__utf8_part(const char *text, size_t bytes, bool *whole)
{
    uint8_t first = (uint8_t)text[0];
    size_t length = first < 0x80                    ? 1
                    : first >= 0xc2 && first < 0xe0 ? 2
                    : first >= 0xe0 && first < 0xf0 ? 3
                    : first >= 0xf0 && first < 0xf5 ? 4
                                                    : 0;
    uint8_t low = first == 0xe0   ? 0xa0
                  : first == 0xf0 ? 0x90
                                  : 0x80,
            high = first == 0xed   ? 0x9f
                   : first == 0xf4 ? 0x8f
                                   : 0xbf;
    size_t part = length > 0;
    while (part && part < length && part < bytes) {
        uint8_t next = (uint8_t)text[part];
        if (next < low || next > high) break;
        low = 0x80, high = 0xbf;
        part++;
    }
    *whole = length && part == length;
    return part;
}

int tern__text_add_repaired(tern_text *text, const char *more, size_t bytes, const char *func,
                            tern_error *err)
{
    for (size_t at = 0; at < bytes;) {
        bool whole;
        ssize_t bad = tern__utf8_check(more + at, bytes - at);
        size_t good = bad < 0 ? bytes - at : (size_t)bad;
        if (tern__text_add(text, more + at, good, func, err)) return TERN_E_MEMORY;
        at += good;
        if (at == bytes) break;
        size_t part = tern__utf8_part(more + at, bytes - at, &whole);
        if (tern__text_add(text, REPLACEMENT, 3, func, err)) return TERN_E_MEMORY;
        at += TERN__MAX(part, (size_t)1);
    }
    return TERN_OK;
}
