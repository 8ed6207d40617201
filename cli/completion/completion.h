/* completion.h - writes the completions of the shells from the menus and the tables of options. */
#ifndef TERN_CLI_COMPLETION_COMPLETION_H
#define TERN_CLI_COMPLETION_COMPLETION_H

#include "cli.h"

/* What a command or a value is followed by. */
typedef enum tern__completion_kind {
    TERN__COMPLETION_NONE,
    TERN__COMPLETION_FILE,
    TERN__COMPLETION_FOLDER,
    TERN__COMPLETION_PROGRAM
} tern__completion_kind;
tern__completion_kind tern__completion_of_page(const tern__cli_page *page);
tern__completion_kind tern__completion_of_value(const tern__cli_option *option);

/* Prints all values of the option, or the names of a menu's commands, with `between` between them. */
void tern__print_words(const tern__cli_option *option, const char *between);
void tern__print_names(const tern__cli_menu *menu, const char *between);

/* Prints the words that may follow the options of a page with operands. */
void tern__print_operands(const tern__cli_page *page, const char *between);

/* Prints the beginning of a help text. Characters of `escaped` get a backslash, and quotes become `quote`. */
void tern__print_summary(const char *help, const char *escaped, const char *quote);

void tern__completion_bash(void);
void tern__completion_zsh(void);
void tern__completion_fish(void);

#endif
