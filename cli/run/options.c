/* options.c - reads a table of options. It first collects the values as text, from the command line and then
 * from the environment, and parses them afterwards. So a variable that the command line overrides may hold
 * anything, as in torchrun. */
#include "run/options.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding the row ---- */

/* Are the first `length` bytes the same? In `word`, _ stands for -. */
static bool name_begins(const char *name, const char *word, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (name[i] != (word[i] == '_' ? '-' : word[i])) return false;
    return true;
}

/* Names the option that a misspelled word may mean. */
static int fail_unknown(const tern__cli_words *words, const char *word, int length, tern_error *err)
{
    const char *names[TERN__OPTIONS_MAX], *nearest;
    char plain[64];
    int count = 0;
    for (int i = 0; i < words->count; i++)
        if (words->table[i].name && !words->table[i].is_refused) names[count++] = words->table[i].name;
    snprintf(plain, sizeof(plain), "%.*s", TERN__MAX(length - 2, 0), word + 2);
    for (char *at = plain; *at; at++) *at = *at == '_' ? '-' : *at;
    nearest = tern__word_nearest(plain, names, count);
    return tern__error_set(err, __func__, TERN_E_INVALID, "unknown option \"%.*s\"%s%s%s", length, word,
                           nearest ? "; did you mean --" : "", nearest ? nearest : "", nearest ? "?" : "");
}

static int fail_ambiguous(const char *word, int length, const char *first, const char *second,
                          tern_error *err)
{
    return tern__error_set(err, __func__, TERN_E_INVALID, "\"%.*s\" may be --%s or --%s", length, word, first,
                           second);
}

/* Returns the row, or a negative status. */
static int find_name(const tern__cli_words *words, const char *word, tern_error *err)
{
    int found = -1;
    const char *other = NULL;
    size_t length = strcspn(word + 2, "=");
    for (int i = 0; i < words->count; i++) {
        const char *name = words->table[i].name;
        if (!name || !name_begins(name, word + 2, length)) continue;
        if (!name[length]) return i;
        if (found >= 0 && !other) other = name;
        if (found < 0) found = i;
    }
    if (found >= 0 && !other) return found;
    if (!other) return fail_unknown(words, word, (int)length + 2, err);
    return fail_ambiguous(word, (int)length + 2, words->table[found].name, other, err);
}

static int find_letter(const tern__cli_words *words, const char *word, tern_error *err)
{
    for (int i = 0; i < words->count; i++)
        if (words->table[i].letter && words->table[i].letter == word[1]) return i;
    return fail_unknown(words, word, (int)strlen(word), err);
}

static int word_row(const tern__cli_words *words, const char *name)
{
    for (int i = 0; i < words->count; i++)
        if (words->table[i].name && !strcmp(words->table[i].name, name)) return i;
    return -1;
}

/* ---- the command line ---- */

static bool is_long(const char *word)
{
    return word[1] == '-';
}

/* Returns the value in the same word ("--name=value", "-nvalue"), or NULL. */
static const char *value_inside(const char *word)
{
    const char *equals = strchr(word, '=');
    if (is_long(word)) return equals ? equals + 1 : NULL;
    return word[2] ? word + 2 : NULL;
}

static int read_value(tern__cli_words *words, int row, tern_error *err)
{
    const char *word = *words->rest, *inside = value_inside(word);
    bool is_flag = !words->table[row].value;
    char *origin = words->origin[row];
    snprintf(origin, sizeof(words->origin[row]), "%.*s", is_long(word) ? (int)strcspn(word, "=") : 2, word);
    if (is_flag && inside)
        return tern__error_set(err, __func__, TERN_E_INVALID, "%s: takes no value", origin);
    words->value[row] = is_flag ? "" : inside ? inside : *++words->rest;
    if (words->value[row]) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "%s: expected a value", origin);
}

static int read_option(tern__cli_words *words, tern_error *err)
{
    const char *word = *words->rest;
    int row = is_long(word) ? find_name(words, word, err) : find_letter(words, word, err);
    return row < 0 ? row : read_value(words, row, err);
}

static bool is_option(const char *word)
{
    return word && word[0] == '-' && word[1];
}

int tern__words_read(tern__cli_words *words, const tern__cli_option *table, char **argv, tern_error *err)
{
    static char ranks[] = "--nproc-per-node";
    *words = (tern__cli_words){.table = table, .rest = argv};
    while (tern__option_is_row(&table[words->count])) words->count++;
    for (; is_option(*words->rest); words->rest++) {
        if (!strcmp(*words->rest, "-np")) *words->rest = ranks; /* mpirun's */
        if (!strcmp(*words->rest, "--")) {
            words->rest++;
            break;
        }
        int status = read_option(words, err);
        if (status || tern__words_say(words, "help")) return status;
    }
    return TERN_OK;
}

bool tern__words_say(const tern__cli_words *words, const char *name)
{
    int row = word_row(words, name);
    return row >= 0 && words->value[row];
}

/* ---- the environment ---- */

/* Reads the option's variable; a flag's is 0 or 1. */
static int read_variable(tern__cli_words *words, int row, tern_error *err)
{
    const tern__cli_option *option = &words->table[row];
    char *name = words->origin[row];
    snprintf(name, sizeof(words->origin[row]), "PET_%s", option->name);
    for (char *at = name; *at; at++) *at = *at == '-' ? '_' : (char)toupper(*at);
    const char *value = getenv(name);
    bool is_on = value && !strcmp(value, "1");
    if (value && !option->value && !is_on && strcmp(value, "0") != 0)
        return tern__error_set(err, __func__, TERN_E_ENV, "%s: expected 0 or 1, got \"%s\"", name, value);
    words->value[row] = option->value ? value : is_on ? "" : NULL;
    return TERN_OK;
}

static int store_value(const tern__cli_words *words, int row, tern_error *err)
{
    tern_error inner = {0};
    const tern__cli_option *option = &words->table[row];
    const char *origin = words->origin[row];
    if (option->is_refused)
        return tern__error_set(err, __func__, TERN_E_UNSUPPORTED, "%s: %s", origin, option->help);
    if (!tern__option_store(option, words->value[row], &inner)) return TERN_OK;
    return tern__error_set(err, __func__, inner.code, "%s: %s", origin, inner.text);
}

int tern__words_store(tern__cli_words *words, tern_error *err)
{
    int status = TERN_OK;
    for (int i = 0; i < words->count && !status; i++) {
        const tern__cli_option *option = &words->table[i];
        if (!option->name || option->letter == 'h') continue;
        if (!words->value[i]) status = read_variable(words, i, err);
        if (!status && words->value[i]) status = store_value(words, i, err);
    }
    return status;
}
