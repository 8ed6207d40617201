/* bash.c - the completion of bash: a table of cases, one for each command, and a function that reads it. */
#include "completion/completion.h"

#include <stdio.h>
#include <string.h>

/* Finds the command in the words before the cursor and completes the word at the cursor. bash cuts words at
 * "=", which is undone first. Behind the program of tern run the program's own completion goes on. */
static const char function[] =
    "_tern() {\n"
    "    local command=tern at=1 word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
    "    local names options takes values operand\n"
    "    COMPREPLY=()\n"
    "    if [[ $word == = ]]; then\n"
    "        word=\n"
    "    elif [[ $before == = ]]; then\n"
    "        before=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    fi\n"
    "    _tern_command\n"
    "    while [[ -n $names && $at -lt $COMP_CWORD && \" $names \" == *\" ${COMP_WORDS[at]} \"* ]]; do\n"
    "        [[ ${COMP_WORDS[at]} == help ]] || command+=\" ${COMP_WORDS[at]}\"\n"
    "        ((at++))\n"
    "        _tern_command\n"
    "    done\n"
    "    if [[ -n $names ]]; then\n"
    "        [[ $at -lt $COMP_CWORD ]] || COMPREPLY=($(compgen -W \"$names\" -- \"$word\"))\n"
    "        return\n"
    "    fi\n"
    "    if [[ $operand == program ]]; then\n"
    "        while [[ $at -lt $COMP_CWORD ]]; do\n"
    "            case ${COMP_WORDS[at]} in\n"
    "            --) ((at++)); break ;;\n"
    "            -*)\n"
    "                if [[ ${COMP_WORDS[at + 1]} == = ]]; then\n"
    "                    ((at += 2))\n"
    "                elif [[ \" $takes \" == *\" ${COMP_WORDS[at]//_/-} \"* ]]; then\n"
    "                    ((at++))\n"
    "                fi\n"
    "                ((at++)) ;;\n"
    "            *) break ;;\n"
    "            esac\n"
    "        done\n"
    "        if [[ $at -lt $COMP_CWORD ]]; then\n"
    "            if declare -F _command_offset > /dev/null; then\n"
    "                _command_offset \"$at\"\n"
    "            else\n"
    "                COMPREPLY=($(compgen -f -- \"$word\"))\n"
    "            fi\n"
    "            return\n"
    "        fi\n"
    "    fi\n"
    "    values=\n"
    "    _tern_value\n"
    "    case $values in\n"
    "    file) compopt -o filenames 2> /dev/null; COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n"
    "    folder) compopt -o filenames 2> /dev/null; COMPREPLY=($(compgen -d -- \"$word\")); return ;;\n"
    "    ?*) COMPREPLY=($(compgen -W \"$values\" -- \"$word\")); return ;;\n"
    "    esac\n"
    "    [[ \" $takes \" == *\" $before \"* ]] && return\n"
    "    if [[ $word == -* ]]; then\n"
    "        COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
    "        return\n"
    "    fi\n"
    "    case $operand in\n"
    "    file) compopt -o filenames 2> /dev/null; COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
    "    program) compopt -o filenames 2> /dev/null; COMPREPLY=($(compgen -c -f -- \"$word\")) ;;\n"
    "    ?*) COMPREPLY=($(compgen -W \"$operand\" -- \"$word\")) ;;\n"
    "    esac\n"
    "}\n"
    "complete -F _tern tern\n";

static void print_operand(const tern__cli_page *page)
{
    static const char *const names[] = {"", "file", "folder", "program"};
    tern__completion_kind operand = tern__completion_of_page(page);
    fputs(names[operand], stdout);
    if (operand == TERN__COMPLETION_NONE && page->operands) tern__print_operands(page, " ");
}

static void bash_print_page(const tern__cli_page *page)
{
    printf("options='");
    for (const tern__cli_option *o = page->options; tern__option_is_row(o); o++)
        if (tern__option_is_listed(o)) printf("--%s ", o->name);
    printf("' takes='");
    for (const tern__cli_option *o = page->options; tern__option_is_row(o); o++) {
        if (!tern__option_is_listed(o) || !o->value || tern__option_may_lack_value(o)) continue;
        printf("--%s ", o->name);
        if (o->letter) printf("-%c ", o->letter);
    }
    printf("' operand='");
    print_operand(page);
    puts("' ;;");
}

static void print_commands(const tern__cli_menu *menu)
{
    printf("    '%s') names='", menu->who);
    tern__print_names(menu, " ");
    puts(menu == &tern__cli_root ? " help version' ;;" : " help' ;;");
    for (const tern__cli_command *c = menu->commands; c->name; c++) {
        if (c->menu) print_commands(c->menu);
        if (!c->page) continue;
        printf("    '%s %s') ", menu->who, c->name);
        bash_print_page(c->page);
    }
}

static void print_values(const tern__cli_menu *menu)
{
    for (const tern__cli_command *c = menu->commands; c->name; c++) {
        if (c->menu) print_values(c->menu);
        for (const tern__cli_option *o = c->page ? c->page->options : NULL; o && tern__option_is_row(o);
             o++) {
            tern__completion_kind operand = tern__completion_of_value(o);
            if (!tern__option_is_listed(o) ||
                (!tern__option_has_words(o) && operand == TERN__COMPLETION_NONE))
                continue;
            printf("    '%s %s --%s') values='", menu->who, c->name, o->name);
            if (operand == TERN__COMPLETION_NONE)
                tern__print_words(o, " ");
            else
                fputs(operand == TERN__COMPLETION_FILE ? "file" : "folder", stdout);
            puts("' ;;");
        }
    }
}

void tern__completion_bash(void)
{
    puts("# The completion of tern for bash, made by `tern completion bash`.\n"
         "_tern_command() {\n"
         "    names= options= takes= operand=\n"
         "    case $command in");
    print_commands(&tern__cli_root);
    puts("    esac\n"
         "}\n"
         "_tern_value() {\n"
         "    case \"$command ${before//_/-}\" in");
    print_values(&tern__cli_root);
    puts("    esac\n"
         "}");
    fputs(function, stdout);
}
