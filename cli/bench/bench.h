/* bench.h - the benches of `tern bench`, one file each, and what they share. A bench gets its own name as
 * argv[0] and returns the exit code. */
#ifndef TERN_CLI_BENCH_BENCH_H
#define TERN_CLI_BENCH_BENCH_H

#include "cli.h"
#include "flags.h"

#include <cjson/cJSON.h>

tern__cli_fn tern__bench_board;
tern__cli_fn tern__bench_collective; /* argv[0] names the collective, or is "collectives" */
tern__cli_fn tern__bench_conv;
tern__cli_fn tern__bench_optimizer;
tern__cli_fn tern__bench_step;
tern__cli_fn tern__bench_store;

extern const tern__cli_page tern__board_page, tern__collective_page, tern__barrier_page, tern__conv_page,
    tern__optimizer_page, tern__step_page, tern__store_page;

/* Returns the median of `count` values and sorts them. */
double tern__bench_median(double *values, size_t count);

/* Prints a line if the ranks of this host have more kernel threads, `threads` each, than cores. */
void tern__bench_print_oversubscribed(int threads);

/* Prints the object as one line on stdout and frees it. */
void tern__bench_print(cJSON *line);

#endif
