/* main.c - the `tern` command: finds the subcommand (run, new, inspect, info, bench ..) and runs it. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static const tern__cli_command commands[] = {
    {"run", "start a program as N ranks on this host and supervise them", tern__cli_run, &tern__run_page,
     NULL},
    {"new", "write a program to start from, with its data, into a new folder", tern__cli_new, &tern__new_page,
     NULL},
    {"inspect", "show what a checkpoint holds, or how two differ", tern__cli_inspect, &tern__inspect_page,
     NULL},
    {"convert", "write a checkpoint, or a part of it, in another format", tern__cli_convert,
     &tern__convert_page, NULL},
    {"tokenize", "write the tokens of text files, or train a tokenizer", tern__cli_tokenize,
     &tern__tokenize_page, NULL},
    {"generate", "continue a prompt, or chat, with a language model", tern__cli_generate,
     &tern__generate_page, NULL},
    {"info", "show version, processor, back ends and libraries", tern__cli_info, &tern__info_page, NULL},
    {"bench", "measure training steps and collectives", tern__cli_bench, NULL, &tern__bench_menu},
    {"completion", "print the completion of a shell: bash, zsh or fish", tern__cli_completion,
     &tern__completion_page, NULL},
    {"man", "print the man page of a command", tern__cli_man, &tern__man_page, NULL},
    {0},
};

const tern__cli_menu tern__cli_root = {"tern",
                                       "command",
                                       "tern COMMAND [OPTIONS] ...\n"
                                       "       tern --help | --version",
                                       "Run `tern COMMAND --help` or `tern help COMMAND` for its options.",
                                       commands,
                                       10};

static bool asks_version(const char *word)
{
    return !strcmp(word, "--version") || !strcmp(word, "-V") || !strcmp(word, "version");
}

int main(int argc, char **argv)
{
    if (argc != 2 || !asks_version(argv[1])) return tern__cli_dispatch(&tern__cli_root, argc, argv);
    printf("tern %s\n", tern_version());
    return tern__cli_flush("tern");
}
