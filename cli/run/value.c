/* value.c - reads lists of local ranks, and expands ${name} in a text. */
#include "run/value.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of local ranks ---- */

/* Reads a number at *at and moves *at behind it. Returns -1 if there is none. */
static int next_number(const char **at)
{
    char *end;
    if (**at < '0' || **at > '9') return -1;
    long value = strtol(*at, &end, 10);
    *at = end;
    return value > INT_MAX ? -1 : (int)value;
}

int tern__streams_of(const char *text, int local)
{
    if (strlen(text) == 1 && *text >= '0' && *text <= '3') return *text - '0';
    int streams = 0;
    for (const char *at = text;; at++) {
        int rank = next_number(&at);
        if (rank < 0 || *at++ != ':' || *at < '0' || *at > '3') return -1;
        if (rank == local) streams = *at - '0';
        if (!*++at) return streams;
        if (*at != ',') return -1;
    }
}

int tern__list_holds(const char *text, int local)
{
    int holds = !*text;
    for (const char *at = text; *at; at += *at == ',') {
        int rank = next_number(&at);
        if (rank < 0 || (*at && (*at != ',' || !at[1]))) return -1;
        holds |= rank == local;
    }
    return holds;
}

/* ---- ${name} ---- */

/* Returns the value of a "${name}" at the start of `text` and sets *length to its length there; NULL if there
 * is none. */
static const char *find_macro(const char *text, const tern__macro *macros, size_t count, size_t *length)
{
    for (size_t i = 0; i < count && text[0] == '$' && text[1] == '{'; i++) {
        *length = strlen(macros[i].name);
        if (strncmp(text + 2, macros[i].name, *length) || text[2 + *length] != '}') continue;
        *length += 3;
        return macros[i].value;
    }
    return NULL;
}

static void put_bytes(char *out, size_t size, size_t *used, const char *bytes, size_t length)
{
    if (*used < size) memcpy(out + *used, bytes, TERN__MIN(length, size - *used));
    *used += length;
}

size_t tern__macro_expand(const char *text, const tern__macro *macros, size_t count, char *out, size_t size)
{
    size_t used = 0, room = size ? size - 1 : 0;
    while (*text) {
        size_t length = 1;
        const char *value = find_macro(text, macros, count, &length);
        if (!value) length = 1;
        put_bytes(out, room, &used, value ? value : text, value ? strlen(value) : 1);
        text += length;
    }
    if (size) out[TERN__MIN(used, room)] = '\0';
    return used;
}
