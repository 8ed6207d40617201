/* cli.c - what all subcommands of `tern` share. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int tern__cli_flush(const char *who)
{
    if (!fflush(stdout) && !ferror(stdout)) return TERN__EXIT_OK;
    fprintf(stderr, "%s: cannot write: %s\n", who, strerror(errno));
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
    fprintf(stderr, *name ? "%s: expected a %s, got \"%s\"\n" : "%s: expected a %s\n", menu->who, menu->noun,
            name);
    print_usage(menu, stderr);
    return TERN__EXIT_USAGE;
}
