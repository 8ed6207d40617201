/* main.c - the `tern` command: finds the subcommand (run, inspect, convert, info, bench) and runs it. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static const tern__cli_command commands[] = {
    {"run", "start a program as N ranks on this host and supervise them", tern__cli_run},
    {"inspect", "show what a checkpoint holds, or how two differ", tern__cli_inspect},
    {"convert", "write a checkpoint, or a part of it, in another format", tern__cli_convert},
    {"info", "show version, processor, back ends and libraries", tern__cli_info},
    {"bench", "measure training steps and collectives", tern__cli_bench},
    {0},
};

static const char head[] = "usage: tern COMMAND [OPTIONS] ...\n"
                           "       tern --help | --version\n"
                           "\n"
                           "commands:\n";
static const char tail[] = "\nRun `tern COMMAND --help` for its options.\n";

int main(int argc, char **argv)
{
    const tern__cli_menu menu = {"tern", "command", head, tail, commands, 8};
    if (argc < 2 || strcmp(argv[1], "--version") != 0) return tern__cli_dispatch(&menu, argc, argv);
    printf("tern %s\n", tern_version());
    return tern__cli_flush("tern");
}
