/* options.h - a command line by a table of options, as torchrun reads it: both spellings (--nproc-per-node,
 * --nproc_per_node), any beginning that only one option has (--nproc), --name=value, and the environment
 * (PET_NPROC_PER_NODE) for what the command line does not say. */
#ifndef TERN_CLI_RUN_OPTIONS_H
#define TERN_CLI_RUN_OPTIONS_H

#include "run/job.h"

typedef int tern__take_fn(const char *text, tern__job *job, tern_error *err);

typedef struct tern__cli_option {
    const char *name;    /* NULL: a heading, in `help`                    */
    char letter;         /* or 0                                          */
    const char *value;   /* what the help calls it; NULL: a flag          */
    tern__take_fn *take; /* NULL: refused, for the reason that `help` is  */
    const char *help;
} tern__cli_option;

#define TERN__OPTIONS_MAX 64

typedef struct tern__option_table {
    const tern__cli_option *rows;
    int count; /* at most TERN__OPTIONS_MAX */
} tern__option_table;

typedef struct tern__cli_words {
    const tern__option_table *table;
    char **rest;                          /* from the first word that is no option's     */
    const char *value[TERN__OPTIONS_MAX]; /* by row; NULL: not said; a flag's is ""      */
    char origin[TERN__OPTIONS_MAX][64];   /* "--nnodes" or "PET_NNODES": where it stands */
} tern__cli_words;

/* Only reads; everything from the first word that is no option on, or behind "--", is left. E_INVALID. */
int tern__words_read(tern__cli_words *words, const tern__option_table *table, char **argv, tern_error *err);
bool tern__words_say(const tern__cli_words *words, const char *name);
/* Adds the environment and hands each value to its row. Errors name the option or the variable. */
int tern__words_take(tern__cli_words *words, tern__job *job, tern_error *err);

/* The help, on stdout. */
void tern__option_table_print(const tern__option_table *table);

#endif
