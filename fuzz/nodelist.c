/* nodelist.c - fuzzes the parsers of Slurm's lists of nodes and tasks, which come from the environment. */
#include "fuzz.h"

#include "base/nodelist.h"

#include <stdlib.h>
#include <string.h>

static void expand(const char *list, size_t room)
{
    char *name = malloc(room);
    if (!name) return;
    bool is_there = tern__nodelist_first(list, name, room);
    if (strnlen(name, room) == room || (is_there && !*name) || strpbrk(name, "[],")) abort();
    free(name);
}

static void count(const char *list)
{
    int first = tern__nodelist_tasks(list, 0);
    if (first == 0 || first < -1) abort();
    tern__nodelist_tasks(list, 1000);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *list = malloc(size + 1);
    if (!list) return 0;
    memcpy(list, data, size);
    list[size] = '\0';
    expand(list, 256);
    expand(list, 8);
    expand(list, 1);
    count(list);
    free(list);
    return 0;
}
