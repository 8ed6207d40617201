/* usage.h - the command line of the examples: --help and a number. */
#ifndef TERN_EXAMPLES_USAGE_H
#define TERN_EXAMPLES_USAGE_H

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern.h>

/* Answers --help, on rank 0, and exits. Also exits if another word looks like an option, so that none is
 * taken for a folder or a number, or if there are more words than `operands` names: "FOLDER [epochs]". */
static inline void usage_read(int argc, char **argv, const char *operands, const char *about)
{
    int most = *operands != '\0';
    for (const char *at = operands; *at; at++) most += *at == ' ';
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            if (tern_launched_rank() <= 0)
                printf("usage: %s%s%s\n\n%s\n", argv[0], *operands ? " " : "", operands, about);
            exit(0);
        }
        bool is_option = argv[i][0] == '-' && argv[i][1] && !isdigit((unsigned char)argv[i][1]);
        if (!is_option && i <= most) continue;
        fprintf(stderr, "%s: unexpected \"%s\"; --help says what may follow\n", argv[0], argv[i]);
        exit(2);
    }
}

/* Returns argument `i`, a number of `noun` from 1 to `most`, or `fallback` without one; exits if it is
 * wrong. */
static inline int usage_number(int argc, char **argv, int i, const char *noun, int most, int fallback)
{
    if (argc <= i) return fallback;
    char *end;
    long number = strtol(argv[i], &end, 10);
    if (end != argv[i] && !*end && number >= 1 && number <= most) return (int)number;
    fprintf(stderr, "%s: expected a number of %s from 1 to %d, got \"%s\"\n", argv[0], noun, most, argv[i]);
    exit(2);
}

#endif
