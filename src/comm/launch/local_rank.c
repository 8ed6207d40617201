/* local_rank.c - tern_local_rank_take: reads --local-rank, which torch.distributed.launch adds, and removes
 * it. The first pass over the arguments only reads them, so an error leaves them unchanged. */
#include <tern/spawn.h>

#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of arguments that the option at argv[at] spans, and sets *number to its value; 0: it is
 * another argument. */
static int match_variable(char *const *argv, int at, const char **number)
{
    const char *word = argv[at];
    if (strncmp(word, "--local-rank", 12) && strncmp(word, "--local_rank", 12)) return 0;
    if (word[12] && word[12] != '=') return 0;
    *number = word[12] ? word + 13 : argv[at + 1];
    return word[12] ? 1 : 2;
}

static int parse_rank(const char *option, const char *number, int *local_rank, tern_error *err)
{
    char *end = NULL;
    errno = 0;
    long value = number && *number >= '0' && *number <= '9' ? strtol(number, &end, 10) : -1;
    if (end && !*end && !errno && value <= INT_MAX) {
        *local_rank = (int)value;
        return TERN_OK;
    }
    return tern__error_set(err, "tern_local_rank_take", TERN_E_INVALID,
                           "%.12s: expected a whole number from 0, got %s%s%s", option, number ? "\"" : "",
                           number ? number : "nothing", number ? "\"" : "");
}

static int read_all(char *const *argv, int *local_rank, tern_error *err)
{
    const char *number;
    for (int at = 1; argv[at] && strcmp(argv[at], "--"); at++) {
        int taken = match_variable(argv, at, &number);
        int status = taken ? parse_rank(argv[at], number, local_rank, err) : TERN_OK;
        if (status) return status;
        at += taken == 2;
    }
    return TERN_OK;
}

static int remove_all(char **argv)
{
    const char *number;
    int kept = 1, at = 1;
    while (argv[at] && strcmp(argv[at], "--")) {
        int taken = match_variable(argv, at, &number);
        if (!taken) argv[kept++] = argv[at];
        at += taken ? taken : 1;
    }
    while (argv[at]) argv[kept++] = argv[at++];
    argv[kept] = NULL;
    return kept;
}

int tern_local_rank_take(int *argc, char **argv, int *local_rank, tern_error *err)
{
    int found = *local_rank;
    if (tern__is_set(err)) return err->code;
    if (!argv[0]) return TERN_OK;
    int status = read_all(argv, &found, err);
    if (status) return status;
    *local_rank = found;
    *argc = remove_all(argv);
    return TERN_OK;
}
