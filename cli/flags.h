/* flags.h - the command line of a subcommand as a table: each row says where its value goes. getopt_long
 * reads it, so GNU's rules hold: any unique beginning of a name, --name=value, options after file names.
 * (`tern run` follows torchrun's rules instead: run/options.h.) */
#ifndef TERN_CLI_FLAGS_H
#define TERN_CLI_FLAGS_H

#include "base/base.h"

#define TERN__FLAGS_MAX 24 /* rows of a table */

/* Reads `text` into `to`. Returns false after it has printed why `text` is wrong. */
typedef bool tern__flag_fn(const char *who, char *text, void *to);

/* One of `on`, `number`, `text` and `take` is set. */
typedef struct tern__flag {
    const char *name; /* without the dashes; NULL ends the table           */
    bool *on;         /* an option without a value: becomes true           */
    long *number;     /* takes 1 to `most`                                 */
    long most;
    const char **text;        /* takes any text, or one of `words`                 */
    const char *const *words; /* NULL at the end                                   */
    tern__flag_fn *take;      /* takes what this function accepts into `to`        */
    void *to;
    bool optional; /* of `take`: the value may be missing; its text is NULL then */
} tern__flag;

/* Reads argv up to optind, where file names begin; `who` ("tern bench step") is named in messages. Returns
 * TERN__EXIT_OK, TERN__EXIT_USAGE after a message, or -1 after --help, for which it prints `usage` unless
 * that is NULL. */
int tern__flags_read(const tern__flag *flags, const char *who, const char *usage, int argc, char **argv);
/* The same for a subcommand that takes no file names. */
int tern__flags_read_all(const tern__flag *flags, const char *who, const char *usage, int argc, char **argv);

/* Returns whether `text` is one of `words`, after a message if not. */
bool tern__flag_word(const char *who, const char *name, const char *text, const char *const *words);

#endif
