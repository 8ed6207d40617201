/* error_file.c - writes the error file of torchelastic. */
#include "error_file.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

void error_file_write(const char *text)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    cJSON *error = cJSON_CreateObject();
    cJSON_AddStringToObject(error, "message", text);
    char *json = cJSON_PrintUnformatted(error);
    if (json) fputs(json, file);
    cJSON_free(json);
    cJSON_Delete(error);
    fclose(file);
}
