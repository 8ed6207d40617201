/* options.h - reads the command line of `tern run` by its table of options, as torchrun does: two spellings
 * (--nproc-per-node, --nproc_per_node), any unique beginning of a name (--nproc), --name=value, and
 * environment variables (PET_NPROC_PER_NODE) for options that are not on the command line. */
#ifndef TERN_CLI_RUN_OPTIONS_H
#define TERN_CLI_RUN_OPTIONS_H

#include "option.h"

#define TERN__OPTIONS_MAX 64 /* rows of a table */

typedef struct tern__cli_words {
    const tern__cli_option *table;
    int count;
    char **rest;                          /* the first word after the options, and all others */
    const char *value[TERN__OPTIONS_MAX]; /* by row; NULL: not given; "" for a flag           */
    char origin[TERN__OPTIONS_MAX][64];   /* by row: "--nnodes" or "PET_NNODES"               */
} tern__cli_words;

/* Reads the options up to the first other word, or "--", without checking their values. E_INVALID. */
int tern__words_read(tern__cli_words *words, const tern__cli_option *table, char **argv, tern_error *err);
/* Was the option of this name given? */
bool tern__words_say(const tern__cli_words *words, const char *name);
/* Adds values from the environment and stores each value where its row says. Errors name the option or the
 * variable. */
int tern__words_store(tern__cli_words *words, tern_error *err);

#endif
