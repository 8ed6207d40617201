/* cli.h - the subcommands of `tern`, a folder for each, and what they share. */
#ifndef TERN_CLI_H
#define TERN_CLI_H

#include "option.h"

/* Exit codes of the command itself; a job's failures pass through as 1..255. */
enum { TERN__EXIT_OK = 0, TERN__EXIT_FAILED = 1, TERN__EXIT_USAGE = 2 };

/* CLOCK_MONOTONIC in ns at the launcher's start: `tern bench step` measures the start-up time from it. The
 * caller of the launcher may set it to an earlier time. */
#define TERN__ENV_STARTED "TERN_STARTED_NS"

/* Prints "who: message" on stderr, with what a terminal must not interpret escaped. */
void tern__cli_complain(const char *who, const char *fmt, ...) TERN__PRINTF(2, 3);

/* Flushes stdout. Returns TERN__EXIT_OK, or TERN__EXIT_FAILED after an error message that names `who`. */
int tern__cli_flush(const char *who);

/* A subcommand gets its own name as argv[0] and returns the exit code. */
typedef int tern__cli_fn(int argc, char **argv);

typedef struct tern__cli_menu tern__cli_menu;

/* It has a page, or a menu if it has subcommands. */
typedef struct tern__cli_command {
    const char *name, *help;
    tern__cli_fn *run;
    const tern__cli_page *page;
    const tern__cli_menu *menu;
} tern__cli_command;

/* What a command with subcommands offers. */
struct tern__cli_menu {
    const char *who, *noun;            /* "tern bench" expects a "bench" */
    const char *usage, *about;         /* below "usage: "; below the list of commands */
    const tern__cli_command *commands; /* the last one's name is NULL */
    int width;                         /* of the longest name, or more */
};

/* Runs the subcommand that argv[1] names, or prints the usage: for --help and "help", or after an error
 * message. "help NAME" is NAME's --help. Returns the exit code. */
int tern__cli_dispatch(const tern__cli_menu *menu, int argc, char **argv);

tern__cli_fn tern__cli_run;
tern__cli_fn tern__cli_info;
tern__cli_fn tern__cli_bench;
tern__cli_fn tern__cli_inspect;
tern__cli_fn tern__cli_convert;
tern__cli_fn tern__cli_tokenize;
tern__cli_fn tern__cli_generate;
tern__cli_fn tern__cli_completion;
tern__cli_fn tern__cli_man;
tern__cli_fn tern__cli_new;

extern const tern__cli_menu tern__cli_root, tern__bench_menu;
extern const tern__cli_page tern__run_page, tern__inspect_page, tern__convert_page, tern__tokenize_page,
    tern__generate_page, tern__info_page, tern__completion_page, tern__man_page, tern__new_page;

#endif
