/* bench.h - what `tern bench` measures, one file each. A bench gets its own name as argv[0] and returns the
 * exit code. */
#ifndef TERN_CLI_BENCH_H
#define TERN_CLI_BENCH_H

#include "cli.h"

tern__cli_fn tern__bench_all_reduce;
tern__cli_fn tern__bench_board;
tern__cli_fn tern__bench_optimizer;
tern__cli_fn tern__bench_step;

/* The middle one of `count` values, or the mean of the middle two; sorts them. */
double tern__bench_median(double *values, size_t count);

#endif
