/* cli.c - what all subcommands of `tern` share. */
#include "cli.h"

#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void tern__cli_complain(const char *who, const char *fmt, ...)
{
    char text[TERN__MESSAGE_MOST];
    va_list args;
    va_start(args, fmt);
    tern__message_vformat(text, sizeof(text), fmt, args);
    va_end(args);
    fprintf(stderr, "%s: %s\n", who, text);
}

int tern__cli_flush(const char *who)
{
    if (!fflush(stdout) && !ferror(stdout)) return TERN__EXIT_OK;
    tern__cli_complain(who, "cannot write: %s", strerror(errno));
    return TERN__EXIT_FAILED;
}

static void print_usage(const tern__cli_menu *menu, FILE *out)
{
    fprintf(out, "usage: %s\n\n%s%s:\n", menu->usage, menu->noun, strcmp(menu->noun, "bench") ? "s" : "es");
    for (const tern__cli_command *c = menu->commands; c->name; c++)
        fprintf(out, "  %-*s %s\n", menu->width, c->name, c->help);
    fprintf(out, "\n%s\n", menu->about);
}

static const tern__cli_command *menu_find(const tern__cli_menu *menu, const char *name)
{
    for (const tern__cli_command *c = menu->commands; c->name; c++)
        if (!strcmp(name, c->name)) return c;
    return NULL;
}

/* A misspelled name gets one suggestion in place of the whole list. */
static int refuse_name(const tern__cli_menu *menu, const char *name)
{
    const char *names[32], *nearest;
    int count = 0;
    for (const tern__cli_command *c = menu->commands; c->name; c++) names[count++] = c->name;
    nearest = tern__word_nearest(name, names, count);
    tern__cli_complain(menu->who, *name ? "expected a %s, got \"%s\"" : "expected a %s", menu->noun, name);
    if (nearest)
        fprintf(stderr, "Did you mean `%s %s`?\n", menu->who, nearest);
    else
        print_usage(menu, stderr);
    return TERN__EXIT_USAGE;
}

/* `words` ends with NULL. */
static int print_help(const tern__cli_menu *menu, char **words)
{
    if (!*words) {
        print_usage(menu, stdout);
        return tern__cli_flush(menu->who);
    }
    const tern__cli_command *command = menu_find(menu, *words);
    if (!command) return refuse_name(menu, *words);
    if (command->menu) return print_help(command->menu, words + 1);
    char option[] = "--help", *argv[] = {*words, option, NULL};
    return command->run(2, argv);
}

int tern__cli_dispatch(const tern__cli_menu *menu, int argc, char **argv)
{
    char *none = NULL;
    const char *name = argc > 1 ? argv[1] : "";
    const tern__cli_command *command = menu_find(menu, name);
    if (command) return command->run(argc - 1, argv + 1);
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) return print_help(menu, &none);
    if (!strcmp(name, "help")) return print_help(menu, argv + 2);
    return refuse_name(menu, name);
}
