#include "base/utf8.h"

#include <stdint.h>

/* How many bytes follow the first of a character; -1 if none begins so. */
static int bytes_after(uint8_t lead)
{
    if (lead < 0x80) return 0;
    if (lead < 0xc2 || lead > 0xf4) return -1;
    return lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
}

bool tern__utf8_is_valid(const void *text, size_t bytes)
{
    static const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
    const uint8_t *byte = text;
    for (size_t i = 0; i < bytes; i++) {
        int after = bytes_after(byte[i]);
        if (after < 0 || (size_t)after >= bytes - i) return false;
        uint32_t code = byte[i] & (after ? 0x3fu >> after : 0x7fu);
        for (int k = 0; k < after; k++) {
            if ((byte[++i] & 0xc0) != 0x80) return false;
            code = code << 6 | (byte[i] & 0x3f);
        }
        if (code < least[after] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    }
    return true;
}
