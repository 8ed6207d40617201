/* bench.h - what `tern bench` measures, one file each. A bench gets its own name as argv[0] and returns the
 * exit code. */
#ifndef TERN_CLI_BENCH_BENCH_H
#define TERN_CLI_BENCH_BENCH_H

#include "cli.h"

tern__cli_fn tern__bench_board;
tern__cli_fn tern__bench_collective; /* by its argv[0]: one of them, or "collectives" */
tern__cli_fn tern__bench_conv;
tern__cli_fn tern__bench_optimizer;
tern__cli_fn tern__bench_step;
tern__cli_fn tern__bench_store;

/* The middle one of `count` values, or the mean of the middle two; sorts them. */
double tern__bench_median(double *values, size_t count);

/* "4,1K,64K" into sizes[0..*count), at most `most`, each a multiple of `step`. False: it is something else,
 * and `who` has said so. */
bool tern__bench_sizes(const char *who, char *text, size_t step, size_t *sizes, int most, int *count);
/* The same of a number from 1 to `most`, and of one of the words, which end with NULL. */
bool tern__bench_number(const char *who, const char *option, const char *text, long most, long *value);
bool tern__bench_word(const char *who, const char *option, const char *text, const char *const *words);

#endif
