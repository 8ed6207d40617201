/* skips.h - tests that cannot run here record why, and ctest shows the reasons after its summary (skips.py).
 *
 * tests/CMakeLists.txt sets TERN_TEST_NAME, the test's name in ctest; TERN_TEST_SKIPS, the file of all skips;
 * and TERN_TEST_PARTS, the parts that this build has. */
#ifndef TERN_TESTS_SKIPS_H
#define TERN_TESTS_SKIPS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED 77 /* the exit status that ctest shows as "Skipped" */

static inline void skip_record(const char *function, const char *reason)
{
    const char *path = getenv("TERN_TEST_SKIPS"), *name = getenv("TERN_TEST_NAME");
    printf("skipped: %s: %s\n", function, reason);
    if (!path || !name) return;
    FILE *file = fopen(path, "a");
    if (file) fprintf(file, "%s: %s: %s\n", name, function, reason);
    if (file && !fclose(file)) return;
    perror(path); /* a skip that nobody sees is a failure */
    exit(1);
}

/* For a program that can run none of its tests: returns what main returns then. */
static inline int skip_program(const char *reason)
{
    skip_record("all", reason);
    return SKIPPED;
}

/* True if this build has the plug-in or the part. Without ctest it is expected to have all. */
static inline bool has_part(const char *part)
{
    const char *parts = getenv("TERN_TEST_PARTS");
    size_t length = strlen(part);
    if (!parts) return true;
    for (const char *at = parts; (at = strstr(at, part)); at += length)
        if ((at == parts || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

#endif
