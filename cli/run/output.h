/* output.h - where a stream of a rank goes: to the launcher's stream, to a file, or through a pipe to both.
 */
#ifndef TERN_CLI_RUN_OUTPUT_H
#define TERN_CLI_RUN_OUTPUT_H

#include "base/base.h"

#define TERN__PREFIX_BYTES 64

typedef struct tern__cli_output {
    bool is_piped;   /* through the launcher; otherwise to `file_fd`, or to the launcher's stream */
    bool joins_out;  /* stderr uses the pipe of stdout: both are one file, and this keeps the order */
    bool is_own;     /* not piped: the rank writes the launcher's stream itself                   */
    bool shows;      /* piped: copied to the launcher's stream                                    */
    bool is_live;    /* piped: a progress bar is copied as it moves                               */
    bool keeps_tail; /* piped: the last lines are kept for the report                             */
    int fd;          /* the read end of the pipe once the rank has started, else -1               */
    int file_fd;     /* a log, or -1                                                              */
    char prefix[TERN__PREFIX_BYTES]; /* before each line that is shown                            */
} tern__cli_output;

#endif
