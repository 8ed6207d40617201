/* flags.c - translates a table of flags into getopt_long's and stores each value as its row says. */
#include "flags.h"
#include "cli.h"

#include "base/text.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROW 256 /* getopt's value of row 0, above every letter */

static bool read_number(const char *who, const tern__flag *flag, const char *text)
{
    char *end;
    *flag->number = strtol(text, &end, 10);
    if (end != text && !*end && *flag->number > 0 && *flag->number <= flag->most) return true;
    tern__cli_complain(who, "--%s: expected a number from 1 to %ld, got \"%s\"", flag->name, flag->most,
                       text);
    return false;
}

bool tern__flag_word(const char *who, const char *name, const char *text, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(text, words[i])) return true;
    char known[256] = "";
    for (int i = 0; words[i]; i++) tern__text_append(known, sizeof(known), "%s%s", i ? " or " : "", words[i]);
    tern__cli_complain(who, "--%s: expected %s, got \"%s\"", name, known, text);
    return false;
}

static bool store(const char *who, const tern__flag *flag, char *text)
{
    if (flag->take) return flag->take(who, text, flag->to);
    if (flag->number) return read_number(who, flag, text);
    if (flag->on) return *flag->on = true;
    *flag->text = text;
    return !flag->words || tern__flag_word(who, flag->name, text, flag->words);
}

/* Fills `options`, which has room for all rows, --help and the terminator. */
static void list_options(const tern__flag *flags, struct option *options)
{
    int row = 0;
    for (; flags[row].name; row++) {
        int argument = flags[row].on         ? no_argument
                       : flags[row].optional ? optional_argument
                                             : required_argument;
        options[row] = (struct option){flags[row].name, argument, NULL, FIRST_ROW + row};
    }
    options[row++] = (struct option){"help", no_argument, NULL, 'h'};
    options[row] = (struct option){0};
}

int tern__flags_read(const tern__flag *flags, const char *who, const char *usage, int argc, char **argv)
{
    struct option options[TERN__FLAGS_MAX + 2];
    list_options(flags, options);
    argv[0] = (char *)who; /* getopt prints it before its own messages */
    for (int found; (found = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (found == 'h') {
            if (usage) fputs(usage, stdout);
            return -1;
        }
        if (found < FIRST_ROW || !store(who, &flags[found - FIRST_ROW], optarg)) return TERN__EXIT_USAGE;
    }
    return TERN__EXIT_OK;
}

int tern__flags_read_all(const tern__flag *flags, const char *who, const char *usage, int argc, char **argv)
{
    int status = tern__flags_read(flags, who, usage, argc, argv);
    if (status || optind == argc) return status;
    tern__cli_complain(who, "unexpected \"%s\"", argv[optind]);
    return TERN__EXIT_USAGE;
}
