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
    fputs(menu->head, out);
    for (const tern__cli_command *c = menu->commands; c->name; c++)
        fprintf(out, "  %-*s %s\n", menu->width, c->name, c->help);
    fputs(menu->tail, out);
}

int tern__cli_dispatch(const tern__cli_menu *menu, int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) {
        print_usage(menu, stdout);
        return tern__cli_flush(menu->who);
    }
    for (const tern__cli_command *c = menu->commands; c->name; c++)
        if (!strcmp(name, c->name)) return c->run(argc - 1, argv + 1);
    tern__cli_complain(menu->who, *name ? "expected a %s, got \"%s\"" : "expected a %s", menu->noun, name);
    print_usage(menu, stderr);
    return TERN__EXIT_USAGE;
}
