/* zsh.c - the completion of zsh: a function for each command, of calls to _arguments. */
#include "completion/completion.h"

#include <stdio.h>

static void print_action(const tern__cli_option *option)
{
    tern__completion_kind operand = tern__completion_of_value(option);
    printf(":%s:", option->name);
    if (tern__option_has_words(option)) {
        putchar('(');
        tern__print_words(option, " ");
        putchar(')');
    } else if (operand != TERN__COMPLETION_NONE) {
        fputs(operand == TERN__COMPLETION_FILE ? "_files" : "_files -/", stdout);
    } else {
        putchar(' ');
    }
}

static void print_spec(const tern__cli_option *option, const char *dashes, const char *name, int length)
{
    printf(" \\\n        '%s%.*s%s[", dashes, length, name,
           !option->value         ? ""
           : *dashes && dashes[1] ? "="
                                  : "+");
    tern__print_summary(option->help, ":[]\\", "'\\''");
    putchar(']');
    if (option->value && tern__option_may_lack_value(option)) putchar(':');
    if (option->value) print_action(option);
    putchar('\'');
}

static void zsh_print_page(const tern__cli_page *page)
{
    printf("    _arguments -s");
    for (const tern__cli_option *o = page->options; tern__option_is_row(o); o++) {
        if (!tern__option_is_listed(o)) continue;
        print_spec(o, "--", o->name, 64);
        if (o->letter) print_spec(o, "-", &o->letter, 1);
    }
    switch (tern__completion_of_page(page)) {
    case TERN__COMPLETION_PROGRAM:
        printf(" \\\n        '(-)1:program:_command_names -e' '*::arguments:_normal'");
        break;
    case TERN__COMPLETION_FILE: printf(" \\\n        '*:file:_files'"); break;
    default:
        if (page->operands) {
            printf(" \\\n        '1:name:(");
            tern__print_operands(page, " ");
            printf(")'");
        }
    }
    putchar('\n');
}

static void zsh_print_menu(const tern__cli_menu *menu)
{
    printf("    local -a names=(");
    for (const tern__cli_command *c = menu->commands; c->name; c++) {
        printf("'%s:", c->name);
        tern__print_summary(c->help, ":\\", "'\\''");
        printf("' ");
    }
    printf("'help:print the help of a command')\n"
           "    if ((CURRENT == 2)); then\n"
           "        _describe -t commands %s names\n"
           "        return\n"
           "    fi\n"
           "    shift words\n"
           "    ((CURRENT--))\n"
           "    case $words[1] in\n",
           menu->noun);
    for (const tern__cli_command *c = menu->commands; c->name; c++) {
        printf("    %s)\n", c->name);
        if (c->menu) zsh_print_menu(c->menu);
        if (c->page) zsh_print_page(c->page);
        puts("        ;;");
    }
    puts("    esac");
}

void tern__completion_zsh(void)
{
    puts("#compdef tern\n"
         "# The completion of tern for zsh, made by `tern completion zsh`.\n"
         "_tern() {");
    zsh_print_menu(&tern__cli_root);
    puts("}\n"
         "if [[ $funcstack[1] == _tern ]]; then\n"
         "    _tern \"$@\"\n"
         "else\n"
         "    compdef _tern tern\n"
         "fi");
}
