/* macro.c - expands ${name} in a text. */
#include "run/macro.h"

#include <string.h>

/* Returns the value of a "${name}" at the start of `text` and sets *length to its length there; NULL if there
 * is none. */
static const char *find(const char *text, const tern__macro *macros, size_t count, size_t *length)
{
    for (size_t i = 0; i < count && text[0] == '$' && text[1] == '{'; i++) {
        *length = strlen(macros[i].name);
        if (strncmp(text + 2, macros[i].name, *length) || text[2 + *length] != '}') continue;
        *length += 3;
        return macros[i].value;
    }
    return NULL;
}

static void put(char *out, size_t size, size_t *used, const char *bytes, size_t length)
{
    if (*used < size) memcpy(out + *used, bytes, TERN__MIN(length, size - *used));
    *used += length;
}

size_t tern__macro_expand(const char *text, const tern__macro *macros, size_t count, char *out, size_t size)
{
    size_t used = 0, room = size ? size - 1 : 0;
    while (*text) {
        size_t length = 1;
        const char *value = find(text, macros, count, &length);
        if (!value) length = 1;
        put(out, room, &used, value ? value : text, value ? strlen(value) : 1);
        text += length;
    }
    if (size) out[TERN__MIN(used, room)] = '\0';
    return used;
}
