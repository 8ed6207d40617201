/* flags.c - translates a table of options into getopt_long's. */
#include "flags.h"
#include "cli.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#define FIRST_ROW 256 /* getopt's value of row 0, above every letter */

/* Fills `options`, which has room for all rows and the terminator, and `letters`, which has three for each
 * row: a letter, and a colon for each kind of value. Returns the number of rows. */
static int list_options(const tern__cli_option *rows, struct option *options, char *letters)
{
    int row = 0;
    for (; tern__option_is_row(&rows[row]); row++) {
        int argument = !rows[row].value                          ? no_argument
                       : tern__option_may_lack_value(&rows[row]) ? optional_argument
                                                                 : required_argument;
        options[row] = (struct option){rows[row].name, argument, NULL, FIRST_ROW + row};
        if (rows[row].letter) *letters++ = rows[row].letter;
        for (int i = 0; rows[row].letter && i < argument; i++) *letters++ = ':';
    }
    options[row] = (struct option){0};
    *letters = '\0';
    return row;
}

/* getopt has said that it does not know the word. */
static void suggest_name(const struct option *options, int count, const char *word)
{
    const char *names[TERN__FLAGS_MAX];
    if (strncmp(word, "--", 2) != 0) return;
    for (int i = 0; i < count; i++) names[i] = options[i].name;
    const char *nearest = tern__word_nearest(word + 2, names, count);
    if (nearest && strncmp(nearest, word + 2, strlen(word + 2)) != 0)
        fprintf(stderr, "Did you mean --%s?\n", nearest);
}

/* Returns the row that getopt has found, or NULL. */
static const tern__cli_option *find_row(const tern__cli_option *rows, int found)
{
    if (found >= FIRST_ROW) return &rows[found - FIRST_ROW];
    for (; tern__option_is_row(rows); rows++)
        if (rows->letter == found) return rows;
    return NULL;
}

int tern__flags_read(const tern__cli_page *page, const char *who, int argc, char **argv)
{
    struct option options[TERN__FLAGS_MAX + 1];
    char letters[3 * TERN__FLAGS_MAX + 1];
    int count = list_options(page->options, options, letters);
    argv[0] = (char *)who; /* getopt prints it before its own messages */
    for (int found; (found = getopt_long(argc, argv, letters, options, NULL)) != -1;) {
        tern_error err = {0};
        const tern__cli_option *option = find_row(page->options, found);
        if (!option) {
            suggest_name(options, count, argv[optind - 1]);
            return TERN__EXIT_USAGE;
        }
        if (option->letter == 'h') {
            tern__page_print(who, page);
            return -1;
        }
        if (!tern__option_store(option, optarg, &err)) continue;
        tern__cli_complain(who, "--%s: %s", option->name, err.text);
        return TERN__EXIT_USAGE;
    }
    return TERN__EXIT_OK;
}

int tern__flags_read_all(const tern__cli_page *page, const char *who, int argc, char **argv)
{
    int status = tern__flags_read(page, who, argc, argv);
    if (status || optind == argc) return status;
    tern__cli_complain(who, "unexpected \"%s\"", argv[optind]);
    return TERN__EXIT_USAGE;
}
