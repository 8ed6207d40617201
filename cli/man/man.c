/* man.c - `tern man`: prints a command's man page, from its page and its table of options. */
#include "cli.h"
#include "flags.h"

#include <ctype.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

static const tern__cli_option options[] = {TERN__OPTION_HELP, {0}};

const tern__cli_page tern__man_page = {
    "[COMMAND]",
    "Prints the man page of tern, or of one of its commands, for man(1):\n"
    "\n"
    "    tern man run | man -l -\n"
    "\n"
    "`make install` installs them as tern(1), tern-run(1) and so on.\n",
    options,
};

/* Prints text that roff must not interpret: a line never begins with a control character, and - is the
 * ASCII character. */
static void man_print_text(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (!i && (text[i] == '.' || text[i] == '\'')) printf("\\&");
        if (text[i] == '\\')
            printf("\\e");
        else if (text[i] == '-')
            printf("\\-");
        else if (text[i] == '\'')
            printf("\\(aq");
        else if (text[i] == '`')
            printf("\\(ga");
        else if (text[i] == '^')
            printf("\\(ha");
        else if (text[i] == '~')
            printf("\\(ti");
        else if (text[i] == '|')
            printf("|\\:"); /* a long list of values may break here */
        else
            putchar(text[i]);
    }
}

static void print_line(const char *macro, const char *text)
{
    fputs(macro, stdout);
    man_print_text(text, strlen(text));
    putchar('\n');
}

static void print_title(const char *name, const char *help)
{
    char upper[64];
    for (size_t i = 0; i <= strlen(name) && i < sizeof(upper); i++)
        upper[i] = (char)toupper((unsigned char)name[i]);
    printf(".TH %s 1 \"\" \"tern %s\" \"tern\"\n.SH NAME\n", upper, tern_version());
    man_print_text(name, strlen(name));
    printf(" \\- ");
    print_line("", help);
}

/* Lines that begin with a blank are an example, an empty line ends a paragraph. */
static void print_about(const char *text)
{
    bool is_example = false;
    while (*text) {
        size_t length = strcspn(text, "\n");
        bool begins = *text == ' ' && !is_example, ends = *text != ' ' && is_example;
        if (ends) printf(".fi\n");
        is_example = *text == ' ';
        if (!length) printf(".PP\n");
        if (begins) printf(".nf\n");
        man_print_text(text, length);
        if (length) putchar('\n');
        text += length + (text[length] == '\n');
    }
    if (is_example) printf(".fi\n");
}

static void print_option(const tern__cli_option *option)
{
    printf(".TP\n\\fB");
    if (option->letter) printf("\\-%c\\fR, \\fB", option->letter);
    printf("\\-\\-");
    man_print_text(option->name, strlen(option->name));
    printf("\\fR");
    if (option->value) {
        bool may_lack = tern__option_may_lack_value(option);
        printf(may_lack ? "[=" : " \\fI");
        man_print_text(option->value + may_lack, strlen(option->value) - may_lack);
        printf("\\fR");
    }
    putchar('\n');
    print_line("", option->help);
}

static void print_options(const tern__cli_option *rows, const char *heading)
{
    bool has_refused = false;
    if (rows->name) printf("%s OPTIONS\n", heading);
    for (const tern__cli_option *o = rows; tern__option_is_row(o); o++) {
        if (!o->name) {
            printf("%s \"", heading);
            print_line("", o->help);
            continue;
        }
        has_refused |= o->is_refused;
        if (tern__option_is_listed(o)) print_option(o);
    }
    if (!has_refused) return;
    printf("%s \"REFUSED OPTIONS\"\n", heading);
    for (const tern__cli_option *o = rows; tern__option_is_row(o); o++)
        if (o->is_refused) print_option(o);
}

static void man_print_page(const char *who, const tern__cli_page *page, const char *heading)
{
    const char *operands = page->operands ? page->operands : "";
    do {
        size_t length = strcspn(operands, "\n");
        printf(".B %s\n", who);
        print_line("", "[OPTIONS]");
        man_print_text(operands, length);
        if (length) putchar('\n');
        operands += length + (operands[length] == '\n');
        if (*operands) puts(".br");
    } while (*operands);
    puts(*heading == '.' && heading[2] == 'H' ? ".SH DESCRIPTION" : ".PP");
    print_about(page->about);
    print_options(page->options, heading);
}

/* The page of a menu lists its commands; the benches have no pages of their own and are sections of it. */
static void man_print_menu(const tern__cli_menu *menu, bool has_sections)
{
    puts(".SH SYNOPSIS");
    print_line(".B ", menu->who);
    printf("%s [OPTIONS] ..\n.SH COMMANDS\n", strcmp(menu->noun, "bench") ? "COMMAND" : "BENCH");
    for (const tern__cli_command *c = menu->commands; c->name; c++) {
        puts(".TP");
        print_line(".B ", c->name);
        print_line("", c->help);
    }
    const tern__cli_page *last = NULL;
    for (const tern__cli_command *c = menu->commands; has_sections && c->name; c++) {
        char who[64];
        if (c->page == last) continue; /* several collectives have the same page */
        last = c->page;
        snprintf(who, sizeof(who), "%s %s", menu->who, c->name);
        printf(".SH \"%s\"\n", who);
        man_print_page(who, c->page, ".SS");
    }
}

static void print_see_also(const tern__cli_command *command)
{
    const tern__cli_command *all = tern__cli_root.commands;
    puts(".SH \"SEE ALSO\"");
    if (command) puts(".BR tern (1)");
    for (int i = 0; !command && all[i].name; i++)
        printf(".BR tern\\-%s (1)%s\n", all[i].name, all[i + 1].name ? "," : "");
}

static void print_command(const tern__cli_command *command)
{
    char name[64] = "tern", who[64] = "tern";
    if (command) snprintf(name, sizeof(name), "tern-%s", command->name);
    if (command) snprintf(who, sizeof(who), "tern %s", command->name);
    print_title(name, command ? command->help : "distributed data-parallel training of neural networks");
    if (command && command->page) {
        puts(".SH SYNOPSIS");
        man_print_page(who, command->page, ".SH");
    } else {
        man_print_menu(command ? command->menu : &tern__cli_root, command != NULL);
    }
    print_see_also(command);
}

int tern__cli_man(int argc, char **argv)
{
    int status = tern__flags_read(&tern__man_page, "tern man", argc, argv);
    if (status) return status < 0 ? tern__cli_flush("tern man") : status;
    const char *name = optind < argc ? argv[optind] : NULL;
    const tern__cli_command *command = tern__cli_root.commands;
    while (name && command->name && strcmp(name, command->name) != 0) command++;
    if (name && (!command->name || optind + 1 < argc)) {
        tern__cli_complain("tern man", "expected one of tern's commands, got \"%s\"", argv[argc - 1]);
        return TERN__EXIT_USAGE;
    }
    print_command(name ? command : NULL);
    return tern__cli_flush("tern man");
}
