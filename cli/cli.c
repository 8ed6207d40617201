/* cli.c - what all subcommands of `tern` share. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int tern__cli_flush(const char *who)
{
    if (!fflush(stdout) && !ferror(stdout)) return TERN__EXIT_OK;
    fprintf(stderr, "%s: cannot write: %s\n", who, strerror(errno));
    return TERN__EXIT_FAILED;
}
