#include "error_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A string of JSON. */
static void put_string(const char *text, FILE *file)
{
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < ' ')
            fprintf(file, "\\u%04x", *c);
        else
            fprintf(file, "%s%c", strchr("\"\\", *c) ? "\\" : "", *c);
    fputc('"', file);
}

void error_file_write(const char *text)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fputs("{\"message\": ", file);
    put_string(text, file);
    fputs("}\n", file);
    fclose(file);
}
