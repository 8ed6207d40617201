/* option.h - the options of a command as a table. The command line is read by it (flags.h, run/options.h),
 * and --help, the man page and the shells' completions are made from it. */
#ifndef TERN_CLI_OPTION_H
#define TERN_CLI_OPTION_H

#include "base/base.h"

typedef struct tern__cli_option tern__cli_option;

/* Reads a value into option->to. Returns a status; the error's text need not name the option. */
typedef int tern__option_fn(const tern__cli_option *option, const char *text, tern_error *err);

/* Where a value goes, one of `on`, `number`, `text` and `take` says. */
struct tern__cli_option {
    const char *name;  /* without the dashes; NULL: the row is a heading, in `help`, or without one the end */
    char letter;       /* or 0                                                                      */
    const char *value; /* its name in the help, "N", or all values, "f32|bf16"; in brackets: it may be
                        * missing; NULL: the option has none                                       */
    const char *help;  /* of a refused option: why                                                  */
    bool *on;          /* becomes true                                                              */
    long *number;      /* takes 1 to `most`                                                         */
    long most;         /* of a number                                                           */
    const char **text; /* takes any text, or one of all values                                  */
    tern__option_fn *take; /* takes what this function accepts; a missing value is NULL             */
    void *to;              /* for `take`                                                            */
    bool is_refused;
    bool is_hidden; /* accepted, but without effect for this command: said nowhere */
};

#define TERN__OPTION_HELP                                                                                    \
    {                                                                                                        \
        "help", 'h', .help = "print this text"                                                               \
    }

/* What is said about a command: usage, description, options. */
typedef struct tern__cli_page {
    const char *operands; /* what follows the options, "IN OUT"; a line for each way; NULL: nothing      */
    const char *about;    /* paragraphs, which are wrapped; lines that begin with a blank stay as they are */
    const tern__cli_option *options;
} tern__cli_page;

/* Does `value` list all values? Fills in one of them, `word`, and returns the rest, or NULL at the end. */
bool tern__option_has_words(const tern__cli_option *option);
const char *tern__option_next_word(const char *value, char word[32]);
bool tern__option_may_lack_value(const tern__cli_option *option);
/* Is the row not the end of the table? Is it an option that the help lists? */
bool tern__option_is_row(const tern__cli_option *option);
bool tern__option_is_listed(const tern__cli_option *option);

/* Read a whole number from `low` to `high`, and a finite number. False: the text is no such number. */
bool tern__number_read(const char *text, long low, long high, long *number);
bool tern__real_read(const char *text, double *real);

/* Stores a value where the row says. E_INVALID, and what a `take` returns. */
int tern__option_store(const tern__cli_option *option, const char *text, tern_error *err);

/* Prints what --help shows of a command, "tern bench step". */
void tern__page_print(const char *who, const tern__cli_page *page);

/* Returns the one of `count` words that `word` may be a misspelling of, or NULL. */
const char *tern__word_nearest(const char *word, const char *const *words, int count);

#endif
