/* run_options.h - the options of `tern run`: torchrun's and its own. */
#ifndef TERN_CLI_RUN_RUN_OPTIONS_H
#define TERN_CLI_RUN_RUN_OPTIONS_H

#include "option.h"
#include "run/job.h"

/* Reads a command line, whose first word is the command's name, into job. E_INVALID, E_UNSUPPORTED and E_ENV
 * name the option or the variable. */
int tern__run_options_read(char **argv, tern__job *job, bool *wants_help, tern_error *err);

extern const tern__cli_page tern__run_page;

/* Returns the streams of a local rank from "3" or "0:3,1:1" (see tern__log_opts); -1 if `text` is invalid. */
int tern__streams_of(const char *text, int local);
/* Is `local` in a list such as "0,2"? Returns 1, 0, or -1 if `text` is invalid. An empty list contains all
 * ranks. */
int tern__list_holds(const char *text, int local);

#endif
