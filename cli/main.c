/* main.c - the `tern` command: finds the subcommand (run, inspect, convert, info, bench) and runs it. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name, *help;
    tern__cli_fn *run;
} command;

static const command commands[] = {
    {"run", "start a program as N ranks on this host and supervise them", tern__cli_run},
    {"inspect", "show what a checkpoint holds, or how two differ", tern__cli_inspect},
    {"convert", "write a checkpoint, or a part of it, in another format", tern__cli_convert},
    {"info", "show version, processor, back ends and libraries", tern__cli_info},
    {"bench", "measure training steps and collectives", tern__cli_bench},
};

static void print_usage(FILE *out)
{
    fprintf(out, "usage: tern COMMAND [OPTIONS] ...\n"
                 "       tern --help | --version\n"
                 "\n"
                 "commands:\n");
    for (size_t i = 0; i < TERN__COUNT(commands); i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\nRun `tern COMMAND --help` for its options.\n");
}

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < TERN__COUNT(commands); i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--version") == 0) {
        printf("tern %s\n", tern_version());
        return tern__cli_flush("tern");
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_usage(stdout);
        return tern__cli_flush("tern");
    }
    const command *found = find_command(name);
    if (found) return found->run(argc - 1, argv + 1);
    fprintf(stderr, *name ? "tern: expected a command, got \"%s\"\n" : "tern: expected a command\n", name);
    print_usage(stderr);
    return TERN__EXIT_USAGE;
}
