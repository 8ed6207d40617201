/* fish.c - the completion of fish: a line for each command and each option. */
#include "completion/completion.h"

#include <stdio.h>

/* Prints the condition under which a line holds: the words after tern begin with the command's. */
static void print_fish_condition(const char *condition, const char *who)
{
    printf("complete -c tern -n '__tern_%s %s'", condition, who);
}

static void print_description(const char *help)
{
    printf(" -d '");
    tern__print_summary(help, "\\", "\\'");
    puts("'");
}

static void print_option(const char *who, const char *name, const tern__cli_option *option)
{
    char command[64];
    tern__completion_kind operand = tern__completion_of_value(option);
    snprintf(command, sizeof(command), "%s %s", who, name);
    print_fish_condition("is", command);
    printf(" -l %s", option->name);
    if (option->letter) printf(" -s %c", option->letter);
    if (option->value && !tern__option_may_lack_value(option))
        printf(operand == TERN__COMPLETION_FILE ? " -r -F" : " -x");
    if (tern__option_has_words(option)) {
        printf(" -a '");
        tern__print_words(option, " ");
        putchar('\'');
    }
    if (operand == TERN__COMPLETION_FOLDER) printf(" -a '(__fish_complete_directories)'");
    print_description(option->help);
}

static void print_operands(const char *who, const char *name, const tern__cli_page *page)
{
    char command[64];
    snprintf(command, sizeof(command), "%s %s", who, name);
    switch (tern__completion_of_page(page)) {
    case TERN__COMPLETION_FILE:
        print_fish_condition("is", command);
        puts(" -F");
        break;
    case TERN__COMPLETION_PROGRAM:
        print_fish_condition("is", command);
        puts(" -F -a '(__fish_complete_command)'");
        break;
    default:
        if (!page->operands) break;
        print_fish_condition("is", command);
        printf(" -a '");
        tern__print_operands(page, " ");
        puts("'");
    }
}

static void fish_print_menu(const tern__cli_menu *menu)
{
    for (const tern__cli_command *c = menu->commands; c->name; c++) {
        print_fish_condition("needs", menu->who);
        printf(" -a %s", c->name);
        print_description(c->help);
    }
    for (const tern__cli_command *c = menu->commands; c->name; c++) {
        if (c->menu) fish_print_menu(c->menu);
        if (!c->page) continue;
        print_operands(menu->who, c->name, c->page);
        for (const tern__cli_option *o = c->page->options; tern__option_is_row(o); o++)
            if (tern__option_is_listed(o)) print_option(menu->who, c->name, o);
    }
}

void tern__completion_fish(void)
{
    puts("# The completion of tern for fish, made by `tern completion fish`.\n"
         "complete -c tern -f\n"
         "function __tern_is\n"
         "    set -l words (commandline -opc)\n"
         "    test (count $words) -ge (count $argv); or return 1\n"
         "    set words[1] tern\n"
         "    test \"$words[1..\"(count $argv)\"]\" = \"$argv\"\n"
         "end\n"
         "function __tern_needs\n"
         "    test (count (commandline -opc)) -eq (count $argv); and __tern_is $argv\n"
         "end");
    fish_print_menu(&tern__cli_root);
}
