/* option.c - a row of a table of options: stores a value and describes it; a table as text for a terminal;
 * the word that a misspelled one means. */
#include "option.h"

#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH       80
#define INDENT_MOST 36
#define WORD_MOST   31 /* longer words are no misspellings */

bool tern__option_is_row(const tern__cli_option *option)
{
    return option->name || option->help;
}

bool tern__option_is_listed(const tern__cli_option *option)
{
    return option->name && !option->is_refused && !option->is_hidden;
}

bool tern__option_may_lack_value(const tern__cli_option *option)
{
    return option->value && *option->value == '[';
}

bool tern__option_has_words(const tern__cli_option *option)
{
    const char *first = option->value + tern__option_may_lack_value(option);
    return option->value && (strchr(first, '|') || (*first >= 'a' && *first <= 'z'));
}

const char *tern__option_next_word(const char *value, char word[32])
{
    value += strspn(value, "[|]");
    size_t length = strcspn(value, "|]");
    snprintf(word, 32, "%.*s", (int)length, value);
    return length ? value + length : NULL;
}

/* ---- values ---- */

bool tern__number_read(const char *text, long low, long high, long *number)
{
    char *end;
    errno = 0;
    *number = strtol(text, &end, 10);
    return end != text && !*end && !errno && *number >= low && *number <= high;
}

bool tern__real_read(const char *text, double *real)
{
    char *end;
    *real = strtod(text, &end);
    return end != text && !*end && isfinite(*real);
}

static int store_number(const tern__cli_option *option, const char *text, tern_error *err)
{
    if (tern__number_read(text, 1, option->most, option->number)) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected a number from 1 to %ld, got \"%s\"",
                           option->most, text);
}

/* If the row lists all values, it must be one of them. */
static int store_text(const tern__cli_option *option, const char *text, tern_error *err)
{
    char known[256] = "", word[32];
    bool is_known = !tern__option_has_words(option);
    for (const char *rest = option->value; !is_known && (rest = tern__option_next_word(rest, word));) {
        is_known = !strcmp(text, word);
        tern__text_append(known, sizeof(known), "%s%s", *known ? " or " : "", word);
    }
    if (!is_known)
        return tern__error_set(err, __func__, TERN_E_INVALID, "expected %s, got \"%s\"", known, text);
    *option->text = text;
    return TERN_OK;
}

int tern__option_store(const tern__cli_option *option, const char *text, tern_error *err)
{
    if (option->take) return option->take(option, text, err);
    if (option->number) return store_number(option, text, err);
    if (option->text) return store_text(option, text, err);
    if (option->on) *option->on = true;
    return TERN_OK;
}

/* ---- help ---- */

static int new_line(int indent)
{
    printf("\n%*s", indent, "");
    return indent;
}

/* Prints words from column `indent` on, and wraps them to it. */
static void print_words(const char *text, int indent)
{
    for (int column = indent; *text;) {
        int length = (int)strcspn(text, " ");
        if (column > indent && column + 1 + length >= WIDTH) column = new_line(indent);
        column += printf("%s%.*s", column > indent ? " " : "", length, text);
        text += length + (text[length] == ' ');
    }
    putchar('\n');
}

static void print_about(const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        char line[1024];
        snprintf(line, sizeof(line), "%.*s", (int)length, text);
        if (*line == ' ')
            puts(line);
        else
            print_words(line, 0);
        text += length + (text[length] == '\n');
    }
}

static int head_of(const tern__cli_option *option, char head[96])
{
    char letter[8] = "    ";
    if (option->letter) snprintf(letter, sizeof(letter), "-%c, ", option->letter);
    const char *between = !option->value ? "" : tern__option_may_lack_value(option) ? "[=" : " ";
    return snprintf(head, 96, "  %s--%s%s%s", letter, option->name, between,
                    option->value ? option->value + (*between == '[') : "");
}

static int indent_of(const tern__cli_option *options)
{
    char head[96];
    int indent = 0;
    for (; tern__option_is_row(options); options++) {
        int length = tern__option_is_listed(options) ? head_of(options, head) + 2 : 0;
        if (length <= INDENT_MOST) indent = TERN__MAX(indent, length);
    }
    return indent;
}

static void option_print_row(const tern__cli_option *option, int indent)
{
    char head[96];
    int column = printf("%-*s", indent, (head_of(option, head), head));
    if (column > indent) new_line(indent);
    print_words(option->help, indent);
}

static void print_refused(const tern__cli_option *options)
{
    int column = 0;
    for (; tern__option_is_row(options); options++) {
        if (!options->name || !options->is_refused) continue;
        if (!column) printf("\nRefused with a message that gives the reason:");
        if (!column || column + 3 + strlen(options->name) > WIDTH) column = printf("\n ");
        column += printf(" --%s", options->name);
    }
    if (column) putchar('\n');
}

static void print_usage(const char *who, const char *operands)
{
    const char *start = "usage:";
    do {
        int length = (int)strcspn(operands, "\n");
        printf("%-6s %s [OPTIONS]%s%.*s\n", start, who, length ? " " : "", length, operands);
        operands += length + (operands[length] == '\n');
        start = "";
    } while (*operands);
    putchar('\n');
}

void tern__page_print(const char *who, const tern__cli_page *page)
{
    int indent = indent_of(page->options);
    print_usage(who, page->operands ? page->operands : "");
    print_about(page->about);
    if (page->options->name) putchar('\n');
    for (const tern__cli_option *row = page->options; tern__option_is_row(row); row++) {
        if (!row->name) printf("\n%s\n", row->help);
        if (tern__option_is_listed(row)) option_print_row(row, indent);
    }
    print_refused(page->options);
}

/* ---- misspelled words ---- */

/* Returns how many letters must be inserted, left out, changed, or exchanged with their neighbour to make one
 * word of the other: the distance of Damerau and Levenshtein, by rows. */
static int distance_of(const char *a, const char *b)
{
    int rows[3][WORD_MOST + 1], length = (int)strlen(b);
    int *before = rows[0], *above = rows[1], *row = rows[2];
    for (int k = 0; k <= length; k++) above[k] = k;
    for (int i = 1; a[i - 1]; i++) {
        row[0] = i;
        for (int k = 1; k <= length; k++) {
            int change = above[k - 1] + (a[i - 1] != b[k - 1]);
            row[k] = TERN__MIN(change, 1 + TERN__MIN(above[k], row[k - 1]));
            bool is_exchanged = i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
            if (is_exchanged) row[k] = TERN__MIN(row[k], before[k - 2] + 1);
        }
        int *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[length];
}

const char *tern__word_nearest(const char *word, const char *const *words, int count)
{
    const char *nearest = NULL;
    int length = (int)strlen(word), least = TERN__MAX(1, length / 3) + 1;
    if (length < 2 || length > WORD_MOST) return NULL;
    for (int i = 0; i < count; i++) {
        if (strlen(words[i]) > WORD_MOST) continue;
        bool begins = !strncmp(words[i], word, (size_t)length);
        int distance = begins ? 1 : distance_of(word, words[i]);
        if (distance >= least) continue;
        least = distance;
        nearest = words[i];
    }
    return nearest;
}
