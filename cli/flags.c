/* flags.c - translates a table of options into getopt_long's and stores each value as its row says. */
#include "flags.h"
#include "cli.h"

#include "base/text.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROW 256 /* getopt's value of row 0, above every letter */

static int read_number(const tern__cli_option *option, const char *text, tern_error *err)
{
    char *end;
    *option->number = strtol(text, &end, 10);
    if (end != text && !*end && *option->number > 0 && *option->number <= option->most) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected a number from 1 to %ld, got \"%s\"",
                           option->most, text);
}

int tern__option_check(const tern__cli_option *option, const char *text, tern_error *err)
{
    char known[256] = "", word[32];
    if (!tern__option_has_words(option)) return TERN_OK;
    for (const char *rest = option->value; (rest = tern__option_next_word(rest, word));) {
        if (!strcmp(text, word)) return TERN_OK;
        tern__text_append(known, sizeof(known), "%s%s", *known ? " or " : "", word);
    }
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected %s, got \"%s\"", known, text);
}

static bool store(const char *who, const tern__cli_option *option, const char *text)
{
    tern_error err = {0};
    if (option->take)
        option->take(text, option->to, &err);
    else if (option->number)
        read_number(option, text, &err);
    else if (option->on)
        *option->on = true;
    else if (!tern__option_check(option, text, &err))
        *option->text = text;
    if (err.code) tern__cli_complain(who, "--%s: %s", option->name, err.text);
    return !err.code;
}

/* Fills `options`, which has room for all rows and the terminator. Returns the number of rows. */
static int list_options(const tern__cli_option *rows, struct option *options)
{
    int row = 0;
    for (; tern__option_is_row(&rows[row]); row++) {
        int argument = !rows[row].value                          ? no_argument
                       : tern__option_may_lack_value(&rows[row]) ? optional_argument
                                                                 : required_argument;
        options[row] = (struct option){rows[row].name, argument, NULL, FIRST_ROW + row};
    }
    options[row] = (struct option){0};
    return row;
}

/* getopt has said that it does not know the word. */
static void suggest(const struct option *options, int count, const char *word)
{
    const char *names[TERN__FLAGS_MAX];
    if (strncmp(word, "--", 2) != 0) return;
    for (int i = 0; i < count; i++) names[i] = options[i].name;
    const char *nearest = tern__word_nearest(word + 2, names, count);
    if (nearest && strncmp(nearest, word + 2, strlen(word + 2)) != 0)
        fprintf(stderr, "Did you mean --%s?\n", nearest);
}

int tern__flags_read(const tern__cli_page *page, const char *who, int argc, char **argv)
{
    struct option options[TERN__FLAGS_MAX + 1];
    int count = list_options(page->options, options);
    argv[0] = (char *)who; /* getopt prints it before its own messages */
    for (int found; (found = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (found == 'h' || (found >= FIRST_ROW && page->options[found - FIRST_ROW].letter == 'h')) {
            tern__page_print(who, page);
            return -1;
        }
        if (found < FIRST_ROW) suggest(options, count, argv[optind - 1]);
        if (found < FIRST_ROW || !store(who, &page->options[found - FIRST_ROW], optarg))
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
