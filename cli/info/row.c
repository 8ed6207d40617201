/* row.c - the rows of `tern info`, as text or as a JSON object. */
#include "info/info.h"

#include <cjson/cJSON.h>
#include <stdio.h>

static cJSON *object; /* NULL: text */

void tern__info_begin(bool as_json)
{
    object = as_json ? cJSON_CreateObject() : NULL;
}

void tern__info_row(const char *name, const char *value)
{
    if (object)
        cJSON_AddStringToObject(object, name, value);
    else
        printf("%-14s %s\n", name, value);
}

void tern__info_end(void)
{
    char *text = object ? cJSON_Print(object) : NULL;
    if (text) puts(text);
    cJSON_free(text);
    cJSON_Delete(object);
    object = NULL;
}
