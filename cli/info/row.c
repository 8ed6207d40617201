/* row.c - a row of `tern info`'s output. */
#include "info/info.h"

#include <stdio.h>

void tern__info_row(const char *name, const char *value)
{
    printf("%-14s %s\n", name, value);
}
