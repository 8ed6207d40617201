/* flags.h - reads the command line of a command by its table of options. getopt_long reads it, so GNU's
 * rules hold: any unique beginning of a name, --name=value, options after file names. (`tern run` follows
 * torchrun's rules instead: run/options.h.) */
#ifndef TERN_CLI_FLAGS_H
#define TERN_CLI_FLAGS_H

#include "option.h"

#define TERN__FLAGS_MAX 24 /* rows of a table */

/* Reads argv up to optind, where file names begin; `who` ("tern bench step") is named in messages. Returns
 * TERN__EXIT_OK, TERN__EXIT_USAGE after a message, or -1 after --help, for which it prints the page. */
int tern__flags_read(const tern__cli_page *page, const char *who, int argc, char **argv);
/* The same for a command that takes no file names. */
int tern__flags_read_all(const tern__cli_page *page, const char *who, int argc, char **argv);

#endif
