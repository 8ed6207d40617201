/* printing.h - what is printed on stdout between two calls. */
#ifndef TERN_TESTS_PRINTING_H
#define TERN_TESTS_PRINTING_H

#include "check.h"

#include <stdio.h>
#include <unistd.h>

typedef struct printing {
    FILE *file;
    int saved; /* stdout as it was */
} printing;

static inline printing printing_begin(void)
{
    fflush(stdout);
    printing p = {.file = tmpfile(), .saved = dup(STDOUT_FILENO)};
    assert_non_null(p.file);
    dup2(fileno(p.file), STDOUT_FILENO);
    return p;
}

/* Puts what was printed into `text`, cut to `size`, and returns it. */
static inline const char *printing_end(printing p, char *text, size_t size)
{
    fflush(stdout);
    dup2(p.saved, STDOUT_FILENO);
    close(p.saved);
    rewind(p.file);
    text[fread(text, 1, size - 1, p.file)] = '\0';
    fclose(p.file);
    return text;
}

#endif
