/* output.h - where a stream of a rank goes: to the launcher's own, to a file, or, by a pipe, to both. */
#ifndef TERN_CLI_RUN_OUTPUT_H
#define TERN_CLI_RUN_OUTPUT_H

#include "base/base.h"

#define TERN__PREFIX_BYTES 64

typedef struct tern__cli_output {
    bool is_piped;   /* through the launcher; otherwise to `file_fd`, or where the launcher's goes */
    bool joins_out;  /* stderr, where it is the same file as stdout: one pipe keeps the order      */
    bool shows;      /* piped: on the launcher's own                                              */
    bool keeps_tail; /* piped: its last lines are kept for the report                            */
    int fd;          /* the pipe's reading end, once the rank has started; or -1                  */
    int file_fd;     /* a log, or -1                                                              */
    char prefix[TERN__PREFIX_BYTES]; /* of each line that is shown                               */
} tern__cli_output;

#endif
