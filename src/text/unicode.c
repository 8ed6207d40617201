/* unicode.c - asks the plug-in about characters.
 *
 * ASCII is in every normal form, and only a character beyond ASCII combines with one before it. So a text is
 * put into a form in stretches: each one begins with the character before one beyond ASCII, and ends before
 * the next of ASCII. What is between them is copied. */
#include "text/unicode.h"

#include "base/text.h"

#include <string.h>

/* ---- characters ---- */

bool tern__is_white_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

size_t tern__spaces_at_start(const char *text, size_t bytes)
{
    size_t at = 0;
    uint32_t code;
    for (int length; at < bytes && (length = tern__utf8_next(text + at, bytes - at, &code)) &&
                     tern__is_white_space(code);)
        at += (size_t)length;
    return at;
}

size_t tern__spaces_at_end(const char *text, size_t bytes)
{
    while (bytes) {
        size_t at = bytes - 1;
        uint32_t code;
        while (at && ((uint8_t)text[at] & 0xc0) == 0x80) at--;
        tern__utf8_next(text + at, bytes - at, &code);
        if (!tern__is_white_space(code)) break;
        bytes = at;
    }
    return bytes;
}

size_t tern__ascii_at_start(const char *text, size_t bytes)
{
    size_t at = 0;
    for (uint64_t eight; at + 8 <= bytes; at += 8) {
        memcpy(&eight, text + at, 8);
        if (eight & UINT64_C(0x8080808080808080)) break;
    }
    while (at < bytes && !((uint8_t)text[at] & 0x80)) at++;
    return at;
}

int tern__text_add_char(tern_text *to, uint32_t code, const char *func, tern_error *err)
{
    if (tern__text_reserve(to, 4, func, err)) return TERN_E_MEMORY;
    to->bytes += (size_t)tern__utf8_write(code, to->text + to->bytes);
    to->text[to->bytes] = '\0';
    return TERN_OK;
}

/* Of all characters only U+0130 has a lower case of two. */
int tern__text_add_lower(tern_text *to, const tern_unicode_backend *unicode, uint32_t code, const char *func,
                         tern_error *err)
{
    if (code == 0x130) return tern__text_add(to, "i\xcc\x87", 3, func, err);
    return tern__text_add_char(to, unicode->lower(code), func, err);
}

/* ---- normal forms ---- */

int tern__form_make(const tern_unicode_backend *unicode, tern_unicode_form form, const char *text,
                    size_t bytes, tern__codes *codes, const char **made, size_t *made_bytes, const char *func,
                    tern_error *err)
{
    size_t room = TERN__MAX(bytes, (size_t)64);
    ptrdiff_t more = 0;
    do {
        if (tern__array_reserve(&codes->codes, &codes->room, room, sizeof(*codes->codes), func, err))
            return TERN_E_MEMORY;
        more = unicode->normalize(form, text, bytes, codes->codes, codes->room, made_bytes);
        room = (size_t)more;
    } while (more > 0);
    if (more)
        return tern__error_set(err, func, (int)more, "%s has no normal form of a text of %zu bytes",
                               unicode->name, bytes);
    *made = (const char *)codes->codes;
    return TERN_OK;
}

int tern__text_add_form(tern_text *to, const tern_unicode_backend *unicode, tern_unicode_form form,
                        const char *text, size_t bytes, tern__codes *codes, const char *func, tern_error *err)
{
    const char *made = NULL;
    size_t made_bytes = 0;
    for (size_t at = 0; at < bytes;) {
        size_t begin = at + tern__ascii_at_start(text + at, bytes - at), end = begin;
        while (end < bytes && (uint8_t)text[end] & 0x80) end++;
        if (begin > at && end > begin) begin--;
        if (tern__text_add(to, text + at, begin - at, func, err)) return TERN_E_MEMORY;
        if (begin < end) {
            int status = tern__form_make(unicode, form, text + begin, end - begin, codes, &made, &made_bytes,
                                         func, err);
            if (!status) status = tern__text_add(to, made, made_bytes, func, err);
            if (status) return status;
        }
        at = end;
    }
    return TERN_OK;
}
