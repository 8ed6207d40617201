/* run_options.h - the options of `tern run`: torchrun's and its own, from one table. */
#ifndef TERN_CLI_RUN_RUN_OPTIONS_H
#define TERN_CLI_RUN_RUN_OPTIONS_H

#include "run/job.h"

/* Of a command line that begins with the command's name. E_INVALID, E_UNSUPPORTED and E_ENV name the option
 * or the variable. */
int tern__run_options_read(char **argv, tern__job *job, bool *wants_help, tern_error *err);

/* A row for each option, on stdout. */
void tern__run_options_print(void);

/* "3" or "0:3,1:1" (see tern__log_opts): the streams of a local rank, or -1 if `text` is neither. */
int tern__streams_of(const char *text, int local);
/* Is `local` in the list "0,2"? -1: no such list. The empty list holds all. */
int tern__list_holds(const char *text, int local);

#endif
