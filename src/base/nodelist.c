/* nodelist.c - parses Slurm's compressed lists. */
#include "base/nodelist.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS "0123456789"

/* ---- nodes ---- */

static bool nodelist_append(char *name, size_t size, const char *text, size_t bytes)
{
    size_t used = strlen(name);
    if (bytes >= size - used) return false;
    memcpy(name + used, text, bytes);
    name[used + bytes] = '\0';
    return true;
}

static const char *skip_number(const char *at)
{
    size_t bytes = strspn(at, DIGITS);
    return bytes ? at + bytes : NULL;
}

/* Returns the text after "[001-003,10]"; NULL: it is malformed. */
static const char *skip_brackets(const char *at)
{
    do {
        at = skip_number(at + 1);
        if (at && *at == '-') at = skip_number(at + 1);
    } while (at && *at == ',');
    return at && *at == ']' ? at + 1 : NULL;
}

/* Replaces each pair of brackets by its first number. */
bool tern__nodelist_first(const char *list, char *name, size_t size)
{
    *name = '\0';
    for (const char *at = list; *at && *at != ',';) {
        size_t bytes = strcspn(at, "[,");
        if (memchr(at, ']', bytes) || !nodelist_append(name, size, at, bytes)) return false;
        at += bytes;
        if (*at != '[') continue;
        if (!nodelist_append(name, size, at + 1, strspn(at + 1, DIGITS))) return false;
        at = skip_brackets(at);
        if (!at) return false;
    }
    return *name != '\0';
}

/* ---- tasks ---- */

/* Reads a number above 0 and moves past it; 0: there is none. */
static int read_count(const char **at)
{
    char *end;
    if (!**at || !strchr(DIGITS, **at)) return 0;
    unsigned long value = strtoul(*at, &end, 10);
    *at = end;
    return value <= INT_MAX ? (int)value : 0;
}

int tern__nodelist_tasks(const char *list, int node)
{
    for (const char *at = list;; at++) {
        int tasks = read_count(&at), nodes = 1;
        if (!strncmp(at, "(x", 2)) {
            at += 2;
            nodes = read_count(&at);
            if (*at++ != ')') return -1;
        }
        if (!tasks || !nodes || (*at && *at != ',')) return -1;
        if (node < nodes) return tasks;
        node -= nodes;
        if (!*at) return -1;
    }
}
