/* completion.c - `tern completion`: prints a script that completes tern's command line in a shell. */
#include "completion/completion.h"
#include "flags.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#define SUMMARY_MOST 60

static const tern__cli_option options[] = {TERN__OPTION_HELP, {0}};

const tern__cli_page tern__completion_page = {
    "bash|zsh|fish",
    "Prints a script that completes commands, options and their values. `make install` puts it where the "
    "shells look for it; otherwise:\n"
    "\n"
    "    source <(tern completion bash)                       bash, in ~/.bashrc\n"
    "    tern completion zsh > FOLDER/_tern                   zsh, FOLDER in $fpath\n"
    "    tern completion fish > ~/.config/fish/completions/tern.fish\n",
    options,
};

static const struct {
    const char *name;
    void (*print)(void);
} shells[] = {
    {"bash", tern__completion_bash}, {"zsh", tern__completion_zsh}, {"fish", tern__completion_fish}};

int tern__cli_completion(int argc, char **argv)
{
    int status = tern__flags_read(&tern__completion_page, "tern completion", argc, argv);
    if (status) return status < 0 ? tern__cli_flush("tern completion") : status;
    const char *name = optind + 1 == argc ? argv[optind] : "";
    for (size_t i = 0; i < TERN__COUNT(shells); i++)
        if (!strcmp(name, shells[i].name)) {
            shells[i].print();
            return tern__cli_flush("tern completion");
        }
    tern__cli_complain("tern completion", "expected bash, zsh or fish%s%s%s", *name ? ", got \"" : "", name,
                       *name ? "\"" : "");
    return TERN__EXIT_USAGE;
}

/* ---- what all shells need ---- */

tern__completion_kind tern__completion_of_page(const tern__cli_page *page)
{
    if (!page || !page->operands) return TERN__COMPLETION_NONE;
    if (!strncmp(page->operands, "PROGRAM", 7)) return TERN__COMPLETION_PROGRAM;
    return *page->operands >= 'A' && *page->operands <= 'Z' ? TERN__COMPLETION_FILE : TERN__COMPLETION_NONE;
}

tern__completion_kind tern__completion_of_value(const tern__cli_option *option)
{
    if (!option->value) return TERN__COMPLETION_NONE;
    if (!strcmp(option->value, "DIR")) return TERN__COMPLETION_FOLDER;
    return !strcmp(option->value, "PATH") ? TERN__COMPLETION_FILE : TERN__COMPLETION_NONE;
}

void tern__print_words(const tern__cli_option *option, const char *between)
{
    char word[32];
    const char *rest = option->value, *before = "";
    for (; (rest = tern__option_next_word(rest, word)); before = between) printf("%s%s", before, word);
}

void tern__print_names(const tern__cli_menu *menu, const char *between)
{
    for (const tern__cli_command *c = menu->commands; c->name; c++)
        printf("%s%s", c == menu->commands ? "" : between, c->name);
}

void tern__print_operands(const tern__cli_page *page, const char *between)
{
    if (!strcmp(page->operands, "[COMMAND]"))
        tern__print_names(&tern__cli_root, between);
    else
        tern__print_words(&(tern__cli_option){.value = page->operands}, between);
}

void tern__print_summary(const char *help, const char *escaped, const char *quote)
{
    size_t length = strcspn(help, ";(");
    const char *sentence = strstr(help, ". ");
    if (sentence) length = TERN__MIN(length, (size_t)(sentence - help));
    if (length > SUMMARY_MOST)
        for (length = SUMMARY_MOST; help[length] != ' ';) length--;
    while (length && strchr(" ,:", help[length - 1])) length--;
    for (size_t i = 0; i < length; i++)
        if (help[i] == '\'')
            fputs(quote, stdout);
        else
            printf("%s%c", strchr(escaped, help[i]) ? "\\" : "", help[i]);
}
