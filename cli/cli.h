/* cli.h - the subcommands of `tern`, a folder for each, and what they share. */
#ifndef TERN_CLI_H
#define TERN_CLI_H

#include "base/base.h"

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

typedef struct tern__cli_command {
    const char *name, *help;
    tern__cli_fn *run;
} tern__cli_command;

/* What a command with subcommands offers. */
typedef struct tern__cli_menu {
    const char *who, *noun;            /* "tern bench" expects a "bench" */
    const char *head, *tail;           /* of the usage, around the list of commands */
    const tern__cli_command *commands; /* the last one's name is NULL */
    int width;                         /* of the longest name, or more */
} tern__cli_menu;

/* Runs the subcommand that argv[1] names, or prints the usage: for --help, or after an error message. Returns
 * the exit code. */
int tern__cli_dispatch(const tern__cli_menu *menu, int argc, char **argv);

tern__cli_fn tern__cli_run;
tern__cli_fn tern__cli_info;
tern__cli_fn tern__cli_bench;
tern__cli_fn tern__cli_inspect;
tern__cli_fn tern__cli_convert;

#endif
